"""Workers: they take events of a queue, call a function with each, and say what became of it.

A worker has several consumers side by side, in threads or in tasks. One of them at a time asks the server, so that an
idle worker waits with one request. When it is to stop, each finishes the event at hand and gives back what it has not
tried.

Both kinds share the coroutine of a consumer. In a thread everything that it awaits blocks, so it never suspends.
"""

import asyncio
import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from penstock.client.blocking import Flag
from penstock.client.consumers import GIVE_BACK_S_MAX, AsyncQueue, QueueBatch, reason_of
from penstock.client.sync import Direct, Queue
from penstock.errors import ClientClosed, InvalidRequest, PenstockError, Retry
from penstock.interrupts import NOTICE_S_MAX
from penstock.model import Event

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

TAKE_S_MAX: Final = 1.0
"""How long one request waits for events: so long an idle worker may take to stop."""
HOLD_S_MAX: Final = 5.0
"""After this time a consumer acknowledges what it has done of a batch, and gives back the rest."""
HOLD_S_MIN: Final = 1.0
"""A consumer that needs less for a batch asks for a larger one."""
GRACE_S: Final = 25.0
"""How long a worker that stops waits for the events at hand; less than Kubernetes gives a process."""
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0
"""Between two attempts to take something from a server that is not there. The pause doubles each time."""
CONCURRENCY_MAX: Final = 1000
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[Event], object]
AsyncHandler = Callable[[Event], Awaitable[object]]
Q = TypeVar("Q", Queue, AsyncQueue)


class Bury(Exception):
    """Raised by a worker's handler: the event becomes a dead letter at once, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Raised by a worker's handler: the event comes again after `delay` seconds; None: as the retry policy says."""

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


_attempt: ContextVar[int] = ContextVar("penstock_attempt", default=1)


def current_attempt() -> int:
    """For a worker's handler: how often the queue has delivered its event by now; 1 for the first time."""
    return _attempt.get()


@dataclass
class WorkerCounts:
    """A worker's events so far, by outcome."""

    acknowledged: int = 0
    retried: int = 0
    """They come again, or became dead letters because it was their last attempt."""
    buried: int = 0
    given_back: int = 0
    """Not tried: an earlier event of their key failed, or the worker stopped, or had the batch for long."""
    lost: int = 0
    """Handled, but not acknowledged, because the lease was lost or the server away: they come again."""
    in_progress: int = 0
    """Events that handlers have now."""
    seconds: float = 0.0
    """How long handlers have worked, in total."""


class Work:
    """A batch in the hands of a consumer: which event comes next, and what became of the others."""

    def __init__(self, worker: "AnyWorker[Any]", batch: QueueBatch) -> None:
        self.batch = batch
        self.begun = monotonic()
        self._worker = worker
        self._lock = threading.Lock()
        self._tried: dict[int, str] = {}
        self._is_over = False
        self._is_counted = False

    def events(self) -> Iterator[Event]:
        """The events to handle, until there is a reason to give back the rest."""
        for event in self.batch:
            is_late = self._tried and monotonic() > self.begun + HOLD_S_MAX
            if is_late or self._is_over or self._worker.is_stopping or self.batch.is_lost:
                return
            if not self.batch.comes_again(event):
                yield event

    @contextmanager
    def handling(self, event: Event) -> Iterator[None]:
        """Call the handler inside: what it raises is the outcome of the event."""
        token = _attempt.set(self.batch.attempt(event))
        begun = monotonic()
        self._worker.count(in_progress=1)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is the reason of a retry, or of a dead letter
            self._note(event, error)
        else:
            self._note(event, None)
        finally:
            self._worker.count(in_progress=-1, seconds=monotonic() - begun)
            _attempt.reset(token)

    def _note(self, event: Event, error: Exception | None) -> None:
        with self._lock:
            if self._is_over:
                return
            if error is None:
                self._tried[event.position] = "acknowledged"
                return
            if isinstance(error, Bury):
                self._tried[event.position] = "buried"
                self.batch.bury(event, error.reason)
            elif isinstance(error, RetryLater):
                self._tried[event.position] = "retried"
                self.batch.retry(event, delay=error.delay, reason=error.reason)
            else:
                self._tried[event.position] = "retried"
                self.batch.retry(event, reason=reason_of(error))
        self._worker.log_failure(self.batch, event, error)

    def end(self) -> None:
        """Give back the events that were not tried. Later results of the handler are ignored."""
        with self._lock:
            if not self._is_over and not self.batch.is_settled:
                for event in self.batch:
                    if event.position not in self._tried:
                        self.batch.give_back(event)
            self._is_over = True

    def count(self, failure: PenstockError | None = None) -> None:
        """Count the outcomes, once. A failure has left all of it unacknowledged."""
        with self._lock:
            outcomes = None if self._is_counted else list(self._tried.values())
            self._is_counted = True
        if outcomes is None:
            return
        if failure is not None:
            log.warning("queue %s: a batch was handled, and not acknowledged: %s", self._worker.queue_name, failure)
            self._worker.count(lost=len(outcomes))
            return
        found = {what: outcomes.count(what) for what in ("acknowledged", "retried", "buried")}
        self._worker.count(**found, given_back=len(self.batch) - len(outcomes))


class AnyWorker(ABC, Generic[Q]):
    """The common part of both kinds of workers."""

    def __init__(
        self, queue: Q, concurrency: int, grace: float, signals: bool, registry: "CollectorRegistry | None"
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidRequest("concurrency", f"is {concurrency}; it must be from 1 to {CONCURRENCY_MAX}")
        self.counts = WorkerCounts()
        self.context, self.queue_name = queue.context, queue.name
        self._queue: Q = queue
        self._concurrency = concurrency
        self._grace = grace
        self._signals = STOP_SIGNALS if signals else ()
        self._lock = threading.Lock()
        self._stops = 0
        self._failure: BaseException | None = None
        if registry is not None:
            _workers_of(registry).add(self)

    # -- what blocks in the one and suspends in the other

    @abstractmethod
    def _turn_to_take(self) -> AbstractAsyncContextManager[object]:
        """Waits until no other consumer takes."""

    @abstractmethod
    def _next(self, queue: Q) -> AbstractAsyncContextManager[QueueBatch]: ...

    @abstractmethod
    async def _handle(self, event: Event) -> None: ...

    @abstractmethod
    async def _settle_soon(self, queue: Q, batch: QueueBatch) -> None: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Wait, unless the worker is to stop."""

    # -- stopping

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    def stop(self) -> None:
        """End soon: finish the events at hand, and give back the rest. A second time: at once, and give back all.

        May be called in any thread, in a handler, and in a signal handler.
        """
        self._stops += 1

    def _fail(self, error: BaseException) -> None:
        """End because of an error, which `run` raises."""
        self._failure = self._failure or error
        if not self.is_stopping:
            self.stop()

    def _is_hopeless(self, until: float | None) -> bool:
        """Whether those that still handle an event must not be waited for any longer."""
        return self._stops > 1 or (until is not None and monotonic() >= until)

    def _result(self) -> WorkerCounts:
        if self._failure is not None:
            raise self._failure
        return self.counts

    # -- one consumer

    async def _consume(self) -> None:
        subscriber = self._queue.another().subscriber
        size, failures = 1, 0
        try:
            while not self.is_stopping:
                try:
                    size = await self._take_and_handle(self._queue.another(subscriber, count=size))
                    failures = 0
                except PenstockError as error:
                    if isinstance(error, ClientClosed) or error.retry is Retry.NEVER:
                        raise
                    log.warning("queue %s: nothing could be taken: %s", self.queue_name, error)
                    pause = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(failures, 16))
                    await self._pause(pause * uniform(0.5, 1.0))  # noqa: S311
                    failures += 1
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._fail(error)

    async def _take_and_handle(self, queue: Q) -> int:
        """How many events to take next: more if these took little time, fewer if they took long.

        What it raises is about taking, or came out of a handler that wants the program to end.
        """
        work: Work | None = None
        try:
            async with AsyncExitStack() as stack:
                async with self._turn_to_take():
                    if self.is_stopping:
                        return queue.count
                    batch = await stack.enter_async_context(self._next(queue))
                if not batch:
                    return queue.count
                work = Work(self, batch)
                try:
                    await self._work(queue, work)
                finally:
                    self._over(work)
            work.count()
        except PenstockError as error:
            if work is None:
                raise
            work.count(error)
            return queue.count
        took = monotonic() - work.begun
        if took > HOLD_S_MAX:
            return max(1, queue.count // 2)
        is_fast = took < HOLD_S_MIN and len(batch) >= queue.count
        return min(self._queue.count, 2 * queue.count) if is_fast else queue.count

    async def _work(self, queue: Q, work: Work) -> None:
        self._began(queue, work)
        try:
            for event in work.events():
                with work.handling(event):
                    await self._handle(event)
        except BaseException:
            # What it has done is acknowledged, and only the rest is given back.
            work.end()
            await self._give_up(queue, work)
            raise
        work.end()

    async def _give_up(self, queue: Q, work: Work) -> bool:
        """Settle a batch whose handler is not waited for. Whether that was possible."""
        work.end()
        try:
            await self._settle_soon(queue, work.batch)
        except PenstockError as error:
            work.count(error)
            return False
        work.count()
        return True

    def _began(self, queue: Q, work: Work) -> None:
        """A consumer has this batch now."""

    def _over(self, work: Work) -> None:
        """It has it no more."""

    # -- figures

    def count(self, **more: float) -> None:
        with self._lock:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def log_failure(self, batch: QueueBatch, event: Event, error: Exception) -> None:
        place = event.position, event.context, event.stream, event.sequence
        # With its traceback unless the handler raised it on purpose.
        trace = None if isinstance(error, Bury | RetryLater) else error
        words = "queue %s: event %d (%s/%s %d) failed at attempt %d: %s"
        log.warning(words, self.queue_name, *place, batch.attempt(event), reason_of(error), exc_info=trace)


class Worker(AnyWorker[Queue]):
    """Handles the events of a queue in threads; see `run_worker`."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        concurrency: int = 1,
        grace: float = GRACE_S,
        signals: bool = True,
        registry: "CollectorRegistry | None" = None,
    ) -> None:
        super().__init__(queue, concurrency, grace, signals, registry)
        self._handler = handler
        self._taking = threading.Lock()
        self._stopped = Flag()
        self._in_hand: dict[Work, Queue] = {}

    def stop(self) -> None:
        super().stop()
        self._stopped.set()

    stop.__doc__ = AnyWorker.stop.__doc__

    def run(self) -> WorkerCounts:
        """Work until `stop`, or in the main thread until SIGTERM or Ctrl-C. Raises what no retry can help."""
        names = (f"penstock-worker-{number}" for number in range(1, self._concurrency + 1))
        threads = [threading.Thread(target=self._run_one, name=name, daemon=True) for name in names]
        until = None
        with self._on_signals():
            try:
                for thread in threads:
                    thread.start()
                while alive := [thread for thread in threads if thread.is_alive()]:
                    if self.is_stopping and until is None:
                        until = monotonic() + self._grace
                    if self._is_hopeless(until):
                        break
                    alive[0].join(NOTICE_S_MAX)
            finally:
                self.stop()
                # A thread cannot be ended. Later results of its handler are ignored.
                for work, queue in list(self._in_hand.items()):
                    if not Direct().run(self._give_up(queue, work)):
                        # The server is away, and the leases will expire.
                        break
        return self._result()

    def _run_one(self) -> None:
        Direct().run(self._consume())

    @contextmanager
    def _on_signals(self) -> Iterator[None]:
        numbers = self._signals if threading.current_thread() is threading.main_thread() else ()
        former = {number: signal.signal(number, lambda *_: self.stop()) for number in numbers}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @asynccontextmanager
    async def _turn_to_take(self) -> AsyncIterator[None]:
        with self._taking:
            yield

    @asynccontextmanager
    async def _next(self, queue: Queue) -> AsyncIterator[QueueBatch]:
        with queue.next(TAKE_S_MAX) as batch:
            yield batch

    async def _handle(self, event: Event) -> None:
        self._handler(event)

    async def _settle_soon(self, queue: Queue, batch: QueueBatch) -> None:
        queue.acknowledge(batch, timeout=GIVE_BACK_S_MAX)

    async def _pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _began(self, queue: Queue, work: Work) -> None:
        self._in_hand[work] = queue

    def _over(self, work: Work) -> None:
        self._in_hand.pop(work, None)


class AsyncWorker(AnyWorker[AsyncQueue]):
    """Handles the events of a queue in tasks; see `run_worker`."""

    def __init__(
        self,
        queue: AsyncQueue,
        handler: AsyncHandler,
        concurrency: int = 1,
        grace: float = GRACE_S,
        signals: bool = True,
        registry: "CollectorRegistry | None" = None,
    ) -> None:
        super().__init__(queue, concurrency, grace, signals, registry)
        self._handler = handler
        self._taking = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        super().stop()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopped.set)

    stop.__doc__ = AnyWorker.stop.__doc__

    async def run(self) -> WorkerCounts:
        """Work until `stop`, or in the main thread until SIGTERM or Ctrl-C. Raises what no retry can help.

        Cancelled, it cancels its handlers and gives back what they have.
        """
        self._loop = asyncio.get_running_loop()
        until = None
        with self._on_signals(self._loop):
            tasks = [asyncio.create_task(self._consume()) for _ in range(self._concurrency)]
            try:
                while pending := [task for task in tasks if not task.done()]:
                    if self.is_stopping and until is None:
                        until = monotonic() + self._grace
                    if self._is_hopeless(until):
                        break
                    await asyncio.wait(pending, timeout=NOTICE_S_MAX)
            finally:
                self.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        return self._result()

    @contextmanager
    def _on_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        numbers = self._signals if threading.current_thread() is threading.main_thread() else ()
        former = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number, handler in former.items():
                loop.remove_signal_handler(number)
                # The loop sets the default instead, and `asyncio.run` has set another handler.
                signal.signal(number, handler)

    def _turn_to_take(self) -> AbstractAsyncContextManager[object]:
        return self._taking

    def _next(self, queue: AsyncQueue) -> AbstractAsyncContextManager[QueueBatch]:
        return queue.next(TAKE_S_MAX)

    async def _handle(self, event: Event) -> None:
        await self._handler(event)

    async def _settle_soon(self, queue: AsyncQueue, batch: QueueBatch) -> None:
        await queue.acknowledge(batch, timeout=GIVE_BACK_S_MAX)

    async def _pause(self, seconds: float) -> None:
        waiting = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()


@overload
def run_worker(
    queue: Queue,
    handler: Handler,
    *,
    concurrency: int = 1,
    grace: float = GRACE_S,
    signals: bool = True,
    registry: "CollectorRegistry | None" = None,
) -> WorkerCounts: ...
@overload
def run_worker(
    queue: AsyncQueue,
    handler: AsyncHandler,
    *,
    concurrency: int = 1,
    grace: float = GRACE_S,
    signals: bool = True,
    registry: "CollectorRegistry | None" = None,
) -> Coroutine[Any, Any, WorkerCounts]: ...
def run_worker(
    queue: Queue | AsyncQueue,
    handler: Callable[[Event], Any],
    *,
    concurrency: int = 1,
    grace: float = GRACE_S,
    signals: bool = True,
    registry: "CollectorRegistry | None" = None,
) -> WorkerCounts | Coroutine[Any, Any, WorkerCounts]:
    """Handle the events of a queue until SIGTERM or Ctrl-C: `run_worker(queue, handler)`, or `await` it on a loop.

    If the handler returns, the event is acknowledged. If it raises an error, the event comes again as the queue's retry
    policy says; RetryLater names another delay, and Bury makes it a dead letter. `concurrency` is how many events are
    handled at once, in threads or tasks. The first signal lets the handlers finish, for at most `grace` seconds; what
    was not tried goes back and does not count as an attempt. The second signal does not wait. `signals=False` leaves
    signals alone. With `registry` the worker's figures are among those of a Prometheus registry.
    """
    options = concurrency, grace, signals, registry
    if isinstance(queue, AsyncQueue):
        return AsyncWorker(queue, handler, *options).run()
    return Worker(queue, handler, *options).run()


# --- Prometheus -----------------------------------------------------------------------------------------------

_registries: "WeakKeyDictionary[CollectorRegistry, WeakSet[AnyWorker[Any]]]" = WeakKeyDictionary()
LABELS: Final = ("context", "queue")
OUTCOMES: Final = ("acknowledged", "retried", "buried", "given_back", "lost")


def _workers_of(registry: "CollectorRegistry") -> "WeakSet[AnyWorker[Any]]":
    """The workers whose figures a registry has."""
    if registry not in _registries:
        _registries[registry] = WeakSet()
        registry.register(WorkerCollector(_registries[registry]))
    return _registries[registry]


class WorkerCollector:
    """Figures of workers, as a collector of a Prometheus registry."""

    def __init__(self, workers: "WeakSet[AnyWorker[Any]]") -> None:
        self._workers = workers

    def collect(self) -> "list[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        events = CounterMetricFamily(
            "penstock_worker_events", "events of a queue, by what became of them", labels=(*LABELS, "outcome")
        )
        seconds = CounterMetricFamily("penstock_worker_handling_seconds", "time that handlers took", labels=LABELS)
        held = GaugeMetricFamily("penstock_worker_in_progress", "events that handlers have now", labels=LABELS)
        for place, all_counts in self._by_queue().items():
            for outcome in OUTCOMES:
                events.add_metric((*place, outcome), sum(getattr(counts, outcome) for counts in all_counts))
            seconds.add_metric(place, sum(counts.seconds for counts in all_counts))
            held.add_metric(place, sum(counts.in_progress for counts in all_counts))
        return [events, seconds, held]

    def _by_queue(self) -> dict[tuple[str, str], list[WorkerCounts]]:
        found: dict[tuple[str, str], list[WorkerCounts]] = {}
        for worker in list(self._workers):
            found.setdefault((worker.context, worker.queue_name), []).append(worker.counts)
        return found
