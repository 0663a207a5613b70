"""Erasing what nobody shall read any more, in steps, until no file of the store has any of it.

From the moment that it is entered in the ledger nobody can read it: readers see tombstones in its place (`hidden`,
`shown`). A step then puts tombstones into some records, or removes some rows of output; SQLite clears what it frees
(`secure_delete`), and `guarded` sees to it that no row that is moved leaves a copy behind. What is left after the last
step are old pages in the WAL. They are gone when it has been emptied, and only then is an erasure finished.

A record is rewritten once for all that an erasure has in it: a sealed one may hold a thousand commits of a stream.
"""

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Final, NamedTuple

import apsw

from penstock.errors import DamagedRecord, StorageFailure
from penstock.store.contract import Erase
from penstock.store.record import Record
from penstock.store.sqlite import guarded
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.state import RANGE
from penstock.store.tombstones import Gone, shown

__all__ = ["STEP_BYTES_MAX", "cleared", "erase", "hidden", "hidden_of_stream", "ranges_of", "shown"]

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 1 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""
COMMITS_PER_QUERY: Final = 256

Ranges = tuple[tuple[int, int], ...]


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


def erase(db: Database, op: Erase, now: int, emptied: Collection[int], unreadable: set[int]) -> int:
    """One step of the oldest erasures; how many are open after it. Those in `emptied` have left the WAL too.

    Records that are found to be `unreadable`, by where they begin, are added to these: the step fails then.
    """
    if emptied:
        db.run_many("finish_erasure", [(now, number) for number in emptied])
    step = _Step(db, op.records_max, unreadable)
    for entry in map(_Entry._make, db.rows("unerased", {"limit": op.records_max})):
        if step.is_over:
            break
        step.damaged = 0
        done = _advance(db, step, entry)
        db.run("advance_erasure", {"id": entry.id, "done": done, "damaged": step.damaged})
    if step.rewritten:
        db.run("rewritten")
    return int(db.value("open_erasures"))


def _advance(db: Database, step: "_Step", entry: _Entry) -> int:
    """Erase some of an entry; up to where that is done."""
    if entry.iterator is not None:
        return _remove_output(db, step, entry.iterator, entry)
    return _entomb_stream(db, step, entry) if entry.ranges is None else _entomb_ranges(step, entry)


def cleared(db: Database) -> list[int]:
    """The erasures of which only the WAL may hold something."""
    return [number for (number,) in db.rows("cleared_erasures")]


class _Step:
    """What may still be rewritten in a step, and what was."""

    def __init__(self, db: Database, records_max: int, unreadable: set[int]) -> None:
        self._db = db
        self._unreadable = unreadable
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
        try:
            return self._rewritten(position, gone)
        except DamagedRecord as error:
            # Nobody can read it either. If all waited for it, nothing would ever be erased again.
            log.warning("what was deleted of %s cannot be erased there: %s", what, error)
            self.damaged += 1
            self.spend(0)
            return self._before_next(position)
        except StorageFailure as error:
            # SQLite writes nothing more in a transaction that met a damaged page. The next step passes the record over.
            if isinstance(error.__cause__, apsw.CorruptError | UnicodeDecodeError):
                self._unreadable.add(self._start(position))
            raise

    def _rewritten(self, position: int, gone: Gone) -> int:
        if self._unreadable and self._start(position) in self._unreadable:
            raise DamagedRecord(position, "its pages are damaged, or some beside it")
        first, data = self._db.row("record_at", {"position": position}) or (position, None)
        record = Record(data, first)
        if record.last < position:
            raise DamagedRecord(position, "it is missing")
        self._entomb(record, gone)
        return record.last

    def _start(self, position: int) -> int:
        return self._db.value("record_start", {"position": position}) or position

    def _entomb(self, record: Record, gone: Gone) -> None:
        changed = shown(record, gone)
        if changed is not record:
            guarded.put_record(self._db, record.position, len(record.data), changed.data)
            self.rewritten += 1
        self.spend(len(record.data))

    def _before_next(self, position: int) -> int:
        following: int | None = self._db.value("next_record_start", {"position": position})
        return position if following is None else following - 1


def _entomb_stream(db: Database, step: _Step, entry: _Entry) -> int:
    """Put tombstones into records of a stream; up to which sequence that is done."""
    context, stream, done = entry.context or "", entry.stream or "", entry.done
    stream_id = db.value("stream_id", {"context_id": db.value("context_id", {"name": context}), "name": stream})
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


# --- output ---------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Rows of an output that lie together: which of them go, and what lies between them and stays."""

    gone: list[int]
    kept: list[guarded.Value]
    size: int
    done: int


def _remove_output(db: Database, step: _Step, iterator: int, entry: _Entry) -> int:
    """Remove rows of an iterator's output; up to which item that is done."""
    done = entry.done
    while not step.is_over:
        row = db.value("output_to_erase", {"id": iterator, "ordinal": done})
        if row is None:
            return entry.last
        rows = _together(db, row, iterator, step.records_left)
        with guarded.blank(db, guarded.OUTPUTS, _moved(db, rows)):
            db.run_many("blank_output", [(number,) for number in rows.gone])
            db.run_many("delete_output", [(number,) for number in rows.gone])
        step.spend(rows.size, len(rows.gone))
        done = rows.done
    return done


def _together(db: Database, row: int, iterator: int, rows_max: int) -> _Rows:
    """Rows of an output from one on, as far as not too many of others lie between them."""
    gone: list[int] = []
    kept: list[guarded.Value] = []
    between: list[guarded.Value] = []
    size = done = apart = 0
    for owner, ordinal, *numbers in db.each("outputs_from_row", {"row": row}):
        values = guarded.values_of(guarded.OUTPUTS, numbers)
        if owner == iterator:
            kept += between
            size += apart + sum(value.size for value in values)
            gone.append(numbers[0])
            between, apart, done = [], 0, ordinal + 1
        else:
            between += values
            apart += guarded.movable(values)
        if len(gone) >= rows_max or size > STEP_BYTES_MAX or apart > 2 * guarded.GUARD_BYTES:
            break
    return _Rows(gone, kept, size, done)


def _moved(db: Database, rows: _Rows) -> list[guarded.Value]:
    return [*rows.kept, *guarded.neighbours(db, guarded.OUTPUTS, rows.gone[0], rows.gone[-1])]
