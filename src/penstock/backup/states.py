"""A store's state as a file: CBOR, with the names of its columns, so that it can be read without Penstock.

CBOR can say more than a store can hold: times, numbers of any length, lists that have themselves in them. So every
value is looked at when a state is read.
"""

from typing import Any, Final

import cbor2

from penstock.errors import BackupDamaged
from penstock.store.contract import STATE_TABLES, StoreIdentity, StoreState

Row = tuple[Any, ...]

TEXTS: Final = frozenset(("name", "subscriber", "context", "stream", "filter", "log", "over", "kind", "function"))
BYTES: Final = frozenset(("result",))
RANGES: Final = "ranges"
NULLABLE: Final = frozenset(
    (
        ("subscriptions", "last_ticks"),
        ("queues", "dead_after"),
        *(("erasures", name) for name in ("context", "stream", "finished")),
    )
)
"""Tables and columns whose values may be missing. What is in none of these is a number."""
NUMBER_BITS: Final = 64


def encode_state(state: StoreState) -> bytes:
    """The bytes of a state's file."""
    tables = {name: {"columns": STATE_TABLES[name], "rows": rows} for name, rows in state.tables.items()}
    document = {"store": state.identity.id, "timeline": state.identity.timeline, "head": state.head}
    return cbor2.dumps({**document, "sealed": state.sealed, "tables": tables})


def decode_state(place: str, path: str, data: bytes) -> StoreState:
    """A state from its file; raises BackupDamaged."""
    try:
        document = _decoded(data)
        tables = {name: _rows(name, document["tables"][name]) for name in STATE_TABLES}
        if not isinstance(document["store"], str) or not document["store"].isprintable():
            raise ValueError("its store has no name")
        for name in ("timeline", "head", "sealed"):
            if not _is_number(document[name]):
                raise ValueError(f"its {name} is no number")
        identity = StoreIdentity(document["store"], document["timeline"])
        return StoreState(identity, document["head"], document["sealed"], tables)
    except (ValueError, TypeError, KeyError) as error:
        raise BackupDamaged(place, path, f"cannot be read: {error}") from error


def _decoded(data: bytes) -> Any:
    """What CBOR says. Raises ValueError, whatever is wrong with it."""
    try:
        return cbor2.loads(data)
    except Exception as error:
        # Its tags make values of many kinds, and each has errors of its own.
        raise ValueError(f"it is not CBOR: {error}") from error


def _rows(name: str, table: dict[str, Any]) -> list[Row]:
    columns = tuple(table["columns"])
    if columns != STATE_TABLES[name]:
        raise ValueError(f"its table {name} has other columns than this Penstock knows")
    rows = table["rows"]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row of its table {name} is not as long as the others")
    return [tuple(_value(name, column, value) for column, value in zip(columns, row, strict=True)) for row in rows]


def _value(table: str, column: str, value: Any) -> Any:
    """A value as a store holds it. Raises ValueError if it holds none of this kind in a column."""
    if value is None and (table, column) in NULLABLE:
        return None
    if column == RANGES:
        ranges = tuple((first, last) for first, last in value)
        if all(_is_number(each) and each >= 0 for pair in ranges for each in pair):
            return ranges
    elif column in TEXTS or column in BYTES:
        if isinstance(value, str if column in TEXTS else bytes):
            return value
    elif _is_number(value):
        return value
    raise ValueError(f"the column {column} of its table {table} has a value of another kind")


def _is_number(value: Any) -> bool:
    return type(value) is int and -(1 << NUMBER_BITS - 1) <= value < 1 << NUMBER_BITS - 1
