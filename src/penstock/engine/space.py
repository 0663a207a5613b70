"""Gives free space back to the file system: after erasures, and every now and then, in small steps.

What is worth giving back the store decides; most of what is free is used again by the next appends.
"""

import asyncio
import logging
from typing import Final

from penstock.engine.parts import Parts
from penstock.errors import PenstockError
from penstock.store.contract import GiveBack, Transaction

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""Given back in one step; everyone who writes waits for it."""
PAUSE_S: Final = 0.05
"""Between two steps, so that others get their turn."""


class SpaceKeeper:
    """A task that gives back what there is, whenever it is asked to look."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Give back no more; there is always another time."""
        if self._task is not None:
            self._task.cancel()

    def ring(self) -> None:
        """There may be something to give back."""
        self._bell.set()

    async def _work(self) -> None:
        while await self._bell.wait():
            self._bell.clear()
            try:
                await self._give_back()
            except PenstockError as error:
                log.warning("free space was not given back; the next time it may be: %s", error)

    async def _give_back(self) -> None:
        before: int | None = None
        while True:
            (left,) = await self._parts.write(Transaction((GiveBack(STEP_BYTES_MAX),)))
            assert isinstance(left, int)
            # Others may use it up meanwhile, or keep it from being given back; nobody waits for that.
            if not left or (before is not None and left >= before):
                return
            before = left
            await asyncio.sleep(PAUSE_S)
