"""Shared by all handlers of requests: the writer, the workers, long polls, locks, and the rules for names."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from penstock.engine import jobs
from penstock.engine.coordination import OwnStore
from penstock.engine.disk_watch import DiskWatch
from penstock.engine.metrics import Metrics
from penstock.engine.read_ahead import ENDS_READ_AHEAD, ReadAhead
from penstock.engine.traffic import EVENTS, TURN, note
from penstock.engine.wakeups import Wakeups, resolve
from penstock.engine.workers import WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import InvalidRequest, PenstockError, ReaderBusy, ReaderTimeout
from penstock.model import (
    AUDIT_CONTEXT,
    EventFilter,
    Principal,
    ProducerMark,
    Reply,
    Request,
    View,
    check_context,
    check_job,
    check_name,
    check_stream,
)
from penstock.settings import Settings
from penstock.store import Store
from penstock.store.contract import Operation, ReadLimits, Result, Search, Transaction

if TYPE_CHECKING:
    from penstock.engine.access import Login

AGAIN_S_MIN: Final = 0.001
CROWDED_S_MAX: Final = 0.05
"""How long a long poll backs off when one commit wakes more of them than there is room for."""

R = TypeVar("R")


class Caller(NamedTuple):
    """Who asks, and what of the store it may see or use with the right that the request needs; None: everything."""

    principal: Principal
    view: View | None = None
    sender: "Login | None" = None
    """On which connection, of a change of principals; None: the program that runs the engine."""


Handler = Callable[[Any, Any, Caller], Awaitable[Reply]]
"""Carries out one kind of request, given the request, an encoder if there is one, and the caller."""
Handlers = dict[type[Request], Handler]


class Attempt(NamedTuple, Generic[R]):
    """One attempt to read: the reply, whether it found anything, and what to wait for if not.

    `again_in` is after how many seconds another attempt is worthwhile without any commit.
    """

    reply: R
    found: bool
    wanted: EventFilter
    again_in: float | None = None


@dataclass
class EngineContext:
    settings: Settings
    metrics: Metrics
    writer: Writer
    disk: DiskWatch
    pool: WorkerPool
    wakeups: Wakeups
    others: OwnStore
    limits: ReadLimits = field(init=False)
    read_ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self.limits = ReadLimits(self.settings.page_events_max, self.settings.page_bytes_max)
        self.read_ahead = ReadAhead(lambda: self.pool, self.limits, lambda: self.others.is_shared)

    async def write(self, transaction: Transaction, size: int = 0) -> list[Result]:
        """Write a transaction; its results once on disk.

        A caller that gave up gets them too, and does what follows from them; it is cancelled at its next wait.
        """
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self.writer.submit(transaction, size, partial(resolve, answer))
        if not ENDS_READ_AHEAD.isdisjoint(map(type, transaction.operations)):
            # Now and when it is done: what is prepared meanwhile is of before or of after.
            self.read_ahead.forget()
            answer.add_done_callback(lambda _: self.read_ahead.forget())
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            while not answer.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({answer})
            if caller is not None:
                caller.uncancel()
                caller.cancel()
            return answer.result()

    async def apply(self, operation: Operation, size: int = 0) -> Any:
        """Write one operation; its result. See `write`."""
        (result,) = await self.write(Transaction((operation,)), size)
        return result

    async def refuse(self, refusal: PenstockError, mark: ProducerMark | None, *operations: Operation) -> list[Result]:
        """Raise a refusal, unless the store has the mark of these operations: then return their first results.

        A refusal says that nothing was written, which would be wrong for a repeat.
        """
        if mark is None:
            raise refusal
        return await self.write(Transaction(operations, mark, refusal))

    async def long_poll(self, wait_ms: int, attempt: Callable[[], Awaitable[Attempt[R]]]) -> R:
        """Attempt until something is found or the time is up. Commits of what is wanted start the next attempt."""
        until = time.monotonic() + min(wait_ms, self.settings.poll_wait_ms_max) / 1000
        tried = await attempt()
        if tried.found or wait_ms <= 0:
            return tried.reply
        with self.wakeups.watch(tried.wanted) as waiter:
            # A commit can precede the watch: look again, then wait.
            waiter.set()
            while (left := until - (now := time.monotonic())) > 0:
                wait_s = left if tried.again_in is None else min(max(tried.again_in, AGAIN_S_MIN), left)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await waiter.wait()
                note(EVENTS, time.monotonic() - now)
                if self.wakeups.closing or (wait_s == left and not waiter.is_set()):
                    break
                waiter.clear()
                try:
                    tried = await attempt()
                except ReaderBusy:
                    await asyncio.sleep(random.uniform(0, CROWDED_S_MAX))  # noqa: S311
                    waiter.set()
                if tried.found:
                    break
            return tried.reply

    async def find_position(self, wanted: EventFilter, ticks: int) -> Search:
        """The first event at or after a time, or where the history ends."""
        start = 1
        while True:
            asked = (wanted, ticks, self.limits, start)
            search: Search = await self.pool.run(jobs.ask_store, Store.find_position, *asked)
            if search.position is not None or search.end:
                return search
            start = search.next

    async def position_for(self, wanted: EventFilter, ticks: int) -> int:
        """Where a reader of everything from a time on begins; after the present end if there is nothing."""
        search = await self.find_position(wanted, ticks)
        return search.next if search.position is None else search.position


def plain(handler: Callable[[Any], Awaitable[Reply]]) -> Handler:
    """A handler whose reply has no events, of a request that names all that it is about."""
    return lambda request, _present, _caller: handler(request)


def called(handler: Callable[[Any, Caller], Awaitable[Reply]]) -> Handler:
    """A handler whose reply has no events, and depends on the caller."""
    return lambda request, _present, caller: handler(request, caller)


def check_names(**names: str) -> None:
    """Raise InvalidRequest for an invalid name; the keyword says what it names."""
    for what, name in names.items():
        if what == "context":
            reason = check_context(name)
        elif what == "filter":
            # The empty filter is every stream; any other is the beginning of a stream's name.
            reason = check_stream(name) if name else None
        else:
            reason = check_job(name) if what == "job" else check_name(name)
        if what in ("log", "iterator") and name.startswith(f"{AUDIT_CONTEXT}/"):
            # An iterator looks for a log and for an iterator before it looks for a stream.
            reason = f"begins with {AUDIT_CONTEXT}/, as only streams of the audit do"
        if reason:
            raise InvalidRequest(what, reason)


class KeyedLocks:
    """A lock for each subscription, queue or iterator in use: requests about the same one take turns, in order."""

    def __init__(self, wait_ms_max: int) -> None:
        self._wait_ms_max = wait_ms_max
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def is_held(self, key: Hashable) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def turn(self, *keys: Hashable) -> AsyncIterator[None]:
        """Hold the locks of these keys. Raises ReaderTimeout when one is not free in time."""
        # Always in one order, so that two requests for the same two keys cannot deadlock.
        locks = [self._locks.setdefault(key, asyncio.Lock()) for key in sorted(set(keys), key=repr)]
        async with AsyncExitStack() as held:
            for lock in locks:
                since = time.monotonic()
                try:
                    async with asyncio.timeout(self._wait_ms_max / 1000):
                        await held.enter_async_context(lock)
                except TimeoutError:
                    raise ReaderTimeout(self._wait_ms_max) from None
                finally:
                    note(TURN, time.monotonic() - since)
            yield
