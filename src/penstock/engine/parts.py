"""What subscriptions, queues and reads share: the workers, the writer, and patience."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.engine import jobs
from penstock.engine.waiters import Waiter, Waiters
from penstock.engine.workers import Job, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import InvalidRequest
from penstock.model import EventFilter, check_context, check_name, check_stream
from penstock.settings import Settings
from penstock.store.contract import Outcome, ReadLimits, Result, Search, Transaction

OPERATION_BYTES: Final = 256
"""What an operation without events counts for in the writer's queue."""


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


class Patience:
    """How long a request still waits for events, and what wakes it."""

    def __init__(self, parts: Parts, wait_ms: int) -> None:
        self._waiters = parts.waiters
        self._until = time.monotonic() + min(wait_ms, parts.settings.poll_wait_ms_max) / 1000
        self._waits = wait_ms > 0
        self._waiter: Waiter | None = None

    @contextmanager
    def watch(self, wanted: EventFilter) -> Iterator[None]:
        """From here on, commits of this filter wake the request, if it waits at all."""
        if not self._waits:
            yield
            return
        with self._waiters.watch(wanted) as self._waiter:
            yield

    def about_to_read(self) -> None:
        """What came before is about to be read."""
        if self._waiter is not None:
            self._waiter.clear()

    async def wait(self, at_most_s: float | None = None) -> bool:
        """Wait for something new, or for `at_most_s`; False when there is no patience left."""
        left = self._until - time.monotonic()
        if self._waiter is None or left <= 0 or self._waiters.closing:
            return False
        if at_most_s is None or at_most_s > left:
            return await self._waiter.wait(left)
        await self._waiter.wait(max(at_most_s, 0.001))
        return True


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
