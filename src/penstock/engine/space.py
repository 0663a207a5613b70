"""Gives free space back to the file system: after erasures, and every now and then, in small steps.

What is worth giving back the store decides; most of what is free is used again by the next appends.
"""

import asyncio
import logging
from typing import Final

from penstock.engine.chores import Chore
from penstock.engine.parts import Parts
from penstock.errors import PenstockError
from penstock.store.contract import GiveBack, Transaction

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""Given back in one step; everyone who writes waits for it."""
PAUSE_S: Final = 0.05
"""Between two steps, so that others get their turn."""


class SpaceKeeper(Chore):
    """Gives back what there is, whenever it is asked to look; if it is stopped, there is always another time."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts

    async def _turn(self) -> None:
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
