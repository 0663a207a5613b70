"""Durable subscriptions, queues and transactions: what consumers do, and how they say that it is done."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from penstock.client.calls import Calls, refusal_of
from penstock.client.commits import append_of
from penstock.client.reading import WAIT_S_MAX
from penstock.errors import InvalidRequest, PenstockError, SubscriptionMoved
from penstock.model import (
    ANY,
    AcknowledgeQueue,
    Allocation,
    Append,
    Appended,
    Batch,
    DeadLetterPage,
    Delivery,
    Done,
    Event,
    FetchSubscription,
    ListDeadLetters,
    NewEvent,
    ProducerMark,
    PutBack,
    QueueReceipt,
    Registered,
    RegisterSubscriptions,
    ReleaseQueue,
    Replayed,
    ReplayQueue,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    SubscribeQueue,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
    Transacted,
    ticks_of_datetime,
)

BATCH_EVENTS: Final = 100
TTL_S: Final = 60.0
GIVE_BACK_S_MAX: Final = 3.0
"""How long somebody who is interrupted may take to give back what it holds."""
NO_ALLOCATION: Final = -1
"""In place of a time to live: acknowledge, and allocate nothing."""


def start_ticks(start: datetime | None) -> int:
    """A time to begin at; None is the beginning of the history."""
    return 0 if start is None else ticks_of_datetime(start)


class SubscriptionBatch(list[Event]):
    """A subscription's events that were fetched together."""

    def __init__(self, subscription: int, events: Sequence[Event]) -> None:
        super().__init__(events)
        self.subscription = subscription

    @property
    def receipt(self) -> SubscriptionReceipt:
        """What says that all of it is done."""
        return SubscriptionReceipt(self.subscription, self[-1].ticks)


class AsyncSubscription:
    """A durable subscription. Iterating delivers each batch until the loop body has gone through all of it.

    Leaving the loop in the middle of a batch, or failing in it, leaves the subscription where it was: the batch comes
    again, here or elsewhere.
    """

    def __init__(
        self, calls: Calls, name: str, context: str, filter: str, start: datetime | None, count: int, follow: bool
    ) -> None:
        self._calls = calls
        self._name = name
        self._start = SubscriptionStart(context, filter, start_ticks(start))
        self._count = count
        self._follow = follow
        self._id: int | None = None
        self._settled: SubscriptionBatch | None = None

    async def id(self) -> int:
        """Its number; it is registered if it is new."""
        if self._id is None:
            request = RegisterSubscriptions(self._name, (self._start,))
            (self._id,) = (await self._calls.ask(request, Registered)).ids
        return self._id

    async def fetch(self, wait: float = 0.0) -> SubscriptionBatch:
        """The next batch; the same again until it is progressed. Empty if there is nothing within `wait` seconds."""
        return await self._fetch(self._count, wait)

    async def _fetch(self, count: int, wait: float) -> SubscriptionBatch:
        request = FetchSubscription(await self.id(), count, int(1000 * wait))
        batch = await self._calls.ask(request, Batch, wait=wait)
        return SubscriptionBatch(batch.subscription, batch.events)

    async def progress(self, batch: SubscriptionBatch) -> None:
        """Done with a batch: the next fetch gives what comes after it. If it was moved meanwhile, it stays there."""
        while batch:
            try:
                await self._calls.transact(Transact(progress=(batch.receipt,)), Transacted)
            except PenstockError as error:
                if not isinstance(refusal_of(error), SubscriptionMoved):
                    raise
                if await self.comes_again(batch):
                    continue
            return

    async def comes_again(self, batch: SubscriptionBatch) -> bool:
        """Whether a batch that cannot be progressed is only forgotten, and remembered now.

        A server that was started again knows no more what it has handed out. It hands out the same once more, if it is
        asked for as much; then this is the batch that was handled already.
        """
        again = await self._fetch(len(batch), 0.0)
        return [event.position for event in again] == [event.position for event in batch]

    async def set(self, start: datetime | None) -> None:
        """Move it to a time; None is the beginning of the history."""
        await self.id()
        place = self._start
        await self._calls.ask(SetSubscription(self._name, place.context, place.filter, start_ticks(start)), Done)

    def settled(self, batch: SubscriptionBatch) -> None:
        """A transaction has progressed past this batch; iterating need not."""
        self._settled = batch

    async def batches(self) -> AsyncGenerator[SubscriptionBatch, None]:
        """Batch by batch; progressed when the loop asks for the next."""
        while True:
            batch = await self.fetch(WAIT_S_MAX if self._follow else 0.0)
            if not batch and not self._follow:
                return
            if batch:
                yield batch
                if batch is not self._settled:
                    await self.progress(batch)

    async def __aiter__(self) -> AsyncIterator[Event]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for event in batch:
                    yield event


class QueueBatch(list[Event]):
    """Events of a queue that this consumer holds, until it acknowledges them, releases them or they expire."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery.events)
        self.receipt: QueueReceipt | None = None
        if delivery.allocation is not None:
            given = delivery.allocation
            self.receipt = QueueReceipt(delivery.context, delivery.queue, delivery.subscriber, given.first, given.last)
        self.is_settled = self.receipt is None
        """Whether there is nothing left to acknowledge."""


class AsyncQueue:
    """A queue that consumers share: each event goes to one of them.

    `async with queue.next() as batch` acknowledges the batch when the body succeeds and releases it when it fails.
    This is one consumer: it has one batch at a time, and gets the same one until that is settled. Tasks that share the
    work make one each.
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
        self._calls = calls
        self._context = context
        self._name = name
        self._subscriber = subscriber or f"consumer-{uuid4().hex}"
        self._filter = filter
        self._start = start_ticks(start)
        self._count = count
        self._ttl_ms = int(1000 * ttl)

    def next(self, wait: float = 0.0) -> "AsyncDelivery":
        """The next batch, for `async with`; empty if there is nothing within `wait` seconds."""
        return AsyncDelivery(self, wait)

    async def take(self, wait: float = 0.0) -> QueueBatch:
        """The next batch, to be acknowledged or released by hand."""
        return QueueBatch(await self._subscribe(self._ttl_ms, wait))

    async def declare(self) -> None:
        """Make the queue if it is new, and take nothing."""
        await self._subscribe(NO_ALLOCATION, 0.0)

    async def _subscribe(self, ttl_ms: int, wait: float) -> Delivery:
        request = SubscribeQueue(
            self._context,
            self._name,
            self._subscriber,
            self._filter,
            self._start,
            self._count,
            ttl_ms,
            int(1000 * wait),
        )
        return await self._calls.ask(request, Delivery, wait=wait)

    async def acknowledge(self, batch: QueueBatch) -> None:
        """Done with a batch: nobody gets it again."""
        receipt = batch.receipt
        if receipt is not None and not batch.is_settled:
            request = AcknowledgeQueue(
                receipt.context,
                receipt.queue,
                receipt.subscriber,
                receipt.first,
                receipt.last,
                self._count,
                NO_ALLOCATION,
            )
            await self._calls.ask(request, Delivery)
            batch.is_settled = True

    async def release(self, batch: QueueBatch, *, counts: bool = True) -> None:
        """Not done with a batch: the next consumer gets it at once.

        That counts like an expiry for `dead_after`, unless the batch is given back for no fault of its own.
        """
        receipt = batch.receipt
        if receipt is not None and not batch.is_settled:
            await self._calls.ask(ReleaseQueue(*_fields(receipt), counts), Done)
            batch.is_settled = True

    async def give_back(self) -> None:
        """Release what this consumer holds, also what a `take` has brought that was interrupted; it does not count.

        It takes at most a few seconds. What could not be released goes to others when its time is up.
        """
        # Whoever holds something is given it once more.
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S_MAX):
                await self.release(await self.take(), counts=False)

    async def reset(self, start: datetime | None = None, *, position: int | None = None) -> None:
        """Begin again at a time or a position, or at the very beginning. What was handed out is not any more."""
        await self._calls.ask(ResetQueue(self._context, self._name, start_ticks(start), position), Done)

    async def dead_after(self, holders: int | None) -> None:
        """Set what so many consumers in turn have let expire or have released aside, as dead letters; None: never."""
        await self._calls.ask(SetDeadLetterRule(self._context, self._name, holders), Done)

    async def dead_letters(self) -> list[Allocation]:
        """What was set aside: each with the positions from its first to its last event."""
        found: list[Allocation] = []
        while True:
            after = found[-1].first if found else 0
            page = await self._calls.ask(ListDeadLetters(self._context, self._name, after), DeadLetterPage)
            found += page.dead
            if page.end:
                return found

    async def put_back(self, first: int) -> None:
        """Give what was set aside, by its first position, to the next consumer, unless it is back already.

        Raises DeadLetterNotFound if the queue has nothing that begins there.
        """
        await self._calls.ask(PutBack(self._context, self._name, first), Done)

    async def replay(self, first: int, last: int, *, mark: ProducerMark | None = None) -> Replayed:
        """Hand its events between two positions out once more, before anything new; it stays where it is itself.

        At most 1,000 events at a time. What a consumer holds, what comes again anyway and what was set aside is left
        out. If too much waits already, nothing is done, and the answer `is_full`: ask again later. With a mark (a
        producer's name and its own growing number), what was done before is not done again.
        """
        request = ReplayQueue(self._context, self._name, first, last, mark)
        if mark is not None:
            return await self._calls.ask(request, Replayed)
        return await self._calls.transact(request, Replayed)

    async def settle(self, batch: QueueBatch, error: BaseException | None) -> None:
        """The work on a batch has ended: acknowledge it, or after an error release it.

        Ctrl-C is no fault of the batch, and does not count for `dead_after`.
        """
        if error is None:
            await self.acknowledge(batch)
            return
        try:
            await self.release(batch, counts=not isinstance(error, KeyboardInterrupt))
        except PenstockError as failed:
            # What went wrong in the work matters more. The batch goes to others when its time is up.
            error.add_note(f"the batch was not released: {failed}")


def _fields(receipt: QueueReceipt) -> tuple[str, str, str, int, int]:
    return receipt.context, receipt.queue, receipt.subscriber, receipt.first, receipt.last


class AsyncDelivery:
    """One batch of a queue, held while the body of an `async with` works on it."""

    def __init__(self, queue: AsyncQueue, wait: float) -> None:
        self._queue = queue
        self._wait = wait
        self._batch: QueueBatch | None = None

    async def __aenter__(self) -> QueueBatch:
        self._batch = await self._queue.take(self._wait)
        return self._batch

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._batch is not None
        await self._queue.settle(self._batch, error)


class AsyncTransaction:
    """Appends together with what they were made from: all or nothing, when the `async with` ends without an error."""

    def __init__(self, calls: Calls, timeout: float | None) -> None:
        self._calls = calls
        self._timeout = timeout
        self._commits: list[Append] = []
        self._queued: list[QueueBatch] = []
        self._fetched: list[tuple[AsyncSubscription, SubscriptionBatch]] = []
        self.result: list[Appended] = []
        """What came of the appends, in their order, once it is committed."""

    def append(self, context: str, stream: str, events: Sequence[NewEvent], *, expected: int = ANY) -> None:
        """Append events to a stream, as part of this."""
        self._commits.append(append_of(context, stream, events, expected))

    def acknowledge(self, batch: QueueBatch) -> None:
        """Acknowledge a queue's batch, as part of this."""
        self._queued.append(batch)

    def progress(self, subscription: AsyncSubscription, batch: SubscriptionBatch) -> None:
        """Progress a subscription past a batch, as part of this."""
        self._fetched.append((subscription, batch))

    async def commit(self) -> list[Appended]:
        """Carry it out; what came of its appends."""
        receipts = tuple(batch.receipt for batch in self._queued if batch.receipt is not None)
        progress = tuple(batch.receipt for _, batch in self._fetched if batch)
        if not self._commits and not receipts and not progress:
            raise InvalidRequest("transaction", "has nothing in it")
        request = Transact(tuple(self._commits), receipts, progress)
        while True:
            try:
                self.result = list((await self._calls.transact(request, Transacted, self._timeout)).commits)
                break
            except PenstockError as error:
                # Also in doubt: if the first attempt is carried out after all, the next one is refused.
                if not isinstance(refusal_of(error), SubscriptionMoved) or not await self._come_again():
                    raise
        for batch in self._queued:
            batch.is_settled = True
        for subscription, fetched in self._fetched:
            if fetched:
                subscription.settled(fetched)
        return self.result

    async def _come_again(self) -> bool:
        """Whether all batches are handed out as before, by a server that had forgotten them."""
        return all([await subscription.comes_again(batch) for subscription, batch in self._fetched if batch])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and (self._commits or self._queued or self._fetched):
            await self.commit()
