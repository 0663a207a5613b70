"""Reading streams and the whole history, as events and as Arrow, following it, lists and counts."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import Client, Event
from penstock.errors import EventNotFound, InvalidRequest, NotJson
from tests.client.conftest import WAYS, Connect, Way
from tests.client.driven import Driven
from tests.client.support import calls_of, fill, numbers, one, some
from tests.gates.serving import Served

PAGE_EVENTS = 4096
"""What a server gives at once unless it is told otherwise."""


def asked_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the server answers from now on."""
    answers: list[Any] = []
    transport = calls_of(client).transport
    exchange = transport.exchange

    async def noted(*request: Any) -> Any:
        answers.append(await exchange(*request))
        return answers[-1]

    monkeypatch.setattr(transport, "exchange", noted)
    return answers


# ---------------------------------------------------------------- a stream


def test_a_stream_that_is_not_there_has_no_events(client: Client, context: str) -> None:
    assert list(client.read_stream(context, "nothing")) == []
    assert list(client.read_stream(context, "nothing", backward=True)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"start": 3}, [3, 4, 5]),
        ({"start": 2, "end": 4}, [2, 3, 4]),
        ({"end": 2}, [1, 2]),
        ({"start": 6}, []),
        ({"limit": 2}, [1, 2]),
        ({"start": 2, "limit": 2}, [2, 3]),
        ({"start": 2, "end": 3, "limit": 10}, [2, 3]),
        ({"limit": 0}, []),
        ({"backward": True}, [5, 4, 3, 2, 1]),
        ({"backward": True, "start": 3}, [3, 2, 1]),
        ({"backward": True, "start": 4, "end": 2}, [4, 3, 2]),
        ({"backward": True, "limit": 2}, [5, 4]),
        ({"backward": True, "start": 99, "limit": 1}, [5]),
    ],
)
def test_a_part_of_a_stream_can_be_read(
    client: Client, context: str, options: dict[str, Any], expected: list[int]
) -> None:
    fill(client, context, "s", 5, each=2)
    fill(client, context, "t", 3)
    assert numbers(client.read_stream(context, "s", **options)) == expected


def test_a_stream_is_read_across_pages(client: Client, context: str) -> None:
    count = PAGE_EVENTS + 5
    fill(client, context, "s", count, each=1000)
    assert numbers(client.read_stream(context, "s")) == list(range(1, count + 1))
    assert numbers(client.read_stream(context, "s", backward=True)) == list(range(count, 0, -1))
    assert numbers(client.read_stream(context, "s", limit=PAGE_EVENTS + 1)) == list(range(1, PAGE_EVENTS + 2))
    pages = list(client.stream_pages(context, "s"))
    assert [number for page in pages for number in numbers(page)] == list(range(1, count + 1))
    # A page that takes long to read has fewer events than it could have.
    assert max(map(len, pages)) <= PAGE_EVENTS


@pytest.mark.over(*WAYS, both=True)
def test_a_stream_of_some_types_can_be_read(client: Client, context: str) -> None:
    kinds = ["Placed", "Noted", "Noted", "Paid", "Noted", "Placed"]
    client.append(context, "s", [penstock.event(kind, number) for number, kind in enumerate(kinds)])
    client.append(context, "t", [penstock.event("Paid")])

    def sequences(**options: Any) -> list[int]:
        return [event.sequence for event in client.read_stream(context, "s", **options)]

    assert sequences(types=["Placed"]) == [1, 6]
    assert sequences(types=("Placed", "Paid"), start=2) == [4, 6]
    assert sequences(types={"Placed", "Paid"}, backward=True, limit=2) == [6, 4]
    assert sequences(types=["Placed"], limit=1) == [1]
    assert sequences(types=["Noted"], start=3, end=4) == [3]
    assert sequences(types=["Never"]) == sequences(types=[]) == []
    with pytest.raises(InvalidRequest, match=r"types is a single text; write \['Paid'\]"):
        sequences(types="Paid")
    with pytest.raises(InvalidRequest, match="types is a single text"):
        client.read_page(types="Paid")


def test_the_server_sends_only_events_of_the_types(
    client: Client, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append(context, "s", [penstock.event("Noted", bytes(1000)) for _ in range(500)])
    client.append(context, "s", [penstock.event("Paid")])
    answers = asked_of(client, monkeypatch)
    assert [event.sequence for event in client.read_stream(context, "s", types=["Paid"])] == [501]
    (page,) = answers
    assert [event.type for event in page.events] == ["Paid"]


def test_one_event_can_be_read(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    event = client.read_event(context, "s", 2)
    assert event.json() == 2
    assert event in list(client.read_stream(context, "s"))


def test_an_event_that_is_not_there_is_said_to_be_missing(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    for stream, sequence in (("s", 4), ("t", 1)):
        with pytest.raises(EventNotFound) as caught:
            client.read_event(context, stream, sequence)
        assert (caught.value.context, caught.value.stream, caught.value.sequence) == (context, stream, sequence)


@pytest.mark.parametrize("sequence", [0, -1])
def test_a_sequence_that_cannot_be_is_no_event(client: Client, context: str, sequence: int) -> None:
    with pytest.raises((EventNotFound, InvalidRequest)):
        client.read_event(context, "s", sequence)


# ---------------------------------------------------------------- everything


def mixed(client: Client, context: str) -> list[Event]:
    """A history of several streams and types, some commits with several events."""
    for number in range(30):
        stream = f"{'order' if number % 3 else 'cart'}-{number % 5}"
        kind = "Placed" if number % 2 else "Paid"
        client.append(context, stream, [penstock.event(kind, number, {"n": number}) for _ in range(1 + number % 3)])
    return list(client.read_all(context=context))


def test_everything_is_read_in_the_order_of_positions(client: Client, context: str) -> None:
    events = mixed(client, context)
    assert len(events) == 60
    positions = [event.position for event in events]
    assert positions == sorted(set(positions))
    assert {event.context for event in events} == {context}
    by_stream: dict[str, list[Event]] = {}
    for event in events:
        by_stream.setdefault(event.stream, []).append(event)
    for stream, found in by_stream.items():
        assert found == list(client.read_stream(context, stream))


def test_a_filter_and_types_choose(client: Client, context: str) -> None:
    events = mixed(client, context)
    assert list(client.read_all(context=context, filter="order-")) == [
        e for e in events if e.stream.startswith("order-")
    ]
    assert list(client.read_all(context=context, filter="*")) == events
    assert list(client.read_all(context=context, types=["Paid"])) == [e for e in events if e.type == "Paid"]
    assert list(client.read_all(context=context, types=[])) == []
    both = client.read_all(context=context, filter="cart", types={"Placed", "Never"})
    assert list(both) == [e for e in events if e.stream.startswith("cart") and e.type == "Placed"]
    with pytest.raises(InvalidRequest, match="types"):
        list(client.read_all(types="Paid"))


@pytest.mark.over(*WAYS, both=True)
def test_a_limit_bounds_what_is_read_of_everything(client: Client, context: str) -> None:
    events = mixed(client, context)
    start = events[5].position
    paid = [event for event in events if event.type == "Paid"]
    for limit in (0, 1, 7, 59, 60, 61, PAGE_EVENTS + 1):
        assert list(client.read_all(context=context, limit=limit)) == events[:limit]
        assert list(client.read_all(start, context=context, limit=limit)) == events[5:][:limit]
        assert list(client.read_all(context=context, types=["Paid"], limit=limit)) == paid[:limit]
        assert list(client.read_all(context=context, until=events[9].position, limit=limit)) == events[:10][:limit]
        assert list(client.read_all(context=context, types=[], limit=limit)) == []


def test_a_limited_read_takes_as_many_pages_as_it_needs(client: Client, context: str) -> None:
    count = PAGE_EVENTS + 500
    fill(client, context, "s", count, each=1000)
    for limit in (PAGE_EVENTS - 1, PAGE_EVENTS, PAGE_EVENTS + 1, count, count + 1):
        found = list(client.event_pages(context=context, limit=limit))
        assert [event.sequence for page in found for event in page] == list(range(1, min(limit, count) + 1))


def test_the_server_sends_only_as_many_events_as_the_limit(
    served: Served, client: Client, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append(context, "s", [penstock.event("Noted", bytes(1000)) for _ in range(500)])
    client.append(context, "s", [penstock.event("Paid"), penstock.event("Paid")])
    with penstock.connect(f"zmq+{served.res}") as looped:
        answers = asked_of(looped, monkeypatch)
        (event,) = looped.read_all(context=context, types=["Paid"], limit=1)
    assert event.sequence == 501
    (page,) = answers
    assert page.events == [event]


def test_positions_bound_what_is_read(client: Client, context: str) -> None:
    events = mixed(client, context)
    for first, last in ((0, 0), (7, 7), (10, 40), (1, 58), (59, 59)):
        start, until = events[first].position, events[last].position
        assert list(client.read_all(start, context=context, until=until)) == events[first : last + 1]
    assert list(client.read_all(events[30].position, context=context)) == events[30:]
    assert list(client.read_all(events[9].position, context=context, until=events[5].position)) == []
    assert list(client.read_all(events[-1].position + 1)) == [] or client.stats().head > events[-1].position


def test_a_position_in_the_middle_of_a_commit_cuts_it(client: Client, context: str) -> None:
    appended = client.append(context, "s", some(10))
    found = client.read_all(appended.position + 3, context=context, until=appended.position + 6)
    assert numbers(found) == [4, 5, 6, 7]


def test_a_history_is_read_across_pages(client: Client, context: str) -> None:
    fill(client, context, "a", 20_000, each=1000)
    fill(client, context, "b", 500)
    assert numbers(client.read_all(context=context)) == [*range(1, 20_001), *range(1, 501)]
    assert sum(len(page) for page in client.event_pages(context=context, filter="a")) == 20_000


def test_a_page_says_where_to_read_on(client: Client, context: str) -> None:
    appended = client.append(context, "s", some(5))
    page = client.read_page(appended.position, context=context, limit=2)
    assert (numbers(page.events), page.next, page.end) == ([1, 2], appended.position + 2, False)
    page = client.read_page(page.next, context=context, filter="s", types=["Counted"])
    assert (numbers(page.events), page.end) == ([3, 4, 5], True)
    assert client.read_page(page.next, context=context, wait=0.01).events == []


def test_nobody_is_hurt_by_a_reader_that_leaves(client: Client, context: str) -> None:
    fill(client, context, "a", 20_000, each=1000)
    for event in client.read_all(context=context):
        if event.json() == 10:
            break
    assert client.read_event(context, "a", 10).json() == 10


def test_arrow_batches_have_the_same_rows(client: Client, context: str) -> None:
    events = mixed(client, context)
    first, last = events[3].position, events[55].position
    for options in ({}, {"filter": "order-"}, {"types": ["Paid"]}, {"position": first, "until": last}):
        expected = list(client.read_all(context=context, **options))
        rows: list[dict[str, Any]] = []
        for batch in client.arrow_batches(context=context, **options):
            rows += batch.to_pylist()
        columns = ("position", "context", "stream", "sequence", "id", "ticks", "type", "headers", "body")
        assert [tuple(row[name] for name in columns) for row in rows] == [
            (e.position, e.context, e.stream, e.sequence, e.id, e.ticks, e.type, e.headers, e.body) for e in expected
        ]
        assert [(row["recorded"], row["commit"]) for row in rows] == [(e.recorded, e.commit) for e in expected]


def test_a_position_is_found_by_time(client: Client, context: str) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    events = [penstock.event("T", number, time=start + timedelta(days=number)) for number in range(5)]
    appended = client.append(context, "s", events)
    assert client.position_of(start + timedelta(days=2), context=context) == appended.position + 2
    assert client.position_of(start + timedelta(days=1, hours=1), context=context) == appended.position + 2
    assert client.position_of(start - timedelta(days=1), context=context, filter="s") == appended.position
    assert client.position_of(start + timedelta(days=9), context=context) is None
    assert client.position_of(start, context=context, filter="t") is None


# ---------------------------------------------------------------- following


def test_following_gives_what_is_there_and_then_what_comes(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    seen: list[int] = []
    for event in client.follow(context=context):
        seen.append(event.json())
        if len(seen) == 10:
            break
        if len(seen) >= 3:
            client.append(context, "s", some(1, len(seen) + 1))
    assert seen == list(range(1, 11))


def test_following_sees_what_others_append(client: Client, other: Client, context: str) -> None:
    if isinstance(client, Driven) and other is client:
        pytest.skip("a loop that waits does nothing else")
    start = client.append(context, "s", some(1)).position
    appending = threading.Timer(0.2, lambda: other.append(context, "s", one("late")))
    appending.start()
    for event in client.follow(start + 1, context=context):
        assert event.body == b"late"
        break
    appending.join()


def test_following_wants_only_some(client: Client, context: str) -> None:
    position = client.append(context, "a", some(1)).position
    client.append(context, "b", [penstock.event("X", 1), penstock.event("Y", 2)])
    client.append(context, "b", [penstock.event("X", 3), penstock.event("Y", 4)])
    following = client.follow(position, context=context, filter="b", types=["Y"])
    assert [next(following).json(), next(following).json()] == [2, 4]
    following.close()  # type: ignore[attr-defined]


@pytest.mark.over("penstock", "zmq+tcp")
def test_following_waits_on_the_server(way: Way, connect: Connect, url: str, context: str, served: Any) -> None:
    client, other = connect(url), penstock.connect(url)
    gate = "mq" if way.scheme == "penstock" else "res"
    sample = f'penstock_gate_received_total{{gate="{gate}"}}'
    following = client.follow(client.append(context, "s", some(1)).position, context=context)
    next(following)
    before = served.metric(sample)
    late = threading.Timer(1.0, lambda: other.append(context, "s", some(1)))
    late.start()
    next(following)
    late.join()
    # The append, the poll that waits for it, and whatever other tests had under way.
    assert served.metric(sample) - before <= 4
    following.close()  # type: ignore[attr-defined]
    other.close()


# ---------------------------------------------------------------- what there is


def test_contexts_and_streams_are_listed(client: Client, context: str) -> None:
    fill(client, context, "order-1", 3)
    fill(client, context, "order-2", 2)
    fill(client, context, "cart-1", 1)
    info = next(each for each in client.contexts() if each.name == context)
    assert (info.events, info.commits, info.streams) == (6, 6, 3)
    assert [(each.name, each.events) for each in client.streams(context)] == [
        ("cart-1", 1),
        ("order-1", 3),
        ("order-2", 2),
    ]
    assert [each.name for each in client.streams(context, "order-")] == ["order-1", "order-2"]
    assert list(client.streams("no such context")) == []


@pytest.mark.over("penstock")
def test_streams_are_listed_across_pages(client: Client, context: str) -> None:
    count = PAGE_EVENTS + 10
    client.append_many((context, f"s-{number:05}", some(1)) for number in range(count))
    assert [each.name for each in client.streams(context)] == [f"s-{number:05}" for number in range(count)]


def test_counts_grow(client: Client, context: str) -> None:
    before = client.stats()
    fill(client, context, "s", 10, each=5)
    after = client.stats()
    assert after.head - before.head == 10
    assert after.store_id == before.store_id


# ---------------------------------------------------------------- bodies and headers


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        ([], b"[]"),
        (None, b"null"),
        (0, b"0"),
        ("text", b"text"),
        (b"\x00raw", b"\x00raw"),
    ],
)
def test_a_body_becomes_bytes(value: object, body: bytes) -> None:
    assert penstock.event("T", value).body == body


@pytest.mark.parametrize("value", [float("nan"), {"x": float("inf")}, {1, 2}, object(), {"when": datetime.now(UTC)}])
def test_what_has_no_place_in_json_is_no_body(value: object) -> None:
    with pytest.raises(NotJson, match="the body of an event is not JSON"):
        penstock.event("T", value)
    with pytest.raises(NotJson, match="the headers of an event is not JSON"):
        penstock.event("T", {}, {"x": value})


def test_headers_come_as_text(client: Client, context: str) -> None:
    events = [penstock.event("T", headers={"a": 1}), penstock.event("T", headers="b"), penstock.event("T", headers="")]
    client.append(context, "s", events)
    assert [event.headers for event in client.read_stream(context, "s")] == ['{"a":1}', "b", None]


@pytest.mark.over("penstock")
@pytest.mark.parametrize("body", [b"", b"not json", b"\xff\xfe", b"{", b"[1,]"])
def test_a_body_that_is_not_json_says_which_event_it_is(client: Client, context: str, body: bytes) -> None:
    client.append(context, "s", [penstock.event("T", body)])
    with pytest.raises(NotJson, match=f"the body of event 1 of stream s in context {context} is not JSON"):
        client.read_event(context, "s", 1).json()
