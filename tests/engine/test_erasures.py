"""Erasing on request: gone for everyone at once, gone from every file soon, and nobody is stuck on what is gone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, background
from penstock.errors import EventNotFound, InvalidRequest, NotAllowed, VersionConflict
from penstock.model import (
    ANONYMOUS,
    Delivery,
    Done,
    Erased,
    EraseStream,
    EraseSubject,
    ErasureInfo,
    FindPosition,
    Found,
    ListErasures,
    ListPage,
    NewEvent,
    PutBack,
    ReadEvent,
    ReadStream,
    Request,
    SetDeadLetterRule,
    SubscriptionReceipt,
    Transact,
    Transacted,
    new_event,
)
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.sqlite import SqliteReader
from tests.engine.caller import Caller, bodies, events, principal
from tests.engine.logs import MAP, Remits, until
from tests.engine.test_logs import files_with
from tests.engine.test_queues import SHORT_MS, expired

SECRET = b"top-secret"


def about(subject: str, body: str = "x", **more: Any) -> NewEvent:
    return new_event("Tested", body.encode(), json.dumps({"subject": subject, **more}))


async def erase(caller: Caller, stream: str = "s", context: str = "shop") -> int:
    erased = await caller.ask(Erased, EraseStream(context, stream))
    assert (erased.next, erased.end) == (0, True)
    return erased.events


async def forget(caller: Caller, subject: str, context: str | None = None) -> int:
    """Erase by subject, step by step."""
    events, position, end = 0, 1, False
    while not end:
        step = await caller.ask(Erased, EraseSubject(subject, context, position))
        events, position, end = events + step.events, step.next, step.end
    return events


async def ledger(caller: Caller) -> list[ErasureInfo]:
    return (await caller.ask(ListPage, ListErasures())).items


async def finished(caller: Caller) -> None:
    async with asyncio.timeout(30):
        while any(info.finished is None for info in await ledger(caller)):  # noqa: ASYNC110 - it rings no bell
            await asyncio.sleep(0.01)


# --- who sees what --------------------------------------------------------------------------------------------


async def test_an_erased_stream_is_gone_at_once_for_everyone_and_goes_on(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.append("t", events("c"))
    assert await erase(caller) == 2
    assert await caller.stream("s") == []
    assert await caller.stream("s", backward=True, from_sequence=0) == []
    assert await caller.everything() == ["c"]
    assert await caller.everything(position=2) == ["c"]
    with pytest.raises(EventNotFound):
        await caller.engine.execute(ANONYMOUS, ReadEvent("shop", "s", 2))
    with pytest.raises(VersionConflict):
        await caller.append("s", events("d"), expected=1)
    assert (await caller.append("s", events("d"), expected=3)).sequence == 3
    assert await caller.stream("s") == ["d"]
    found = await caller.ask(Found, FindPosition("shop", "", 0))
    assert await caller.everything(position=found.position) == ["c", "d"]


async def test_what_has_nothing_to_erase_is_fine(caller: Caller) -> None:
    await caller.append("s", events("a"))
    assert [await erase(caller), await erase(caller), await erase(caller, "none"), await erase(caller, "s", "no")] == [
        1,
        *(0, 0, 0),
    ]
    assert await forget(caller, "nobody") == 0
    assert len(await ledger(caller)) == 1


async def test_events_that_name_a_subject_are_erased_in_one_context_or_all(caller: Caller) -> None:
    spelled = new_event("Tested", b"spelled", '{"\\u0073ubject": "\\u0061nn"}')
    foreign = new_event("Tested", b"foreign", '{"ce-subject": "ann"}')
    kept = [about("anna", "1"), about("Ann", "2"), new_event("Tested", b"3", "ann"), new_event("Tested", b"4")]
    await caller.append("s", [about("ann"), *kept[:2], spelled, foreign, *kept[2:]])
    await caller.append("s", [about("ann", "bank")], context="bank")
    assert await forget(caller, "ann", "shop") == 3
    assert await caller.stream("s") == ["1", "2", "3", "4"]
    assert await caller.stream("s", "bank") == ["bank"]
    assert await forget(caller, "ann") == 1
    assert await caller.stream("s", "bank") == []
    page = await caller.ask(Erased, EraseSubject("ann"))
    assert page == Erased(0, 9, True)


async def test_more_than_one_step_finds_is_found_by_the_next(caller: Caller) -> None:
    both = [about("ann"), about("ben")]
    await caller.append("s", both * 4500)
    first = await caller.ask(Erased, EraseSubject("ann"))
    assert (first.events, first.end) == (4096, False)
    second = await caller.ask(Erased, EraseSubject("ann", None, first.next))
    assert (second.events, second.end) == (404, True)
    assert await forget(caller, "ann") == 0
    assert len(await caller.everything(limit=4096)) == 4096


@pytest.mark.parametrize(
    "request_",
    [
        EraseStream("", "s"),
        EraseStream("shop", ""),
        EraseStream("shop", "s\0"),
        EraseStream("remits", "log"),
        EraseSubject(""),
        EraseSubject("x" * 1025),
        EraseSubject("ü" * 513),
        EraseSubject("\ud800"),
        EraseSubject("ann", ""),
        EraseSubject("ann", None, 0),
        ListErasures(0, 0),
    ],
)
async def test_what_cannot_be_is_refused(caller: Caller, request_: Request) -> None:
    with pytest.raises(InvalidRequest):
        await caller.engine.execute(ANONYMOUS, request_)


async def test_erasing_needs_the_right_to_administer(engine: Engine) -> None:
    somebody = principal("somebody", "read,append,consume")
    for request in (EraseStream("shop", "s"), EraseSubject("ann")):
        with pytest.raises(NotAllowed):
            await engine.execute(somebody, request)
    await engine.execute(somebody, ListErasures())


# --- the files ------------------------------------------------------------------------------------------------


async def test_what_was_erased_leaves_every_file(tmp_path: Path, engine: Engine, caller: Caller) -> None:
    remits = Remits(engine)
    await remits.iterator("all", MAP, "return msg.body", log="shop/s", indexed=True)
    await remits.iterator("again", MAP, log="all", indexed=True)
    for number in range(300):
        await caller.append("s", events(*(f"top-secret {number} {each}" for each in range(5))))
        await caller.append("t", [about("top-secret"), about("ann", "kept")])
    assert len(await remits.everything("again")) == 1500
    assert files_with(tmp_path, SECRET)
    assert await erase(caller) == 1500
    assert await forget(caller, "top-secret") == 300
    await finished(caller)
    assert files_with(tmp_path, SECRET) == []
    assert await remits.everything("again") == [None] * 1500
    assert (await caller.everything(limit=4096)).count("kept") == 300
    await engine.stop()
    assert files_with(tmp_path, SECRET) == []
    reader = SqliteReader(tmp_path / "store")
    assert list(reader.verify(lambda _done, _total: None)) == []
    reader.close()


async def test_the_ledger_says_what_was_erased_and_when_it_is_finished(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.append("t", [about("ann"), about("ben"), about("ann")])
    await erase(caller)
    await forget(caller, "ann")
    await finished(caller)
    first, second = await ledger(caller)
    assert (first.context, first.stream, first.events, first.damaged) == ("shop", "s", 2, 0)
    assert (second.context, second.stream, second.events, second.damaged) == (None, None, 2, 0)
    assert first.finished is not None
    assert first.requested <= first.finished
    page = await caller.ask(ListPage, ListErasures(0, 1))
    assert page == ListPage([first], False)
    assert await caller.ask(ListPage, ListErasures(first.id, 1)) == ListPage([second], True)


async def test_erasing_on_request_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_url(tmp_path / "store")
    with monkeypatch.context() as slow:
        slow.setattr(background, "ERASE_RECORDS_MAX", 1)
        slow.setattr(background, "ERASE_PAUSE_S", 3600)
        async with Engine(url, Settings(workers=1)) as engine:
            for _ in range(20):
                await Caller(engine).append("s", events("top-secret"))
            await erase(Caller(engine))
    assert files_with(tmp_path, SECRET)
    async with Engine(url, Settings(workers=1)) as engine:
        await finished(Caller(engine))
        assert files_with(tmp_path, SECRET) == []


def taken(directory: Path) -> int:
    """The bytes of all files of the store."""
    return sum(path.stat().st_size for path in (directory / "store").iterdir())


class TestSpace:
    @pytest.fixture
    def settings(self) -> Settings:
        # A file is cut off when its log is brought into it, which soon happens to a small log.
        return Settings(workers=1, wal_bytes_max=64 * 1024)

    async def test_the_space_of_what_was_erased_is_given_back(self, tmp_path: Path, caller: Caller) -> None:
        for _ in range(48):
            await caller.append("s", events("x" * (1 << 20)))
        assert taken(tmp_path) > 40 << 20
        await erase(caller)
        await finished(caller)
        async with asyncio.timeout(30):
            while taken(tmp_path) > 20 << 20:
                await caller.append("t", events("y" * 10_000))
        assert await caller.stream("s") == []
        assert set(await caller.stream("t")) == {"y" * 10_000}


# --- subscriptions --------------------------------------------------------------------------------------------


async def test_a_batch_whose_end_was_erased_can_be_progressed_by_either_end(caller: Caller) -> None:
    for later in (False, True):
        context = f"shop-{later}"
        subscription = await caller.register(context=context)
        new = [about("a", "a"), about("b", "b"), about("c", "c"), about("d", "d")]
        await caller.append(
            "s", [each._replace(stamp=stamp) for each, stamp in zip(new, (1, 2, 3, 4), strict=True)], -1, context
        )
        fetched = await caller.fetch(subscription, 3)
        assert bodies(fetched) == ["a", "b", "c"]
        assert await forget(caller, "c", context) == 1
        again = await caller.fetch(subscription, 3)
        assert bodies(again) == ["a", "b"]
        await caller.progress(subscription, (again if later else fetched).events[-1].ticks)
        assert await caller.fetched(subscription) == ["d"]


async def test_a_transaction_may_progress_past_what_was_erased(caller: Caller) -> None:
    subscription = await caller.register()
    await caller.append("s", events("a", ticks=[1]))
    await caller.append("s", [about("ann")._replace(stamp=2)])
    await caller.fetch(subscription)
    await forget(caller, "ann")
    again = await caller.fetch(subscription)
    receipt = SubscriptionReceipt(subscription, again.events[-1].ticks)
    assert await caller.ask(Transacted, Transact((), (), (receipt,))) == Transacted(())
    assert await caller.fetched(subscription) == []


async def test_a_batch_of_which_all_was_erased_is_passed_over(caller: Caller) -> None:
    subscription = await caller.register()
    await caller.append("s", events("a", "b"))
    await caller.append("t", events("c"))
    assert bodies(await caller.fetch(subscription, 2)) == ["a", "b"]
    await erase(caller)
    assert await caller.fetched(subscription) == ["c"]


async def test_a_poll_that_waits_is_not_stuck_on_what_is_erased(caller: Caller) -> None:
    subscription = await caller.register()
    await caller.append("s", events("a"))
    await erase(caller)
    fetching = asyncio.ensure_future(caller.fetch(subscription, wait_ms=20_000))
    taking = asyncio.ensure_future(caller.subscribe("one", wait_ms=20_000))
    reading = asyncio.ensure_future(caller.everything(wait_ms=20_000))
    await until(lambda: caller.engine.metrics.waiting_polls == 3)
    await caller.append("s", events("b"))
    assert (bodies(await fetching), bodies(await taking), await reading) == (["b"], ["b"], ["b"])


# --- queues ---------------------------------------------------------------------------------------------------


async def test_an_allocation_of_which_all_was_erased_is_passed_over_by_its_holder(caller: Caller) -> None:
    await caller.append("s", events("a"))
    await caller.append("t", events("b"))
    assert bodies(await caller.subscribe("one")) == ["a"]
    await erase(caller)
    assert bodies(await caller.subscribe("one")) == ["b"]


async def test_one_that_expired_is_passed_over_by_everyone_else(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.append("t", events("c"))
    await caller.subscribe("one", 1, SHORT_MS)
    await caller.subscribe("two", 1, SHORT_MS)
    await expired()
    await erase(caller)
    assert bodies(await caller.subscribe("three")) == ["c"]
    nothing = await caller.subscribe("four")
    assert (nothing.allocation, nothing.events) == (None, [])


async def test_what_is_left_of_an_allocation_is_delivered_and_acknowledged(caller: Caller) -> None:
    await caller.append("s", [about("a", "a"), about("b", "b"), about("c", "c"), about("d", "d")])
    held = await caller.subscribe("one", 3)
    await forget(caller, "c")
    again = await caller.subscribe("one", 3)
    assert (bodies(again), again.allocation) == (["a", "b"], held.allocation)
    assert bodies(await caller.acknowledge(held, 3)) == ["d"]


async def test_whoever_acknowledges_what_was_erased_gets_the_next(caller: Caller) -> None:
    await caller.append("s", events("a"))
    await caller.append("t", events("b"))
    held = await caller.subscribe("one")
    await erase(caller)
    following = await caller.acknowledge(held)
    assert bodies(following) == ["b"]
    assert (await caller.acknowledge(following)).allocation is None


async def test_a_dead_letter_that_was_erased_does_not_come_back(caller: Caller) -> None:
    await caller.append("s", events("a"))
    dead = await caller.subscribe("one", 1, SHORT_MS)
    assert dead.allocation is not None
    await caller.ask(Done, SetDeadLetterRule("shop", "q", 1))
    await expired()
    await erase(caller)
    await caller.append("t", events("b"))
    await caller.ask(Done, PutBack("shop", "q", dead.allocation.first))
    given = await caller.subscribe("two")
    assert bodies(given) == ["b"]
    assert isinstance(given, Delivery)


async def test_appends_race_with_erasing_and_none_is_lost(engine: Engine, caller: Caller) -> None:
    async def append() -> None:
        for number in range(200):
            await caller.append("s", [about("ann", f"{number}")])

    appending = asyncio.ensure_future(append())
    erased = 0
    while not appending.done():
        erased += await forget(caller, "ann")
    await appending
    page: Any = await engine.execute(ANONYMOUS, ReadStream("shop", "s"))
    left = [int(event.body) for event in page.events]
    assert erased + len(left) == 200
    assert left == list(range(200 - len(left), 200))
