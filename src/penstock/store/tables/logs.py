"""Logs, and the output of iterators. See `iterators` for these themselves."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from struct import pack, unpack_from
from typing import Final, Generic

from penstock.errors import LimitExceeded, LogNotFound, OutputMoved
from penstock.store.contract import (
    LOG_CONTEXT,
    LOGS_MAX,
    AddLog,
    DeleteLog,
    IteratorState,
    LogInfo,
    Over,
    ReadLimits,
    Store,
    WriteOutput,
)
from penstock.store.tables.hiding import enter
from penstock.store.tables.iterators import delete_below, iterator_of
from penstock.store.tables.ledger import Heads
from penstock.store.tables.queries import AnyQueries, Queries, Statements

LAST_LOG: Final = "last_log"
"""The key of the time (ticks) at which the last log was made."""


class Logs(Store, Generic[AnyQueries]):
    """The reading half of logs and iterators."""

    db: AnyQueries

    def log(self, name: str) -> LogInfo | None:
        row = self.db.row("log", {"name": name})
        return LogInfo(*row) if row else None

    def logs(self, after: str, limit: int) -> list[LogInfo]:
        return [LogInfo(*row) for row in self.db.rows("logs", {"after": after, "limit": limit})]

    def iterator(self, name: str) -> IteratorState | None:
        row = self.db.row("iterator", {"name": name})
        return iterator_of(row) if row else None

    def iterators(self, log: str | None, after: str, limit: int) -> list[IteratorState]:
        values = {"after": after, "limit": limit}
        if log is None:
            return [iterator_of(row) for row in self.db.rows("iterators", values)]
        return [iterator_of(row) for row in self.db.rows("iterators_of_log", {**values, "log": log})]

    def output_count(self, number: int) -> int | None:
        place = self.db.row("iterator_place", {"id": number})
        return place[1] if place else None

    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        items: list[bytes] = []
        size = 0
        with self.db.snapshot():
            for first, count, data in self._outputs(iterator, ordinal, limits):
                for item in _items(count, data, max(0, ordinal - first)):
                    if len(items) >= limits.events_max or (items and size + len(item) > limits.bytes_max):
                        return items
                    items.append(item)
                    size += len(item)
        return items

    @abstractmethod
    def _outputs(self, iterator: int, ordinal: int, limits: ReadLimits, /) -> Iterator[tuple[int, int, bytes]]:
        """Rows of output (first ordinal, count, items) from the one with an ordinal on, as many as a page may need."""


def _items(count: int, data: bytes, skipped: int) -> Iterator[bytes]:
    lengths = unpack_from(f"<{count}I", data)
    ends = list(accumulate(lengths, initial=4 * count))
    for index in range(skipped, count):
        yield data[ends[index] : ends[index + 1]]


class KnownLogs:
    """Which logs are there, remembered by who writes: every message that is added asks.

    Only what the database has said is remembered, and only until somebody else may have changed something. Whoever
    takes something back (a transaction that failed, a batch) says `forget`, because what was seen inside it may never
    have been.
    """

    def __init__(self, db: Queries, names_max: int) -> None:
        self._db = db
        self._names_max = names_max
        self._names: set[str] = set()

    def unknown(self, names: Iterable[str]) -> set[str]:
        """Those of which nothing is remembered."""
        return set(names) - self._names

    def add(self, names: Iterable[str]) -> None:
        """The database says that these are there."""
        if len(self._names) >= self._names_max:
            self._names.clear()
        self._names.update(names)

    def require(self, name: str) -> bool:
        """True, or LogNotFound."""
        if name not in self._names:
            if self._db.row("log", {"name": name}) is None:
                raise LogNotFound(name)
            self.add([name])
        return True

    def forget(self) -> None:
        """Ask the database again."""
        self._names.clear()


def add_log(db: Statements, op: AddLog, heads: Heads, now: int) -> bool:
    """Make a log that begins after whatever its stream holds already, unless it is there."""
    if db.row("log", {"name": op.name}) is not None:
        return False
    if (count := db.value("log_count")) >= LOGS_MAX:
        raise LimitExceeded("logs_max", count + 1, LOGS_MAX)
    base = heads.stream_head(LOG_CONTEXT, op.name)
    heads.flush()
    db.later("add_log", {"name": op.name, "created": _created(db, now), "base": base})
    return True


def _created(db: Statements, now: int) -> int:
    """A time for a new log that no log before it has, so that a log and its successor of the same name differ.

    Recorded times may stand still, and logs may be gone; so the store keeps the time of the last log that was made.
    """
    created = max(now, _last_log(db, now) + 1)
    _keep_last_log(db, created)
    return created


def _last_log(db: Statements, now: int) -> int:
    """When the last log was made, at the latest: older stores and restored ones have not kept it."""
    kept = db.value("meta", {"key": LAST_LOG})
    return max(now, db.value("last_log") or 0) if kept is None else int(kept)


def _keep_last_log(db: Statements, created: int) -> None:
    db.later("set_meta", {"key": LAST_LOG, "value": str(created)})


def delete_log(db: Statements, op: DeleteLog, heads: Heads, now: int) -> bool:
    """Delete a log with all that is made from it, and enter what that held in the ledger of erasures."""
    row = db.row("log", {"name": op.name})
    if row is None or op.created not in (None, row[1]):
        return False
    head = heads.stream_head(LOG_CONTEXT, op.name)
    heads.flush()
    if head > row[2]:
        enter(db, now, context=LOG_CONTEXT, stream=op.name, last=head, done=row[2], events=head - row[2])
    delete_below(db, op.name, Over.LOG, now)
    _keep_last_log(db, _last_log(db, now))
    db.later("delete_log", {"name": op.name})
    return True


def write_output(db: Statements, op: WriteOutput, forget_state: Callable[[int], object]) -> int:
    """Add to an iterator's output if it is where its builder thinks.

    The accumulator is in the last row only: `forget_state` takes it from the row that was the last one of an iterator.
    """
    place = db.row("iterator_place", {"id": op.iterator})
    if place is None or place[0] != op.source:
        raise OutputMoved(op.iterator)
    outputs: int = place[1]
    if op.items:
        data = pack(f"<{len(op.items)}I", *map(len, op.items)) + b"".join(op.items)
        forget_state(op.iterator)
        row = {"id": op.iterator, "ordinal": outputs, "count": len(op.items), "data": data, "state": op.state}
        db.later("add_output", row)
    outputs += len(op.items)
    db.later("move_iterator", {"id": op.iterator, "source": op.next_source, "outputs": outputs})
    return outputs
