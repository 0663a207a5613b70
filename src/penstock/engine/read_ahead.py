"""What consumers of a queue will ask for next, read and encoded before they ask.

While a queue has a backlog, one job of a worker prepares many batches. A consumer then gets the next one with a single
write, and consumers of one queue do not take turns: their allocations and acknowledgements share commits. The writer
compares each batch with the queue's marker and version, as it does with every proposal. It refuses a batch that is out
of date, and the consumer asks a worker. Whatever changes queues or hides events drops all batches.

Only for a store with one server, and for queues without an order.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.engine.jobs import EventEncoder, gather, presented, size_of
from penstock.engine.queue_jobs import due_of, lookup_queue
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError
from penstock.model import Encoded, Event, EventFilter, Selection
from penstock.store import Store, contract
from penstock.store.contract import Proposal, QueueState, ReadLimits

BATCHES_AHEAD: Final = 16
"""Batches that one job prepares. The next job begins when half of them are left."""
AHEAD_BYTES_MAX: Final = 1 << 20
"""Bytes of events that one job prepares."""
WINDOWS_MAX: Final = 16
"""Queues with batches that are ready, at a time."""
IDLE_S_MAX: Final = 60.0
"""After so long without a consumer, batches that are ready are dropped when another queue needs some."""

ENDS_READ_AHEAD: Final = frozenset(
    {
        *(contract.HideStream, contract.HideEvents, contract.DeleteLog),
        *(contract.MoveQueue, contract.ChangeQueue, contract.DeleteQueue),
    }
)
"""Operations after which nothing that was prepared may be handed out."""


class Ready(NamedTuple):
    """A batch that nobody has: where the queue's marker must be, what is allocated, and its events."""

    proposal: Proposal
    events: list[Event]
    encoded: Encoded | None


class Ahead(NamedTuple):
    """What a job has prepared. `next` is where to go on; `end`: there is no more that could be prepared now."""

    queue: QueueState
    batches: list[Ready]
    next: int
    end: bool
    is_exhausted: bool


def prepare(
    store: Store,
    name: str,
    context: str,
    position: int,
    count: int,
    limits: ReadLimits,
    present: EventEncoder | None,
) -> Ahead:
    """Whole batches of `count` events from a position on, or from the queue's marker if that is further."""
    queue = lookup_queue(store, name, context)
    marker = max(position, queue.position)
    if queue.ordered or queue.paused:
        return Ahead(queue, [], marker, True, False)
    bytes_max = min(limits.bytes_max, AHEAD_BYTES_MAX)
    page = gather(store, queue.wanted, marker, BATCHES_AHEAD * count, limits._replace(bytes_max=bytes_max))
    now = store.now()
    batches: list[Ready] = []
    for start, end in pairwise(range(0, len(page.events) + 1, count)):
        events = page.events[start:end]
        # A consumer gets at most a page at a time, and a scheduled event an allocation of its own.
        if size_of(events) > limits.bytes_max or any(due_of(event) > now for event in events):
            break
        first, last = events[0].position, events[-1].position
        proposal = Proposal(Proposal.FRESH, marker, last + 1, first, last, count, queue.version)
        batches.append(Ready(proposal, *presented(events, present)))
        marker = last + 1
    return Ahead(queue, batches, marker, page.end or not batches, bool(store.exhausted(queue.id, 1)))


class _Window:
    """The batches that are ready for one queue, of one size and encoding."""

    def __init__(self, count: int, present: EventEncoder | None) -> None:
        self.count = count
        self.present = present
        self.queue: QueueState | None = None
        self.batches: deque[Ready] = deque()
        self.next = 0
        self.end = False
        self.loading: asyncio.Task[None] | None = None
        self.used = time.monotonic()

    def fits(self, request: model.SubscribeQueue, present: EventEncoder | None) -> bool:
        """Whether a consumer asks for what is prepared, and for the queue as it is."""
        queue = self.queue
        return (
            queue is not None
            and (self.count, self.present) == (request.count, present)
            and EventFilter(request.context, request.filter).prefix == queue.filter
            and not request.ordered
            and (request.selection is None or Selection.parsed(request.selection).text == queue.selection)
        )


class ReadAhead:
    """The windows of all queues, on the loop's thread."""

    def __init__(self, pool: Callable[[], WorkerPool], limits: ReadLimits, is_shared: Callable[[], bool]) -> None:
        # An engine of tests replaces its pool.
        self._pool = pool
        self._is_shared = is_shared
        self._limits = limits
        self._windows: dict[tuple[str, str], _Window] = {}

    def forget(self) -> None:
        """Queues or events change: nothing that was prepared, or is being prepared, may be handed out."""
        for window in self._windows.values():
            if window.loading is not None:
                window.loading.cancel()
        self._windows.clear()

    def drop(self, context: str, name: str) -> None:
        window = self._windows.pop((context, name), None)
        if window is not None and window.loading is not None:
            window.loading.cancel()

    def known(self, context: str | None, name: str) -> QueueState | None:
        """A queue as it is, but for its marker."""
        window = self._windows.get((context or "", name))
        return None if window is None else window.queue

    def begin(self, request: model.SubscribeQueue, present: EventEncoder | None) -> None:
        """A queue has a backlog: prepare batches like the one that was just handed out."""
        key = request.context, request.queue
        if not request.several or key in self._windows or self._is_shared() or request.count > self._limits.events_max:
            return
        if len(self._windows) >= WINDOWS_MAX:
            oldest = min(self._windows, key=lambda one: self._windows[one].used)
            if time.monotonic() - self._windows[oldest].used < IDLE_S_MAX:
                return
            self.drop(*oldest)
        self._windows[key] = window = _Window(request.count, present)
        self._load(key, window)

    async def next(
        self, request: model.SubscribeQueue, present: EventEncoder | None
    ) -> tuple[QueueState, Ready] | None:
        """The next batch that is ready, if this consumer may get one; waits for one that is being prepared."""
        key = request.context, request.queue
        window = self._windows.get(key)
        if window is not None and not window.batches and window.loading is not None:
            await asyncio.wait({window.loading})
            window = self._windows.get(key)
        if window is None:
            return None
        if not window.batches:
            if window.loading is None:
                # The backlog is used up.
                self.drop(*key)
            return None
        if window.queue is None or not window.fits(request, present):
            return None
        window.used = time.monotonic()
        ready = window.batches.popleft()
        if window.loading is None and not window.end and len(window.batches) < BATCHES_AHEAD // 2:
            self._load(key, window)
        return window.queue, ready

    async def _run(self, *job: Any) -> Any:
        return await self._pool().run(*job)

    def _load(self, key: tuple[str, str], window: _Window) -> None:
        window.loading = asyncio.get_running_loop().create_task(self._loaded(key, window))

    async def _loaded(self, key: tuple[str, str], window: _Window) -> None:
        context, name = key
        asked = (name, context, window.next, window.count, self._limits, window.present)
        try:
            ahead: Ahead = await self._run(prepare, *asked)
        except PenstockError:
            # The consumer asks a worker itself, and gets the error if there still is one.
            self._windows.pop(key, None)
            return
        finally:
            window.loading = None
        window.queue, window.next, window.end = ahead.queue, ahead.next, ahead.end or ahead.is_exhausted
        window.batches.extend(ahead.batches)
