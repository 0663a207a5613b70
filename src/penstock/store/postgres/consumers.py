"""Subscriptions, queues and producers: small tables that say how far somebody has come.

The functions here send what one operation needs, and answer with how its result is read from what comes back: a batch
of them costs one round trip. Each is one statement that compares and changes, or an addition and a look, so that an
operation that fails has changed nothing.
"""

from collections.abc import Callable
from typing import Any

import psycopg

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
    Result,
    SetBookmark,
    SetDeadRule,
)
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import Database, fetched
from penstock.store.tables import consumers as tables
from penstock.store.tables.consumers import QUEUE_ALLOCATIONS_MAX, allocated_again, packed, results_of

Promise = Callable[[], Result]
"""The result of an operation that was sent; raises why there is none."""


class Consumers(tables.Consumers[Database]):
    """The reading half of subscriptions and queues on PostgreSQL."""

    def claim(self, queue: int, subscriber: str, except_first: int | None) -> Allocation | None:
        values = {"queue_id": queue, "subscriber": subscriber, "except_first": except_first, "now": self.now()}
        row = self.db.row("claim", values)
        return Allocation(*row) if row else None


# --- subscriptions --------------------------------------------------------------------------------------------


def register(db: Database, op: Register) -> Promise:
    """Make or find a subscription."""
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter}
    db.later("add_subscription", {**values, "position": op.position})
    found = db.ask("find_subscription", values)
    return lambda: SubscriptionInfo(*fetched(found)[0])


def progress(db: Database, op: Progress) -> Promise:
    """Move a subscription on if it is where it is thought to be."""
    values = {"id": op.subscription, "start": op.start, "next": op.next, "last_ticks": op.last_ticks}
    sent = db.later("progress_subscription", values)
    return lambda: _required(sent, SubscriptionMoved(op.subscription) if op.strict else None)


def set_bookmark(db: Database, op: SetBookmark) -> Promise:
    """Put a subscription somewhere else."""
    values = {"subscriber": op.subscriber, "context": op.context, "filter": op.filter, "position": op.position}
    sent = db.later("set_subscription", values)
    missing = SubscriptionNotFound(f"of {op.subscriber} to '{op.filter}' in context {op.context}")
    return lambda: _required(sent, missing)


def _required(sent: psycopg.Cursor[Any], missing: Exception | None) -> bool:
    """Whether a statement found what it was to change; if it must, the error that says it did not."""
    found = bool(fetched(sent))
    if missing is not None and not found:
        raise missing
    return found


# --- queues ---------------------------------------------------------------------------------------------------


def declare_queue(db: Database, op: DeclareQueue) -> Promise:
    """Make or find a queue."""
    values = {"name": op.name, "context": op.context}
    db.later("add_queue", {**values, "filter": op.filter, "position": op.position})
    found = db.ask("queue", values)

    def result() -> QueueState:
        queue = QueueState(*fetched(found)[0])
        if queue.filter != op.filter:
            raise QueueFilterMismatch(op.name, queue.filter, op.filter)
        return queue

    return result


def acknowledge(db: Database, op: Acknowledge) -> Promise:
    """End an allocation that is still the subscriber's."""
    values = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    sent = db.later("acknowledge", values)

    def result() -> bool:
        ((ended, name),) = fetched(sent)
        if op.strict and not ended:
            raise AllocationLost(name or str(op.queue), op.first, op.last or op.first)
        return bool(ended)

    return result


def release(db: Database, op: Release, now: int) -> Promise:
    """Let an allocation that is still the subscriber's expire."""
    place = {"queue_id": op.queue, "first": op.first, "last": op.last, "subscriber": op.subscriber}
    sent = db.later("release", {**place, "now": now, "counts": op.counts})
    return lambda: _required(sent, None)


def allocate(db: Database, op: Allocate, now: int) -> Promise:
    """Carry out a proposal if the queue is still as the proposal found it."""
    proposal, expires = op.proposal, now + op.ttl_ms * TICKS_PER_MS
    values = {
        "queue_id": op.queue,
        "subscriber": op.subscriber,
        "now": now,
        "expires": expires,
        "kind": proposal.kind,
        "marker": proposal.marker,
        "next": proposal.next,
        "first": proposal.first,
        "last": proposal.last,
        "count": proposal.count,
        "allocations_max": QUEUE_ALLOCATIONS_MAX,
    }
    sent = db.later("allocate", values)
    return lambda: _allocated(op, fetched(sent), now, expires)


def _allocated(op: Allocate, rows: list[Any], now: int, expires: int) -> Allocation | str | None:
    """What the statement did: it compared the same things, and changed something only where this says so."""
    if not rows:
        raise QueueNotFound(str(op.queue))
    (marker, live, *claimed) = rows[0]
    proposal = op.proposal
    if claimed[0] is not None:
        return allocated_again(op, Allocation(*claimed), now, expires)
    if proposal.kind not in (Proposal.FRESH, Proposal.NOTHING) or proposal.marker != marker:
        return STALE
    if proposal.kind == Proposal.NOTHING:
        return None
    if live >= QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", live + 1, QUEUE_ALLOCATIONS_MAX)
    return Allocation(proposal.first, proposal.last, proposal.count, op.subscriber, expires, 1)


def move_queue(db: Database, op: MoveQueue) -> Promise:
    """Drop a queue's allocations and move its marker."""
    sent = db.later("move_queue", {"id": op.queue, "position": op.position})
    db.later("drop_allocations", {"id": op.queue})
    return lambda: _required(sent, QueueNotFound(str(op.queue)))


def set_dead_rule(db: Database, op: SetDeadRule) -> Promise:
    """Say after how many holders an allocation is a dead letter."""
    sent = db.later("set_dead_rule", {"id": op.queue, "dead_after": op.dead_after})
    return lambda: _required(sent, QueueNotFound(str(op.queue)))


def requeue(db: Database, op: Requeue, now: int) -> Promise:
    """Make a dead letter an expired allocation like any other."""
    sent = db.later("put_back", {"queue_id": op.queue, "first": op.first, "now": now})
    return lambda: _required(sent, None)


def reoffer(db: Database, op: Reoffer, now: int) -> Promise:
    """Make allocations that the next consumers get, of what was handed out before."""
    columns = {name: Numbers(run[at] for run in op.runs) for at, name in enumerate(("firsts", "lasts", "counts"))}
    values = {"queue_id": op.queue, "now": now, "allocations_max": QUEUE_ALLOCATIONS_MAX}
    sent = db.later("reoffer", {**values, **columns})
    return lambda: _reoffered(op, fetched(sent))


def _reoffered(op: Reoffer, rows: list[Any]) -> bool:
    """What the statement did: it compared the same things."""
    if not rows:
        raise QueueNotFound(str(op.queue))
    ((name, before, is_in_use),) = rows
    if (number := before + len(op.runs)) > QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", number, QUEUE_ALLOCATIONS_MAX)
    if is_in_use:
        raise QueueContended(name)
    return True


# --- producers ------------------------------------------------------------------------------------------------


class Producers:
    """The marks of a batch: loaded together when it begins, saved together when it ends.

    A mark is saved only after all of its transaction was carried out, so that nothing has to be taken back.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[str, tuple[int, bytes]] = {}
        self._asked: set[str] = set()
        self._used: set[str] = set()

    def add(self, rows: list[Any], asked: set[str]) -> None:
        """What the database says of these producers."""
        self._asked |= asked
        self._known |= {name: (number, result) for name, number, result in rows}

    def marked(self, mark: ProducerMark) -> list[Appended] | None:
        """The commits that were written under this mark; None if it is new."""
        if mark.producer not in self._asked:
            names = {mark.producer}
            self.add(self._db.rows("batch_producers", {"names": Texts(names)}), names)
        number, result = self._known.get(mark.producer, (None, b""))
        return results_of(mark, number, result)

    def save(self, mark: ProducerMark, commits: list[Appended]) -> None:
        """Keep a mark and what was written under it."""
        self._known[mark.producer] = (mark.number, packed(commits))
        self._used.add(mark.producer)

    def flush(self, now: int) -> None:
        """Send what is to be saved."""
        if self._used:
            names = sorted(self._used)
            numbers = Numbers(self._known[name][0] for name in names)
            results = Blobs(self._known[name][1] for name in names)
            values = {"names": Texts(names), "numbers": numbers, "results": results, "used": now}
            self._db.later("save_producers", values)
            self._used.clear()

    def expire(self, op: ExpireProducers, now: int) -> Promise:
        """Forget producers that were not used for long."""
        self.flush(now)
        sent = self._db.later("expire_producers", {"before": op.before, "limit": op.limit})
        self._known.clear()
        self._asked.clear()
        return lambda: len(fetched(sent))
