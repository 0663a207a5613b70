"""Competing consumers: allocations with a time to live, taken over when they expire.

A worker reads what the queue would give (a proposal), and the writer carries it out if the queue is still as the
worker saw it. Consumers of one queue take turns here, so that on one server a proposal seldom fails. Several servers
that share a store stand back for a moment when it does, each for another time.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from penstock.engine import jobs
from penstock.engine.jobs import Presenter
from penstock.engine.keyed import KeyedLocks
from penstock.engine.parts import SCANNED_POSITIONS_MAX, Parts, Tried, check_names
from penstock.errors import DeadLetterNotFound, InvalidRequest, QueueContended, QueueFilterMismatch, QueueNotFound
from penstock.model import (
    AcknowledgeQueue,
    Allocation,
    Delivery,
    Done,
    EventFilter,
    PutBack,
    QueueReceipt,
    ReleaseQueue,
    ResetQueue,
    SetDeadLetterRule,
    SubscribeQueue,
    now_ticks,
)
from penstock.model.times import TICKS_MAX, TICKS_PER_SECOND
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    DeclareQueue,
    MoveQueue,
    Operation,
    Proposal,
    QueueState,
    Release,
    Requeue,
    Result,
    SetDeadRule,
    Transaction,
)

ATTEMPTS_MAX: Final = 16
"""Proposals in a row that may come too late before the consumer is told to try again."""
SHARED_ATTEMPTS_MAX: Final = 64
"""The same where several servers share a store: their consumers do not take turns."""
STALE_S: Final = 0.005
STALE_S_MAX: Final = 0.05
"""How long one stands back then, for each proposal that came too late in a row, and at most."""
TTL_MS_MAX: Final = 7 * 24 * 3600 * 1000
NO_ALLOCATION: Final = -1

Markers = tuple[int, int | None]
"""What an allocation is acknowledged by."""


class Queues:
    """What requests about queues mean."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._locks = KeyedLocks(parts.settings.reader_wait_ms_max)
        # Of queues that somebody asked for here; there are not many, and they stay.
        self._contexts: dict[int, str] = {}

    def heard(self, queues: Iterable[int]) -> None:
        """Other servers have put something back into these queues, by id."""
        for context in {self._contexts[queue] for queue in queues if queue in self._contexts}:
            self._parts.waiters.ring_all(context)

    async def subscribe(self, request: SubscribeQueue, present: Presenter | None) -> Delivery:
        """Declare the queue if it is new, then allocate."""
        check_names(queue=request.queue, subscriber=request.subscriber)
        check_names(context=request.context, filter=request.filter)
        _check_allocation(request.count, request.ttl_ms)
        queue = await self._declare(request)
        if request.ttl_ms == NO_ALLOCATION:
            return _empty(queue, request.subscriber)
        return await self._allocate(request, None, present)

    async def _declare(self, request: SubscribeQueue) -> QueueState:
        wanted = EventFilter(request.context, request.filter)
        try:
            queue = await self._lookup(request.queue, request.context)
        except QueueNotFound:
            position = await self._parts.position_for(wanted, request.start_ticks)
            declare = DeclareQueue(request.context, request.queue, wanted.prefix, position)
            (made,) = await self._parts.write(Transaction((declare,)))
            assert isinstance(made, QueueState)
            return made
        if queue.filter != wanted.prefix:
            raise QueueFilterMismatch(queue.name, queue.filter, wanted.prefix)
        return queue

    async def _lookup(self, name: str, context: str | None) -> QueueState:
        check_names(queue=name)
        queue: QueueState = await self._parts.run(jobs.lookup_queue, name, context)
        return queue

    async def acknowledge(self, request: AcknowledgeQueue, present: Presenter | None) -> Delivery:
        """Acknowledge, then allocate."""
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_allocation(request.count, request.ttl_ms)
        done = None if (request.first, request.last) == (0, 0) else (request.first, request.last)
        if request.ttl_ms != NO_ALLOCATION:
            return await self._allocate(request, done, present)
        queue = await self._lookup(request.queue, request.context)
        if done is not None:
            await self._parts.write(Transaction((Acknowledge(queue.id, request.subscriber, *done),)))
        return _empty(queue, request.subscriber)

    async def receipt(self, receipt: QueueReceipt) -> Acknowledge:
        """The operation that acknowledges inside a transaction."""
        queue = await self._lookup(receipt.queue, receipt.context)
        return Acknowledge(queue.id, receipt.subscriber, receipt.first, receipt.last, strict=True)

    async def release(self, request: ReleaseQueue) -> Done:
        """Give an allocation up, and let those who wait have it."""
        check_names(queue=request.queue, subscriber=request.subscriber)
        queue = await self._lookup(request.queue, request.context)
        given = Release(queue.id, request.subscriber, request.first, request.last, request.counts)
        await self._parts.write(Transaction((given,)))
        self._parts.waiters.ring_all(queue.context)
        return Done()

    async def reset(self, request: ResetQueue) -> Done:
        """Drop all allocations and go to a time or a position."""
        queue = await self._lookup(request.queue, request.context)
        async with self._locks.turn(queue.name):
            position = await self._place(EventFilter(queue.context, queue.filter), request)
            await self._parts.write(Transaction((MoveQueue(queue.id, position),)))
        self._parts.waiters.ring_all(queue.context)
        return Done()

    async def _place(self, wanted: EventFilter, request: ResetQueue) -> int:
        if request.position is None:
            return await self._parts.position_for(wanted, request.ticks)
        end = await self._parts.position_for(wanted, TICKS_MAX)
        if not 1 <= request.position <= end:
            raise InvalidRequest("position", f"is {request.position}; it must be from 1 to {end}, the next one")
        return request.position

    async def set_dead_rule(self, request: SetDeadLetterRule) -> Done:
        """Say after how many holders an allocation is set aside."""
        if request.dead_after is not None and request.dead_after < 1:
            raise InvalidRequest("deliveries", f"are {request.dead_after}; there must be at least 1")
        queue = await self._lookup(request.queue, request.context)
        await self._parts.write(Transaction((SetDeadRule(queue.id, request.dead_after),)))
        self._parts.waiters.ring_all(queue.context)
        return Done()

    async def put_back(self, request: PutBack) -> Done:
        """Give what was set aside to the next consumer. If it is back already, all is well."""
        queue = await self._lookup(request.queue, request.context)
        (done,) = await self._parts.write(Transaction((Requeue(queue.id, request.first),)))
        if not done and not await self._parts.run(jobs.is_allocated, queue.id, request.first):
            raise DeadLetterNotFound(queue.name, request.first)
        self._parts.waiters.ring_all(queue.context)
        return Done()

    async def _allocate(
        self,
        request: SubscribeQueue | AcknowledgeQueue,
        acknowledged: Markers | None,
        present: Presenter | None,
    ) -> Delivery:
        async def attempt() -> Tried[Delivery]:
            nonlocal acknowledged
            async with self._locks.turn(request.queue):
                given, found = await self._turn(request, acknowledged, present)
            acknowledged = None
            queue = found.queue
            self._contexts[queue.id] = queue.context
            delivery = _empty(queue, request.subscriber)
            if given is not None:
                delivery = replace(delivery, allocation=given, events=found.events, encoded=found.encoded)
            expires_in = None if found.expires_in is None else found.expires_in / TICKS_PER_SECOND
            return Tried(delivery, given is not None, EventFilter(queue.context, queue.filter), expires_in)

        return await self._parts.patiently(request.wait_ms, attempt)

    async def _turn(
        self,
        request: SubscribeQueue | AcknowledgeQueue,
        acknowledged: Markers | None,
        present: Presenter | None,
    ) -> tuple[Allocation | None, jobs.Proposed]:
        """Propose and carry out until a proposal holds. What was acknowledged stays so, whatever comes of the rest."""
        stale = 0
        while stale < (SHARED_ATTEMPTS_MAX if self._parts.others.is_shared else ATTEMPTS_MAX):
            found = await self._propose(request, acknowledged, present)
            if acknowledged is None and found.end and not _is_worth_writing(found.proposal):
                return None, found
            given = await self._carry_out(request, acknowledged, found)
            acknowledged = None
            if given == STALE:
                stale += 1
                await self._stand_back(stale)
            elif _is_erased(found):
                # It was taken and acknowledged in one go: there is nothing in it to deliver.
                continue
            elif given is not None or found.end:
                assert given is None or isinstance(given, Allocation)
                return given, found
        raise QueueContended(request.queue)

    async def _stand_back(self, stale: int) -> None:
        if self._parts.others.is_shared:
            await asyncio.sleep(random.uniform(0, min(stale * STALE_S, STALE_S_MAX)))  # noqa: S311

    async def _propose(
        self,
        request: SubscribeQueue | AcknowledgeQueue,
        acknowledged: Markers | None,
        present: Presenter | None,
    ) -> jobs.Proposed:
        count = min(request.count, self._parts.limits.events_max)
        first = acknowledged[0] if acknowledged else None
        asked = (request.queue, request.context, request.subscriber, first, count, self._parts.limits, present)
        found: jobs.Proposed = await self._parts.run(jobs.propose, *asked)
        return found

    async def _carry_out(
        self,
        request: SubscribeQueue | AcknowledgeQueue,
        acknowledged: Markers | None,
        found: jobs.Proposed,
    ) -> Result:
        number, proposal = found.queue.id, found.proposal
        receipts: list[Operation] = []
        if acknowledged is not None:
            receipts.append(Acknowledge(number, request.subscriber, *acknowledged))
        operations = [*receipts, Allocate(number, request.subscriber, request.ttl_ms, proposal)]
        if _is_erased(found):
            operations.append(Acknowledge(number, request.subscriber, proposal.first, proposal.last))
        return (await self._parts.write(Transaction(tuple(operations))))[len(receipts)]


def _empty(queue: QueueState, subscriber: str) -> Delivery:
    return Delivery(queue.context, queue.name, subscriber, now_ticks(), None, [])


def _is_worth_writing(proposal: Proposal) -> bool:
    """A short scan that found nothing is not worth an fsync; the next one will do it again."""
    return proposal.kind != Proposal.NOTHING or proposal.next - proposal.marker >= SCANNED_POSITIONS_MAX


def _is_erased(found: jobs.Proposed) -> bool:
    """Whether an allocation would be handed out of which all events were erased."""
    return bool(found.proposal.first) and not (found.encoded.count if found.encoded else found.events)


def _check_allocation(count: int, ttl_ms: int) -> None:
    if count < 1:
        raise InvalidRequest("count", f"is {count}; it must be at least 1")
    if ttl_ms != NO_ALLOCATION and not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidRequest("allocation time", f"is {ttl_ms} ms; it must be -1 or between 1 and {TTL_MS_MAX}")
