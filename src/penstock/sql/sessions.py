"""A DuckDB of one's own for as long as a question lasts.

- It is in memory, with a limit, and spills into a folder of its own that goes when it is closed.
- `events` is one snapshot: its head is fixed when the session is opened. What is erased meanwhile is gone, though.
- One statement that reads is run, no other: nothing that is asked here can change a store, or any file.
- It reads no files but those below the directories of its limits, and can change no setting of DuckDB's. That keeps
  slips and curiosity in bounds; it is no sandbox for hostile SQL.
- DuckDB works in a thread of its own: nobody who waits for it in another is deaf to Ctrl-C, which ends the query.
- DuckDB's errors become InvalidRequest in one line; what a scan of the history raised comes out as it was.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import duckdb
import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.history.histories import Now, open_history
from penstock.interrupts import awaited
from penstock.sql.dataset import EventsDataset, Failures
from penstock.sql.failing import explained
from penstock.sql.kinds import plain_relation
from penstock.sql.statements import checked

MEMORY_BYTES: Final = 1 << 30
"""What DuckDB uses before it spills to disk, unless it is told otherwise."""
MEMORY_BYTES_MIN: Final = 64 << 20
BATCH_ROWS: Final = 2048
"""Rows of an answer that are handed out together; DuckDB works with so many at a time."""
EVENTS: Final = "events"
INTERRUPT_S: Final = 0.05
"""How long an interrupted query has to end before it is interrupted once more."""


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a session may use. It spills below `folder`, or else where the system has temporary files."""

    memory_bytes: int = MEMORY_BYTES
    threads: int | None = None
    folder: str | None = None
    directories: tuple[str, ...] = ()
    """Below which files may be read; `/` is all files."""


class Answer:
    """The rows of an answer, in a stream; there is one at a time."""

    def __init__(self, session: "Session", reader: pa.RecordBatchReader) -> None:
        self._session = session
        self._reader = reader
        self.schema: pa.Schema = reader.schema
        self.is_begun = False
        """Whether rows of it have been handed out."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches, as they are found."""
        while True:
            batch = self._session.awaited(lambda: next(self._reader, None))
            if batch is None:
                return
            self.is_begun = True
            yield batch

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows at once, for answers that are known to be small."""
        return [row for batch in self.batches() for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]


class Session:
    """A DuckDB with tables of ours. To be closed."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - it cannot be changed
        self.failures = Failures()
        self._statement = ""
        self._thread = ThreadPoolExecutor(1, "penstock-sql")
        self._folder = _spilling(limits.folder)
        settings: dict[str, Any] = {
            "memory_limit": f"{limits.memory_bytes}B",
            "temp_directory": self._folder.name,
            # The names of tables are ours, not those of variables in this program.
            "python_enable_replacements": False,
            # Nothing is fetched that nobody asked for.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        self._db = duckdb.connect(config=settings | ({"threads": limits.threads} if limits.threads else {}))
        self._db.execute("SET TimeZone = 'UTC'; SET errors_as_json = true")
        self._close_doors(limits.directories)

    def _close_doors(self, directories: Sequence[str]) -> None:
        """No files but those below some directories from now on, and no more settings."""
        # In this order: what is allowed cannot be changed once access is off, and nothing once settings are locked.
        allowed = ", ".join(map(quoted, directories))
        self._db.execute(f"SET allowed_directories = [{allowed}]::VARCHAR[]")
        self._db.execute("SET enable_external_access = false; SET lock_configuration = true")

    def add(self, name: str, dataset: Any) -> None:
        """A table that is scanned as a dataset."""
        self._db.register(name, dataset)

    def add_history(self, name: str, url: str, now: Now, first: int = 1) -> None:
        """The history of a store, from a position on, as a table."""
        self.add(name, EventsDataset(url, now, self.failures, first))

    def add_view(self, name: str, query: str) -> None:
        """A table that is a query of ours."""
        with self.telling():
            self._db.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def query(self, statement: str) -> Answer:
        """Run one statement that reads. Raises InvalidRequest, which says where the mistake is."""
        self._statement = statement
        self.failures.begin()
        return Answer(self, self.awaited(lambda: self._begun(statement)))

    def _begun(self, statement: str) -> pa.RecordBatchReader:
        found = self._bound(checked(self._db, statement))
        if found is None:
            raise InvalidRequest("statement", "has no rows as its answer")
        return plain_relation(found).to_arrow_reader(BATCH_ROWS)

    def awaited(self, work: Callable[[], Result]) -> Result:
        """What comes of something that DuckDB does. Ctrl-C ends it, and is raised when it has ended."""
        doing = self._thread.submit(work)
        try:
            with self.telling():
                return awaited(doing)
        finally:
            # What is interrupted before it has begun goes on, so it may take several times.
            while not doing.done():
                self.interrupt()
                wait([doing], INTERRUPT_S)

    def _bound(self, statement: str) -> Any:
        try:
            return self._db.sql(statement)
        except (duckdb.BinderException, duckdb.CatalogException):
            # Said again in this way, which fails before anything is done, the error tells where.
            self._db.execute(statement)
            raise

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Raise what was really wrong."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            if self.failures.first is not None:
                raise self.failures.first from None
            if _is_interrupted(error):
                raise KeyboardInterrupt from None
            # Without a number it is DuckDB's, in the middle of an answer, which Arrow has passed on.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise explained(error, self._statement) from None

    def interrupt(self) -> None:
        """End what is under way; from another thread."""
        self.failures.stopped.set()
        self._db.interrupt()

    def close(self) -> None:
        """End everything; what was spilled is removed."""
        self.failures.stopped.set()
        self._thread.shutdown()
        self._db.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _spilling(folder: str | None) -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="penstock-sql-", dir=folder, ignore_cleanup_errors=True)


def _is_interrupted(error: Exception) -> bool:
    return isinstance(error, duckdb.InterruptException) or (
        isinstance(error, RuntimeError) and "interrupted" in str(error)
    )


@contextmanager
def open_session(url: str, limits: Limits = Limits()) -> Iterator[Session]:  # noqa: B008 - it cannot be changed
    """A session in which `events` is the history of a store as it is now."""
    with closing(open_history(url)) as history:
        now = history.now()
    with Session(limits) as session:
        session.add_history(EVENTS, url, now)
        yield session
