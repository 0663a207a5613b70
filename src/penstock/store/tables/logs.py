"""Logs, and iterators over logs, streams and other iterators."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from penstock.errors import InvalidRequest, IteratorCycle, IteratorExists, IteratorNotFound, LimitExceeded, LogNotFound
from penstock.model import LOG_CONTEXT, Over, check_context, check_name, check_stream
from penstock.store import contract
from penstock.store.contract import IteratorState
from penstock.store.erasure_filter import add_entry
from penstock.store.tables.appends import Appender
from penstock.store.tables.database import Database

LAST_LOG: Final = "last_log"
"""The key of the creation time (ticks) of the newest log."""


class KnownLogs:
    """The names of existing logs in memory, because every append to a log checks its name.

    It holds only what the database has said. A caller that rolls back a transaction or a batch calls `forget`, because
    a log that the transaction saw may not exist afterwards.
    """

    def __init__(self, db: Database, names_max: int) -> None:
        self._db = db
        self._names_max = names_max
        self._names: set[str] = set()

    def unknown(self, names: Iterable[str]) -> set[str]:
        return set(names) - self._names

    def add(self, names: Iterable[str]) -> None:
        if len(self._names) >= self._names_max:
            self._names.clear()
        self._names.update(names)

    def require(self, name: str) -> bool:
        if name not in self._names:
            if self._db.row("log", {"name": name}) is None:
                raise LogNotFound(name)
            self.add([name])
        return True

    def forget(self) -> None:
        self._names.clear()


def add_log(db: Database, op: contract.AddLog, heads: Appender, now: int) -> bool:
    """Add a log that begins after the present events of its stream, unless it exists."""
    if db.row("log", {"name": op.name}) is not None:
        return False
    if (count := db.value("log_count")) >= contract.LOGS_MAX:
        raise LimitExceeded("logs_max", count + 1, contract.LOGS_MAX)
    base = heads.stream_head(LOG_CONTEXT, op.name)
    heads.flush()
    # Creation times are unique, so that a log differs from a later one of the same name.
    created = max(now, _last_log(db, now) + 1)
    db.later("set_meta", {"key": LAST_LOG, "value": str(created)})
    db.later("add_log", {"name": op.name, "created": created, "base": base})
    return True


def _last_log(db: Database, now: int) -> int:
    """The creation time of the newest log, or a later time: older stores and restored ones have not stored it."""
    kept = db.value("meta", {"key": LAST_LOG})
    return max(now, db.value("last_log") or 0) if kept is None else int(kept)


def delete_log(db: Database, op: contract.DeleteLog, heads: Appender, now: int) -> bool:
    """Delete a log and everything made from it, and add its events to the ledger of erasures."""
    row = db.row("log", {"name": op.name})
    if row is None or op.created not in (None, row[1]):
        if op.strict:
            raise LogNotFound(op.name)
        return False
    head = heads.stream_head(LOG_CONTEXT, op.name)
    heads.flush()
    if head > row[2]:
        add_entry(db, now, context=LOG_CONTEXT, stream=op.name, last=head, done=row[2], events=head - row[2])
        db.later("erase_letters_of_stream", {"context": LOG_CONTEXT, "stream": op.name, "last": head})
    _delete_below(db, op.name, Over.LOG, now)
    db.later("set_meta", {"key": LAST_LOG, "value": str(_last_log(db, now))})
    db.later("delete_log", {"name": op.name})
    return True


def iterator_of(row: tuple[Any, ...]) -> IteratorState:
    # SQLite stores a boolean as a number.
    return IteratorState(*(*row[:6], bool(row[6]), *row[7:]))


def add_iterator(db: Database, op: contract.AddIterator, now: int) -> IteratorState:
    if reason := check_name(op.name):
        raise InvalidRequest("iterator", reason)
    row = db.row("iterator", {"name": op.name})
    if row:
        found = iterator_of(row)
        if (found.log, found.kind, found.function, found.indexed) == (op.log, op.kind, op.function, op.indexed):
            return found
    log = db.row("log", {"name": op.log})
    above = [] if log else [name for (name,) in db.rows("iterators_upward", {"name": op.log})]
    if log is None:
        if op.name in (*above, op.log):
            raise IteratorCycle(op.name)
        if len(above) >= contract.ITERATOR_CHAIN_MAX:
            raise LimitExceeded("iterator_chain_max", len(above) + 1, contract.ITERATOR_CHAIN_MAX)
    if row:
        raise IteratorExists(op.name)
    over, base = Over.STREAM, 0
    if log is not None:
        over, base = Over.LOG, log[2]
    elif above:
        over = Over.ITERATOR
    else:
        context, slash, stream = op.log.partition("/")
        # A log is read by its own name; read as a stream, it would outlive the log.
        if not slash or context == LOG_CONTEXT or check_context(context) or check_stream(stream):
            raise LogNotFound(op.log)
    if (count := db.value("iterator_count")) >= op.iterators_max:
        raise LimitExceeded("iterators_max", count + 1, op.iterators_max)
    wanted = {"log": op.log, "kind": op.kind, "function": op.function, "indexed": op.indexed}
    db.later("add_iterator", {"name": op.name, "created": now, "over": over.value, "base": base, **wanted})
    return iterator_of(db.row("iterator", {"name": op.name}))


def delete_iterator(db: Database, op: contract.DeleteIterator, now: int) -> bool:
    row = db.row("iterator", {"name": op.name})
    if row is None or row[2] != op.log:
        raise IteratorNotFound(op.name)
    _delete_below(db, op.name, Over.ITERATOR, now)
    _delete_iterator(db, row[0], now)
    return True


def _delete_below(db: Database, log: str, over: Over, now: int) -> None:
    """Delete the iterators over something, and the iterators over those."""
    for (number,) in db.rows("iterators_below", {"log": log, "over": over.value}):
        _delete_iterator(db, number, now)


def _delete_iterator(db: Database, number: int, now: int) -> None:
    outputs = db.row("iterator_place", {"id": number})[1]
    if outputs:
        add_entry(db, now, iterator_id=number, last=outputs)
    db.later("delete_iterator", {"id": number})


def restart_iterators(db: Database, log: str, over: Over, now: int) -> list[IteratorState]:
    """Restart the iterators over something, and those over them, under new numbers; erase their output."""
    restarted: list[IteratorState] = []
    for (number,) in db.rows("iterators_below", {"log": log, "over": over.value}):
        before = iterator_of(db.row("iterator_numbered", {"id": number}))
        _delete_iterator(db, number, now)
        db.later("add_iterator", asdict(before))
        restarted.append(iterator_of(db.row("iterator", {"name": before.name})))
    return restarted
