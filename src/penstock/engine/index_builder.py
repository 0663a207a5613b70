"""Keeps indexed iterators up to date: follows commits, has Lua workers run new messages, and writes their output.

Iterators take turns, one bounded step each, so that none waits for another's long log. The output of an iterator is on
disk together with how far it has read, so a build continues after a restart. After a failure the builder waits until a
request asks for more, and then retries at most every few seconds. An iterator pauses when its function times out or its
step could not be written.

Where several servers share a store, the server that holds an iterator's lease builds it. The others follow: they look
how far it is, and build it themselves once the lease expires because its holder died.
"""

import asyncio
import logging
from copy import copy
from dataclasses import dataclass
from typing import Final

from penstock.engine import iterator_jobs
from penstock.engine.context import EngineContext
from penstock.engine.iterator_jobs import Built, IndexProgress, StepLimits
from penstock.engine.jobs import source_of
from penstock.engine.metrics import Lag
from penstock.engine.wakeups import Source, resolve
from penstock.engine.workers import WorkerPool
from penstock.errors import (
    Closed,
    FunctionFailed,
    IteratorNotFound,
    OutputMoved,
    PenstockError,
    ReaderTimeout,
    WorkerDied,
)
from penstock.store.contract import IteratorState

log = logging.getLogger(__name__)

UNKNOWN: Final = -1
RETRY_S: Final = 3.0
"""The least time between two attempts of a build that fails."""
PAUSE_S_MIN: Final = 0.2
PAUSE_S_MAX: Final = 3.0
"""The pause after a timeout of the function or a step that could not be written; twice as long each time."""
FOLLOW_S: Final = 0.05
IDLE_FOLLOW_S: Final = 2.0
"""How often a server looks how far another one has built an index, with and without a request that waits for it."""


@dataclass(eq=False)
class Demand:
    """A request that waits until the iterator has read `target` messages."""

    done: "asyncio.Future[None]"
    target: int = UNKNOWN


class IndexState:
    """One indexed iterator: what it follows, how far it is, and who waits for it.

    `growth` counts how often its source grew. The iterator is current when it has read what there was at that count.
    """

    def __init__(self, iterator: IteratorState) -> None:
        self.id = iterator.id
        self.name = iterator.name
        self.source = source_of(iterator)
        self.growth = 1
        self.seen = 0
        self.read = iterator.source - iterator.base
        self.head = self.read
        self.error: FunctionFailed | None = None
        self.not_before = 0.0
        self.pause_s = 0.0
        self.is_queued = False
        self.timer: asyncio.TimerHandle | None = None
        self.is_running = False
        self.is_followed = False
        self.is_gone = False
        self.demands: set[Demand] = set()

    @property
    def above(self) -> str | None:
        context, name = self.source
        return None if context else name

    @property
    def lease(self) -> str:
        return f"iterator:{self.id}"

    @property
    def is_current(self) -> bool:
        """Whether it has read all that there was when its source last grew."""
        return self.seen == self.growth and self.error is None

    @property
    def wants_more(self) -> bool:
        """Whether it needs another turn even if no request asks for it."""
        return not self.is_gone and (bool(self.demands) or (self.error is None and self.seen < self.growth))

    def rests(self, now: float) -> bool:
        """Whether it failed so recently that the builder does not retry yet."""
        return self.error is not None and now < self.not_before

    def new_demands(self) -> list[Demand]:
        """The demands without a target: the step that begins now sets it."""
        return [demand for demand in self.demands if demand.target == UNKNOWN]

    def advanced(self, read: int, head: int, growth: int, error: FunctionFailed | None) -> None:
        """A step that began at a growth count is written: the iterator has read `read` of `head` messages."""
        self.read, self.head, self.error = read, head, error
        if read >= head:
            self.seen = max(self.seen, growth)
        for demand in list(self.demands):
            if error is not None or UNKNOWN < demand.target <= read:
                self.demands.discard(demand)
                resolve(demand.done, None)

    def fail_all(self, error: PenstockError) -> None:
        while self.demands:
            resolve(self.demands.pop().done, error)


class Builder:
    """All indexed iterators, and the tasks that build them."""

    def __init__(self, context: EngineContext, lua: WorkerPool, step: StepLimits) -> None:
        self._context = context
        self._others = context.others
        self._followed = context.wakeups.followed
        self._lua = lua
        self._metrics = context.metrics
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._indices: dict[str, IndexState] = {}
        self._by_source: dict[Source, dict[str, IndexState]] = {}
        self._queue: asyncio.Queue[IndexState] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        context.wakeups.wake_index = self._wake
        self._metrics.lag = self._lag

    def start(self, tasks: int) -> None:
        self._tasks = [self._loop.create_task(self._work()) for _ in range(tasks)]

    def stop(self) -> None:
        """Stop building, and fail all requests that wait."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for index in self._indices.values():
            index.fail_all(Closed())

    def add(self, iterator: IteratorState) -> None:
        index = self._indices[iterator.name] = IndexState(iterator)
        self._by_source.setdefault(index.source, {})[index.name] = index
        self._followed.add(index.source)
        self._enqueue(index)

    def remove(self, name: str) -> None:
        index = self._indices.pop(name, None)
        if index is None:
            return
        group = self._by_source[index.source]
        del group[name]
        if not group:
            del self._by_source[index.source]
            self._followed.discard(index.source)
        index.is_gone = True
        index.fail_all(IteratorNotFound(name))
        self._others.give_up(index.lease)

    def installed(self, name: str, number: int) -> None:
        """Output that was computed elsewhere is in the store: look how far it is, and wake its readers."""
        index = self._indices.get(name)
        if index is not None and index.id == number:
            index.error, index.not_before = None, 0.0
            index.growth += 1
            self._enqueue(index)
            self._wake(("", name))

    def is_current(self, name: str) -> bool:
        """Whether an iterator, and those it reads, have read all that there is."""
        index = self._indices.get(name)
        # What others have just written may not have been heard of yet.
        if index is None or not index.is_current or self._others.is_shared:
            return False
        return index.above is None or self.is_current(index.above)

    async def bring_up(self, name: str) -> FunctionFailed | None:
        """Wait until an iterator has read what there is now; the error if its function fails at a message."""
        index = self._indices.get(name)
        if index is None:
            raise IteratorNotFound(name)
        error = await self.bring_up(index.above) if index.above is not None else None
        if self._others.is_shared:
            await self._look(index)
        if index.is_gone:
            # It was deleted during the wait for the iterator above.
            raise IteratorNotFound(name)
        if not index.is_current and not index.rests(self._loop.time()):
            await self._demand(index)
        if index.error is not None:
            # Each error that is raised gets its own traceback.
            return copy(index.error)
        return None if error is None else passed_on(index.above, error)

    async def _look(self, index: IndexState) -> IndexProgress:
        """Read from the store how far it is, and how much there is to read."""
        growth = index.growth
        looked: IndexProgress = await self._context.pool.run(iterator_jobs.look_at_index, index.name, index.id)
        if looked.read >= looked.head:
            index.advanced(*looked, growth, None)
        elif index.is_current:
            index.growth += 1
        return looked

    async def _demand(self, index: IndexState) -> None:
        if self._closing:
            raise Closed
        wait_ms_max = self._context.settings.reader_wait_ms_max
        demand = Demand(self._loop.create_future())
        index.demands.add(demand)
        if index.is_followed:
            # A request waits: look sooner at an iterator that another server builds.
            index.not_before = 0.0
            if index.timer is not None:
                index.timer.cancel()
                index.timer, index.is_queued = None, False
        self._enqueue(index)
        try:
            async with asyncio.timeout(wait_ms_max / 1000):
                await demand.done
        except TimeoutError:
            raise ReaderTimeout(wait_ms_max) from None
        finally:
            index.demands.discard(demand)

    def _wake(self, source: Source) -> None:
        for index in self._by_source.get(source, {}).values():
            index.growth += 1
            # One that failed stays where it is, however much comes after.
            if index.error is None:
                self._enqueue(index)

    def _enqueue(self, index: IndexState) -> None:
        """Queue an iterator, after its pause if it has one."""
        if index.is_queued or index.is_running:
            return
        index.is_queued = True
        pause = index.not_before - self._loop.time()
        if pause > 0:
            index.timer = self._loop.call_later(pause, self._put, index)
        else:
            self._put(index)

    def _put(self, index: IndexState) -> None:
        index.timer = None
        self._queue.put_nowait(index)

    async def _work(self) -> None:
        while True:
            index = await self._queue.get()
            index.is_queued, index.is_running = False, True
            try:
                await self._turn(index)
            finally:
                index.is_running = False
            if index.wants_more:
                self._enqueue(index)

    async def _turn(self, index: IndexState) -> None:
        if index.is_gone:
            return
        try:
            index.is_followed = not await self._others.may(index.lease)
            await (self._follow if index.is_followed else self._advance)(index)
        except OutputMoved:
            # Another server or a build elsewhere has written: read the new state.
            index.seen = 0
        except IteratorNotFound:
            # It was deleted, here or by another server, and the notice is on the way.
            self._pause(index)
        except PenstockError as error:
            if self._indices.get(index.name) is index:
                log.warning("iterator %s could not be built further now: %s", index.name, error)
                self._pause(index)
        except Exception:
            log.exception("iterator %s could not be built further now", index.name)
            self._pause(index)

    async def _advance(self, index: IndexState) -> None:
        growth = index.growth
        new_demands = index.new_demands()
        built: Built = await self._lua.run(iterator_jobs.build_index, index.name, index.id, self._step)
        if built.output.iterator != index.id:
            raise WorkerDied("answered for another iterator")
        for demand in new_demands:
            demand.target = built.head
        self._metrics.lua_messages += built.messages
        self._metrics.lua_errors += built.errors
        if built.has_moved:
            size = sum(map(len, built.output.items)) + len(built.output.state or b"")
            await self._context.apply(built.output, size)
            self._wake(("", index.name))
        if built.error is not None:
            index.not_before = self._loop.time() + RETRY_S
        elif built.timed_out:
            self._pause(index)
        else:
            index.pause_s = index.not_before = 0.0
        index.advanced(built.read, built.head, growth, built.error)
        if built.error is not None:
            # The server that gets the next request for more retries.
            self._others.give_up(index.lease)

    async def _follow(self, index: IndexState) -> None:
        """Look once how far another server has built."""
        growth = index.growth
        new_demands = index.new_demands()
        looked = await self._look(index)
        for demand in new_demands:
            demand.target = looked.head
        index.advanced(*looked, growth, None)
        index.not_before = self._loop.time() + (FOLLOW_S if index.demands else IDLE_FOLLOW_S)

    def _pause(self, index: IndexState) -> None:
        index.pause_s = min(max(2 * index.pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
        index.not_before = self._loop.time() + index.pause_s

    def _lag(self) -> Lag:
        behind = [index for index in self._indices.values() if not index.is_current]
        return Lag(len(behind), sum(index.head - index.read for index in behind))


def passed_on(name: str | None, error: FunctionFailed) -> FunctionFailed:
    """The error for an iterator that reads one that failed."""
    return type(error)(f"iterator '{name}' failed {error}")
