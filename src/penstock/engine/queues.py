"""Competing consumers: allocations with a time to live, taken over when they expire.

A worker reads what the queue would give (a proposal), and the writer carries it out if the queue is still as the
worker saw it. Consumers of one queue take turns here, so that on one server a proposal seldom fails.
"""

from typing import Final

from penstock.engine import jobs
from penstock.engine.keyed import KeyedLocks
from penstock.engine.parts import Parts, Patience, check_names
from penstock.errors import InvalidRequest, QueueFilterMismatch, QueueNotFound, WriterBusy
from penstock.model import (
    AcknowledgeQueue,
    Allocation,
    Delivery,
    Done,
    Event,
    EventFilter,
    QueueReceipt,
    ResetQueue,
    SubscribeQueue,
    now_ticks,
)
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    DeclareQueue,
    MoveQueue,
    Operation,
    Proposal,
    QueueState,
    Transaction,
)

ATTEMPTS_MAX: Final = 16
"""Proposals in a row that may come too late before the consumer is told to try again."""
SCANNED_POSITIONS_MAX: Final = 4096
"""How far a scan that found nothing goes before the queue remembers it on disk."""
TTL_MS_MAX: Final = 7 * 24 * 3600 * 1000
NO_ALLOCATION: Final = -1
TICKS_PER_SECOND: Final = 10_000_000


class Queues:
    """What requests about queues mean."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._locks = KeyedLocks()

    async def subscribe(self, request: SubscribeQueue) -> Delivery:
        """Declare the queue if it is new, then allocate."""
        check_names(queue=request.queue, subscriber=request.subscriber)
        check_names(context=request.context, filter=request.filter)
        _check_allocation(request.count, request.ttl_ms)
        wanted = EventFilter(request.context, request.filter)
        queue = await self._declare(request, wanted)
        return await self._allocate(queue, request, None)

    async def _declare(self, request: SubscribeQueue, wanted: EventFilter) -> QueueState:
        try:
            queue: QueueState = await self._parts.run(jobs.lookup_queue, request.queue, request.context)
        except QueueNotFound:
            position = await self._parts.position_for(wanted, request.start_ticks)
            declare = DeclareQueue(request.context, request.queue, wanted.prefix, position)
            (made,) = await self._parts.write(Transaction((declare,)))
            assert isinstance(made, QueueState)
            return made
        if queue.filter != wanted.prefix:
            raise QueueFilterMismatch(queue.name, queue.filter, wanted.prefix)
        return queue

    async def acknowledge(self, request: AcknowledgeQueue) -> Delivery:
        """Acknowledge, then allocate."""
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_allocation(request.count, request.ttl_ms)
        queue: QueueState = await self._parts.run(jobs.lookup_queue, request.queue, request.context)
        done = None
        if (request.first, request.last) != (0, 0):
            done = Acknowledge(queue.id, request.subscriber, request.first, request.last)
        return await self._allocate(queue, request, done)

    async def receipt(self, receipt: QueueReceipt) -> Acknowledge:
        """The operation that acknowledges inside a transaction."""
        queue: QueueState = await self._parts.run(jobs.lookup_queue, receipt.queue, receipt.context)
        return Acknowledge(queue.id, receipt.subscriber, receipt.first, receipt.last, strict=True)

    async def reset(self, request: ResetQueue) -> Done:
        """Drop all allocations and go to a time."""
        queue: QueueState = await self._parts.run(jobs.lookup_queue, request.queue, request.context)
        async with self._locks.turn(queue.id):
            position = await self._parts.position_for(EventFilter(queue.context, queue.filter), request.ticks)
            await self._parts.write(Transaction((MoveQueue(queue.id, position),)))
        self._parts.waiters.ring_all(queue.context)
        return Done()

    async def _allocate(
        self, queue: QueueState, request: SubscribeQueue | AcknowledgeQueue, done: Acknowledge | None
    ) -> Delivery:
        patience = Patience(self._parts, request.wait_ms)
        if request.ttl_ms == NO_ALLOCATION:
            if done is not None:
                await self._parts.write(Transaction((done,)))
            return self._delivery(queue, request, None, [])
        with patience.watch(EventFilter(queue.context, queue.filter)):
            while True:
                patience.about_to_read()
                async with self._locks.turn(queue.id):
                    given, found = await self._turn(queue, request, done)
                done = None
                if given is not None or (found.end and not await patience.wait(_seconds(found.expires_in))):
                    return self._delivery(queue, request, given, found.events)

    async def _turn(
        self, queue: QueueState, request: SubscribeQueue | AcknowledgeQueue, done: Acknowledge | None
    ) -> tuple[Allocation | None, jobs.Proposed]:
        """Propose and carry out until one holds. What was acknowledged stays so, whatever comes of the rest."""
        count = min(request.count, self._parts.limits.events_max)
        for _ in range(ATTEMPTS_MAX):
            acknowledged = done.first if done else None
            found: jobs.Proposed = await self._parts.run(
                jobs.propose, queue, request.subscriber, acknowledged, count, self._parts.limits
            )
            operations: list[Operation] = [done] if done else []
            if done or _is_worth_writing(found.proposal):
                operations.append(Allocate(queue.id, request.subscriber, request.ttl_ms, found.proposal))
                *_, given = await self._parts.write(Transaction(tuple(operations)))
            else:
                return None, found
            done = None
            if given != STALE:
                assert given is None or isinstance(given, Allocation)
                return given, found
        raise WriterBusy(self._parts.waiting_writes)

    def _delivery(
        self,
        queue: QueueState,
        request: SubscribeQueue | AcknowledgeQueue,
        given: Allocation | None,
        events: list[Event],
    ) -> Delivery:
        return Delivery(queue.context, queue.name, request.subscriber, now_ticks(), given, events)


def _is_worth_writing(proposal: Proposal) -> bool:
    """A short scan that found nothing is not worth an fsync; the next one will do it again."""
    if proposal.kind == Proposal.NOTHING:
        return proposal.next - proposal.marker >= SCANNED_POSITIONS_MAX
    return True


def _seconds(ticks: int | None) -> float | None:
    return None if ticks is None else ticks / TICKS_PER_SECOND


def _check_allocation(count: int, ttl_ms: int) -> None:
    if count < 1:
        raise InvalidRequest("count", f"is {count}; it must be at least 1")
    if ttl_ms != NO_ALLOCATION and not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidRequest("allocation time", f"is {ttl_ms} ms; it must be -1 or between 1 and {TTL_MS_MAX}")
