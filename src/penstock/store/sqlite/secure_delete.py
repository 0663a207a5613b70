"""Rows are added, rewritten and removed without leaving a copy of any row in the file.

Erased contents must be in no file of the store, so there must be no unknown copy of them. SQLite makes such copies.
These rules come from searching files byte by byte:

- When a row is removed, inserted between others, or needs more room in its page, SQLite may move its neighbours to
  other pages. It does not clear what they leave in the unused part of a page, not even with `secure_delete`.
- A value that is overwritten with one of the same length stays where it is and leaves no copy.
- A row that is added at the end of its table moves nothing.
- A row that gets shorter moves nothing if all of it was in its page. A row with overflow pages may need more room in
  its page when it gets shorter, because SQLite then keeps more of it there.

So while rows are added and removed, these rows and all neighbours that SQLite may move are zeros. Rows to remove are
overwritten first. New rows get their contents when they are in their place. The neighbours on both sides, `GUARD_BYTES`
of them, are blanked and restored. Only the part of a neighbour that can be in a page is blanked, because SQLite does
not move overflow pages.

After the last step of an erasure only old pages in the WAL still hold the contents. An erasure is finished when the WAL
has been emptied after that.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import apsw

from penstock.errors import DamagedRecord, StorageFailure
from penstock.store.contract import Seal, Stage
from penstock.store.erasure_filter import Hidden
from penstock.store.record import Record
from penstock.store.sqlite.database import PAGE_BYTES, SqliteDatabase
from penstock.store.stages import FLUSH_BYTES, Unit, low_of
from penstock.store.tables.erasures import ErasureStep, LedgerEntry
from penstock.store.tables.stages import Stages

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 1 << 20
"""A step of an erasure ends when it has rewritten so much, because all commits wait for it."""
ROWS_TOGETHER_MAX: Final = 4096
"""Units that are removed together."""
GUARD_BYTES: Final = 4 * PAGE_BYTES
"""How much of a table SQLite may touch next to a change: a page and its siblings, twice as much to be safe."""
LOCAL_BYTES_MAX: Final = PAGE_BYTES - 128
"""A row of so many bytes of values has no overflow pages."""
ROW_BYTES: Final = 12
"""At least so many bytes of a row in its page are not values."""


class Value(NamedTuple):
    """A value of a row, and its length in bytes."""

    column: str
    row: int
    size: int


class Table(NamedTuple):
    """A table with contents: its columns of bytes, and the queries for the rows before and after one."""

    name: str
    columns: tuple[str, ...]
    before: str
    after: str


RECORDS: Final = Table("records", ("data",), "records_before_row", "records_after_row")
OUTPUTS: Final = Table("outputs", ("data", "state"), "outputs_before_row", "outputs_after_row")
STAGED: Final = Table("staged", ("low", "keys", "data"), "staged_before_row", "staged_after_row")


class RowGroup(NamedTuple):
    """Rows to remove together, the values between them that stay, and the caller's name of the last row to remove."""

    removed: list[int]
    kept: list[Value]
    size: int
    last: int


def first_group(
    table: Table, rows: Iterable[tuple[int | None, Sequence[int | None]]], rows_max: int, bytes_max: int
) -> RowGroup:
    """The first rows to remove together: not too many, and without too much between them.

    Each row is the caller's name of it, None if it stays, and its number with the lengths of its values.
    """
    removed: list[int] = []
    kept: list[Value] = []
    between: list[Value] = []
    size = last = gap = 0
    for name, numbers in rows:
        values = values_of(table, numbers)
        if name is not None:
            kept += between
            size += gap + sum(value.size for value in values)
            removed.append(numbers[0] or 0)
            between, gap, last = [], 0, name
        else:
            between += values
            gap += movable(values)
        if len(removed) >= rows_max or size > bytes_max or gap > 2 * GUARD_BYTES:
            break
    return RowGroup(removed, kept, size, last)


@contextmanager
def guarded(db: SqliteDatabase, table: Table, rows: RowGroup) -> Iterator[None]:
    """Blank everything that SQLite may move while a group of rows is removed."""
    with blank(db, table, [*rows.kept, *neighbours(db, table, rows.removed[0], rows.removed[-1])]):
        yield


def neighbours(db: SqliteDatabase, table: Table, low: int, high: int) -> list[Value]:
    """The values that SQLite may move when rows between two numbers are added, removed or grow."""
    found: list[Value] = []
    for query, row in ((table.before, low), (table.after, high)):
        size = 0
        for numbers in db.each(query, {"row": row}):
            values = values_of(table, numbers)
            found += values
            size += movable(values)
            if size > GUARD_BYTES:
                break
    return found


def values_of(table: Table, row: Sequence[int | None]) -> list[Value]:
    """The values of a row from its number and their lengths, without null and empty ones."""
    number, *sizes = row
    return [Value(column, number or 0, size) for column, size in zip(table.columns, sizes, strict=True) if size]


def movable(values: Iterable[Value]) -> int:
    """About how many bytes a row of these values has in its page."""
    return ROW_BYTES + sum(min(value.size, PAGE_BYTES) for value in values)


@contextmanager
def blank(db: SqliteDatabase, table: Table, values: Iterable[Value]) -> Iterator[None]:
    """These values are zeros inside, and restored afterwards."""
    before: list[tuple[str, int, bytes]] = []
    try:
        for column, row, size in values:
            zeros = bytes(min(size, PAGE_BYTES))
            before.append((column, row, db.overwrite(table.name, column, row, zeros)))
        yield
    finally:
        # If the database failed, its rollback has restored them.
        for column, row, data in before if db.connection.in_transaction else ():
            db.overwrite(table.name, column, row, data)


class SqliteErasureStep(ErasureStep):
    """A step of the oldest erasures.

    `unreadable` are the first positions of records whose pages are damaged. SQLite writes nothing more in a transaction
    that met a damaged page, so the step adds the record and fails, and the next step skips it.
    """

    _db: SqliteDatabase

    def __init__(self, db: SqliteDatabase, records_max: int, unreadable: set[int]) -> None:
        super().__init__(db, records_max, STEP_BYTES_MAX)
        self._unreadable = unreadable

    def _erase_record(self, position: int, hidden: Hidden) -> int:
        try:
            if self._unreadable and self._start(position) in self._unreadable:
                raise DamagedRecord(position, "its pages or pages next to them are damaged")
            return super()._erase_record(position, hidden)
        except StorageFailure as error:
            if isinstance(error.__cause__, apsw.CorruptError | UnicodeDecodeError):
                self._unreadable.add(self._start(position))
            raise

    def _start(self, position: int) -> int:
        return self._db.value("record_start", {"position": position}) or position

    def _replace(self, record: Record, data: bytes) -> None:
        db, position, size = self._db, record.position, len(record.data)
        if len(data) == size or len(data) < size <= LOCAL_BYTES_MAX:
            db.later("replace_record", {"data": data, "position": position})
            return
        with blank(db, RECORDS, neighbours(db, RECORDS, position, position)):
            db.later("blank_record", {"size": len(data), "position": position})
        db.overwrite(RECORDS.name, "data", position, data)

    def _remove_output(self, iterator: int, entry: LedgerEntry) -> int:
        done = entry.done
        while not self.is_over:
            row = self._db.value("output_to_erase", {"id": iterator, "ordinal": done})
            if row is None:
                return entry.last
            rows = first_group(OUTPUTS, self._outputs_from(row, iterator), self.records_left, STEP_BYTES_MAX)
            with guarded(self._db, OUTPUTS, rows):
                self._db.run_many("blank_output", [(number,) for number in rows.removed])
                self._db.run_many("delete_output", [(number,) for number in rows.removed])
            self.spend(rows.size, len(rows.removed))
            done = rows.last + 1
        return done

    def _outputs_from(self, row: int, iterator: int) -> Iterator[tuple[int | None, Sequence[int | None]]]:
        """Rows of output from one on; the ordinal is the name of an iterator's rows."""
        for owner, ordinal, *numbers in self._db.each("outputs_from_row", {"row": row}):
            yield ordinal if owner == iterator else None, numbers


def replace_records(db: SqliteDatabase, op: Seal, row: dict[str, Any], unsealable: set[int]) -> None:
    """Replace the records of a seal by the merged one.

    If a page is damaged, it raises and adds the first position to `unsealable`. The next attempt does nothing.
    """
    if op.first in unsealable:
        return
    try:
        with blank(db, RECORDS, neighbours(db, RECORDS, op.first, op.last)):
            db.later("blank_records", {"first": op.first, "last": op.last})
            db.later("delete_records", {"first": op.first, "last": op.last})
            db.later("add_blank_record", {**row, "size": len(row["data"])})
    except StorageFailure as error:
        if isinstance(error.__cause__, apsw.CorruptError | UnicodeDecodeError):
            # A page next to the records is damaged, and SQLite writes nothing more in this transaction. The records
            # themselves are good.
            log.warning("positions %d to %d are not sealed: %s", op.first, op.last, error.reason)
            unsealable.add(op.first)
        raise
    db.overwrite(RECORDS.name, "data", op.first, row["data"])


class SqliteStages(Stages):
    """Stages on SQLite. Tasks of several jobs stage at the same time, so the rows of a stage lie between others."""

    _db: SqliteDatabase

    def _add(self, number: int, op: Stage) -> None:
        rows = [
            (number, at, unit.context, unit.stream, unit.expected, low_of(unit), unit.keys, unit.data)
            for at, unit in enumerate(op.units, op.number)
        ]
        self._db.run_many("add_staged", rows)

    def _units(self, ids: list[int]) -> dict[int, Unit]:
        return {number: Unit(*self._db.row("staged_unit", {"id": number})) for number in ids}

    def _remove(self, ids: Collection[int]) -> None:
        stages = frozenset(ids)
        rows = sorted(row for number in stages for (row,) in self._db.rows("units_of_stage", {"id": number}))
        done = 0
        while done < len(rows):
            found = first_group(STAGED, self._staged_from(rows[done], stages), ROWS_TOGETHER_MAX, FLUSH_BYTES)
            with guarded(self._db, STAGED, found):
                self._db.run_many("blank_staged", [(number,) for number in found.removed])
                self._db.run_many("delete_staged", [(number,) for number in found.removed])
            done += len(found.removed)
        self._db.run_many("delete_stage", [(number,) for number in stages])

    def _staged_from(self, row: int, stages: frozenset[int]) -> Iterator[tuple[int | None, Sequence[int]]]:
        for stage, *numbers in self._db.each("staged_from_row", {"row": row}):
            yield numbers[0] if stage in stages else None, numbers

    def forget_state(self, iterator: int) -> None:
        last = self._db.row("last_output", {"id": iterator})
        if last is None or last[2] is None:
            return
        row, data_size, state_size = last
        moved: list[Value] = []
        if data_size + state_size > LOCAL_BYTES_MAX:
            moved = [*values_of(OUTPUTS, (row, data_size, None)), *neighbours(self._db, OUTPUTS, row, row)]
        with blank(self._db, OUTPUTS, moved):
            self._db.later("forget_state", {"row": row})
