"""Figures that the engine needs for its metrics only: how late its event loop is, and the store's watermarks."""

import asyncio
import time
from typing import Final

from penstock.engine import jobs
from penstock.engine.metrics import Metrics
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError
from penstock.store import Store
from penstock.store.contract import StoreIdentity

LOOP_S: Final = 0.5
"""How often the delay of the loop is measured."""
KEPT_S: Final = 5.0
"""How long scrapes get the same watermarks."""
WAIT_S_MAX: Final = 1.0
"""How long a scrape waits for them; then it gets those of the one before."""


class LoopWatch:
    """Measures how late the event loop is: everything that it serves is as late."""

    def __init__(self, metrics: Metrics) -> None:
        self._delays = metrics.loop_lag_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOP_S
            await asyncio.sleep(LOOP_S)
            self._delays.add(max(0.0, loop.time() - due))


class WatermarkWatch:
    """Reads the notes of backups and archives when a scrape wants them. A worker process does that."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._looking: asyncio.Task[None] | None = None
        self._due = 0.0

    async def look(self, pool: WorkerPool, identity: StoreIdentity) -> None:
        """Bring the metrics up to date, if that is quick. They stay as they were while the store cannot be read."""
        if self._looking is None and time.monotonic() >= self._due:
            self._looking = asyncio.get_running_loop().create_task(self._look(pool, identity))
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=WAIT_S_MAX)

    async def _look(self, pool: WorkerPool, identity: StoreIdentity) -> None:
        try:
            found = await pool.run(jobs.ask_store, Store.watermarks)
            # A restored store begins another timeline, which has no backup yet.
            self._metrics.watermarks = [mark for mark in found if (mark.store, mark.timeline) == identity]
        except PenstockError:
            # Other metrics say what is wrong with the workers or the store.
            pass
        finally:
            self._due = time.monotonic() + KEPT_S
            self._looking = None

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
