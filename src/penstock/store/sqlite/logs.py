"""Logs, iterators and their output, and the erasure of what a deleted log held."""

from collections.abc import Iterator
from itertools import accumulate
from struct import pack, unpack_from

from penstock.errors import IteratorExists, IteratorNotFound, OutputMoved
from penstock.store.contract import (
    LOG_CONTEXT,
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    Erase,
    IteratorState,
    LogInfo,
    ReadLimits,
    Store,
    WriteOutput,
)
from penstock.store.record import Record
from penstock.store.sqlite.appender import Appender
from penstock.store.sqlite.database import Database
from penstock.store.tombstones import entomb


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

    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        items: list[bytes] = []
        size = 0
        with self.db.snapshot():
            for first, count, data in self.db.each("outputs_from", {"id": iterator, "ordinal": ordinal}):
                for item in list(_items(count, data))[max(0, ordinal - first) :]:
                    if len(items) >= limits.events_max or (items and size + len(item) > limits.bytes_max):
                        return items
                    items.append(item)
                    size += len(item)
        return items


def _iterator(row: tuple[int, str, str, str, str, int, int, int, int, bytes | None]) -> IteratorState:
    return IteratorState(*row[:5], bool(row[5]), *row[6:])


def _items(count: int, data: bytes) -> Iterator[bytes]:
    lengths = unpack_from(f"<{count}I", data)
    start = 4 * count
    for length, end in zip(lengths, accumulate(lengths, initial=start), strict=False):
        yield data[end : end + length]


def add_log(db: Database, op: AddLog, appender: Appender, now: int) -> bool:
    """Make a log that begins after whatever its stream holds already."""
    base = appender.stream_head(LOG_CONTEXT, op.name)
    return bool(db.run("add_log", {"name": op.name, "created": now, "base": base}))


def delete_log(db: Database, op: DeleteLog, appender: Appender, now: int) -> bool:
    """Delete a log, and enter its events in the ledger of erasures."""
    row = db.row("log", {"name": op.name})
    if row is None:
        return False
    head = appender.stream_head(LOG_CONTEXT, op.name)
    if head > row[2]:
        place = {"context": LOG_CONTEXT, "stream": op.name, "last": head, "done": row[2], "requested": now}
        db.run("add_erasure", place)
    for iterator in db.rows("iterators_of_log", {"log": op.name, "after": "", "limit": -1}):
        _delete_iterator(db, iterator[0])
    db.run("delete_log", {"name": op.name})
    return True


def add_iterator(db: Database, op: AddIterator, now: int) -> IteratorState:
    """Make an iterator unless the same is there."""
    wanted = {"log": op.log, "kind": op.kind, "function": op.function, "indexed": op.indexed}
    db.run("add_iterator", {"name": op.name, "created": now, **wanted})
    found = _iterator(db.row("iterator", {"name": op.name}))
    if any(getattr(found, field) != value for field, value in wanted.items()):
        raise IteratorExists(op.name)
    return found


def delete_iterator(db: Database, op: DeleteIterator) -> bool:
    """Delete an iterator of a log, with its output."""
    row = db.row("iterator", {"name": op.name})
    if row is None or row[2] != op.log:
        raise IteratorNotFound(op.name)
    _delete_iterator(db, row[0])
    return True


def _delete_iterator(db: Database, number: int) -> None:
    db.run("delete_outputs", {"id": number})
    db.run("delete_iterator", {"id": number})


def write_output(db: Database, op: WriteOutput) -> int:
    """Add to an iterator's output if it is where its builder thinks."""
    place = db.row("iterator_place", {"id": op.iterator})
    if place is None or place[0] != op.source:
        raise OutputMoved(op.iterator)
    outputs: int = place[1]
    if op.items:
        data = pack(f"<{len(op.items)}I", *map(len, op.items)) + b"".join(op.items)
        db.run("add_output", {"id": op.iterator, "ordinal": outputs, "count": len(op.items), "data": data})
    outputs += len(op.items)
    state = {"id": op.iterator, "source": op.next_source, "outputs": outputs, "state": op.state}
    db.run("move_iterator", state)
    return outputs


def erase(db: Database, op: Erase, appender: Appender, now: int) -> int:
    """Turn records of the oldest open erasure into tombstones; how many erasures are open after that."""
    appender.flush()
    row = db.row("open_erasure")
    if row is None:
        return 0
    number, context, stream, last, done = row
    stream_id = db.value("stream_id", {"context_id": db.value("context_id", {"name": context}), "name": stream})
    commits = db.rows("commits_forward", {"stream_id": stream_id, "sequence": done + 1, "limit": op.records_max})
    for end, position in commits:
        if done >= last:
            break
        first, data = db.row("record_at", {"position": position})
        db.run("replace_record", {"data": entomb(Record(data, first), context, stream, last), "position": first})
        done = end
    finished = now if done >= last or not commits else None
    db.run("advance_erasure", {"id": number, "done": done, "finished": finished})
    return int(db.value("open_erasures"))
