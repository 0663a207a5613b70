"""Durable subscriptions, queues and transactions: how consumers get events and acknowledge them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import Final, Self
from uuid import uuid4

from penstock import model
from penstock.client.calls import Calls, append_of, flattened, refusal_of
from penstock.client.reader import WAIT_S_MAX
from penstock.errors import (
    AllocationLost,
    ClientClosed,
    InvalidRequest,
    PenstockError,
    QueueNotFound,
    Retry,
    SubscriptionMoved,
)
from penstock.model import (
    ANY,
    Append,
    Appended,
    Delivery,
    Done,
    Event,
    NewEvent,
    QueueReceipt,
    selection_of,
    short_reason,
    ticks_of_time,
)

DELIVERIES_MAX: Final = 10
"""How often a consumer acknowledges a batch that the server delivers again, as it does after a restart."""
BATCH_EVENTS: Final = 100
TTL_S: Final = 60.0
GIVE_BACK_S_MAX: Final = 3.0
"""How long an interrupted consumer may take to release its batch."""
EXTENSIONS_PER_TTL: Final = 3
"""How often a lease is extended in the time that it lasts."""
ATTEMPTS_PER_TTL: Final = 12
"""How soon after a failure the client tries again to extend it."""
DELAY_S_MAX: Final = 7 * 24 * 3600.0
EVERYTHING: Final = "*"
"""A filter that leaves nothing out, and is not empty."""
NO_SELECTION: Final = "{}"
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
        self,
        calls: Calls,
        name: str,
        context: str | None,
        filter: str,
        start: datetime | None,
        count: int,
        follow: bool,
        selection: str = "",
    ) -> None:
        self._calls = calls
        self._name = name
        self._start = model.SubscriptionStart(context, filter, start_ticks(start), selection)
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
        moved = model.SetSubscription(self._name, place.context, place.filter, start_ticks(start), place.selection)
        await self._calls.ask(moved, Done)

    async def delete(self) -> None:
        """Forget the subscription and where it is; events stay in the history. Used again, it is a new one."""
        await self._calls.ask(model.DeleteSubscription(await self.id()), Done)
        self._id = None

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
    """Events of a queue that this consumer holds until it acknowledges or releases them, or its lease expires.

    What `retry`, `bury` and `give_back` say of single events is carried out when the batch is acknowledged or released.
    """

    def __init__(self, delivery: Delivery, now: float, ttl: float) -> None:
        super().__init__(delivery.events)
        self.runs = tuple(model.Run(one.first, one.last) for one in delivery.runs)
        self.ordered = delivery.ordered
        self.is_settled = not self.runs
        """Whether it was acknowledged or released, or is empty."""
        self.is_lost = False
        """Whether the client knows already that other consumers may have it; then work on it is wasted."""
        self.outcomes: dict[int, model.Retried | model.Buried] = {}
        self._expires = now + ttl
        self.subscriber = delivery.subscriber
        self._queue = delivery.context, delivery.queue
        self._delivery = delivery
        self._attempts: dict[int, int] | None = None

    @property
    def receipts(self) -> tuple[QueueReceipt, ...]:
        """Acknowledge all of it in a transaction."""
        return tuple(QueueReceipt(*self._queue, self.subscriber, *run) for run in self.runs)

    def attempt(self, event: Event) -> int:
        """How often the queue has delivered an event by now; 1 for the first time."""
        if self._attempts is None:
            self._attempts = self._delivery.attempts((one.position, one.stream) for one in self._delivery.events)
        return self._attempts.get(event.position, 1)

    def key_of(self, event: Event) -> str:
        """The key by which an ordered queue orders an event; empty in other queues."""
        return model.order_key(self.ordered, event.stream)

    def retry(self, event: Event, *, delay: float | None = None, reason: str = "") -> None:
        """This event failed: it comes again after `delay` seconds; None: after what the queue's retry policy says.

        It becomes a dead letter instead if this was the last attempt that `dead_after` allows. In an ordered queue the
        later events of its key come again as well; see `comes_again`.
        """
        delay_ms = None if delay is None else _milliseconds(delay, "delay")
        self._set(event, model.Retried(event.position, delay_ms, short_reason(reason)))
        if key := self.key_of(event):
            for one in self:
                if one.position > event.position and self.key_of(one) == key:
                    self.outcomes.setdefault(one.position, model.Retried(one.position, model.NOT_TRIED, ""))

    def comes_again(self, event: Event) -> bool:
        """Whether it was given back, or an earlier event of its key failed in an ordered queue: do not handle it."""
        outcome = self.outcomes.get(event.position)
        return isinstance(outcome, model.Retried) and outcome.delay_ms == model.NOT_TRIED

    def bury(self, event: Event, reason: str) -> None:
        """Make this event a dead letter: no consumer gets it until it is returned to the queue."""
        self._set(event, model.Buried(event.position, short_reason(reason)))

    def give_back(self, event: Event) -> None:
        """This consumer has not tried this event: the next one gets it at once, and this delivery does not count."""
        self._set(event, model.Retried(event.position, model.NOT_TRIED, ""))

    def _set(self, event: Event, outcome: model.Retried | model.Buried) -> None:
        if self.is_settled:
            raise InvalidRequest("batch", "was acknowledged or released already")
        if not any(first <= event.position <= last for first, last in self.runs):
            raise InvalidRequest("event", f"at position {event.position} is not in this batch")
        self.outcomes[event.position] = outcome


def _milliseconds(seconds: float, what: str) -> int:
    if not 0 <= seconds <= DELAY_S_MAX:
        raise InvalidRequest(what, f"is {seconds:g} s; it must be from 0 to {DELAY_S_MAX:g}")
    return int(1000 * seconds)


class AsyncQueue:
    """A queue that consumers share: each event goes to one of them.

    `async with queue.next() as batch` acknowledges the batch when the body succeeds and releases it when it fails.
    This object is one consumer: it has one batch at a time, and gets the same one until it acknowledges or releases
    it. Tasks that share the work make one consumer each, with `another`.
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
        ordered: str | None = None,
        selection: str | None = None,
        retry: str | None = None,
        dead_after: int | None = None,
    ) -> None:
        subscriber = subscriber or f"consumer-{uuid4().hex}"
        self._calls = calls
        self._queue = context, name
        self._ttl = ttl
        self._request = model.SubscribeQueue(
            *(context, name, subscriber, filter, start_ticks(start), count, int(1000 * ttl)),
            ordered=ordered,
            selection=selection,
            retry=retry,
            dead_after=dead_after,
            several=True,
        )

    def another(self, subscriber: str | None = None, *, count: int | None = None) -> "AsyncQueue":
        """Another consumer of the same queue, which may get another number of events at once."""
        made = copy(self)
        given = self.count if count is None else count
        made._request = replace(self._request, subscriber=subscriber or f"consumer-{uuid4().hex}", count=given)
        return made

    @property
    def subscriber(self) -> str:
        """The name of this consumer."""
        return self._request.subscriber

    @property
    def context(self) -> str:
        return self._queue[0]

    @property
    def name(self) -> str:
        return self._queue[1]

    @property
    def count(self) -> int:
        """How many events come at once, at most."""
        return self._request.count

    @property
    def ttl(self) -> float:
        """How long a lease lasts, in seconds."""
        return self._ttl

    @asynccontextmanager
    async def next(self, wait: float = 0.0, *, extend: bool = True) -> AsyncIterator[QueueBatch]:
        """The next batch, for `async with`; empty if nothing arrives within `wait` seconds.

        While the body runs, the lease is extended, unless `extend` is False. If it is lost all the same, such as after
        the server was away for longer than a lease, the end of the body raises AllocationLost: other consumers may have
        the events.
        """
        try:
            batch = await self.take(wait)
        except asyncio.CancelledError:
            # The server may have handed something out meanwhile.
            await self.give_back()
            raise
        keeper = self._calls.begin(self.keep(batch)) if extend and not batch.is_settled else None
        try:
            yield batch
        except BaseException as error:
            if keeper is not None:
                keeper.cancel()
            await self.settle(batch, error)
            raise
        if keeper is not None:
            keeper.cancel()
        await self.settle(batch, None)

    async def keep(self, batch: QueueBatch) -> None:
        """Extend the lease of a batch again and again, until it is settled or lost."""
        pause = self._ttl / EXTENSIONS_PER_TTL
        while not batch.is_settled and pause < inf:
            await self._calls.pause(pause)
            pause = await self.extend_again(batch)

    async def extend_again(self, batch: QueueBatch) -> float:
        """Extend a lease, unless that fails; in how many seconds to do so again."""
        try:
            await self._extend(batch, self._ttl, self._ttl / EXTENSIONS_PER_TTL)
        except (AllocationLost, ClientClosed):
            # The end of the body says so.
            return inf
        except PenstockError:
            # The lease may last for a while yet.
            return self._ttl / ATTEMPTS_PER_TTL
        return self._ttl / EXTENSIONS_PER_TTL

    async def take(self, wait: float = 0.0) -> QueueBatch:
        """The next batch. The caller acknowledges or releases it."""
        request = replace(self._request, wait_ms=int(1000 * wait))
        delivery = await self._calls.ask(request, Delivery, wait=wait)
        # The server's clock counts; what is between its answer and now is the time that we may have lost.
        return QueueBatch(delivery, self._calls.transport.now(), self._ttl)

    async def declare(self) -> None:
        """Create the queue if it is new, without taking a batch."""
        await self._calls.ask(replace(self._request, ttl_ms=NO_ALLOCATION), Delivery)

    async def extend(self, batch: QueueBatch, ttl: float | None = None) -> None:
        """Hold a batch for `ttl` seconds from now on, by default as long as at first. AllocationLost if it is lost."""
        await self._extend(batch, self._ttl if ttl is None else ttl, None)

    async def _extend(self, batch: QueueBatch, ttl: float, timeout: float | None) -> None:
        if batch.is_settled:
            return
        request = model.ExtendQueue(*self._queue, batch.subscriber, batch.runs, int(1000 * ttl))
        now = self._calls.transport.now()
        try:
            await self._calls.ask(request, model.Extended, timeout)
        except AllocationLost:
            batch.is_lost = True
            raise
        batch._expires = now + ttl

    async def acknowledge(self, batch: QueueBatch, *, timeout: float | None = None) -> None:
        """The batch is done, except for events with another outcome. AllocationLost if the lease was lost."""
        await self._settle(batch, model.Rest.DONE, timeout=timeout)

    async def release(
        self, batch: QueueBatch, *, counts: bool = True, delay: float | None = 0.0, reason: str = ""
    ) -> None:
        """The batch is not done: the next consumer gets it after `delay` seconds; None: as the retry policy says.

        This counts like an expiry for `dead_after`, unless `counts` is False.
        """
        delay_ms = None if delay is None else _milliseconds(delay, "delay")
        await self._settle(batch, model.Rest.RETRY if counts else model.Rest.BACK, delay_ms, reason)

    async def _settle(
        self,
        batch: QueueBatch,
        rest: model.Rest,
        delay_ms: int | None = None,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        if batch.is_settled:
            return
        outcomes = batch.outcomes.values()
        retries = tuple(one for one in outcomes if isinstance(one, model.Retried))
        buries = tuple(one for one in outcomes if isinstance(one, model.Buried))
        place = *self._queue, batch.subscriber, batch.runs
        request = model.SettleQueue(*place, rest, delay_ms, short_reason(reason), retries, buries)
        try:
            await self._calls.ask(request, Done, timeout)
        except PenstockError as error:
            # Sent again after a lost connection, it finds what the first attempt has settled. While the lease lasts,
            # no other consumer can have settled it.
            is_done = isinstance(refusal_of(error), AllocationLost) and error.retry is Retry.UNKNOWN
            if not is_done or self._calls.transport.now() >= batch._expires:
                batch.is_settled = batch.is_lost = isinstance(error, AllocationLost)
                raise
        batch.is_settled = True

    async def give_back(self) -> None:
        """Release what this consumer holds, even the batch of an interrupted `take`; it does not count as an expiry.

        It takes at most a few seconds. A batch that could not be released goes to others when its lease expires.
        """
        now = self._calls.transport.now
        until = now() + GIVE_BACK_S_MAX
        with suppress(PenstockError):
            # A consumer that holds a batch gets the same one again.
            request = replace(self._request, wait_ms=0)
            batch = QueueBatch(await self._calls.ask(request, Delivery, GIVE_BACK_S_MAX), now(), self._ttl)
            if batch.runs:
                settle = model.SettleQueue(*self._queue, batch.subscriber, batch.runs, model.Rest.BACK)
                await self._calls.ask(settle, Done, until - now())

    async def reset(self, start: datetime | None = None, *, position: int | None = None) -> None:
        """Restart at a time or a position, or at the very beginning. Leases end, and dead letters are dropped."""
        await self._calls.ask(model.ResetQueue(*self._queue, start_ticks(start), position), Done)

    async def dead_after(self, holders: int | None) -> None:
        """Make an event a dead letter once it was delivered this often in vain; None: never. Creates a new queue."""
        await self._on_queue(model.SetDeadLetterRule(*self._queue, holders))

    async def set_retry(self, policy: model.RetryPolicy) -> None:
        """How long failed events wait until they come again. Creates a new queue."""
        await self._on_queue(model.SetRetryPolicy(*self._queue, policy.checked().text))

    async def _on_queue(self, request: model.Request) -> None:
        """A request about the queue, which is created if it does not exist."""
        try:
            await self._calls.ask(request, Done)
        except QueueNotFound:
            await self.declare()
            await self._calls.ask(request, Done)

    async def pause(self) -> None:
        """Hand out nothing until `resume`. Consumers keep what they hold, and acknowledge it."""
        await self._calls.ask(model.PauseQueue(*self._queue, True), Done)

    async def resume(self) -> None:
        await self._calls.ask(model.PauseQueue(*self._queue, False), Done)

    async def rename(self, name: str) -> None:
        """Give the queue another name. Consumers with the old name get QueueNotFound, or make a new queue."""
        await self._calls.ask(model.RenameQueue(*self._queue, name), Done)
        context, _ = self._queue
        self._queue = context, name
        self._request = replace(self._request, queue=name)

    async def delete(self) -> None:
        """Delete the queue with its leases and dead letters. Its events stay in the history."""
        await self._calls.ask(model.DeleteQueue(*self._queue), Done)

    async def set_filter(
        self, filter: str = "", *, types: Sequence[str] | None = None, prefixes: Sequence[str] | None = None
    ) -> None:
        """Deliver other events, from the queue's position on.

        Refused while consumers hold events, or some wait to be delivered again. Consumers that name the old filter get
        QueueFilterMismatch from then on.
        """
        prefix, selection = selection_of(filter, types, prefixes)
        await self._calls.ask(model.SetQueueFilter(*self._queue, prefix, selection), Done)
        self._request = replace(self._request, filter=prefix, selection=selection)

    async def preview(
        self,
        start: datetime | None = None,
        *,
        position: int | None = None,
        filter: str | None = None,
        types: Sequence[str] | None = None,
        prefixes: Sequence[str] | None = None,
    ) -> model.QueuePreview:
        """How much the queue would have to deliver after `reset` to a time or a position, or with another filter.

        Nothing changes. Without a time or a position it is about the place where the queue is.
        """
        prefix = selection = None
        if filter is not None or types is not None or prefixes is not None:
            prefix, selection = selection_of(filter or "", types, prefixes)
            # On the wire, empty ones leave the queue as it is.
            prefix, selection = prefix or EVERYTHING, selection or NO_SELECTION
        ticks = None if start is None else start_ticks(start)
        request = model.PreviewQueue(*self._queue, prefix, selection, ticks, position)
        return await self._calls.ask(request, model.QueuePreview)

    async def dead_letters(self) -> list[model.DeadLetter]:
        """The dead letters, event by event."""
        return await self._calls.list_all(model.ListLetters(*self._queue), "position")

    async def put_back(self, position: int) -> None:
        """Deliver the dead letter at a position to the next consumer, unless it is back already.

        Raises DeadLetterNotFound if there is none.
        """
        await self._calls.ask(model.PutBack(*self._queue, position), Done)

    async def put_back_all(self) -> int:
        """Deliver all dead letters to the next consumers; how many."""
        return await self._every_letter(drop=False)

    async def drop_dead(self, position: int | None = None) -> int:
        """Forget the dead letter at a position, or all of them; how many."""
        if position is None:
            return await self._every_letter(drop=True)
        request = model.PutBackLetters(*self._queue, (position,), True)
        return (await self._calls.ask(request, model.PutBackCount)).events

    async def _every_letter(self, *, drop: bool) -> int:
        done = 0
        async with aclosing(self._calls.list_pages(model.ListLetters(*self._queue), "position")) as pages:
            async for page in pages:
                positions = tuple(one.position for one in page)
                request = model.PutBackLetters(*self._queue, positions, drop)
                done += (await self._calls.ask(request, model.PutBackCount)).events
        return done

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
        """Acknowledge a batch, or after an error release it, for as long as the retry policy says.

        Ctrl-C, SystemExit and cancellation do not count for `dead_after`: then the batch goes to others at once.
        """
        if error is None:
            await self.acknowledge(batch)
            return
        has_failed = isinstance(error, Exception)
        try:
            if has_failed:
                await self.release(batch, delay=None, reason=reason_of(error))
            else:
                await self._settle(batch, model.Rest.BACK, timeout=GIVE_BACK_S_MAX)
        except PenstockError as failed:
            # The first error matters more. The batch goes to others when its lease expires.
            error.add_note(f"the batch was not released: {failed}")


def reason_of(error: BaseException) -> str:
    """The reason of a dead letter that an error caused."""
    return short_reason(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


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
        if batch.outcomes:
            raise InvalidRequest("batch", "has events to retry or to bury; acknowledge it outside of a transaction")
        self._queued.append(batch)

    def progress(self, subscription: AsyncSubscription, batch: SubscriptionBatch) -> None:
        self._fetched.append((subscription, batch))

    async def commit(self) -> list[Appended]:
        receipts = tuple(receipt for batch in self._queued for receipt in batch.receipts)
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
