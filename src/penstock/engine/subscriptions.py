"""Durable subscriptions: the same batch until it is progressed, and progress that can be repeated safely.

The batch that was fetched and not progressed yet is only in memory: a restart loses nothing, as the client fetches it
again. Where several servers share a store, a client may have fetched from another one; `jobs.batch_until` finds the end
of that batch by its time.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from penstock import model
from penstock.engine import jobs
from penstock.engine.audit import Audit
from penstock.engine.context import Attempt, Caller, EngineContext, KeyedLocks, check_names
from penstock.engine.jobs import EventEncoder, PendingBatch
from penstock.errors import InvalidRequest, LimitExceeded, SubscriptionNotFound
from penstock.model import EventFilter, Selection, SubscriptionInfo, View
from penstock.store import Store
from penstock.store.contract import DeleteSubscription, Progress, Register, SetBookmark, Transaction

PENDING_MAX: Final = 100_000
"""Batches remembered as fetched; the oldest is forgotten first, and its subscriber fetches again."""
REGISTER_MAX: Final = 1000
NOWHERE: Final = 0
"""A position that no subscription is ever at."""


class SubscriptionRequests:
    def __init__(self, context: EngineContext, audit: Audit) -> None:
        self._context = context
        self._audit = audit
        self._locks = KeyedLocks(context.settings.reader_wait_ms_max)
        self._pending: dict[int, PendingBatch] = {}

    async def register(self, request: model.RegisterSubscriptions, caller: Caller) -> model.Registered:
        """Create or find subscriptions: all of a request or none."""
        check_names(subscriber=request.subscriber)
        if len(request.subscriptions) > REGISTER_MAX:
            raise LimitExceeded("register_max", len(request.subscriptions), REGISTER_MAX)
        operations: list[Register] = []
        for start in request.subscriptions:
            _check_place(start.context, start.filter)
            selection = Selection.parsed(start.selection)
            wanted = selection.events(start.context, start.filter)
            subscriber = _subscriber(request.subscriber, wanted, caller)
            found = await self._lookup(subscriber, wanted)
            position = found.position if found else await self._context.position_for(wanted, start.start_ticks)
            operations.append(Register(subscriber, start.context, wanted.prefix, position, selection.text))
        if not operations:
            return model.Registered(())
        results = await self._context.write(Transaction(tuple(operations)))
        return model.Registered(tuple(result.id for result in results if isinstance(result, SubscriptionInfo)))

    async def _lookup(self, subscriber: str, wanted: EventFilter) -> SubscriptionInfo | None:
        found: SubscriptionInfo | None = await self._context.pool.run(
            jobs.ask_store, Store.find_subscription, subscriber, wanted.context, wanted.prefix
        )
        return found

    async def fetch(
        self, request: model.FetchSubscription, present: EventEncoder | None, caller: Caller
    ) -> model.FetchedBatch:
        """The pending batch again, or the next one."""
        if request.count < 1:
            raise InvalidRequest("count", f"is {request.count}; it must be at least 1")
        return await self._context.long_poll(request.wait_ms, lambda: self._fetch(request, present, caller.view))

    async def _fetch(
        self, request: model.FetchSubscription, present: EventEncoder | None, view: View | None
    ) -> Attempt[model.FetchedBatch]:
        number = request.subscription
        await self._check(number, view)
        async with self._locks.turn(number):
            if (pending := await self._still_pending(number)) is not None:
                # The principal may have lost a right since.
                seen = pending._replace(wanted=pending.wanted.seen_by(view))
                found: jobs.PendingEvents = await self._context.pool.run(jobs.read_pending, seen, present)
                if found.last_ticks is not None:
                    self._pending[number] = pending._replace(shown=found.last_ticks)
                    return Attempt(model.FetchedBatch(number, found.events, found.encoded), True, pending.wanted)
                # All of it was erased meanwhile: there is nothing left to acknowledge.
                await self._move(number, pending, pending.last_ticks)
            return await self._next(number, min(request.count, self._context.limits.events_max), present, view)

    async def _check(self, number: int, view: View | None) -> None:
        """Raise SubscriptionNotFound for one that the caller may not use."""
        if view is not None:
            await self._context.pool.run(jobs.find_subscription, number, view)

    async def _still_pending(self, number: int) -> PendingBatch | None:
        """The fetched batch, unless another server has moved the subscription since."""
        pending = self._pending.get(number)
        if pending is None or not self._context.others.is_shared:
            return pending
        found: SubscriptionInfo = await self._context.pool.run(jobs.find_subscription, number)
        if found.position == pending.start:
            return pending
        self._forget(number, pending)
        return None

    async def _next(
        self, number: int, count: int, present: EventEncoder | None, view: View | None
    ) -> Attempt[model.FetchedBatch]:
        """Scan until there is a batch or the history ends; a long scan saves its position on the way."""
        while True:
            asked = (number, count, self._context.limits, present, view)
            found: jobs.Fetched = await self._context.pool.run(jobs.fetch, *asked)
            info = found.subscription
            wanted = EventFilter(info.context, info.filter)
            if found.batch:
                self._pending[info.id] = found.batch
                while len(self._pending) > PENDING_MAX:
                    del self._pending[next(iter(self._pending))]
            elif found.next - info.position >= jobs.SCANNED_POSITIONS_MAX or not found.end:
                await self._context.apply(Progress(number, info.position, found.next))
            if found.batch or found.end:
                return Attempt(model.FetchedBatch(number, found.events, found.encoded), bool(found.batch), wanted)

    async def progress(self, request: model.ProgressSubscription, caller: Caller) -> model.Done:
        """Move past the pending batch if this is its time; otherwise do nothing."""
        number = request.subscription
        if caller.view is not None:
            # Progress of a subscription that does not exist does nothing; so does that of one out of sight.
            try:
                await self._check(number, caller.view)
            except SubscriptionNotFound:
                return model.Done()
        async with self._locks.turn(number):
            pending = await self._fetched(number, request.last_ticks, caller.view, strict=False)
            if pending is not None:
                await self._move(number, pending, request.last_ticks)
        return model.Done()

    async def _move(self, number: int, pending: PendingBatch, last_ticks: int) -> None:
        await self._context.apply(pending.progress(number, last_ticks, strict=False))
        self._forget(number, pending)

    def _forget(self, number: int, pending: PendingBatch | None) -> None:
        """Forget this batch, but not a later one that is pending now."""
        if self._pending.get(number) is pending:
            self._pending.pop(number, None)

    @asynccontextmanager
    async def progressing(
        self, receipts: Sequence[model.SubscriptionReceipt], caller: Caller
    ) -> AsyncIterator[list[Progress]]:
        """The operations that progress past pending batches inside a transaction, which is written within.

        For a batch that is not pending it yields an operation that fails, after the store has looked for a repeat.
        """
        async with self._locks.turn(*(receipt.subscription for receipt in receipts)):
            pending = [await self._receipt(receipt, caller.view) for receipt in receipts]
            yield [
                batch.progress(receipt.subscription, receipt.last_ticks, strict=True)
                if batch
                else Progress(receipt.subscription, NOWHERE, NOWHERE, strict=True)
                for receipt, batch in zip(receipts, pending, strict=True)
            ]
            for receipt, batch in zip(receipts, pending, strict=True):
                self._forget(receipt.subscription, batch)

    async def _receipt(self, receipt: model.SubscriptionReceipt, view: View | None) -> PendingBatch | None:
        try:
            await self._check(receipt.subscription, view)
        except SubscriptionNotFound:
            return None
        return await self._fetched(receipt.subscription, receipt.last_ticks, view, strict=True)

    async def _fetched(self, number: int, last_ticks: int, view: View | None, *, strict: bool) -> PendingBatch | None:
        """The fetched batch that ends on a time, if there is one; strict: only if that is certain."""
        pending = await self._still_pending(number)
        if pending is not None or not self._context.others.is_shared:
            # A client that has the batch from before or after an erasure identifies it by either time.
            is_it = pending is not None and last_ticks in (pending.last_ticks, pending.shown)
            return pending if is_it else None
        asked = (number, last_ticks, self._context.limits, view)
        found: PendingBatch | None = await self._context.pool.run(jobs.batch_until, *asked)
        return None if found is None or (strict and not found.is_certain) else found

    async def set(self, request: model.SetSubscription, caller: Caller) -> model.Done:
        """Move a subscription to a time and forget its pending batch."""
        check_names(subscriber=request.subscriber)
        _check_place(request.context, request.filter)
        selection = Selection.parsed(request.selection)
        wanted = selection.events(request.context, request.filter)
        subscriber = _subscriber(request.subscriber, wanted, caller)
        found = await self._lookup(subscriber, wanted)
        if found is None or selection.text not in ("", found.selection) or not jobs.is_whole(caller.view, found):
            where = f"of {request.subscriber} to '{request.filter}' in context {request.context or '*'}"
            raise SubscriptionNotFound(where)
        async with self._locks.turn(found.id):
            position = await self._context.position_for(wanted, request.ticks)
            bookmark = SetBookmark(subscriber, request.context, wanted.prefix, position)
            facts = {"subscription": found.id, "subscriber": subscriber, "context": request.context}
            facts |= {"from": found.position, "to": position}
            entry = self._audit.entry(caller.principal, "subscriptions", "subscription-reset", facts)
            # The last space of the disk is not for entries that consumers can make without end.
            refusal = self._context.disk.refusal() if entry else None
            await self._context.write(Transaction((bookmark, *entry), refusal=refusal))
            self._pending.pop(found.id, None)
        self._context.wakeups.wake_all(request.context)
        return model.Done()

    async def delete(self, request: model.DeleteSubscription, caller: Caller) -> model.Done:
        number = request.subscription
        async with self._locks.turn(number):
            found: SubscriptionInfo = await self._context.pool.run(jobs.find_subscription, number, caller.view)
            facts = {"subscription": number, "subscriber": found.subscriber, "context": found.context}
            entry = self._audit.entry(
                caller.principal, "subscriptions", "subscription-deleted", {**facts, "at": found.position}
            )
            refusal = self._context.disk.refusal() if entry else None
            await self._context.write(Transaction((DeleteSubscription(number), *entry), refusal=refusal))
            self._pending.pop(number, None)
        self._context.wakeups.wake_all(found.context)
        return model.Done()


def _check_place(context: str | None, filter: str) -> None:
    check_names(filter=filter)
    if context is not None:
        check_names(context=context)


def _subscriber(name: str, wanted: EventFilter, caller: Caller) -> str:
    """The store's name of a subscriber."""
    if caller.view is None or caller.view.has_filter(wanted.context, wanted.prefix):
        return name
    return jobs.owned(caller.view, name)
