"""Appends and transactions through the engine."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.engine import Engine
from penstock.errors import (
    AllocationLost,
    Closed,
    InvalidRequest,
    LimitExceeded,
    MarkSuperseded,
    NotAllowed,
    PenstockError,
    SubscriptionMoved,
    Unexpected,
    VersionConflict,
)
from penstock.model import (
    ANONYMOUS,
    ANY,
    NEW,
    Append,
    Appended,
    EventPage,
    FindPosition,
    Found,
    ProducerMark,
    QueueReceipt,
    ReadEvent,
    Reply,
    Request,
    SubscriptionReceipt,
    Transact,
    Transacted,
    new_event,
)
from penstock.settings import Settings
from penstock.store.contract import Outcome, Transaction
from tests.engine.caller import Caller, events, principal


async def test_an_acknowledged_append_is_seen_by_the_next_read(caller: Caller) -> None:
    for number in range(20):
        await caller.append("order", events(str(number)), number + 1)
        assert (await caller.stream("order"))[-1] == str(number)


async def test_a_conflict_names_what_it_expected_and_found_and_writes_nothing(caller: Caller) -> None:
    await caller.append("order", events("a", "b"), NEW)
    with pytest.raises(VersionConflict) as caught:
        await caller.append("order", events("c"), NEW)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert await caller.stream("order") == ["a", "b"]


async def test_of_many_conflicting_appends_exactly_one_wins(caller: Caller) -> None:
    attempts = (caller.append("order", events(str(n)), NEW) for n in range(200))
    results = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(result, Appended) for result in results) == 1
    assert sum(isinstance(result, VersionConflict) for result in results) == 199
    assert len(await caller.stream("order")) == 1


async def test_appends_from_many_callers_get_dense_positions(caller: Caller) -> None:
    attempts = [caller.append(f"s{n % 7}", events("x", "y")) for n in range(300)]
    appended = await asyncio.gather(*attempts)
    starts = sorted(result.position for result in appended)
    assert starts == list(range(1, 601, 2))


async def test_a_repeated_append_answers_the_first_commit(caller: Caller) -> None:
    new = events("a", "b")
    first = await caller.append("order", new, NEW)
    again = await caller.append("order", new, NEW)
    assert (again.commit, again.position, again.repeated) == (first.commit, first.position, True)


async def test_a_producer_mark_makes_an_unchecked_append_safe_to_repeat(caller: Caller) -> None:
    first = await caller.append("order", events("a"), mark=ProducerMark("p", 1))
    again = await caller.append("order", events("a"), mark=ProducerMark("p", 1))
    assert again.commit == first.commit
    await caller.append("order", events("b"), mark=ProducerMark("p", 2))
    with pytest.raises(MarkSuperseded):
        await caller.append("order", events("a"), mark=ProducerMark("p", 1))
    assert await caller.stream("order") == ["a", "b"]


@pytest.mark.parametrize(
    ("context", "stream", "type", "expected"),
    [
        ("", "s", "T", ANY),
        ("c" * 256, "s", "T", ANY),
        ("c\0", "s", "T", ANY),
        ("c", "", "T", ANY),
        ("c", "s" * 513, "T", ANY),
        ("c", "\ud800", "T", ANY),
        ("c", "s", "", ANY),
        ("c", "s", "T" * 1025, ANY),
        ("c", "s", "T", 0),
        ("c", "s", "T", -2),
    ],
)
async def test_what_can_never_be_is_an_invalid_request(
    caller: Caller, context: str, stream: str, type: str, expected: int
) -> None:
    with pytest.raises(InvalidRequest):
        await caller.append(stream, [new_event(type)], expected, context)
    assert await caller.everything() == []


async def test_an_append_without_events_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        await caller.append("order", [])


class TestSmallLimits:
    """The limits on events and commits, made small."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(event_bytes_max=1000, commit_bytes_max=2000, commit_events_max=10)

    @pytest.mark.parametrize(
        ("sizes", "limit"),
        [([1001], "event_bytes_max"), ([900] * 3, "commit_bytes_max"), ([1] * 11, "commit_events_max")],
    )
    async def test_too_much_is_refused_by_the_name_of_its_limit(
        self, caller: Caller, sizes: list[int], limit: str
    ) -> None:
        with pytest.raises(LimitExceeded) as caught:
            await caller.append("order", [new_event("T", bytes(size)) for size in sizes])
        assert caught.value.limit == limit
        assert await caller.everything() == []

    async def test_what_is_just_small_enough_is_taken(self, caller: Caller) -> None:
        await caller.append("order", [new_event("T", bytes(999))])
        await caller.append("order", [new_event("T", bytes(100)) for _ in range(10)])


async def test_a_principal_without_the_right_may_not(engine: Engine) -> None:
    reader = principal("reader", "read")
    with pytest.raises(NotAllowed, match="the right append"):
        await engine.execute(reader, Append("shop", "order", events("a"), NEW))
    await engine.execute(reader, FindPosition("shop", "", 0))


async def test_an_answer_comes_exactly_once_whatever_happens(engine: Engine) -> None:
    class Unheard(Request):
        """A request nobody knows."""

    answers: list[Reply | PenstockError] = []
    engine.submit(ANONYMOUS, Append("shop", "", events("a"), NEW), answers.append)
    engine.submit(ANONYMOUS, Unheard(), answers.append)
    while len(answers) < 2:  # noqa: ASYNC110 - the answers come by call, not by event
        await asyncio.sleep(0)
    assert {type(answer) for answer in answers} == {InvalidRequest, Unexpected}


async def test_a_transaction_that_breaks_the_store_does_not_fail_its_neighbours(
    engine: Engine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = engine._store.write

    def breaking(transactions: Sequence[Transaction]) -> list[Outcome]:
        if any(op.stream == "poison" for transaction in transactions for op in transaction.operations):  # type: ignore[attr-defined]
            raise RuntimeError("a bug")
        return write(transactions)

    monkeypatch.setattr(engine._store, "write", breaking)
    streams = ["a", "poison", "b", "c"]
    results = await asyncio.gather(*(caller.append(s, events(s)) for s in streams), return_exceptions=True)
    assert [isinstance(result, Appended) for result in results] == [True, False, True, True]
    assert isinstance(results[1], Unexpected)
    assert sorted(await caller.everything()) == ["a", "b", "c"]


# --- transactions ---------------------------------------------------------------------------------------------


async def test_a_transaction_writes_all_of_its_commits(caller: Caller) -> None:
    commits = (Append("shop", "a", events("1"), NEW), Append("shop", "b", events("2", "3"), NEW))
    done = await caller.ask(Transacted, Transact(commits))
    assert [commit.count for commit in done.commits] == [1, 2]
    assert await caller.everything() == ["1", "2", "3"]


async def test_a_transaction_with_one_conflict_writes_nothing(caller: Caller) -> None:
    await caller.append("b", events("there"), NEW)
    commits = (Append("shop", "a", events("1"), NEW), Append("shop", "b", events("2"), NEW))
    with pytest.raises(VersionConflict):
        await caller.ask(Transacted, Transact(commits))
    assert await caller.everything() == ["there"]


async def test_consume_and_produce_is_exactly_once(caller: Caller) -> None:
    await caller.append("in", events("work"))
    given = await caller.subscribe("worker", filter="in")
    assert given.allocation is not None
    receipt = QueueReceipt("shop", "q", "worker", given.allocation.first, given.allocation.last)
    request = Transact((Append("shop", "out", events("result"), ANY),), acknowledge=(receipt,))
    await caller.ask(Transacted, request)
    with pytest.raises(AllocationLost):
        await caller.ask(Transacted, request)
    assert await caller.stream("out") == ["result"]
    assert (await caller.subscribe("worker", filter="in")).allocation is None


async def test_a_transaction_progresses_a_subscription_only_with_its_commits(caller: Caller) -> None:
    await caller.append("in", events("work"))
    number = await caller.register(filter="in")
    batch = await caller.fetch(number)
    receipt = SubscriptionReceipt(number, batch.events[-1].ticks)
    with pytest.raises(VersionConflict):
        await caller.ask(Transacted, Transact((Append("shop", "out", events("r"), 7),), progress=(receipt,)))
    assert await caller.fetched(number) == ["work"]
    await caller.ask(Transacted, Transact((Append("shop", "out", events("r"), NEW),), progress=(receipt,)))
    assert await caller.fetched(number) == []
    with pytest.raises(SubscriptionMoved):
        await caller.ask(Transacted, Transact((Append("shop", "out", events("r"), ANY),), progress=(receipt,)))
    assert await caller.stream("out") == ["r"]


async def test_an_empty_transaction_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidRequest):
        await caller.ask(Transacted, Transact())


# --- the end --------------------------------------------------------------------------------------------------


async def test_stopping_finishes_what_was_taken_and_refuses_the_rest(engine: Engine, caller: Caller) -> None:
    taken = [asyncio.ensure_future(caller.append(f"s{n}", events("x"))) for n in range(50)]
    await asyncio.sleep(0)
    await engine.stop()
    assert all(isinstance(result, Appended) for result in await asyncio.gather(*taken))
    with pytest.raises(Closed):
        await caller.append("late", events("x"))


async def test_an_event_is_read_back_as_it_was_sent(caller: Caller) -> None:
    new = new_event("Überweisung", b"\x00\xff", '{"k": 1}')
    appended = await caller.append("konto", [new], NEW, context="bank")
    page = await caller.ask(EventPage, ReadEvent("bank", "konto", 1))
    (event,) = page.events
    assert (event.id, event.stamp, event.type, event.headers, event.body) == tuple(new)
    assert (event.position, event.commit, event.sequence) == (appended.position, appended.commit, 1)


async def test_a_time_is_found_in_position_order(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", "d", ticks=[10, 50, 20, 60]))
    assert await caller.ask(Found, FindPosition("shop", "", 20)) == Found(2)
    assert await caller.ask(Found, FindPosition("shop", "", 61)) == Found(None)
    assert await caller.ask(Found, FindPosition("elsewhere", "", 0)) == Found(None)


async def test_a_transaction_sent_again_under_its_mark_is_answered_as_the_first_time(caller: Caller) -> None:
    await caller.append("in", events("work"))
    number = await caller.register(filter="in")
    batch = await caller.fetch(number)
    given = await caller.subscribe("worker", filter="in")
    assert given.allocation is not None
    request = Transact(
        (Append("shop", "out", events("r"), ANY),),
        (QueueReceipt("shop", "q", "worker", given.allocation.first, given.allocation.last),),
        (SubscriptionReceipt(number, batch.events[-1].ticks),),
        ProducerMark("p", 1),
    )
    first = await caller.ask(Transacted, request)
    again = await caller.ask(Transacted, request)
    assert again.commits[0].commit == first.commits[0].commit
    assert await caller.stream("out") == ["r"]
