"""All that a store on SQLite holds beside its records, as backups and copies take it."""

from typing import Any, Final

from penstock.store.contract import STATE_TABLES, Store, StoreState
from penstock.store.sqlite.database import Database
from penstock.store.tables.hiding import ranges_of

_RANGES: Final = STATE_TABLES["erasures"].index("ranges")

Row = tuple[Any, ...]


class Stating(Store):
    """The part of a store on SQLite that hands out its state."""

    db: Database

    def state(self) -> StoreState:
        with self.db.snapshot():
            tables = {name: table(self.db, name) for name in STATE_TABLES}
            sealed = int(self.db.value("meta", {"key": "sealed"}))
            return StoreState(self.identity(), self.head(), sealed, tables)


def table(db: Database, name: str) -> list[Row]:
    """The rows of one table, with its columns as in STATE_TABLES."""
    rows = db.rows(f"state_{name}")
    return [_with_ranges(row) for row in rows] if name == "erasures" else rows


def _with_ranges(row: Row) -> Row:
    ranges = ranges_of(row[_RANGES])
    return (*row[:_RANGES], ranges, *row[_RANGES + 1 :])
