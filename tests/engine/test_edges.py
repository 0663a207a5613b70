"""Edges where a request could be doubled, forgotten, answered twice or never."""

import asyncio
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from penstock.engine import Engine
from penstock.errors import InvalidRequest, LimitExceeded, NotAllowed, PenstockError, ReaderTimeout
from penstock.model import (
    ANONYMOUS,
    ANY,
    NEW,
    Append,
    Appended,
    EventPage,
    GetStats,
    ProducerMark,
    QueueReceipt,
    ReadAll,
    Reply,
    SubscribeQueue,
    SubscriptionReceipt,
    Transact,
    Transacted,
)
from penstock.settings import Settings
from tests.engine.caller import Caller, bodies, events, principal
from tests.engine.logs import Remits
from tests.engine.test_reads import waiting


async def test_what_fails_after_a_commit_does_not_write_it_again(
    engine: Engine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = engine._store

    def broken(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store._checkpointer, "committed", broken)
    appended = await asyncio.gather(*(caller.append("s", events(str(n))) for n in range(3)))
    assert sorted(result.sequence for result in appended) == [1, 2, 3]
    assert len(await caller.stream("s")) == 3


async def test_a_mark_used_for_another_transaction_is_refused_not_left_unanswered(caller: Caller) -> None:
    await caller.append("in", events("work"))
    given = await caller.subscribe("worker")
    assert given.allocation is not None
    receipt = QueueReceipt("shop", "q", "worker", given.allocation.first, given.allocation.last)
    await caller.ask(Transacted, Transact((), (receipt,), mark=ProducerMark("p", 1)))
    with pytest.raises(InvalidRequest, match="another transaction"):
        await caller.append("out", events("x"), mark=ProducerMark("p", 1))


async def test_commits_that_were_there_before_still_have_their_receipts_carried_out(caller: Caller) -> None:
    await caller.append("in", events("work"))
    given = await caller.subscribe("worker", filter="in")
    assert given.allocation is not None
    output = events("result")
    await caller.append("out", output, NEW)
    receipt = QueueReceipt("shop", "q", "worker", given.allocation.first, given.allocation.last)
    done = await caller.ask(Transacted, Transact((Append("shop", "out", output, NEW),), (receipt,)))
    assert done.commits[0].repeated
    assert (await caller.subscribe("other", filter="in")).allocation is None


async def test_a_mark_inside_a_transaction_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidRequest, match="whole transaction"):
        await caller.ask(Transacted, Transact((Append("shop", "s", events("x"), ANY, ProducerMark("p", 1)),)))


async def test_a_transaction_sent_again_does_not_forget_the_next_batch(caller: Caller) -> None:
    await caller.append("in", events("a", "b", ticks=[10, 20]))
    number = await caller.register(filter="in")
    batch = await caller.fetch(number, 1)
    receipt = SubscriptionReceipt(number, batch.events[-1].ticks)
    request = Transact((Append("shop", "out", events("r"), ANY),), progress=(receipt,), mark=ProducerMark("p", 1))
    await caller.ask(Transacted, request)
    assert await caller.fetched(number, 1) == ["b"]
    await caller.ask(Transacted, request)
    await caller.progress(number, 20)
    assert await caller.fetched(number) == []


async def test_progress_beside_a_transaction_is_done_once_and_fails_nobody(caller: Caller) -> None:
    for n in range(10):
        await caller.append("in", events(str(n), ticks=[10 * (n + 1)]))
    number = await caller.register(filter="in")
    for _ in range(10):
        batch = await caller.fetch(number, 1)
        at = batch.events[-1].ticks
        both = await asyncio.gather(
            caller.progress(number, at),
            caller.ask(Transacted, Transact((), progress=(SubscriptionReceipt(number, at),))),
            return_exceptions=True,
        )
        assert all(result is None or type(result).__name__ in ("Transacted", "SubscriptionMoved") for result in both)
    assert await caller.fetched(number) == []


async def test_an_answer_that_raises_is_not_called_again(engine: Engine) -> None:
    answers: list[Reply | PenstockError] = []
    called = asyncio.Event()

    def answer(reply: Reply | PenstockError) -> None:
        answers.append(reply)
        called.set()
        raise RuntimeError("the gate could not encode it")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    engine.submit(ANONYMOUS, GetStats(), answer)
    await called.wait()
    await engine.execute(ANONYMOUS, GetStats())
    assert len(answers) == 1


async def test_receipts_need_the_right_to_consume(engine: Engine) -> None:
    writer = principal("writer", "append")
    request = Transact((Append("shop", "s", events("x"), ANY),), progress=(SubscriptionReceipt(1, 0),))
    with pytest.raises(NotAllowed, match="the right append,consume"):
        await engine.execute(writer, request)


async def test_a_pending_batch_that_was_erased_is_passed_over(caller: Caller, remits: Remits) -> None:
    await remits.create("x", "gone")
    await remits.create("y")
    number = await caller.register(context="remits")
    assert len((await caller.fetch(number)).events) == 1
    await remits.drop("x")
    await remits.add("y", "next")
    assert [event.body for event in (await caller.fetch(number)).events] == [cbor2.dumps("next")]


async def test_an_abandoned_poll_takes_nothing(engine: Engine, caller: Caller) -> None:
    request = SubscribeQueue("shop", "q", "gone", "", 0, 1, 60_000, 30_000)
    poll = asyncio.ensure_future(engine.execute(ANONYMOUS, request))
    await waiting(engine, 1)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await caller.append("s", events("a"))
    assert bodies(await caller.subscribe("there")) == ["a"]
    assert engine.metrics.waiting_polls == 0


async def test_repeats_are_not_counted_as_written(engine: Engine, caller: Caller) -> None:
    new = events("a")
    for _ in range(3):
        await caller.append("s", new, NEW)
    assert (engine.metrics.commits, engine.metrics.events) == (1, 1)


class TestManyPolls:
    """More long polls than the workers' queue has room for."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(reader_queue_max=8)

    async def test_one_commit_wakes_them_all_and_none_is_told_busy(self, engine: Engine, caller: Caller) -> None:
        async def poll() -> EventPage:
            while True:
                try:
                    return await caller.ask(EventPage, ReadAll(1, wait_ms=30_000))
                except PenstockError:
                    await asyncio.sleep(0.005)

        polls = [asyncio.ensure_future(poll()) for _ in range(40)]
        await waiting(engine, 40)
        refused = engine.metrics.readers.refused
        await caller.append("s", events("a"))
        assert [bodies(page) for page in await asyncio.gather(*polls)] == [["a"]] * 40
        assert engine.metrics.readers.refused >= refused

    async def test_a_stop_answers_them_all(self, engine: Engine, caller: Caller) -> None:
        polls = [asyncio.ensure_future(caller.ask(EventPage, ReadAll(1, wait_ms=30_000))) for _ in range(5)]
        await waiting(engine, 5)
        await engine.stop()
        assert [page.events for page in await asyncio.gather(*polls)] == [[]] * 5


class TestSmallQueue:
    """Limits that cannot be met by waiting."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(writer_queue_bytes_max=10_000, reader_wait_ms_max=50)

    async def test_what_can_never_fit_is_not_told_to_try_again(self, caller: Caller) -> None:
        with pytest.raises(LimitExceeded, match="writer_queue_bytes_max"):
            await caller.append("s", events("x" * 20_000))
        assert isinstance(await caller.append("s", events("x")), Appended)

    async def test_a_turn_that_does_not_come_is_a_time_out(
        self, engine: Engine, caller: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await caller.append("s", events("a"))
        held = asyncio.Event()
        turn: Callable[..., Any] = engine._queues._locks.turn

        async def hold() -> None:
            async with turn("q"):
                await held.wait()

        holder = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        with pytest.raises(ReaderTimeout):
            await caller.subscribe("one")
        held.set()
        await holder
        assert bodies(await caller.subscribe("one")) == ["a"]
