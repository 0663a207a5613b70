"""The live tail as a server sends it: filters, excerpts, what is skipped, limits, and what ends it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import pytest

import penstock
from penstock import model, testing
from penstock.console.bodies import EXCERPT_BYTES
from penstock.console.tail import BEHIND_MAX, FILTERS_MAX, PAGE_EVENTS, TAILS_PER_PRINCIPAL_MAX
from tests.console.visitor import Visitor
from tests.principals import ask, issue, put
from tests.test_server import until

HOSTILE: Final = "<b>\u202e\x1b[31m\n"


class Told(NamedTuple):
    event: str
    data: str
    id: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.data)
        return found


class Tail:
    """One connection of a visitor."""

    def __init__(self, visitor: Visitor, *filters: dict[str, Any], after: str = "", **headers: str) -> None:
        pairs = [("filter", json.dumps(one)) for one in filters] + [("after", after)] * bool(after)
        request = visitor.http.build_request("GET", f"/console/tail/events?{urlencode(pairs)}", headers=headers)
        self.answer = visitor.http.send(request, stream=True)
        if self.answer.status_code == 200:
            self._told = self._read()
            assert self.next().event == "open"
        else:
            self.answer.read()

    def _read(self) -> Iterator[Told]:
        block: dict[str, str] = {}
        for line in self.answer.iter_lines():
            if line:
                name, _, value = line.partition(":")
                block[name] = value.removeprefix(" ")
            else:
                if "data" in block:
                    yield Told(block.get("event", ""), block["data"], block.get("id", ""))
                block = {}

    def next(self) -> Told:
        return next(self._told)

    def rows(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            if (told := self.next()).event == "rows":
                found += told.rows
        return found

    def rest(self) -> list[Told]:
        """What comes until the server ends it."""
        return list(self._told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()


class Stored(NamedTuple):
    server: testing.Server
    root: penstock.Client
    visitor: Visitor

    def visit(self, name: str, *grants: str) -> Visitor:
        """A visitor who is logged in as a new principal."""
        put(self.root, name, *grants)
        made = Visitor(self.server.http)
        assert made.log_in(issue(self.root, name).token).status_code == 303
        return made

    def append(self, stream: str, *types: str, context: str = "shop", body: Any = None) -> None:
        self.root.append(context, stream, [penstock.event(one, body) for one in types])


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root, Visitor(server.http) as visitor:
            visitor.log_in(token)
            yield Stored(server, root, visitor)


def test_rows_come_from_now_on_with_the_filters_that_want_them(stored: Stored) -> None:
    stored.append("before", "A")
    filters = ({"context": "shop", "prefix": "order-"}, {"types": ["A", "B"]}, {"context": "nix"})
    with Tail(stored.visitor, *filters) as tail:
        stored.append("order-1", "A", "C")
        stored.append("other", "B", "C")
        rows = tail.rows(3)
    found = [(row["stream"], row["type"], row["for"]) for row in rows]
    assert found == [("shop/order-1", "A", [0, 1]), ("shop/order-1", "C", [0]), ("shop/other", "B", [1])]
    positions = [event.position for event in stored.root.read_all(context="shop")]
    assert [row["at"] for row in rows] == positions[-4:-1]
    assert rows[0]["query"] == "context=shop&stream=order-1"


def test_bodies_are_cut_and_names_are_shown_visibly(stored: Stored) -> None:
    with Tail(stored.visitor, {}) as tail:
        stored.append("large", "A", body="x" * 1_000_000)
        stored.root.append("bytes", "b", [penstock.event("A", b"\xff\x00"), penstock.event("A", b"")])
        stored.root.append("shop", "<b>\u202e", [penstock.event("<i>", HOSTILE)])
        large, binary, empty, hostile = tail.rows(4)
    assert (large["size"], len(large["excerpt"])) == (1_000_000, EXCERPT_BYTES)
    assert (binary["excerpt"], binary["size"], empty["excerpt"]) == (None, 2, "")
    assert hostile["stream"] == "shop/<b>\\u202e"
    assert "\u202e" not in hostile["excerpt"]


def test_a_connection_goes_on_behind_the_last_event(stored: Stored) -> None:
    with Tail(stored.visitor, {"context": "shop"}) as tail:
        stored.append("again", "A")
        told = tail.next()
    stored.append("again", "B", "C")
    for place in ({"after": told.id}, {"last_event_id": told.id, "after": "old"}):
        after = place.pop("after")
        headers = {name.replace("_", "-"): value for name, value in place.items()}
        with Tail(stored.visitor, {"context": "shop"}, after=after, **headers) as tail:
            assert [row["type"] for row in tail.rows(2)] == ["B", "C"]
    with Tail(stored.visitor, {"context": "shop"}, after="another-history.1.1") as tail:
        stored.append("again", "D")
        assert [row["type"] for row in tail.rows(1)] == ["D"]


def test_who_is_far_behind_goes_on_near_the_end_and_hears_what_is_skipped(stored: Stored) -> None:
    with Tail(stored.visitor, {}) as tail:
        stored.append("skip", "A")
        last = tail.next()
    count = BEHIND_MAX + 500
    stored.root.append("shop", "skip", [penstock.event("B", number) for number in range(count)])
    with Tail(stored.visitor, {}, after=last.id) as tail:
        skipped = tail.next()
        assert (skipped.event, skipped.data) == ("skipped", str(count - PAGE_EVENTS))
        rows = tail.rows(PAGE_EVENTS)
    assert [row["excerpt"] for row in rows] == [str(number) for number in range(count - PAGE_EVENTS, count)]


def test_a_principal_follows_only_what_it_may_see(stored: Stored) -> None:
    with stored.visit("narrow", "read:shop/order-*") as narrow:
        assert Tail(narrow, {"context": "bank"}).answer.status_code == 403
        with Tail(narrow, {}, {"context": "bank"}) as tail:
            stored.append("secret", "Hidden")
            stored.append("acc", "Hidden", context="bank")
            stored.append("order-1", "Seen")
            assert [(row["type"], row["for"]) for row in tail.rows(1)] == [("Seen", [0])]
        assert "Hidden" not in narrow.page("/tail")
        assert "Seen" in narrow.page("/tail")


@pytest.mark.parametrize("how", ["token", "principal", "logout"])
def test_a_tail_ends_with_its_session(stored: Stored, how: str) -> None:
    with stored.visit(f"ends-{how}", "read") as visitor, Tail(visitor, {}) as tail:
        if how == "logout":
            with Visitor(stored.server.http, cookies=visitor.http.cookies) as other:
                other.submit(other.page(), "/logout")
        elif how == "token":
            (credential,) = ask(stored.root, model.ListCredentials(f"ends-{how}"), model.ListPage).items
            ask(stored.root, model.DropCredential(credential.id), model.Done)
        else:
            ask(stored.root, model.DropPrincipal(f"ends-{how}"), model.Done)
        assert [told.event for told in tail.rest()] == ["over"]
        again = visitor.http.get("/console/tail/events", headers={"hx-request": "true"})
        assert again.status_code == 401


def test_a_principal_has_so_many_tails_and_is_told(stored: Stored) -> None:
    with stored.visit("busy", "read") as visitor, ExitStack() as stack:
        tails = [stack.enter_context(Tail(visitor, {})) for _ in range(TAILS_PER_PRINCIPAL_MAX)]
        refused = Tail(visitor, {}).answer
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert f"Busy has {TAILS_PER_PRINCIPAL_MAX} live tails open" in refused.text
        with Tail(stored.visitor, {}) as other:
            assert other.answer.status_code == 200
        tails[0].answer.close()

        def is_free() -> bool:
            with Tail(visitor, {}) as tail:
                return tail.answer.status_code == 200

        until(is_free)


def test_limits_of_the_principal_hold(stored: Stored) -> None:
    with stored.visit("few", "read") as visitor:
        ask(stored.root, model.PutPrincipal("few", ("read",), model.Limits(polls_max=1)), model.Done)
        with Tail(visitor, {}):
            assert Tail(visitor, {}).answer.status_code == 429


@pytest.mark.parametrize(
    "query",
    [
        "filter=x",
        "filter=[]",
        "filter=%7B%22context%22%3A1%7D",
        "filter=%7B%22types%22%3A%5B1%5D%7D",
        "filter=" + "%20" * 3000,
        "&".join(f"filter=%7B%22prefix%22%3A%22{number}%22%7D" for number in range(FILTERS_MAX + 1)),
    ],
)
def test_nonsense_is_refused(stored: Stored, query: str) -> None:
    answer = stored.visitor.http.get(f"/console/tail/events?{query}")
    assert answer.status_code == 400


def test_a_tail_is_only_got(stored: Stored) -> None:
    assert stored.visitor.http.head("/console/tail/events").status_code == 405
    with stored.visit("writer", "append") as writer:
        assert writer.http.get("/console/tail/events").status_code == 403


def test_without_scripts_the_page_has_the_last_events(stored: Stored) -> None:
    stored.root.append("last", "s", [penstock.event("L", number) for number in range(60)])
    stored.append("x", "X", context="other")
    text = stored.visitor.page("/tail", context="last", types="L, M")
    assert text.count("<tr>") == 51
    assert text.index("<code>59</code>") < text.index("<code>10</code>")
    assert "<code>9</code>" not in text
    assert "Reload" in text
    assert "There is no such event yet" in stored.visitor.page("/tail", context="nix")
    assert stored.visitor.get("/tail", prefix="x" * 3000).status_code == 400
