"""`penstock.yml`: where the events come from, and which columns the table of each type has. People edit it.

What is wrong in it is InvalidRequest, which names the file and the entry. Columns are DDL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.pipelines.naming import TAKEN, is_table_name
from penstock.spark.body_schema import body_check, column_name, schema_of

FILE: Final = "penstock.yml"
SOURCE: Final = ("url", "context", "filter", "type", "startPosition", "endPosition", "startTime", "endTime")
"""Options of the source that may be given, as `spark.readStream.format("penstock")` has them; and those below."""
TUNING: Final = ("maxEventsPerTrigger", "partitionBytes")
MOVABLE: Final = ("url", "endPosition", *TUNING)
"""What may be changed between runs: it does not say which events are read, or only how far."""
FIELDS: Final = ("source", "types", "ignored")
OF_TYPE: Final = ("table", "columns")


@dataclass(frozen=True)
class EventTable:
    """A type of event, its table and its columns as DDL."""

    type: str
    name: str
    columns: str


@dataclass(frozen=True)
class EventTables:
    """What `penstock.yml` says."""

    source: Mapping[str, str]
    tables: tuple[EventTable, ...]
    ignored: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, str]:
        """The columns by type."""
        return {each.type: each.columns for each in self.tables}

    @property
    def chosen(self) -> dict[str, str]:
        """What of the source says which events are read."""
        return {name: value for name, value in self.source.items() if name not in MOVABLE}


def event_tables(place: str | Path) -> EventTables:
    """Read `penstock.yml` of a project: `place` is its folder, or a file somewhere in it."""
    path = Path(place).resolve()
    for folder in path.parents if path.is_file() else (path,):
        if (folder / FILE).is_file():
            return read_declared(folder / FILE)
    raise InvalidRequest(str(path), f"is no pipeline: there is no {FILE}")


def read_declared(path: Path) -> EventTables:
    """Read the file itself."""
    found = read_yaml(path)
    _check_known(path, found, FIELDS)
    tables = tuple(_table(path, type, entry) for type, entry in _mapping(path, "types", found.get("types")).items())
    _check_names(path, tables)
    ignored = found.get("ignored") or []
    if not isinstance(ignored, list) or not all(isinstance(each, str) for each in ignored):
        raise InvalidRequest(str(path), "ignored must be a list of types")
    _check_ignored(path, tables, ignored)
    return EventTables(_source(path, found.get("source")), tables, tuple(ignored))


def read_yaml(path: Path) -> dict[str, Any]:
    """A file that has a mapping in YAML."""
    from penstock.pipelines.yamls import load  # noqa: PLC0415 - YAML comes with PySpark's pipelines

    found = load(path)
    if not isinstance(found, dict):
        raise InvalidRequest(str(path), "must be names with values")
    return found


def _mapping(path: Path, name: str, found: Any) -> dict[Any, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidRequest(str(path), f"{name} must be names with values")
    return found


def _check_known(path: Path, found: dict[Any, Any], known: tuple[str, ...], where: str = "") -> None:
    for name in found:
        if name not in known:
            raise InvalidRequest(str(path), f"has {name!r}{where}, which is unknown; there are {', '.join(known)}")


def _source(path: Path, found: Any) -> dict[str, str]:
    source = _mapping(path, "source", found)
    # First, as a name that is mistyped is why another is missing.
    _check_known(path, source, (*SOURCE, *TUNING), " in source")
    if "url" not in source:
        raise InvalidRequest(str(path), "says no url in source")
    return {name: _text(path, name, value) for name, value in source.items()}


def _text(path: Path, name: str, value: Any) -> str:
    """A value of the source. What YAML takes for a list or nothing has no text that somebody could have meant."""
    if isinstance(value, bool) or not isinstance(value, str | int | date):
        raise InvalidRequest(str(path), f"{name} in source must be a text, a number or a time, and is {value!r:.80}")
    return value.isoformat() if isinstance(value, date) else str(value)


def _table(path: Path, type: Any, entry: Any) -> EventTable:
    entry = _mapping(path, f"type {type}", entry)
    _check_known(path, entry, OF_TYPE, f" in type {type}")
    name, columns = entry.get("table"), entry.get("columns")
    if not isinstance(type, str) or set(entry) != set(OF_TYPE) or not isinstance(columns, str):
        raise InvalidRequest(str(path), f"type {type} must have a table and its columns, each as text")
    if not isinstance(name, str) or not is_table_name(name):
        raise InvalidRequest(str(path), f"type {type} has the table {name!r}: small letters, digits and _ make a name")
    try:
        schema = schema_of(columns)
        body_check(schema)
        _check_columns([field["name"] for field in schema["fields"]])
    except InvalidRequest as error:
        raise InvalidRequest(str(path), f"type {type}: {error}") from None
    return EventTable(type, name, columns)


def _check_columns(fields: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in fields:
        other = seen.setdefault(column_name(name).lower(), name)
        if other != name:
            raise InvalidRequest("columns", f"{other} and {name} would both be called {column_name(name)}")


def _check_names(path: Path, tables: tuple[EventTable, ...]) -> None:
    seen: dict[str, str] = {}
    for each in tables:
        if each.name in TAKEN:
            raise InvalidRequest(str(path), f"type {each.type} has the table {each.name}, which every project has")
        if each.name in seen:
            raise InvalidRequest(str(path), f"types {seen[each.name]} and {each.type} have the same table {each.name}")
        seen[each.name] = each.type


def _check_ignored(path: Path, tables: tuple[EventTable, ...], ignored: list[str]) -> None:
    """A type that is ignored has no misfits: those of a table would be nowhere."""
    for each in tables:
        if each.type in ignored:
            raise InvalidRequest(
                str(path),
                f"says that {each.type} has a table and is ignored: what does not fit would be in no table; "
                "name it under types or under ignored",
            )
