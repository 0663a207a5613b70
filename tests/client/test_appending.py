"""Append, append_many and transactions."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import ANY, NEW, Appended, Client, aconnect
from penstock.client import ManyAppended
from penstock.client.bulk import Commit
from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    NotAppended,
    SubscriptionMoved,
    VersionConflict,
)
from tests.client.conftest import Way
from tests.client.driven import Driven
from tests.client.support import as_new, fill, loop_calls_of, numbers, one, some

# ---------------------------------------------------------------- append


def test_an_append_says_where_its_events_are(client: Client, context: str) -> None:
    first = client.append(context, "s", some(2), expected=NEW)
    second = client.append(context, "s", some(3))
    assert (first.sequence, first.count, first.repeated) == (1, 2, False)
    assert (second.sequence, second.count) == (3, 3)
    assert second.position == first.position + 2
    assert len(first.commit) == 16
    assert first.commit != second.commit


def test_what_was_appended_is_what_is_read(client: Client, context: str) -> None:
    time = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    events = [
        penstock.event("Placed", {"amount": 42, "ö": "é"}, {"by": "ann"}, time=time),
        penstock.event("Noted", "plain text – with a dash"),
        penstock.event("Raw", b"\x00\xff" * 100, headers="anything at all"),
        penstock.event("Empty"),
    ]
    appended = client.append(context, "s", events, expected=NEW)
    found = list(client.read_stream(context, "s"))
    assert as_new(found) == events
    assert [event.sequence for event in found] == [1, 2, 3, 4]
    assert [event.position for event in found] == list(range(appended.position, appended.position + 4))
    assert {event.commit for event in found} == {appended.commit}
    assert {(event.context, event.stream) for event in found} == {(context, "s")}
    assert found[0].timestamp == time
    assert found[0].json() == {"amount": 42, "ö": "é"}
    assert list(client.read_all(context=context)) == found


@pytest.mark.parametrize("expected", [1, 2, 4, 99])
def test_an_append_to_another_version_is_a_conflict(client: Client, context: str, expected: int) -> None:
    client.append(context, "s", some(2), expected=NEW)
    with pytest.raises(VersionConflict) as caught:
        client.append(context, "s", some(1), expected=expected)
    error = caught.value
    assert (error.context, error.stream, error.expected, error.actual) == (context, "s", expected, 2)
    found = f"stream {context}/s is at version 2: its next event gets sequence 3, expected {expected}"
    assert str(error) == f"{found}; nothing was written, read it again and retry"
    assert len(list(client.read_stream(context, "s"))) == 2


def test_the_version_that_comes_next_is_no_conflict(client: Client, context: str) -> None:
    client.append(context, "s", some(2), expected=NEW)
    assert client.append(context, "s", some(1), expected=3).sequence == 3


def test_the_same_append_again_is_recognised(client: Client, context: str) -> None:
    events = some(2)
    first = client.append(context, "s", events, expected=NEW)
    again = client.append(context, "s", events, expected=NEW)
    assert again.repeated
    assert (again.commit, again.position, again.sequence) == (first.commit, first.position, first.sequence)
    assert len(list(client.read_stream(context, "s"))) == 2


def test_two_calls_with_any_version_are_two_commits(client: Client, context: str) -> None:
    events = some(1)
    client.append(context, "s", events, expected=ANY)
    assert not client.append(context, "s", events, expected=ANY).repeated
    assert len(list(client.read_stream(context, "s"))) == 2


def test_events_may_come_from_a_generator(client: Client, context: str) -> None:
    assert client.append(context, "s", (each for each in some(3))).count == 3  # type: ignore[arg-type]


@pytest.mark.over("penstock", "sqlite")
@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "events is empty"),
        (penstock.event("Placed"), "put it into a list"),
        (42, "events is int"),
        (["text"], "make events with penstock.event"),
        ([(b"", 0, "T", None, b"")], "make events with penstock.event"),
        ([penstock.event("T")._replace(body="text")], "body of an event is str"),  # type: ignore[arg-type]
        ([penstock.event("T")._replace(body=memoryview(b"xx").cast("H"))], "is memoryview"),  # type: ignore[arg-type]
        ([penstock.event("T")._replace(id=b"short")], "EventId|event id"),
        ([penstock.event("T")._replace(id="0" * 16)], "id of an event is str"),  # type: ignore[arg-type]
        ([penstock.event("T")._replace(stamp="now")], "stamp of an event is str"),  # type: ignore[arg-type]
        ([penstock.event("")], "type"),
        ([penstock.event("T", headers="\ud800")], "Unicode|surrogates"),
    ],
)
def test_events_that_are_none_are_refused_before_anything_is_done(
    client: Client, context: str, events: Any, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        client.append(context, "s", events)
    assert list(client.read_stream(context, "s")) == []
    client.append(context, "s", some(1), expected=NEW)


@pytest.mark.over("penstock", "sqlite")
@pytest.mark.parametrize("expected", [0, -2, True, "1", None, 1.5])
def test_an_expected_version_that_cannot_be_is_refused(client: Client, context: str, expected: Any) -> None:
    with pytest.raises(InvalidRequest):
        client.append(context, "s", some(1), expected=expected)


@pytest.mark.parametrize(("context_name", "stream"), [("", "s"), ("c" * 256, "s"), ("a\0b", "s"), ("c", ""), (1, "s")])
def test_names_that_cannot_be_are_refused(client: Client, context_name: Any, stream: str) -> None:
    with pytest.raises(InvalidRequest):
        client.append(context_name, stream, some(1))


# ---------------------------------------------------------------- append_many


def test_many_commits_are_written_in_their_order(client: Client, context: str) -> None:
    before = client.stats().head
    result = client.append_many((context, f"s-{number % 3}", some(1, number)) for number in range(900))
    assert result == ManyAppended(900, 900, before + 900)
    for stream in range(3):
        assert numbers(client.read_stream(context, f"s-{stream}")) == list(range(stream, 900, 3))


def test_no_commits_are_fine(client: Client) -> None:
    assert client.append_many([]) == ManyAppended(0, 0, 0)


def test_many_commits_may_expect_versions(client: Client, context: str) -> None:
    commits: list[Commit] = [(context, "s", some(2, 1), NEW), (context, "s", some(2, 3), 3), (context, "s", some(1, 5))]
    assert client.append_many(commits).commits == 3
    assert numbers(client.read_stream(context, "s")) == [1, 2, 3, 4, 5]


def test_each_commit_is_told_when_it_is_written(client: Client, context: str) -> None:
    told: list[tuple[int, Appended]] = []
    client.append_many(
        ((context, "s", some(2)) for _ in range(300)), written=lambda number, appended: told.append((number, appended))
    )
    assert [number for number, _ in told] == list(range(300))
    assert [appended.sequence for _, appended in told] == list(range(1, 601, 2))


def test_the_first_commit_that_fails_is_named(client: Client, context: str) -> None:
    def commits() -> Iterator[Commit]:
        for number in range(100):
            yield context, "s", some(1, number)
        yield context, "s", some(1), 7
        for number in range(100):
            yield context, "after", some(1, number)

    with pytest.raises(NotAppended) as caught:
        client.append_many(commits(), in_flight=10)
    error = caught.value
    assert error.index == 100
    assert isinstance(error.__cause__, VersionConflict)
    assert "expected 7; nothing was written" in str(error)
    after = len(list(client.read_stream(context, "after")))
    assert error.written == 100 + after
    assert numbers(client.read_stream(context, "s")) == list(range(100))


@pytest.mark.over("penstock", "sqlite")
@pytest.mark.parametrize(
    "bad", [("only one",), ("c", "s", [], 1), ("c", "s", ["no event"]), 17, ("c", "s", some(1), "x")]
)
def test_a_commit_that_is_none_is_named(client: Client, context: str, bad: Any) -> None:
    # A client that was idle for long has lost its connection, and nothing is sent again after a bad commit.
    client.stats()
    with pytest.raises(NotAppended) as caught:
        client.append_many([(context, "s", some(1)), bad, (context, "s", some(1))])
    assert (caught.value.index, caught.value.written) == (1, 1)
    assert len(list(client.read_stream(context, "s"))) == 1


class Stopped(Exception):
    """Raised by those who give commits or are told of them."""


def test_an_error_of_the_input_comes_out_once_what_was_sent_is_written(client: Client, context: str) -> None:
    def commits() -> Iterator[Commit]:
        for number in range(50):
            yield context, "s", some(1, number)
        raise Stopped

    told: list[int] = []
    with pytest.raises(Stopped):
        client.append_many(commits(), written=lambda number, _: told.append(number))
    assert numbers(client.read_stream(context, "s")) == list(range(50))
    assert set(told) <= set(range(50))


def test_an_error_of_the_callback_comes_out_once_what_was_sent_is_written(client: Client, context: str) -> None:
    def written(number: int, _: Appended) -> None:
        if number == 7:
            raise Stopped

    with pytest.raises(Stopped):
        client.append_many(((context, "s", some(1, number)) for number in range(2000)), in_flight=20, written=written)
    found = numbers(client.read_stream(context, "s"))
    assert found == list(range(len(found)))
    assert len(found) >= 8


@pytest.mark.parametrize("in_flight", [1, 2, 50])
def test_never_more_commits_are_under_way_than_allowed(client: Client, context: str, in_flight: int) -> None:
    transport = loop_calls_of(client).transport
    start = transport.start
    under_way: list[Any] = []
    most = 0

    def counted(request: Any) -> Any:
        nonlocal most
        answer = start(request)
        # Asked, not told: a callback would be told a turn of the loop after the answer has come.
        under_way[:] = [*(one for one in under_way if not one.done()), answer]
        most = max(most, len(under_way))
        return answer

    transport.start = counted
    try:
        client.append_many(((context, "s", some(1)) for _ in range(300)), in_flight=in_flight)
    finally:
        del transport.start
    assert most <= in_flight
    assert most == 1 or in_flight > 1


def test_a_window_has_room_for_one(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="in_flight"):
        client.append_many([], in_flight=0)


def test_large_commits_are_not_all_under_way_at_once(client: Client, context: str) -> None:
    body = bytes(3 << 20)
    result = client.append_many((context, "large", [penstock.event("Large", body)]) for _ in range(12))
    assert result.events == 12
    assert [len(event.body) for event in client.read_stream(context, "large")] == [3 << 20] * 12


@pytest.mark.over("penstock", "zmq+tcp", "sqlite")
async def test_commits_may_come_from_an_async_iterable(way: Way, url: str, context: str) -> None:
    async def commits() -> AsyncIterator[Commit]:
        for number in range(100):
            yield context, "s", some(1, number)

    async with aconnect(url) as client:
        assert (await client.append_many(commits())).commits == 100
        assert numbers([event async for event in client.read_stream(context, "s")]) == list(range(100))


def test_what_is_read_can_be_appended_with_the_same_client(way: Way, client: Client, context: str) -> None:
    if isinstance(client, Driven):
        pytest.skip("an event loop does not wait for itself")
    fill(client, context, "from", 500)
    client.append_many((context, "to", as_new([event])) for event in client.read_stream(context, "from"))
    assert numbers(client.read_stream(context, "to")) == list(range(1, 501))


# ---------------------------------------------------------------- transactions


def test_a_transaction_writes_all_its_commits(client: Client, context: str) -> None:
    with client.transaction() as transaction:
        transaction.append(context, "a", some(2), expected=NEW)
        transaction.append(context, "b", some(1))
        assert transaction.result == []
    assert [(each.sequence, each.count) for each in transaction.result] == [(1, 2), (1, 1)]
    assert numbers(client.read_all(context=context)) == [1, 2, 1]


def test_a_transaction_with_a_conflict_writes_nothing(client: Client, context: str) -> None:
    client.append(context, "b", some(1))
    transaction = client.transaction()
    with pytest.raises(VersionConflict), transaction:  # noqa: PT012
        transaction.append(context, "a", some(1))
        transaction.append(context, "b", some(1), expected=NEW)
    assert list(client.read_stream(context, "a")) == []


def test_a_transaction_whose_body_fails_does_nothing(client: Client, context: str) -> None:
    with pytest.raises(Stopped), client.transaction() as transaction:  # noqa: PT012
        transaction.append(context, "a", some(1))
        raise Stopped
    assert list(client.read_all(context=context)) == []


def test_a_transaction_with_nothing_in_it_does_nothing(client: Client) -> None:
    with client.transaction() as transaction:
        pass
    assert transaction.result == []
    with pytest.raises(InvalidRequest, match="nothing in it"):
        client.transaction().commit()


def test_produce_and_acknowledge_is_one_transaction(client: Client, other: Client, context: str) -> None:
    fill(client, context, "in", 3)
    queue = client.queue(context, "work", filter="in", count=3)
    batch = queue.take()
    with client.transaction() as transaction:
        transaction.append(context, "out", some(3))
        transaction.acknowledge(batch)
    assert batch.is_settled
    assert other.queue(context, "work", filter="in").take() == []
    assert len(list(client.read_stream(context, "out"))) == 3


def test_a_transaction_without_its_allocation_writes_nothing(client: Client, other: Client, context: str) -> None:
    fill(client, context, "in", 3)
    queue = client.queue(context, "work", filter="in")
    batch = queue.take()
    queue.release(batch)
    assert len(other.queue(context, "work", filter="in").take()) == 3
    with pytest.raises(AllocationLost, match="nothing was written"), client.transaction() as transaction:  # noqa: PT012
        transaction.append(context, "out", some(1))
        transaction.acknowledge(batch)
    assert list(client.read_stream(context, "out")) == []


def test_a_batch_acknowledged_by_a_transaction_may_be_in_a_with(client: Client, other: Client, context: str) -> None:
    fill(client, context, "in", 3)
    with client.queue(context, "work", filter="in").next() as batch, client.transaction() as transaction:
        transaction.append(context, "out", some(3))
        transaction.acknowledge(batch)
    assert other.queue(context, "work", filter="in").take() == []


def test_subscription_progress_is_part_of_a_transaction(client: Client, context: str) -> None:
    fill(client, context, "in", 10)
    subscription = client.subscription("projection", context=context, filter="in", count=4, follow=False)
    seen: list[int] = []
    for batch in subscription.batches():
        with client.transaction() as transaction:
            transaction.append(context, "out", as_new(batch))
            transaction.progress(subscription, batch)
        seen += numbers(batch)
    assert seen == list(range(1, 11))
    assert numbers(client.read_stream(context, "out")) == seen


def test_a_transaction_for_a_subscription_that_was_moved_writes_nothing(client: Client, context: str) -> None:
    fill(client, context, "in", 10)
    subscription = client.subscription("projection", context=context, filter="in", count=4)
    batch = subscription.fetch()
    subscription.set(datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(SubscriptionMoved), client.transaction() as transaction:  # noqa: PT012
        transaction.append(context, "out", one())
        transaction.progress(subscription, batch)
    assert list(client.read_stream(context, "out")) == []
