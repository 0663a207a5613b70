"""What subscriptions, queues and reads share: the workers, the writer, and the patience to wait for events."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.engine import jobs
from penstock.engine.waiters import Waiters
from penstock.engine.workers import Job, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import InvalidRequest
from penstock.model import EventFilter, check_context, check_name, check_stream
from penstock.settings import Settings
from penstock.store.contract import Outcome, ReadLimits, Result, Search, Transaction

OPERATION_BYTES: Final = 256
"""What an operation without events counts for in the writer's queue."""
AGAIN_S_MIN: Final = 0.001

R = TypeVar("R")


class Tried(NamedTuple, Generic[R]):
    """What came of one attempt to read: a reply, whether there was anything in it, and what to wait for if not.

    `again_in` says after how many seconds another attempt is worth while without any commit.
    """

    reply: R
    found: bool
    wanted: EventFilter
    again_in: float | None = None


class Parts:
    """The means by which requests are carried out."""

    def __init__(self, settings: Settings, writer: Writer, pool: WorkerPool, waiters: Waiters) -> None:
        self.settings = settings
        self.waiters = waiters
        self.limits = ReadLimits(settings.page_events_max, settings.page_bytes_max)
        self._writer = writer
        self._pool = pool

    @property
    def waiting_writes(self) -> int:
        """Requests the writer has not answered."""
        return self._writer.waiting

    async def run(self, job: Job, *arguments: Any) -> Any:
        """Have a worker do a job."""
        return await self._pool.run(job, *arguments)

    async def write(self, transaction: Transaction, size: int = 0) -> list[Result]:
        """Have a transaction written; its results when it is on disk."""
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome) -> None:
            if answer.done():
                return
            if isinstance(outcome, list):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

        self._writer.submit(transaction, size + OPERATION_BYTES * len(transaction.operations), answered)
        return await answer

    async def patiently(self, wait_ms: int, attempt: Callable[[], Awaitable[Tried[R]]]) -> R:
        """Attempt until something is found, at most so long. Commits of what is wanted wake it; nobody polls."""
        until = time.monotonic() + min(wait_ms, self.settings.poll_wait_ms_max) / 1000
        tried = await attempt()
        if tried.found or wait_ms <= 0:
            return tried.reply
        with self.waiters.watch(tried.wanted) as waiter:
            while True:
                # Watch first, then read, then wait: what is committed in between has rung already.
                waiter.clear()
                tried = await attempt()
                left = until - time.monotonic()
                if tried.found or left <= 0 or self.waiters.closing:
                    return tried.reply
                await waiter.wait(left if tried.again_in is None else min(left, max(tried.again_in, AGAIN_S_MIN)))

    async def position_for(self, wanted: EventFilter, ticks: int) -> int:
        """Where somebody begins who wants everything from a time on; after the present end if there is nothing."""
        start = 1
        while True:
            search: Search = await self.run(jobs.find_position, wanted, ticks, start, self.limits)
            if search.position is not None:
                return search.position
            if search.end:
                return search.next
            start = search.next


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
    return check_name(name)
