"""Events of a queue that are handed out once more, while the queue stays where it is."""

import asyncio

import pytest

from penstock.engine import Engine
from penstock.engine.queues import REPLAY_EVENTS_MAX, WAITING_ALLOCATIONS_MAX, runs_of
from penstock.errors import InvalidRequest, LimitExceeded, MarkSuperseded, QueueNotFound
from penstock.model import (
    Allocation,
    Done,
    Erased,
    EraseStream,
    ListPage,
    ListQueues,
    ProducerMark,
    Replayed,
    ReplayQueue,
    SetDeadLetterRule,
)
from tests.engine.caller import Caller, bodies, events
from tests.engine.test_queues import SHORT_MS, expired
from tests.engine.test_reads import waiting

LETTERS = "abcdefghij"


async def consumed(caller: Caller, texts: str = LETTERS, stream: str = "s") -> None:
    """Events that the queue has handed out, all of them acknowledged."""
    await caller.append(stream, events(*texts))
    await caller.acknowledge(await caller.subscribe("one", 1000), 1, -1)


async def replay(
    caller: Caller, first: int, last: int, mark: ProducerMark | None = None, context: str | None = "shop"
) -> Replayed:
    return await caller.ask(Replayed, ReplayQueue(context, "q", first, last, mark))


async def marker(caller: Caller) -> int:
    return int((await caller.ask(ListPage, ListQueues())).items[0].position)


async def test_a_range_comes_again_before_what_is_new_and_the_queue_stays_where_it_is(caller: Caller) -> None:
    await consumed(caller)
    await caller.append("s", events("new"))
    assert await replay(caller, 3, 5, context=None) == Replayed(3, 0, 3)
    assert await marker(caller) == 11
    again = await caller.subscribe("two", 1)
    assert bodies(again) == ["c", "d", "e"]
    assert again.allocation is not None
    assert again.allocation.deliveries == 1
    assert bodies(await caller.acknowledge(again, 5)) == ["new"]
    assert await marker(caller) == 12


async def test_only_events_of_the_queue_come_again(caller: Caller) -> None:
    for text in "abc":
        await caller.append("s", events(text), context="bank")
        await caller.append(f"order-{text}", events(text))
        await caller.append("cart", events("cart"))
    await caller.acknowledge(await caller.subscribe("one", 10, filter="order-"), 1, -1)
    assert await replay(caller, 1, 6) == Replayed(2, 0, 2)
    assert bodies(await caller.subscribe("one", filter="order-")) == ["a", "b"]


async def test_what_is_held_comes_again_or_was_set_aside_is_left_out(caller: Caller) -> None:
    await caller.append("s", events(*LETTERS))
    await caller.subscribe("one", 1, -1)
    await caller.ask(Done, SetDeadLetterRule("shop", "q", 1))
    dead = await caller.subscribe("lost", 2, SHORT_MS)
    held = await caller.subscribe("held", 2)
    await caller.acknowledge(await caller.subscribe("one", 6), 1, -1)
    await expired()
    assert (bodies(dead), bodies(held)) == (["a", "b"], ["c", "d"])
    assert await replay(caller, 2, 9) == Replayed(5, 3, 5)
    # Once more, and all of it is on its way already.
    assert await replay(caller, 2, 9) == Replayed(0, 8, 5)
    assert bodies(await caller.subscribe("two")) == list("efghi")


async def test_a_consumer_that_waits_is_woken(engine: Engine, caller: Caller) -> None:
    await consumed(caller)
    poll = asyncio.ensure_future(caller.subscribe("two", 1, wait_ms=20_000))
    await waiting(engine, 1)
    await replay(caller, 1, 2)
    assert bodies(await poll) == ["a", "b"]


async def test_under_a_mark_it_is_done_once_whoever_has_taken_it_meanwhile(caller: Caller) -> None:
    await consumed(caller)
    assert await replay(caller, 1, 4, ProducerMark("r", 4)) == Replayed(4, 0, 4)
    assert await replay(caller, 1, 4, ProducerMark("r", 4)) == Replayed(4, 0, 4, repeated=True)
    await caller.acknowledge(await caller.subscribe("two"), 1, -1)
    assert (await replay(caller, 1, 4, ProducerMark("r", 4))).repeated
    assert (await caller.subscribe("two")).allocation is None
    with pytest.raises(MarkSuperseded) as caught:
        await replay(caller, 1, 2, ProducerMark("r", 2))
    assert caught.value.highest == 4


async def test_not_more_is_put_back_than_consumers_take(caller: Caller) -> None:
    count = WAITING_ALLOCATIONS_MAX + 1
    await consumed(caller, "x" * count)
    for position in range(1, count):
        assert (await replay(caller, position, position)).events == 1
    full = await replay(caller, count, count, ProducerMark("r", count))
    assert full == Replayed(0, 0, WAITING_ALLOCATIONS_MAX, is_full=True)
    await caller.acknowledge(await caller.subscribe("two"), 1, -1)
    assert (await replay(caller, count, count, ProducerMark("r", count))).events == 1


async def test_large_ranges_become_batches_and_larger_ones_are_refused(caller: Caller) -> None:
    await consumed(caller, "x" * 250)
    assert (await replay(caller, 1, 250)).events == 250
    sizes = []
    for _ in range(3):
        given = await caller.subscribe("two")
        sizes.append(len(given.events))
        await caller.acknowledge(given, 1, -1)
    assert sizes == [100, 100, 50]
    await consumed(caller, "x" * 751)
    with pytest.raises(LimitExceeded) as caught:
        await replay(caller, 1, 1001)
    assert (caught.value.limit, caught.value.maximum) == ("replay_events_max", REPLAY_EVENTS_MAX)
    assert (await caller.subscribe("two")).allocation is None


async def test_what_cannot_come_again_is_refused(caller: Caller) -> None:
    await consumed(caller)
    for first, last in ((0, 3), (4, 3), (-1, 1), (9, 11), (11, 11)):
        with pytest.raises(InvalidRequest):
            await replay(caller, first, last)
    with pytest.raises(QueueNotFound):
        await replay(caller, 1, 1, context="bank")


async def test_erased_events_are_left_out_of_what_comes_again(caller: Caller) -> None:
    await caller.append("gone", events("x"))
    await consumed(caller, "ab")
    await caller.ask(Erased, EraseStream("shop", "gone"))
    assert await replay(caller, 1, 3) == Replayed(2, 0, 2)
    assert bodies(await caller.subscribe("two")) == ["a", "b"]
    assert await replay(caller, 1, 1) == Replayed(0, 0, 0)


async def test_consumers_that_take_and_acknowledge_meanwhile_get_each_range_once(caller: Caller) -> None:
    await consumed(caller, "x" * 60)
    taken: list[int] = []

    async def consume(name: str) -> None:
        while len(taken) < 60:
            given = await caller.subscribe(name, wait_ms=50)
            taken.extend(event.position for event in given.events)
            await caller.acknowledge(given, 1, -1)

    async def put_back() -> None:
        for first in range(1, 60, 5):
            mark = ProducerMark("r", first)
            # Twelve ranges are fewer than may wait at once.
            assert (await replay(caller, first, first + 4, mark)).events == 5

    await asyncio.gather(put_back(), consume("a"), consume("b"))
    assert sorted(taken) == list(range(1, 61))


def test_runs_go_around_what_is_on_its_way_and_have_no_more_bytes_than_a_page() -> None:
    shared = [Allocation(first, last, 1, "", 0, 0) for first, last in ((3, 4), (8, 8))]
    found = [(position, 10) for position in range(1, 11)]
    assert runs_of(found, shared, [], 1000) == ((1, 2, 2), (5, 7, 3), (9, 10, 2))
    assert runs_of(found[4:7], [], [], 20) == ((5, 6, 2), (7, 7, 1))
    assert runs_of([(5, 99)], [], [], 20) == ((5, 5, 1),)
    # No allocation has a dead letter between its ends.
    assert runs_of(found[4:5] + found[6:7], shared, [3, 6], 20) == ((5, 5, 1), (7, 7, 1))
    assert runs_of([], shared, [], 20) == ()
