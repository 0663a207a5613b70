"""A store's state as a file: CBOR, with the names of its columns, so that it can be read without Penstock."""

from typing import Any

import cbor2

from penstock.errors import BackupDamaged
from penstock.store.contract import STATE_TABLES, StoreIdentity, StoreState

Row = tuple[Any, ...]


def encode_state(state: StoreState) -> bytes:
    """The bytes of a state's file."""
    tables = {name: {"columns": STATE_TABLES[name], "rows": rows} for name, rows in state.tables.items()}
    document = {"store": state.identity.id, "timeline": state.identity.timeline, "head": state.head}
    return cbor2.dumps({**document, "sealed": state.sealed, "tables": tables})


def decode_state(place: str, path: str, data: bytes) -> StoreState:
    """A state from its file; raises BackupDamaged."""
    try:
        document = cbor2.loads(data)
        tables = {name: _rows(name, document["tables"][name]) for name in STATE_TABLES}
        identity = StoreIdentity(document["store"], document["timeline"])
        return StoreState(identity, document["head"], document["sealed"], tables)
    except (cbor2.CBORDecodeError, ValueError, TypeError, KeyError) as error:
        raise BackupDamaged(place, path, f"cannot be read: {error}") from error


def _rows(name: str, table: dict[str, Any]) -> list[Row]:
    columns = tuple(table["columns"])
    if columns != STATE_TABLES[name]:
        raise ValueError(f"its table {name} has other columns than this Penstock knows")
    rows = table["rows"]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row of its table {name} is not as long as the others")
    return [_erasure(row) for row in rows] if name == "erasures" else list(map(tuple, rows))


def _erasure(row: list[Any]) -> Row:
    columns = STATE_TABLES["erasures"]
    return tuple(
        tuple(map(tuple, value)) if column == "ranges" else value for column, value in zip(columns, row, strict=True)
    )
