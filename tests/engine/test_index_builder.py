"""Indexed iterators that are built: following, restarts, workers that die, functions that hang; and long runs."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, index_builder, iterators
from penstock.engine.iterator_jobs import Built, build_index
from penstock.engine.workers import Job
from penstock.errors import (
    Closed,
    FunctionFailed,
    FunctionTimedOut,
    IteratorNotFound,
    LimitExceeded,
    PenstockError,
    ReaderTimeout,
    WorkerDied,
)
from penstock.model import ANONYMOUS, NextItems, Reply
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.contract import Transaction
from tests.engine.logs import FILTER, MAP, REDUCE, Remits, until

SUM = "return (acc or 0) + msg"
HANG = "while true do end"
STUCK = "return string.find(('a'):rep(60000), '.-.-.-.-b')"
"""Hangs inside one C function, where no Lua instruction runs."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return store_url(tmp_path / "store")


async def built(engine: Engine) -> None:
    await until(lambda: engine.metrics.lag() == (0, 0))


async def test_indices_follow_their_logs_by_themselves(engine: Engine, remits: Remits) -> None:
    await remits.create("log", *range(10))
    await remits.iterator("it", indexed=True)
    await remits.iterator("over it", log="it", indexed=True)
    await built(engine)
    await remits.add("log", *range(10, 20))
    await until(lambda: engine.metrics.lua_messages == 40)
    await built(engine)
    assert await remits.next("over it") == list(range(20))
    assert engine.metrics.lua_messages == 40, "what is kept is not run again"
    sample = engine.metrics.registry.get_sample_value
    assert sample("penstock_index_lag_iterators") == sample("penstock_index_lag_messages") == 0
    assert sample("penstock_lua_messages_total") == 40
    assert sample("penstock_lua_errors_total") == sample("penstock_lua_workers_replaced_total") == 0


async def test_a_build_goes_on_after_a_restart_where_it_was(url: str) -> None:
    async with Engine(url, Settings()) as engine:
        remits = Remits(engine)
        await remits.create("log", *range(1000))
        await remits.iterator("sum", REDUCE, SUM, indexed=True)
        await remits.iterator("plain", FILTER, "return msg > 990")
        assert await remits.next("sum", -1) == [sum(range(1000))]
    async with Engine(url, Settings()) as engine:
        remits = Remits(engine)
        assert engine.metrics.lua_messages == 0
        await remits.add("log", 1000, 1001)
        assert await remits.next("sum", 998) == list(accumulate(range(1002)))[998:]
        assert engine.metrics.lua_messages == 2
        assert await remits.next("plain") == list(range(991, 1002))
        assert await remits.iterators() == ["plain", "sum"]


async def test_a_server_that_stops_in_the_middle_of_a_build_loses_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterators, "BUILD_STEP_ITEMS_MAX", 100)
    values = range(20_000)
    async with Engine(url, Settings()) as engine:
        remits = Remits(engine)
        await remits.create()
        for start in range(0, len(values), 5000):
            await remits.add("log", *values[start : start + 5000])
        await remits.iterator("sum", REDUCE, SUM, indexed=True)
        await until(lambda: engine.metrics.lua_messages > 0)
    assert engine.metrics.lua_messages < len(values)
    async with Engine(url, Settings()) as again:
        await built(again)
        done = engine.metrics.lua_messages + again.metrics.lua_messages
        assert len(values) <= done <= len(values) + iterators.BUILD_STEP_ITEMS_MAX + 1024
        assert await Remits(again).everything("sum", 4096) == list(accumulate(values))


BUILDING = """
import asyncio, sys
from penstock.engine import Engine, iterators
from penstock.settings import Settings
from tests.engine.logs import REDUCE, Remits, until

async def main():
    iterators.BUILD_STEP_ITEMS_MAX = 100
    async with Engine(sys.argv[1], Settings()) as engine:
        remits = Remits(engine)
        for start in range(0, 20_000, 5000):
            await remits.create("log", *range(start, start + 5000))
        await remits.iterator("sum", REDUCE, sys.argv[2], indexed=True)
        await until(lambda: engine.metrics.lua_messages > 2000)
        print("building", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_server_that_is_killed_in_the_middle_of_a_build_loses_nothing(url: str) -> None:
    command = [sys.executable, "-c", BUILDING, url, SUM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        process.kill()
    async with Engine(url, Settings()) as engine:
        await built(engine)
        assert engine.metrics.lua_messages < 20_000, "what was built before is kept"
        assert await Remits(engine).everything("sum", 4096) == list(accumulate(range(20_000)))


async def test_a_killed_worker_is_replaced_and_the_build_goes_on(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = range(6000)
    await remits.create("log", *values)
    await remits.iterator("sum", REDUCE, SUM, indexed=True)
    run = engine.lua.run
    killed: list[int] = []

    def kill(job: Job, *arguments: Any) -> "asyncio.Future[Any]":
        answer = run(job, *arguments)
        if len(killed) < 2 and engine.lua.pids:
            killed.extend(engine.lua.pids)
            os.kill(engine.lua.pids[0], signal.SIGKILL)
        return answer

    monkeypatch.setattr(engine.lua, "run", kill)
    await remits.add("log", *range(6000, 6010))
    await until(lambda: len(killed) >= 2)
    await built(engine)
    assert await remits.everything("sum", 4096) == list(accumulate(range(6010)))
    assert engine.metrics.lua.replaced == 2


async def test_output_that_somebody_else_wrote_is_gone_on_from(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.lua.run
    theirs: list[Built] = []

    async def overtaken(job: Job, *arguments: Any) -> Any:
        result = await run(job, *arguments)
        if isinstance(result, Built) and result.has_moved and not theirs:
            theirs.append(result)
            await engine._context.write(Transaction((result.output,)))
        return result

    monkeypatch.setattr(engine.lua, "run", lambda *job: asyncio.ensure_future(overtaken(*job)))
    await remits.create("log", 1, 2)
    await remits.iterator("sum", REDUCE, SUM, indexed=True)
    await built(engine)
    assert len(theirs) == 1
    assert await remits.next("sum") == [1, 3]
    await remits.add("log", 3)
    assert await remits.next("sum") == [1, 3, 6]


async def test_a_worker_that_answers_for_another_iterator_changes_neither(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create("other", 10)
    await remits.iterator("kept", MAP, "return msg", log="other", indexed=True)
    await built(engine)
    (kept,) = engine._iterators._known.values()
    run = engine.lua.run
    forged: list[Built] = []

    async def forge(job: Job, *arguments: Any) -> Any:
        result = await run(job, *arguments)
        if isinstance(result, Built) and not forged:
            output = replace(result.output, iterator=kept.id, source=1, next_source=3)
            forged.append(result._replace(output=output))
            return forged[0]
        return result

    monkeypatch.setattr(engine.lua, "run", lambda *job: asyncio.ensure_future(forge(*job)))
    await remits.create("log", 1, 2)
    await remits.iterator("sum", REDUCE, SUM, indexed=True)
    assert await remits.next("sum") == [1, 3]
    assert len(forged) == 1
    assert await remits.next("kept") == [10]


async def test_whoever_waits_for_an_iterator_that_is_deleted_is_told(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create()
    await remits.iterator("it", indexed=True)
    await built(engine)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(engine.lua, "run", lambda *_: never)
    await remits.add("log", 1)
    waiting = asyncio.ensure_future(remits.next("it"))
    await until(lambda: len(engine._iterators.builder._indices["it"].demands) == 1)
    await remits.drop()
    with pytest.raises(IteratorNotFound):
        await waiting
    assert engine.metrics.lag() == (0, 0)


async def test_whoever_waits_when_the_server_stops_is_told(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create()
    await remits.iterator("it", indexed=True)
    await built(engine)
    monkeypatch.setattr(engine.lua, "run", lambda *_: asyncio.get_running_loop().create_future())
    await remits.add("log", 1)
    waiting = asyncio.ensure_future(remits.next("it"))
    await until(lambda: len(engine._iterators.builder._indices["it"].demands) == 1)
    await engine.stop()
    with pytest.raises(Closed):
        await waiting


async def test_nobody_begins_to_wait_for_a_build_when_the_server_stops(engine: Engine, remits: Remits) -> None:
    await remits.create()
    await remits.iterator("it", indexed=True)
    await built(engine)
    builder = engine._iterators.builder
    builder.stop()
    await remits.add("log", 1)
    with pytest.raises(Closed):
        await builder.bring_up("it")


async def test_whoever_gives_up_waiting_leaves_nothing_behind(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create()
    await remits.iterator("it", indexed=True)
    await built(engine)
    demands = engine._iterators.builder._indices["it"]

    def dead(*_: object) -> "asyncio.Future[Any]":
        raise WorkerDied("died")

    monkeypatch.setattr(engine.lua, "run", dead)
    await remits.add("log", 1)
    waiting = [asyncio.ensure_future(remits.next("it")) for _ in range(20)]
    await until(lambda: len(demands.demands) == 20)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: not demands.demands)


class NoBuild:
    """Lua workers that build nothing: what is kept stays as it is."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        run = engine.lua.run

        def held(job: Job, *arguments: Any) -> "asyncio.Future[Any]":
            return asyncio.get_running_loop().create_future() if job is build_index else run(job, *arguments)

        monkeypatch.setattr(engine.lua, "run", held)


class TestSmallPages:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(page_bytes_max=1024)

    async def test_a_kept_page_waits_for_a_build_only_if_it_needs_more(
        self, engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await remits.create("log", *(number if number == 7 else f"{number}" * 300 for number in range(10)))
        await remits.iterator("it", MAP, "if msg == 7 then error('no sevens') end return msg", indexed=True)
        await built(engine)
        NoBuild(engine, monkeypatch)
        await remits.add("log", "more")
        assert len(await remits.next("it", 0)) == 3, "no more fit into a page"
        assert len(await remits.next("it", 5)) == 2, "the next one failed"
        with pytest.raises(FunctionFailed, match="at message 7"):
            await remits.next("it", 7)
        assert len(await remits.next("it", 8, 2)) == 2, "that was all that was asked for"
        waiting = asyncio.ensure_future(remits.next("it", 8, 3))
        await until(lambda: len(engine._iterators.builder._indices["it"].demands) == 1)
        assert not waiting.done()
        waiting.cancel()


async def test_one_iterator_has_one_step_at_a_time_and_others_go_on(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create("log", 1, 2, 3)
    await remits.iterator("slow", FILTER, "return msg > 1")
    await remits.iterator("other")
    run = engine.lua.run
    steps: list[asyncio.Future[Any]] = []

    def held(job: Job, name: str, *arguments: Any) -> "asyncio.Future[Any]":
        if name != "slow":
            return run(job, name, *arguments)
        steps.append(asyncio.get_running_loop().create_future())
        return steps[-1]

    with monkeypatch.context() as patch:
        patch.setattr(engine.lua, "run", held)
        waiting = [asyncio.ensure_future(remits.next("slow")) for _ in range(50)]
        await until(lambda: len(steps) == 1)
        assert await remits.next("other") == [1, 2, 3]
        assert len(steps) == 1
    steps[0].set_exception(WorkerDied("died"))
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in told[:1]] == [WorkerDied]
    assert told[1:] == [[2, 3]] * 49


class TestShortPatience:
    """Little time for a message, for a step, and for those who wait."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(
            iterator_call_ms_max=50,
            reader_wait_ms_max=60_000,
            iterators_max=3,
            iterator_points_max=2,
            page_events_max=5,
        )

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Steps so short that each runs one message or a few; and what timed out is not run again within a test."""
        monkeypatch.setattr(iterators, "PAGE_STEP_S_MAX", 0)
        monkeypatch.setattr(iterators, "BUILD_STEP_S_MAX", 0)
        for module in (index_builder, iterators):
            monkeypatch.setattr(module, "RETRY_S", 60.0)

    @pytest.fixture
    async def engine(self, url: str, settings: Settings, steps: None) -> AsyncIterator[Engine]:
        async with Engine(url, settings) as running:
            yield running

    async def test_any_number_of_steps_gives_the_same(self, engine: Engine, remits: Remits) -> None:
        await remits.create("log", *range(40))
        await remits.iterator("last", FILTER, "return msg > 35")
        await remits.iterator("sum", REDUCE, SUM)
        assert await remits.everything("last") == [36, 37, 38, 39]
        assert await remits.next("last", -1) == [39]
        assert await remits.everything("sum") == list(accumulate(range(40)))
        assert await remits.next("sum", -1) == [sum(range(40))]
        assert len(engine._iterators._points) <= 2
        await remits.iterator("kept", REDUCE, SUM, indexed=True)
        assert await remits.everything("kept") == list(accumulate(range(40)))
        with pytest.raises(LimitExceeded, match="iterators_max"):
            await remits.iterator("too many")
        await remits.drop_iterator("sum")
        await remits.iterator("another")

    async def test_a_function_that_hangs_is_stopped_and_others_go_on(self, engine: Engine, remits: Remits) -> None:
        await remits.create("log", *range(10))
        await remits.iterator("plain", FILTER, f"if msg == 3 then {HANG} end return true")
        await remits.iterator("kept", REDUCE, f"if msg == 3 then {HANG} end {SUM}", indexed=True)
        await remits.iterator("map", MAP, f"if msg == 3 then {HANG} end return msg", indexed=True)
        assert await remits.everything_before("plain", 3) == [0, 1, 2]
        assert await remits.everything_before("kept", 3) == [0, 1, 3]
        assert await remits.everything_before("map", 3) == [0, 1, 2]
        for name in ("plain", "kept", "map"):
            with pytest.raises(FunctionTimedOut, match="at message 3"):
                await remits.next(name, 3)
        assert await remits.next("map", 4) == [4, 5, 6, 7, 8]
        ran = engine.metrics.lua_messages
        for name in ("plain", "kept"):
            with pytest.raises(FunctionTimedOut, match="at message 3"):
                await remits.next(name, -1)
        assert engine.metrics.lua_messages == ran, "what timed out is not run again at once"
        engine._iterators._timed_out.clear()
        engine._iterators.builder._indices["kept"].not_before = 0
        for name in ("plain", "kept"):
            with pytest.raises(FunctionTimedOut, match="at message 3"):
                await remits.next(name, 3)
        assert engine.metrics.lua_messages == ran + 2, "but later"
        assert engine.metrics.lua.replaced == 0

    async def test_the_last_message_of_a_map_is_not_run_again_at_once_either(
        self, engine: Engine, remits: Remits
    ) -> None:
        await remits.create("log", 1, 2)
        await remits.iterator("map", MAP, f"if msg == 2 then {HANG} end return msg")
        with pytest.raises(FunctionTimedOut, match="at message 1"):
            await remits.next("map", -1)
        ran = engine.metrics.lua_messages
        asking = [remits.next("map", ordinal) for ordinal in (-1, 1) * 10]
        told = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(one) for one in told} == {FunctionTimedOut}
        assert engine.metrics.lua_messages == ran
        await remits.add("log", 3)
        assert await remits.next("map", -1) == [3]

    async def test_those_who_wait_for_a_message_that_hangs_do_not_run_it_one_after_the_other(
        self, engine: Engine, remits: Remits
    ) -> None:
        await remits.create("log", 2)
        await remits.iterator("filter", FILTER, HANG)
        told = await asyncio.gather(*(remits.next("filter") for _ in range(20)), return_exceptions=True)
        assert {type(one) for one in told} == {FunctionTimedOut}
        assert engine.metrics.lua_messages == 1

    async def test_a_worker_that_is_stuck_leaves_and_keeps_what_it_had_done(
        self, engine: Engine, remits: Remits
    ) -> None:
        await remits.create("log", *range(6))
        await remits.iterator("plain", MAP, f"if msg == 2 then {STUCK} end return msg")
        (pid,) = engine.lua.pids
        with pytest.raises(FunctionTimedOut, match="at message 2"):
            await remits.next("plain", 2)
        await remits.iterator("kept", REDUCE, f"if msg == 2 then {STUCK} end {SUM}", indexed=True)
        assert await remits.everything_before("kept", 2) == [0, 1]
        with pytest.raises(FunctionTimedOut, match="at message 2"):
            await remits.next("kept", -1)
        assert await remits.next("plain", 3, 1) == [3]
        assert pid not in engine.lua.pids
        assert engine.metrics.lua.replaced == 2

    async def test_whoever_waits_too_long_for_a_build_is_told(
        self, engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await remits.create()
        await remits.iterator("it", indexed=True)
        await built(engine)

        def dead(*_: object) -> "asyncio.Future[Any]":
            raise WorkerDied("died")

        with monkeypatch.context() as patch:
            patch.setattr(engine.lua, "run", dead)
            patch.setattr(engine._context, "settings", replace(engine.settings, reader_wait_ms_max=50))
            await remits.add("log", 1)
            with pytest.raises(ReaderTimeout):
                await remits.next("it")
        await built(engine)
        assert await remits.next("it") == [1]

    async def test_a_request_that_is_given_up_runs_no_further(self, engine: Engine, remits: Remits) -> None:
        await remits.create("log", *range(500))
        await remits.iterator("none", FILTER, "return false")
        answers: list[Reply | PenstockError] = []
        abandon = engine.submit(ANONYMOUS, NextItems("none", 0, 1), answers.append)
        await until(lambda: engine.metrics.lua_messages > 0)
        abandon()
        # Jobs are done in order: whatever the request began is over when this one is.
        await remits.iterator("other")
        ran = engine.metrics.lua_messages
        await remits.iterator("another")
        assert engine.metrics.lua_messages == ran < 500
        assert answers == []
        assert await remits.next("none") == []
