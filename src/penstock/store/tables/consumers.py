"""Subscriptions and queues: how far consumers have read, and what they hold.

The functions here send the statements of one operation, and return how to read its result. A backend that sends without
waiting pays one round trip for a whole batch. Each function compares and changes in one statement, so an operation that
fails has changed nothing.
"""

from collections.abc import Callable
from typing import Any, Final

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
from penstock.model import Allocation, SubscriptionInfo
from penstock.store import contract
from penstock.store.contract import QueueState
from penstock.store.tables.database import Database

QUEUE_ALLOCATIONS_MAX: Final = 16_384
"""Allocations of one queue: held, expired or dead."""


class Deferred:
    """The result of an operation that the batch has not waited for; `result` raises the operation's error."""

    __slots__ = ("result",)

    def __init__(self, result: Callable[[], contract.Result]) -> None:
        self.result = result


def register(db: Database, op: contract.Register) -> Deferred:
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter}
    db.later("add_subscription", {**values, "position": op.position})
    found = db.send("find_subscription", values)
    return Deferred(lambda: SubscriptionInfo(*found()[0]))


def progress(db: Database, op: contract.Progress) -> Deferred:
    values = {"id": op.subscription, "start": op.start, "next": op.next, "last_ticks": op.last_ticks}
    moved = db.send("progress_subscription", values)
    return _changed(moved, (lambda: SubscriptionMoved(op.subscription)) if op.strict else None)


def set_bookmark(db: Database, op: contract.SetBookmark) -> Deferred:
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter, "position": op.position}
    where = f"of {op.subscriber} to '{op.filter}' in context {op.context}"
    return _changed(db.send("set_subscription", values), lambda: SubscriptionNotFound(where))


def _changed(rows: Callable[[], list[Any]], error: Callable[[], PenstockError] | None = None) -> Deferred:
    """Whether a statement changed a row; if it had to and did not, raise the error."""

    def result() -> bool:
        found = bool(rows())
        if error is not None and not found:
            raise error()
        return found

    return Deferred(result)


def declare_queue(db: Database, op: contract.DeclareQueue) -> Deferred:
    values = {"name": op.name, "context": op.context}
    db.later("add_queue", {**values, "filter": op.filter, "position": op.position})
    found = db.send("queue", values)

    def result() -> QueueState:
        queue = QueueState(*found()[0])
        if queue.filter != op.filter:
            raise QueueFilterMismatch(op.name, queue.filter, op.filter)
        return queue

    return Deferred(result)


def acknowledge(db: Database, op: contract.Acknowledge) -> Deferred:
    values = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}

    def lost() -> AllocationLost:
        name = db.value("queue_name", {"id": op.queue}) or str(op.queue)
        return AllocationLost(name, op.first, op.last or op.first)

    return _changed(db.send("acknowledge", values), lost if op.strict else None)


def release(db: Database, op: contract.Release, now: int) -> Deferred:
    place = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    return _changed(db.send("release", {**place, "now": now, "counts": op.counts}))


def move_queue(db: Database, op: contract.MoveQueue) -> Deferred:
    moved = db.send("move_queue", {"id": op.queue, "position": op.position})
    db.later("drop_allocations", {"id": op.queue})
    return _changed(moved, lambda: QueueNotFound(str(op.queue)))


def set_dead_rule(db: Database, op: contract.SetDeadRule) -> Deferred:
    changed = db.send("set_dead_rule", {"id": op.queue, "dead_after": op.dead_after})
    return _changed(changed, lambda: QueueNotFound(str(op.queue)))


def requeue(db: Database, op: contract.Requeue, now: int) -> Deferred:
    return _changed(db.send("put_back", {"queue_id": op.queue, "first": op.first, "now": now}))


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
