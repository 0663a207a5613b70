"""Erasing what nobody shall read any more, in steps, until no file of the store has any of it.

From the moment that it is entered in the ledger nobody can read it: readers see tombstones in its place (`hiding`). A
step then puts tombstones into some records, or removes some rows of output; SQLite clears what it frees
(`secure_delete`), and `guarded` sees to it that no row that is moved leaves a copy behind. What is left after the last
step are old pages in the WAL. They are gone when it has been emptied, and only then is an erasure finished.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import apsw

from penstock.errors import DamagedRecord, StorageFailure
from penstock.store.contract import Erase
from penstock.store.record import Record
from penstock.store.sqlite import guarded
from penstock.store.sqlite.database import Database
from penstock.store.tables.erasing import Entry, Step
from penstock.store.tombstones import Gone

STEP_BYTES_MAX: Final = 1 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""


def erase(db: Database, op: Erase, now: int, emptied: Collection[int], unreadable: set[int]) -> int:
    """One step of the oldest erasures; how many are open after it. Those in `emptied` have left the WAL too.

    Records that are found to be `unreadable`, by where they begin, are added to these: the step fails then.
    """
    if emptied:
        db.run_many("finish_erasure", [(now, number) for number in emptied])
    return _Step(db, op.records_max, unreadable).carry_out()


def cleared(db: Database) -> list[int]:
    """The erasures of which only the WAL may hold something."""
    return [number for (number,) in db.rows("cleared_erasures")]


class _Step(Step[Database]):
    def __init__(self, db: Database, records_max: int, unreadable: set[int]) -> None:
        super().__init__(db, records_max, STEP_BYTES_MAX)
        self._unreadable = unreadable

    def _entomb_record(self, position: int, gone: Gone) -> int:
        try:
            if self._unreadable and self._start(position) in self._unreadable:
                raise DamagedRecord(position, "its pages are damaged, or some beside it")
            return super()._entomb_record(position, gone)
        except StorageFailure as error:
            # SQLite writes nothing more in a transaction that met a damaged page. The next step passes the record over.
            if isinstance(error.__cause__, apsw.CorruptError | UnicodeDecodeError):
                self._unreadable.add(self._start(position))
            raise

    def _start(self, position: int) -> int:
        return self._db.value("record_start", {"position": position}) or position

    def _put(self, record: Record, data: bytes) -> None:
        guarded.put_record(self._db, record.position, len(record.data), data)

    def _remove_output(self, iterator: int, entry: Entry) -> int:
        done = entry.done
        while not self.is_over:
            row = self._db.value("output_to_erase", {"id": iterator, "ordinal": done})
            if row is None:
                return entry.last
            rows = _together(self._db, row, iterator, self.records_left)
            with guarded.blank(self._db, guarded.OUTPUTS, _moved(self._db, rows)):
                self._db.run_many("blank_output", [(number,) for number in rows.gone])
                self._db.run_many("delete_output", [(number,) for number in rows.gone])
            self.spend(rows.size, len(rows.gone))
            done = rows.done
        return done


class _Rows(NamedTuple):
    """Rows of an output that lie together: which of them go, and what lies between them and stays."""

    gone: list[int]
    kept: list[guarded.Value]
    size: int
    done: int


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
