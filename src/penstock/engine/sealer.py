"""Seals: has a process of its own merge small records that are closed, and the writer put them in their place.

Never in anybody's way: one seal at a time, in a group commit like everything else, and after each as long a rest as it
took to write. What is not sealed yet is merely slower to read, so nothing here is urgent, and nothing is lost when it
stops in the middle: the mark says where to go on.
"""

import asyncio
import logging
from importlib import import_module
from typing import Final

from penstock.engine.chores import Chore
from penstock.engine.disk import DiskWatch
from penstock.engine.metrics import Metrics
from penstock.engine.parts import Parts
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError
from penstock.store.contract import Seal, Transaction
from penstock.store.seals import BLOCK_BITS, next_seal

log = logging.getLogger(__name__)

REST_S_MIN: Final = 0.005
"""Between two seals at least, so that others get their turn; see the module."""
AGAIN_S_MIN: Final = 1.0
AGAIN_S_MAX: Final = 60.0
"""After one that failed; twice as long each time."""
ELSEWHERE_S: Final = 3.0
"""Until the next look whether there is still something to seal, while another server does it."""


class Sealer(Chore):
    """Seals whenever a block of positions has closed."""

    def __init__(self, parts: Parts, pool: WorkerPool, metrics: Metrics, disk: DiskWatch) -> None:
        super().__init__()
        self._parts = parts
        self._pool = pool
        self._metrics = metrics
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._head = 0
        self._mark = 1
        self._due = 0
        self._rest_until = 0.0
        self._again_s = 0.0
        metrics.seal_lag = self._lag

    def start(self, head: int, mark: int) -> None:
        """Begin, perhaps with what was left from before: the store's last position, and up to where it is sealed."""
        self._head, self._mark = head, mark
        if self._parts.settings.seal:
            self._due = closing(mark)
            self.begin()
            self.committed(head)
        else:
            self._due = 1 << 63

    def committed(self, head: int) -> None:
        """The history has grown up to a position."""
        # Another server's commit may be told after a later one of this server.
        self._head = max(self._head, head)
        if head >= self._due:
            self.ring()

    async def _turn(self) -> None:
        sealed = await self._seal_all()
        # All that was closed by then is sealed: there is nothing to do before the next block closes.
        self._due = closing(sealed + 1)
        self.committed(self._head)

    async def _seal_all(self) -> int:
        """Seal until nothing is left; the last position as it was when that was found."""
        while True:
            head = self._head
            try:
                if await self._is_done():
                    self._succeeded()
                    return head
            except PenstockError as error:
                await asyncio.sleep(self._failed(error))

    async def _is_done(self) -> bool:
        """Seal one block, or a part of one; True if there was nothing to seal."""
        if refusal := self._disk.refusal():
            # A merged record needs its room before the room of the small ones is free.
            raise refusal
        if not await self._parts.others.may("seal"):
            await asyncio.sleep(ELSEWHERE_S)
            return False
        head = self._head
        seal: Seal | None = await self._pool.run(next_seal)
        # The next one is made while this one rests.
        await asyncio.sleep(max(self._rest_until - self._loop.time(), 0))
        if seal is not None:
            await self._carry_out(seal)
            return False
        # Others may have sealed what this server has not.
        self._mark = max(self._mark, opening(head + 1))
        return True

    async def _carry_out(self, seal: Seal) -> None:
        # The writer compares with NumPy, and appends do not wait until that is loaded.
        await asyncio.to_thread(import_module, "penstock.store.concat")
        began = self._loop.time()
        (done,) = await self._parts.write(Transaction((seal,)), len(seal.data or b""))
        ended = self._loop.time()
        self._rest_until = ended + max(ended - began, REST_S_MIN)
        if not done:
            # Something was erased meanwhile, which must not come back by this: it is made anew.
            return
        self._succeeded()
        self._mark = seal.next
        if seal.data is not None:
            self._metrics.seals += 1
            self._metrics.sealed_events += seal.last - seal.first + 1

    def _failed(self, error: PenstockError) -> float:
        """After how many seconds to try again. The log has the first failure only."""
        if not self._again_s:
            log.warning("records could not be sealed now; trying again: %s", error)
        self._again_s = min(max(2 * self._again_s, AGAIN_S_MIN), AGAIN_S_MAX)
        return self._again_s

    def _succeeded(self) -> None:
        if self._again_s:
            log.warning("records are sealed again")
        self._again_s = 0.0

    def _lag(self) -> int:
        return max(0, opening(self._head + 1) - self._mark)


def opening(position: int) -> int:
    """The first position of the block of a position."""
    return position >> BLOCK_BITS << BLOCK_BITS


def closing(position: int) -> int:
    """The last position at which the block of a position is closed."""
    return (((position >> BLOCK_BITS) + 1) << BLOCK_BITS) - 1
