"""Competing consumers, rule by rule of docs/engine.md."""

import asyncio

import pytest

from penstock.engine import Engine
from penstock.errors import InvalidRequest, QueueAmbiguous, QueueFilterMismatch, QueueNotFound
from penstock.model import AcknowledgeQueue, Delivery, Done, ListPage, ListQueues, ResetQueue
from penstock.settings import Settings
from tests.engine.caller import Caller, bodies, events
from tests.engine.test_reads import waiting

SHORT_MS = 1
NOTHING = None


async def expired() -> None:
    """Until an allocation of SHORT_MS has surely run out."""
    await asyncio.sleep(0.005)


async def test_consumers_share_the_events_of_a_queue(caller: Caller) -> None:
    await caller.append("s", events(*"abcde"))
    first = await caller.subscribe("one", 2)
    second = await caller.subscribe("two", 2)
    assert (bodies(first), bodies(second)) == (["a", "b"], ["c", "d"])
    third = await caller.acknowledge(first, 2)
    assert bodies(third) == ["e"]
    assert (await caller.acknowledge(second, 2)).allocation is NOTHING


async def test_markers_are_the_first_and_last_position(caller: Caller) -> None:
    await caller.append("other", events("x"), -1, "bank")
    await caller.append("s", events("a"))
    await caller.append("other", events("x"), -1, "bank")
    await caller.append("s", events("b"))
    given = (await caller.subscribe("one", 5)).allocation
    assert given is not None
    assert (given.first, given.last, given.count, given.deliveries) == (2, 4, 2, 1)


async def test_ones_own_live_allocation_comes_again_and_is_not_extended(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    first = await caller.subscribe("one")
    again = await caller.subscribe("one", 2)
    assert again.allocation == first.allocation
    assert bodies(again) == ["a"]


async def test_an_expired_allocation_is_taken_over_whole_with_the_same_markers(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c"))
    lost = await caller.subscribe("one", 2, SHORT_MS)
    await expired()
    taken = await caller.subscribe("two", 1)
    assert lost.allocation is not None
    assert taken.allocation is not None
    assert (taken.allocation.first, taken.allocation.last) == (lost.allocation.first, lost.allocation.last)
    assert (bodies(taken), taken.allocation.deliveries) == (["a", "b"], 2)


async def test_the_oldest_expired_allocation_goes_first(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c"))
    await caller.subscribe("one", 1, SHORT_MS)
    await caller.subscribe("two", 1, SHORT_MS)
    await expired()
    assert bodies(await caller.subscribe("three")) == ["a"]
    assert bodies(await caller.subscribe("four")) == ["b"]
    assert bodies(await caller.subscribe("five")) == ["c"]


async def test_a_late_acknowledgement_counts_unless_somebody_took_over(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    late = await caller.subscribe("one", 1, SHORT_MS)
    await expired()
    assert bodies(await caller.acknowledge(late, 1, SHORT_MS)) == ["b"]
    lost = await caller.subscribe("one", 1, SHORT_MS)
    await expired()
    taken = await caller.subscribe("two")
    assert bodies(taken) == ["b"]
    assert (await caller.acknowledge(lost)).allocation is NOTHING
    assert bodies(await caller.subscribe("two")) == ["b"]
    assert (await caller.acknowledge(taken)).allocation is NOTHING


async def test_minus_one_acknowledges_or_declares_and_allocates_nothing(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    assert (await caller.subscribe("one", 1, -1)).allocation is NOTHING
    given = await caller.subscribe("one")
    assert bodies(given) == ["a"]
    assert (await caller.acknowledge(given, 1, -1)).allocation is NOTHING
    assert bodies(await caller.subscribe("two")) == ["b"]


async def test_markers_of_zero_acknowledge_nothing(caller: Caller) -> None:
    await caller.append("s", events("a"))
    await caller.subscribe("one", 1, -1)
    given = await caller.ask(Delivery, AcknowledgeQueue("shop", "q", "one", 0, 0, 1, 1000))
    assert bodies(given) == ["a"]


async def test_wrong_markers_acknowledge_nothing_and_the_own_allocation_comes_again(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.subscribe("one", 2)
    again = await caller.ask(Delivery, AcknowledgeQueue("shop", "q", "one", 1, 1, 1, 1000))
    assert bodies(again) == ["a", "b"]


async def test_a_queue_is_known_by_context_and_name(caller: Caller) -> None:
    await caller.append("s", events("a"))
    await caller.append("s", events("b"), -1, "bank")
    await caller.subscribe("one", 1, -1)
    alone = await caller.ask(Delivery, AcknowledgeQueue(None, "q", "one", 0, 0, 1, 1000))
    assert (bodies(alone), alone.context) == (["a"], "shop")
    assert bodies(await caller.subscribe("one", context="bank")) == ["b"]
    with pytest.raises(QueueAmbiguous):
        await caller.ask(Delivery, AcknowledgeQueue(None, "q", "one", 0, 0, 1, 1000))
    with pytest.raises(QueueNotFound):
        await caller.ask(Delivery, AcknowledgeQueue(None, "none", "one", 0, 0, 1, 1000))
    with pytest.raises(QueueFilterMismatch):
        await caller.subscribe("one", filter="s")


async def test_reset_drops_allocations_and_moves_the_marker(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 20, 30]))
    given = await caller.subscribe("one", 3)
    assert bodies(given) == ["a", "b", "c"]
    await caller.ask(Done, ResetQueue("shop", "q", 20))
    assert bodies(await caller.subscribe("two", 3)) == ["b", "c"]
    assert bodies(await caller.acknowledge(given, 3)) == []
    await caller.ask(Done, ResetQueue(None, "q", 1000))
    assert bodies(await caller.subscribe("two", 3)) == []


async def test_reset_goes_to_a_position_that_there_is(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c"))
    assert bodies(await caller.subscribe("one", 3)) == ["a", "b", "c"]
    await caller.ask(Done, ResetQueue("shop", "q", 0, 2))
    assert bodies(await caller.subscribe("two", 3)) == ["b", "c"]
    await caller.ask(Done, ResetQueue("shop", "q", 0, 4))
    assert bodies(await caller.subscribe("two", 3)) == []
    for position in (0, 5):
        with pytest.raises(InvalidRequest, match="from 1 to 4"):
            await caller.ask(Done, ResetQueue("shop", "q", 0, position))


@pytest.mark.parametrize(("count", "ttl_ms"), [(0, 1000), (-1, 1000), (1, 0), (1, -2), (1, 10**12)])
async def test_counts_and_times_that_cannot_be_are_refused(caller: Caller, count: int, ttl_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        await caller.subscribe("one", count, ttl_ms)


async def test_lag_and_deliveries_are_told(caller: Caller) -> None:
    await caller.append("s", events(*"abcde"))
    await caller.subscribe("one", 2, SHORT_MS)
    await expired()
    await caller.subscribe("two", 2)
    (queue,) = (await caller.ask(ListPage, ListQueues())).items
    assert (queue.behind, queue.allocated, queue.allocations, queue.deliveries_max) == (3, 2, 1, 2)


async def test_a_consumer_that_waits_is_woken_by_a_commit(engine: Engine, caller: Caller) -> None:
    poll = asyncio.ensure_future(caller.subscribe("one", wait_ms=30_000))
    await waiting(engine, 1)
    await caller.append("s", events("a"))
    assert bodies(await poll) == ["a"]


async def test_a_consumer_that_waits_gets_what_another_let_expire(caller: Caller) -> None:
    await caller.append("s", events("a"))
    await caller.subscribe("one", 1, 50)
    taken = await caller.subscribe("two", wait_ms=30_000)
    assert bodies(taken) == ["a"]


async def test_a_consumer_that_waits_is_woken_by_a_reset(engine: Engine, caller: Caller) -> None:
    await caller.append("s", events("a", ticks=[10]))
    done = await caller.acknowledge(await caller.subscribe("one"))
    assert done.allocation is NOTHING
    poll = asyncio.ensure_future(caller.subscribe("one", wait_ms=30_000))
    await waiting(engine, 1)
    await caller.ask(Done, ResetQueue("shop", "q", 0))
    assert bodies(await poll) == ["a"]


async def test_many_consumers_at_once_get_every_event_exactly_once(caller: Caller) -> None:
    for n in range(40):
        await caller.append(f"s{n}", events(*(f"{n}.{k}" for k in range(10))))

    async def consume(name: str) -> list[str]:
        seen: list[str] = []
        given = await caller.subscribe(name, 7)
        while given.allocation is not None:
            seen += bodies(given)
            given = await caller.acknowledge(given, 7)
        return seen

    seen = await asyncio.gather(*(consume(f"c{n}") for n in range(8)))
    everything = [body for part in seen for body in part]
    assert len(everything) == 400
    assert set(everything) == {f"{n}.{k}" for n in range(40) for k in range(10)}


async def test_allocations_survive_a_restart(engine: Engine, caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    given = await caller.subscribe("one")
    await engine.stop()
    async with Engine(engine.url, Settings()) as again:
        later = Caller(again)
        assert (await later.subscribe("one")).allocation == given.allocation
        assert bodies(await later.subscribe("two")) == ["b"]
        assert (await later.acknowledge(given)).allocation is NOTHING


async def test_a_sparse_queue_remembers_how_far_it_looked(caller: Caller) -> None:
    await caller.subscribe("one", filter="signal")
    for _ in range(3):
        await caller.append("noise", events(*("n" for _ in range(5000))))
    assert (await caller.subscribe("one", filter="signal")).allocation is NOTHING
    (queue,) = (await caller.ask(ListPage, ListQueues())).items
    assert queue.behind == 0
