"""Erasing what nobody shall read any more, in steps.

From the moment that it is entered in the ledger nobody can read it: readers see tombstones in its place (`hidden`). A
step then puts tombstones into some records, or removes some rows of output. PostgreSQL keeps the old versions of rows
until VACUUM removes them, which `vacuum` does; only then is an erasure finished.

What that means: no statement can bring the contents back any more. Their bytes may stay in unused parts of the tables'
files until something is written there, and in the write-ahead log, in archives and in backups until those are gone.

A record is rewritten once for all that an erasure has in it: a sealed one may hold a thousand commits of a stream.
"""

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable
from operator import itemgetter
from struct import Struct
from typing import Any, Final, NamedTuple

from penstock.errors import DamagedRecord
from penstock.store.contract import Erase
from penstock.store.postgres.arrays import Numbers
from penstock.store.postgres.database import Database
from penstock.store.record import Record
from penstock.store.tombstones import Gone, entomb, is_hit

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""
COMMITS_PER_QUERY: Final = 256
RANGE: Final = Struct("<QQ")

Ranges = tuple[tuple[int, int], ...]


def enter(db: Database, now: int, **entry: Any) -> None:
    """Add to the ledger of erasures: of a context and stream, of an iterator, or of ranges of positions."""
    whole = {"context": None, "stream": None, "iterator_id": None, "ranges": None, "done": 0, "events": 0, **entry}
    db.later("add_erasure", {**whole, "requested": now})


def ranges_of(data: bytes | None) -> Ranges:
    """Ranges of positions as they are stored."""
    return tuple(RANGE.iter_unpack(data or b""))


def hidden(db: Database, context: str | None) -> Gone:
    """What records of a context, or of all, may still hold although nobody shall see it."""
    streams = {(context, stream): last for context, stream, last in db.rows("hidden", {"context": context})}
    return Gone(streams, _hidden_ranges(db))


def hidden_of_stream(db: Database, context: str, stream: str) -> Gone:
    """The same for one stream."""
    last = db.value("hidden_of_stream", {"context": context, "stream": stream})
    return Gone({} if last is None else {(context, stream): last}, _hidden_ranges(db))


def _hidden_ranges(db: Database) -> Ranges:
    found = [(ranges_of(data), done) for done, data in db.rows("hidden_ranges")]
    if len(found) == 1:
        return _after(*found[0])
    return _joined(sorted(each for ranges, done in found for each in _after(ranges, done)))


def _after(ranges: Ranges, done: int) -> Ranges:
    """The ranges that do not end before or at a position."""
    return ranges[bisect_left(ranges, done + 1, key=itemgetter(1)) :]


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges that may overlap, in order, as ranges that do not."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)


# --- steps ----------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """An open entry of the ledger."""

    id: int
    context: str | None
    stream: str | None
    iterator: int | None
    ranges: bytes | None
    last: int
    done: int

    @property
    def what(self) -> str:
        """What it erases, for people."""
        return f"{self.context}/{self.stream}" if self.context else f"{len(ranges_of(self.ranges))} ranges of positions"


def erase(db: Database, op: Erase, now: int, emptied: Collection[int]) -> int:
    """One step of the oldest erasures; how many are open after it. Of those in `emptied` no row is left either."""
    if emptied:
        db.later("finish_erasures", {"ids": Numbers(emptied), "now": now})
    step = _Step(db, op.records_max)
    for entry in map(_Entry._make, db.rows("unerased", {"limit": op.records_max})):
        if step.is_over:
            break
        step.damaged = 0
        done = _advance(db, step, entry)
        db.later("advance_erasure", {"id": entry.id, "done": done, "damaged": step.damaged})
    if step.rewritten:
        db.later("rewritten")
    return int(db.value("open_erasures"))


def _advance(db: Database, step: "_Step", entry: _Entry) -> int:
    """Erase some of an entry; up to where that is done."""
    if entry.iterator is not None:
        return _remove_output(db, step, entry.iterator, entry)
    return _entomb_stream(db, step, entry) if entry.ranges is None else _entomb_ranges(step, entry)


class _Step:
    """What may still be rewritten in a step, and what was."""

    def __init__(self, db: Database, records_max: int) -> None:
        self._db = db
        self.records_left = records_max
        self._bytes_left = STEP_BYTES_MAX
        self.damaged = 0
        self.rewritten = 0

    @property
    def is_over(self) -> bool:
        """Whether it is enough for now."""
        return self.records_left <= 0 or self._bytes_left < 0

    def spend(self, size: int, rows: int = 1) -> None:
        """Rows of this size were rewritten."""
        self.records_left -= rows
        self._bytes_left -= size

    def rewrite(self, position: int, gone: Gone, what: str) -> int:
        """Put tombstones into the record that holds a position; its last position. A damaged one is passed over."""
        first, data = self._db.row("record_at", {"position": position}) or (position, None)
        try:
            record = Record(data, first)
            if record.last < position:
                raise DamagedRecord(position, "it is missing")
            self._entomb(record, gone)
        except DamagedRecord as error:
            # Nobody can read it either. If all waited for it, nothing would ever be erased again.
            log.warning("what was deleted of %s cannot be erased there: %s", what, error)
            self.damaged += 1
            self.spend(0)
            return self._before_next(position)
        return record.last

    def _entomb(self, record: Record, gone: Gone) -> None:
        if is_hit(record, gone):
            self._db.later("replace_record", {"position": record.position, "data": entomb(record, gone)})
            self.rewritten += 1
        self.spend(len(record.data))

    def _before_next(self, position: int) -> int:
        following: int | None = self._db.value("next_record_start", {"position": position})
        return position if following is None else following - 1


def _entomb_stream(db: Database, step: _Step, entry: _Entry) -> int:
    """Put tombstones into records of a stream; up to which sequence that is done."""
    context, stream, done = entry.context or "", entry.stream or "", entry.done
    stream_id = db.value("find_stream", {"context": context, "stream": stream})
    gone = Gone({(context, stream): entry.last})
    reached = 0
    while done < entry.last:
        values = {"stream_id": stream_id, "sequence": done + 1, "limit": COMMITS_PER_QUERY}
        commits = db.rows("commits_forward", values)
        for end, position in commits:
            if position > reached:
                if step.is_over or done >= entry.last:
                    return done
                reached = step.rewrite(position, gone, entry.what)
            done = end
        if not commits:
            return entry.last
    return done


def _entomb_ranges(step: _Step, entry: _Entry) -> int:
    """Put tombstones at positions; up to which of them that is done."""
    ranges, done = _after(ranges_of(entry.ranges), entry.done), entry.done
    gone = Gone({}, ranges)
    for first, last in ranges:
        done = max(done, first - 1)
        while done < last:
            if step.is_over:
                return done
            done = step.rewrite(done + 1, gone, entry.what)
    return max(done, entry.last)


def _remove_output(db: Database, step: _Step, iterator: int, entry: _Entry) -> int:
    """Remove rows of an iterator's output; up to which item that is done."""
    values = {"id": iterator, "ordinal": entry.done, "limit": step.records_left, "bytes_max": STEP_BYTES_MAX}
    rows = db.rows("remove_outputs", values)
    step.spend(sum(size for _, size in rows), len(rows))
    db.has_sent = True
    return max(ordinal for ordinal, _ in rows) + 1 if rows else entry.last
