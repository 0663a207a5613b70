"""The next batches of a queue, read and encoded before its consumers ask for them.

While a queue has a backlog, one job of a worker prepares many batches. A consumer then gets the next one with a single
write, and consumers of one queue do not take turns: their allocations and acknowledgements share commits. The writer
compares each batch with the queue's marker and version, as it does with every proposal. It refuses a batch that is out
of date, and the consumer asks a worker. Every write that changes queues or hides events drops all batches.

The writer also refuses a batch of an ordered queue when one of its keys is in use, or when the queue has earlier events
to hand out. Then the server prepares no batches of this queue for a while. It does all this only while it is alone on
its store.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.engine.jobs import EventEncoder, gather, presented, size_of
from penstock.engine.queue_jobs import due_of, lookup_queue, parts_of
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
REST_S: Final = 1.0
"""How long the server prepares no batches of an ordered queue after one was refused, because consumers have its keys.
Also how long batches of one size stay for consumers of that size, while other consumers ask for another size."""
KNOWN_MAX: Final = 1000
"""Queues whose rules are remembered."""
IDLE_S_MAX: Final = 60.0
"""After so long without a consumer, a queue loses its batches when another queue needs some."""

ENDS_READ_AHEAD: Final = frozenset(
    {
        *(contract.HideStream, contract.HideEvents, contract.DeleteLog),
        *(contract.MoveQueue, contract.ChangeQueue, contract.DeleteQueue),
    }
)
"""Operations after which the server may hand out no batch that it had prepared before."""


class Ready(NamedTuple):
    """A prepared batch: the operation that allocates it, still without a subscriber, and its events."""

    operation: contract.Allocate | contract.AllocateParts
    events: list[Event]
    encoded: Encoded | None


class Ahead(NamedTuple):
    """The batches that a job has prepared. `next` is where to go on; `end`: now there are no more to prepare."""

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
    if queue.paused:
        return Ahead(queue, [], marker, True, False)
    bytes_max = min(limits.bytes_max, AHEAD_BYTES_MAX)
    page = gather(store, queue.wanted, marker, BATCHES_AHEAD * count, limits._replace(bytes_max=bytes_max))
    now = store.now()
    batches: list[Ready] = []
    for start, end in pairwise(range(0, len(page.events) + 1, count)):
        events = page.events[start:end]
        # A consumer gets at most a page at a time, and a scheduled event needs a separate allocation.
        if size_of(events) > limits.bytes_max or any(due_of(event) > now for event in events):
            break
        operation = _operation(queue, events, marker, now)
        batches.append(Ready(operation, *presented(events, present)))
        marker = events[-1].position + 1
    return Ahead(queue, batches, marker, page.end or not batches, bool(store.exhausted(queue.id, 1)))


def _operation(
    queue: QueueState, events: list[Event], marker: int, now: int
) -> contract.Allocate | contract.AllocateParts:
    first, last, version = events[0].position, events[-1].position, queue.version
    if queue.ordered:
        held = tuple(parts_of(queue, events, now, len(events)))
        return contract.AllocateParts(queue.id, "", 0, marker, last + 1, held=held, version=version, ahead=True)
    return contract.Allocate(
        queue.id, "", 0, Proposal(Proposal.FRESH, marker, last + 1, first, last, len(events), version)
    )


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
        """Whether a consumer asks for batches such as these, and names no other rules than the queue has."""
        queue = self.queue
        return (
            queue is not None
            and (self.count, self.present) == (request.count, present)
            and EventFilter(request.context, request.filter).prefix == queue.filter
            and request.ordered in (None, queue.ordered)
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
        self._resting: dict[tuple[str, str], float] = {}
        """Until when the server prepares no batches of some queues."""
        self._known: dict[tuple[str, str], QueueState] = {}
        self.changes = 0
        """How often queues or events have changed."""

    def forget(self) -> None:
        """Queues or events change: hand out no batch that is prepared, or that a job is preparing."""
        for window in self._windows.values():
            if window.loading is not None:
                window.loading.cancel()
        self._windows.clear()
        self._resting.clear()
        self._known.clear()
        self.changes += 1

    def remember(self, queue: QueueState, changes: int) -> None:
        """A queue as a worker has read it, after so many changes."""
        if changes == self.changes and not self._is_shared():
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[queue.context, queue.name] = queue

    def refused(self, queue: QueueState) -> None:
        """A batch was out of date."""
        self.drop(queue.context, queue.name)
        if queue.ordered:
            self._resting[queue.context, queue.name] = time.monotonic() + REST_S

    def drop(self, context: str, name: str) -> None:
        window = self._windows.pop((context, name), None)
        if window is not None and window.loading is not None:
            window.loading.cancel()

    def known(self, context: str | None, name: str) -> QueueState | None:
        """A queue as it is, but for its marker."""
        return None if self._is_shared() else self._known.get((context or "", name))

    def begin(self, request: model.SubscribeQueue, present: EventEncoder | None) -> None:
        """A queue has a backlog: prepare batches like the one that was just handed out."""
        key = request.context, request.queue
        if not request.several or self._is_shared() or request.count > self._limits.events_max:
            return
        now = time.monotonic()
        if self._resting.get(key, now) > now:
            return
        self._resting.pop(key, None)
        if (window := self._windows.get(key)) is not None:
            if window.fits(request, present) or now - window.used < REST_S:
                return
            # The consumers that asked for such batches have gone.
            self.drop(*key)
        if len(self._windows) >= WINDOWS_MAX:
            oldest = min(self._windows, key=lambda one: self._windows[one].used)
            if now - self._windows[oldest].used < IDLE_S_MAX:
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
