"""Events of a queue handed out once more, while the queue itself stays where it is.

A worker reads which events there are, and which of them are on their way anyway; the writer makes allocations of the
rest, free to be taken, if nothing of them was handed out meanwhile. They are allocations like any other from then on:
a consumer takes them before anything new, and they expire, are released and are set aside like all.
"""

from itertools import pairwise
from typing import Final, NamedTuple

from penstock.engine.jobs import gather, lookup_queue
from penstock.engine.parts import Parts, check_names
from penstock.engine.queues import ATTEMPTS_MAX
from penstock.errors import InvalidRequest, LimitExceeded, QueueContended
from penstock.model import Allocation, EventFilter, Replayed, ReplayQueue
from penstock.store import Store
from penstock.store.contract import QueueState, ReadLimits, Reoffer, Transaction
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX

REPLAY_EVENTS_MAX: Final = 1000
"""Events that one request puts back into a queue."""
REPLAY_BATCH_EVENTS_MAX: Final = 100
"""Events of one allocation that is made of them: as many as consumers ask for, unless they say otherwise."""
WAITING_ALLOCATIONS_MAX: Final = 16
"""Allocations that may wait for consumers before more are put back: so new events get their turn, too."""

Run = tuple[int, int, int]
"""The first and the last position of an allocation, and how many events are between them."""


class Found(NamedTuple):
    """A queue, what waits in it, and some of its events: position and bytes of each. `next` is where to read on."""

    queue: QueueState
    waiting: tuple[int, int]
    events: list[tuple[int, int]]
    next: int
    end: bool


def find_events(
    store: Store, name: str, context: str | None, first: int, last: int, count: int, limits: ReadLimits
) -> Found:
    """Up to `count` events of a queue between two positions, or as many as can be found in a while."""
    queue = lookup_queue(store, name, context)
    page = gather(store, EventFilter(queue.context, queue.filter), first, count, limits, last)
    events = [(event.position, len(event.body) + len(event.headers or "")) for event in page.events]
    return Found(queue, store.waiting(queue.id), events, page.next, page.end or page.next > last)


def find_shared(store: Store, queue: int, first: int, last: int) -> list[Allocation]:
    """What of a queue is handed out, comes again or is set aside, between two positions."""
    return store.shared_allocations(queue, first, last, QUEUE_ALLOCATIONS_MAX)


class Replays:
    """What a request to hand events out once more means."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def replay(self, request: ReplayQueue) -> Replayed:
        """Put a range back, all that can be of it, or nothing if too much waits already."""
        check_names(queue=request.queue)
        if not 1 <= request.first <= request.last:
            raise InvalidRequest("positions", f"are {request.first} to {request.last}; they must begin at 1 or later")
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._attempt(request)
            except QueueContended:
                # Somebody was quicker: what is on its way is another thing now.
                continue
        raise QueueContended(request.queue)

    async def _attempt(self, request: ReplayQueue) -> Replayed:
        found = await self._find(request)
        allocations, waiting = found.waiting
        if allocations >= WAITING_ALLOCATIONS_MAX:
            return await self._full(request, found)
        shared = await self._parts.run(find_shared, found.queue.id, request.first, request.last)
        runs = runs_of(found.events, shared, self._parts.limits.bytes_max)
        if not runs and request.mark is None:
            return Replayed(0, len(found.events), waiting)
        return await self._put_back(request, found, runs)

    async def _find(self, request: ReplayQueue) -> Found:
        """All events of the range; there may not be too many of them."""
        events: list[tuple[int, int]] = []
        position = request.first
        while True:
            asked = (request.queue, request.context, position, request.last, REPLAY_EVENTS_MAX + 1 - len(events))
            found: Found = await self._parts.run(find_events, *asked, self._parts.limits)
            if request.last >= found.queue.position:
                reason = (
                    f"is {request.last}, and the queue is at {found.queue.position}: what is there is still to come"
                )
                raise InvalidRequest("last position", reason)
            events += found.events
            if len(events) > REPLAY_EVENTS_MAX:
                raise LimitExceeded("replay_events_max", len(events), REPLAY_EVENTS_MAX)
            if found.end:
                return found._replace(events=events)
            position = found.next

    async def _full(self, request: ReplayQueue, found: Found) -> Replayed:
        """Too much waits. Perhaps the first attempt of this very request put it there."""
        waiting = found.waiting[1]
        try:
            await self._parts.refuse(QueueContended(request.queue), request.mark, Reoffer(found.queue.id, ()))
        except QueueContended:
            return Replayed(0, 0, waiting, is_full=True)
        return _repeated(found)

    async def _put_back(self, request: ReplayQueue, found: Found, runs: tuple[Run, ...]) -> Replayed:
        (done,) = await self._parts.write(Transaction((Reoffer(found.queue.id, runs),), request.mark))
        events, waiting = sum(count for _, _, count in runs), found.waiting[1]
        if done is None:
            return _repeated(found)
        self._parts.waiters.ring_all(found.queue.context)
        return Replayed(events, len(found.events) - events, waiting + events)


def _repeated(found: Found) -> Replayed:
    """Of what was done under a mark before, the store knows only that."""
    return Replayed(len(found.events), 0, found.waiting[1], repeated=True)


def runs_of(events: list[tuple[int, int]], shared: list[Allocation], bytes_max: int) -> tuple[Run, ...]:
    """The events that are in no allocation, in runs for one allocation each."""
    runs: list[Run] = []
    # Between two allocations, before the first and behind the last; no two of them share a position.
    ends = [0, *(end for one in shared for end in (one.first, one.last)), 1 << 63]
    for low, high in list(pairwise(ends))[::2]:
        runs += _batches([event for event in events if low < event[0] < high], bytes_max)
    return tuple(runs)


def _batches(events: list[tuple[int, int]], bytes_max: int) -> list[Run]:
    """Events that follow one another, a batch at a time."""
    batches: list[list[int]] = []
    size = 0
    for position, own in events:
        if not batches or len(batches[-1]) >= REPLAY_BATCH_EVENTS_MAX or size + own > bytes_max:
            batches.append([])
            size = 0
        batches[-1].append(position)
        size += own
    return [(batch[0], batch[-1], len(batch)) for batch in batches]
