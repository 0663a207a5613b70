"""A DuckDB in memory for as long as a query lasts.

- It has a memory limit, and spills into a temporary folder, which `close` removes.
- `events` is one snapshot: the session fixes its head when it opens. Events that are erased later disappear from it.
- It runs one statement that reads, and no other: no query can change a store or a file.
- It reads only files below the directories of its limits, and DuckDB's settings are locked. That prevents
  accidents; it is no sandbox for hostile SQL.
- DuckDB works in its own thread, so that Ctrl-C in the thread that waits for it ends the query.
- DuckDB's errors become InvalidRequest in one line. An error of a scan of the history is raised as it is.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, TypeVar

import duckdb
import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.history.source import Now, open_history
from penstock.interrupts import awaited
from penstock.model import View
from penstock.sql.dataset import Failures, Read, ScannedTable, read_history

MEMORY_BYTES: Final = 1 << 30
"""Default memory of DuckDB before it spills to disk."""
MEMORY_BYTES_MIN: Final = 64 << 20
BATCH_ROWS: Final = 2048
"""Rows in a batch of an answer; DuckDB works with as many at a time."""
EVENTS: Final = "events"
INTERRUPT_S: Final = 0.05
"""How long an interrupted query has to end before the session interrupts it again."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session. It spills below `folder`, or else where the system has temporary files."""

    memory_bytes: int = MEMORY_BYTES
    threads: int | None = None
    folder: str | None = None
    spill_bytes: int | None = None
    """How much it may spill; None: most of the disk, as DuckDB likes."""
    directories: tuple[str, ...] = ()
    """Statements may read files below these; `/` allows all files."""


class QueryResult:
    """The rows of an answer, as a stream. A session has one answer at a time."""

    def __init__(self, session: "Session", reader: pa.RecordBatchReader) -> None:
        self._session = session
        self._reader = reader
        self.schema: pa.Schema = reader.schema
        self.rows_read = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            batch = self._session.awaited(lambda: next(self._reader, None))
            if batch is None:
                return
            self.rows_read += batch.num_rows
            yield batch

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows at once, for small answers."""
        return [row for batch in self.batches() for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]


class Session:
    """A DuckDB with tables of ours. Close it."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - it cannot be changed
        self.failures = Failures()
        self._statement = ""
        self._thread = ThreadPoolExecutor(1, "penstock-sql")
        self._folder = tempfile.TemporaryDirectory(
            prefix="penstock-sql-", dir=limits.folder, ignore_cleanup_errors=True
        )
        settings: dict[str, Any] = {
            "memory_limit": f"{limits.memory_bytes}B",
            "temp_directory": self._folder.name,
            # Table names must not resolve to variables of this program.
            "python_enable_replacements": False,
            **({} if limits.spill_bytes is None else {"max_temp_directory_size": f"{limits.spill_bytes}B"}),
            # DuckDB must not download extensions.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        self._db = duckdb.connect(config=settings | ({"threads": limits.threads} if limits.threads else {}))
        self._db.execute("SET TimeZone = 'UTC'; SET errors_as_json = true")
        # In this order: without external access no directory can be allowed, and a locked configuration stays as it is.
        allowed = ", ".join(map(quoted, limits.directories))
        self._db.execute(f"SET allowed_directories = [{allowed}]::VARCHAR[]")
        self._db.execute("SET enable_external_access = false; SET lock_configuration = true")

    def add(self, name: str, dataset: Any) -> None:
        self._db.register(name, dataset)

    def add_table(self, name: str, read: Read) -> None:
        """Add a table of events. Each scan reads them from the history again."""
        self.add(name, ScannedTable(read, self.failures))

    def add_history(self, name: str, url: str, now: Now, first: int = 1, view: View | None = None) -> None:
        """Add the history of a store, from a position on, as a table: all of it, or what is in a view."""
        self.add_table(name, partial(read_history, url, now, first, view))

    def add_view(self, name: str, query: str) -> None:
        with self._translated_errors():
            self._db.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def query(self, statement: str) -> QueryResult:
        """Run one statement that reads. Raises InvalidRequest, which names the place of a mistake."""
        self._statement = statement
        self.failures.begin()
        return QueryResult(self, self.awaited(lambda: self._execute(statement)))

    def _execute(self, statement: str) -> pa.RecordBatchReader:
        checked = checked_statement(self._db, statement)
        try:
            relation = self._db.sql(checked)
        except (duckdb.BinderException, duckdb.CatalogException):
            # `execute` fails before it does anything, too, and its error names the place.
            self._db.execute(checked)
            raise
        if relation is None:
            raise InvalidRequest("statement", "has no rows as its answer")
        return _with_plain_types(relation).to_arrow_reader(BATCH_ROWS)

    def awaited(self, work: Callable[[], Result]) -> Result:
        """Run some work in DuckDB's thread and return its result. After Ctrl-C, end the work and raise it."""
        future = self._thread.submit(work)
        try:
            with self._translated_errors():
                return awaited(future)
        finally:
            # An interrupt before the work has begun has no effect, so one may not be enough.
            while not future.done():
                self.interrupt()
                wait([future], INTERRUPT_S)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            if self.failures.first is not None:
                raise self.failures.first from None
            is_runtime = isinstance(error, RuntimeError) and "interrupted" in str(error)
            if is_runtime or isinstance(error, duckdb.InterruptException):
                raise KeyboardInterrupt from None
            # Without a number it is an error of DuckDB's in the middle of an answer, which Arrow has passed on.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise explained(error, self._statement) from None

    def interrupt(self) -> None:
        self.failures.stopped.set()
        self._db.interrupt()

    def close(self) -> None:
        self.failures.stopped.set()
        self._thread.shutdown()
        self._db.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def open_session(
    url: str,
    limits: Limits = Limits(),  # noqa: B008 - it cannot be changed
    view: View | None = None,
) -> Iterator[Session]:
    """A session in which `events` is the history of a store as it is now, or what of it is in a view."""
    with closing(open_history(url)) as history:
        now = history.now()
    with Session(limits) as session:
        session.add_history(EVENTS, url, now, view=view)
        yield session


# --- statements: one, which only reads ------------------------------------------------------------------------

READING: Final = "SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE, SHOW or EXPLAIN"
READABLE: Final = "it reads only files below a directory that --allow-dir DIR names"
MORE_MEMORY: Final = "; give it more with --memory, or ask for less"
TO_FILE: Final = "--file PATH writes an answer to a file"
_INSTEAD: Final = {"ATTACH": READABLE, "COPY": TO_FILE, "EXPORT": TO_FILE}
"""Alternatives to some statements."""
_PIVOT: Final = re.compile(r"\s*(pivot|from|with|select|\()", re.IGNORECASE)
_COPY: Final = re.compile(r"\bcopy\b", re.IGNORECASE)
_EXPLAIN: Final = re.compile(r"\s*explain\s+(?:analyze\s+|\([^)]*\)\s*)?", re.IGNORECASE)


def checked_statement(database: Any, text: str) -> str:
    """The one statement in a text. Raises InvalidRequest, or DuckDB's error about the syntax."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidRequest("statement", "is not valid Unicode")
    found = database.extract_statements(text)
    if not found:
        raise InvalidRequest("statement", "is empty")
    if len(found) > 1:
        raise InvalidRequest("statement", f"is {len(found)} statements; say one, with WITH for what it builds on")
    (statement,) = found
    kind = None if _reads(database, statement) else statement.type.name
    if kind is None and _copies(database, statement):
        kind = "COPY"
    if kind is not None:
        instead = f"; {_INSTEAD[kind]}" if kind in _INSTEAD else ""
        raise InvalidRequest("statement", f"does more than read ({kind}); say {READING}{instead}")
    if statement.named_parameters:
        raise InvalidRequest("statement", "has parameters; write their values out")
    return str(statement.query)


def _reads(database: Any, statement: Any) -> bool:
    kinds = duckdb.StatementType
    if statement.type == kinds.EXPLAIN:
        # EXPLAIN ANALYZE runs the statement that it explains.
        explained = database.extract_statements(_EXPLAIN.sub("", statement.query, count=1))
        return len(explained) == 1 and explained[0].type == kinds.SELECT
    # A PIVOT that finds its columns itself is two statements, the first of which creates a type in memory.
    is_pivot = statement.type == kinds.MULTI and _PIVOT.match(statement.query) is not None
    return is_pivot or bool(statement.type == kinds.SELECT)


def _copies(database: Any, statement: Any) -> bool:
    """Whether a query also writes a file: WITH may contain a COPY."""
    query = _EXPLAIN.sub("", statement.query, count=1)
    if _COPY.search(query) is None:
        return False
    if statement.type == duckdb.StatementType.MULTI:
        # EXPLAIN would run the first of its statements.
        return True
    try:
        ((_, plan),) = database.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()
    except duckdb.Error:
        # The query fails too, with the same error.
        return False
    nodes = json.loads(plan)
    for node in nodes:
        nodes.extend(node["children"])
    return any(node["name"].endswith("COPY_TO_FILE") for node in nodes)


# --- DuckDB's errors in one line ------------------------------------------------------------------------------

_FILE: Final = re.compile(r'Cannot access (?:file|directory) "(.*)" - ', re.DOTALL)
_LOCKED: Final = re.compile(r'Cannot change configuration option "*([^"]*)"')
_PROPOSED: Final = re.compile("Possible solutions|Please try installing")


def explained(error: Exception, statement: str) -> InvalidRequest:
    kind, _, rest = str(error).partition(": ")
    try:
        document = json.loads(rest)
    except ValueError:
        document = None
    found: dict[str, Any] | None = document if isinstance(document, dict) else None
    message = str(error) if found is None else str(found.get("exception_message", ""))
    if file := _FILE.search(message):
        return InvalidRequest("statement", f'must not read "{file[1]}"; {READABLE}')
    if setting := _LOCKED.search(message):
        return InvalidRequest("statement", f"must not change DuckDB's setting {setting[1]}; all of them are locked")
    if found is None:
        return InvalidRequest("statement", f"failed: {_one_line(message)}")
    # DuckDB proposes settings and extensions, which a session does not allow.
    message = _one_line(_PROPOSED.split(message, maxsplit=1)[0])
    hint = ""
    if found.get("exception_type") == "Out of Memory":
        hint = MORE_MEMORY
    elif message.startswith("Table with name") and "events" not in message:
        hint = "; the table is called events"
    return InvalidRequest("statement", f"{_place(found, statement)}: {kind.lower()}: {message}{hint}")


def _one_line(text: str) -> str:
    parts = [part.strip().rstrip("!") for part in text.splitlines() if part.strip()]
    return re.sub(r"[.;]?; ", "; ", "; ".join(parts))


def _place(found: dict[str, Any], statement: str) -> str:
    """Line and column, both from 1. DuckDB counts bytes."""
    position = found.get("position")
    if not isinstance(position, str) or not position.isdecimal():
        return "failed"
    before = statement.encode()[: int(position)].decode(errors="replace")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


# --- types of DuckDB ------------------------------------------------------------------------------------------

_TEXTS: Final = frozenset(
    ("bit", "bignum", "geometry", "interval", "time with time zone", "uhugeint", "union", "variant")
)
"""Types that Parquet and JSON lack, and that Arrow has in a form only DuckDB uses. In an answer they are text."""
_NESTED: Final = frozenset(("array", "list", "map", "struct", "tuple"))


def _with_plain_types(relation: Any) -> Any:
    if not any(map(_has_texts, relation.types)):
        return relation
    columns = []
    for number, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1):
        cast = f"::{_plain_type(kind)}" if _has_texts(kind) else ""
        columns.append(f"#{number}{cast} AS {_identifier(name)}")
    return relation.project(", ".join(columns))


def _has_texts(kind: Any) -> bool:
    return kind.id in _TEXTS or (kind.id in _NESTED and any(_has_texts(child) for _, child in _children(kind)))


def _plain_type(kind: Any) -> str:
    """A type in SQL, with VARCHAR in place of the types that only DuckDB has."""
    if kind.id in _TEXTS:
        return "VARCHAR"
    if kind.id not in _NESTED:
        return str(kind)
    inner = [(name, _plain_type(child)) for name, child in _children(kind)]
    match kind.id:
        case "list":
            return f"{inner[0][1]}[]"
        case "array":
            return f"{inner[0][1]}[{dict(kind.children)['size']}]"
        case "struct":
            return f"STRUCT({', '.join(f'{_identifier(name)} {child}' for name, child in inner)})"
        case named:
            return f"{named.upper()}({', '.join(child for _, child in inner)})"


def _children(kind: Any) -> list[tuple[str, Any]]:
    """The types within a type. DuckDB lists the length of an array among them."""
    return [(name, child) for name, child in kind.children if kind.id != "array" or name != "size"]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
