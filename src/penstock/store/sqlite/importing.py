"""Filling a new store on SQLite with the records and the state of another.

The file is written with a rollback journal, not with a WAL: what is only ever added goes to disk once then. Each call
of `add` is one durable transaction. Until `finish` the file is marked, and nobody opens it; see `unfinished`.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from penstock.errors import InvalidRequest, PlaceRefused, StorageFailure
from penstock.model import ticks_of_unix_ns
from penstock.store.contract import STATE_TABLES, StoreImport, StoreState
from penstock.store.record import Record
from penstock.store.sqlite import schema
from penstock.store.sqlite.access import settle_access
from penstock.store.sqlite.database import APPLICATION_ID, Database, translate
from penstock.store.sqlite.lock import make_directory, take_lock
from penstock.store.sqlite.unfinished import IMPORTING_ID
from penstock.store.tables.hiding import packed
from penstock.store.tables.logs import LAST_LOG
from penstock.store.tables.state import Row

if TYPE_CHECKING:
    from penstock.store.tables.indexing import Indexing

CACHE_KIB: Final = 256 * 1024
SOURCE: Final = "importing"
"""The key in `meta` of what is noted of the source, until the import is finished."""
_RANGES: Final = STATE_TABLES["erasures"].index("ranges")
_FINISHED: Final = STATE_TABLES["erasures"].index("finished")


class _Filled(Database):
    """A connection to the file that is being filled."""

    def _configure(self, write: bool) -> None:
        super()._configure(write)
        self.connection.pragma("cache_size", -CACHE_KIB)
        if self.connection.pragma("journal_mode", "persist") != "persist":
            raise StorageFailure("somebody reads it")


class SqliteImport(StoreImport):
    """A store in a directory that has none, or one that was never used; or an import that was interrupted goes on."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        make_directory(self._directory)
        with ExitStack() as undo:
            self._lock = take_lock(self._directory)
            undo.callback(os.close, self._lock)
            settle_access(self._directory)
            self._db = _Filled(self._directory, create=True, write=True)
            undo.callback(self._db.close)
            self._begin()
            self._indexing = _indexing_of(self._db)
            undo.pop_all()

    def _begin(self) -> None:
        if self._db.connection.pragma("application_id") == IMPORTING_ID:
            if self._db.connection.pragma("user_version") != schema.SCHEMA_VERSION:
                raise PlaceRefused(str(self._directory), "another version of Penstock began to fill it; remove it")
            return
        schema.migrate(self._db, self._directory, _now())
        if self._db.value("is_used"):
            raise PlaceRefused(str(self._directory), "it holds a store already")
        self._db.connection.pragma("application_id", IMPORTING_ID)

    def begin(self, source: str) -> str:
        kept = self._db.value("meta", {"key": SOURCE})
        if kept is None and self.head() == 0:
            self._db.run("set_meta", {"key": SOURCE, "value": source})
            return source
        return kept or ""

    def head(self) -> int:
        return self._db.value("head") or 0

    def add(self, records: Sequence[Record]) -> None:
        expected = self.head() + 1
        try:
            for record in records:
                if record.position != expected:
                    raise InvalidRequest("record", f"begins at {record.position}, and {expected} comes next")
                self._indexing.add(record)
                expected = record.last + 1
            self._in_transaction(self._indexing.write)
        except BaseException:
            self._indexing = _indexing_of(self._db)
            raise

    def finish(self, state: StoreState) -> None:
        if self.head() != state.head:
            raise InvalidRequest("state", f"is of position {state.head}, and the records end at {self.head()}")
        self._in_transaction(lambda: self._finish(state))
        self._settle()

    def _finish(self, state: StoreState) -> None:
        db = self._db
        db.run("replace_meta", {"key": "store_id", "value": state.identity.id})
        db.run("replace_meta", {"key": "sealed", "value": state.sealed})
        db.run("delete_meta", {"key": SOURCE})
        db.run("delete_meta", {"key": LAST_LOG})
        db.run("forget_timelines")
        for name in STATE_TABLES:
            rows = state.tables[name]
            db.run_many(f"import_{name}", list(map(_erasure, rows)) if name == "erasures" else rows)
        db.connection.pragma("application_id", APPLICATION_ID)

    def _settle(self) -> None:
        """One file, in the mode that readers expect."""
        try:
            self._db.connection.pragma("journal_mode", "delete")
            self._db.connection.pragma("journal_mode", "wal")
        except apsw.Error as error:
            raise translate(error) from error

    def _in_transaction(self, work: Callable[[], None]) -> None:
        self._db.command("BEGIN IMMEDIATE")
        try:
            work()
            self._db.command("COMMIT")
        except BaseException:
            self._db.abandon()
            raise

    def close(self) -> None:
        try:
            self._db.close()
        finally:
            os.close(self._lock)


def _erasure(row: Row) -> tuple[Any, ...]:
    """A row of the ledger as it is stored; finished, because records that are added have no erased contents."""
    values = list(row)
    values[_RANGES] = packed(row[_RANGES]) or None
    values[_FINISHED] = _now() if row[_FINISHED] is None else row[_FINISHED]
    return tuple(values)


def _now() -> int:
    return ticks_of_unix_ns(time.time_ns())


def _indexing_of(rows: _Filled) -> "Indexing":
    # It needs NumPy, which only those who import wait for.
    from penstock.store.tables.indexing import Indexing  # noqa: PLC0415

    return Indexing(rows)
