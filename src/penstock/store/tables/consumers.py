"""Subscriptions and queues: how far consumers have read, and what they hold.

The functions here send the statements of one operation, and return how to read its result. A backend that sends without
waiting pays one round trip for a whole batch. Each function compares and changes in one statement, so an operation that
fails has changed nothing.
"""

from collections.abc import Callable
from typing import Any, Final, Generic

from penstock.errors import (
    AllocationLost,
    LimitExceeded,
    PenstockError,
    QueueContended,
    QueueFilterMismatch,
    QueueNotFound,
    SubscriptionMoved,
    SubscriptionNotFound,
)
from penstock.model import Allocation, EventFilter, QueueInfo, SubscriptionInfo
from penstock.store import contract
from penstock.store.contract import QueueState, Store
from penstock.store.tables.queries import Db, Statements

QUEUE_ALLOCATIONS_MAX: Final = 16_384
"""Allocations of one queue: held, expired or dead."""
FIRST_EVENT: Final = contract.ReadLimits(events_max=1, scan_ms_max=20)
"""How far a listing searches for the next event of a queue."""


class Consumers(Store, Generic[Db]):
    db: Db

    def subscription(self, number: int) -> SubscriptionInfo | None:
        row = self.db.row("subscription", {"id": number})
        return SubscriptionInfo(*row) if row else None

    def find_subscription(self, subscriber: str, context: str, filter: str) -> SubscriptionInfo | None:
        row = self.db.row("find_subscription", {"subscriber": subscriber, "context": context, "filter": filter})
        return SubscriptionInfo(*row) if row else None

    def subscriptions(self, after: int, limit: int) -> list[SubscriptionInfo]:
        return [SubscriptionInfo(*row) for row in self.db.rows("subscriptions", {"after": after, "limit": limit})]

    def find_queues(self, name: str, context: str | None = None) -> list[QueueState]:
        if context is None:
            return [QueueState(*row) for row in self.db.rows("queues_named", {"name": name, "limit": 2})]
        return [QueueState(*row) for row in self.db.rows("queue", {"name": name, "context": context})]

    def queues(self, after: int, limit: int) -> list[QueueInfo]:
        head = self.head()
        found: list[QueueInfo] = []
        for row in self.db.rows("queues", {"after": after, "limit": limit, "now": self.now()}):
            number, context, name, filter, position, again, *counts = row
            ahead = 0
            if position <= head:
                # The index of blocks skips other contexts' events quickly; at worst the search ends before an event.
                page = self.read_all(position, EventFilter(context, filter), FIRST_EVENT, head)
                ahead = max(0, head + 1 - (page.events[0].position if page.events else page.next))
            found.append(QueueInfo(number, context, name, filter, position, again + ahead, *counts))
        return found

    def allocations(self, queue: int, after: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "after": after, "limit": limit}
        return [Allocation(*row) for row in self.db.rows("allocations", values)]

    def claim(self, queue: int, subscriber: str, except_first: int | None) -> Allocation | None:
        values = {"queue_id": queue, "subscriber": subscriber, "except_first": except_first, "now": self.now()}
        row = self.db.row("claim", values)
        return Allocation(*row) if row else None

    def next_expiry(self, queue: int, after: int) -> int | None:
        expires: int | None = self.db.value("next_expiry", {"queue_id": queue, "after": after})
        return expires

    def shared_allocations(self, queue: int, first: int, last: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "first": first, "last": last, "limit": limit}
        return [Allocation(*row) for row in self.db.rows("shared_allocations", values)]

    def waiting(self, queue: int) -> tuple[int, int]:
        number, events = self.db.row("waiting", {"queue_id": queue, "now": self.now()})
        return number, events

    def dead_letters(self, queue: int, after: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "after": after, "limit": limit, "now": self.now()}
        return [Allocation(*row) for row in self.db.rows("dead_letters", values)]


class Deferred:
    """The result of an operation that the batch has not waited for; `result` raises the operation's error."""

    __slots__ = ("result",)

    def __init__(self, result: Callable[[], contract.Result]) -> None:
        self.result = result


def register(db: Statements, op: contract.Register) -> Deferred:
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter}
    db.later("add_subscription", {**values, "position": op.position})
    found = db.send("find_subscription", values)
    return Deferred(lambda: SubscriptionInfo(*found()[0]))


def progress(db: Statements, op: contract.Progress) -> Deferred:
    values = {"id": op.subscription, "start": op.start, "next": op.next, "last_ticks": op.last_ticks}
    moved = db.send("progress_subscription", values)
    return _changed(moved, SubscriptionMoved(op.subscription) if op.strict else None)


def set_bookmark(db: Statements, op: contract.SetBookmark) -> Deferred:
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter, "position": op.position}
    missing = SubscriptionNotFound(f"of {op.subscriber} to '{op.filter}' in context {op.context}")
    return _changed(db.send("set_subscription", values), missing)


def _changed(rows: Callable[[], list[Any]], missing: PenstockError | None) -> Deferred:
    """Whether a statement changed a row; if it had to and did not, raise the error."""

    def result() -> bool:
        found = bool(rows())
        if missing is not None and not found:
            raise missing
        return found

    return Deferred(result)


def declare_queue(db: Statements, op: contract.DeclareQueue) -> Deferred:
    values = {"name": op.name, "context": op.context}
    db.later("add_queue", {**values, "filter": op.filter, "position": op.position})
    found = db.send("queue", values)

    def result() -> QueueState:
        queue = QueueState(*found()[0])
        if queue.filter != op.filter:
            raise QueueFilterMismatch(op.name, queue.filter, op.filter)
        return queue

    return Deferred(result)


def acknowledge(db: Statements, op: contract.Acknowledge) -> Deferred:
    values = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    ended = db.send("acknowledge", values)

    def result() -> bool:
        if (found := bool(ended())) or not op.strict:
            return found
        name = db.value("queue_name", {"id": op.queue}) or str(op.queue)
        raise AllocationLost(name, op.first, op.last or op.first)

    return Deferred(result)


def release(db: Statements, op: contract.Release, now: int) -> Deferred:
    place = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    return _changed(db.send("release", {**place, "now": now, "counts": op.counts}), None)


def move_queue(db: Statements, op: contract.MoveQueue) -> Deferred:
    moved = db.send("move_queue", {"id": op.queue, "position": op.position})
    db.later("drop_allocations", {"id": op.queue})
    return _changed(moved, QueueNotFound(str(op.queue)))


def set_dead_rule(db: Statements, op: contract.SetDeadRule) -> Deferred:
    changed = db.send("set_dead_rule", {"id": op.queue, "dead_after": op.dead_after})
    return _changed(changed, QueueNotFound(str(op.queue)))


def requeue(db: Statements, op: contract.Requeue, now: int) -> Deferred:
    return _changed(db.send("put_back", {"queue_id": op.queue, "first": op.first, "now": now}), None)


def allocated(op: contract.Allocate, rows: list[Any], now: int, expires: int) -> Allocation | str | None:
    """The answer to a proposal, from the state of the queue: its marker, its allocations, and the current claim."""
    if not rows:
        raise QueueNotFound(str(op.queue))
    marker, live, *claimed = rows[0]
    proposal = op.proposal
    if claimed[0] is not None:
        claim = Allocation(*claimed)
        kind = contract.Proposal.OWN if claim.expires > now else contract.Proposal.EXPIRED
        if (proposal.kind, proposal.first, proposal.last, proposal.count) != (kind, *claimed[:3]):
            return contract.STALE
        if kind == contract.Proposal.OWN:
            return claim
        return Allocation(claim.first, claim.last, claim.count, op.subscriber, expires, claim.deliveries + 1)
    if proposal.kind not in (contract.Proposal.FRESH, contract.Proposal.NOTHING) or proposal.marker != marker:
        return contract.STALE
    if proposal.kind == contract.Proposal.NOTHING:
        return None
    if live >= QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", live + 1, QUEUE_ALLOCATIONS_MAX)
    return Allocation(proposal.first, proposal.last, proposal.count, op.subscriber, expires, 1)


def reoffered(op: contract.Reoffer, rows: list[Any]) -> bool:
    """The answer to a reoffer, from the state of the queue: its name, its allocations, and whether runs overlap."""
    if not rows:
        raise QueueNotFound(str(op.queue))
    ((name, before, is_in_use),) = rows
    if (number := before + len(op.runs)) > QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", number, QUEUE_ALLOCATIONS_MAX)
    if is_in_use:
        raise QueueContended(name)
    return True
