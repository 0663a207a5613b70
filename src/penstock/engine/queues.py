"""Competing consumers: allocations with a time to live, taken over when they expire; and replays.

A worker reads what the queue would allocate (a proposal), and the writer carries it out if the queue is still as the
worker saw it. Consumers of one queue take turns, so that on one server a proposal rarely fails. Several servers that
share a store back off for a random time when it does.

A replay makes allocations of events that the queue has passed, without those that are allocated already. Consumers take
them before anything new.
"""

import asyncio
import random
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.engine import jobs, queue_jobs
from penstock.engine.audit import Audit
from penstock.engine.context import Attempt, Caller, EngineContext, KeyedLocks, check_names
from penstock.engine.jobs import EventEncoder, gather, size_of
from penstock.engine.queue_jobs import AllocationRequest, lookup_queue
from penstock.errors import (
    DeadLetterNotFound,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    QueueContended,
    QueueFilterMismatch,
    QueueMismatch,
    QueueNotFound,
)
from penstock.model import EventFilter, RetryPolicy, Right, Selection, View
from penstock.model.times import TICKS_MAX, TICKS_PER_SECOND
from penstock.store import Store, contract
from penstock.store.contract import Held, Part, QueueState, ReadLimits, Transaction, is_order
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX

ATTEMPTS_MAX: Final = 16
"""Proposals in a row that may come too late before the consumer gets QueueContended."""
SHARED_ATTEMPTS_MAX: Final = 64
"""The same where several servers share a store: their consumers do not take turns."""
STALE_S: Final = 0.005
STALE_S_MAX: Final = 0.05
"""The back-off for each proposal in a row that came too late, and its maximum."""
AHEAD_S_MAX: Final = 1.0
"""How long a consumer whose keys are all taken reads on before others have their turn."""
TTL_MS_MAX: Final = 7 * 24 * 3600 * 1000
NO_ALLOCATION: Final = -1
LETTERS_PAGE: Final = 1000
"""Dead letters of one answer, or of one request."""
RUNS_MAX: Final = 10_000
"""Allocations, or outcomes, of one request."""
REASON_BYTES_MAX: Final = 4096
ORDER_BYTES_MAX: Final = 100
"""How a queue is ordered: `prefix:` and a separator."""

QueueChange = model.PauseQueue | model.RenameQueue | model.SetRetryPolicy | model.SetQueueFilter
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
        # A consumer that has its turn compares the marker too, and must not be overtaken again and again.
        if not self._locks.is_held(request.queue) and (found := await self._ready(request, present)) is not None:
            return found
        queue = await self._declare(request, caller)
        if request.ttl_ms == NO_ALLOCATION:
            return _empty(queue, request.subscriber)
        return await self._allocate(request, None, present, caller)

    async def _ready(self, request: model.SubscribeQueue, present: EventEncoder | None) -> model.Delivery | None:
        """A batch that was prepared, if there is one for this consumer."""
        ahead = self._context.read_ahead
        if not request.several or request.ttl_ms == NO_ALLOCATION:
            return None
        if (found := await ahead.next(request, present)) is None:
            return None
        queue, ready = found
        operation = replace(ready.operation, subscriber=request.subscriber, ttl_ms=request.ttl_ms)
        result = await self._context.apply(operation)
        if result == contract.STALE:
            ahead.refused(queue)
            return None
        given = _allocations(result)
        delivery = _empty(queue, request.subscriber)
        return replace(delivery, allocation=given[0], runs=given, events=ready.events, encoded=ready.encoded)

    async def _declare(self, request: model.SubscribeQueue, caller: Caller) -> QueueState:
        _check_rules(request)
        selection = Selection.parsed(request.selection or "")
        prefix = EventFilter(request.context, request.filter).prefix
        wanted = selection.events(request.context, prefix)
        try:
            # Whether the caller may use it comes after this.
            queue = self._known(request.context, request.queue, None) or await self._lookup(
                request.queue, request.context
            )
        except QueueNotFound:
            position = await self._context.position_for(wanted, request.start_ticks)
            given = (request.ordered or "", selection.text, request.retry or "", request.dead_after)
            declare = contract.DeclareQueue(request.context, request.queue, prefix, position, *given)
            made: QueueState = await self._context.apply(declare)
            return made
        if not jobs.is_whole(caller.view, queue):
            # The name is taken, and that is all the caller may know.
            raise NotAllowed(caller.principal.name, Right.CONSUME.words, f"queue {queue.name}")
        for what, asked, known in (
            ("order", request.ordered, queue.ordered),
            ("selection", request.selection and selection.text, queue.selection),
        ):
            if asked is not None and asked != known:
                raise QueueMismatch(queue.name, what, known or "none", asked or "none")
        if queue.filter != wanted.prefix:
            raise QueueFilterMismatch(queue.name, queue.filter, wanted.prefix)
        return queue

    async def _lookup(self, name: str, context: str | None, caller: Caller | None = None) -> QueueState:
        check_names(queue=name)
        view = None if caller is None else caller.view
        queue: QueueState = await self._context.pool.run(queue_jobs.lookup_queue, name, context, view)
        return queue

    async def _in_use(self, name: str, context: str | None, caller: Caller) -> QueueState:
        """The same, sooner for a queue in use; then the marker is an old one."""
        return self._known(context, name, caller.view) or await self._lookup(name, context, caller)

    def _known(self, context: str | None, name: str, view: View | None) -> QueueState | None:
        """A queue in use as it is but for its marker and its dead-letter rule; if the caller may use it."""
        known = self._context.read_ahead.known(context, name)
        return known if known is not None and jobs.is_whole(view, known) else None

    async def acknowledge(
        self, request: model.AcknowledgeQueue, present: EventEncoder | None, caller: Caller
    ) -> model.Delivery:
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_allocation(request.count, request.ttl_ms)
        done = None if (request.first, request.last) == (0, 0) else (request.first, request.last)
        if request.ttl_ms != NO_ALLOCATION:
            return await self._allocate(request, done, present, caller)
        queue = await self._in_use(request.queue, request.context, caller)
        if done is not None:
            await self._context.apply(await self._end(queue, request.subscriber, *done))
            self._wake(queue)
        return _empty(queue, request.subscriber)

    async def receipt(self, receipt: model.QueueReceipt, caller: Caller) -> contract.Acknowledge | contract.Settle:
        """The operation that acknowledges inside a transaction."""
        queue = await self._in_use(receipt.queue, receipt.context, caller)
        return await self._end(queue, receipt.subscriber, receipt.first, receipt.last, strict=True)

    async def _end(
        self, queue: QueueState, subscriber: str, first: int, last: int | None, *, strict: bool = False
    ) -> contract.Acknowledge | contract.Settle:
        """The operation that acknowledges one allocation."""
        if not queue.ordered:
            return contract.Acknowledge(queue.id, subscriber, first, last, strict)
        if last is None:
            held: list[Held] = await self._context.pool.run(jobs.ask_store, Store.held, queue.id, subscriber)
            last = next((one.last for one in held if one.first == first), first)
        return contract.Settle(queue.id, subscriber, ((first, last),), strict=strict)

    def _wake(self, queue: QueueState) -> None:
        """Allocations that waited for a key may be available now."""
        if queue.ordered:
            self._context.wakeups.wake_all(queue.context)

    async def settle(self, request: model.SettleQueue, caller: Caller) -> model.Done:
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_settlement(request)
        known = self._known(request.context, request.queue, caller.view)
        if request.is_all_done and known is not None:
            done: contract.Operation = contract.Settle(known.id, request.subscriber, tuple(request.runs), strict=True)
            if len(request.runs) == 1 and not known.ordered:
                done = contract.Acknowledge(known.id, request.subscriber, *request.runs[0], strict=True)
            await self._context.apply(done)
            self._wake(known)
            return model.Done()
        queue, settle = await self._context.pool.run(queue_jobs.plan_settlement, request, caller.view)
        await self._context.apply(settle)
        if queue.ordered or settle.back:
            self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def extend(self, request: model.ExtendQueue, caller: Caller) -> model.Extended:
        check_names(queue=request.queue, subscriber=request.subscriber)
        _check_allocation(1, request.ttl_ms)
        _check_runs(request.runs)
        queue = await self._in_use(request.queue, request.context, caller)
        extend = contract.Extend(queue.id, request.subscriber, request.runs, request.ttl_ms)
        return model.Extended(await self._context.apply(extend))

    async def pause(self, request: model.PauseQueue, caller: Caller) -> model.Done:
        return await self._change(
            request, caller, "queue-pause" if request.paused else "queue-resume", paused=int(request.paused)
        )

    async def rename(self, request: model.RenameQueue, caller: Caller) -> model.Done:
        check_names(queue=request.name)
        return await self._change(request, caller, "queue-rename", name=request.name)

    async def set_retry(self, request: model.SetRetryPolicy, caller: Caller) -> model.Done:
        RetryPolicy.parsed(request.retry)
        return await self._change(request, caller, "queue-retry", retry=request.retry)

    async def set_filter(self, request: model.SetQueueFilter, caller: Caller) -> model.Done:
        check_names(filter=request.filter)
        queue = await self._lookup(request.queue, request.context, caller)
        prefix, selection = EventFilter(queue.context, request.filter).prefix, Selection.parsed(request.selection)
        _check_filter(queue, prefix, selection, Right.CONSUME, caller)
        return await self._change(request, caller, "queue-filter", filter=prefix, selection=selection.text)

    async def preview(self, request: model.PreviewQueue, caller: Caller) -> model.QueuePreview:
        queue = await self._lookup(request.queue, request.context, caller)
        prefix = queue.filter if request.filter is None else EventFilter(queue.context, request.filter).prefix
        check_names(filter=prefix)
        selection = Selection.parsed(queue.selection if request.selection is None else request.selection)
        _check_filter(queue, prefix, selection, Right.READ, caller)
        wanted = selection.events(queue.context, prefix)
        position = queue.position
        if request.ticks is not None or request.position is not None:
            position = await self._place(queue, request.ticks or 0, request.position)
        found: model.QueuePreview = await self._context.pool.run(
            queue_jobs.preview, queue, wanted, position, caller.view
        )
        return found

    async def _place(self, queue: QueueState, ticks: int, position: int | None) -> int:
        """Where a queue is after a move to a time or a position."""
        wanted = EventFilter(queue.context, queue.filter)
        if position is None:
            return await self._context.position_for(wanted, ticks)
        end = await self._context.position_for(wanted, TICKS_MAX)
        if not 1 <= position <= end:
            raise InvalidRequest("position", f"is {position}; it must be from 1 to {end}, the next one")
        return position

    async def _change(self, request: QueueChange, caller: Caller, what: str, **changes: Any) -> model.Done:
        queue = await self._lookup(request.queue, request.context, caller)
        await self._recorded(contract.ChangeQueue(queue.id, **changes), queue, caller, what, **changes)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def _recorded(
        self, operation: contract.Operation, queue: QueueState, caller: Caller, what: str, **facts: Any
    ) -> Any:
        """Carry out an operation with its entry in the audit; what the operation answers."""
        facts = {"context": queue.context, "queue": queue.name, **facts}
        entry = self._audit.entry(caller.principal, "queues", what, facts)
        # The last space of the disk is not for entries that consumers can make without end.
        refusal = self._context.disk.refusal() if entry else None
        done, *_ = await self._context.write(Transaction((operation, *entry), refusal=refusal))
        return done

    async def delete(self, request: model.DeleteQueue, caller: Caller) -> model.Done:
        queue = await self._lookup(request.queue, request.context, caller)
        await self._recorded(contract.DeleteQueue(queue.id), queue, caller, "queue-delete", at=queue.position)
        self._contexts.pop(queue.id, None)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def list_letters(self, request: model.ListLetters, caller: Caller) -> model.ListPage[model.DeadLetter]:
        queue = await self._lookup(request.queue, request.context, caller)
        await self._bury(queue)
        limit = min(request.limit or LETTERS_PAGE, LETTERS_PAGE)
        found: model.ListPage[model.DeadLetter] = await self._context.pool.run(
            queue_jobs.list_letters, request, limit, caller.view
        )
        return found

    async def put_back_letters(self, request: model.PutBackLetters, caller: Caller) -> model.PutBackCount:
        if len(request.positions) > LETTERS_PAGE:
            raise LimitExceeded("letters_max", len(request.positions), LETTERS_PAGE)
        await self._bury(await self._lookup(request.queue, request.context, caller))
        queue, positions, parts = await self._context.pool.run(queue_jobs.reviving, request, caller.view)
        done = 0
        if positions:
            what = "queue-letters-dropped" if request.drop else "queue-letters-put-back"
            facts = {"letters": len(positions), "first": positions[0], "last": positions[-1]}
            revive = contract.Revive(queue.id, positions, () if request.drop else parts)
            done = await self._recorded(revive, queue, caller, what, **facts)
            self._context.wakeups.wake_all(queue.context)
        return model.PutBackCount(done)

    async def _bury(self, queue: QueueState) -> None:
        """Set aside, event by event, what expired too often."""
        while True:
            asked = (queue, self._context.limits)
            settle: contract.Settle | None = await self._context.pool.run(queue_jobs.bury_exhausted, *asked)
            if settle is None:
                return
            await self._context.apply(settle)

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
            position = await self._place(queue, request.ticks, request.position)
            facts = {"from": queue.position, "to": position}
            await self._recorded(contract.MoveQueue(queue.id, position), queue, caller, "queue-reset", **facts)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def set_dead_rule(self, request: model.SetDeadLetterRule, caller: Caller) -> model.Done:
        if request.dead_after is not None and request.dead_after < 1:
            raise InvalidRequest("deliveries", f"are {request.dead_after}; there must be at least 1")
        queue = await self._lookup(request.queue, request.context, caller)
        rule = contract.SetDeadRule(queue.id, request.dead_after)
        await self._recorded(rule, queue, caller, "queue-dead-letters", dead_after=request.dead_after)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def put_back(self, request: model.PutBack, caller: Caller) -> model.Done:
        """Give a dead letter to the next consumer. If it is back already, do nothing."""
        queue = await self._lookup(request.queue, request.context, caller)
        done = await self._context.apply(contract.Requeue(queue.id, request.first))
        if not done:
            part = Part(request.first, request.first, 1)
            if queue.ordered:
                again = model.PutBackLetters(queue.context, queue.name, (request.first,))
                _, _, parts = await self._context.pool.run(queue_jobs.reviving, again, None)
                part = parts[0] if parts else part
            done = await self._context.apply(contract.Revive(queue.id, (request.first,), (part,)))
        if not done and not await self._context.pool.run(queue_jobs.is_allocated, queue.id, request.first):
            raise DeadLetterNotFound(queue.name, request.first)
        self._context.wakeups.wake_all(queue.context)
        return model.Done()

    async def _allocate(
        self, request: AllocationRequest, acknowledged: Markers | None, present: EventEncoder | None, caller: Caller
    ) -> model.Delivery:
        async def attempt() -> Attempt[model.Delivery]:
            nonlocal acknowledged
            ahead = self._context.read_ahead
            changes = ahead.changes
            async with self._locks.turn(request.queue):
                if isinstance(request, model.SubscribeQueue) and (ready := await self._ready(request, present)):
                    return Attempt(ready, True, EventFilter(ready.context))
                given, found = await self._turn(request, acknowledged, present, caller)
            acknowledged = None
            queue = found.queue
            self._contexts[queue.id] = queue.context
            ahead.remember(queue, changes)
            if given and found.goes_on and isinstance(request, model.SubscribeQueue):
                ahead.begin(request, present)
            delivery = _empty(queue, request.subscriber)
            if given:
                delivery = replace(delivery, allocation=given[0], runs=given)
                delivery = replace(delivery, events=found.events, encoded=found.encoded)
            expires_in = None if found.expires_in is None else found.expires_in / TICKS_PER_SECOND
            return Attempt(delivery, bool(given), EventFilter(queue.context, queue.filter), expires_in)

        return await self._context.long_poll(request.wait_ms, attempt)

    async def _turn(
        self, request: AllocationRequest, acknowledged: Markers | None, present: EventEncoder | None, caller: Caller
    ) -> tuple[tuple[model.Allocation, ...], queue_jobs.Proposed]:
        """Propose and carry out until a proposal succeeds. An acknowledgement holds even if no proposal does."""
        subscriber, is_shared = request.subscriber, self._context.others.is_shared
        stale, count = 0, min(request.count, self._context.limits.events_max)
        until = time.monotonic() + AHEAD_S_MAX
        while stale < (SHARED_ATTEMPTS_MAX if is_shared else ATTEMPTS_MAX):
            asked = (request, acknowledged and acknowledged[0], count, self._context.limits, present, caller.view)
            found: queue_jobs.Proposed = await self._context.pool.run(queue_jobs.propose, *asked)
            queue = found.queue
            operations: list[contract.Operation] = []
            if acknowledged is not None:
                operations.append(await self._end(queue, subscriber, *acknowledged))
            if found.operation is not None:
                operations.append(found.operation)
            if found.empty:
                # All events of these were erased: allocate and acknowledge them at once.
                operations.append(contract.Settle(queue.id, subscriber, found.empty))
            results = await self._context.write(Transaction(tuple(operations))) if operations else []
            if has_acknowledged := acknowledged is not None:
                self._wake(queue)
                results = results[1:]
            acknowledged = None
            # If nothing was acknowledged, the consumer has that still; else there may be more of that key now.
            is_last = found.end and not found.empty and not has_acknowledged
            if queue.ordered and not is_last and not has_acknowledged and time.monotonic() > until:
                # Others take their turn, and then this consumer reads on.
                is_last, found = True, found._replace(expires_in=0)
            if found.is_exhausted:
                await self._bury(queue)
            elif found.operation is None:
                if is_last:
                    return (), found
            elif results[0] == contract.STALE:
                stale += 1
                if is_shared:
                    await asyncio.sleep(random.uniform(0, min(stale * STALE_S, STALE_S_MAX)))  # noqa: S311
            else:
                given = tuple(one for one in _allocations(results[0]) if (one.first, one.last) not in found.empty)
                if given or is_last:
                    return given, found
        raise QueueContended(request.queue)


def _allocations(result: contract.Result) -> tuple[model.Allocation, ...]:
    if isinstance(result, tuple):
        return tuple(one.allocation for one in result if isinstance(one, Held))
    return (result,) if isinstance(result, model.Allocation) else ()


def _empty(queue: QueueState, subscriber: str) -> model.Delivery:
    return model.Delivery(queue.context, queue.name, subscriber, model.now_ticks(), None, [], ordered=queue.ordered)


def _check_allocation(count: int, ttl_ms: int) -> None:
    if count < 1:
        raise InvalidRequest("count", f"is {count}; it must be at least 1")
    if ttl_ms != NO_ALLOCATION and not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidRequest("allocation time", f"is {ttl_ms} ms; it must be -1 or between 1 and {TTL_MS_MAX}")


def _check_filter(queue: QueueState, prefix: str, selection: Selection, right: Right, caller: Caller) -> None:
    for beginning in selection.beginnings(prefix):
        if caller.view is not None and not caller.view.has_filter(queue.context, beginning):
            raise NotAllowed(caller.principal.name, right.words, f"{queue.context}/{beginning}*")


def _check_rules(rules: model.SubscribeQueue) -> None:
    if not is_order(rules.ordered or ""):
        raise InvalidRequest("order", f"is {rules.ordered!r}; it must be stream, or prefix: and a separator")
    if len((rules.ordered or "").encode()) > ORDER_BYTES_MAX:
        raise LimitExceeded("order_bytes_max", len((rules.ordered or "").encode()), ORDER_BYTES_MAX)
    RetryPolicy.parsed(rules.retry or "")
    if rules.dead_after is not None and rules.dead_after < 1:
        raise InvalidRequest("deliveries", f"are {rules.dead_after}; there must be at least 1")


def _check_runs(runs: Sequence[model.Run]) -> None:
    if not 0 < len(runs) <= RUNS_MAX:
        raise InvalidRequest("allocations", f"are {len(runs)}; there must be 1 to {RUNS_MAX}")


def _check_settlement(request: model.SettleQueue) -> None:
    _check_runs(request.runs)
    outcomes = len(request.retries) + len(request.buries)
    if outcomes > RUNS_MAX:
        raise LimitExceeded("outcomes_max", outcomes, RUNS_MAX)
    delays = [one.delay_ms for one in request.retries if one.delay_ms != model.NOT_TRIED]
    for delay in (request.delay_ms, *delays):
        if delay is not None and not 0 <= delay <= TTL_MS_MAX:
            raise InvalidRequest("delay", f"is {delay} ms; it must be from 0 to {TTL_MS_MAX}")
    reasons = [request.reason, *(one.reason for one in request.retries), *(one.reason for one in request.buries)]
    for reason in reasons:
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise LimitExceeded("reason_bytes_max", len(reason.encode()), REASON_BYTES_MAX)


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
    parts: list[Part]
    """Of an ordered queue, what of the events it can deliver again."""
    left_out: list[int]
    """The others: dead letters, and what is due later; of an ordered queue also what it delivers again anyway."""


def find_events(
    store: Store, request: model.ReplayQueue, first: int, count: int, limits: ReadLimits, view: View | None
) -> EventsFound:
    """Up to `count` events from a position on, or as many as one step finds."""
    queue, last = lookup_queue(store, request.queue, request.context, view), request.last
    page = gather(store, queue.wanted, first, count, limits, last)
    # What becomes a dead letter meanwhile was allocated when that was read, before.
    parts = queue_jobs.parts_again(store, queue, page.events)
    dead = {one.position for one in store.letters_at(queue.id, [event.position for event in page.events])}
    now = store.now()
    alive = [event for event in page.events if event.position not in dead and queue_jobs.due_of(event) <= now]
    events = [(event.position, size_of([event])) for event in alive]
    again = {event.position for event in alive}
    parts = [one for one in parts if one.first in again]
    if queue.ordered:
        again = {one.first for one in parts}
    left_out = [event.position for event in page.events if event.position not in again]
    return EventsFound(queue, store.waiting(queue.id), events, page.next, page.end or page.next > last, parts, left_out)


class ReplayRequests:
    def __init__(self, context: EngineContext, audit: Audit) -> None:
        self._context = context
        self._audit = audit

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
        queue = await self._context.pool.run(queue_jobs.lookup_queue, request.queue, request.context, caller.view)
        asked = (queue.id, request.first, request.last, QUEUE_ALLOCATIONS_MAX)
        shared = await self._context.pool.run(jobs.ask_store, Store.shared_allocations, *asked)
        found = await self._find(request, caller)
        number, (allocations, waiting) = found.queue.id, found.waiting
        facts = {"context": queue.context, "queue": queue.name, "first": request.first, "last": request.last}
        entry = self._audit.entry(caller.principal, "queues", "queue-replay", facts)
        # The store knows that a mark was used, and nothing else.
        repeated = model.Replayed(len(found.events), 0, waiting, repeated=True)
        if allocations >= WAITING_ALLOCATIONS_MAX:
            # Too much waits: refuse, unless the first attempt of this request put it there.
            try:
                await self._context.refuse(
                    QueueContended(request.queue), request.mark, contract.Reoffer(number, ()), *entry
                )
            except QueueContended:
                return model.Replayed(0, 0, waiting, is_full=True)
            return repeated
        runs = () if queue.ordered else runs_of(found.events, shared, found.left_out, self._context.limits.bytes_max)
        left_out = len(found.left_out)
        if not runs and not found.parts and request.mark is None:
            return model.Replayed(0, left_out + (0 if queue.ordered else len(found.events)), waiting)
        reoffer = contract.Reoffer(number, runs, tuple(found.parts))
        refusal = self._context.disk.refusal() if entry else None
        done, *_ = await self._context.write(Transaction((reoffer, *entry), request.mark, refusal))
        if done is None:
            return repeated
        self._context.wakeups.wake_all(found.queue.context)
        events = len(found.parts) if queue.ordered else sum(count for _, _, count in runs)
        left_out += 0 if queue.ordered else len(found.events) - events
        return model.Replayed(events, left_out, waiting + events)

    async def _find(self, request: model.ReplayQueue, caller: Caller) -> EventsFound:
        """All events of the range; LimitExceeded if there are too many."""
        events: list[tuple[int, int]] = []
        parts: list[Part] = []
        left_out: list[int] = []
        position = request.first
        while True:
            asked = (request, position, REPLAY_EVENTS_MAX + 1 - len(events), self._context.limits, caller.view)
            found: EventsFound = await self._context.pool.run(find_events, *asked)
            if request.last >= found.queue.position:
                reason = f"is {request.last}, and the queue is at {found.queue.position}: that is still to come"
                raise InvalidRequest("last position", reason)
            events += found.events
            parts += found.parts
            left_out += found.left_out
            if len(events) > REPLAY_EVENTS_MAX:
                raise LimitExceeded("replay_events_max", len(events), REPLAY_EVENTS_MAX)
            if found.end:
                return found._replace(events=events, parts=parts, left_out=left_out)
            position = found.next


def runs_of(
    events: list[tuple[int, int]], shared: list[model.Allocation], left_out: list[int], bytes_max: int
) -> tuple[Run, ...]:
    """The events that are in no allocation, in runs for one allocation each, with nothing between that is left out."""
    runs: list[Run] = []
    taken = [(one.first, one.last) for one in shared]
    before = [bisect_right(taken, position, key=itemgetter(0)) for position in left_out]
    alone = [(one, one) for one, at in zip(left_out, before, strict=True) if not at or taken[at - 1][1] < one]
    # Between two of these, before the first and behind the last; no two of them share a position.
    ends = [0, *(end for one in sorted(taken + alone) for end in one), 1 << 63]
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
