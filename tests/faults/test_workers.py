"""Workers and the writer under stress: whoever waits is told, the others go on, and nothing is left behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine
from penstock.errors import (
    Closed,
    ReaderBusy,
    ReaderTimeout,
    WorkerDied,
)
from penstock.model import ANY, Append, Appended, FetchSubscription, ReadAll, ReadStream, SubscribeQueue, new_event
from penstock.store import Store
from penstock.store.sqlite import SqliteStore
from tests.faults.support import (
    SlowStore,
    append,
    append_or_error,
    ask,
    engine_on,
    read_everything,
    run,
    until,
)

# --- jobs that workers do; they are sent by name --------------------------------------------------------------


def hold(_store: Store, sign: str, until_gone: str) -> str:
    """Say by a file that this has begun, and go on until another file is gone."""
    Path(sign).write_text(str(os.getpid()))
    while Path(until_gone).exists():
        time.sleep(0.005)
    return "done"


def stuck(_store: Store) -> None:
    """Stop this process in the middle of its job."""
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(_store: Store) -> None:
    """End this process in the middle of its job, as a crash in a C library would."""
    os._exit(3)


class Held:
    """Workers that are kept busy until they are let go."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._gate = directory / "gate"
        self._gate.touch()
        self._count = 0

    async def one(self) -> tuple[int, "asyncio.Future[Any]"]:
        """Keep one more worker busy: its process and the answer to come."""
        self._count += 1
        sign = self._directory / f"sign-{self._count}"
        answer = self._engine.pool.run(hold, str(sign), str(self._gate))
        await until(lambda: sign.exists() and bool(sign.read_text()))
        return int(sign.read_text()), answer

    def let_go(self) -> None:
        self._gate.unlink()


def _replaced(engine: Engine) -> float | None:
    return engine.metrics.registry.get_sample_value("penstock_workers_replaced_total")


def _refused(engine: Engine, reason: str) -> float | None:
    return engine.metrics.registry.get_sample_value("penstock_refused_total", {"reason": reason})


# --- workers that die -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_workers")
def test_a_worker_killed_in_the_middle_of_a_read_is_told_and_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path / "store", workers=2) as engine:
            await append(engine)
            held = Held(engine, tmp_path)
            killed, first = await held.one()
            spared, second = await held.one()
            waiting = [asyncio.ensure_future(read_everything(engine)) for _ in range(5)]
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(WorkerDied, match="died"):
                await first
            # Those who wait are served by the replacement, while the other worker is still busy.
            assert [len(events) for events in await asyncio.gather(*waiting)] == [1] * 5
            assert _replaced(engine) == 1
            held.let_go()
            assert await second == "done"
            assert spared in engine.pool.pids
            assert killed not in engine.pool.pids
            assert len(engine.pool.pids) == 2

    run(scenario())


def test_all_workers_killed_at_once_are_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path / "store", workers=3) as engine:
            await append(engine)
            held = Held(engine, tmp_path)
            answers = [(await held.one())[1] for _ in range(3)]
            before = engine.pool.pids
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            told = await asyncio.gather(*answers, return_exceptions=True)
            assert [type(error) for error in told] == [WorkerDied] * 3
            # Appends need no worker, and reads that come now wait for one.
            assert (await append(engine)).position == 2
            assert len(await read_everything(engine)) == 2
            await until(lambda: len(engine.pool.pids) == 3)
            assert not set(before) & set(engine.pool.pids)

    run(scenario())


def test_a_worker_killed_while_it_is_idle_disturbs_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            await append(engine)
            (before,) = engine.pool.pids
            os.kill(before, signal.SIGKILL)
            await until(lambda: _replaced(engine) == 1)
            assert len(await read_everything(engine)) == 1

    run(scenario())


def test_a_job_that_ends_its_process_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            for _ in range(3):
                with pytest.raises(WorkerDied):
                    await engine.pool.run(leave)
            await append(engine)
            assert len(await read_everything(engine)) == 1

    run(scenario())


def test_a_stuck_worker_is_killed_replaced_and_its_caller_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path / "store") as engine:
            await append(engine)
            (pid,) = engine.pool.pids
            # Only this job has so little time; to start a worker takes longer.
            settings = engine.pool._settings
            engine.pool._settings = replace(settings, worker_job_ms_max=300)
            answer = engine.pool.run(stuck)
            engine.pool._settings = settings
            with pytest.raises(WorkerDied, match="too long"):
                await answer
            assert len(await read_everything(engine)) == 1
            assert pid not in engine.pool.pids

    run(scenario())


@pytest.mark.usefixtures("real_workers")
def test_a_pool_that_cannot_start_a_process_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError("too many processes")] * 3)
    start = subprocess.Popen

    def flaky(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        if (failure := next(failures, None)) is not None:
            raise failure
        return start(*arguments, **options)

    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            await append(engine)
            monkeypatch.setattr("penstock.engine.workers.subprocess.Popen", flaky)
            os.kill(engine.pool.pids[0], signal.SIGKILL)
            await until(lambda: _replaced(engine) == 1)
            assert len(await read_everything(engine)) == 1

    run(scenario())


@pytest.mark.usefixtures("real_workers")
def test_an_engine_whose_workers_cannot_start_leaves_the_store_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())

    def broken(*_arguments: Any, **_options: Any) -> None:
        raise OSError("too many processes")

    async def scenario() -> None:
        async with engine_on(tmp_path):
            pass

    with monkeypatch.context() as patch:
        patch.setattr("penstock.engine.workers.subprocess.Popen", broken)
        with pytest.raises(OSError, match="too many processes"):
            run(scenario())
    run(scenario())
    assert set(threading.enumerate()) <= threads


# --- queues that are full -------------------------------------------------------------------------------------


def test_a_full_reader_queue_answers_busy_and_loses_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path / "store", reader_queue_max=3) as engine:
            await append(engine)
            held = Held(engine, tmp_path)
            _, answer = await held.one()
            waiting = [asyncio.ensure_future(ask(engine, ReadAll(1))) for _ in range(8)]
            await until(lambda: sum(task.done() for task in waiting) == 5)
            told = [task.exception() for task in waiting if task.done()]
            assert [type(error) for error in told] == [ReaderBusy] * 5
            assert _refused(engine, "reader_busy") == 5
            held.let_go()
            await answer
            assert len(await asyncio.gather(*waiting[:3])) == 3

    run(scenario())


def test_a_read_that_waited_too_long_is_told_and_not_carried_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path / "store", reader_wait_ms_max=200) as engine:
            await append(engine)
            held = Held(engine, tmp_path)
            _, answer = await held.one()
            for _ in range(2):
                # The only worker is busy for as long as this takes.
                with pytest.raises(ReaderTimeout):
                    await ask(engine, ReadAll(1))
            held.let_go()
            await answer
            assert len(await read_everything(engine)) == 1

    run(scenario())


# --- requests that are given up, and stopping -----------------------------------------------------------------


def test_abandoned_requests_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStore(monkeypatch)
    slow.gate.set()

    async def scenario() -> None:
        async with engine_on(tmp_path / "store", waiters_max=20) as engine:
            await append(engine)
            held = Held(engine, tmp_path)
            _, answer = await held.one()
            slow.gate.clear()
            given_up = [
                asyncio.ensure_future(ask(engine, request))
                for request in (
                    Append("c", "s", [new_event("made")], ANY),
                    ReadStream("c", "s"),
                    ReadAll(100, wait_ms=60_000),
                    SubscribeQueue("c", "q", "a", "", 0, 1, 1000, wait_ms=60_000),
                    FetchSubscription(1, 1, wait_ms=60_000),
                )
                for _ in range(3)
            ]
            await asyncio.sleep(0)
            for task in given_up:
                task.cancel()
            told = await asyncio.gather(*given_up, return_exceptions=True)
            assert all(isinstance(error, asyncio.CancelledError) for error in told)
            slow.gate.set()
            held.let_go()
            await answer
            # What was accepted is carried out, whether somebody waits for it or not.
            await until(lambda: engine.metrics.registry.get_sample_value("penstock_commits_total") == 4)
            assert (await append(engine)).position == 5
            assert len(await read_everything(engine)) == 5
            await until(lambda: engine._writer.waiting == 0)

    run(scenario())
    gc.collect()


@pytest.mark.usefixtures("real_workers")
def test_a_stop_finishes_what_was_accepted_and_leaves_no_process_or_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowStore(monkeypatch)

    threads = set(threading.enumerate())

    async def scenario() -> list[int]:
        engine = engine_on(tmp_path, workers=2)
        await engine.start()
        pids = engine.pool.pids
        waiting = [asyncio.ensure_future(append_or_error(engine)) for _ in range(200)]
        polls = [asyncio.ensure_future(ask(engine, ReadAll(1000, wait_ms=60_000))) for _ in range(3)]
        await slow.taken()
        stopping = asyncio.ensure_future(engine.stop())
        await until(lambda: engine.trouble is not None)
        assert isinstance(await append_or_error(engine), Closed)
        slow.gate.set()
        await stopping
        answers = await asyncio.gather(*waiting)
        assert all(isinstance(answer, Appended) for answer in answers)
        assert all(poll.done() for poll in polls)
        assert [poll.exception() for poll in polls] == [None] * 3
        return pids

    pids = run(scenario())
    assert set(threading.enumerate()) <= threads
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    store = SqliteStore(tmp_path)
    assert store.head() == 200
    store.close()


# The replacement is yet to come, on its way, or there.
@pytest.mark.usefixtures("real_workers")
@pytest.mark.parametrize("pause_s", [0.0, 0.201, 0.25])
def test_a_stop_right_after_a_worker_died_leaves_no_process(tmp_path: Path, pause_s: float) -> None:
    async def scenario() -> None:
        engine = engine_on(tmp_path, workers=2)
        await engine.start()
        os.kill(engine.pool.pids[0], signal.SIGKILL)
        await until(lambda: _replaced(engine) == 1)
        await asyncio.sleep(pause_s)
        async with asyncio.timeout(20):
            await engine.stop()

    before = _workers()
    run(scenario())
    assert _workers() <= before


def _workers() -> set[str]:
    """The worker processes of this one; servers that other tests share may have some."""
    return {entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_worker(entry)}


def _is_worker(process: Path) -> bool:
    try:
        is_ours = f"PPid:\t{os.getpid()}\n" in (process / "status").read_text()
        return is_ours and "penstock.engine.worker" in (process / "cmdline").read_text(errors="replace")
    except OSError:
        return False  # It has just ended.


INTERRUPTED = """
import asyncio, os, signal, sys
from pathlib import Path
from penstock.engine import Engine
from penstock.settings import Settings
from penstock.store import store_url

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    engine = Engine(store_url(Path(sys.argv[1])), Settings(workers=2))
    starting = asyncio.create_task(engine.start())
    while not starting.done():
        os.killpg(0, signal.SIGINT)
        await asyncio.sleep(0.01)
    await engine.stop()

asyncio.run(main())
"""


def test_signals_to_the_whole_group_do_no_harm_to_workers_that_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "data")]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
