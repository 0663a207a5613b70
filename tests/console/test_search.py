"""Search: what is found, what is not visible, exact numbers, limits that say so."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Final

import pytest

import penstock
from penstock import testing
from penstock.console import jobs
from penstock.console.jobs import Condition, Value
from penstock.console.visit import Places, Refused
from penstock.model import Event, EventFilter
from penstock.model.times import text_of_ticks
from penstock.store import open_reader
from tests.console.visitor import Visitor
from tests.principals import issue, put

BIG: Final = 12345678901234567890123
HOSTILE: Final = "<script>x</script>\u202e"
POSITION: Final = re.compile(r'scope="row" class="number"><a [^>]*>([\d,]+)<')


class Stored:
    def __init__(self, server: testing.Server, visitor: Visitor, root: penstock.Client) -> None:
        self.server, self.visitor, self.root = server, visitor, root
        self.events: list[Event] = list(root.read_all())

    def found(self, visitor: Visitor | None = None, /, **query: Any) -> list[str]:
        """The types of the events that a search finds."""
        text = (visitor or self.visitor).page("/search", **query)
        types = {event.position: event.type for event in self.events}
        return [types[int(one.replace(",", ""))] for one in POSITION.findall(text)]


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root, Visitor(server.http) as visitor:
            visitor.log_in(token)
            root.append("shop", "order-1", [penstock.event("A", {"n": BIG, "who": {"id": "ann"}}, {"user": "ann"})])
            root.append("shop", "order-2", [penstock.event("B", {"n": BIG + 1, "items": [{"sku": "x"}, {"sku": "y"}]})])
            root.append("shop", "secret", [penstock.event("C", {"n": BIG, "who": {"id": "bob"}}, {"user": "bob"})])
            root.append("bank", "acc", [penstock.event("D", {"a.b": 1, "t": True, "z": None, "s": "1", "f": 12.50})])
            root.append("bank", "acc", [penstock.event("E", b'{"\\u006e": 7, "n": 8}'), penstock.event("F", b"n \xff")])
            root.append("bank", "acc", [penstock.event("G", {"n": 1, "long": "x" * (1 << 20)})])
            root.append("shop", "gone", [penstock.event("H", {"n": BIG, "pin": 4711})])
            root.append(HOSTILE, HOSTILE, [penstock.event("I", {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})])
            made = Stored(server, visitor, root)
            root.erase_stream("shop", "gone", wait=True)
            yield made


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ({"context": "bank"}, "DEFG"),
        ({"context": "shop", "prefix": "order-"}, "AB"),
        ({"types": "A, D ,x"}, "AD"),
        ({"context": "nix"}, ""),
        ({"field": "n", "value": str(BIG)}, "AC"),
        ({"field": "n", "value": str(BIG + 1)}, "B"),
        ({"field": "n", "value": f"{BIG}.0"}, "AC"),
        ({"field": "n", "value": f'"{BIG}"'}, ""),
        ({"field": "who.id", "value": "ann"}, "A"),
        ({"field": "who.id", "value": '"ann"'}, "A"),
        ({"field": "who.id", "value": "an"}, ""),
        ({"field": "who", "value": "ann"}, ""),
        ({"field": "items.1.sku", "value": "y"}, "B"),
        ({"field": "items.2.sku", "value": "y"}, ""),
        ({"field": "a.b", "value": "1"}, "D"),
        ({"field": "t", "value": "true"}, "D"),
        ({"field": "z", "value": "null"}, "D"),
        ({"field": "s", "value": "1"}, "D"),
        ({"field": "f", "value": "12.5"}, "D"),
        ({"field": "f", "value": "1250e-2"}, "D"),
        ({"field": "n", "value": "7"}, "E"),
        ({"field": "n", "value": "8"}, "E"),
        ({"field": "n", "value": "sNaN"}, ""),
        ({"field": "n", "value": "(a+)+$"}, ""),
        ({"header": "user", "header_value": "ann"}, "A"),
        ({"header": "user", "header_value": "ann", "field": "n", "value": str(BIG)}, "A"),
        ({"header": HOSTILE, "header_value": HOSTILE, "field": HOSTILE, "value": HOSTILE}, "I"),
        ({"field": "pin", "value": "4711"}, ""),
    ],
)
def test_a_search_finds_what_matches_and_nothing_else(stored: Stored, query: dict[str, str], types: str) -> None:
    assert "".join(stored.found(**query)) == types


def test_times_and_positions_bound_a_search(stored: Stored) -> None:
    b, d = (next(event for event in stored.events if event.type == one) for one in "BD")
    between = {"from": b.position, "to": f"{d.position:,}"}
    assert stored.found(**between) == ["B", "C", "D"]
    assert stored.found(**{"from": d.position, "to": b.position}) == []
    times = {"since": text_of_ticks(b.recorded), "until": text_of_ticks(d.recorded)}
    wanted = [event.type for event in stored.events if b.recorded <= event.recorded <= d.recorded]
    assert stored.found(**times) == [one for one in wanted if one != "H"]
    assert stored.found(since="2999-01-01T00:00:00Z") == []
    assert "There are no positions to search." in stored.visitor.page("/search", **{"from": 10**9})


@pytest.mark.parametrize("grants", ["read:shop/order-1", "read:shop/order-*"])
def test_what_a_principal_may_not_see_does_not_exist(stored: Stored, grants: str) -> None:
    put(stored.root, "narrow", grants)
    with Visitor(stored.server.http) as narrow:
        narrow.log_in(issue(stored.root, "narrow").token)
        assert stored.found(narrow, field="n", value=BIG) == ["A"]
        assert "1 match<" in narrow.page("/search", field="n", value=BIG)
        assert stored.found(narrow, header="user", header_value="bob") == []
        assert narrow.get("/search", context="bank").status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        {"value": "x"},
        {"since": "yesterday"},
        {"from": "-1"},
        {"field": ".".join("a" * 30), "value": "x"},
        {"field": "a", "value": "x" * 5000},
        {"types": ",".join(map(str, range(200)))},
    ],
)
def test_a_search_for_nonsense_is_explained(stored: Stored, query: dict[str, str]) -> None:
    answer = stored.visitor.get("/search", **query)
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


def test_one_search_too_many_is_answered_busy() -> None:
    places = Places(1, "search")
    with places.one():
        with pytest.raises(Refused, match="runs 1 search at a time") as raised, places.one():
            pass
        assert (raised.value.status, "retry-after" in raised.value.headers) == (503, True)
    with places.one():
        assert places.taken == 1


def test_long_bodies_are_passed_over_and_told(stored: Stored) -> None:
    text = stored.visitor.page("/search", context="bank", field="n", value="1")
    assert "1 bodies of more than 1 MiB were passed over" in text
    assert "Nothing matches" in text


def test_the_form_keeps_what_was_asked_for(stored: Stored) -> None:
    text = stored.visitor.page("/search", field=HOSTILE, value=HOSTILE)
    assert "<script>x" not in text
    assert f'name="field" value="{"&lt;script&gt;x&lt;/script&gt;"}\u202e"' in text
    assert "<h2" not in stored.visitor.page("/search")


def test_many_matches_are_paged_and_counted_up_to_a_limit(stored: Stored) -> None:
    for start in range(0, 13_000, 2_600):
        stored.root.append("many", "s", [penstock.event("M", start + number) for number in range(2_600)])
    positions: list[int] = []
    text = stored.visitor.page("/search", context="many")
    assert "10,000+ matches" in text
    assert "It stops when it has found 10,000" in text
    while True:
        positions += [int(one.replace(",", "")) for one in POSITION.findall(text)]
        following = re.search(r'href="([^"]+)">Next<', text)
        if following is None or len(positions) > 200:
            break
        text = stored.visitor.http.get(unescape(following[1])).text
    assert positions == list(range(positions[0], positions[0] + len(positions)))
    end = stored.visitor.page("/search", context="many", at=positions[0] + 12_960)
    assert "40 matches" in end
    assert 'href="/console/search?context=many&amp;at=' not in end


def test_a_search_that_takes_too_long_says_where_it_is_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    url = f"sqlite:///{tmp_path}"
    with penstock.connect(url) as client:
        for number in range(8):
            client.append("shop", f"s{number}", [penstock.event("A", {"n": number}) for _ in range(4096)])
    monkeypatch.setattr(jobs, "SEARCH_STEP_S", 0.0)
    store = open_reader(url)
    try:
        wanted, condition = EventFilter(), Condition(field=Value(("n",), "7"))
        matches, first, steps = 0, 1, 0
        while True:
            found = jobs.search(store, wanted, condition, first, store.head(), 50, None)
            assert found.next > first
            matches, first, steps = matches + found.matches, found.next, steps + 1
            if found.end:
                break
        assert (matches, steps > 1) == (4096, True)
    finally:
        store.close()
