"""What subscriptions, queues and reads share: the workers, the writer, and the patience to wait for events."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.engine import jobs
from penstock.engine.coordination import OWN_STORE, OwnStore
from penstock.engine.wakeups import Waiter, Wakeups
from penstock.engine.workers import Job, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import InvalidRequest, PenstockError, ReaderBusy, ReaderTimeout
from penstock.model import EventFilter, ProducerMark, Reply, Request, check_context, check_job, check_name, check_stream
from penstock.settings import Settings
from penstock.store.contract import Operation, Outcome, ReadLimits, Result, Search, Transaction

OPERATION_BYTES: Final = 256
"""What an operation without events counts for in the writer's queue."""
SCANNED_POSITIONS_MAX: Final = 4096
"""How far a scan that found nothing goes before a subscription or queue remembers it on disk."""
AGAIN_S_MIN: Final = 0.001
CROWDED_S_MAX: Final = 0.05
"""How long one who waits stands back when too many were woken at once."""

R = TypeVar("R")
Written = Callable[[list[Result]], None]
Handler = Callable[[Any, Any], Awaitable[Reply]]
"""What carries out a kind of request, given the request and a presenter if there is one."""
Handlers = dict[type[Request], Handler]


class Attempt(NamedTuple, Generic[R]):
    """What came of one attempt to read: a reply, whether there was anything in it, and what to wait for if not.

    `again_in` says after how many seconds another attempt is worth while without any commit.
    """

    reply: R
    found: bool
    wanted: EventFilter
    again_in: float | None = None


class EngineContext:
    """The means by which requests are carried out."""

    def __init__(
        self, settings: Settings, writer: Writer, pool: WorkerPool, waiters: Wakeups, others: OwnStore = OWN_STORE
    ) -> None:
        self.settings = settings
        self.waiters = waiters
        self.others = others
        self.limits = ReadLimits(settings.page_events_max, settings.page_bytes_max)
        self._writer = writer
        self._pool = pool

    def run(self, job: Job, *arguments: Any) -> "asyncio.Future[Any]":
        """Have a worker do a job."""
        return self._pool.run(job, *arguments)

    async def write(self, transaction: Transaction, size: int = 0, written: Written | None = None) -> list[Result]:
        """Have a transaction written; its results when it is on disk.

        `written` is told the results first, and also when whoever asked has given up meanwhile.
        """
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()

        def told(outcome: Outcome) -> None:
            if written is not None and isinstance(outcome, list):
                written(outcome)
            settle(answer, outcome)

        self.submit(transaction, size, told)
        return await answer

    async def refuse(self, refusal: PenstockError, mark: ProducerMark | None, *operations: Operation) -> list[Result]:
        """Raise a refusal, unless the store has the mark of these operations: then their first results.

        A refusal says that nothing was written, which would be wrong for a repeat.
        """
        if mark is None:
            raise refusal
        return await self.write(Transaction(operations, mark, refusal))

    def submit(self, transaction: Transaction, size: int, answer: Callable[[Outcome], None]) -> None:
        """Have a transaction written; `answer` is called with what came of it. Raises if it cannot be taken."""
        self._writer.submit(transaction, size + OPERATION_BYTES * len(transaction.operations), answer)

    async def patiently(self, wait_ms: int, attempt: Callable[[], Awaitable[Attempt[R]]]) -> R:
        """Attempt until something is found, at most so long. Commits of what is wanted wake it; nobody polls."""
        until = time.monotonic() + min(wait_ms, self.settings.poll_wait_ms_max) / 1000
        tried = await attempt()
        if tried.found or wait_ms <= 0:
            return tried.reply
        with self.waiters.watch(tried.wanted) as waiter:
            # Something may have been committed before it was watched for: look once more, then wait.
            waiter.ring()
            while await self._is_worth_another(tried, waiter, until):
                waiter.clear()
                try:
                    tried = await attempt()
                except ReaderBusy:
                    # One commit may wake more than there is room for; those who wait take turns.
                    await asyncio.sleep(random.uniform(0, CROWDED_S_MAX))  # noqa: S311
                    waiter.ring()
                if tried.found:
                    break
            return tried.reply

    async def _is_worth_another(self, tried: Attempt[R], waiter: Waiter, until: float) -> bool:
        """Wait for a reason to attempt again; False when there is no time left, or the server stops."""
        left = until - time.monotonic()
        if left <= 0 or self.waiters.closing:
            return False
        if tried.again_in is None or tried.again_in > left:
            return await waiter.wait(left) and not self.waiters.closing
        await waiter.wait(max(tried.again_in, AGAIN_S_MIN))
        return not self.waiters.closing

    async def find_position(self, wanted: EventFilter, ticks: int) -> Search:
        """The first event at or after a time, or where the history ends."""
        start = 1
        while True:
            search: Search = await self.run(jobs.find_position, wanted, ticks, start, self.limits)
            if search.position is not None or search.end:
                return search
            start = search.next

    async def position_for(self, wanted: EventFilter, ticks: int) -> int:
        """Where somebody begins who wants everything from a time on; after the present end if there is nothing."""
        search = await self.find_position(wanted, ticks)
        return search.next if search.position is None else search.position


def settle(answer: asyncio.Future[R], outcome: R | PenstockError) -> None:
    """Put what came of it into a future, unless whoever waited for it has given up."""
    if answer.done():
        return
    if isinstance(outcome, PenstockError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def plain(handler: Callable[[Any], Awaitable[Reply]]) -> Handler:
    """A handler whose reply has no events."""
    return lambda request, _present: handler(request)


def check_names(**names: str) -> None:
    """Refuse names that cannot be; the keyword says what a name is of."""
    for field, name in names.items():
        reason = _reason(field, name)
        if reason:
            raise InvalidRequest(field, reason)


def _reason(field: str, name: str) -> str | None:
    if field == "context":
        return check_context(name)
    if field == "filter":
        # The empty filter is every stream; any other is the beginning of a stream's name.
        return check_stream(name) if name else None
    return check_job(name) if field == "job" else check_name(name)


class KeyedLocks:
    """A lock for every key that somebody holds or waits for, and none for the others."""

    def __init__(self, wait_ms_max: int) -> None:
        self._wait_ms_max = wait_ms_max
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, *keys: Hashable) -> AsyncIterator[None]:
        """Hold the keys' locks. Raises ReaderTimeout when a turn does not come in time."""
        async with AsyncExitStack() as held:
            # Always in one order: two who want the same two keys cannot wait for each other.
            for key in sorted(set(keys), key=repr):
                await held.enter_async_context(self._one(key))
            yield

    @asynccontextmanager
    async def _one(self, key: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            await self._acquire(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            users = self._locks[key][1] - 1
            if users:
                self._locks[key] = (lock, users)
            else:
                del self._locks[key]

    async def _acquire(self, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(self._wait_ms_max / 1000):
                await lock.acquire()
        except TimeoutError:
            raise ReaderTimeout(self._wait_ms_max) from None
