"""Erasing what nobody shall read any more, in steps, until no file of the store has any of it.

From the moment that it is entered in the ledger nobody can read it: readers see tombstones in its place (`hiding`). A
step then puts tombstones into some records, or removes some rows of output; SQLite clears what it frees
(`secure_delete`), and `guarded` sees to it that no row that is moved leaves a copy behind. What is left after the last
step are old pages in the WAL. They are gone when it has been emptied, and only then is an erasure finished.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

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
            rows = guarded.together(guarded.OUTPUTS, self._from(row, iterator), self.records_left, STEP_BYTES_MAX)
            with guarded.blank(self._db, guarded.OUTPUTS, guarded.moved(self._db, guarded.OUTPUTS, rows)):
                self._db.run_many("blank_output", [(number,) for number in rows.gone])
                self._db.run_many("delete_output", [(number,) for number in rows.gone])
            self.spend(rows.size, len(rows.gone))
            done = rows.last + 1
        return done

    def _from(self, row: int, iterator: int) -> Iterator[tuple[int | None, Sequence[int | None]]]:
        """Rows of output from one on; those of an iterator by their ordinals."""
        for owner, ordinal, *numbers in self._db.each("outputs_from_row", {"row": row}):
            yield ordinal if owner == iterator else None, numbers
