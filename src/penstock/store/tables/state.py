"""All that a store holds beside its records, as backups and copies take it."""

from typing import Any, Final, Generic

from penstock.store.contract import STATE_TABLES, Store, StoreState
from penstock.store.tables.hiding import ranges_of
from penstock.store.tables.queries import AnyQueries, Queries

_RANGES: Final = STATE_TABLES["erasures"].index("ranges")
_INDEXED: Final = STATE_TABLES["iterators"].index("indexed")

Row = tuple[Any, ...]


class Stating(Store, Generic[AnyQueries]):
    """The part of a store that hands out its state."""

    db: AnyQueries

    def state(self) -> StoreState:
        with self.db.snapshot():
            tables = {name: table(self.db, name) for name in STATE_TABLES}
            return StoreState(self.identity(), self.head(), self.sealed(), tables)


def table(db: Queries, name: str) -> list[Row]:
    """The rows of one table, with its columns as in STATE_TABLES."""
    rows = db.rows(f"state_{name}")
    if name == "erasures":
        return [_replaced(row, _RANGES, ranges_of(row[_RANGES])) for row in rows]
    if name == "iterators":
        return [_replaced(row, _INDEXED, int(row[_INDEXED])) for row in rows]
    return rows


def _replaced(row: Row, place: int, value: Any) -> Row:
    return (*row[:place], value, *row[place + 1 :])
