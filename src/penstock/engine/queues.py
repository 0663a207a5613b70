"""Competing consumers: allocations with a time to live, taken over when they expire; and replays.

A worker reads what the queue would allocate (a proposal), and the writer carries it out if the queue is still as the
worker saw it. Consumers of one queue take turns, so that on one server a proposal rarely fails. Several servers that
share a store back off for a random time when it does.

A replay makes allocations of events that the queue has passed, without those that are allocated already. Consumers take
them before anything new.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from penstock import model
from penstock.engine import jobs
from penstock.engine.audit import Audit
from penstock.engine.context import SCANNED_POSITIONS_MAX, Attempt, Caller, EngineContext, KeyedLocks, check_names
from penstock.engine.jobs import AllocationRequest, EventEncoder, gather, lookup_queue
from penstock.errors import (
    DeadLetterNotFound,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    QueueContended,
    QueueFilterMismatch,
    QueueNotFound,
)
from penstock.model import EventFilter, Right, View
from penstock.model.times import TICKS_MAX, TICKS_PER_SECOND
from penstock.store import Store, contract
from penstock.store.contract import Proposal, QueueState, ReadLimits, Transaction
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX

ATTEMPTS_MAX: Final = 16
"""Proposals in a row that may come too late before the consumer gets QueueContended."""
SHARED_ATTEMPTS_MAX: Final = 64
"""The same where several servers share a store: their consumers do not take turns."""
STALE_S: Final = 0.005
STALE_S_MAX: Final = 0.05
"""The back-off for each proposal in a row that came too late, and its maximum."""
TTL_MS_MAX: Final = 7 * 24 * 3600 * 1000
NO_ALLOCATION: Final = -1

Markers = tuple[int, int | None]
"""The markers of an acknowledged allocation."""


class QueueRequests:
    def __init__(self, context: EngineContext, audit: Audit) -> None:
        self._context = context
        self._audit = audit
        self._locks = KeyedLocks(context.settings.reader_wait_ms_max)
        # Of queues in use on this server. There are few, and they stay.
        self._contexts: dict[int, str] = {}

    def changed_elsewhere(self, queues: Iterable[int]) -> None:
        """Other servers have put something back into these queues, by id."""
        for context in {self._contexts[queue] for queue in queues if queue in self._contexts}:
            self._context.wakeups.wake_all(context)

    async def subscribe(
        self, request: model.SubscribeQueue, present: EventEncoder | None, caller: Caller
    ) -> model.Delivery:
        check_names(queue=request.queue, subscriber=request.subscriber)
        check_names(context=request.context, filter=request.filter)
        _check_allocation(request.count, request.ttl_ms)
        queue = await self._declare(request, caller)
        if request.ttl_ms == NO_ALLOCATION:
            return _empty(queue, request.subscriber)
        return await self._allocate(request, None, present, caller)

    async def _declare(self, request: model.SubscribeQueue, caller: Caller) -> QueueState:
        wanted = EventFilter(request.context, request.filter)
        try:
            queue = await self._lookup(request.queue, request.context)
        except QueueNotFound:
            position = await self._context.position_for(wanted, request.start_ticks)
            declare = contract.DeclareQueue(request.context, request.queue, wanted.prefix, position)
            made: QueueState = await self._context.apply(declare)
            return made
        if queue.filter != wanted.prefix:
            if caller.view is not None and not caller.view.has_filter(queue.context, queue.filter):
                # The name is taken, and that is all the caller may know.
                raise NotAllowed(caller.principal.name, Right.CONSUME.words, f"queue {queue.name}")
            raise QueueFilterMismatch(queue.name, queue.filter, wanted.prefix)
        return queue

    async def _lookup(self, name: str, context: str | None, caller: Caller | None = None) -> QueueState:
        check_names(queue=name)
        view = None if caller is None else caller.view
        queue: QueueState = await self._context.pool.run(jobs.lookup_queue, name, context, view)
        return queue

    async def acknowledge(
        self, request: model.AcknowledgeQueue, present: EventEncoder | None, caller: Caller
    ) -> model.Delivery:
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_allocation(request.count, request.ttl_ms)
        done = None if (request.first, request.last) == (0, 0) else (request.first, request.last)
        if request.ttl_ms != NO_ALLOCATION:
            return await self._allocate(request, done, present, caller)
        queue = await self._lookup(request.queue, request.context, caller)
        if done is not None:
            await self._context.apply(contract.Acknowledge(queue.id, request.subscriber, *done))
        return _empty(queue, request.subscriber)

    async def receipt(self, receipt: model.QueueReceipt, caller: Caller) -> contract.Acknowledge:
        """The operation that acknowledges inside a transaction."""
        queue = await self._lookup(receipt.queue, receipt.context, caller)
        return contract.Acknowledge(queue.id, receipt.subscriber, receipt.first, receipt.last, strict=True)

    async def release(self, request: model.ReleaseQueue, caller: Caller) -> model.Done:
        check_names(queue=request.queue, subscriber=request.subscriber)
        queue = await self._lookup(request.queue, request.context, caller)
        given = contract.Release(queue.id, request.subscriber, request.first, request.last, request.counts)
        await self._context.apply(given)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def reset(self, request: model.ResetQueue, caller: Caller) -> model.Done:
        queue = await self._lookup(request.queue, request.context, caller)
        async with self._locks.turn(queue.name):
            position, wanted = request.position, EventFilter(queue.context, queue.filter)
            if position is None:
                position = await self._context.position_for(wanted, request.ticks)
            else:
                end = await self._context.position_for(wanted, TICKS_MAX)
                if not 1 <= position <= end:
                    raise InvalidRequest("position", f"is {position}; it must be from 1 to {end}, the next one")
            facts = {"context": queue.context, "queue": queue.name, "from": queue.position, "to": position}
            entry = self._audit.entry(caller.principal, "queues", "queue-reset", facts)
            # The last space of the disk is not for entries that consumers can make without end.
            refusal = self._context.disk.refusal() if entry else None
            await self._context.write(Transaction((contract.MoveQueue(queue.id, position), *entry), refusal=refusal))
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def set_dead_rule(self, request: model.SetDeadLetterRule, caller: Caller) -> model.Done:
        if request.dead_after is not None and request.dead_after < 1:
            raise InvalidRequest("deliveries", f"are {request.dead_after}; there must be at least 1")
        queue = await self._lookup(request.queue, request.context, caller)
        await self._context.apply(contract.SetDeadRule(queue.id, request.dead_after))
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def put_back(self, request: model.PutBack, caller: Caller) -> model.Done:
        """Give a dead letter to the next consumer. If it is back already, do nothing."""
        queue = await self._lookup(request.queue, request.context, caller)
        done = await self._context.apply(contract.Requeue(queue.id, request.first))
        if not done and not await self._context.pool.run(jobs.is_allocated, queue.id, request.first):
            raise DeadLetterNotFound(queue.name, request.first)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def _allocate(
        self, request: AllocationRequest, acknowledged: Markers | None, present: EventEncoder | None, caller: Caller
    ) -> model.Delivery:
        async def attempt() -> Attempt[model.Delivery]:
            nonlocal acknowledged
            async with self._locks.turn(request.queue):
                given, found = await self._turn(request, acknowledged, present, caller)
            acknowledged = None
            queue = found.queue
            self._contexts[queue.id] = queue.context
            delivery = _empty(queue, request.subscriber)
            if given is not None:
                delivery = replace(delivery, allocation=given, events=found.events, encoded=found.encoded)
            expires_in = None if found.expires_in is None else found.expires_in / TICKS_PER_SECOND
            return Attempt(delivery, given is not None, EventFilter(queue.context, queue.filter), expires_in)

        return await self._context.long_poll(request.wait_ms, attempt)

    async def _turn(
        self, request: AllocationRequest, acknowledged: Markers | None, present: EventEncoder | None, caller: Caller
    ) -> tuple[model.Allocation | None, jobs.Proposed]:
        """Propose and carry out until a proposal succeeds. An acknowledgement holds even if no proposal does."""
        subscriber, is_shared = request.subscriber, self._context.others.is_shared
        stale, count = 0, min(request.count, self._context.limits.events_max)
        while stale < (SHARED_ATTEMPTS_MAX if is_shared else ATTEMPTS_MAX):
            asked = (request, acknowledged and acknowledged[0], count, self._context.limits, present, caller.view)
            found: jobs.Proposed = await self._context.pool.run(jobs.propose, *asked)
            number, proposal = found.queue.id, found.proposal
            # A short scan that found nothing is not worth an fsync; the next one repeats it.
            is_short = proposal.kind == Proposal.NOTHING and proposal.next - proposal.marker < SCANNED_POSITIONS_MAX
            if acknowledged is None and found.end and is_short:
                return None, found
            operations: list[contract.Operation] = []
            if acknowledged is not None:
                operations.append(contract.Acknowledge(number, subscriber, *acknowledged))
            operations.append(contract.Allocate(number, subscriber, request.ttl_ms, proposal))
            is_erased = bool(proposal.first) and not (found.encoded.count if found.encoded else found.events)
            if is_erased:
                # All its events were erased: allocate and acknowledge it at once.
                operations.append(contract.Acknowledge(number, subscriber, proposal.first, proposal.last))
            results = await self._context.write(Transaction(tuple(operations)))
            given = results[0 if acknowledged is None else 1]
            acknowledged = None
            if given == contract.STALE:
                stale += 1
                if is_shared:
                    await asyncio.sleep(random.uniform(0, min(stale * STALE_S, STALE_S_MAX)))  # noqa: S311
            elif not is_erased and (given is not None or found.end):
                assert given is None or isinstance(given, model.Allocation)
                return given, found
        raise QueueContended(request.queue)


def _empty(queue: QueueState, subscriber: str) -> model.Delivery:
    return model.Delivery(queue.context, queue.name, subscriber, model.now_ticks(), None, [])


def _check_allocation(count: int, ttl_ms: int) -> None:
    if count < 1:
        raise InvalidRequest("count", f"is {count}; it must be at least 1")
    if ttl_ms != NO_ALLOCATION and not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidRequest("allocation time", f"is {ttl_ms} ms; it must be -1 or between 1 and {TTL_MS_MAX}")


REPLAY_EVENTS_MAX: Final = 1000
"""Events that one request puts back into a queue."""
REPLAY_BATCH_EVENTS_MAX: Final = 100
"""Events of one allocation that is made of them: as many as consumers ask for, unless they say otherwise."""
WAITING_ALLOCATIONS_MAX: Final = 16
"""Allocations that may wait for consumers before a replay adds more, so that new events get their turn too."""

Run = tuple[int, int, int]
"""The first and the last position of an allocation, and how many events are between them."""


class EventsFound(NamedTuple):
    """A queue, what waits in it, and some of its events: position and bytes of each. `next` is where to read on."""

    queue: QueueState
    waiting: tuple[int, int]
    events: list[tuple[int, int]]
    next: int
    end: bool


def find_events(
    store: Store, request: model.ReplayQueue, first: int, count: int, limits: ReadLimits, view: View | None
) -> EventsFound:
    """Up to `count` events from a position on, or as many as one step finds."""
    queue, last = lookup_queue(store, request.queue, request.context, view), request.last
    page = gather(store, EventFilter(queue.context, queue.filter), first, count, limits, last)
    events = [(event.position, len(event.body) + len(event.headers or "")) for event in page.events]
    return EventsFound(queue, store.waiting(queue.id), events, page.next, page.end or page.next > last)


class ReplayRequests:
    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def replay(self, request: model.ReplayQueue, caller: Caller) -> model.Replayed:
        """Put a range back, without what is allocated, or nothing if too much waits already."""
        check_names(queue=request.queue)
        if not 1 <= request.first <= request.last:
            raise InvalidRequest("positions", f"are {request.first} to {request.last}; they must begin at 1 or later")
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._attempt(request, caller)
            except QueueContended:
                # A consumer was quicker: read the allocations again.
                continue
        raise QueueContended(request.queue)

    async def _attempt(self, request: model.ReplayQueue, caller: Caller) -> model.Replayed:
        found = await self._find(request, caller)
        number, (allocations, waiting) = found.queue.id, found.waiting
        # The store knows that a mark was used, and nothing else.
        repeated = model.Replayed(len(found.events), 0, waiting, repeated=True)
        if allocations >= WAITING_ALLOCATIONS_MAX:
            # Too much waits: refuse, unless the first attempt of this request put it there.
            try:
                await self._context.refuse(QueueContended(request.queue), request.mark, contract.Reoffer(number, ()))
            except QueueContended:
                return model.Replayed(0, 0, waiting, is_full=True)
            return repeated
        asked = (number, request.first, request.last, QUEUE_ALLOCATIONS_MAX)
        shared = await self._context.pool.run(jobs.ask_store, Store.shared_allocations, *asked)
        runs = runs_of(found.events, shared, self._context.limits.bytes_max)
        if not runs and request.mark is None:
            return model.Replayed(0, len(found.events), waiting)
        (done,) = await self._context.write(Transaction((contract.Reoffer(number, runs),), request.mark))
        if done is None:
            return repeated
        self._context.wakeups.wake_all(found.queue.context)
        events = sum(count for _, _, count in runs)
        return model.Replayed(events, len(found.events) - events, waiting + events)

    async def _find(self, request: model.ReplayQueue, caller: Caller) -> EventsFound:
        """All events of the range; LimitExceeded if there are too many."""
        events: list[tuple[int, int]] = []
        position = request.first
        while True:
            asked = (request, position, REPLAY_EVENTS_MAX + 1 - len(events), self._context.limits, caller.view)
            found: EventsFound = await self._context.pool.run(find_events, *asked)
            if request.last >= found.queue.position:
                reason = f"is {request.last}, and the queue is at {found.queue.position}: that is still to come"
                raise InvalidRequest("last position", reason)
            events += found.events
            if len(events) > REPLAY_EVENTS_MAX:
                raise LimitExceeded("replay_events_max", len(events), REPLAY_EVENTS_MAX)
            if found.end:
                return found._replace(events=events)
            position = found.next


def runs_of(events: list[tuple[int, int]], shared: list[model.Allocation], bytes_max: int) -> tuple[Run, ...]:
    """The events that are in no allocation, in runs for one allocation each."""
    runs: list[Run] = []
    # Between two allocations, before the first and behind the last; no two of them share a position.
    ends = [0, *(end for one in shared for end in (one.first, one.last)), 1 << 63]
    for low, high in list(pairwise(ends))[::2]:
        runs += _batches([event for event in events if low < event[0] < high], bytes_max)
    return tuple(runs)


def _batches(events: list[tuple[int, int]], bytes_max: int) -> list[Run]:
    """Consecutive events, one batch for each allocation."""
    batches: list[list[int]] = []
    size = 0
    for position, own in events:
        if not batches or len(batches[-1]) >= REPLAY_BATCH_EVENTS_MAX or size + own > bytes_max:
            batches.append([])
            size = 0
        batches[-1].append(position)
        size += own
    return [(batch[0], batch[-1], len(batch)) for batch in batches]
