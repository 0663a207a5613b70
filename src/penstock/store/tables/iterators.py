"""Iterators over logs, streams and other iterators: which may be made, and what goes with one that is deleted."""

from dataclasses import asdict
from typing import Any

from penstock.errors import (
    InvalidRequest,
    IteratorCycle,
    IteratorExists,
    IteratorNotFound,
    LimitExceeded,
    LogNotFound,
)
from penstock.model import check_context, check_name, check_stream
from penstock.store.contract import (
    ITERATOR_CHAIN_MAX,
    LOG_CONTEXT,
    AddIterator,
    DeleteIterator,
    IteratorState,
    Over,
)
from penstock.store.tables.hiding import enter
from penstock.store.tables.queries import Statements


def iterator_of(row: tuple[Any, ...]) -> IteratorState:
    """An iterator from its row."""
    # A truth is a number in some databases.
    return IteratorState(*(*row[:6], bool(row[6]), *row[7:]))


def add_iterator(db: Statements, op: AddIterator, now: int) -> IteratorState:
    """Make an iterator unless the same is there."""
    if reason := check_name(op.name):
        raise InvalidRequest("iterator", reason)
    found = db.row("iterator", {"name": op.name})
    if found and _is_same(iterator_of(found), op):
        return iterator_of(found)
    _check_chain(db, op)
    if found:
        raise IteratorExists(op.name)
    over, base = _resolve(db, op.log)
    if (count := db.value("iterator_count")) >= op.iterators_max:
        raise LimitExceeded("iterators_max", count + 1, op.iterators_max)
    wanted = {"log": op.log, "kind": op.kind, "function": op.function, "indexed": op.indexed}
    db.later("add_iterator", {"name": op.name, "created": now, "over": over.value, "base": base, **wanted})
    return iterator_of(db.row("iterator", {"name": op.name}))


def _is_same(found: IteratorState, op: AddIterator) -> bool:
    return (found.log, found.kind, found.function, found.indexed) == (op.log, op.kind, op.function, op.indexed)


def _check_chain(db: Statements, op: AddIterator) -> None:
    """Nothing may read its own output, nor stand at the end of too long a chain."""
    if db.row("log", {"name": op.log}) is not None:
        return
    above = [name for (name,) in db.rows("iterators_upward", {"name": op.log})]
    if op.name in (*above, op.log):
        raise IteratorCycle(op.name)
    if len(above) >= ITERATOR_CHAIN_MAX:
        raise LimitExceeded("iterator_chain_max", len(above) + 1, ITERATOR_CHAIN_MAX)


def _resolve(db: Statements, name: str) -> tuple[Over, int]:
    """What an iterator that names this reads, and the sequence before its first message."""
    log = db.row("log", {"name": name})
    if log is not None:
        return Over.LOG, log[2]
    if db.rows("iterators_upward", {"name": name}):
        return Over.ITERATOR, 0
    context, slash, stream = name.partition("/")
    # A log is read by its own name; as a stream it would outlive the log that it belongs to.
    if not slash or context == LOG_CONTEXT or check_context(context) or check_stream(stream):
        raise LogNotFound(name)
    return Over.STREAM, 0


def delete_iterator(db: Statements, op: DeleteIterator, now: int) -> bool:
    """Delete an iterator of a log with all that is made from it."""
    row = db.row("iterator", {"name": op.name})
    if row is None or row[2] != op.log:
        raise IteratorNotFound(op.name)
    delete_below(db, op.name, Over.ITERATOR, now)
    _delete_iterator(db, row[0], now)
    return True


def delete_below(db: Statements, log: str, over: Over, now: int) -> None:
    """Delete the iterators over something, and those over them."""
    for (number,) in db.rows("iterators_below", {"log": log, "over": over.value}):
        _delete_iterator(db, number, now)


def _delete_iterator(db: Statements, number: int, now: int) -> None:
    outputs = db.row("iterator_place", {"id": number})[1]
    if outputs:
        enter(db, now, iterator_id=number, last=outputs)
    db.later("delete_iterator", {"id": number})


def begin_anew(db: Statements, log: str, over: Over, now: int) -> list[IteratorState]:
    """Let iterators over something, and those over them, begin anew under new numbers, and erase what they gave."""
    again: list[IteratorState] = []
    for (number,) in db.rows("iterators_below", {"log": log, "over": over.value}):
        before = iterator_of(db.row("iterator_numbered", {"id": number}))
        _delete_iterator(db, number, now)
        db.later("add_iterator", asdict(before))
        again.append(iterator_of(db.row("iterator", {"name": before.name})))
    return again
