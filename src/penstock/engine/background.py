"""Chores: work that goes on beside requests, each in a task of its own."""

import asyncio
import logging
from abc import ABC, abstractmethod
from enum import StrEnum
from importlib import import_module
from typing import Final

from penstock.engine.context import EngineContext
from penstock.engine.metrics import Metrics
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError, StorageFull
from penstock.settings import Settings, shown
from penstock.store import Store
from penstock.store.contract import Erase, GiveBack, Seal, Transaction
from penstock.store.sealing import BLOCK_BITS, next_seal


class BackgroundTask(ABC):
    """Works whenever it is rung. What it has not done when it is stopped is done after the next start."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """From now on it works."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Work no further."""
        if self._task is not None:
            self._task.cancel()

    def ring(self) -> None:
        """There is something to do."""
        self._bell.set()

    async def _work(self) -> None:
        while await self._bell.wait():
            self._bell.clear()
            await self._turn()

    @abstractmethod
    async def _turn(self) -> None:
        """Do what there is to do, or some of it."""


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


STEP_BYTES_MAX: Final = 4 << 20
"""Given back in one step; everyone who writes waits for it."""
GIVE_BACK_PAUSE_S: Final = 0.05
"""Between two steps, so that others get their turn."""


class SpaceKeeper(BackgroundTask):
    """Gives back what there is, whenever it is asked to look; if it is stopped, there is always another time."""

    def __init__(self, parts: EngineContext) -> None:
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
            await asyncio.sleep(GIVE_BACK_PAUSE_S)


ERASE_RECORDS_MAX: Final = 64
"""Records that are erased in one step; everyone who writes waits for it."""
ERASE_PAUSE_S: Final = 0.01
"""Between two steps, so that others get their turn."""
ERASE_RETRY_S: Final = 1.0
"""After a step that failed."""
ELSEWHERE_S: Final = 3.0
"""Until the next look whether there is still something to erase, while another server does it."""


class Eraser(BackgroundTask):
    """Erases whenever there is something to erase."""

    def __init__(self, parts: EngineContext, space: SpaceKeeper) -> None:
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
            (still_open,) = await self._parts.write(Transaction((Erase(ERASE_RECORDS_MAX),)))
        except PenstockError as error:
            log.warning("what was deleted is not erased yet; trying again: %s", error)
            return ERASE_RETRY_S
        if still_open:
            return ERASE_PAUSE_S
        self._space.ring()
        return 0


SEAL_REST_S_MIN: Final = 0.005
"""Between two seals at least, so that others get their turn; see the module."""
SEAL_RETRY_S_MIN: Final = 1.0
SEAL_RETRY_S_MAX: Final = 60.0
"""After one that failed; twice as long each time."""
SEAL_ELSEWHERE_S: Final = 3.0
"""Until the next look whether there is still something to seal, while another server does it."""


class Sealer(BackgroundTask):
    """Seals whenever a block of positions has closed."""

    def __init__(self, parts: EngineContext, pool: WorkerPool, metrics: Metrics, disk: DiskWatch) -> None:
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
            self._due = block_end(mark)
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
        self._due = block_end(sealed + 1)
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
            await asyncio.sleep(SEAL_ELSEWHERE_S)
            return False
        head = self._head
        seal: Seal | None = await self._pool.run(next_seal)
        # The next one is made while this one rests.
        await asyncio.sleep(max(self._rest_until - self._loop.time(), 0))
        if seal is not None:
            await self._carry_out(seal)
            return False
        # Others may have sealed what this server has not.
        self._mark = max(self._mark, block_start(head + 1))
        return True

    async def _carry_out(self, seal: Seal) -> None:
        # The writer compares with NumPy, and appends do not wait until that is loaded.
        await asyncio.to_thread(import_module, "penstock.store.joining")
        began = self._loop.time()
        (done,) = await self._parts.write(Transaction((seal,)), len(seal.data or b""))
        ended = self._loop.time()
        self._rest_until = ended + max(ended - began, SEAL_REST_S_MIN)
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
        self._again_s = min(max(2 * self._again_s, SEAL_RETRY_S_MIN), SEAL_RETRY_S_MAX)
        return self._again_s

    def _succeeded(self) -> None:
        if self._again_s:
            log.warning("records are sealed again")
        self._again_s = 0.0

    def _lag(self) -> int:
        return max(0, block_start(self._head + 1) - self._mark)


def block_start(position: int) -> int:
    """The first position of the block of a position."""
    return position >> BLOCK_BITS << BLOCK_BITS


def block_end(position: int) -> int:
    """The last position at which the block of a position is closed."""
    return (((position >> BLOCK_BITS) + 1) << BLOCK_BITS) - 1
