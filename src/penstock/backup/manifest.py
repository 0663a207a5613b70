"""Manifests and states: the two files that a backup adds to the records.

A manifest lists every file of a backup with its size and checksum. The writer adds it last: a backup without a manifest
does not exist. Each manifest names the checksum of the one before it and carries its own, so no byte of it can change
unnoticed. But anyone who can write to the place can compute a checksum. So the reader checks every path that a manifest
names before it uses it.

A state is CBOR with the names of its columns, so that other programs can read it. CBOR can hold more than a store can:
times, numbers of any length, lists that contain themselves. So the reader checks every value.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

import cbor2

from penstock.errors import BackupDamaged, InvalidRequest, PlaceRefused
from penstock.files import flaw_of, made_of, parsed
from penstock.model import Limits, RetryPolicy, Selection
from penstock.store.contract import ACCESS_TABLES, STATE_TABLES, StoreIdentity, StoreState, is_order

FORMAT_VERSION: Final = 1
"""Version of the layout and of all files except the records, which have their own versions."""
NUMBER_BITS: Final = 64

_HISTORY: Final = re.compile(r"history/\d{20}-\d{20}\.records", re.ASCII)
_TEXTS: Final = frozenset(
    (
        *("name", "subscriber", "context", "stream", "filter", "log", "over", "kind", "function"),
        *("grants", "limits", "principal", "proof", "label"),
        *("ordered", "selection", "retry", "key", "reason"),
    )
)
_BYTES: Final = frozenset(("result",))
_NULLABLE: Final = frozenset(
    (
        ("subscriptions", "last_ticks"),
        ("queues", "dead_after"),
        *(("erasures", name) for name in ("context", "stream", "finished")),
        ("credentials", "expires"),
    )
)
"""Tables and columns that allow null. Columns that are neither text, bytes nor `ranges` hold numbers."""


NEW_COLUMNS: Final[dict[str, dict[str, Any]]] = {
    "queues": {"ordered": "", "selection": "", "retry": "", "paused": 0},
    "allocations": {"key": "", "due": 0},
    "subscriptions": {"selection": ""},
}
"""Columns that states of earlier versions do not have, and their values."""
NO_TABLES: Final = {name: {"columns": STATE_TABLES[name], "rows": []} for name in (*ACCESS_TABLES, "dead_letters")}
"""States of earlier versions do not have these tables."""


@dataclass(frozen=True, slots=True)
class Member:
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `history` lists the record files of all backups up to this one; `sealed` is the store's mark."""

    number: int
    created: str
    penstock: str
    store: str
    timeline: int
    head: int
    sealed: int
    timelines: tuple[tuple[int, int, int], ...]
    state: Member
    history: tuple[Member, ...] = field(repr=False)
    previous: str | None = None

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    @property
    def files(self) -> tuple[Member, ...]:
        """Every file that a restore reads."""
        return (*self.history, self.state)

    @property
    def bytes(self) -> int:
        return sum(member.bytes for member in self.files)


def member_of(path: str, data: bytes) -> Member:
    return Member(path, len(data), sha256(data).hexdigest())


def manifest_path(number: int) -> str:
    return f"backups/{number:08}.json"


def state_path(number: int) -> str:
    return f"states/{number:08}.cbor"


def history_path(first: int, last: int) -> str:
    return f"history/{first:020}-{last:020}.records"


def encode_manifest(manifest: Manifest) -> bytes:
    document: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(manifest)}
    del document["state"], document["history"]
    document["timelines"] = [list(row) for row in manifest.timelines]
    document["files"] = [asdict(member) for member in manifest.files]
    return _json({**document, "checksum": sha256(_json(document)).hexdigest()})


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def decode_manifest(place: str, path: str, data: bytes) -> Manifest:
    """Raises BackupDamaged, or PlaceRefused if a newer Penstock wrote the manifest."""
    try:
        document = parsed(data)
        version = document["format"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            known = f"its backups have format {version}, and this Penstock knows {FORMAT_VERSION}"
            raise PlaceRefused(place, f"{known}; use a newer Penstock")
        *history, state = files = document["files"]
        for file in files:
            if (flaw := flaw_of(file["path"])) is not None:
                raise BackupDamaged(place, path, f"names {file['path']!r}, which {flaw}")
        fields = {name: value for name, value in document.items() if name not in ("format", "files", "checksum")}
        manifest = made_of(Manifest, {**fields, "state": state, "history": history})
    except (ValueError, TypeError, KeyError) as error:
        raise BackupDamaged(place, path, f"cannot be read: {error}") from error
    if manifest.state.path != state_path(manifest.number):
        raise BackupDamaged(place, path, f"names {manifest.state.path!r}, which is not the state of this backup")
    for member in manifest.history:
        if not _HISTORY.fullmatch(member.path):
            raise BackupDamaged(place, path, f"names {member.path!r}, which is not a file of records")
    if not 1 <= manifest.sealed <= manifest.head + 1:
        raise BackupDamaged(place, path, f"is not sound: it has {manifest.head} events, and {manifest.sealed} sealed")
    if encode_manifest(manifest) != data:
        raise BackupDamaged(place, path, "does not match its own checksum")
    return manifest


# --- states ---------------------------------------------------------------------------------------------------


def encode_state(state: StoreState) -> bytes:
    tables = {name: {"columns": STATE_TABLES[name], "rows": rows} for name, rows in state.tables.items()}
    document = {"store": state.identity.id, "timeline": state.identity.timeline, "head": state.head}
    return cbor2.dumps({**document, "sealed": state.sealed, "tables": tables})


def decode_state(place: str, path: str, data: bytes) -> StoreState:
    try:
        try:
            document = cbor2.loads(data)
        except Exception as error:
            # CBOR tags create values of many types, and each type raises its own errors.
            raise ValueError(f"it is not CBOR: {error}") from error
        given = {**NO_TABLES, **document["tables"]}
        tables = {name: _rows(name, given[name]) for name in STATE_TABLES}
        _check_access(tables)
        _check_consumers(tables)
        if not isinstance(document["store"], str) or not document["store"].isprintable():
            raise ValueError("its store has no name")
        for name in ("timeline", "head", "sealed"):
            if not _is_number(document[name]):
                raise ValueError(f"its {name} is no number")
        identity = StoreIdentity(document["store"], document["timeline"])
        return StoreState(identity, document["head"], document["sealed"], tables)
    except (ValueError, TypeError, KeyError) as error:
        raise BackupDamaged(place, path, f"cannot be read: {error}") from error


def _rows(name: str, table: dict[str, Any]) -> list[tuple[Any, ...]]:
    columns, added = tuple(table["columns"]), NEW_COLUMNS.get(name, {})
    if columns == STATE_TABLES[name]:
        added = {}
    elif columns != STATE_TABLES[name][: -len(added) or None]:
        raise ValueError(f"its table {name} has other columns than this Penstock knows")
    rows = table["rows"]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row of its table {name} is not as long as the others")
    whole = [(*row, *added.values()) for row in rows]
    return [tuple(_value(name, *each) for each in zip(STATE_TABLES[name], row, strict=True)) for row in whole]


def _value(table: str, column: str, value: Any) -> Any:
    """A value as the store holds it. Raises ValueError if its type does not fit the column."""
    if value is None and (table, column) in _NULLABLE:
        return None
    if column == "ranges":
        ranges = tuple((first, last) for first, last in value)
        if all(_is_number(each) and each >= 0 for pair in ranges for each in pair):
            return ranges
    elif column in _BYTES:
        if isinstance(value, bytes):
            return value
    elif column in _TEXTS or (table, column) == ("credentials", "id"):
        if isinstance(value, str):
            return value
    elif _is_number(value):
        return value
    raise ValueError(f"the column {column} of its table {table} has a value of another kind")


def _check_access(tables: dict[str, list[tuple[Any, ...]]]) -> None:
    """Raise ValueError for principals that no store has written, so that a forged backup cannot grant rights."""
    versions, principals, credentials = (tables[name] for name in ACCESS_TABLES)
    if len(versions) > 1 or any(version < 1 for (version,) in versions):
        raise ValueError("its table access does not have one time")
    if (principals or credentials) and not versions:
        raise ValueError("it has principals, and its table access says that there never were any")
    limits_known = Limits.__slots__
    for name, _, text, *_ in principals:
        limits = parsed(text.encode())
        if not isinstance(limits, dict) or any(
            limit not in limits_known or type(maximum) is not int or maximum < 1 for limit, maximum in limits.items()
        ):
            raise ValueError(f"the limits of principal {name!r} are none")


def _check_consumers(tables: dict[str, list[tuple[Any, ...]]]) -> None:
    """Raise ValueError for rules of queues and subscriptions that no store has written."""
    for name in ("queues", "subscriptions"):
        columns = STATE_TABLES[name]
        for row in tables[name]:
            rules = dict(zip(columns, row, strict=True))
            try:
                Selection.parsed(rules["selection"])
                RetryPolicy.parsed(rules.get("retry", ""))
            except InvalidRequest as error:
                raise ValueError(f"a rule in its table {name} is none: {error}") from error
            if not is_order(rules.get("ordered", "")):
                raise ValueError(f"an order in its table {name} is none")


def _is_number(value: Any) -> bool:
    return type(value) is int and -(1 << NUMBER_BITS - 1) <= value < 1 << NUMBER_BITS - 1
