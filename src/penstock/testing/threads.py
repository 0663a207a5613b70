"""An engine whose reads are done by threads instead of worker processes.

A worker process keeps long reads from holding up appends, and takes a third of a second to start. A test has no long
reads, and no third of a second.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from penstock.engine import Engine
from penstock.engine.context import Handlers
from penstock.engine.engine import Abandon, Answer, AnyPresenter
from penstock.engine.metrics import PoolCounts
from penstock.engine.workers import Job, WorkerPool
from penstock.errors import Closed, PenstockError, ReaderBusy, StoreError
from penstock.model import Principal, Reply, Request
from penstock.settings import Settings
from penstock.store import Store, open_reader


class ThreadPool(WorkerPool):
    """Runs jobs in threads, each with a connection to the store of its own."""

    def __init__(self, url: str, settings: Settings, size: int, counts: PoolCounts) -> None:
        super().__init__(url, settings, size, counts)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="penstock-reader")
        self._readers: SimpleQueue[Store] = SimpleQueue()
        self._under_way = 0

    async def start(self) -> None:
        """Threads start when there is something to read."""

    def run(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        """Have a thread do a job; the result comes as a future."""
        if self._closing:
            raise Closed
        if self._under_way >= self._size + self._settings.reader_queue_max:
            self._counts.refused += 1
            raise ReaderBusy(self._under_way)
        self._under_way += 1
        answer = asyncio.wrap_future(self._threads.submit(self._do, job, arguments))
        answer.add_done_callback(self._done)
        return answer

    def _done(self, _answer: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        self._counts.jobs += 1

    def _do(self, job: Job, arguments: tuple[Any, ...]) -> Any:
        reader = self._reader()
        try:
            result = job(reader, *arguments)
        except BaseException as error:
            # The connection may be left in the middle of something; the next job gets a new one.
            if isinstance(error, PenstockError) and not isinstance(error, StoreError):
                self._readers.put(reader)
            else:
                reader.close()
            raise
        self._readers.put(reader)
        return result

    def _reader(self) -> Store:
        try:
            return self._readers.get_nowait()
        except Empty:
            return open_reader(self._url)

    async def close(self) -> None:
        """End the threads, once they have done what they were given."""
        self._closing = True
        await asyncio.to_thread(self._threads.shutdown)
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()


class ThreadedEngine(Engine):
    """An engine that starts at once, and that can fall silent as one does that is killed."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._is_silent = False

    def _table(self) -> Handlers:
        # Here the engine has made its parts and started none of them.
        pool = ThreadPool(self.url, self.settings, self.settings.workers, self.metrics.readers)
        self.pool = self._context.pool = pool
        return super()._table()

    def submit(
        self, principal: Principal, request: Request, answer: Answer, present: AnyPresenter | None = None
    ) -> Abandon:
        """Carry out a request; tell what came of it unless this has fallen silent."""
        return super().submit(principal, request, partial(self._tell, answer), present)

    def _tell(self, answer: Callable[[Reply | PenstockError], None], outcome: Reply | PenstockError) -> None:
        if not self._is_silent:
            answer(outcome)

    def fall_silent(self) -> None:
        """Answer nothing any more: what is under way comes to its end, or not, and nobody is told."""
        self._is_silent = True
