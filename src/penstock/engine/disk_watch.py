"""The free space of the disk: warnings when it runs low, and refused appends before the disk is full."""

import asyncio
import logging
from enum import StrEnum
from typing import Final

from penstock.engine.metrics import Metrics
from penstock.errors import StorageFull
from penstock.settings import Settings, format_value
from penstock.store import Store

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often the free space is measured."""
MIB: Final = 1 << 20
MARGIN_PART: Final = 8
"""Free space counts as above a limit again when this part of the limit more is free."""


class Space(StrEnum):
    ENOUGH = "enough"
    LOW = "low"
    NONE = "none"


class DiskWatch:
    """Warns when free space runs low, and refuses appends before the disk is full.

    The space below `disk_refuse_bytes` is for acknowledgements, progress, and erasing, which needs room before it gives
    any back.
    """

    def __init__(self, store: Store, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._warn_bytes = settings.disk_warn_bytes
        self._refuse_bytes = settings.disk_refuse_bytes
        self._metrics = metrics
        self._space = Space.ENOUGH
        self._task: asyncio.Task[None] | None = None
        self.is_refusing = False

    async def start(self) -> None:
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def check(self) -> None:
        """Raise StorageFull if appends are refused."""
        if (refusal := self.refusal()) is not None:
            raise refusal

    def refusal(self) -> StorageFull | None:
        """Why appends are refused, if they are."""
        if not self.is_refusing or (free := self._metrics.disk_free_bytes) is None:
            return None
        least = format_value("disk_refuse_bytes", self._refuse_bytes)
        enough = -(-_with_margin(self._refuse_bytes) // MIB)
        more = "" if free < self._refuse_bytes else f"; {enough:,} MiB must be free again"
        return StorageFull(f"{free // MIB:,} MiB are free on its disk, and disk_refuse_bytes is {least}{more}")

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        try:
            # In a thread: a disk can take long to answer.
            free = await asyncio.to_thread(self._store.free_bytes)
        except OSError as error:
            log.debug("the free space is not known: %s", error)
            free = None
        self._metrics.disk_free_bytes = free
        before = self._space
        # Above a limit again only with a margin: a disk around it would change its state every second.
        refuse_bytes = _with_margin(self._refuse_bytes) if before is Space.NONE else self._refuse_bytes
        warn_bytes = self._warn_bytes if before is Space.ENOUGH else _with_margin(self._warn_bytes)
        if free is None or free >= max(warn_bytes, refuse_bytes):
            self._space = Space.ENOUGH
        else:
            self._space = Space.NONE if free < refuse_bytes else Space.LOW
        self.is_refusing = self._metrics.disk_refusing = self._space is Space.NONE
        if self._space is before:
            return
        mib = "unknown" if free is None else f"{free // MIB:,} MiB"
        if self._space is Space.NONE:
            log.error("free space of the disk: %s; appends are refused (disk_refuse_bytes)", mib)
        elif self._space is Space.LOW:
            again = "; appends are taken again" if before is Space.NONE else ""
            log.warning("free space of the disk: %s, which is little (disk_warn_bytes)%s", mib, again)
        else:
            log.warning("free space of the disk: %s, which is enough again", mib)


def _with_margin(limit: int) -> int:
    return limit + limit // MARGIN_PART
