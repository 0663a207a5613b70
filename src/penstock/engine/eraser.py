"""Erases what was deleted or is to be erased: in small steps that share group commits with everyone else.

From the deletion on nobody can read it; here its bytes leave the store's files, also if the server was stopped
meanwhile.
"""

import asyncio
import logging
from typing import Final

from penstock.engine.chores import Chore
from penstock.engine.parts import Parts
from penstock.engine.space import SpaceKeeper
from penstock.errors import PenstockError
from penstock.store.contract import Erase, Transaction

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 64
"""Records that are erased in one step; everyone who writes waits for it."""
PAUSE_S: Final = 0.01
"""Between two steps, so that others get their turn."""
AGAIN_S: Final = 1.0
"""After a step that failed."""
ELSEWHERE_S: Final = 3.0
"""Until the next look whether there is still something to erase, while another server does it."""


class Eraser(Chore):
    """Erases whenever there is something to erase."""

    def __init__(self, parts: Parts, space: SpaceKeeper) -> None:
        super().__init__()
        self._parts = parts
        self._space = space

    def start(self, open_erasures: int) -> None:
        """Begin, perhaps with what was left from before."""
        if open_erasures:
            self.ring()
        self.begin()

    async def _turn(self) -> None:
        pause = await self._step()
        if pause:
            self.ring()
            await asyncio.sleep(pause)

    async def _step(self) -> float:
        """Erase some; after how many seconds another step is due, 0 if none is."""
        if not await self._parts.others.may("erase"):
            return ELSEWHERE_S
        try:
            (still_open,) = await self._parts.write(Transaction((Erase(RECORDS_MAX),)))
        except PenstockError as error:
            log.warning("what was deleted is not erased yet; trying again: %s", error)
            return AGAIN_S
        if still_open:
            return PAUSE_S
        self._space.ring()
        return 0
