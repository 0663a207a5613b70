"""A pipeline project: a folder that Spark Declarative Pipelines can run, and its file `penstock.yml`.

spark-pipeline.yml      the specification for Spark's pipelines
spark.conf              settings that Spark needs at its start: catalog, tables, metastore
penstock.yml            the source and the columns of each type; users edit it
transformations/        bronze.py, silver.py, gold.py, and files that users add
tables/                 made by runs: a folder for each table
storage/                made by runs: checkpoints
metastore/              made by runs: the catalog of tables
.penstock/              made by runs: the result of the last one, and a lock

Errors in the files are InvalidRequest, which names the file and the entry. Columns are DDL.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidRequest
from penstock.spark.body_schema import body_check, column_name, schema_of

NAME_CHARS_MAX: Final = 128
"""The longest name that the metastore takes."""
TAKEN: Final = ("bronze", "judged", "quarantine", "events_per_hour", "events_per_type", "quarantine_per_type")
"""Tables that every project has."""
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")


def is_table_name(name: str) -> bool:
    """Whether every catalog takes a name: lower-case letters, digits and underscores."""
    return _TABLE.fullmatch(name) is not None


def table_name(type: str) -> str:
    """The name of the table of a type: `OrderPlaced` and `order-placed` both become `order_placed`."""
    words = _WORDS.sub("_", type).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    if not name or not name[0].isalpha():
        name = f"type_{name}".rstrip("_")
    return name[:NAME_CHARS_MAX]


def table_names(types: Iterable[str]) -> dict[str, str]:
    """A unique table name for each type. Names that clash get numbers, in the order of the types."""
    names: dict[str, str] = {}
    taken = set(TAKEN)
    for type in sorted(types):
        wanted = table_name(type)
        numbered = (f"{wanted[: NAME_CHARS_MAX - 1 - len(str(n))]}_{n}" for n in range(2, len(taken) + 3))
        names[type] = wanted if wanted not in taken else next(name for name in numbered if name not in taken)
        taken.add(names[type])
    return names


FILE: Final = "penstock.yml"
SOURCE: Final = ("url", "context", "filter", "type", "startPosition", "endPosition", "startTime", "endTime")
"""Options of `spark.readStream.format("penstock")` that the source may have, and those below."""
TUNING: Final = ("maxEventsPerTrigger", "partitionBytes")
MOVABLE: Final = ("url", "endPosition", *TUNING)
"""Options that may change between runs: they do not select events, or only the end."""
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
    """The contents of `penstock.yml`."""

    source: Mapping[str, str]
    tables: tuple[EventTable, ...]
    ignored: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, str]:
        return {each.type: each.columns for each in self.tables}

    @property
    def chosen(self) -> dict[str, str]:
        """The options of the source that select events."""
        return {name: value for name, value in self.source.items() if name not in MOVABLE}


def event_tables(place: str | Path) -> EventTables:
    """Read `penstock.yml` of a project: `place` is the project's folder, or a file in it."""
    path = Path(place).resolve()
    for folder in path.parents if path.is_file() else (path,):
        if (folder / FILE).is_file():
            return read_declared(folder / FILE)
    raise InvalidRequest(str(path), f"is no pipeline: there is no {FILE}")


def read_declared(path: Path) -> EventTables:
    found = read_yaml(path)
    _check_known(path, found, FIELDS)
    tables = tuple(_table(path, type, entry) for type, entry in _mapping(path, "types", found.get("types")).items())
    ignored = found.get("ignored") or []
    if not isinstance(ignored, list) or not all(isinstance(each, str) for each in ignored):
        raise InvalidRequest(str(path), "ignored must be a list of types")
    seen: dict[str, str] = {}
    for each in tables:
        if each.name in TAKEN:
            raise InvalidRequest(str(path), f"type {each.type} has the table {each.name}, which every project has")
        if each.name in seen:
            raise InvalidRequest(str(path), f"types {seen[each.name]} and {each.type} have the same table {each.name}")
        if each.type in ignored:
            raise InvalidRequest(
                str(path),
                f"says that {each.type} has a table and is ignored: what does not fit would be in no table; "
                "name it under types or under ignored",
            )
        seen[each.name] = each.type
    source = _mapping(path, "source", found.get("source"))
    # First, because a misspelt name is why another is missing.
    _check_known(path, source, (*SOURCE, *TUNING), " in source")
    if "url" not in source:
        raise InvalidRequest(str(path), "says no url in source")
    return EventTables({name: _text(path, name, value) for name, value in source.items()}, tables, tuple(ignored))


def read_yaml(path: Path) -> dict[str, Any]:
    from penstock.pipelines.yaml_format import load  # noqa: PLC0415 - YAML comes with PySpark's pipelines

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


def _text(path: Path, name: str, value: Any) -> str:
    """A value of the source. A list or null in YAML is no text that a user could mean."""
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
        seen: dict[str, str] = {}
        for field in (each["name"] for each in schema["fields"]):
            other = seen.setdefault(column_name(field).lower(), field)
            if other != field:
                raise InvalidRequest("columns", f"{other} and {field} would both be called {column_name(field)}")
    except InvalidRequest as error:
        raise InvalidRequest(str(path), f"type {type}: {error}") from None
    return EventTable(type, name, columns)


SPECS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
CONF: Final = "spark.conf"
OWN: Final = ".penstock"
CHECKPOINTS: Final = "_checkpoints"
WAREHOUSE: Final = "spark.sql.warehouse.dir"
METASTORE: Final = "spark.hadoop.javax.jdo.option.ConnectionURL"
_DERBY: Final = "databaseName="


@dataclass(frozen=True)
class Project:
    folder: Path
    spec: Path
    name: str
    storage: str
    conf: Mapping[str, str]
    declared: EventTables

    @property
    def own(self) -> Path:
        return self.folder / OWN

    @property
    def checkpoints(self) -> Path | None:
        """The folder of checkpoints, if it is on this machine."""
        storage = local_path(self.storage)
        return storage / CHECKPOINTS if storage else None

    @property
    def tables(self) -> Path | None:
        """The folder of tables, if it is on this machine."""
        return local_path(self.conf.get(WAREHOUSE, ""))

    @property
    def metastore(self) -> Path | None:
        """The metastore, if it is a folder."""
        found = self.conf.get(METASTORE, "").partition(_DERBY)[2].partition(";")[0]
        return Path(found) if found and "\0" not in found else None


def local_path(url: str) -> Path | None:
    """The path of a place on this machine: `file:///…` or a path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("", "file") or not parts.path.startswith("/") or "\0" in unquote(parts.path):
        return None
    return Path(unquote(parts.path))


def read_project(folder: Path) -> Project:
    """Read a project's files. Raises InvalidRequest, which names the file and the error."""
    folder = folder.resolve()
    specs = [folder / name for name in SPECS if (folder / name).is_file()]
    if len(specs) != 1:
        what = f"has both {' and '.join(SPECS)}" if specs else f"is no pipeline: there is no {SPECS[0]}"
        raise InvalidRequest(str(folder), what)
    spec = read_yaml(specs[0])
    # Spark checks the rest of the specification.
    for name in ("name", "storage"):
        if not isinstance(spec.get(name), str):
            raise InvalidRequest(str(specs[0]), f"must say {name}")
    if not (folder / FILE).is_file():
        raise InvalidRequest(str(folder), f"is no pipeline of Penstock's: there is no {FILE}")
    return Project(folder, specs[0], spec["name"], spec["storage"], read_conf(folder), read_declared(folder / FILE))


def read_conf(folder: Path) -> dict[str, str]:
    """Spark's settings: a name and a value in each line."""
    path = folder / CONF
    if not path.is_file():
        raise InvalidRequest(str(path), "is not there: it says where tables and the metastore are")
    conf = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if (text := line.strip()) and not text.startswith("#"):
            name, _, value = text.partition(" ")
            if not value.strip():
                raise InvalidRequest(str(path), f"has no value in line {number}: {text}")
            conf[name] = value.strip()
    return conf
