"""What a request waits for is noted in its trace, by every part of the engine that makes it wait."""

import asyncio
import time
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.engine.context import KeyedLocks
from penstock.engine.traffic import CURRENT, JOB, TURN, WORKER, Trace
from penstock.settings import Settings
from penstock.store import Store

pytestmark = pytest.mark.usefixtures("real_workers")


def hold(_store: Store, until_gone: str) -> None:
    """Go on until a file is gone."""
    while Path(until_gone).exists():
        time.sleep(0.005)


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1, reader_wait_ms_max=60_000)


def traced() -> Trace:
    trace = Trace()
    CURRENT.set(trace)
    return trace


async def test_a_request_waits_for_a_worker_and_for_its_work(engine: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    first = traced()
    held = engine.pool.run(hold, str(gate))
    second = traced()
    waiting = engine.pool.run(hold, str(gate))
    await asyncio.sleep(0.02)
    gate.unlink()
    await asyncio.gather(held, waiting)
    assert first.spent is not None
    assert second.spent is not None
    assert first.spent[JOB] > 0.01
    assert second.spent[WORKER] > 0.01
    assert second.spent[WORKER] + second.spent[JOB] <= time.monotonic() - second.since


async def test_a_request_waits_for_its_turn() -> None:
    locks, begun, go_on = KeyedLocks(60_000), asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with locks.turn("queue"):
            begun.set()
            await go_on.wait()

    async def second() -> Trace:
        trace = traced()
        async with locks.turn("queue"):
            return trace

    one = asyncio.create_task(first())
    await begun.wait()
    two = asyncio.create_task(second())
    await asyncio.sleep(0.02)
    go_on.set()
    await one
    trace = await two
    assert trace.spent is not None
    assert trace.spent[TURN] > 0.01
    # Tasks have contexts of their own.
    assert CURRENT.get() is not trace


def test_requests_have_ids_of_their_own() -> None:
    ids = [Trace().id for _ in range(100)]
    assert len(set(ids)) == 100
    assert len({one.partition("-")[0] for one in ids}) == 1
