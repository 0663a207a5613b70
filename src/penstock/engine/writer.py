"""Group commit: the writer writes all requests that wait in one transaction with one fsync.

The event loop's thread collects requests and delivers their answers. At the end of a turn of the loop it writes a small
batch itself, if the store is quick and the writer's thread is idle: two hand-overs between threads would take longer
than the fsync. Everything else goes to the writer's thread. During the fsync of its commit, new requests gather for the
next one.

If the store fails, all waiting requests get the error, and the writer retries until the store recovers. A store that
only refuses to write (NotDurable) still answers repeats of what it has written.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from msgspec import Struct

from penstock.engine.metrics import Metrics
from penstock.engine.traffic import CURRENT, NOTED_S_MIN, Trace
from penstock.engine.wakeups import Wakeups
from penstock.errors import (
    Closed,
    LimitExceeded,
    NotDurable,
    PenstockError,
    StoreError,
    Unexpected,
    WriterBusy,
    WriterTimeout,
)
from penstock.model import Appended
from penstock.model.times import TICKS_PER_SECOND, now_ticks
from penstock.settings import Settings
from penstock.store import Store
from penstock.store.contract import (
    Acknowledge,
    Allocate,
    BatchTimes,
    Commit,
    Outcome,
    Placed,
    Progress,
    RequireLog,
    Transaction,
)

log = logging.getLogger(__name__)

RECOVERY_PAUSE_S: Final = 0.1
"""How long requests gather between two attempts to bring a failed store back."""

OnOutcome = Callable[[Outcome], None]
OPERATION_BYTES: Final = 256
"""The size of an operation in the writer's queue, without its events."""
PART_REQUESTS_MIN: Final = 32
"""When a turn of the loop has so many requests, or half as many as the last turn, they are written before the others
are decoded: clients get the first answers earlier."""
INLINE_BYTES_MAX: Final = 64 << 10
INLINE: Final = frozenset((Acknowledge, Allocate, Commit, Progress, RequireLog))
"""Operations that take microseconds."""
INLINE_PAUSE: Final = 100
"""After a batch that took too long, the writer's thread writes everything for so many times as long. So the loop's
thread waits for a slow disk at most a hundredth of its time."""


class _Item(Struct, frozen=True):
    transaction: Transaction
    size: int
    since: float
    answer: OnOutcome
    trace: Trace | None = None


RECOVER: Final = _Item(Transaction(()), 0, 0.0, lambda _: None)
"""In the queue: the loop's thread has met a failure of the store."""


class Writer:
    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, settings: Settings, metrics: Metrics, wakeups: Wakeups
    ) -> None:
        self._store = store
        self._loop = loop
        self._settings = settings
        self._metrics = metrics
        self._wakeups = wakeups
        self._clock = ClockWatch(metrics)
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self.waiting = 0
        """Requests in the queue and in the current batch."""
        self._waiting_bytes = 0
        self._arrived: list[_Item] = []
        """Requests that neither thread has begun."""
        self._arrived_bytes = 0
        self._turn_requests = 0
        self._part_requests = PART_REQUESTS_MIN
        self._is_delivering = False
        self._inline_s_max = settings.inline_commit_us_max / 1e6
        self._inline_after = 0.0 if settings.inline_commit_us_max else math.inf
        self._closing = False
        self._failure: PenstockError | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-writer", daemon=True)

    def start(self) -> None:
        self._clock.look(self._store.batch_times)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Why the store takes no writes; None if the last write succeeded, or the store recovered since."""
        failure = self._failure
        if failure is not None:
            return failure.reason if isinstance(failure, StoreError) else str(failure)
        return None if self._thread.is_alive() else "the thread that writes has ended"

    def submit(self, transaction: Transaction, size: int, answer: OnOutcome) -> None:
        """Queue a transaction of some bytes; `answer` is called on the loop's thread. Raises if there is no room."""
        if self._closing:
            raise Closed
        size += OPERATION_BYTES * len(transaction.operations)
        if size > self._settings.writer_queue_bytes_max:
            raise LimitExceeded("writer_queue_bytes_max", size, self._settings.writer_queue_bytes_max)
        if (
            self.waiting >= self._settings.writer_queue_max
            or self._waiting_bytes + size > self._settings.writer_queue_bytes_max
        ):
            self._metrics.refused["writer_busy"] += 1
            raise WriterBusy(self.waiting)
        self.waiting += 1
        self._waiting_bytes += size
        self._arrived.append(_Item(transaction, size, time.monotonic(), answer, CURRENT.get()))
        self._arrived_bytes += size
        self._turn_requests += 1
        if self._turn_requests == 1:
            self._loop.call_soon(self._end_turn)
        elif self._turn_requests % self._part_requests == 0 and not self._is_delivering:
            self._begin()

    async def close(self) -> None:
        """Refuse new requests, finish the queued ones, end the thread."""
        self._closing = True
        self._hand_over(self._arrived)
        self._arrived = []
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _end_turn(self) -> None:
        self._part_requests = max(PART_REQUESTS_MIN, self._turn_requests // 2)
        self._turn_requests = 0
        self._begin()

    def _begin(self) -> None:
        """Write the requests that have arrived, or hand them to the writer's thread."""
        batch, now = self._arrived, time.monotonic()
        if not batch:
            return
        may_be_quick = (
            self._failure is None
            and self._inline_after <= now
            and self._arrived_bytes <= INLINE_BYTES_MAX
            and now - batch[0].since <= self._settings.writer_wait_ms_max / 1000
            and self._store.is_quick
        )
        if may_be_quick and self.waiting > len(batch):
            # The thread is busy. When its batch is done, the loop may write these.
            return
        self._arrived, self._arrived_bytes = [], 0
        if may_be_quick and all(type(op) in INLINE for item in batch for op in item.transaction.operations):
            self._write_here(batch, now)
        else:
            self._hand_over(batch)

    def _hand_over(self, batch: list[_Item]) -> None:
        for item in batch:
            self._queue.put(item)

    def _write_here(self, batch: list[_Item], started: float) -> None:
        try:
            outcomes = self._attempt([item.transaction for item in batch])
        except BaseException as error:
            self._failed(Unexpected(repr(error)))
            self._queue.put(RECOVER)
            if not isinstance(error, Exception):
                # An interrupt of the program around this engine. Only the disk knows whether the batch was committed.
                self._deliver(batch, [Unexpected("the write was interrupted")] * len(batch), started)
                raise
            log.exception("a transaction could not be carried out")
            # One of them is at fault: the thread carries them out one by one.
            self._hand_over(batch)
            return
        took = time.monotonic() - started
        if took > self._inline_s_max:
            self._inline_after = started + took + INLINE_PAUSE * took
        self._deliver(batch, outcomes, started)
        if self._failure is not None:
            self._queue.put(RECOVER)

    # -- on the writer's thread

    def _work(self) -> None:
        going = True
        while going:
            batch: list[_Item] = []
            try:
                batch, going = self._gather()
                started = time.monotonic()
                self._deliver_soon(batch, self._write(batch), started)
                if self._failure is not None:
                    self._recover()
            except Exception as error:
                # After any error every request gets an answer, and the thread goes on.
                log.exception("the writer stumbled")
                self._deliver_soon(batch, [Unexpected(repr(error))] * len(batch), time.monotonic())
        self._loop.call_soon_threadsafe(self._ended.set)

    def _gather(self) -> tuple[list[_Item], bool]:
        """Everything that waits, at most one batch; and whether to go on after it."""
        first = self._queue.get()
        if first is None or first is RECOVER:
            return [], first is RECOVER
        batch, size = [first], first.size
        requests_max, bytes_max = self._settings.batch_requests_max, self._settings.batch_bytes_max
        try:
            while len(batch) < requests_max and size < bytes_max:
                item = self._queue.get_nowait()
                if item is None or item is RECOVER:
                    return batch, item is RECOVER
                batch.append(item)
                size += item.size
        except Empty:
            pass
        return batch, True

    def _write(self, batch: list[_Item]) -> list[Outcome]:
        if not batch:
            return []
        oldest = time.monotonic() - self._settings.writer_wait_ms_max / 1000
        if batch[0].since >= oldest:
            return self._commit([item.transaction for item in batch])
        outcomes: list[Outcome] = [WriterTimeout(self._settings.writer_wait_ms_max) for _ in batch]
        living = [index for index, item in enumerate(batch) if item.since >= oldest]
        for index, outcome in zip(living, self._commit([batch[i].transaction for i in living]), strict=True):
            outcomes[index] = outcome
        return outcomes

    def _commit(self, transactions: list[Transaction]) -> list[Outcome]:
        if self._failure is not None and not isinstance(self._failure, NotDurable):
            return [self._failure] * len(transactions)
        if not transactions:
            return []
        try:
            return self._attempt(transactions)
        except Exception as error:
            log.exception("a transaction could not be carried out")
            self._has_recovered()
            if len(transactions) == 1:
                return [self._failure or Unexpected(repr(error))]
            # One of them is at fault; carry the others out one by one.
            return [outcome for transaction in transactions for outcome in self._commit([transaction])]

    def _attempt(self, transactions: list[Transaction]) -> list[Outcome]:
        started = time.perf_counter()
        try:
            outcomes = self._store.write(transactions)
        except StoreError as error:
            log.warning("the store failed: %s", error.reason)
            self._failed(error)
            return [error] * len(transactions)
        for refusal in outcomes:
            if isinstance(refusal, NotDurable):
                if str(self._failure) != str(refusal):
                    log.warning("the store takes no writes: %s", refusal.reason)
                self._failed(refusal)
                return outcomes
        self._clock.look(self._store.batch_times)
        self._metrics.batch_seconds.add(time.perf_counter() - started)
        self._metrics.commit_seconds.add(self._store.commit_s)
        self._metrics.batch_requests.add(len(transactions))
        return outcomes

    def _recover(self) -> None:
        """Retry until the store recovers. Until then new requests get the error."""
        while not self._has_recovered() and not self._closing:
            waiting, started = self._drain(), time.monotonic()
            self._deliver_soon(waiting, self._commit([item.transaction for item in waiting]), started)
            time.sleep(RECOVERY_PAUSE_S)

    def _has_recovered(self) -> bool:
        try:
            self._store.recover()
        except Exception as error:  # noqa: BLE001 - every waiting request gets it, and the writer retries
            if self._failure is None or str(self._failure) != str(error):
                log.warning("the store is not usable: %s", error)
            self._failed(error if isinstance(error, PenstockError) else Unexpected(repr(error)))
            return False
        if self._failure is not None:
            log.warning("the store works again")
        self._failure = None
        self._metrics.store_up = True
        return True

    def _failed(self, error: PenstockError) -> None:
        self._failure = error
        self._metrics.store_up = False

    def _drain(self) -> list[_Item]:
        items: list[_Item] = []
        try:
            while True:
                item = self._queue.get_nowait()
                if item is None:
                    self._queue.put(None)
                    return items
                if item is not RECOVER:
                    items.append(item)
        except Empty:
            return items

    def _deliver_soon(self, batch: list[_Item], outcomes: list[Outcome], started: float) -> None:
        if batch:
            self._loop.call_soon_threadsafe(self._deliver_here, batch, outcomes, started)

    # -- on the loop's thread again

    def _deliver_here(self, batch: list[_Item], outcomes: list[Outcome], started: float) -> None:
        self._deliver(batch, outcomes, started)
        # Requests may have waited for the thread.
        self._begin()

    def _deliver(self, batch: list[_Item], outcomes: list[Outcome], started: float) -> None:
        """Answer requests that the writer began at a time."""
        now = time.monotonic()
        self._metrics.writer_wait_seconds.add(max(0.0, started - batch[0].since))
        if now - batch[0].since >= NOTED_S_MIN:
            for item in batch:
                if item.trace is not None:
                    item.trace.written(started - item.since, now - started)
        touched: set[tuple[str, str]] = set()
        commits = events = head = 0
        for item, outcome in zip(batch, outcomes, strict=True):
            self.waiting -= 1
            self._waiting_bytes -= item.size
            if isinstance(outcome, list):
                for op, result in zip(item.transaction.operations, outcome, strict=True):
                    # Positions are given out in order, so that the last one is the highest.
                    if isinstance(op, Commit):
                        if isinstance(result, Appended) and not result.repeated:
                            touched.add((op.context, op.stream))
                            commits += 1
                            events += result.count
                            head = result.position + result.count - 1
                    elif isinstance(result, Placed) and result.published.events and not result.published.repeated:
                        published = result.published
                        touched |= result.streams
                        commits += published.commits
                        events += published.events
                        head = published.position + published.events - 1
        self._metrics.commits += commits
        self._metrics.events += events
        if touched:
            self._wakeups.committed(touched, head)
        self._is_delivering = True
        for item, outcome in zip(batch, outcomes, strict=True):
            try:
                item.answer(outcome)
            except Exception:
                log.exception("an answer could not be delivered")
        self._is_delivering = False


JUMP_S: Final = 10.0
"""By how much the clock may differ from the time that has passed, and recorded times from the clock."""


def _elapsed_s() -> float:
    """Seconds of a clock that cannot be set and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockWatch:
    """Compares the clock of each batch with the time that has passed since the batch before."""

    def __init__(
        self, metrics: Metrics, elapsed_s: Callable[[], float] = _elapsed_s, clock: Callable[[], int] = now_ticks
    ) -> None:
        self._elapsed_s = elapsed_s
        self._clock = clock
        self._last: tuple[BatchTimes, int] | None = None
        """The last batch, and what this machine's clock said then."""
        metrics.recorded_ahead_s = self.ahead_s
        self._offset: float | None = None
        self._is_ahead = False

    def look(self, times: BatchTimes) -> None:
        """Log what the last batch shows, or the store as it was opened; once for each jump."""
        self._last = times, self._clock()
        offset = times.now / TICKS_PER_SECOND - self._elapsed_s()
        if self._offset is not None and abs(jump := offset - self._offset) > JUMP_S:
            log.warning("the clock jumped by %+.0f s; see 'The clock' in docs/operations.md", jump)
        self._offset = offset
        ahead = (times.recorded - times.now) / TICKS_PER_SECOND
        if (ahead > JUMP_S) is self._is_ahead:
            return
        self._is_ahead = not self._is_ahead
        if self._is_ahead:
            log.warning("events are recorded %.0f s ahead of the clock until it has caught up", ahead)
        else:
            log.warning("the clock has caught up with recorded times")

    def ahead_s(self) -> float:
        """How far recorded times are ahead of the store's clock now, also where nothing has been written for long.

        The store's clock may be that of another machine; since the last batch it went on as this one's did.
        """
        if self._last is None:
            return 0.0
        times, then = self._last
        return max(0, times.recorded - times.now - (self._clock() - then)) / TICKS_PER_SECOND
