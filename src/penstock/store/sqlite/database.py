"""One SQLite connection: its settings, its named queries, the translation of its errors, and checkpoints of the WAL.

Connections use WAL with `synchronous=FULL`, so a commit is on disk when it returns. The owner of the store checkpoints
the WAL, never SQLite itself inside a commit; the WAL is reused, not truncated. Every read uses short snapshots, because
a long one keeps the WAL from being reused.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final

import apsw

from penstock.errors import InvalidRequest, NotAStore, PenstockError, ReadFailure, StorageFailure, StorageFull
from penstock.files import private
from penstock.store.sqlite.directory import FILE_NAME, is_recovering
from penstock.store.tables.database import NO_VALUES, Database, Values, load_queries

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
CACHE_KIB: Final = 64 * 1024
BUSY_MS_MAX: Final = 5_000
LOOK_STEPS: Final = 100_000
"""After so many steps of SQLite's machine, some milliseconds, a read checks whether it has to stop for a recovery."""

# https://www.sqlite.org/fileformat2.html#the_write_ahead_log
WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_FRAME: Final = Struct(">II")
"""The page's number; in the last frame of a commit the file's size in pages, else 0."""

EMPTIED_PAGES_MAX: Final = 512
"""The thread copies a longer WAL before the writer empties it."""
EMPTY_WAIT_MS_MAX: Final = 20
"""How long the writer waits for readers before it postpones emptying the WAL."""
EMPTY_PAUSE_S: Final = 0.2
"""How long it postpones that, because all commits wait during an attempt."""
OVERGROWN: Final = 4
"""A WAL file of so many times its limit is truncated."""
CUT_PAUSE_S: Final = 5.0
"""The time between two attempts at that."""

QUERIES: Final = load_queries("penstock.store.sqlite", "queries.sql")

FOREIGN: Final = (apsw.Error, OverflowError, UnicodeError)
"""Errors of SQLite, and of values that it cannot hold: numbers over 64 bits, broken text."""


def translate(error: Exception, *, write: bool = True) -> PenstockError:
    """The error of Penstock for an error of SQLite, on a connection that writes or only reads."""
    failure = StorageFailure if write else ReadFailure
    if isinstance(error, UnicodeDecodeError):
        return failure(f"its file is damaged, a text in it cannot be read: {error}")
    if not isinstance(error, apsw.Error):
        return InvalidRequest("value", f"cannot be stored: {error}")
    if isinstance(error, apsw.FullError):
        return StorageFull(str(error))
    if isinstance(error, apsw.InterruptError):
        return failure("the read stopped for a recovery from a failed write; read again")
    return failure(f"{type(error).__name__}: {error}")


class SqliteDatabase(Database):
    """A connection to a store's file."""

    def __init__(self, directory: Path, *, create: bool, write: bool, vfs: str | None = None) -> None:
        path = self.path = directory / FILE_NAME
        self._vfs = vfs
        self._is_for_writing = write
        if not create and not path.exists():
            raise NotAStore(str(directory), f"it has no {FILE_NAME}")
        if create:
            # For its owner alone; SQLite gives the files next to it the same permissions. An existing file must not be
            # opened: to close it again would drop SQLite's locks in this process.
            with suppress(FileExistsError):
                os.close(private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX | (apsw.SQLITE_OPEN_CREATE if create else 0)
        try:
            self.connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
            self._configure(write)
        except apsw.NotADBError as error:
            raise NotAStore(str(directory), "its file is no SQLite database") from error
        except apsw.Error as error:
            raise translate(error, write=write) from error

    def _configure(self, write: bool) -> None:
        connection = self.connection
        connection.set_busy_timeout(BUSY_MS_MAX)
        # The last connection to close must neither stall in a checkpoint nor delete the WAL.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("cache_size", -CACHE_KIB)
        if write:
            connection.pragma("page_size", PAGE_BYTES)
            # This changes nothing in a file that has tables already; see `schema.migrate`.
            connection.pragma("auto_vacuum", "incremental")
            if connection.pragma("journal_mode", "wal") != "wal":
                raise StorageFailure("its file system cannot hold a write-ahead log")
            connection.pragma("synchronous", "full")
            connection.pragma("wal_autocheckpoint", 0)
            connection.pragma("journal_size_limit", -1)
            connection.pragma("secure_delete", "on")
        else:
            connection.pragma("query_only", "on")
            # A long read has to stop when the owner recovers from a failed write.
            connection.set_progress_handler(lambda: is_recovering(self.path.parent), LOOK_STEPS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error

    # -- statements

    def rows(self, name: str, values: Values | Sequence[Any] = ()) -> list[Any]:
        try:
            return self.connection.execute(QUERIES[name], values).fetchall()
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error

    later = rows
    """SQLite has nothing to wait for."""

    def send(self, name: str, values: Values = NO_VALUES) -> Callable[[], list[Any]]:
        rows = self.rows(name, values)
        return lambda: rows

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self.connection.executemany(QUERIES[name], rows)
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error

    def each(self, name: str, values: Values = NO_VALUES) -> Iterator[Any]:
        cursor = self.connection.cursor()
        try:
            yield from cursor.execute(QUERIES[name], values)
        except FOREIGN as error:
            raise translate(error, write=self._is_for_writing) from error
        finally:
            cursor.close(True)

    def overwrite(self, table: str, column: str, row: int, data: bytes) -> bytes:
        """Overwrite the first bytes of a value in place; answers the bytes from before."""
        with self._translated(), self.connection.blob_open("main", table, column, row, True) as blob:
            before = blob.read(len(data))
            blob.seek(0)
            blob.write(data)
        return before

    def pragma(self, name: str) -> int:
        with self._translated():
            return int(self.connection.pragma(name))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        if self.connection.in_transaction:
            yield
            return
        self.command("BEGIN")
        try:
            yield
        finally:
            self.command("COMMIT")

    def command(self, text: str) -> None:
        try:
            for _ in self.connection.execute(text):
                pass
        except apsw.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is one transaction, which is durable afterwards."""
        self.command("BEGIN IMMEDIATE")
        try:
            yield
            self.command("COMMIT")
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Roll back an open transaction; never raises."""
        # If it fails, the caller closes the connection and opens it again before the next use.
        with suppress(apsw.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    # -- the WAL

    def checkpoint(self) -> None:
        """Copy the WAL into the file, as far as readers and writers allow now."""
        # Busy means that another connection makes a checkpoint.
        with self._translated(), suppress(apsw.BusyError):
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def copy_again(self) -> None:
        """Write again the pages that count as copied from the WAL into the file, and sync the file.

        SQLite counts pages as copied before it syncs the file, and if that sync fails it does not copy them again. But
        the system may have dropped the failed writes, and the next sync succeeds all the same. The WAL would then be
        reused while the file lacks pages. So this runs after a failed checkpoint, and when a store is opened. It writes
        what each page already has: the newest version among the copied frames. It leaves out pages beyond the file's
        end, which was truncated since.
        """
        with self._translated():
            _, frames = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            if frames <= 0:
                return
            newest: dict[int, int] = {}
            pages = 0
            with self._file("-wal", apsw.SQLITE_OPEN_WAL) as wal, self._file("", apsw.SQLITE_OPEN_MAIN_DB) as file:
                for frame in range(frames):
                    offset = WAL_HEADER_BYTES + frame * (FRAME_HEADER_BYTES + PAGE_BYTES)
                    number, size = _FRAME.unpack(wal.xRead(_FRAME.size, offset))
                    newest[number] = offset + FRAME_HEADER_BYTES
                    pages = size or pages
                for number, offset in newest.items():
                    if number <= pages:
                        file.xWrite(wal.xRead(PAGE_BYTES, offset), (number - 1) * PAGE_BYTES)
                file.xSync(apsw.SQLITE_SYNC_FULL)

    def sync_file(self) -> None:
        """Sync the file itself, without the WAL."""
        with self._translated(), self._file("", apsw.SQLITE_OPEN_MAIN_DB) as file:
            file.xSync(apsw.SQLITE_SYNC_FULL)

    @contextmanager
    def _file(self, ending: str, kind: int) -> Iterator[apsw.VFSFile]:
        """A file as SQLite opens it: to close another descriptor would drop the locks that this process has."""
        flags = [kind | apsw.SQLITE_OPEN_READWRITE, 0]
        file = apsw.VFSFile(self._vfs or "", f"{self.path}{ending}", flags)
        try:
            yield file
        finally:
            file.xClose()

    def uncopied_pages(self) -> int:
        with self._translated():
            frames, copied = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return max(0, frames - copied)

    def restart_wal(self, wait_ms_max: int = BUSY_MS_MAX) -> bool:
        """Copy all of the WAL into the file and empty it; False if readers held it for longer than that."""
        with self._translated():
            try:
                self.connection.set_busy_timeout(wait_ms_max)
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
            finally:
                self.connection.set_busy_timeout(BUSY_MS_MAX)
        return True

    def close(self) -> None:
        with self._translated():
            self.connection.close(True)


class Checkpointer:
    """Keeps the WAL short while appends go on. The writer reports the WAL's length after every commit.

    SQLite reuses a WAL from its beginning when all of it is in the file. When the WAL reaches its limit, a thread with
    its own connection copies it and syncs the file; the writer then copies and syncs the small rest that came
    meanwhile. While a reader holds an old state for long, the WAL grows beyond its limit. Its file does not shrink when
    it is reused, so a file of several times the limit is truncated at the next chance.

    The connection is open as long as the store is. So a writer that reopens its own after a failed sync goes on with
    the WAL as it was; if all connections were closed, SQLite would take the failed commit for a good one.
    """

    def __init__(self, database: SqliteDatabase, wal_bytes_max: int) -> None:
        self._database = database
        self._pages_max = max(64, wal_bytes_max // PAGE_BYTES)
        self._next_at = self._pages_max
        self._turn = threading.Lock()
        self._in_doubt = True
        self._to_empty = False
        self._not_before = self._cut_not_before = 0.0
        self._longest = 0
        with suppress(FileNotFoundError):
            self._longest = database.path.with_name(f"{FILE_NAME}-wal").stat().st_size // PAGE_BYTES
        self._due = threading.Event()
        self._copied = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-checkpoints", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is due: the next commit needs one fsync."""
        is_long = self._longest > OVERGROWN * self._pages_max
        return not (is_long or self._to_empty or self._due.is_set() or self._copied.is_set())

    def committed(self, pages: int, writer: SqliteDatabase) -> None:
        """The writer's commit left this many pages in the WAL."""
        self._longest = max(self._longest, pages)
        if self._copied.is_set() and not self._to_empty:
            self._copied.clear()
            self._attempt(writer)
            # A reader may hold the WAL, which then goes on growing: copy again when it has grown by a quarter.
            self._next_at = pages + self._pages_max // 4
        elif pages < self._pages_max:
            self._next_at = self._pages_max
        elif pages >= self._next_at and not self._due.is_set():
            self._next_at = pages + self._pages_max // 4
            self._due.set()
        if self._longest > OVERGROWN * self._pages_max:
            self._truncate(writer)

    def empty(self, pages: int, writer: SqliteDatabase) -> bool:
        """Whether the WAL, which has this many pages, is empty now; if not, try again after another commit."""
        if self._due.is_set() or time.monotonic() < self._not_before:
            return False  # The thread copies it, or a reader just held it.
        self._to_empty = pages > EMPTIED_PAGES_MAX and not self._copied.is_set()
        if self._to_empty:
            # To copy so much would hold up the writer: the thread copies it first.
            self._due.set()
            return False
        return self._empty(writer)

    def _empty(self, writer: SqliteDatabase) -> bool:
        self._copied.clear()
        self._not_before = time.monotonic() + EMPTY_PAUSE_S
        try:
            return self.copy(writer, restart=True, wait_ms_max=EMPTY_WAIT_MS_MAX)
        except PenstockError as error:
            log.warning("the write-ahead log could not be emptied; trying again: %s", error)
            return False

    def _truncate(self, writer: SqliteDatabase) -> None:
        """Empty the WAL; if much of it is not in the file yet, the thread copies that first."""
        if self._to_empty or self._due.is_set() or time.monotonic() < self._cut_not_before:
            return
        self._cut_not_before = time.monotonic() + CUT_PAUSE_S
        if writer.uncopied_pages() > EMPTIED_PAGES_MAX:
            self._due.set()
        else:
            self._empty(writer)

    def copy(self, database: SqliteDatabase, *, restart: bool = False, wait_ms_max: int = BUSY_MS_MAX) -> bool:
        """Copy the WAL into the file; with `restart` all of it, and the WAL is empty then.

        Raises if it fails; False if a reader still held what was to be emptied.
        """
        with self._turn:
            if self._in_doubt:
                database.copy_again()
            self._in_doubt = True
            done = True
            if restart:
                done = database.restart_wal(wait_ms_max)
                self._longest = 0 if done else self._longest
            else:
                database.checkpoint()
            if database is self._database:
                # SQLite syncs only at the WAL's end; without this the writer would sync all that we copied.
                database.sync_file()
            self._in_doubt = False
            return done

    def _attempt(self, database: SqliteDatabase) -> None:
        try:
            self.copy(database)
        except PenstockError as error:
            # Nothing is lost: the WAL holds everything until a later checkpoint succeeds.
            log.warning("a checkpoint failed and will be tried again: %s", error)
        except Exception:
            log.exception("a checkpoint failed and will be tried again")

    def _work(self) -> None:
        while self._due.wait() and not self._closing.is_set():
            self._attempt(self._database)
            self._copied.set()
            self._due.clear()
            # A close during the copy has set `_due` too, and the line above cleared it.
            if self._closing.is_set():
                break

    def close(self) -> None:
        self._closing.set()
        self._due.set()
        self._thread.join()
        self._database.close()
