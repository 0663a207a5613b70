"""The HTTP API: events in and out of streams, whatever their names and bodies."""

import base64
import io
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import pyarrow as pa
import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

import penstock
from penstock import testing
from penstock.errors import PenstockError
from penstock.gates.api import problems
from penstock.gates.api.media import PAGES, negotiated
from penstock.gates.http import SECURITY_HEADERS
from tests.principals import put

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
BATCH: Final = "application/cloudevents-batch+json"
STRUCTURED: Final = "application/cloudevents+json"
ARROW: Final = "application/vnd.apache.arrow.stream"
NAMES: Final = (
    *("order/1", "a/b//c/", "/", "//", "..", ".", "../..", "%2F", "100%", "%", "a b", "+", "a+b", "🛒", "naïve/日本"),
    *("?from=1", "a&b=c", "#", ";", "a\nb\r\n", "\x01\x7f", "*", '"', "\\", "take", "{stream}", "x" * 500),
)
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server(page_events_max=50, http_body_bytes_max="1MiB", event_bytes_max="100KiB") as served:
        yield served


@pytest.fixture(scope="module")
def http(server: testing.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


@pytest.fixture
def context() -> str:
    return f"api-{next(NUMBERS)}"


def named(context: str, stream: str, **others: object) -> str:
    return f"/v1/streams?{urlencode({'context': context, 'stream': stream, **others})}"


def append(http: httpx.Client, context: str, stream: str, *events: Any, **headers: str) -> httpx.Response:
    sent = [one if isinstance(one, dict) else {"type": "T", "body": one} for one in events]
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(named(context, stream), json=sent, headers=names)


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, problems.MEDIA_TYPE), answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["detail"]
    return found


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


# ---------------------------------------------------------------- appends


def test_an_append_says_where_its_events_are(server: testing.Server, http: httpx.Client, context: str) -> None:
    first = append(http, context, "order-1", {"type": "Placed", "body": {"amount": 42}}, Expected_Version="new")
    assert first.status_code == 201
    assert first.headers.items() >= SECURITY_HEADERS.items()
    done = first.json()
    assert done == {"context": context, "stream": "order-1", "position": done["position"], "version": 1, "events": 1}
    again = append(http, context, "order-1", 1, 2, Expected_Version="2").json()
    assert (again["version"], again["events"], again["position"]) == (2, 2, done["position"] + 1)
    (found,) = events(http.get(first.headers["location"]))
    assert (found["type"], found["body"], found["position"]) == ("Placed", {"amount": 42}, done["position"])
    with penstock.connect(server.url) as client:
        assert [event.body for event in client.read_stream(context, "order-1")] == [b'{"amount":42}', b"1", b"2"]


@pytest.mark.parametrize("expected", ["new", "3", "99"])
def test_an_append_that_expects_another_version_is_a_conflict(http: httpx.Client, context: str, expected: str) -> None:
    append(http, context, "s", 1)
    found = problem(append(http, context, "s", 2, Expected_Version=expected), 409)
    assert (found["class"], found["retry"]) == ("VersionConflict", "never")
    wanted = 1 if expected == "new" else int(expected)
    assert found["fields"] == {"context": context, "stream": "s", "expected": wanted, "actual": 1}
    assert found["type"] == "urn:penstock:error:VersionConflict"
    assert len(events(http.get(named(context, "s")))) == 1


@pytest.mark.parametrize("expected", ["0", "-1", "1.0", "+1", "old", "", "9" * 30, "1 2"])
def test_an_expected_version_that_is_none_is_refused(http: httpx.Client, context: str, expected: str) -> None:
    found = problem(append(http, context, "s", 1, Expected_Version=expected), 422)
    assert found["fields"]["field"] == "Expected-Version"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_works_in_the_path_and_in_the_query(http: httpx.Client, context: str, name: str) -> None:
    # Clients resolve dots on their way, encoded or not: such names need the query.
    is_clear = not set(name.split("/")) & {".", ".."}
    path = f"/v1/streams/{context}/{quote(name, safe='')}" if is_clear else named(context, name)
    assert http.post(path, json=[{"type": "T", "body": name}]).status_code == 201
    for asked in (path, named(context, name)):
        (found,) = events(http.get(asked))
        assert (found["context"], found["stream"], found["body"]) == (context, name, name)
    (seen,) = events(http.get("/v1/events", params={"context": context, "prefix": name}))
    assert seen["stream"] == name


def test_contexts_have_any_name_too(http: httpx.Client) -> None:
    for name in ("a/b", "..", "é 🛒", "%41"):
        assert append(http, name, "s", 1).status_code == 201
        assert events(http.get(named(name, "s")))[0]["context"] == name


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "body",
    [
        '{"a":1}',
        '{ "a" :\n 1 }',
        "12345678901234567890123456789012345678901234567890",
        "1.00000000000000000000000000000000001",
        "1e400",
        "-0.0",
        '{"a":1,"a":2}',
        '"\\u2028<\\/script>"',
        "[[[[[[]]]]]]",
        "null",
        "0",
    ],
)
def test_json_bodies_come_back_digit_by_digit(
    server: testing.Server, http: httpx.Client, context: str, body: str
) -> None:
    with penstock.connect(server.url) as client:
        client.append(context, "s", [penstock.event("T", body.encode())])
    one_line = body.replace("\n", " ")
    for media in (JSON, LINES):
        text = http.get(named(context, "s"), headers={"accept": media}).text
        assert f'"body":{one_line}}}' in text
    if body != "1e400" and '"a":2' not in body:
        batch = http.get(named(context, "s"), headers={"accept": BATCH}).text
        assert f'"data":{one_line}}}' in batch


@pytest.mark.parametrize("body", [b"plain text", b"NaN", b"\xff\x00", b'"\\ud800"', b"{", b" ", b"[" * 2000])
def test_other_bodies_are_text_or_base64_and_say_so(
    server: testing.Server, http: httpx.Client, context: str, body: bytes
) -> None:
    with penstock.connect(server.url) as client:
        client.append(context, "s", [penstock.event("T", body), penstock.event("T")])
    found, empty = events(http.get(named(context, "s")))
    assert "body" not in found
    assert (found["text"].encode() if "text" in found else base64.b64decode(found["base64"])) == body
    assert not {"body", "text", "base64"} & empty.keys()


def test_what_was_read_can_be_appended_elsewhere(http: httpx.Client, context: str) -> None:
    sent = [
        {"type": "A", "body": {"n": [1, 2.5, None]}, "headers": {"who": "me"}, "time": "2026-01-02T03:04:05.1234567Z"},
        {"type": "B", "text": "not json"},
        {"type": "C", "base64": "/wA="},
        {"type": "D", "id": "0d9f1e4c-6a52-4f6a-9b3e-111111111111"},
    ]
    assert append(http, context, "s", *sent).status_code == 201
    read = events(http.get(named(context, "s")))
    for one in read:
        del one["stream"]
    assert append(http, context, "copy", *read).status_code == 201
    kept = ("type", "id", "timestamp", "headers", "body", "text", "base64")
    copies = events(http.get(named(context, "copy")))
    assert [{n: v for n, v in one.items() if n in kept} for one in copies] == [
        {n: v for n, v in one.items() if n in kept} for one in read
    ]


BAD_BODIES: Final[list[tuple[bytes, int, str]]] = [
    (b"", 400, "NotJson"),
    (b"{", 400, "NotJson"),
    (b"\xff\xfe", 400, "NotJson"),
    (b"\xef\xbb\xbf[]", 400, "NotJson"),
    (b"[" * 100_000, 400, "NotJson"),
    (b'[{"type":"T","body":NaN}]', 400, "NotJson"),
    (b'[{"type":"T","body":1e999}]', 400, "NotJson"),
    (b'[{"type":"T","body":1.234567890123456789}]', 400, "NotJson"),
    (b'[{"type":"T","type":"U"}]', 400, "NotJson"),
    (b'[{"type":"T","body":"\\ud800"}]', 400, "NotJson"),
    (b"null", 422, "InvalidRequest"),
    (b"{}", 422, "InvalidRequest"),
    (b"[]", 422, "InvalidRequest"),
    (b"[1]", 422, "InvalidRequest"),
    (b"[{}]", 422, "InvalidRequest"),
    (b'[{"type":""}]', 422, "InvalidRequest"),
    (b'[{"type":7}]', 422, "InvalidRequest"),
    (b'[{"type":"T\\u0000"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","body":1,"text":"1"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","base64":"?"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","id":"1"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","time":"yesterday"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","headers":[]}]', 422, "InvalidRequest"),
    (b'[{"type":"T","Type":"T"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","stream":"elsewhere"}]', 422, "InvalidRequest"),
    (b'[{"type":"T","context":"elsewhere"}]', 422, "InvalidRequest"),
    (b'[{"type":"T"},{"type":"T","id":7}]', 422, "InvalidRequest"),
    (b'[{"type":"T","text":"%s"}]' % (b"x" * 110_000), 413, "LimitExceeded"),
    (b" " * (1 << 20) + b" ", 413, "LimitExceeded"),
]


@pytest.mark.parametrize(("body", "status", "name"), BAD_BODIES, ids=lambda value: str(value)[:40])
def test_a_bad_body_is_refused_as_a_whole(
    http: httpx.Client, context: str, body: bytes, status: int, name: str
) -> None:
    answer = http.post(named(context, "s"), content=body, headers={"content-type": JSON})
    assert problem(answer, status)["class"] == name
    # Without an announced length the limit holds just the same.
    parts = (body[at : at + 1000] for at in range(0, len(body), 1000))
    chunked = http.post(named(context, "s"), content=parts, headers={"content-type": JSON})
    assert problem(chunked, status)["class"] == name
    assert events(http.get(named(context, "s"))) == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "x"])
def test_a_body_of_another_type_is_refused(http: httpx.Client, context: str, kind: str) -> None:
    answer = http.post(named(context, "s"), content=b"[]", headers={"content-type": kind})
    assert "a body of type" in problem(answer, 415)["detail"]


def test_large_bodies_are_parsed_in_workers_and_keep_everything(http: httpx.Client, context: str) -> None:
    body = {"numbers": list(range(3000)), "text": "é🛒" * 1000}
    done = append(http, context, "s", *[{"type": f"T{n % 7}", "body": body} for n in range(20)])
    assert (done.status_code, done.json()["events"]) == (201, 20)
    assert all(one["body"] == body for one in events(http.get(named(context, "s"))))
    assert problem(append(http, context, "s", *[{"type": "T", "id": "x"}] * 2000), 422)["class"] == "InvalidRequest"


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/", 404),
        ("GET", "/v1/streams/only", 404),
        ("GET", "/v1/streams/a/b/c", 404),
        ("GET", "/v1/streams?context=a", 400),
        ("GET", "/v1/streams?context=a&stream=b&stream=c", 400),
        ("GET", "/v1/streams?context=a&stream=b&colour=red", 400),
        ("GET", "/v1/streams/%ff/b", 400),
        ("GET", "/v1/streams/a/%zz", 400),
        ("GET", "/v1/streams?context=%ff&stream=b", 400),
        ("GET", "/v1/streams?context=&stream=b", 200),
        ("GET", "/v1/streams/a/b?from=0", 422),
        ("GET", "/v1/streams/a/b?from=x", 422),
        ("GET", "/v1/streams/a/b?limit=-1", 422),
        ("GET", "/v1/streams/a/b?direction=up", 422),
        ("GET", "/v1/events?from=yesterday", 422),
        ("GET", "/v1/events?from=2026-01-01T00:00:00Z", 422),
        ("GET", "/v1/events?from=99999999999999999999", 422),
        ("GET", "/v1/events?wait=soon", 422),
        ("PUT", "/v1/streams/a/b", 405),
        ("DELETE", "/v1/events", 405),
        ("POST", "/v1/events", 405),
        ("POST", "/openapi.json", 405),
        ("POST", "/v1/streams//b", 415),
    ],
)
def test_a_wrong_request_is_a_problem_that_says_what_is_wrong(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)
    if status != 200:
        problem(answer, status)
    assert answer.status_code == status
    assert answer.headers.items() >= {"x-content-type-options": "nosniff"}.items()
    if status == 405:
        assert "GET" in answer.headers["allow"]


def test_a_body_where_none_belongs_is_refused(http: httpx.Client) -> None:
    assert problem(http.request("GET", "/v1/events", content=b"x"), 413)["detail"] == "requests here have no body"
    assert problem(http.request("DELETE", "/v1/subscriptions/1", content=b"x"), 413)
    # Which method there is matters more.
    assert problem(http.request("PUT", "/v1/streams/a/b", json=[]), 405)["detail"].endswith(
        "GET and HEAD and POST only"
    )


def test_every_error_has_a_status_by_its_class_or_its_base() -> None:
    def every(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from every(each)

    statuses = {kind: next(problems.STATUSES[base] for base in kind.__mro__ if base in problems.STATUSES)
                for kind in every(PenstockError)}  # fmt: skip
    assert {kind for kind, status in statuses.items() if status in (401, 403)} == {
        penstock.errors.NotAuthenticated,
        penstock.errors.NotAllowed,
    }
    assert statuses[penstock.errors.WriterBusy] == 503
    # What a client can mend is not the server's fault.
    about = re.compile("Queue|Subscription|Allocation|Letter|Version|Key|Mark|Repeated|Event")
    assert [kind for kind, status in statuses.items() if status == 500 and about.search(kind.__name__)] == []


# ---------------------------------------------------------------- reads


def test_a_stream_is_read_in_pages_forward_and_backward(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *range(120))

    def walk(path: str | None, link: str = "next") -> Iterator[list[int]]:
        while path:
            answer = http.get(path)
            found = events(answer)
            yield [one["body"] for one in found]
            page = answer.json()
            assert (f'rel="{link}"' in answer.headers.get("link", "")) == (page[link] is not None)
            path = page[link] if found else None

    forward, backward = list(range(120)), list(range(119, -1, -1))
    assert [n for page in walk(named(context, "s")) for n in page] == forward
    assert [n for page in walk(named(context, "s", limit=7)) for n in page] == forward
    assert [n for page in walk(named(context, "s", direction="backward")) for n in page] == backward
    assert [n for page in walk(named(context, "s", direction="backward", limit=9, to=100)) for n in page] == [
        n for n in backward if n >= 99
    ]
    assert [n for page in walk(named(context, "s", to=60)) for n in page] == forward[:60]
    # What lies before a page comes backward, and what lies before that is the page again.
    back_and_forth = itertools.islice(walk(named(context, "s", limit=10, **{"from": 31}), "prev"), 3)
    assert list(back_and_forth) == [forward[30:40], backward[-30:-20], forward[30:40]]


def test_types_and_prefixes_select(http: httpx.Client, context: str) -> None:
    for number in range(30):
        append(http, context, f"order-{number % 3}", {"type": f"T{number % 5}", "body": number})
    path = f"/v1/events?context={context}&type=T1&type=T4&prefix=order-1"
    assert [one["body"] for one in events(http.get(path))] == [1, 4, 16, 19]
    path = named(context, "order-1", type="T1", direction="backward")
    assert [one["body"] for one in events(http.get(path))] == [16, 1]
    assert events(http.get("/v1/events", params={"context": context, "prefix": "nothing"})) == []


def test_the_history_is_read_from_a_position_a_time_or_its_end(http: httpx.Client, context: str) -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    sent = [{"type": "T", "body": n, "time": (start + timedelta(hours=n)).isoformat()} for n in range(10)]
    append(http, context, "s", *sent)

    def bodies(begin: object) -> list[Any]:
        return [one["body"] for one in events(http.get("/v1/events", params={"context": context, "from": str(begin)}))]

    first = events(http.get("/v1/events", params={"context": context}))[0]["position"]
    assert bodies(first + 4) == [4, 5, 6, 7, 8, 9]
    assert bodies("2026-03-01T06:30:00Z") == [7, 8, 9]
    assert bodies("2026-03-01T09:00:00+02:00") == [7, 8, 9]
    assert bodies("2027-01-01T00:00:00Z") == bodies("end") == []


def test_a_page_has_four_forms(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *range(60))
    plain = http.get(named(context, "s"))
    assert plain.headers["content-type"] == JSON
    lines = http.get(named(context, "s"), headers={"accept": LINES})
    assert [json.loads(line) for line in lines.text.splitlines()] == events(plain)
    assert (lines.headers["penstock-end"], lines.headers["link"]) == ("false", plain.headers["link"])
    batch = http.get(named(context, "s"), headers={"accept": BATCH}).json()
    assert [one["data"] for one in batch] == list(range(50))
    assert {one["source"] for one in batch} == {f"penstock:{context}"}
    table = pa.ipc.open_stream(http.get(named(context, "s"), headers={"accept": ARROW}).content).read_all()
    assert table["position"].to_pylist() == [one["position"] for one in events(plain)]
    assert table["event_id"].to_pylist() == [one["id"] for one in events(plain)]
    assert table["text"].to_pylist() == list(map(str, range(50)))
    none = pa.ipc.open_stream(http.get(named(context, "none"), headers={"accept": ARROW}).content).read_all()
    assert (none.num_rows, none.schema) == (0, table.schema)
    found = problem(http.get(named(context, "s"), headers={"accept": "image/png"}), 406)
    assert ARROW in found["detail"]
    head = http.head(named(context, "s"))
    assert (head.status_code, head.content, head.headers["content-length"]) == (
        *(200, b""),
        plain.headers["content-length"],
    )


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (LINES, LINES),
        (f"{LINES};q=0.5, */*;q=0.1", LINES),
        (f"text/html, {ARROW}", ARROW),
        (f"{JSON};q=0, */*", LINES),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("text/html", None),
        ("*/*;q=0", None),
        (";;,,", None),
    ],
)
def test_the_client_chooses_the_form(accept: str | None, chosen: str | None) -> None:
    assert negotiated(accept, tuple(PAGES)) == chosen


def test_a_closed_page_has_an_etag_and_is_not_sent_twice(
    server: testing.Server, http: httpx.Client, context: str
) -> None:
    append(http, context, "s", *range(20))
    closed = named(context, "s", limit=10)
    first = http.get(closed)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    append(http, context, "s", 20)
    for wish in (tag, f'"other", W/{tag}', "*"):
        again = http.get(closed, headers={"if-none-match": wish})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert http.get(closed, headers={"if-none-match": '"other"'}).status_code == 200
    assert http.get(closed, headers={"if-none-match": tag, "accept": LINES}).headers["etag"] != tag
    for is_open in (named(context, "s"), named(context, "s", direction="backward"), "/v1/events?from=end"):
        answer = http.get(is_open)
        assert "etag" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
    assert "etag" in http.get(named(context, "s", direction="backward", **{"from": 5})).headers
    assert "etag" not in http.get(named(context, "s", direction="backward", **{"from": 500})).headers
    with penstock.connect(server.url) as client:
        client.erase_stream(context, "s")
    erased = http.get(closed, headers={"if-none-match": tag})
    assert events(erased) == []


# ---------------------------------------------------------------- idempotency


def test_a_key_used_again_gets_the_first_answer(http: httpx.Client, context: str) -> None:
    first = append(http, context, "s", 1, 2, Idempotency_Key="k-1", Expected_Version="new")
    append(http, context, "s", 3)
    again = append(http, context, "s", 1, 2, Idempotency_Key="k-1", Expected_Version="new")
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    for stream, sent in (("s", (1,)), ("t", (1, 2))):
        found = problem(append(http, context, stream, *sent, Idempotency_Key="k-1"), 422)
        assert (found["class"], found["fields"]) == ("KeyReused", {"context": context, "key": "key:k-1"})
    assert append(http, f"{context}-b", "s", 1, 2, Idempotency_Key="k-1").status_code == 201
    assert [one["body"] for one in events(http.get(named(context, "s")))] == [1, 2, 3]


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb"])
def test_a_key_that_is_none_is_refused(http: httpx.Client, context: str, key: str) -> None:
    assert problem(append(http, context, "s", 1, Idempotency_Key=key), 422)["fields"]["field"] == "Idempotency-Key"


def cloud(number: object, **others: object) -> dict[str, object]:
    return {"specversion": "1.0", "id": str(number), "source": "/shop", "type": "T", "data": {"n": 1}, **others}


def test_a_cloudevent_is_written_once_and_a_partly_known_batch_not_at_all(http: httpx.Client, context: str) -> None:
    def send(*found: dict[str, object], stream: str = "s") -> httpx.Response:
        body = json.dumps(list(found)).encode()
        return http.post(named(context, stream), content=body, headers={"content-type": BATCH})

    first = send(cloud(1), cloud(2))
    assert (first.status_code, first.json()["events"]) == (201, 2)
    assert send(cloud(1), cloud(2)).content == first.content
    one = http.post(named(context, "s"), content=json.dumps(cloud(2)), headers={"content-type": STRUCTURED})
    assert one.json()["version"] == 2
    assert one.headers["idempotent-replayed"] == "true"
    found = problem(send(cloud(2), cloud(3)), 409)
    assert (found["class"], found["fields"]) == ("PartlyRepeated", {"context": context, "known": 1, "events": 2})
    assert problem(send(cloud(1), stream="t"), 422)["class"] == "KeyReused"
    assert problem(send(cloud(7), cloud(7)), 422)["class"] == "InvalidRequest"
    assert send(cloud(1, source="/other")).json()["version"] == 3
    assert len(events(http.get(named(context, "s")))) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"specversion": "0.3"},
        {"id": ""},
        {"source": None},
        {"type": 7},
        {"Upper": "x"},
        {"time": "soon"},
        {"data_base64": "AA=="},
        {"extension": {"not": "plain"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [STRUCTURED, BATCH])
def test_what_is_no_cloudevent_is_refused(
    http: httpx.Client, context: str, change: dict[str, object], kind: str
) -> None:
    sent: object = cloud(1, **change)
    sent = [sent] if kind == BATCH else sent
    answer = http.post(named(context, "s"), content=json.dumps(sent), headers={"content-type": kind})
    assert problem(answer, 422)["class"] in ("NotACloudEvent", "InvalidRequest")


# ---------------------------------------------------------------- other clients


def test_the_sdk_of_cloudevents_sends_and_reads(http: httpx.Client, context: str) -> None:
    attributes = {
        "id": "A-1",
        "source": "/shop/é",
        "type": "com.example.Placed",
        "subject": "order 1",
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "datacontenttype": "application/json",
        "partitionkey": "p",
    }
    made = CloudEvent(attributes, {"amount": 42})
    binary = to_binary_event(made, JSONFormat())
    structured = to_structured_event(made, JSONFormat())
    for message in (binary, structured, binary):
        sent = http.post(named(context, "s"), content=message.body, headers=message.headers)
        assert (sent.status_code, sent.json()["version"]) == (201, 1)
    (found,) = http.get(named(context, "s"), headers={"accept": BATCH}).json()
    back = JSONFormat().read(CloudEvent, json.dumps(found))
    assert back.get_data() == {"amount": 42}
    shown = back.get_attributes()
    assert {name: shown[name] for name in attributes} == attributes
    assert isinstance(HTTPMessage(binary.headers, binary.body), HTTPMessage)


def test_a_binary_cloudevent_keeps_its_bytes(http: httpx.Client, context: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "Photo"}
    sent = http.post(named(context, "s"), content=b"\x89PNG\xff", headers={**headers, "content-type": "image/png"})
    assert sent.status_code == 201
    (found,) = events(http.get(named(context, "s")))
    assert base64.b64decode(found["base64"]) == b"\x89PNG\xff"
    assert found["headers"].items() >= {"ce-id": "1", "ce-source": "/x", "ce-datacontenttype": "image/png"}.items()


def test_curl_appends_and_reads(server: testing.Server, context: str) -> None:
    def curl(*arguments: str) -> bytes:
        done = subprocess.run(["curl", "-sS", "--fail-with-body", *arguments], capture_output=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    address = f"{server.http}/v1/streams/{context}/order%2F1"
    sent = '[{"type": "Placed", "body": {"amount": 42}}]'
    assert json.loads(curl(address, "--json", sent, "-H", "Expected-Version: new"))["version"] == 1
    assert json.loads(curl(address))["events"][0]["body"] == {"amount": 42}
    large = io.BytesIO()
    large.write(json.dumps([{"type": "T", "text": "x" * 50_000}] * 10).encode())
    # curl announces a large body and waits for "100 Continue".
    done = subprocess.run(
        ["curl", "-sS", "--expect100-timeout", "20", address, "--json", "@-"],
        input=large.getvalue(), capture_output=True, timeout=30,
    )  # fmt: skip
    assert json.loads(done.stdout)["events"] == 10


# ---------------------------------------------------------------- load


def test_a_server_without_room_says_when_to_come_again() -> None:
    with testing.server(requests_bytes_max="1KiB") as served, httpx.Client(base_url=served.http) as http:
        assert append(http, "shop", "s", 1).status_code == 201
        gate = served._running
        assert gate is not None
        gate.engine.budget.taken += 2000
        answer = append(http, "shop", "s", 2)
        assert problem(answer, 503)["class"] == "WriterBusy"
        assert answer.headers["retry-after"] == "1"
        gate.engine.budget.taken -= 2000
        assert append(http, "shop", "s", 2).status_code == 201
        assert gate.engine.budget.taken == 0


def test_who_sends_too_much_is_told_to_wait() -> None:
    from penstock.model import PutPrincipal
    from penstock.model.access import Limits
    from penstock.model.replies import Done
    from tests.principals import ask, issue

    with testing.server() as served:
        with penstock.connect(served.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(served.url, token=token) as root:
            ask(root, PutPrincipal("slow", ("all",), Limits(requests_per_s_max=1)), Done)
            slow = issue(root, "slow").token
        with httpx.Client(base_url=served.http, headers={"authorization": f"Bearer {slow}"}) as http:
            answers = [append(http, "shop", "s", n) for n in range(6)]
        assert answers[0].status_code == 201
        found = problem(answers[-1], 429)
        assert (found["class"], found["fields"]["limit"]) == ("OverLimit", "requests_per_s_max")
        assert int(answers[-1].headers["retry-after"]) >= 1
