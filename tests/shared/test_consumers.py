"""Queues and subscriptions whose consumers are on two servers."""

import asyncio

import pytest

from penstock.errors import QueueNotFound, SubscriptionMoved
from penstock.model import (
    ANY,
    Append,
    DeleteQueue,
    Delivery,
    Done,
    FetchedBatch,
    PauseQueue,
    ReleaseQueue,
    Replayed,
    ReplayQueue,
    ResetQueue,
    Run,
    SetSubscription,
    SettleQueue,
    SubscribeQueue,
    SubscriptionReceipt,
    Transact,
    Transacted,
)
from tests.engine.caller import Caller, bodies, events
from tests.engine.logs import until

Callers = tuple[Caller, Caller]
WAIT_MS = 30_000
DAY = 864_000_000_000


def last(batch: FetchedBatch) -> int:
    return batch.events[-1].ticks


# --- queues ---------------------------------------------------------------------------------------------------


async def drain(caller: Caller, subscriber: str, taken: list[str]) -> None:
    given = await caller.subscribe(subscriber, 3)
    while given.allocation is not None:
        taken += bodies(given)
        given = await caller.acknowledge(given, 3)


async def test_consumers_on_both_servers_get_every_event_once(callers: Callers) -> None:
    one, two = callers
    sent = [str(number) for number in range(120)]
    for number in sent:
        await one.append("s", events(number))
    taken: list[str] = []
    await asyncio.gather(*(drain(caller, f"c{n}", taken) for n, caller in enumerate((one, two, one, two))))
    assert sorted(taken) == sorted(sent)


async def test_an_allocation_is_acknowledged_on_the_other_server(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a", "b"))
    given = await one.subscribe("me", 1)
    assert bodies(await two.subscribe("me", 1)) == ["a"]
    assert bodies(await two.acknowledge(given)) == ["b"]
    assert bodies(await one.subscribe("me", 1)) == ["b"]


async def test_what_is_given_up_on_one_server_wakes_a_consumer_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a"))
    given = await one.subscribe("first", 1)
    assert given.allocation is not None
    waiting = asyncio.create_task(two.subscribe("second", 1, wait_ms=WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    await one.ask(Done, ReleaseQueue("shop", "q", "first", given.allocation.first, given.allocation.last))
    assert bodies(await waiting) == ["a"]


async def test_a_reset_on_one_server_wakes_a_consumer_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a"))
    await one.acknowledge(await one.subscribe("first"), ttl_ms=-1)
    waiting = asyncio.create_task(two.subscribe("second", wait_ms=WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    await one.ask(Done, ResetQueue("shop", "q", 0))
    assert bodies(await waiting) == ["a"]


async def test_what_is_replayed_on_one_server_wakes_a_consumer_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a"))
    await one.acknowledge(await one.subscribe("first"), ttl_ms=-1)
    waiting = asyncio.create_task(two.subscribe("second", wait_ms=WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    assert await one.ask(Replayed, ReplayQueue("shop", "q", 1, 1)) == Replayed(1, 0, 1)
    assert bodies(await waiting) == ["a"]


async def test_an_allocation_of_a_consumer_of_one_server_expires_for_one_of_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a"))
    await one.subscribe("first", ttl_ms=200)
    assert bodies(await two.subscribe("second", wait_ms=WAIT_MS)) == ["a"]


# --- subscriptions --------------------------------------------------------------------------------------------


async def ordered(caller: Caller, subscriber: str, wait_ms: int = 0) -> Delivery:
    request = SubscribeQueue("shop", "q", subscriber, "", 0, 9, 60_000, wait_ms, ordered="stream", several=True)
    return await caller.ask(Delivery, request)


async def test_a_key_that_is_settled_or_a_queue_that_is_resumed_wakes_a_consumer_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a"))
    given = await ordered(one, "me")
    await two.append("s", events("b"))
    poll = asyncio.create_task(ordered(two, "you", WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    await one.ask(Done, SettleQueue("shop", "q", "me", tuple(Run(run.first, run.last) for run in given.runs)))
    given = await poll
    assert bodies(given) == ["b"]
    await one.ask(Done, PauseQueue("shop", "q"))
    await two.append("t", events("c"))
    poll = asyncio.create_task(ordered(two, "she", WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    await one.ask(Done, PauseQueue("shop", "q", False))
    assert bodies(await poll) == ["c"]
    poll = asyncio.create_task(ordered(two, "he", WAIT_MS))
    await until(lambda: two.engine.metrics.waiting_polls == 1)
    await one.ask(Done, DeleteQueue("shop", "q"))
    with pytest.raises(QueueNotFound):
        await poll


async def test_a_batch_of_one_server_is_progressed_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events(*"abcdef", ticks=range(DAY, DAY + 6)))
    number = await one.register()
    batch = await one.fetch(number, 2)
    await two.progress(number, last(batch))
    batch = await one.fetch(number, 3)
    assert bodies(batch) == ["c", "d", "e"]
    await two.progress(number, last(batch))
    assert await two.fetched(number) == ["f"]
    assert await one.fetched(number) == ["f"]


async def test_large_events_of_one_time_are_one_batch_that_a_repeated_progress_passes_once(callers: Callers) -> None:
    one, two = callers
    for body in "abcdefghi":
        await one.append("s", events(body * 3_000_000, ticks=[DAY]))
    await one.append("s", events("next", ticks=[DAY + 1]))
    number = await one.register()
    batch = await one.fetch(number)
    assert [body[0] for body in bodies(batch)] == list("abcdefghi")
    for caller in (one, one, two):
        await caller.progress(number, last(batch))
    assert await one.fetched(number) == ["next"]
    for caller in (one, two):
        await caller.progress(number, last(batch))
    assert await one.fetched(number) == ["next"]


async def test_a_progress_that_is_repeated_on_the_other_server_moves_nothing(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events(*"abcd", ticks=[DAY, DAY + 1, DAY, DAY + 1]))
    number = await one.register()
    batch = await one.fetch(number, 2)
    await one.progress(number, last(batch))
    await two.progress(number, last(batch))
    # The next batch does not end on the time of the last one.
    assert await two.fetched(number) == ["c"]


async def test_a_batch_with_a_time_that_comes_again_is_never_passed_by_too_far(callers: Callers) -> None:
    one, two = callers
    for body, ticks in (("a", DAY), ("b", DAY + 1), ("c", DAY)):
        await one.append("s", events(body, ticks=[ticks]))
    number = await one.register()
    batch = await one.fetch(number, 3)
    assert bodies(batch) == ["a", "b", "c"]
    # It ends on a time that its first event has too: that much is passed, and the rest comes again.
    await two.progress(number, last(batch))
    assert await two.fetched(number) == ["b"]
    await two.progress(number, DAY + 1)
    assert await one.fetched(number) == ["c"]


async def test_what_comes_later_with_the_same_time_is_not_passed_unseen(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a", "b", ticks=[DAY, DAY]))
    number = await one.register()
    batch = await one.fetch(number)
    await two.append("s", events("late", ticks=[DAY]))
    await two.progress(number, last(batch))
    assert await two.fetched(number) == ["late"]


async def test_a_time_that_no_batch_ends_on_moves_nothing(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("a", ticks=[DAY]))
    number = await one.register()
    await two.progress(number, DAY + 5)
    assert await two.fetched(number) == ["a"]


async def test_a_batch_of_one_server_is_progressed_in_a_transaction_on_the_other(callers: Callers) -> None:
    one, two = callers
    await one.append("in", events(*"abc", ticks=range(DAY, DAY + 3)))
    number = await one.register(filter="in")
    batch = await one.fetch(number, 2)
    made = Append("shop", "out", tuple(events("ab")), ANY)
    await two.ask(Transacted, Transact((made,), progress=(SubscriptionReceipt(number, last(batch)),)))
    assert await one.fetched(number) == ["c"]


async def test_a_transaction_refuses_a_batch_of_the_other_server_whose_end_is_not_certain(callers: Callers) -> None:
    one, two = callers
    await one.append("in", events("a", ticks=[DAY]))
    await one.append("in", events("b", ticks=[DAY]))
    number = await one.register(filter="in")
    batch = await one.fetch(number)
    made = Append("shop", "out", tuple(events("ab")), ANY)
    request = Transact((made,), progress=(SubscriptionReceipt(number, last(batch)),))
    with pytest.raises(SubscriptionMoved):
        await two.ask(Transacted, request)
    assert await two.stream("out") == []
    await two.fetch(number)
    await two.ask(Transacted, request)
    assert await one.fetched(number) == []


async def test_a_subscription_that_was_set_on_one_server_gives_the_other_no_old_batch(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events(*"abc", ticks=range(DAY, DAY + 3)))
    number = await one.register()
    assert await one.fetched(number, 1) == ["a"]
    await two.ask(Done, SetSubscription("me", "shop", "", DAY + 2))
    assert await one.fetched(number, 1) == ["c"]
