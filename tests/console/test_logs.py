"""Pages of logs and iterators, and trials: functions run on real messages, in a worker, within limits."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Final

import httpx
import pytest

import penstock
from penstock import testing
from penstock.console import app
from tests.console.visitor import Guarded, Visitor
from tests.principals import issue, put

HOSTILE: Final = "<script>alert(1)</script>\u202e"
MESSAGES: Final = 120


@pytest.fixture(scope="module")
def stored() -> Iterator[Guarded]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            tokens = {"root": issue(client, "root").token}
        with penstock.connect(server.url, token=tokens["root"]) as root:
            put(root, "reader", "read")
            put(root, "narrow", "read,append:log:open*", "read,append:shop/order-1")
            tokens |= {name: issue(root, name).token for name in ("reader", "narrow")}
            for name in ("visits", "open", HOSTILE):
                root.log(name).create()
            root.log("visits").append([{"n": number, "big": 2**70} for number in range(MESSAGES)])
            root.log("open").append([{"n": 1, HOSTILE: HOSTILE}])
            root.append("shop", "order-1", [penstock.event("Placed", {"total": 7})])
            root.append("shop", "order-2", [penstock.event("Placed", {"total": 4711})])
            root.iterator("sums").create("visits", "reduce", "(acc or 0) + msg.n", indexed=True)
            root.iterator("broken").create("visits", "map", "return msg.x.y")
        yield Guarded(server, tokens)


def outcomes(text: str) -> list[tuple[int, str]]:
    """The result of each message of a trial, by its number."""
    found = re.findall(
        r'<tr class="([^"]*)"><th scope="row" class="number">(\d+)</th><td>.*?</td>\s*<td>(.*?)</td>', text
    )
    return [(int(number), unescape(re.sub("<[^>]+>", "", result)).strip()) for _, number, result in found]


def attempt(visitor: Visitor, function: str, log: str = "visits", **fields: str) -> httpx.Response:
    text = visitor.page("/iterators/try", log=log)
    sent = {"log": log, "kind": "map", "first": "0", "count": "4", "function": function}
    return visitor.submit(text, "/iterators/try", **{**sent, **fields})


# --- pages ----------------------------------------------------------------------------------------------------


def test_logs_are_listed_with_their_messages(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        text = visitor.page("/logs")
    assert re.search(r'log=visits">visits</a></th><td class="number">120</td>', text)
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in text


def test_messages_are_paged_with_exact_numbers(stored: Guarded) -> None:
    def numbers(text: str) -> list[int]:
        return [int(one) for one in re.findall(r'version=\d+">(\d+)</a></th>', text)]

    with stored.visitor() as visitor:
        pages = [visitor.page("/logs/log", log="visits")]
        while link := re.search(r'href="([^"]+)">Older<', pages[-1]):
            pages.append(visitor.http.get(unescape(link[1])).text)
        assert [number for page in pages for number in numbers(page)] == list(range(MESSAGES - 1, -1, -1))
        assert str(2**70) in pages[0]
        hostile = visitor.page("/logs/log", log="open")
        assert "<script>alert" not in hostile
        assert "There is no message here" in visitor.page("/logs/log", **{"log": "visits", "from": 5000})


def test_an_iterator_shows_its_function_and_its_output(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        text = visitor.page("/iterators/iterator", iterator="sums")
        assert "(acc or 0) + msg.n" in text
        assert re.findall(r'<code class="message">(\d+)</code>', text)[:4] == ["0", "1", "3", "6"]
        assert "<dt>Behind</dt><dd>0<small>" in text
        later = visitor.page("/iterators/iterator", **{"iterator": "sums", "from": 119})
        assert '<code class="message">7140</code>' in later
        broken = visitor.page("/iterators/iterator", iterator="broken")
        assert "The function failed at message 0" in broken


def test_a_log_is_created_and_deleted_by_its_typed_name(stored: Guarded) -> None:
    with stored.visitor() as visitor, stored.client() as client:
        created = visitor.submit(visitor.page("/logs"), "/logs/create", log="short")
        assert created.headers["location"] == "/console/logs/log?log=short"
        page = visitor.page("/logs/log", log="short")
        assert "The log short is there." in page
        wrong = visitor.submit(page, "/logs/delete", typed="shor")
        assert wrong.status_code == 422
        assert "short" in client.logs()
        assert visitor.submit(page, "/logs/delete", typed="short").status_code == 303
        assert "short" not in client.logs()
        again = visitor.submit(page, "/logs/delete", typed="short")
        assert again.status_code in (303, 404)


def test_an_iterator_is_created_from_a_trial_and_deleted(stored: Guarded) -> None:
    with stored.visitor() as visitor, stored.client() as client:
        page = visitor.page("/iterators/try", log="visits")
        fields = {**visitor.hidden(page, "/iterators/try"), "log": "visits", "kind": "filter", "iterator": "odd"}
        function = "return msg.n % 2 == 1\r\n"
        refused = visitor.post("/iterators/create", {**fields, "function": "return ("})
        assert refused.status_code == 422
        assert "unexpected symbol" in refused.text
        made = visitor.post("/iterators/create", {**fields, "function": function, "indexed": "1"})
        assert made.headers["location"] == "/console/iterators/iterator?iterator=odd"
        shown = client.iterator("odd").show()
        assert (shown.kind, shown.function, shown.indexed) == ("filter", "return msg.n % 2 == 1\n", True)
        page = visitor.page("/iterators/iterator", iterator="odd")
        assert visitor.submit(page, "/iterators/delete", typed="even").status_code == 422
        assert visitor.submit(page, "/iterators/delete", typed="odd").status_code == 303
        assert "odd" not in client.iterators()


# --- trials ---------------------------------------------------------------------------------------------------


def test_a_trial_runs_on_real_messages(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        mapped = attempt(visitor, "return {n = msg.n * 2, big = msg.big}", first="118", count="20")
        assert outcomes(mapped.text) == [(118, f'{{"big":{2**70},"n":236}}'), (119, f'{{"big":{2**70},"n":238}}')]
        kept = attempt(visitor, "msg.n % 2 == 1", kind="filter")
        assert [result for _, result in outcomes(kept.text)] == [
            "Dropped",
            f'{{"n":1,"big":{2**70}}}',
            "Dropped",
            f'{{"n":3,"big":{2**70}}}',
        ]
        assert [result for _, result in outcomes(attempt(visitor, "(acc or 0) + 1", kind="reduce").text)] == list(
            "1234"
        )
        assert outcomes(attempt(visitor, "msg.body.total", "shop/order-1").text) == [(0, "7")]
        assert outcomes(attempt(visitor, "return msg", "sums", first="3", count="1").text) == [(3, "6")]


def test_a_message_that_fails_says_why(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        function = "if msg.n == 1 then error('<b>no</b>') end return msg.n"
        answer = attempt(visitor, function)
        assert "<b>no</b>" not in answer.text
        assert [result for _, result in outcomes(answer.text)] == ["0", "Failed function:1: <b>no</b>", "2", "3"]
        stopped = attempt(visitor, function, kind="filter")
        assert [result.partition(" ")[0] for _, result in outcomes(stopped.text)][1:] == ["Failed", "Not", "Not"]
        wrong = attempt(visitor, "return (")
        assert wrong.status_code == 422
        assert "unexpected symbol near" in wrong.text
        assert "There are no messages to try the function on" in attempt(visitor, "1", first="9999").text
        assert attempt(visitor, "1", "nothing").status_code == 404


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("while true do end", "ran for more than"),
        ("string.find(('a'):rep(40), ('a?'):rep(40) .. ('a'):rep(41))", "ran for more than"),
        ("('x'):rep(1e9)", "bytes of memory"),
    ],
    ids=["loop", "pattern", "memory"],
)
def test_a_trial_has_limits_and_the_server_goes_on(stored: Guarded, function: str, why: str) -> None:
    with stored.visitor() as visitor:
        answer = attempt(visitor, function)
        assert answer.status_code == 200
        assert why in outcomes(answer.text)[0][1]
        assert [result for _, result in outcomes(attempt(visitor, "msg.n").text)] == list("0123")


@pytest.mark.parametrize("name", ["io", "os", "require", "load", "debug", "python", "package", "dofile"])
def test_a_trial_reaches_nothing_outside_of_lua(stored: Guarded, name: str) -> None:
    with stored.visitor() as visitor:
        assert outcomes(attempt(visitor, f"type({name})", count="1").text) == [(0, '"nil"')]


def test_only_who_may_append_runs_functions_and_only_on_what_it_may_read(stored: Guarded) -> None:
    with stored.visitor("reader") as reader:
        page = reader.page("/iterators/try", log="visits")
        assert "you need the right to append" in page
        assert attempt(reader, "msg").status_code == 403
        for action, back in (
            ("/logs/create", "/logs"),
            ("/logs/delete", "/logs/log?log=visits"),
            ("/iterators/create", "/iterators/try"),
            ("/iterators/delete", "/iterators/iterator?iterator=sums"),
        ):
            fields = {**reader.hidden(page, "/iterators/try"), "log": "visits", "typed": "visits", "kind": "map"}
            assert reader.post(action, {**fields, "back": f"/console{back}"}).status_code == 403
    with stored.visitor("narrow") as narrow:
        page = narrow.page("/iterators/try")
        assert 'value="open"' in page
        assert "visits" not in page
        assert "sums" not in page
        assert outcomes(attempt(narrow, "msg.n", "open").text) == [(0, "1")]
        assert outcomes(attempt(narrow, "msg.body.total", "shop/order-1").text) == [(0, "7")]
        for hidden in ("visits", "sums", "shop/order-2", "$audit/access"):
            answer = attempt(narrow, "return msg", hidden)
            assert outcomes(answer.text) == []
            assert "4711" not in answer.text
            assert "It did not work." in answer.text


def test_there_are_places_for_some_trials_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "TRIALS_MAX", 0)
    with testing.server() as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            client.log("visits").create()
            client.log("visits").append([1])
        busy = attempt(visitor, "return msg")
        assert busy.status_code == 503
        assert "no more now" in busy.text
        assert ">\nreturn msg</textarea>" in busy.text
