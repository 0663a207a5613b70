"""The pool of workers: who counts as waiting, and workers that cannot be started."""

import asyncio
import os
import signal
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, workers
from penstock.errors import ReaderBusy, Unexpected
from penstock.settings import Settings
from penstock.store import Store
from tests.engine.logs import until

pytestmark = pytest.mark.usefixtures("real_workers")


def hold(_store: Store, until_gone: str) -> None:
    """Go on until a file is gone."""
    while Path(until_gone).exists():
        time.sleep(0.005)


def process(_store: Store) -> int:
    return os.getpid()


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1, reader_queue_max=3)


async def test_those_who_have_given_up_do_not_fill_the_queue(engine: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    held = engine.pool.run(hold, str(gate))
    waiting = [engine.pool.run(process) for _ in range(3)]
    with pytest.raises(ReaderBusy):
        engine.pool.run(process)
    for one in waiting[:2]:
        one.cancel()
    more = [engine.pool.run(process) for _ in range(2)]
    with pytest.raises(ReaderBusy):
        engine.pool.run(process)
    gate.unlink()
    await held
    assert {await one for one in (waiting[2], *more)} == set(engine.pool.pids)


class Large:
    """An argument that can be watched."""


async def test_what_was_given_up_is_not_kept_until_its_turn(engine: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    held = engine.pool.run(hold, str(gate))
    argument = Large()
    watched = weakref.ref(argument)
    waiting = engine.pool.run(process, argument)
    del argument
    assert watched() is not None
    waiting.cancel()
    await until(lambda: watched() is None)
    gate.unlink()
    await held


async def test_a_job_that_cannot_be_sent_fails_alone(engine: Engine) -> None:
    with pytest.raises(Unexpected):
        await engine.pool.run(process, lambda: None)
    assert await engine.pool.run(process) in engine.pool.pids


async def test_a_worker_that_cannot_be_connected_is_gone_and_another_is_started(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection
    failures: list[OSError] = []

    async def failing(*arguments: Any, **more: Any) -> Any:
        if not failures:
            failures.append(OSError("no more"))
            raise failures[0]
        return await connect(*arguments, **more)

    (first,) = engine.pool.pids
    monkeypatch.setattr(workers, "RESTART_PAUSE_S", 0.01)
    monkeypatch.setattr(loop, "create_connection", failing)
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(failures) == 1)
    pid = await engine.pool.run(process)
    await until(lambda: engine.pool.pids == [pid])


async def test_a_pool_that_closes_starts_no_worker(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[object] = []
    popen = subprocess.Popen

    def counted(*arguments: Any, **more: Any) -> Any:
        spawned.append(arguments)
        return popen(*arguments, **more)

    monkeypatch.setattr(subprocess, "Popen", counted)
    # The task that starts it begins when the pool is closing already.
    engine.pool._replace()
    await engine.pool.close()
    await asyncio.sleep(0)
    assert spawned == []
    assert engine.pool.pids == []
