"""Durable subscriptions, queues and transactions: how consumers get events and acknowledge them."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Final, Self
from uuid import uuid4

from penstock import model
from penstock.client.calls import Calls, append_of, flattened, refusal_of
from penstock.client.reader import WAIT_S_MAX
from penstock.errors import InvalidRequest, PenstockError, SubscriptionMoved
from penstock.model import ANY, Append, Appended, Delivery, Done, Event, NewEvent, QueueReceipt, ticks_of_time

DELIVERIES_MAX: Final = 10
"""How often a consumer acknowledges a batch that the server delivers again, as it does after a restart."""
BATCH_EVENTS: Final = 100
TTL_S: Final = 60.0
GIVE_BACK_S_MAX: Final = 3.0
"""How long an interrupted consumer may take to release its batch."""
NO_ALLOCATION: Final = -1
"""Instead of a time to live: acknowledge, and allocate nothing."""


def start_ticks(start: datetime | None) -> int:
    """A start time; None is the beginning of the history."""
    return 0 if start is None else ticks_of_time(start, "start")


class SubscriptionBatch(list[Event]):
    def __init__(self, subscription: int, events: Sequence[Event]) -> None:
        super().__init__(events)
        self.subscription = subscription

    @property
    def receipt(self) -> model.SubscriptionReceipt:
        """Acknowledges all of it in a transaction."""
        return model.SubscriptionReceipt(self.subscription, self[-1].ticks)


class AsyncSubscription:
    """A durable subscription, at least once: iterating progresses past a batch when the loop asks for the next one.

    A loop that ends or fails in the middle of a batch does not progress: the server delivers the batch again.
    """

    def __init__(
        self, calls: Calls, name: str, context: str, filter: str, start: datetime | None, count: int, follow: bool
    ) -> None:
        self._calls = calls
        self._name = name
        self._start = model.SubscriptionStart(context, filter, start_ticks(start))
        self._count = count
        self._follow = follow
        self._id: int | None = None
        self._settled: SubscriptionBatch | None = None

    async def id(self) -> int:
        """Its number. Registers the subscription if it is new."""
        if self._id is None:
            request = model.RegisterSubscriptions(self._name, (self._start,))
            (self._id,) = (await self._calls.ask(request, model.Registered)).ids
        return self._id

    async def fetch(self, wait: float = 0.0) -> SubscriptionBatch:
        """The next batch, or the same one until `progress`. Empty if nothing arrives within `wait` seconds."""
        return await self._fetch(self._count, wait)

    async def _fetch(self, count: int, wait: float) -> SubscriptionBatch:
        request = model.FetchSubscription(await self.id(), count, int(1000 * wait))
        batch = await self._calls.ask(request, model.FetchedBatch, wait=wait)
        return SubscriptionBatch(batch.subscription, batch.events)

    async def progress(self, batch: SubscriptionBatch) -> None:
        """Acknowledge a batch: the next fetch begins after it. A subscription that was moved meanwhile stays there."""
        for left in reversed(range(DELIVERIES_MAX)) if batch else ():
            try:
                await self._calls.transact(model.Transact(progress=(batch.receipt,)), model.Transacted)
            except PenstockError as error:
                if not isinstance(refusal_of(error), SubscriptionMoved):
                    raise
                if await self.comes_again(batch):
                    if left:
                        continue
                    raise
            return

    async def comes_again(self, batch: SubscriptionBatch) -> bool:
        """Whether the server delivers the same batch again, so that it can be acknowledged now.

        A restarted server has forgotten which batches it delivered. Asked for as many events, it delivers the same
        batch again, which this consumer has handled already.
        """
        again = await self._fetch(len(batch), 0.0)
        return [event.position for event in again] == [event.position for event in batch]

    async def set(self, start: datetime | None) -> None:
        """Move it to a time; None is the beginning of the history."""
        await self.id()
        place = self._start
        await self._calls.ask(model.SetSubscription(self._name, place.context, place.filter, start_ticks(start)), Done)

    def settled(self, batch: SubscriptionBatch) -> None:
        """A transaction has acknowledged this batch; iterating must not do so again."""
        self._settled = batch

    async def batches(self) -> AsyncGenerator[SubscriptionBatch, None]:
        """Batch by batch. Asking for the next one acknowledges the one before."""
        while True:
            batch = await self.fetch(WAIT_S_MAX if self._follow else 0.0)
            if not batch and not self._follow:
                return
            if batch:
                yield batch
                if batch is not self._settled:
                    await self.progress(batch)

    __aiter__ = flattened(batches)


class QueueBatch(list[Event]):
    """Events of a queue that this consumer holds until it acknowledges or releases them, or its lease expires."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery.events)
        self.receipt: QueueReceipt | None = None
        if delivery.allocation is not None:
            given = delivery.allocation
            self.receipt = QueueReceipt(delivery.context, delivery.queue, delivery.subscriber, given.first, given.last)
        self.is_settled = self.receipt is None


class AsyncQueue:
    """A queue that consumers share: each event goes to one of them.

    `async with queue.next() as batch` acknowledges the batch when the body succeeds and releases it when it fails.
    This object is one consumer: it has one batch at a time, and gets the same one until it acknowledges or releases
    it. Tasks that share the work make one consumer each.
    """

    def __init__(
        self,
        calls: Calls,
        context: str,
        name: str,
        subscriber: str | None,
        filter: str,
        start: datetime | None,
        count: int,
        ttl: float,
    ) -> None:
        subscriber = subscriber or f"consumer-{uuid4().hex}"
        self._calls = calls
        self._queue = context, name
        self._request = model.SubscribeQueue(
            context, name, subscriber, filter, start_ticks(start), count, int(1000 * ttl)
        )

    @asynccontextmanager
    async def next(self, wait: float = 0.0) -> AsyncIterator[QueueBatch]:
        """The next batch, for `async with`; empty if nothing arrives within `wait` seconds."""
        batch = await self.take(wait)
        try:
            yield batch
        except BaseException as error:
            await self.settle(batch, error)
            raise
        await self.settle(batch, None)

    async def take(self, wait: float = 0.0) -> QueueBatch:
        """The next batch. The caller acknowledges or releases it."""
        request = replace(self._request, wait_ms=int(1000 * wait))
        return QueueBatch(await self._calls.ask(request, Delivery, wait=wait))

    async def declare(self) -> None:
        """Create the queue if it is new, without taking a batch."""
        await self._calls.ask(replace(self._request, ttl_ms=NO_ALLOCATION), Delivery)

    async def acknowledge(self, batch: QueueBatch) -> None:
        """The batch is done: the server delivers it to no consumer again."""
        receipt = batch.receipt
        if receipt is not None and not batch.is_settled:
            request = model.AcknowledgeQueue(*receipt, self._request.count, NO_ALLOCATION)
            await self._calls.ask(request, Delivery)
            batch.is_settled = True

    async def release(self, batch: QueueBatch, *, counts: bool = True) -> None:
        """The batch is not done: the next consumer gets it at once.

        This counts like an expiry for `dead_after`, unless `counts` is False.
        """
        receipt = batch.receipt
        if receipt is not None and not batch.is_settled:
            await self._calls.ask(model.ReleaseQueue(*receipt, counts), Done)
            batch.is_settled = True

    async def give_back(self) -> None:
        """Release what this consumer holds, even the batch of an interrupted `take`; it does not count as an expiry.

        It takes at most a few seconds. A batch that could not be released goes to others when its lease expires.
        """
        now = self._calls.transport.now
        until = now() + GIVE_BACK_S_MAX
        with suppress(PenstockError):
            # A consumer that holds a batch gets the same one again.
            batch = QueueBatch(await self._calls.ask(replace(self._request, wait_ms=0), Delivery, GIVE_BACK_S_MAX))
            if batch.receipt is not None:
                await self._calls.ask(model.ReleaseQueue(*batch.receipt, False), Done, until - now())

    async def reset(self, start: datetime | None = None, *, position: int | None = None) -> None:
        """Restart at a time or a position, or at the very beginning. Leases that consumers hold end."""
        await self._calls.ask(model.ResetQueue(*self._queue, start_ticks(start), position), Done)

    async def dead_after(self, holders: int | None) -> None:
        """Make a batch a dead letter once this many consumers in turn released it or let it expire; None: never."""
        await self._calls.ask(model.SetDeadLetterRule(*self._queue, holders), Done)

    async def dead_letters(self) -> list[model.Allocation]:
        """The dead letters, each with the positions of its first and last event."""
        return await self._calls.list_all(model.ListDeadLetters(*self._queue), "first")

    async def put_back(self, first: int) -> None:
        """Deliver the dead letter that begins at a position to the next consumer, unless it is back already.

        Raises DeadLetterNotFound if no dead letter begins there.
        """
        await self._calls.ask(model.PutBack(*self._queue, first), Done)

    async def replay(self, first: int, last: int, *, mark: model.ProducerMark | None = None) -> model.Replayed:
        """Deliver the events between two positions again, before any new ones. The queue's own position stays.

        At most 1,000 events at a time. It leaves out events that a consumer holds, that wait for redelivery or that are
        dead letters. If too many wait already, it does nothing and the answer `is_full`: retry later. With a mark (a
        producer's name and its own growing number), a repeat does nothing.
        """
        request = model.ReplayQueue(*self._queue, first, last, mark)
        if mark is not None:
            return await self._calls.ask(request, model.Replayed)
        return await self._calls.transact(request, model.Replayed)

    async def settle(self, batch: QueueBatch, error: BaseException | None) -> None:
        """Acknowledge a batch, or release it after an error. Ctrl-C does not count for `dead_after`."""
        if error is None:
            await self.acknowledge(batch)
            return
        try:
            await self.release(batch, counts=not isinstance(error, KeyboardInterrupt))
        except PenstockError as failed:
            # The first error matters more. The batch goes to others when its lease expires.
            error.add_note(f"the batch was not released: {failed}")


class AsyncTransaction:
    """Appends and acknowledgements, all or nothing; committed when the `async with` ends without an error."""

    def __init__(self, calls: Calls, timeout: float | None) -> None:
        self._calls = calls
        self._timeout = timeout
        self._commits: list[Append] = []
        self._queued: list[QueueBatch] = []
        self._fetched: list[tuple[AsyncSubscription, SubscriptionBatch]] = []
        self.result: list[Appended] = []
        """The results of the appends, in order, once it is committed."""

    def append(self, context: str, stream: str, events: Sequence[NewEvent], *, expected: int = ANY) -> None:
        self._commits.append(append_of(context, stream, events, expected))

    def acknowledge(self, batch: QueueBatch) -> None:
        self._queued.append(batch)

    def progress(self, subscription: AsyncSubscription, batch: SubscriptionBatch) -> None:
        self._fetched.append((subscription, batch))

    async def commit(self) -> list[Appended]:
        receipts = tuple(batch.receipt for batch in self._queued if batch.receipt is not None)
        progress = tuple(batch.receipt for _, batch in self._fetched if batch)
        if not self._commits and not receipts and not progress:
            raise InvalidRequest("transaction", "has nothing in it")
        request = model.Transact(tuple(self._commits), receipts, progress)
        for left in reversed(range(DELIVERIES_MAX)):
            try:
                self.result = list((await self._calls.transact(request, model.Transacted, self._timeout)).commits)
                break
            except PenstockError as error:
                # Safe in doubt: if the first attempt is carried out after all, the server refuses the next one.
                if not left or not isinstance(refusal_of(error), SubscriptionMoved) or not await self._come_again():
                    raise
        for batch in self._queued:
            batch.is_settled = True
        for subscription, fetched in self._fetched:
            if fetched:
                subscription.settled(fetched)
        return self.result

    async def _come_again(self) -> bool:
        """Whether a restarted server delivers all batches again as before."""
        return all([await subscription.comes_again(batch) for subscription, batch in self._fetched if batch])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None and (self._commits or self._queued or self._fetched):
            await self.commit()
