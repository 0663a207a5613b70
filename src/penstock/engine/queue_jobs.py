"""The work of worker processes for queues: find a consumer's next events, and carry out the outcomes of its last ones.

In an ordered queue each allocation has events of one key, and the queue hands out one allocation of a key at a time.
When a consumer asks, the worker divides the events behind the marker by key: the consumer gets those of free keys, and
the others wait for earlier ones of their key. In every queue an event that is due later gets a separate allocation.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from datetime import datetime
from typing import Final, NamedTuple

from penstock import model
from penstock.engine.jobs import (
    SCANNED_POSITIONS_MAX,
    EventEncoder,
    gather,
    is_whole,
    presented,
    read_range,
    size_of,
)
from penstock.errors import AllocationLost, QueueAmbiguous, QueueNotFound
from penstock.model import DUE, Encoded, Event, EventFilter, View
from penstock.model.times import TICKS_PER_MS, ticks_of_datetime
from penstock.store import Store
from penstock.store.contract import (
    Allocate,
    AllocateParts,
    Held,
    Letter,
    Part,
    Proposal,
    QueueState,
    ReadLimits,
    Run,
    Settle,
)
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX

AllocationRequest = model.SubscribeQueue | model.AcknowledgeQueue

NEAR_POSITIONS: Final = 256
"""A worker reads allocations that are not farther apart with one read."""
AHEAD_EVENTS_MAX: Final = 1000
"""Events that one step reads for a consumer because others have their keys."""
BURIED_RUNS_MAX: Final = 100
"""Allocations that one step sets aside as dead letters."""
NOT_ACKNOWLEDGED: Final = "delivered {} times and never acknowledged"


class Proposed(NamedTuple):
    """The next events of a consumer, and the operation that allocates them.

    Without an operation there is nothing to write. `end`: the history ended; `expires_in`: in how many ticks an
    allocation expires. `empty` are allocations whose events were all erased. `is_exhausted`: first, set aside the
    allocations that expired too often.
    """

    queue: QueueState
    operation: Allocate | AllocateParts | None
    events: list[Event]
    encoded: Encoded | None
    end: bool = True
    expires_in: int | None = None
    empty: tuple[Run, ...] = ()
    is_exhausted: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether there is more behind it, which can be prepared: no key was in use."""
        operation = self.operation
        is_free = isinstance(operation, AllocateParts) and bool(operation.held) and not operation.kept
        return not self.end and (not self.queue.ordered or is_free)


def lookup_queue(store: Store, name: str, context: str | None, view: View | None = None) -> QueueState:
    """The queue of a name among those that the caller may use, or QueueNotFound, or QueueAmbiguous."""
    found = [queue for queue in store.find_queues(name, context) if is_whole(view, queue)]
    if not found:
        raise QueueNotFound(name)
    if len(found) > 1:
        raise QueueAmbiguous(name)
    return found[0]


def is_allocated(store: Store, queue: int, first: int) -> bool:
    """Whether an allocation of a queue begins at a marker: one that waits, is held or is set aside."""
    return any(one.first == first for one in store.allocations(queue, first - 1, 1))


def propose(
    store: Store,
    request: AllocationRequest,
    acknowledged: int | None,
    count: int,
    limits: ReadLimits,
    present: EventEncoder | None,
    view: View | None,
) -> Proposed:
    """The next allocation for a subscriber, once the one that begins at `acknowledged` is gone."""
    queue = lookup_queue(store, request.queue, request.context, view)
    if queue.ordered or queue.paused or request.several:
        return _propose_parts(store, queue, request, acknowledged, count, limits, present)
    subscriber, now = request.subscriber, store.now()
    claim = store.claim(queue.id, subscriber, acknowledged)
    if claim is not None:
        kind = Proposal.OWN if claim.expires > now and claim.subscriber == subscriber else Proposal.EXPIRED
        proposal = Proposal(kind, queue.position, queue.position, claim.first, claim.last, claim.count, queue.version)
        events, _ = events_of(store, queue, [Held(*astuple(claim))])
        return _single(queue, request, proposal, events, present)
    found = gather(store, queue.wanted, queue.position, count, limits)
    if not found.events:
        nothing = Proposal(Proposal.NOTHING, queue.position, found.next, version=queue.version)
        proposed = _single(queue, request, nothing, [], present)
        return proposed._replace(end=found.end, expires_in=_expires_in(store, queue, now))
    if any(due_of(event) > now for event in found.events):
        return _propose_parts(store, queue, request, acknowledged, count, limits, present)
    first, last = found.events[0].position, found.events[-1].position
    fresh = Proposal(Proposal.FRESH, queue.position, last + 1, first, last, len(found.events), queue.version)
    return _single(queue, request, fresh, found.events, present)


def _single(
    queue: QueueState,
    request: AllocationRequest,
    proposal: Proposal,
    events: list[Event],
    present: EventEncoder | None,
) -> Proposed:
    operation = Allocate(queue.id, request.subscriber, request.ttl_ms, proposal)
    empty = () if events or not proposal.first else ((proposal.first, proposal.last),)
    is_idle = proposal.kind == Proposal.NOTHING and proposal.next - proposal.marker < SCANNED_POSITIONS_MAX
    # A short scan that found nothing is not worth an fsync; the next one repeats it.
    return Proposed(queue, None if is_idle else operation, *presented(events, present), empty=empty)


def _expires_in(store: Store, queue: QueueState, now: int) -> int | None:
    expiry = store.next_expiry(queue.id, now)
    return None if expiry is None else expiry - now


# --- several allocations --------------------------------------------------------------------------------------


def _propose_parts(
    store: Store,
    queue: QueueState,
    request: AllocationRequest,
    acknowledged: int | None,
    count: int,
    limits: ReadLimits,
    present: EventEncoder | None,
) -> Proposed:
    """What the subscriber holds already; else what other consumers gave back or let expire; else the next events."""
    marker, version = queue.position, queue.version
    base = AllocateParts(queue.id, request.subscriber, request.ttl_ms, marker, marker, version=version)
    now = store.now()
    own = [one for one in store.held(queue.id, request.subscriber) if one.first != acknowledged]
    if own:
        events, _ = events_of(store, queue, own)
        operation = replace(base, own=tuple(one.run for one in own))
        return Proposed(queue, operation, *presented(events, present), empty=_empty_of(queue, own, events))
    if queue.paused:
        return Proposed(queue, None, *presented([], present))
    taken = list(_first_of(store.available(queue.id, count if request.several else 1), count))
    if queue.dead_after is not None and any(one.deliveries >= queue.dead_after for one in taken):
        return Proposed(queue, None, *presented([], present), end=False, is_exhausted=True)
    events, taken = events_of(store, queue, taken, limits.bytes_max)
    held: list[Part] = []
    kept: list[Part] = []
    following, end = queue.position, True
    room, space = count - sum(one.events for one in taken), limits.bytes_max - size_of(events)
    left = QUEUE_ALLOCATIONS_MAX - store.outstanding(queue.id)
    reads_on = request.several and queue.ordered and room > 0 < space
    if (not taken or reads_on) and left > 0:
        read: list[Event] = []
        keys: set[str] = set()
        in_use: set[str] = set()
        while True:
            window = min(max(room, len(read), 1), left - len(kept))
            page = gather(store, queue.wanted, following, window, limits._replace(bytes_max=max(space, 1)))
            end, following = page.end, page.events[-1].position + 1 if page.events else page.next
            parts = parts_of(queue, page.events, now, count)
            if more := {part.key for part in parts if part.key} - keys:
                in_use |= store.keys_in_use(queue.id, [*more])
                keys |= more
            for part in parts:
                is_wanted = part.events <= room if request.several and (held or taken) else not (held or taken)
                is_given = is_wanted and part.key not in in_use and part.due <= now
                (held if is_given else kept).append(part)
                room -= part.events if is_given else 0
                in_use |= {part.key} - {""}
            read += page.events
            space -= size_of(page.events)
            is_full = room <= 0 if request.several else bool(held or taken)
            is_enough = len(read) >= AHEAD_EVENTS_MAX or len(kept) >= left or space <= 0
            if is_full or end or is_enough or not queue.ordered or not page.events:
                break
        mine = [_as_held(part) for part in held]
        events = sorted([*events, *_within(queue, mine, read)], key=lambda event: event.position)
    gone = _empty_of(queue, taken, events)
    operation = replace(base, next=following, taken=tuple(one.run for one in taken), held=(*held,), kept=(*kept,))
    is_idle = not (taken or held or kept) and following - queue.position < SCANNED_POSITIONS_MAX
    expires_in = None if taken or held else _expires_in(store, queue, now)
    return Proposed(queue, None if is_idle else operation, *presented(events, present), end, expires_in, gone)


def _first_of(rows: Sequence[Held], count: int) -> Iterator[Held]:
    """The first of some allocations, up to so many events but at least one allocation."""
    for number, one in enumerate(rows):
        count -= one.events
        if count < 0 and number:
            return
        yield one


def parts_of(queue: QueueState, events: Sequence[Event], now: int, length_max: int) -> list[Part]:
    """These events by key, in runs of so many at most; an event that is due later stands alone."""
    parts: list[Part] = []
    open_runs: dict[str, int] = {}
    for event in events:
        key, position, due = queue.key_of(event.stream), event.position, due_of(event)
        if due > now:
            open_runs.pop(key, None)
            parts.append(Part(position, position, 1, key, due))
        elif key in open_runs and parts[open_runs[key]].events < length_max:
            at = open_runs[key]
            parts[at] = parts[at]._replace(last=position, events=parts[at].events + 1)
        else:
            open_runs[key] = len(parts)
            parts.append(Part(position, position, 1, key))
    return parts


def due_of(event: Event) -> int:
    """When an event is due, in ticks; 0: at once."""
    if event.headers is None or DUE not in event.headers:
        return 0
    try:
        headers = json.loads(event.headers)
        return ticks_of_datetime(datetime.fromisoformat(headers[DUE]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def _as_held(part: Part) -> Held:
    return Held(part.first, part.last, part.events, "", 0, part.deliveries, part.key)


def events_of(
    store: Store, queue: QueueState, rows: Sequence[Held], bytes_max: int | None = None
) -> tuple[list[Event], list[Held]]:
    """The events of allocations, in order, and the allocations: only the first ones if there are too many bytes."""
    events: list[Event] = []
    read: list[Held] = []
    for near in _neighbours(rows):
        if read and bytes_max is not None and size_of(events) >= bytes_max:
            break
        wanted = _wanted_of(queue, near)
        found = read_range(store, wanted, near[0].first, max(one.last for one in near))
        events += _within(queue, near, found)
        read += near
    return sorted(events, key=lambda event: event.position), read


def _neighbours(rows: Sequence[Held]) -> Iterator[list[Held]]:
    """Allocations in groups that are read in one go: those without a key alone, others if they lie near each other."""
    group: list[Held] = []
    end = 0
    for one in sorted(rows):
        is_near = one.key and group and group[0].key and one.last - end <= NEAR_POSITIONS
        if group and not (is_near and _is_single(one) == _is_single(group[0])):
            yield group
            group = []
        end = max(end, one.last) if group else one.last
        group.append(one)
    if group:
        yield group


def _is_single(one: Held) -> bool:
    return one.first == one.last


def _wanted_of(queue: QueueState, rows: Sequence[Held]) -> EventFilter:
    # An allocation of one event has that one, even if it passed an earlier filter and was a dead letter since.
    wanted = EventFilter(queue.context) if _is_single(rows[0]) else queue.wanted
    if len(rows) > 1 or not rows[0].key.startswith(wanted.prefix):
        return wanted
    return EventFilter(wanted.context, rows[0].key, wanted.types, wanted.within)


def _within(queue: QueueState, rows: Sequence[Held], events: Iterable[Event]) -> Iterator[Event]:
    """The events that belong to some of these allocations."""
    by_key: dict[str, list[Held]] = {}
    for one in rows:
        by_key.setdefault(one.key, []).append(one)
    for event in events:
        if any(one.first <= event.position <= one.last for one in by_key.get(queue.key_of(event.stream), ())):
            yield event


def _empty_of(queue: QueueState, rows: Sequence[Held], events: Sequence[Event]) -> tuple[Run, ...]:
    return tuple(one.run for one in rows if not any(_within(queue, (one,), events)))


# --- outcomes of batches ------------------------------------------------------------------------------------------


def bury_exhausted(store: Store, queue: QueueState, limits: ReadLimits) -> Settle | None:
    """The operation that sets aside allocations that expired too often, event by event; None if there are none."""
    events, rows = events_of(store, queue, store.exhausted(queue.id, BURIED_RUNS_MAX), limits.bytes_max)
    if not rows:
        return None
    letters = [
        _letter(event, one, NOT_ACKNOWLEDGED.format(one.deliveries))
        for one in rows
        for event in _within(queue, (one,), events)
    ]
    return Settle(queue.id, None, tuple(one.run for one in rows), dead=tuple(letters))


def _letter(event: Event, one: Held, reason: str) -> Letter:
    return Letter(event.position, event.stream, event.sequence, one.deliveries, one.subscriber, reason)


def plan_settlement(store: Store, request: model.SettleQueue, view: View | None) -> tuple[QueueState, Settle]:
    """The operation that carries out the outcomes of a batch."""
    queue = lookup_queue(store, request.queue, request.context, view)
    runs = tuple(request.runs)
    if request.is_all_done:
        return queue, Settle(queue.id, request.subscriber, runs, strict=True)
    rows = [one for one in store.runs(queue.id, runs) if one.subscriber == request.subscriber]
    if len(rows) < len(runs):
        first, last = next(run for run in runs if run not in {one.run for one in rows})
        raise AllocationLost(queue.name, first, last)
    now = store.now()
    outcomes = _Outcomes(queue, request, now)
    if request.retries or request.buries or any(outcomes.divides(one) for one in rows):
        events, _ = events_of(store, queue, rows)
        for one in rows:
            outcomes.add(one, list(_within(queue, (one,), events)))
    else:
        outcomes.back += [outcomes.whole(one) for one in rows]
    return queue, Settle(queue.id, request.subscriber, runs, tuple(outcomes.back), tuple(outcomes.dead), strict=True)


class _Outcomes:
    """The outcome of each event of a batch."""

    def __init__(self, queue: QueueState, request: model.SettleQueue, now: int) -> None:
        self.back: list[Part] = []
        self.dead: list[Letter] = []
        self._queue = queue
        self._now = now
        self._request = request
        self._retries = {one.position: one for one in request.retries}
        self._buries = {one.position: one.reason for one in request.buries}
        self._policy = model.RetryPolicy.parsed(queue.retry)

    def divides(self, one: Held) -> bool:
        """Whether the events of an allocation that all comes back go on alone: at their last attempt, or dead."""
        limit = self._queue.dead_after
        is_last = limit is not None and one.deliveries >= limit - 1
        return self._request.rest == model.Rest.RETRY and is_last

    def whole(self, one: Held) -> Part:
        due, deliveries = self._again(one, self._request.delay_ms)
        if self._request.rest == model.Rest.BACK:
            due, deliveries = 0, one.deliveries - 1
        return Part(one.first, one.last, one.events, one.key, due, deliveries)

    def _again(self, one: Held, delay_ms: int | None) -> tuple[int, int]:
        if delay_ms is None:
            delay_ms = self._policy.delay_ms(one.deliveries, random.uniform(-1, 1))  # noqa: S311
        return (self._now + delay_ms * TICKS_PER_MS if delay_ms else 0), one.deliveries

    def add(self, one: Held, events: Sequence[Event]) -> None:
        """An allocation, event by event. Behind an event that comes again, those of its key come again as well."""
        run: Part | None = None
        has_failed = False
        for event in events:
            position, part = event.position, None
            if position in self._buries:
                self.dead.append(_letter(event, one, self._buries[position]))
            elif (failed := self._failed(position)) and not (has_failed and one.key):
                if self._queue.dead_after is not None and one.deliveries >= self._queue.dead_after:
                    self.dead.append(_letter(event, one, failed.reason or NOT_ACKNOWLEDGED.format(one.deliveries)))
                else:
                    has_failed = True
                    self.back.append(Part(position, position, 1, one.key, *self._again(one, failed.delay_ms)))
            elif (has_failed and one.key) or self._goes_back(position):
                has_failed = True
                part = Part(position, position, 1, one.key, 0, one.deliveries - 1)
                if run is not None:
                    part = run._replace(last=position, events=run.events + 1)
                    self.back.pop()
                self.back.append(part)
            run = part

    def _goes_back(self, position: int) -> bool:
        """Whether the consumer has not tried an event."""
        retried = self._retries.get(position)
        return self._request.rest == model.Rest.BACK if retried is None else retried.delay_ms == model.NOT_TRIED

    def _failed(self, position: int) -> model.Retried | None:
        if position in self._retries:
            return None if self._goes_back(position) else self._retries[position]
        rest = self._request
        return model.Retried(position, rest.delay_ms, rest.reason) if rest.rest == model.Rest.RETRY else None


def parts_again(store: Store, queue: QueueState, events: Sequence[Event]) -> list[Part]:
    """Events that an ordered queue can deliver again: those of which it has no allocation."""
    if not queue.ordered:
        return []
    keys = {queue.key_of(event.stream) for event in events}
    known = store.of_keys(queue.id, [*keys])
    pending = {event.position for event in _within(queue, known, events)}
    return [
        Part(event.position, event.position, 1, queue.key_of(event.stream))
        for event in events
        if event.position not in pending
    ]


def preview(
    store: Store, queue: QueueState, wanted: EventFilter, position: int, view: View | None
) -> model.QueuePreview:
    """The events that a queue would deliver with another filter, or from another position on."""
    lag = store.lag(wanted.seen_by(view), position)
    behind_ms = 0 if lag.oldest is None else max(0, store.now() - lag.oldest) // TICKS_PER_MS
    allocations, letters = store.outstanding(queue.id), store.count_letters(queue.id)
    return model.QueuePreview(position, lag.events, lag.is_exact, behind_ms, allocations, letters)


def list_dead_letters(
    store: Store, request: model.ListDeadLetters, limit: int, view: View | None
) -> model.ListPage[model.Allocation]:
    """Dead letters as the original rows: what expired too often, and single events."""
    queue = lookup_queue(store, request.queue, request.context, view)
    found = store.dead_letters(queue.id, request.after, limit + 1)
    for one in store.letters(queue.id, request.after, limit + 1):
        found.append(model.Allocation(one.position, one.position, 1, one.subscriber, one.died, one.deliveries))
    found.sort(key=lambda one: one.first)
    return model.ListPage(found[:limit], len(found) <= limit)


def list_letters(
    store: Store, request: model.ListLetters, limit: int, view: View | None
) -> model.ListPage[model.DeadLetter]:
    queue = lookup_queue(store, request.queue, request.context, view)
    found = store.letters(queue.id, request.after, limit + 1)
    return model.ListPage(found[:limit], len(found) <= limit)


def reviving(
    store: Store, request: model.PutBackLetters, view: View | None
) -> tuple[QueueState, tuple[int, ...], tuple[Part, ...]]:
    """Dead letters to put back, and the allocations that they get."""
    queue = lookup_queue(store, request.queue, request.context, view)
    letters = store.letters_at(queue.id, request.positions)
    parts = [Part(one.position, one.position, 1, queue.key_of(one.stream)) for one in letters]
    return queue, tuple(one.position for one in letters), tuple(parts)
