"""The pool of worker processes, on the event loop's side.

Each worker does one job at a time; further jobs wait in a bounded queue. The pool kills and replaces a worker that dies
or takes too long, and its caller gets an error.
"""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Protocol, cast

from penstock.engine.metrics import PoolCounts
from penstock.engine.traffic import CURRENT, JOB, WORKER, Trace
from penstock.engine.wakeups import resolve
from penstock.engine.worker_protocol import (
    BYTES_MAX,
    Opening,
    Spares,
    Unframer,
    Unreadable,
    frame,
    load,
    load_answer,
    returned_by,
)
from penstock.errors import Closed, ReaderBusy, ReaderTimeout, StorageFailure, Unexpected, WorkerDied
from penstock.settings import Settings

log = logging.getLogger(__name__)

HELD: Final = (signal.SIGINT, signal.SIGTERM)
"""They reach the whole process group, and a worker that has just started cannot ignore them yet."""
RESTART_PAUSE_S: Final = 0.2
"""Before a worker that died is replaced, so that one that cannot start does not spin."""
REAP_PAUSE_S: Final = 0.02
JOB_CALLS: Final = 4
"""A Lua worker's job may take this many calls of a function longer than other jobs."""
STATES_MAX: Final = 8
"""The largest accumulators that fit into an answer of a Lua worker; more than three are rare."""
ANSWER_BYTES: Final = 16 << 20
"""The size of the rest of an answer."""
NICENESS: Final = 5
"""Workers yield to the server where cores are scarce."""
SEALER_NICENESS: Final = 10
"""The sealer yields even more: a reader waits for its answer, no client waits for a seal."""
ALARM_S: Final = 0.001
"""The alarm goes off this much after a read's time is up, so that it is surely up."""

Job = Callable[..., Any]
"""A function of a module, called in the worker with its store and the arguments."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job that waits for a worker. The pool pickles it when a worker is idle: a copy that waits would double the
    memory of a large request."""

    job: Job
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)
    trace: Trace | None = field(default_factory=CURRENT.get)

    def forget(self, _answer: asyncio.Future[Any]) -> None:
        """Drop the arguments of a job that the caller has given up: it may stay in the queue for long."""
        self.arguments = ()


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


def start_process(descriptor: int, niceness: int) -> Process:
    """Start a worker on its end of a socket pair. This takes a millisecond or two, and only when a worker starts."""
    command = [sys.executable, "-m", "penstock.engine.worker", str(descriptor), str(niceness)]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)  # noqa: S603


class WorkerPool:
    runs_lua: ClassVar = False

    def __init__(self, url: str, settings: Settings, size: int, counts: PoolCounts, niceness: int = NICENESS) -> None:
        self._url = url
        self._settings = settings
        self._size = size
        self._counts = counts
        self._niceness = niceness
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_gone = asyncio.Event()
        self.spares = Spares()
        self.missing: list[str] = []
        """Means of confinement that this system lacks, if the workers run Lua."""

    async def start(self) -> None:
        """Start all workers; they are ready when this returns."""
        await asyncio.gather(*(self._spawn() for _ in range(self._size)))

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def run(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        """Run a job in a worker; a future with its result."""
        if self._closing:
            raise Closed
        if len(self._waiting) >= self._settings.reader_queue_max:
            self._waiting = deque(item for item in self._waiting if not item.answer.done())
            if len(self._waiting) >= self._settings.reader_queue_max:
                self._counts.refused += 1
                raise ReaderBusy(len(self._waiting))
        return self._enter(_Waiting(job, arguments, self._loop.create_future()), self._waiting.append)

    def run_first(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        """Run one of the server's own jobs before all that wait, however many these are."""
        if self._closing:
            raise Closed
        return self._enter(_Waiting(job, arguments, self._loop.create_future()), self._waiting.appendleft)

    def _enter(self, item: "_Waiting", put: Callable[["_Waiting"], None]) -> asyncio.Future[Any]:
        put(item)
        answer = item.answer
        self._dispatch()
        if self._waiting:
            answer.add_done_callback(item.forget)
        return answer

    async def close(self) -> None:
        """End all workers, and fail the jobs that wait."""
        self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        while self._waiting:
            resolve(self._waiting.popleft().answer, Closed())
        for worker in list(self._workers):
            worker.close()
        if self._workers:
            await self._all_gone.wait()

    def _dispatch(self) -> None:
        now, wait_s = time.monotonic(), self._settings.reader_wait_ms_max / 1000
        while self._waiting and (self._idle or self._waiting[0].since < now - wait_s):
            item = self._waiting.popleft()
            if item.answer.done():
                continue  # The caller has given up.
            if item.since < now - wait_s:
                resolve(item.answer, ReaderTimeout(self._settings.reader_wait_ms_max))
            else:
                self._give(item)
        if self._waiting and self._alarm is None:
            # All workers may be busy, or none can start: waiting jobs fail in time all the same.
            self._alarm = self._loop.call_later(self._waiting[0].since + wait_s - now + ALARM_S, self._ring)

    def _give(self, item: _Waiting) -> None:
        try:
            message = b"".join(frame((item.job, item.arguments)))
        except Exception as error:
            log.exception("a job cannot be sent to a worker")
            resolve(item.answer, Unexpected(repr(error)))
        else:
            if item.trace is not None:
                item.trace.waited(WORKER, time.monotonic() - item.since)
            self._idle.pop().begin(message, item.answer, self._settings.worker_job_ms_max / 1000, item.job, item.trace)

    def _ring(self) -> None:
        self._alarm = None
        self._dispatch()

    async def _spawn(self) -> None:
        if self._closing:
            return
        ours, theirs = socket.socketpair()
        # The process begins with these signals blocked, and unblocks them itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        try:
            with theirs:
                process = start_process(theirs.fileno(), self._niceness)
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        worker = _Worker(self, process)
        # From here on it must end before the pool does.
        self._workers.add(worker)
        try:
            await self._loop.create_connection(lambda: worker, sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            self._reap(worker)
            raise
        if not self._closing:
            ready: asyncio.Future[Any] = self._loop.create_future()
            opening = b"".join(frame(Opening(self._url, self.runs_lua)))
            worker.begin(opening, ready, self._settings.worker_job_ms_max / 1000, _opening)
            self._opened(await ready)

    def _opened(self, missing: list[str]) -> None:
        """Called with the means of confinement that a new worker lacks."""
        if missing and not self.missing:
            self.missing = missing
            log.warning("Lua workers keep more rights than they need; this system lacks %s", ", ".join(missing))

    # -- what workers answer

    answer_bytes_max = BYTES_MAX

    def load(self, data: memoryview, _job: Job) -> Any:
        """The answer to a job. These workers run only our own code, so a pickle is safe."""
        return load(data)

    # -- told by workers

    def finished(self, worker: "_Worker") -> None:
        self._counts.jobs += 1
        self._idle.append(worker)
        self._dispatch()

    def lost(self, worker: "_Worker") -> None:
        """A worker died, was killed, or left after its last answer."""
        if worker in self._idle:
            self._idle.remove(worker)
        self._reap(worker)
        if not self._closing:
            self._counts.replaced += 1
            log.warning("worker process %d died; starting another", worker.process.pid)
            self._loop.call_later(RESTART_PAUSE_S, self._replace)

    def _replace(self) -> None:
        if not self._closing:
            self._loop.create_task(self._spawn()).add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        # A worker that dies while it starts is replaced because it died; here is one that could not be started.
        if isinstance(error, OSError):
            log.warning("a worker process could not be started; trying again: %s", error)
            self._loop.call_later(RESTART_PAUSE_S, self._replace)

    def _reap(self, worker: "_Worker") -> None:
        if worker.process.poll() is None:
            self._loop.call_later(REAP_PAUSE_S, self._reap, worker)
        else:
            self._workers.discard(worker)
            if self._closing and not self._workers:
                self._all_gone.set()


class LatePool(WorkerPool):
    """Workers that start with the first job: many servers never have one."""

    _has_started = False

    def _enter(self, item: _Waiting, put: Callable[[_Waiting], None]) -> asyncio.Future[Any]:
        answer = super()._enter(item, put)
        if not self._has_started:
            self._has_started = True
            for _ in range(self._size):
                self._replace()
        return answer


class LuaPool(LatePool):
    """Workers that run the functions of iterators."""

    runs_lua = True

    def __init__(self, url: str, settings: Settings, counts: PoolCounts) -> None:
        # A function that takes too long is stopped inside its worker, and what came before it is kept. Killing the
        # worker is for what that cannot stop, and must not come first.
        job_ms_max = settings.worker_job_ms_max + JOB_CALLS * settings.iterator_call_ms_max
        super().__init__(url, replace(settings, worker_job_ms_max=job_ms_max), settings.lua_workers, counts)
        # The items of a page or a step with one that is too many, and the accumulators of its points.
        largest = max(settings.event_bytes_max, settings.iterator_result_bytes_max)
        self.answer_bytes_max = settings.page_bytes_max + STATES_MAX * largest + ANSWER_BYTES

    def run(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        """Run a job in a worker; retry once, because a worker that lost its store may be unable to reopen it."""
        return self._loop.create_task(self._run_twice(partial(super().run, job, *arguments)))

    async def _run_twice(self, run: Callable[[], asyncio.Future[Any]]) -> Any:
        try:
            return await run()
        except StorageFailure:
            return await run()

    def load(self, data: memoryview, job: Job) -> Any:
        """The answer to a job; an attacker inside the worker may have made it."""
        return load_answer(data, returned_by(job))


class _Worker(asyncio.BufferedProtocol):
    """One worker process and the job it does."""

    def __init__(self, pool: WorkerPool, process: Process) -> None:
        self._pool = pool
        self.process = process
        self._unframer = Unframer(self._load, pool.answer_bytes_max, pool.spares)
        self._job: Job = _opening
        self._answer: asyncio.Future[Any] | None = None
        self._trace: Trace | None = None
        self._begun = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._reason = "died"
        self._transport: asyncio.Transport | None = None
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closing:
            transport.close()

    def begin(
        self, message: bytes, answer: asyncio.Future[Any], seconds: float, job: Job, trace: Trace | None = None
    ) -> None:
        """Send a job; kill the process if the job takes longer."""
        self._answer, self._job = answer, job
        self._trace, self._begun = trace, time.monotonic()
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._too_long)
        assert self._transport is not None
        self._transport.write(message)

    def _too_long(self) -> None:
        self._reason = "took too long and was stopped"
        self.process.kill()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._unframer.space

    def _load(self, data: memoryview) -> Any:
        if self._answer is None:
            raise Unreadable("it was not asked")
        return self._pool.load(data, self._job)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for _succeeded, result, stays in self._unframer.received(nbytes):
                if (answer := self._clear()) is not None:
                    # The result of a job that failed is its error.
                    resolve(answer, result)
                if stays:
                    self._pool.finished(self)
                else:
                    self._stop()
        except Unreadable as error:
            log.warning("worker process %d sent what cannot be read: %s", self.process.pid, error)
            self._reason = "sent what cannot be read and was stopped"
            self._stop()

    def _stop(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self.process.kill()
        answer = self._clear()
        if answer is not None:
            resolve(answer, WorkerDied(self._reason))
        self._pool.lost(self)

    def _clear(self) -> asyncio.Future[Any] | None:
        if self._alarm is not None:
            self._alarm.cancel()
        answer, self._answer = self._answer, None
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.waited(JOB, time.monotonic() - self._begun)
        return answer

    def close(self) -> None:
        """End the process, at the latest when it is connected."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()


def _opening() -> list[str]:
    """The type of a worker's first answer."""
    return []
