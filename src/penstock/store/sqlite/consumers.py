"""Subscriptions, queues and producers: small tables that say how far somebody has come.

The functions here carry out one operation each inside the batch's transaction. They check before they write, so an
operation that fails has changed nothing.
"""

from penstock.errors import (
    AllocationLost,
    LimitExceeded,
    QueueContended,
    QueueFilterMismatch,
    QueueNotFound,
    SubscriptionMoved,
    SubscriptionNotFound,
)
from penstock.model import Allocation, Appended, ProducerMark, SubscriptionInfo
from penstock.model.times import TICKS_PER_MS
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    DeclareQueue,
    ExpireProducers,
    MoveQueue,
    Progress,
    Proposal,
    QueueState,
    Register,
    Release,
    Reoffer,
    Requeue,
    SetBookmark,
    SetDeadRule,
)
from penstock.store.sqlite.database import Database
from penstock.store.tables import consumers as tables
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX, allocated_again, packed, results_of


class Consumers(tables.Consumers[Database]):
    """The reading half of subscriptions and queues on SQLite."""

    def claim(self, queue: int, subscriber: str, except_first: int | None) -> Allocation | None:
        return find_claim(self.db, queue, subscriber, except_first, self.now())


def find_claim(db: Database, queue: int, subscriber: str, except_first: int | None, now: int) -> Allocation | None:
    """The subscriber's live allocation, else the oldest expired one."""
    values = {"queue_id": queue, "now": now, "except_first": except_first}
    row = db.row("own_allocation", {**values, "subscriber": subscriber}) or db.row("expired_allocation", values)
    return Allocation(*row) if row else None


# --- subscriptions --------------------------------------------------------------------------------------------


def register(db: Database, op: Register) -> SubscriptionInfo:
    """Make or find a subscription."""
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter}
    db.run("add_subscription", {**values, "position": op.position})
    return SubscriptionInfo(*db.row("find_subscription", values))


def progress(db: Database, op: Progress) -> bool:
    """Move a subscription on if it is where it is thought to be."""
    values = {"id": op.subscription, "start": op.start, "next": op.next, "last_ticks": op.last_ticks}
    moved = bool(db.run("progress_subscription", values))
    if op.strict and not moved:
        raise SubscriptionMoved(op.subscription)
    return moved


def set_bookmark(db: Database, op: SetBookmark) -> bool:
    """Put a subscription somewhere else."""
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter, "position": op.position}
    if not db.run("set_subscription", values):
        raise SubscriptionNotFound(f"of {op.subscriber} to '{op.filter}' in context {op.context}")
    return True


# --- queues ---------------------------------------------------------------------------------------------------


def declare_queue(db: Database, op: DeclareQueue) -> QueueState:
    """Make or find a queue."""
    values = {"name": op.name, "context": op.context}
    db.run("add_queue", {**values, "filter": op.filter, "position": op.position})
    queue = QueueState(*db.row("queue", values))
    if queue.filter != op.filter:
        raise QueueFilterMismatch(op.name, queue.filter, op.filter)
    return queue


def acknowledge(db: Database, op: Acknowledge) -> bool:
    """End an allocation that is still the subscriber's."""
    values = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    ended = bool(db.run("acknowledge", values))
    if op.strict and not ended:
        name = db.value("queue_name", {"id": op.queue}) or str(op.queue)
        raise AllocationLost(name, op.first, op.last or op.first)
    return ended


def release(db: Database, op: Release, now: int) -> bool:
    """Let an allocation that is still the subscriber's expire."""
    place = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    return bool(db.run("release", {**place, "now": now, "counts": op.counts}))


def allocate(db: Database, op: Allocate, now: int) -> Allocation | str | None:
    """Carry out a proposal if the queue is still as the proposal found it."""
    marker = _marker(db, op.queue)
    proposal = op.proposal
    claim = find_claim(db, op.queue, op.subscriber, None, now)
    if claim is not None:
        return _allocate_again(db, op, claim, now)
    if proposal.kind not in (Proposal.FRESH, Proposal.NOTHING) or proposal.marker != marker:
        return STALE
    if proposal.kind == Proposal.NOTHING:
        _move(db, op.queue, marker, proposal.next)
        return None
    return _allocate_fresh(db, op, marker, now)


def _allocate_again(db: Database, op: Allocate, claim: Allocation, now: int) -> Allocation | str:
    again = allocated_again(op, claim, now, now + op.ttl_ms * TICKS_PER_MS)
    if isinstance(again, Allocation) and again is not claim:
        values = {"queue_id": op.queue, "first": claim.first, "subscriber": op.subscriber, "expires": again.expires}
        db.run("take_over", values)
    return again


def _allocate_fresh(db: Database, op: Allocate, marker: int, now: int) -> Allocation:
    proposal = op.proposal
    live = db.value("allocation_count", {"queue_id": op.queue})
    if live >= QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", live + 1, QUEUE_ALLOCATIONS_MAX)
    expires = now + op.ttl_ms * TICKS_PER_MS
    given = Allocation(proposal.first, proposal.last, proposal.count, op.subscriber, expires, 1)
    db.run(
        "add_allocation",
        {
            "queue_id": op.queue,
            "first": given.first,
            "last": given.last,
            "count": given.count,
            "subscriber": op.subscriber,
            "expires": expires,
        },
    )
    _move(db, op.queue, marker, proposal.next)
    return given


def _marker(db: Database, queue: int) -> int:
    marker: int | None = db.value("queue_position", {"id": queue})
    if marker is None:
        raise QueueNotFound(str(queue))
    return marker


def _move(db: Database, queue: int, marker: int, position: int) -> None:
    if position != marker:
        db.run("move_queue", {"id": queue, "position": position})


def move_queue(db: Database, op: MoveQueue) -> bool:
    """Drop a queue's allocations and move its marker."""
    _move(db, op.queue, _marker(db, op.queue), op.position)
    db.run("drop_allocations", {"queue_id": op.queue})
    return True


def set_dead_rule(db: Database, op: SetDeadRule) -> bool:
    """Say after how many holders an allocation is a dead letter."""
    _marker(db, op.queue)
    return bool(db.run("set_dead_rule", {"id": op.queue, "dead_after": op.dead_after}))


def requeue(db: Database, op: Requeue, now: int) -> bool:
    """Make a dead letter an expired allocation like any other."""
    return bool(db.run("put_back", {"queue_id": op.queue, "first": op.first, "now": now}))


def reoffer(db: Database, op: Reoffer, now: int) -> bool:
    """Make allocations that the next consumers get, of what was handed out before."""
    marker = _marker(db, op.queue)
    number = db.value("allocation_count", {"queue_id": op.queue}) + len(op.runs)
    if number > QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", number, QUEUE_ALLOCATIONS_MAX)
    for first, last, _ in op.runs:
        if last >= marker or db.rows(
            "shared_allocations", {"queue_id": op.queue, "first": first, "last": last, "limit": 1}
        ):
            raise QueueContended(db.value("queue_name", {"id": op.queue}))
    for first, last, count in op.runs:
        db.run("reoffer", {"queue_id": op.queue, "first": first, "last": last, "count": count, "now": now})
    return True


# --- producers ------------------------------------------------------------------------------------------------


def marked(db: Database, mark: ProducerMark) -> list[Appended] | None:
    """The commits that were written under this mark; None if it is new."""
    row = db.row("producer", {"name": mark.producer})
    return results_of(mark, *row) if row else None


def save_mark(db: Database, mark: ProducerMark, commits: list[Appended], now: int) -> None:
    """Keep a mark and what was written under it."""
    values = {"name": mark.producer, "number": mark.number, "result": packed(commits), "used": now}
    db.run("save_producer", values)


def expire_producers(db: Database, op: ExpireProducers) -> int:
    """Forget producers that were not used for long."""
    return db.run("expire_producers", {"before": op.before, "limit": op.limit})
