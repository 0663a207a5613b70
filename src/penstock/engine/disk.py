"""Watches the free space of the disk: warns when it runs low, and refuses appends before there is none.

What is left below the second mark is for everything else: acknowledgements, progress, and erasing, which needs room
before it gives any back. Nobody has to restart anything: when there is space again, appends are taken again. That is a
little above the mark, so that a disk which stays around it does not change its mind, and the log, every second.
"""

import asyncio
import logging
from enum import StrEnum
from typing import Final

from penstock.engine.metrics import Metrics
from penstock.errors import StorageFull
from penstock.settings import Settings, shown
from penstock.store import Store

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often the free space is asked for."""
MIB: Final = 1 << 20
BACK_PART: Final = 8
"""One is back above a mark when so many-th part of it more is free."""


class Space(StrEnum):
    """How much room there is."""

    ENOUGH = "enough"
    LOW = "low"
    NONE = "none"


class DiskWatch:
    """A task that knows how much space is free."""

    def __init__(self, store: Store, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._warn_bytes = settings.disk_warn_bytes
        self._refuse_bytes = settings.disk_refuse_bytes
        self._metrics = metrics
        self._space = Space.ENOUGH
        self._task: asyncio.Task[None] | None = None
        self.is_refusing = False
        """Whether appends are refused."""

    async def start(self) -> None:
        """Look once, and from then on again and again."""
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Look no further."""
        if self._task is not None:
            self._task.cancel()

    def check(self) -> None:
        """Raise StorageFull if appends are refused."""
        if (refusal := self.refusal()) is not None:
            raise refusal

    def refusal(self) -> StorageFull | None:
        """Why appends are refused, if they are. On the way of every append: most often it is one look."""
        if not self.is_refusing or (free := self._metrics.disk_free_bytes) is None:
            return None
        least = shown("disk_refuse_bytes", self._refuse_bytes)
        more = "" if free < self._refuse_bytes else f"; {-(-_back(self._refuse_bytes) // MIB):,} MiB must be free again"
        return StorageFull(f"{free // MIB:,} MiB are free on its disk, and disk_refuse_bytes is {least}{more}")

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        try:
            # A disk may take its time to answer, and the loop has none.
            free = await asyncio.to_thread(self._store.free_bytes)
        except OSError as error:
            # The store itself will say if it cannot be used; here nothing is known.
            log.debug("the free space is not known: %s", error)
            free = None
        self._metrics.disk_free_bytes = free
        self._enter(Space.ENOUGH if free is None else self._judge(free), free)

    def _judge(self, free: int) -> Space:
        is_none, is_low = self._space is Space.NONE, self._space is not Space.ENOUGH
        if free < (_back(self._refuse_bytes) if is_none else self._refuse_bytes):
            return Space.NONE
        return Space.LOW if free < (_back(self._warn_bytes) if is_low else self._warn_bytes) else Space.ENOUGH

    def _enter(self, space: Space, free: int | None) -> None:
        before, self._space = self._space, space
        self.is_refusing = self._metrics.disk_refusing = space is Space.NONE
        if space is before:
            return
        mib = "unknown" if free is None else f"{free // MIB:,} MiB"
        if space is Space.NONE:
            log.error("free space of the disk: %s; appends are refused (disk_refuse_bytes)", mib)
        elif space is Space.LOW:
            again = "; appends are taken again" if before is Space.NONE else ""
            log.warning("free space of the disk: %s, which is little (disk_warn_bytes)%s", mib, again)
        else:
            log.warning("free space of the disk: %s, which is enough again", mib)


def _back(mark: int) -> int:
    """How much must be free for one to be back above a mark."""
    return mark + mark // BACK_PART
