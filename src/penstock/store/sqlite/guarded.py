"""Rows that come, grow or go without a copy of any other row being left behind.

What is erased must be in no file of the store, so there must never be a copy of it that nobody knows of. SQLite makes
such copies. Rules, found by searching files byte by byte:

- When a row goes, or comes between others, or needs more room in its page, SQLite may move its neighbours to other
  pages. What they leave in the unused part of a page is not cleared, not even with `secure_delete`.
- A value that is overwritten with one of the same length stays where it is, and nothing is left of it.
- A row that is added at the end of its table moves nothing.
- A row that gets shorter moves nothing if all of it was in its page. One with overflow pages may need more room in its
  page when it gets shorter, because more of it is kept there then.

So while rows come and go, they and all that may be moved because of it are zeros: rows that go are overwritten before
they are deleted, those that come get their contents when they are in their place, and the neighbours on either side,
`GUARD_BYTES` of them, are blanked and restored. Of neighbours only as much as can be in a page is: overflow pages are
not moved.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock.store.sqlite.database import PAGE_BYTES, Database

GUARD_BYTES: Final = 4 * PAGE_BYTES
"""How much of a table SQLite may touch beside what is changed: a page and its siblings, and once more for certain."""
LOCAL_BYTES_MAX: Final = PAGE_BYTES - 128
"""A row of so many bytes of values has no overflow pages."""

ROW_BYTES: Final = 12
"""What a row takes in its page beside its values, at least."""


class Value(NamedTuple):
    """A value of a row, and its length in bytes."""

    column: str
    row: int
    size: int


class Table(NamedTuple):
    """A table that contents are in: its columns of bytes, and the queries for the rows before and after one."""

    name: str
    columns: tuple[str, ...]
    before: str
    after: str


RECORDS: Final = Table("records", ("data",), "records_before_row", "records_after_row")
OUTPUTS: Final = Table("outputs", ("data", "state"), "outputs_before_row", "outputs_after_row")
STAGED: Final = Table("staged", ("low", "keys", "data"), "staged_before_row", "staged_after_row")


class Together(NamedTuple):
    """Rows that lie together: which of them go, what lies between them and stays, and the last one that goes."""

    gone: list[int]
    kept: list[Value]
    size: int
    last: int


def together(
    table: Table, rows: Iterable[tuple[int | None, Sequence[int | None]]], rows_max: int, bytes_max: int
) -> Together:
    """The first of these rows, as far as not too many that stay lie between those that go.

    Each is given as what the caller calls it, None if it stays, and its number with the lengths of its values.
    """
    gone: list[int] = []
    kept: list[Value] = []
    between: list[Value] = []
    size = last = apart = 0
    for name, numbers in rows:
        values = values_of(table, numbers)
        if name is not None:
            kept += between
            size += apart + sum(value.size for value in values)
            gone.append(numbers[0] or 0)
            between, apart, last = [], 0, name
        else:
            between += values
            apart += movable(values)
        if len(gone) >= rows_max or size > bytes_max or apart > 2 * GUARD_BYTES:
            break
    return Together(gone, kept, size, last)


def moved(db: Database, table: Table, rows: Together) -> list[Value]:
    """What may be moved when rows that lie together go."""
    return [*rows.kept, *neighbours(db, table, rows.gone[0], rows.gone[-1])]


def neighbours(db: Database, table: Table, low: int, high: int) -> list[Value]:
    """What may be moved when rows between two numbers come, grow or go."""
    return [
        *_near(table, db.each(table.before, {"row": low})),
        *_near(table, db.each(table.after, {"row": high})),
    ]


def _near(table: Table, rows: Iterator[Sequence[int | None]]) -> Iterator[Value]:
    size = 0
    for row in rows:
        values = values_of(table, row)
        yield from values
        size += movable(values)
        if size > GUARD_BYTES:
            return


def values_of(table: Table, row: Sequence[int | None]) -> list[Value]:
    """The values of a row from its number and their lengths; those that are null or empty are none."""
    number, *sizes = row
    return [Value(column, number or 0, size) for column, size in zip(table.columns, sizes, strict=True) if size]


def movable(values: Iterable[Value]) -> int:
    """How many bytes in its page a row of these values has, more or less."""
    return ROW_BYTES + sum(min(value.size, PAGE_BYTES) for value in values)


@contextmanager
def blank(db: Database, table: Table, values: Iterable[Value]) -> Iterator[None]:
    """These values are zeros in here, and what they were after it."""
    before: list[tuple[str, int, bytes]] = []
    try:
        for column, row, size in values:
            zeros = bytes(min(size, PAGE_BYTES))
            before.append((column, row, db.overwrite(table.name, column, row, zeros)))
        yield
    finally:
        # If the database failed and has rolled back, they are what they were.
        for column, row, data in before if db.connection.in_transaction else ():
            db.overwrite(table.name, column, row, data)


def put_record(db: Database, position: int, size: int, data: bytes) -> None:
    """Put other data into the record at a position, which had `size` bytes."""
    if len(data) == size or len(data) < size <= LOCAL_BYTES_MAX:
        db.run("replace_record", {"data": data, "position": position})
        return
    with blank(db, RECORDS, neighbours(db, RECORDS, position, position)):
        db.run("blank_record", {"size": len(data), "position": position})
    db.overwrite(RECORDS.name, "data", position, data)


def put_state_away(db: Database, row: int, data_size: int, state_size: int) -> None:
    """Take the accumulator out of a row of output."""
    moved: list[Value] = []
    if data_size + state_size > LOCAL_BYTES_MAX:
        moved = [*values_of(OUTPUTS, (row, data_size, None)), *neighbours(db, OUTPUTS, row, row)]
    with blank(db, OUTPUTS, moved):
        db.run("forget_state", {"row": row})
