"""Background tasks: they give free space back, erase, and seal.

Each task works in small steps that share group commits with requests. Work that is left when the server stops
continues after the next start.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Final

from penstock.engine.context import EngineContext
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError
from penstock.store.contract import Erase, GiveBack, Seal
from penstock.store.seals import BLOCK_BITS, next_seal

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""Given back in one step; other writers wait for it."""
GIVE_BACK_PAUSE_S: Final = 0.05
ERASE_RECORDS_MAX: Final = 64
"""Records that one step erases; other writers wait for it."""
ERASE_PAUSE_S: Final = 0.01
ERASE_RETRY_S: Final = 1.0
ELSEWHERE_S: Final = 3.0
"""How long to wait for another server that erases or seals, before looking again."""
SEAL_REST_S_MIN: Final = 0.005
"""The least rest between two seals; it is as long as the seal took to write."""
SEAL_RETRY_S_MIN: Final = 1.0
SEAL_RETRY_S_MAX: Final = 60.0
"""After a seal that failed; twice as long each time."""


class BackgroundTask(ABC):
    """Works whenever it is woken."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        self._event.set()

    async def _work(self) -> None:
        while await self._event.wait():
            self._event.clear()
            await self._turn()

    @abstractmethod
    async def _turn(self) -> None:
        """Do all of the work, or a step of it."""


class SpaceKeeper(BackgroundTask):
    """Gives free space back to the file system, after erasures and periodically, where the store finds it useful."""

    async def _turn(self) -> None:
        before: int | None = None
        while True:
            try:
                left: int = await self._context.apply(GiveBack(STEP_BYTES_MAX))
            except PenstockError as error:
                return log.warning("free space was not given back; the server tries again later: %s", error)
            # Appends may use the space meanwhile, or readers keep the file from shrinking: then stop.
            if not left or (before is not None and left >= before):
                return None
            before = left
            await asyncio.sleep(GIVE_BACK_PAUSE_S)


class Eraser(BackgroundTask):
    """Removes the bytes of deleted and erased events from the store's files. They are unreadable already."""

    def __init__(self, context: EngineContext, space: SpaceKeeper) -> None:
        super().__init__(context)
        self._space = space

    def start(self, open_erasures: int) -> None:
        if open_erasures:
            self.wake()
        self.begin()

    async def _turn(self) -> None:
        pause_s = ELSEWHERE_S
        if await self._context.others.may("erase"):
            try:
                still_open = await self._context.apply(Erase(ERASE_RECORDS_MAX))
            except PenstockError as error:
                log.warning("deleted events are not erased yet; trying again: %s", error)
                pause_s = ERASE_RETRY_S
            else:
                if not still_open:
                    return self._space.wake()
                pause_s = ERASE_PAUSE_S
        self.wake()
        return await asyncio.sleep(pause_s)


class Sealer(BackgroundTask):
    """Seals: a separate process merges the small records of a complete block, and the writer replaces them.

    Nothing here is urgent: what is not sealed is only slower to read. So there is one seal at a time, and after each a
    rest as long as the seal took to write.
    """

    def __init__(self, context: EngineContext, pool: WorkerPool) -> None:
        super().__init__(context)
        self._wakeups = context.wakeups
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._mark = 1
        self._rest_until = 0.0
        self._again_s = 0.0
        context.metrics.seal_lag = lambda: max(0, block_start(self._wakeups.head + 1) - self._mark)

    def start(self, head: int, mark: int) -> None:
        """Begin, with what is left from before: the store's last position, and up to where it is sealed."""
        self._mark, self._wakeups.head = mark, head
        if self._context.settings.seal:
            self._wakeups.wake_sealer = self.wake
            self.begin()
            self._await_block(mark)

    def _await_block(self, position: int) -> None:
        """Have a commit wake this when the block of a position is complete; at once if it is."""
        self._wakeups.seal_due = block_end(position)
        self._wakeups.committed((), self._wakeups.head)

    async def _turn(self) -> None:
        while True:
            head = self._wakeups.head
            try:
                if await self._is_done():
                    break
            except PenstockError as error:
                if not self._again_s:
                    log.warning("records could not be sealed now; trying again: %s", error)
                self._again_s = min(max(2 * self._again_s, SEAL_RETRY_S_MIN), SEAL_RETRY_S_MAX)
                await asyncio.sleep(self._again_s)
        self._succeeded()
        self._await_block(head + 1)

    async def _is_done(self) -> bool:
        """Seal one block, or a part of one; True if there was nothing to seal."""
        if refusal := self._context.disk.refusal():
            # A merged record needs its room before the room of the small ones is free.
            raise refusal
        if not await self._context.others.may("seal"):
            await asyncio.sleep(ELSEWHERE_S)
            return False
        head = self._wakeups.head
        seal: Seal | None = await self._pool.run(next_seal)
        # The worker makes the next seal while this task rests.
        await asyncio.sleep(max(self._rest_until - self._loop.time(), 0))
        if seal is not None:
            await self._carry_out(seal)
            return False
        # Other servers may have sealed the rest.
        self._mark = max(self._mark, block_start(head + 1))
        return True

    async def _carry_out(self, seal: Seal) -> None:
        # The writer compares with NumPy: load it here, so that appends do not wait for that.
        await asyncio.to_thread(import_module, "penstock.store.concat")
        began = self._loop.time()
        done = await self._context.apply(seal, len(seal.data or b""))
        ended = self._loop.time()
        self._rest_until = ended + max(ended - began, SEAL_REST_S_MIN)
        if not done:
            # An erasure came between: this seal would bring the events back, so the worker makes a new one.
            return
        self._succeeded()
        self._mark = seal.next
        if seal.data is not None:
            self._context.metrics.seals += 1
            self._context.metrics.sealed_events += seal.last - seal.first + 1

    def _succeeded(self) -> None:
        if self._again_s:
            log.warning("records are sealed again")
        self._again_s = 0.0


def block_start(position: int) -> int:
    return position >> BLOCK_BITS << BLOCK_BITS


def block_end(position: int) -> int:
    return (((position >> BLOCK_BITS) + 1) << BLOCK_BITS) - 1
