"""What Penstock adds to Res01 in the same envelope: single events, records, transactions, lists and statistics."""

from uuid import UUID

import pytest

from penstock.model import Event
from penstock.store.record import HEADER, Record
from tests.gates.res_extensions import Extended, Records
from tests.gates.res_frames import LONG_AGO, Refused, an_event, to_binary
from tests.gates.serving import Served

pytestmark = pytest.mark.gates("res", "mq", "mq-large")


def decoded(page: Records) -> list[Event]:
    """The events of a page of records."""
    return [event for data in page.records for event in Record(data, HEADER.unpack_from(data)[5]).events()]


# ---------------------------------------------------------------- one event


def test_one_event_can_be_read(client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(b"one"), an_event(b"two", headers="h"))
    assert client.get(context, "s", 2) == client.read(context, "s")[1]


@pytest.mark.parametrize(("stream", "sequence"), [("s", 3), ("none", 1), ("s", 10**12)])
def test_an_event_that_is_not_there_is_error_8(client: Extended, context: str, stream: str, sequence: int) -> None:
    client.append(context, "s", 1, an_event(), an_event())
    with pytest.raises(Refused, match=rf"{stream}.*{sequence}") as refused:
        client.get(context, stream, sequence)
    assert refused.value.code == 8


# ---------------------------------------------------------------- everything from a position


def test_stored_records_are_read_as_they_are(client: Extended, server: Served, context: str) -> None:
    sent = [an_event(str(n).encode(), headers="h" * n) for n in range(3)]
    (first, second) = client.transact((context, "a", 1, sent[:2]), (context, "b", 1, sent[2:]))
    page = client.read_all(first.position)
    assert (page.store_id, page.timeline) == (server.health()["store_id"], 1)
    assert page.end
    events = [event for event in decoded(page) if event.context == context]
    assert [(event.uuid, event.body) for event in events] == [(event.id, event.body) for event in sent]
    assert [to_binary(event.ticks) for event in events] == [event.time for event in sent]
    assert [UUID(bytes=event.commit) for event in events] == [first.commit, first.commit, second.commit]
    assert page.next == events[-1].position + 1


def test_a_history_is_dense_and_ends_at_the_head(client: Extended, context: str) -> None:
    # What other tests have deleted before is missing.
    head = int(client.stats()["head"])
    for place in (context, context + "x"):
        client.append(place, "s", 1, *(an_event() for _ in range(10)))
        client.append(place, "t", 1, an_event())
    positions: list[int] = []
    page = client.read_all(head + 1)
    while True:
        positions += [event.position for event in decoded(page)]
        if page.end:
            break
        page = client.read_all(page.next)
    assert positions == list(range(head + 1, head + 23))
    assert str(positions[-1]) == client.stats()["head"]


def test_records_can_be_filtered_by_context_and_stream(client: Extended, context: str) -> None:
    places = [(context, "order-1"), (context, "other"), (context + "x", "order-1"), (context, "order-2")]
    written = [client.transact((place, stream, 1, [an_event()]))[0] for place, stream in places]
    for prefix, expected in (("order", [0, 3]), ("", [0, 1, 3]), ("*", [0, 1, 3]), ("nothing", [])):
        page = client.read_all(written[0].position, context, prefix)
        found = [event.position for event in decoded(page) if event.context == context]
        wanted = [written[number].position for number in expected]
        assert set(wanted) <= set(found)
        assert bool(page.records) == bool(expected)


def test_beyond_the_end_there_is_nothing_yet(client: Extended) -> None:
    page = client.read_all(10**9)
    assert (page.records, page.end, page.next) == ([], True, 10**9)


# ---------------------------------------------------------------- transactions


def test_a_transaction_writes_all_its_commits_next_to_each_other(client: Extended, context: str) -> None:
    client.append(context, "b", 1, an_event())
    events = [an_event() for _ in range(4)]
    first, second, third = client.transact(
        (context, "a", 1, events[:2]), (context, "b", 2, events[2:3]), (context + "x", "a", -1, events[3:])
    )
    assert [second.position - first.position, third.position - second.position] == [2, 1]
    assert [first.sequence, second.sequence, third.sequence] == [1, 2, 1]
    assert not any(written.repeated for written in (first, second, third))
    assert [event.id for event in client.read(context, "a")] == [event.id for event in events[:2]]


def test_a_transaction_with_a_conflict_writes_nothing(client: Extended, context: str) -> None:
    client.append(context, "b", 1, an_event())
    with pytest.raises(Refused, match="error 6"):
        client.transact((context, "a", 1, [an_event()]), (context, "b", 1, [an_event()]))
    assert client.read(context, "a") == []


def test_a_producers_number_again_is_answered_and_not_written(client: Extended, other: Extended, context: str) -> None:
    (first,) = client.transact((context, "s", -1, [an_event()]), mark=(context, 7))
    (again,) = other.transact((context, "s", -1, [an_event()]), mark=(context, 7))
    assert again == first._replace(repeated=True)
    assert not client.transact((context, "s", -1, [an_event()]), mark=(context, 8))[0].repeated
    with pytest.raises(Refused, match=rf"{context}.*\b8\b.*\b7\b") as refused:
        client.transact((context, "s", -1, [an_event()]), mark=(context, 7))
    assert refused.value.code == 7
    assert len(client.read(context, "s")) == 2


def test_a_transaction_acknowledges_what_it_was_made_from(client: Extended, other: Extended, context: str) -> None:
    queue = f"work-{context}"
    client.append(context, "in", 1, an_event(b"0"), an_event(b"1"))
    held = client.subscribe(context, queue, "ann", prefix="in", count=1)
    client.transact((context, "out", 1, [an_event()]), acks=[(context, queue, "ann", held.markers)])
    assert client.queue_row(context, queue).allocations == 0
    assert other.subscribe(context, queue, "bob", prefix="in").bodies == [b"1"]
    with pytest.raises(Refused, match=queue) as refused:
        client.transact((context, "out", 2, [an_event()]), acks=[(context, queue, "ann", held.markers)])
    assert refused.value.code == 7
    assert len(client.read(context, "out")) == 1


def test_a_transaction_progresses_the_subscription_it_was_made_from(client: Extended, context: str) -> None:
    client.append(context, "in", 1, an_event(b"0"), an_event(b"1"))
    (number,) = client.register("ann", (context, "in", LONG_AGO))
    batch = client.fetch(number, 1)
    client.transact((context, "out", 1, [an_event()]), progress=[(number, batch[-1].time)])
    assert [event.body for event in client.fetch(number, 1)] == [b"1"]
    with pytest.raises(Refused, match=str(number)) as refused:
        client.transact((context, "out", 2, [an_event()]), progress=[(number, batch[-1].time)])
    assert refused.value.code == 7
    assert len(client.read(context, "out")) == 1


def test_a_transaction_with_nothing_in_it_is_error_1(client: Extended) -> None:
    with pytest.raises(Refused, match="nothing in it") as refused:
        client.transact()
    assert refused.value.code == 1


# ---------------------------------------------------------------- lists and counts


def test_contexts_are_listed_with_what_is_in_them(client: Extended, context: str) -> None:
    # A tilde is behind all that other tests write.
    names = [f"~{context}", f"~{context}-a", f"~{context}-b"]
    for name in names:
        client.append(name, "s", 1, an_event(b"12345"), an_event(b"12345"))
        client.append(name, "t", 1, an_event(b"12345"))
    just_before = f"~{context[:-1]}{chr(ord(context[-1]) - 1)}~"
    rows, end = client.list_contexts(after=just_before, limit=2)
    assert [(row.name, row.events, row.commits, row.streams) for row in rows] == [(name, 3, 2, 2) for name in names[:2]]
    assert all(row.bytes >= 15 for row in rows)
    assert not end
    rows, end = client.list_contexts(after=rows[-1].name)
    assert [row.name for row in rows] == names[2:]
    assert end


def test_streams_are_listed_with_their_numbers_of_events(client: Extended, context: str) -> None:
    for number in range(1, 6):
        client.append(context, f"order-{number}", 1, *(an_event() for _ in range(number)))
    client.append(context, "other", 1, an_event())
    assert client.list_streams(context, limit=2) == ([("order-1", 1), ("order-2", 2)], False)
    assert client.list_streams(context, after="order-4") == ([("order-5", 5), ("other", 1)], True)
    assert client.list_streams(context, "order", after="order-4") == ([("order-5", 5)], True)
    assert client.list_streams(context + "nowhere") == ([], True)


def test_queues_are_listed_with_their_state(client: Extended, context: str) -> None:
    queue = f"work-{context}"
    client.append(context, "s", 1, *(an_event() for _ in range(5)))
    held = client.subscribe(context, queue, "ann", count=2, prefix="s")
    row = client.queue_row(context, queue)
    assert (row.filter, row.position, row.behind) == ("s", held.end + 1, 3)
    assert (row.allocated, row.allocations, row.deliveries_max, row.dead, row.dead_after) == (2, 1, 1, 0, None)
    client.subscribe(context + "x", queue, "ann", ttl_ms=-1)
    assert client.queue_row(context + "x", queue).filter == ""
    behind, is_exact, behind_ms = client.queue_lag(row.id)
    assert (behind, is_exact) == (3, True)
    assert 0 <= behind_ms < 3_600_000
    rows, end = client.list_queues(after=row.id - 1, limit=1)
    assert ([found.id for found in rows], end) == ([row.id], False)


def test_subscriptions_are_listed_with_where_they_are(client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(), an_event())
    first, second = client.register("ann", (context, "s", LONG_AGO), (context, "*", LONG_AGO))
    batch = client.fetch(first, 1)
    client.progress((first, batch[-1].time))
    rows, end = client.list_subscriptions(after=first - 1)
    assert end
    assert [(row.id, row.subscriber, row.context, row.filter) for row in rows] == [
        (first, "ann", context, "s"),
        (second, "ann", context, ""),
    ]
    assert rows[0].position > rows[1].position
    assert client.list_subscriptions(after=first - 1, limit=1) == (rows[:1], False)
    client.append(context, "t", 1, an_event())
    assert [client.subscription_lag(number)[:2] for number in (first, second)] == [(1, True), (3, True)]


def test_statistics_have_names_and_values(client: Extended, server: Served, context: str) -> None:
    before = client.stats()
    client.append(context, "s", 1, an_event(), an_event())
    after = client.stats()
    assert after["store_id"] == server.health()["store_id"]
    grown = {name: int(after[name]) - int(before[name]) for name in ("head", "commits", "contexts", "streams")}
    assert grown == {"head": 2, "commits": 1, "contexts": 1, "streams": 1}
