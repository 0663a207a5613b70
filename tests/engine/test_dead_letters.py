"""A batch that its consumers keep losing is set aside, listed, and can be put back."""

import asyncio

import pytest

from penstock.engine import Engine
from penstock.errors import DeadLetterNotFound, InvalidRequest, QueueNotFound
from penstock.model import Done, ListDeadLetters, ListPage, ListQueues, PutBack, SetDeadLetterRule
from tests.engine.caller import Caller, bodies, events
from tests.engine.test_queues import SHORT_MS, expired
from tests.engine.test_reads import waiting


async def lose(caller: Caller, times: int) -> None:
    """Let consumers take the next batch and vanish."""
    for number in range(times):
        assert bodies(await caller.subscribe(f"lost-{number}", 1, SHORT_MS)) == ["poison"]
        await expired()


async def dead(caller: Caller) -> list[tuple[int, int]]:
    page = await caller.ask(ListPage, ListDeadLetters("shop", "q"))
    assert page.end
    return [(letter.first, letter.deliveries) for letter in page.items]


async def prepared(caller: Caller, dead_after: int | None = 2) -> None:
    await caller.append("s", events("poison", "good"))
    await caller.subscribe("one", 1, -1)
    await caller.ask(Done, SetDeadLetterRule("shop", "q", dead_after))


async def test_after_so_many_lost_consumers_a_batch_is_set_aside_and_the_rest_goes_on(caller: Caller) -> None:
    await prepared(caller)
    await lose(caller, 2)
    assert await dead(caller) == [(1, 2)]
    assert bodies(await caller.subscribe("three")) == ["good"]
    (queue,) = (await caller.ask(ListPage, ListQueues())).items
    assert (queue.dead, queue.dead_after) == (1, 2)


async def test_what_was_put_back_is_delivered_again_and_counted_anew(caller: Caller) -> None:
    await prepared(caller)
    await lose(caller, 2)
    await caller.ask(Done, PutBack("shop", "q", 1))
    assert await dead(caller) == []
    await lose(caller, 2)
    assert await dead(caller) == [(1, 2)]


async def test_a_late_acknowledgement_still_ends_a_dead_letter(caller: Caller) -> None:
    await prepared(caller, 1)
    late = await caller.subscribe("slow", 1, SHORT_MS)
    await expired()
    assert await dead(caller) == [(1, 1)]
    await caller.acknowledge(late, 1, -1)
    assert await dead(caller) == []


async def test_without_a_rule_a_batch_is_delivered_for_ever(caller: Caller) -> None:
    await prepared(caller, None)
    await lose(caller, 5)
    assert await dead(caller) == []


async def test_a_consumer_that_waits_gets_what_is_put_back_and_does_not_spin_until_then(
    engine: Engine, caller: Caller
) -> None:
    await prepared(caller, 1)
    await lose(caller, 1)
    done = await caller.acknowledge(await caller.subscribe("one"))
    assert done.allocation is None
    poll = asyncio.ensure_future(caller.subscribe("two", wait_ms=30_000))
    await waiting(engine, 1)
    before = engine.metrics.readers.jobs
    await asyncio.sleep(0.1)
    assert engine.metrics.readers.jobs - before <= 3
    await caller.ask(Done, PutBack(None, "q", 1))
    assert bodies(await poll) == ["poison"]


async def test_what_cannot_be_is_refused(caller: Caller) -> None:
    await prepared(caller)
    with pytest.raises(DeadLetterNotFound):
        await caller.ask(Done, PutBack("shop", "q", 1))
    with pytest.raises(InvalidRequest):
        await caller.ask(Done, SetDeadLetterRule("shop", "q", 0))
    with pytest.raises(QueueNotFound):
        await caller.ask(Done, SetDeadLetterRule("shop", "none", 3))
