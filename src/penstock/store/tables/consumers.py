"""Subscriptions and queues: how far consumers have read, and what they hold.

The functions here send the statements of one operation, and return how to read its result. A backend that sends without
waiting pays one round trip for a whole batch. Each function compares and changes in one statement, so an operation that
fails has changed nothing.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    QueueContended,
    QueueExists,
    QueueFilterMismatch,
    QueueNotFound,
    SubscriptionMismatch,
    SubscriptionMoved,
    SubscriptionNotFound,
)
from penstock.model import Allocation, SubscriptionInfo
from penstock.store import contract
from penstock.store.contract import Held, QueueState
from penstock.store.tables.database import Database

QUEUE_ALLOCATIONS_MAX: Final = 200_000
"""Allocations of one queue: held, expired, dead, or waiting for a time or for others of their key."""
ALL_CONTEXTS: Final = ""
"""The context of a subscription to all of them, as it is stored."""


class Deferred:
    """The result of an operation that the batch has not waited for; `result` raises the operation's error."""

    __slots__ = ("result",)

    def __init__(self, result: Callable[[], contract.Result]) -> None:
        self.result = result


def register(db: Database, op: contract.Register) -> Deferred:
    values = {"subscriber": op.subscriber, "context": op.context or ALL_CONTEXTS, "filter": op.filter}
    db.later("add_subscription", {**values, "position": op.position, "selection": op.selection})
    found = db.send("find_subscription", values)

    def result() -> SubscriptionInfo:
        info = subscription_of(found()[0])
        if info.selection != op.selection:
            raise SubscriptionMismatch(op.subscriber, info.selection, op.selection)
        return info

    return Deferred(result)


def subscription_of(row: Sequence[Any]) -> SubscriptionInfo:
    number, subscriber, context, prefix, position, last_ticks, selection = row
    return SubscriptionInfo(number, subscriber, context or None, prefix, position, last_ticks, selection=selection)


def progress(db: Database, op: contract.Progress) -> Deferred:
    values = {"id": op.subscription, "start": op.start, "next": op.next, "last_ticks": op.last_ticks}
    moved = db.send("progress_subscription", values)
    return _changed(moved, (lambda: SubscriptionMoved(op.subscription)) if op.strict else None)


def set_bookmark(db: Database, op: contract.SetBookmark) -> Deferred:
    context = op.context or ALL_CONTEXTS
    values = {"subscriber": op.subscriber, "context": context, "filter": op.filter, "position": op.position}
    where = f"of {op.subscriber} to '{op.filter}' in context {op.context or '*'}"
    return _changed(db.send("set_subscription", values), lambda: SubscriptionNotFound(where))


def delete_subscription(db: Database, op: contract.DeleteSubscription) -> Deferred:
    return _changed(db.send("delete_subscription", {"id": op.subscription}))


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
    rules = {"ordered": op.ordered, "selection": op.selection, "retry": op.retry, "dead_after": op.dead_after}
    db.later("add_queue", {**values, **rules, "filter": op.filter, "position": op.position})
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
    db.later("drop_letters", {"id": op.queue})
    return _changed(moved, lambda: QueueNotFound(str(op.queue)))


def set_dead_rule(db: Database, op: contract.SetDeadRule) -> Deferred:
    changed = db.send("set_dead_rule", {"id": op.queue, "dead_after": op.dead_after})
    return _changed(changed, lambda: QueueNotFound(str(op.queue)))


def requeue(db: Database, op: contract.Requeue, now: int) -> Deferred:
    return _changed(db.send("put_back", {"queue_id": op.queue, "first": op.first, "now": now}))


def allocated(op: contract.Allocate, rows: list[Any], now: int, expires: int) -> Allocation | str | None:
    """The answer to a proposal, from the state of the queue: marker, allocations, version, and the claim."""
    if not rows:
        raise QueueNotFound(str(op.queue))
    marker, live, version, *claimed = rows[0]
    proposal = op.proposal
    if claimed[0] is not None:
        claim = Allocation(*claimed)
        kind = contract.Proposal.OWN if claim.expires > now else contract.Proposal.EXPIRED
        if (proposal.kind, proposal.first, proposal.last, proposal.count) != (kind, *claimed[:3]):
            return contract.STALE
        if kind == contract.Proposal.OWN:
            return claim
        if proposal.version != version:
            return contract.STALE
        return Allocation(claim.first, claim.last, claim.count, op.subscriber, expires, claim.deliveries + 1)
    if proposal.kind not in (contract.Proposal.FRESH, contract.Proposal.NOTHING) or (
        proposal.marker,
        proposal.version,
    ) != (marker, version):
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


# --- several allocations at a time ----------------------------------------------------------------------------


def allocate_parts(db: Database, op: contract.AllocateParts, now: int, expires: int) -> tuple[Held, ...] | str | None:
    if (state := db.row("queue_state", {"id": op.queue})) is None:
        raise QueueNotFound(str(op.queue))
    queue = {"queue_id": op.queue}
    holds = {**queue, "subscriber": op.subscriber}
    held = tuple(Held(*row) for row in db.rows("held", {**holds, "now": now}))
    if held or op.own:
        return held if tuple(one.run for one in held) == op.own else contract.STALE
    if op.version != state[4]:
        return contract.STALE
    taken = _runs(db, op.queue, op.taken)
    if len(taken) != len(op.taken) or any(one.expires > now for one in taken):
        return contract.STALE
    if op.marker != state[2] and (op.next != op.marker or op.held or op.kept):
        return contract.STALE
    if op.ahead and (
        state[3] + len(op.held) > QUEUE_ALLOCATIONS_MAX or db.rows("available", {**queue, "now": now, "limit": 1})
    ):
        return contract.STALE
    keys = {one.key for one in (*op.held, *op.kept) if one.key}
    in_use = {key for (key,) in db.rows("keys_in_use", {**queue, "keys": json.dumps([*keys])})} if keys else set()
    if any(one.key in in_use for one in op.held):
        return contract.STALE
    if taken:
        db.later("take_runs", {**holds, "runs": json.dumps(op.taken), "expires": expires})
    in_use |= {one.key for one in op.held}
    rows = [(*one[:3], op.subscriber, expires, one.deliveries + 1, one.key, one.due) for one in op.held]
    for one in op.kept:
        begins = contract.WAITING if one.key and one.key in in_use else max(one.due, now)
        in_use.add(one.key)
        rows.append((*one[:3], "", begins, one.deliveries, one.key, one.due))
    if rows:
        db.later("add_parts", {**queue, "parts": json.dumps(rows)})
    if op.next != op.marker:
        db.later("move_queue", {"id": op.queue, "position": op.next})
    given = [one._replace(subscriber=op.subscriber, expires=expires, deliveries=one.deliveries + 1) for one in taken]
    given += [Held(*row[:7]) for row in rows[: len(op.held)]]
    return tuple(sorted(given)) or None


def _runs(db: Database, queue: int, runs: Sequence[contract.Run]) -> list[Held]:
    """The allocations that are exactly these."""
    return [Held(*row) for row in db.rows("runs", {"queue_id": queue, "runs": json.dumps(runs)})] if runs else []


def settle(db: Database, op: contract.Settle, now: int) -> int:
    found = _runs(db, op.queue, op.runs)
    mine = [one for one in found if _is_ended_by(one, op.subscriber, now)]
    if len(mine) < len(op.runs):
        if op.strict:
            raise _lost(db, op.queue, op.runs, mine)
        if op.back or op.dead:
            return 0
    if not mine:
        return 0
    queue = {"queue_id": op.queue}
    db.later("end_runs", {**queue, "runs": json.dumps([one.run for one in mine])})
    if op.dead:
        db.later("add_letters", {**queue, "letters": json.dumps(op.dead), "now": now})
    _put_back(db, op.queue, op.back, [one.key for one in mine], now)
    return len(mine)


def _is_ended_by(one: Held, subscriber: str | None, now: int) -> bool:
    return one.expires <= now if subscriber is None else one.subscriber == subscriber


def _put_back(db: Database, queue: int, parts: Sequence[contract.Part], keys: Sequence[str], now: int) -> None:
    """Add allocations for the next consumers, and let the first of each key go."""
    rows = [
        (*one[:3], "", contract.WAITING if one.key else max(one.due, now), one.deliveries, one.key, one.due)
        for one in parts
    ]
    if rows:
        db.later("add_parts", {"queue_id": queue, "parts": json.dumps(rows)})
    begun = {*keys, *(one.key for one in parts)} - {""}
    if begun:
        db.later("promote", {"queue_id": queue, "keys": json.dumps([*begun]), "now": now})


def _lost(db: Database, queue: int, runs: Sequence[contract.Run], mine: Sequence[Held]) -> AllocationLost:
    kept = {one.run for one in mine}
    first, last = next(run for run in runs if run not in kept)
    return AllocationLost(db.value("queue_name", {"id": queue}) or str(queue), first, last)


def extend(db: Database, op: contract.Extend, expires: int) -> int:
    mine = [one for one in _runs(db, op.queue, op.runs) if one.subscriber == op.subscriber]
    if len(mine) < len(op.runs):
        raise _lost(db, op.queue, op.runs, mine)
    db.later("extend_runs", {**_holder(op), "runs": json.dumps(op.runs), "expires": expires})
    return expires


def _holder(op: contract.Extend) -> dict[str, Any]:
    return {"queue_id": op.queue, "subscriber": op.subscriber}


def revive(db: Database, op: contract.Revive, now: int) -> int:
    gone = {row[0] for row in db.rows("take_letters", {"queue_id": op.queue, "positions": json.dumps(op.positions)})}
    _put_back(db, op.queue, [one for one in op.parts if one.first in gone], (), now)
    return len(gone)


def change_queue(db: Database, op: contract.ChangeQueue) -> bool:
    state = db.row("queue_state", {"id": op.queue})
    if state is None:
        raise QueueNotFound(str(op.queue))
    name, context, _, outstanding, _ = state
    if op.name not in (None, name) and db.row("queue", {"name": op.name, "context": context}) is not None:
        raise QueueExists(str(op.name), context)
    if outstanding and (op.filter is not None or op.selection is not None):
        reason = (
            f"cannot change while queue {name} has {outstanding} allocations, which consumers hold or have read ahead: "
            "let them acknowledge all, and pause the queue before there are more"
        )
        raise InvalidRequest("filter", reason)
    if op.filter is not None or op.selection is not None:
        _check_letters(db, op, QueueState(*db.row("queue", {"name": name, "context": context})))
    db.later("change_queue", {"id": op.queue, **{name: getattr(op, name) for name in _CHANGES}})
    return True


def _check_letters(db: Database, op: contract.ChangeQueue, queue: QueueState) -> None:
    prefix = queue.filter if op.filter is None else op.filter
    selection = queue.selection if op.selection is None else op.selection
    wanted = replace(queue, filter=prefix, selection=selection).wanted
    streams = db.rows("streams_of_letters", {"queue_id": op.queue})
    if not all(wanted.wants_stream(queue.context, stream) for (stream,) in streams):
        reason = f"leaves out streams of which queue {queue.name} has dead letters: put these back or drop them"
        raise InvalidRequest("filter", reason)


_CHANGES: Final = ("name", "filter", "selection", "retry", "paused")


def delete_queue(db: Database, op: contract.DeleteQueue) -> Deferred:
    db.later("drop_allocations", {"id": op.queue})
    db.later("drop_letters", {"id": op.queue})
    return _changed(db.send("delete_queue", {"id": op.queue}))


def reoffer_parts(db: Database, op: contract.Reoffer, now: int) -> bool:
    """For an ordered queue."""
    state = db.row("queue_state", {"id": op.queue})
    if state is None:
        raise QueueNotFound(str(op.queue))
    if (number := state[3] + len(op.parts)) > QUEUE_ALLOCATIONS_MAX:
        raise LimitExceeded("queue_allocations_max", number, QUEUE_ALLOCATIONS_MAX)
    _put_back(db, op.queue, op.parts, (), now)
    return True
