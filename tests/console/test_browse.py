"""Pages to look through what is stored: paging both ways, jumps, one event, and data that would harm the page."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Final, NamedTuple

import pytest

import penstock
from penstock import testing
from penstock.engine import jobs
from penstock.model import Event
from penstock.model.times import text_of_ticks
from tests.console.visitor import Visitor
from tests.principals import issue, put

EVENTS: Final = 130
HOSTILE: Final = "<script>alert(1)</script>\"'&\u202eevil\x1b[31m"
LINK: Final = re.compile(r'<a class="button" href="([^"]+)">(Newest|Newer|Older|Oldest)</a>')


class Stored(NamedTuple):
    visitor: Visitor
    events: list[Event]
    """The history."""


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with testing.server() as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            for number in range(EVENTS):
                client.append("shop", "long", [penstock.event("Counted", {"number": number})])
                client.append("shop", f"s{number:04}", [penstock.event("Other", b"")])
            client.append("shop", "longer", [penstock.event("Other", {"big": 2**70})])
            client.append(HOSTILE, HOSTILE, [penstock.event(HOSTILE, HOSTILE, {HOSTILE: HOSTILE})])
            client.append(HOSTILE, "bytes", [penstock.event("Bytes", b"\x00\xff" * 500_000)])
            client.append("shop", "erased", [penstock.event("Secret", b"pin 4711")])
            client.erase_stream("shop", "erased", wait=True)
            events = list(client.read_all())
        yield Stored(visitor, events)


def links(text: str) -> dict[str, str]:
    """Where the pager leads."""
    return {label: unescape(link) for link, label in LINK.findall(text)}


def versions(text: str) -> list[int]:
    """Versions of the events of a page, in its order."""
    found = re.findall(r"stream=[^\"&]*&amp;version=(\d+)\">", text)
    return [int(version) for version in found]


def positions(text: str) -> list[int]:
    """What the rows of a page begin with: positions in the history, versions in a stream."""
    return [int(one.replace(",", "")) for one in re.findall(r'scope="row" class="number"><a [^>]*>([\d,]+)<', text)]


def follow(stored: Stored, path: str, label: str) -> list[str]:
    """A page and all behind it."""
    found = [stored.visitor.http.get(path).text]
    while link := links(found[-1]).get(label):
        found.append(stored.visitor.http.get(link).text)
    return found


def test_the_events_of_a_stream_are_paged_both_ways(stored: Stored) -> None:
    path = "/console/browse/stream?context=shop&stream=long"
    down = [version for page in follow(stored, path, "Older") for version in versions(page)]
    assert down == list(range(EVENTS, 0, -1))
    oldest = stored.visitor.http.get(links(stored.visitor.http.get(path).text)["Oldest"]).text
    assert "Older" not in links(oldest)
    up = follow(stored, f"{path}&order=oldest", "Newer")
    assert [version for page in reversed(up) for version in versions(page)] == down


def test_the_history_is_paged_both_ways(stored: Stored) -> None:
    wanted = [event.position for event in stored.events]
    down = [position for page in follow(stored, "/console/browse/history", "Older") for position in positions(page)]
    assert down == wanted[::-1]
    up = follow(stored, "/console/browse/history?from=1", "Newer")
    assert [position for page in up for position in positions(page)[::-1]] == wanted


@pytest.mark.parametrize("step_s", [1.0, 0.0])
def test_the_history_of_a_principal_that_sees_little_is_paged_without_gaps(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    # A search that is at its end at once goes on in steps.
    monkeypatch.setattr(jobs, "STEP_S_MAX", step_s)
    with testing.server() as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            for burst in (60, 1, 7, 130):
                client.append("shop", "mine", [penstock.event("Mine", {}) for _ in range(burst)])
                client.append("shop", "others", [penstock.event("Other", {}) for _ in range(700)])
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root:
            put(root, "narrow", "read:shop/mine")
            visitor.log_in(issue(root, "narrow").token)
            wanted = [event.position for event in root.read_stream("shop", "mine")]
        narrow = Stored(visitor, [])
        down = [one for page in follow(narrow, "/console/browse/history", "Older") for one in positions(page)]
        assert down == wanted[::-1]
        last = visitor.page("/browse/event", position=wanted[-1])
        assert f"position={wanted[-2]}" in last
        assert visitor.get("/browse/event", position=wanted[-1] + 1).status_code == 404


def test_large_events_are_paged_without_gaps() -> None:
    with testing.server(page_bytes_max="1MiB") as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            for number in range(12):
                client.append("shop", "large", [penstock.event("Large", b"x" * (300_000 + number))])
        large = Stored(visitor, [])
        for path in ("/console/browse/history", "/console/browse/stream?context=shop&stream=large"):
            assert [one for page in follow(large, path, "Older") for one in positions(page)] == list(range(12, 0, -1))


def test_streams_are_filtered_by_prefix_and_paged(stored: Stored) -> None:
    def names(text: str) -> list[str]:
        return re.findall(r'scope="row" class="name"><a [^>]*>([^<]+)<', text)

    first = stored.visitor.page("/browse/streams", context="shop")
    assert len(names(first)) == 100
    rest = unescape(re.findall(r'href="([^"]+)">Next<', first)[0])
    assert len(names(first) + names(stored.visitor.http.get(rest).text)) == EVENTS + 3
    assert names(stored.visitor.page("/browse/streams", context="shop", prefix="long")) == ["long", "longer"]
    assert "No stream begins with this" in stored.visitor.page("/browse/streams", context="shop", prefix="Long")


@pytest.mark.parametrize("nth", [0, 1, 77, 2 * EVENTS - 1])
def test_jumps_lead_to_the_first_event_at_or_after_a_place(stored: Stored, nth: int) -> None:
    visitor, event = stored.visitor, stored.events[nth]
    of_stream = [one for one in stored.events if (one.context, one.stream) == ("shop", "long")]

    def jump(path: str, **query: object) -> str:
        answer = visitor.get(path, **query)
        if answer.status_code == 404:
            return ""
        assert answer.status_code == 303
        return answer.headers["location"].rpartition("=")[2]

    time, where = text_of_ticks(event.recorded), {"context": "shop", "stream": "long"}
    first = next(one for one in stored.events if one.recorded >= event.recorded)
    assert jump("/browse/history", by="position", at=event.position) == str(event.position)
    assert jump("/browse/history", by="time", at=time) == str(first.position)
    later = [one for one in of_stream if one.recorded >= event.recorded]
    assert jump("/browse/stream", **where, by="time", at=time) == (str(later[0].sequence) if later else "")
    later = [one for one in of_stream if one.position >= event.position]
    assert jump("/browse/stream", **where, by="position", at=event.position) == (
        str(later[0].sequence) if later else ""
    )
    assert jump("/browse/stream", **where, by="version", at="1,0") == "10"


@pytest.mark.parametrize(
    ("by", "at"), [("position", "x"), ("position", "-1"), ("position", "9" * 30), ("time", "yesterday"), ("time", "")]
)
def test_a_jump_to_nowhere_is_explained(stored: Stored, by: str, at: str) -> None:
    answer = stored.visitor.get("/browse/history", by=by, at=at)
    assert answer.status_code == (400 if at else 200)
    assert "Traceback" not in answer.text


def test_an_event_is_shown_with_its_neighbours(stored: Stored) -> None:
    visitor = stored.visitor
    middle = next(one for one in stored.events if one.stream == "long" and one.sequence == 5)
    text = visitor.page("/browse/event", context="shop", stream="long", version=5)
    assert text.replace("</span>", "") == visitor.page("/browse/event", position=middle.position).replace("</span>", "")
    assert middle.id_text in text
    assert text_of_ticks(middle.recorded).split("T")[1].removesuffix("Z") in text
    assert '<span class="key">number</span><span class="number">4</span>' in text
    nearby = set(map(unescape, re.findall(r'class="button" href="([^"]+)"', text)))
    root = "/console/browse/event?"
    assert nearby >= {
        *(f"{root}context=shop&stream=long&version={version}" for version in (4, 6)),
        *(f"{root}position={middle.position + step}" for step in (-1, 1)),
    }
    first, last = stored.events[0], stored.events[-1]
    assert f"position={first.position - 1}" not in visitor.page("/browse/event", position=first.position)
    assert f"position={last.position + 1}" not in visitor.page("/browse/event", position=last.position)


def test_big_numbers_are_exact(stored: Stored) -> None:
    text = stored.visitor.page("/browse/event", context="shop", stream="longer", version=1)
    assert str(2**70) in text


def test_what_is_not_there_or_erased_is_explained(stored: Stored) -> None:
    visitor = stored.visitor
    for query in ({"position": 10**9}, {"position": 0}, {"context": "shop", "stream": "long", "version": 999}):
        assert visitor.get("/browse/event", **query).status_code == 404
    erased = visitor.get("/browse/event", context="shop", stream="erased", version=1)
    assert erased.status_code == 404
    assert "4711" not in erased.text
    assert "There are no events here" in visitor.page("/browse/stream", context="shop", stream="erased")
    assert "There are no streams here" in visitor.page("/browse/streams", context="nix")
    assert visitor.get("/browse/event", context="shop", stream="long", version="x").status_code == 400


@pytest.mark.parametrize("form", ["", "json", "text", "hex"])
def test_hostile_names_and_texts_are_shown_escaped(stored: Stored, form: str) -> None:
    visitor, place = stored.visitor, {"context": HOSTILE, "stream": HOSTILE}
    pages = [
        visitor.page("/browse"),
        visitor.page("/browse/history"),
        visitor.page("/browse/streams", context=HOSTILE, prefix=HOSTILE[:5]),
        visitor.page("/browse/stream", **place),
        visitor.page("/browse/event", **place, version=1, as_=form, **{"as": form}),
        visitor.get("/browse/stream", **place, by="version", at=HOSTILE).text,
        visitor.get(f"/{HOSTILE[:20]}").text,
    ]
    for text in pages:
        assert "<script>alert" not in text
        # Only hidden fields have a name as it is.
        visible = re.sub(r'<input [^>]*value="[^"]*"[^>]*>', "", text)
        assert not re.search("[\u202e\x1b]", visible)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\u202eevil\\x1b[31m" in pages[0]


def test_bytes_are_shown_in_part_and_downloaded_whole(stored: Stored) -> None:
    place = {"context": HOSTILE, "stream": "bytes", "version": 1}
    text = stored.visitor.page("/browse/event", **place)
    assert "00 ff 00 ff" in text
    assert "972.6 KiB more are not shown here" in text
    answer = stored.visitor.get("/browse/body", **place)
    assert answer.content == b"\x00\xff" * 500_000
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="event-1.bin"'
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


def test_empty_pages_say_what_to_do() -> None:
    with testing.server() as server, Visitor(server.http) as visitor:
        assert "penstock append" in visitor.page("/browse")
        assert "penstock append" in visitor.page("/browse/history")
        assert visitor.page()
        assert json.loads(visitor.get("/samples").text)["events"] == []
