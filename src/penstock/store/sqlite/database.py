"""One SQLite connection: its settings, its named queries, and the translation of its errors.

Rules: WAL with `synchronous=FULL`, so a commit is on disk when it returns. The WAL is checkpointed by whoever
owns the store, never automatically inside a commit, and is reused, not truncated. Every read works in short
snapshots, because a long one would keep the WAL from being reused.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from penstock.errors import InvalidRequest, NotAStore, PenstockError, ReadFailure, StorageFailure, StorageFull
from penstock.files import private
from penstock.store.sql import load_queries
from penstock.store.sqlite import redo
from penstock.store.sqlite.lock import is_recovering

FILE_NAME: Final = "penstock.db"
PAGE_BYTES: Final = 4096
CACHE_KIB: Final = 64 * 1024
BUSY_MS_MAX: Final = 5_000
LOOK_STEPS: Final = 100_000
"""After so many steps of SQLite's machine, some milliseconds, a read looks whether it has to make way."""
APPLICATION_ID: Final = 0x50454E53
"""PENS, in the file's header."""

QUERIES: Final = load_queries("penstock.store.sqlite", "queries.sql")

Values = Sequence[Any] | dict[str, Any]


FOREIGN: Final = (apsw.Error, OverflowError, UnicodeError)
"""What SQLite raises, and what values raise that it cannot hold: numbers over 64 bits, broken text."""


def translate(error: Exception, *, write: bool = True) -> PenstockError:
    """What an error of SQLite means to somebody who waits for an answer; of a connection that writes, or only reads."""
    failure = StorageFailure if write else ReadFailure
    if isinstance(error, UnicodeDecodeError):
        return failure(f"its file is damaged, a text in it cannot be read: {error}")
    if not isinstance(error, apsw.Error):
        return InvalidRequest("value", f"cannot be stored: {error}")
    if isinstance(error, apsw.FullError):
        return StorageFull(str(error))
    if isinstance(error, apsw.InterruptError):
        return failure("the read made way for a recovery from a failed write; read again")
    return failure(f"{type(error).__name__}: {error}")


def _create(path: Path) -> None:
    """Create an empty file, for its owner alone. SQLite gives what it puts beside it the same permissions."""
    # One that is there must not be opened: to close it again would drop SQLite's locks in this process.
    with suppress(FileExistsError):
        os.close(private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


class Database:
    """A connection to a store's file. Belongs to one thread at a time."""

    def __init__(self, directory: Path, *, create: bool, write: bool, vfs: str | None = None) -> None:
        path = self._path = directory / FILE_NAME
        self._vfs = vfs
        self._is_for_writing = write
        if not create and not path.exists():
            raise NotAStore(str(directory), f"it has no {FILE_NAME}")
        if create:
            _create(path)
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX | (apsw.SQLITE_OPEN_CREATE if create else 0)
        try:
            self.connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
            self._configure(write)
        except apsw.NotADBError as error:
            raise NotAStore(str(directory), "its file is no SQLite database") from error
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def _configure(self, write: bool) -> None:
        connection = self.connection
        connection.set_busy_timeout(BUSY_MS_MAX)
        # Whoever closes last must neither stall in a checkpoint nor throw the WAL away.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("cache_size", -CACHE_KIB)
        if write:
            connection.pragma("page_size", PAGE_BYTES)
            # Of a file that has tables already this changes nothing; see `schema.migrate`.
            connection.pragma("auto_vacuum", "incremental")
            if connection.pragma("journal_mode", "wal") != "wal":
                raise StorageFailure("its file system cannot hold a write-ahead log")
            connection.pragma("synchronous", "full")
            connection.pragma("wal_autocheckpoint", 0)
            connection.pragma("journal_size_limit", -1)
            connection.pragma("secure_delete", "on")
        else:
            connection.pragma("query_only", "on")
            connection.set_progress_handler(self._must_make_way, LOOK_STEPS)

    def _must_make_way(self) -> bool:
        """Whether a read that takes long has to end, because the store's owner cannot recover beside it."""
        return is_recovering(self._path.parent)

    def rows(self, name: str, values: Values = ()) -> list[Any]:
        """All rows of a query."""
        try:
            return self.connection.execute(QUERIES[name], values).fetchall()
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error

    def row(self, name: str, values: Values = ()) -> Any:
        """The first row of a query, or None."""
        rows = self.rows(name, values)
        return rows[0] if rows else None

    def value(self, name: str, values: Values = ()) -> Any:
        """The first column of the first row, or None."""
        row = self.row(name, values)
        return row[0] if row else None

    def run(self, name: str, values: Values = ()) -> int:
        """Carry out a statement; how many rows it changed."""
        self.rows(name, values)
        return self.connection.changes()

    later = run
    """A statement whose result nobody waits for; carried out at once here."""

    def run_many(self, name: str, rows: Sequence[Values]) -> None:
        """Carry out a statement for every row."""
        try:
            self.connection.executemany(QUERIES[name], rows)
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error

    def each(self, name: str, values: Values = ()) -> Iterator[Any]:
        """Rows one by one; the caller may stop early."""
        cursor = self.connection.cursor()
        try:
            yield from cursor.execute(QUERIES[name], values)
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error
        finally:
            cursor.close(True)

    def overwrite(self, table: str, column: str, row: int, data: bytes) -> bytes:
        """Put bytes over as many at the beginning of a value, which stays where it is; those that were there."""
        try:
            with self.connection.blob_open("main", table, column, row, True) as blob:
                before = blob.read(len(data))
                blob.seek(0)
                blob.write(data)
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error
        return before

    def pragma(self, name: str) -> int:
        """A number that SQLite keeps about its file."""
        try:
            return int(self.connection.pragma(name))
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one state. Keep it short: it holds the WAL."""
        if self.connection.in_transaction:
            yield
            return
        self.command("BEGIN")
        try:
            yield
        finally:
            self.command("COMMIT")

    def command(self, text: str) -> None:
        """BEGIN, COMMIT, VACUUM and their like."""
        try:
            for _ in self.connection.execute(text):
                pass
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def abandon(self) -> None:
        """Roll back whatever is open; never raises."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # The connection is closed and reopened before it is used again.

    def checkpoint(self) -> None:
        """Bring into the file what the WAL holds, as far as readers and writers allow now."""
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            pass  # Another connection is at it.
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def copy_again(self) -> None:
        """Write and sync once more what checkpoints have brought into the file; see `redo`."""
        try:
            _, frames = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            if frames > 0:
                redo.copy_again(self._path, self._vfs, frames, PAGE_BYTES)
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def sync_file(self) -> None:
        """Have the file itself synced, without the WAL."""
        try:
            redo.sync(self._path, self._vfs)
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def uncopied_pages(self) -> int:
        """How many pages of the WAL are not in the file yet."""
        try:
            frames, copied = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error
        return max(0, frames - copied)

    def wal_bytes(self) -> int:
        """How long the WAL's file is."""
        try:
            return self._path.with_name(f"{FILE_NAME}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def restart_wal(self, wait_ms_max: int = BUSY_MS_MAX) -> bool:
        """Bring all of the WAL into the file and empty it; False if readers took longer than that."""
        try:
            self.connection.set_busy_timeout(wait_ms_max)
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error
        finally:
            self.connection.set_busy_timeout(BUSY_MS_MAX)
        return True

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close(True)
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error
