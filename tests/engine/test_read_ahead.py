"""Batches that are prepared for a queue's consumers: each event once, and nothing of before a change."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock import model
from penstock.engine import Engine, read_ahead
from penstock.engine.context import EngineContext
from penstock.engine.read_ahead import BATCHES_AHEAD, WINDOWS_MAX
from penstock.errors import QueueFilterMismatch, ReaderBusy
from penstock.model import Delivery, Done, EraseStream, Rest, SettleQueue, SubscribeQueue
from tests.engine.caller import Caller, bodies, events

ASKED = SubscribeQueue("shop", "q", "one", "", 0, 10, 3_600_000, several=True)


@pytest.fixture
def context(engine: Engine) -> EngineContext:
    return engine._context


async def take(caller: Caller, subscriber: str = "one", **more: Any) -> Delivery:
    return await caller.ask(Delivery, replace(ASKED, subscriber=subscriber, **more))


async def settle(caller: Caller, given: Delivery, rest: Rest = Rest.DONE) -> None:
    runs = tuple(model.Run(one.first, one.last) for one in given.runs)
    await caller.ask(Done, SettleQueue("shop", given.queue, given.subscriber, runs, rest))


async def fill(caller: Caller, count: int, stream: str = "s") -> list[str]:
    texts = [str(number) for number in range(count)]
    await caller.append(stream, events(*texts))
    return texts


async def prepared(caller: Caller, context: EngineContext, count: int = 1000) -> list[str]:
    """A queue of which the first batch was taken and acknowledged, and others are ready; what is left."""
    texts = await fill(caller, count)
    await settle(caller, await take(caller))
    await loaded(context)
    return texts[10:]


async def loaded(context: EngineContext) -> None:
    await asyncio.gather(*(one.loading for one in context.read_ahead._windows.values() if one.loading))
    assert context.read_ahead.known("shop", "q") is not None


async def drain(caller: Caller, subscriber: str, found: list[str]) -> None:
    while bodies(given := await take(caller, subscriber)):
        found += bodies(given)
        await settle(caller, given)


async def rest(caller: Caller) -> list[str]:
    found: list[str] = []
    await drain(caller, "one", found)
    return found


async def test_consumers_get_each_event_once_and_each_of_them_in_order(
    caller: Caller, context: EngineContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    run = context.pool.run

    async def counted(job: Any, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(job, *arguments)

    texts = await fill(caller, 3000)
    monkeypatch.setattr(context.pool, "run", counted)
    found: list[list[str]] = [[] for _ in range(4)]
    await asyncio.gather(*(drain(caller, f"consumer-{number}", one) for number, one in enumerate(found)))
    assert sorted(text for one in found for text in one) == sorted(texts)
    assert all(one == sorted(one, key=int) for one in found)
    # 300 batches without 300 jobs: the workers do not serve each of them.
    assert asked < 150


async def ordered(caller: Caller, context: EngineContext, streams: int = 300, rounds: int = 3) -> None:
    """An ordered queue of events of many streams, of which the first batch was taken and acknowledged."""
    for number in range(rounds):
        for stream in range(streams):
            await caller.append(f"s{stream}", events(f"{stream}-{number}"))
    await settle(caller, await take(caller, ordered="stream"))
    await loaded(context)


async def test_of_an_ordered_queue_keys_come_in_order_and_few_batches_cost_a_job(
    caller: Caller, context: EngineContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    run = context.pool.run

    async def counted(job: Any, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(job, *arguments)

    await ordered(caller, context)
    monkeypatch.setattr(context.pool, "run", counted)
    found: list[str] = []
    await asyncio.gather(*(drain(caller, f"consumer-{number}", found) for number in range(4)))
    of_streams: dict[str, list[str]] = {}
    for text in found:
        of_streams.setdefault(text.partition("-")[0], []).append(text.partition("-")[2])
    firsts = {str(number) for number in range(10)}
    assert of_streams == {str(one): [*"12"] if str(one) in firsts else [*"012"] for one in range(300)}
    # 89 batches.
    assert asked < 45


async def test_what_is_prepared_of_a_key_waits_for_the_consumer_of_the_key(
    caller: Caller, context: EngineContext
) -> None:
    await ordered(caller, context, streams=25)
    held = [await take(caller, "one"), await take(caller, "two")]
    # The third batch has five free keys, and five that the first consumer has.
    assert [bodies(one)[0] for one in held] == ["10-0", "20-0"]
    third = await take(caller, "three")
    busy = {text.partition("-")[0] for one in held for text in bodies(one)}
    assert bodies(third)
    assert not busy & {text.partition("-")[0] for text in bodies(third)}
    assert not context.read_ahead._windows
    for one in (*held, third):
        await settle(caller, one)
    assert sorted(await rest(caller)) == sorted(
        {f"{stream}-{number}" for stream in range(25) for number in range(3)}
        - {f"{stream}-0" for stream in range(10)}
        - {text for one in (*held, third) for text in bodies(one)}
    )


async def test_what_comes_again_in_an_ordered_queue_comes_before_what_is_prepared(
    caller: Caller, context: EngineContext
) -> None:
    await ordered(caller, context)
    given = await take(caller)
    await settle(caller, given, Rest.BACK)
    assert bodies(await take(caller, "two")) == bodies(given)
    # Nothing is prepared while keys are in the way.
    assert not context.read_ahead._windows
    await take(caller, "three")
    assert not context.read_ahead._windows


async def test_what_is_given_back_comes_before_what_is_prepared(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    given = await take(caller)
    assert bodies(given) == left[:10]
    await settle(caller, given, Rest.BACK)
    assert bodies(await take(caller, "two")) == left[:10]
    assert bodies(await take(caller, "three")) == left[10:20]


async def test_a_consumer_that_holds_a_batch_gets_it_again(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    assert bodies(await take(caller)) == bodies(await take(caller)) == left[:10]
    assert await rest(caller) == left


async def test_erased_events_are_not_handed_out_although_they_were_prepared(
    caller: Caller, context: EngineContext
) -> None:
    await prepared(caller, context)
    await caller.ask(model.Erased, EraseStream("shop", "s", None))
    await caller.append("t", events("new"))
    assert await rest(caller) == ["new"]


async def test_batches_that_are_read_while_events_are_erased_are_not_handed_out(
    caller: Caller, context: EngineContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = await fill(caller, 1000)
    held, go_on = asyncio.Event(), asyncio.Event()
    run = context.read_ahead._run

    async def slow(*asked: Any) -> Any:
        found = await run(*asked)
        held.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(context.read_ahead, "_run", slow)
    first = await take(caller)
    assert bodies(first) == texts[:10]
    await held.wait()
    await caller.ask(model.Erased, EraseStream("shop", "s", 500))
    go_on.set()
    await settle(caller, first)
    assert await rest(caller) == texts[500:]


@pytest.mark.parametrize("several", [True, False])
async def test_a_queue_that_is_paused_hands_out_nothing_that_was_prepared(
    caller: Caller, context: EngineContext, several: bool
) -> None:
    left = await prepared(caller, context)
    await caller.ask(Done, model.PauseQueue("shop", "q"))
    assert bodies(await take(caller, several=several)) == []
    await caller.ask(Done, model.PauseQueue("shop", "q", paused=False))
    assert await rest(caller) == left


async def test_a_queue_that_is_moved_goes_on_there(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    await caller.ask(Done, model.ResetQueue("shop", "q", 0, 501))
    assert await rest(caller) == left[490:]


async def test_a_preview_counts_from_where_the_queue_is(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    for _ in range(3):
        await settle(caller, await take(caller))
    preview = await caller.ask(model.QueuePreview, model.PreviewQueue("shop", "q"))
    assert (preview.position, preview.behind) == (41, len(left) - 30)


async def test_a_queue_that_is_deleted_and_made_again_begins_anew(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    await caller.ask(Done, model.DeleteQueue("shop", "q"))
    assert bodies(await take(caller))[-1] == "9"
    await settle(caller, await take(caller))
    assert await rest(caller) == left


async def test_a_queue_with_another_filter_hands_out_what_passes_it(caller: Caller, context: EngineContext) -> None:
    await prepared(caller, context)
    texts = await fill(caller, 100, "t")
    await caller.ask(Done, model.SetQueueFilter("shop", "q", "t"))
    assert bodies(await take(caller, filter="t")) == texts[:10]


async def test_consumers_that_ask_otherwise_get_what_they_ask_for(caller: Caller, context: EngineContext) -> None:
    left = await prepared(caller, context)
    assert bodies(await take(caller, "two", count=3)) == left[:3]
    assert bodies(await caller.subscribe("three", 2)) == left[3:5]
    assert bodies(await take(caller, "four")) == left[5:15]
    with pytest.raises(QueueFilterMismatch):
        await take(caller, "five", filter="other")


async def test_consumers_of_another_size_get_prepared_batches_when_the_others_have_gone(
    caller: Caller, context: EngineContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await prepared(caller, context)
    assert bodies(await take(caller, "two", count=3)) == left[:3]
    assert [one.count for one in context.read_ahead._windows.values()] == [10]
    monkeypatch.setattr(read_ahead, "REST_S", 0.0)
    assert bodies(await take(caller, "three", count=3)) == left[3:6]
    assert [one.count for one in context.read_ahead._windows.values()] == [3]
    assert bodies(await take(caller, "four", count=3)) == left[6:9]


async def test_a_consumer_of_the_original_is_served_beside_busy_ones(caller: Caller, context: EngineContext) -> None:
    texts = await fill(caller, 2000)
    found: list[list[str]] = [[], [], []]

    async def original() -> None:
        given = await caller.subscribe("original", 10)
        while bodies(given):
            found[0].extend(bodies(given))
            given = await caller.acknowledge(given, 10)

    await asyncio.gather(original(), drain(caller, "a", found[1]), drain(caller, "b", found[2]))
    assert sorted(text for one in found for text in one) == sorted(texts)
    assert found[0]


async def test_scheduled_events_are_not_prepared(caller: Caller, context: EngineContext) -> None:
    later = model.event("T", b"later", due=model.times.datetime_of(model.now_ticks() + 10**10))
    texts = await fill(caller, 400)
    await caller.append("s", [later])
    await fill(caller, 400, "t")
    assert await rest(caller) == [*texts, *texts]


async def test_queues_with_prepared_batches_are_bounded(caller: Caller, context: EngineContext) -> None:
    await fill(caller, 400)
    for number in range(WINDOWS_MAX + 3):
        assert len(bodies(await take(caller, queue=f"q{number}"))) == 10
    assert len(context.read_ahead._windows) == WINDOWS_MAX


async def test_a_job_prepares_so_many_batches_and_the_next_one_begins_in_time(
    caller: Caller, context: EngineContext
) -> None:
    left = await prepared(caller, context)
    (window,) = context.read_ahead._windows.values()
    assert len(window.batches) == BATCHES_AHEAD
    found: list[str] = []
    for _ in range(BATCHES_AHEAD // 2 + 1):
        given = await take(caller)
        found += bodies(given)
        await settle(caller, given)
    await loaded(context)
    assert len(window.batches) == 2 * BATCHES_AHEAD - BATCHES_AHEAD // 2 - 1
    assert found == left[: len(found)]


async def test_a_job_that_fails_leaves_the_consumer_to_ask_itself(
    caller: Caller, context: EngineContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: Any) -> Sequence[Any]:
        raise ReaderBusy(1)

    monkeypatch.setattr(context.read_ahead, "_run", busy)
    texts = await fill(caller, 100)
    assert await rest(caller) == texts
    assert not context.read_ahead._windows
