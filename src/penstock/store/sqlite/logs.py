"""Logs, iterators and their output."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import accumulate
from struct import pack, unpack_from
from typing import Any

from penstock.errors import (
    InvalidRequest,
    IteratorCycle,
    IteratorExists,
    IteratorNotFound,
    LimitExceeded,
    LogNotFound,
    OutputMoved,
)
from penstock.model import check_context, check_name, check_stream
from penstock.store.contract import (
    ITERATOR_CHAIN_MAX,
    LOG_CONTEXT,
    LOGS_MAX,
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    IteratorState,
    LogInfo,
    Over,
    ReadLimits,
    Store,
    WriteOutput,
)
from penstock.store.sqlite import guarded
from penstock.store.sqlite.appender import Appender
from penstock.store.sqlite.database import Database


class Logs(Store):
    """The reading half of logs and iterators on SQLite."""

    db: Database

    def log(self, name: str) -> LogInfo | None:
        row = self.db.row("log", {"name": name})
        return LogInfo(*row) if row else None

    def logs(self, after: str, limit: int) -> list[LogInfo]:
        return [LogInfo(*row) for row in self.db.rows("logs", {"after": after, "limit": limit})]

    def iterator(self, name: str) -> IteratorState | None:
        row = self.db.row("iterator", {"name": name})
        return _iterator(row) if row else None

    def iterators(self, log: str | None, after: str, limit: int) -> list[IteratorState]:
        values = {"after": after, "limit": limit}
        if log is None:
            return [_iterator(row) for row in self.db.rows("iterators", values)]
        return [_iterator(row) for row in self.db.rows("iterators_of_log", {**values, "log": log})]

    def output_count(self, number: int) -> int | None:
        place = self.db.row("iterator_place", {"id": number})
        return place[1] if place else None

    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        items: list[bytes] = []
        size = 0
        with self.db.snapshot():
            for first, count, data in self.db.each("outputs_from", {"id": iterator, "ordinal": ordinal}):
                for item in _items(count, data, max(0, ordinal - first)):
                    if len(items) >= limits.events_max or (items and size + len(item) > limits.bytes_max):
                        return items
                    items.append(item)
                    size += len(item)
        return items


def _iterator(row: tuple[Any, ...]) -> IteratorState:
    return replace(IteratorState(*row), indexed=bool(row[6]))


def _items(count: int, data: bytes, skipped: int) -> Iterator[bytes]:
    lengths = unpack_from(f"<{count}I", data)
    ends = list(accumulate(lengths, initial=4 * count))
    for index in range(skipped, count):
        yield data[ends[index] : ends[index + 1]]


class KnownLogs:
    """Which logs are there, remembered by the one who writes: every message that is added asks.

    Only what the database has said is remembered. Whoever takes something back (a transaction that failed, a batch)
    says `forget`, because what was seen inside it may never have been.
    """

    def __init__(self, db: Database, names_max: int) -> None:
        self._db = db
        self._names_max = names_max
        self._names: set[str] = set()

    def require(self, name: str) -> bool:
        """True, or LogNotFound."""
        if name not in self._names:
            if self._db.row("log", {"name": name}) is None:
                raise LogNotFound(name)
            if len(self._names) >= self._names_max:
                self._names.clear()
            self._names.add(name)
        return True

    def forget(self) -> None:
        """Ask the database again."""
        self._names.clear()


def add_log(db: Database, op: AddLog, appender: Appender, now: int) -> bool:
    """Make a log that begins after whatever its stream holds already, unless it is there."""
    if db.row("log", {"name": op.name}) is not None:
        return False
    if (count := db.value("log_count")) >= LOGS_MAX:
        raise LimitExceeded("logs_max", count + 1, LOGS_MAX)
    appender.flush()
    base = appender.stream_head(LOG_CONTEXT, op.name)
    db.run("add_log", {"name": op.name, "created": now, "base": base})
    return True


def delete_log(db: Database, op: DeleteLog, appender: Appender, now: int) -> bool:
    """Delete a log with all that is made from it, and enter what that held in the ledger of erasures."""
    row = db.row("log", {"name": op.name})
    if row is None:
        return False
    appender.flush()
    head = appender.stream_head(LOG_CONTEXT, op.name)
    if head > row[2]:
        enter(db, now, context=LOG_CONTEXT, stream=op.name, last=head, done=row[2], events=head - row[2])
    _delete_below(db, op.name, Over.LOG, now)
    db.run("delete_log", {"name": op.name})
    return True


def add_iterator(db: Database, op: AddIterator, now: int) -> IteratorState:
    """Make an iterator unless the same is there."""
    if reason := check_name(op.name):
        raise InvalidRequest("iterator", reason)
    found = db.row("iterator", {"name": op.name})
    if found and _is_same(_iterator(found), op):
        return _iterator(found)
    _check_chain(db, op)
    if found:
        raise IteratorExists(op.name)
    over, base = _resolve(db, op.log)
    if (count := db.value("iterator_count")) >= op.iterators_max:
        raise LimitExceeded("iterators_max", count + 1, op.iterators_max)
    wanted = {"log": op.log, "kind": op.kind, "function": op.function, "indexed": op.indexed}
    db.run("add_iterator", {"name": op.name, "created": now, "over": over, "base": base, **wanted})
    return _iterator(db.row("iterator", {"name": op.name}))


def _is_same(found: IteratorState, op: AddIterator) -> bool:
    return (found.log, found.kind, found.function, found.indexed) == (op.log, op.kind, op.function, op.indexed)


def _check_chain(db: Database, op: AddIterator) -> None:
    """Nothing may read its own output, nor stand at the end of too long a chain."""
    if db.row("log", {"name": op.log}) is not None:
        return
    above = [name for (name,) in db.rows("iterators_upward", {"name": op.log})]
    if op.name in (*above, op.log):
        raise IteratorCycle(op.name)
    if len(above) >= ITERATOR_CHAIN_MAX:
        raise LimitExceeded("iterator_chain_max", len(above) + 1, ITERATOR_CHAIN_MAX)


def _resolve(db: Database, name: str) -> tuple[Over, int]:
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


def delete_iterator(db: Database, op: DeleteIterator, now: int) -> bool:
    """Delete an iterator of a log with all that is made from it."""
    row = db.row("iterator", {"name": op.name})
    if row is None or row[2] != op.log:
        raise IteratorNotFound(op.name)
    _delete_below(db, op.name, Over.ITERATOR, now)
    _delete_iterator(db, row[0], now)
    return True


def _delete_below(db: Database, log: str, over: Over, now: int) -> None:
    for (number,) in db.rows("iterators_below", {"log": log, "over": over}):
        _delete_iterator(db, number, now)


def _delete_iterator(db: Database, number: int, now: int) -> None:
    outputs = db.row("iterator_place", {"id": number})[1]
    if outputs:
        enter(db, now, iterator_id=number, last=outputs)
    db.run("delete_iterator", {"id": number})


def enter(db: Database, now: int, **entry: Any) -> None:
    """Add to the ledger of erasures: of a context and stream, of an iterator, or of ranges of positions."""
    whole = {"context": None, "stream": None, "iterator_id": None, "ranges": None, "done": 0, "events": 0, **entry}
    db.run("add_erasure", {**whole, "requested": now})


def begin_anew(db: Database, log: str, over: Over, now: int) -> list[IteratorState]:
    """Let iterators over something, and those over them, begin anew under new numbers, and erase what they gave."""
    again: list[IteratorState] = []
    for (number,) in db.rows("iterators_below", {"log": log, "over": over}):
        before = _iterator(db.row("iterator_numbered", {"id": number}))
        _delete_iterator(db, number, now)
        db.run("add_iterator_again", asdict(before))
        again.append(_iterator(db.row("iterator", {"name": before.name})))
    return again


def write_output(db: Database, op: WriteOutput) -> int:
    """Add to an iterator's output if it is where its builder thinks."""
    place = db.row("iterator_place", {"id": op.iterator})
    if place is None or place[0] != op.source:
        raise OutputMoved(op.iterator)
    outputs: int = place[1]
    if op.items:
        data = pack(f"<{len(op.items)}I", *map(len, op.items)) + b"".join(op.items)
        _forget_state(db, op.iterator)
        row = {"id": op.iterator, "ordinal": outputs, "count": len(op.items), "data": data, "state": op.state}
        db.run("add_output", row)
    outputs += len(op.items)
    db.run("move_iterator", {"id": op.iterator, "source": op.next_source, "outputs": outputs})
    return outputs


def _forget_state(db: Database, iterator: int) -> None:
    """The accumulator is in the last row only."""
    last = db.row("last_output", {"id": iterator})
    if last is not None and last[2] is not None:
        guarded.put_state_away(db, *last)
