"""Replacing the store in a directory, so that a crash leaves either the old store or the new one.

An import fills the new store in the folder `restoring` inside the directory. Then the new file is moved onto the old
one. Before that, the old store becomes a single file without a WAL: it stays a good store, and no WAL of one can meet
the file of the other. A store that is too damaged for that is first moved into the folder. While the directory has only
that folder, no server creates an empty store in it.

An import writes its file with a rollback journal instead of a WAL, because rows that are only added then go to disk
once. Until `finish` the file has a mark in its header, and nothing opens it as a store.
"""

import os
import shutil
import struct
import time
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Self

import apsw

from penstock.errors import NotAStore, PlaceRefused, StorageFailure, StoreError, StoreInUse, StoreUnfinished
from penstock.files import is_shared, sync_directory
from penstock.model import ticks_of_unix_ns
from penstock.store.contract import ACCESS_TABLES, Arrival, StoreIdentity, StoreState
from penstock.store.replacement import Replaced, StoreHold, StoreReplacement
from penstock.store.sqlite import schema
from penstock.store.sqlite.database import SqliteDatabase
from penstock.store.sqlite.directory import (
    BESIDE,
    FILE_NAME,
    LOCK_NAME,
    RESTORING,
    make_directory,
    settle_access,
    take_lock,
)
from penstock.store.sqlite.schema import APPLICATION_ID, IMPORTING_ID
from penstock.store.sqlite.store import SqliteReader
from penstock.store.tables.imports import StoreImport
from penstock.store.tables.store import Store, state_table
from penstock.store.watermarks import KINDS, file_name

CACHE_KIB: Final = 256 * 1024
REPLACED: Final = "replaced.db"
"""A damaged store, inside the folder until the new one is in its place."""
_OURS: Final = frozenset((FILE_NAME, *BESIDE, LOCK_NAME, RESTORING, *map(file_name, KINDS)))
_OURS_ASIDE: Final = frozenset((FILE_NAME, *BESIDE, LOCK_NAME, REPLACED))
_MAGIC: Final = b"SQLite format 3\0"


class _ImportDatabase(SqliteDatabase):
    def _configure(self, write: bool) -> None:
        super()._configure(write)
        self.connection.pragma("cache_size", -CACHE_KIB)
        if self.connection.pragma("journal_mode", "persist") != "persist":
            raise StorageFailure("another process reads it; end that process")


class SqliteImport(StoreImport):
    """A new store in a directory without a store, or with an unused one; or an interrupted import that goes on."""

    _db: SqliteDatabase

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        make_directory(self._directory)
        with ExitStack() as undo:
            self._lock = take_lock(self._directory)
            undo.callback(os.close, self._lock)
            settle_access(self._directory)
            self._db = _ImportDatabase(self._directory, create=True, write=True)
            undo.callback(self._db.close)
            self._mark()
            undo.pop_all()

    def _mark(self) -> None:
        if self._db.connection.pragma("application_id") == IMPORTING_ID:
            if self._db.connection.pragma("user_version") != schema.SCHEMA_VERSION:
                raise PlaceRefused(str(self._directory), "another version of Penstock began to fill it; remove it")
            return
        schema.migrate(self._db, self._directory, self._now())
        if self._db.value("is_used"):
            raise PlaceRefused(str(self._directory), "it holds a store already")
        self._db.connection.pragma("application_id", IMPORTING_ID)

    def _now(self) -> int:
        return ticks_of_unix_ns(time.time_ns())

    def _transaction(self) -> AbstractContextManager[None]:
        return self._db.transaction()

    def _end_finish(self) -> None:
        self._db.connection.pragma("application_id", APPLICATION_ID)

    def finish(self, state: StoreState, arrival: Arrival | None = None) -> None:
        super().finish(state, arrival)
        # Leave one file, in the mode that readers expect.
        self._db.command("PRAGMA journal_mode = delete")
        self._db.command("PRAGMA journal_mode = wal")

    def close(self) -> None:
        try:
            super().close()
        finally:
            os.close(self._lock)


class SqliteReplacement(StoreReplacement):
    """A directory whose store is being replaced, or that gets one. It holds the lock, as a server does."""

    def __init__(self, directory: Path | str, *, replace: bool) -> None:
        self.directory = Path(directory)
        self.shown = str(self.directory)
        self.aside = self.directory / RESTORING
        self._replace = replace
        self._lock: int | None = None
        self._made: list[Path] = []
        """The lock, the directory and its parents, if they are new; removed again if there is no new store."""

    def look(self) -> None:
        if not self.directory.exists():
            return
        if not self.directory.is_dir():
            raise PlaceRefused(str(self.directory), "it is a file, not a directory")
        if _has_store(self.directory) or _has_store(self.aside, REPLACED):
            self._look_at_store()
        elif foreign := sorted({entry.name for entry in self.directory.iterdir()} - _OURS):
            raise PlaceRefused(str(self.directory), f"it holds {foreign[0]}, which is no part of a store")
        if self.aside.exists() and {entry.name for entry in self.aside.iterdir()} - _OURS_ASIDE:
            raise PlaceRefused(str(self.directory), f"its folder {RESTORING} was not made by a restore")

    def _look_at_store(self) -> None:
        if not self._replace:
            raise PlaceRefused(str(self.directory), f"it holds a store; {self.advice}")
        file = self.directory / FILE_NAME if _has_store(self.directory) else self.aside / REPLACED
        with file.open("rb") as opened:
            header = opened.read(100)
        application = int.from_bytes(header[68:72], "big")
        if header.startswith(_MAGIC) and application not in (APPLICATION_ID, IMPORTING_ID):
            raise NotAStore(str(self.directory), "its file is a database of some other program")

    def __enter__(self) -> Self:
        self.look()
        places = (self.directory / LOCK_NAME, self.directory, *self.directory.parents)
        self._made = [place for place in places if not place.exists()]
        make_directory(self.directory)
        self._lock = take_lock(self.directory)
        try:
            settle_access(self.directory)
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def _begin(self) -> None:
        self.look()
        self._clear()
        if _has_store(self.directory):
            self._settle()
        make_directory(self.aside, shared=is_shared(self.directory))

    def _clear(self) -> None:
        """Remove the folder; if it has a store that was not replaced, move that back first."""
        if _has_store(self.aside, REPLACED) and not _has_store(self.directory):
            (self.aside / REPLACED).replace(self.directory / FILE_NAME)
        if self.aside.exists():
            sync_directory(self.directory)
            shutil.rmtree(self.aside)
            sync_directory(self.directory)

    def _settle(self) -> None:
        """Read what the new store inherits from the old one, and make the old one a single file."""
        try:
            with closing(SqliteDatabase(self.directory, create=False, write=True)) as db:
                schema.migrate(db, self.directory, ticks_of_unix_ns(time.time_ns()))
                identity = StoreIdentity(*db.row("identity"))
                access = {name: state_table(db, name) for name in ACCESS_TABLES}
                self.replaced = Replaced(identity, state_table(db, "timelines"), state_table(db, "erasures"), access)
                try:
                    db.connection.pragma("journal_mode", "delete")
                except apsw.BusyError:
                    raise StoreInUse(str(self.directory), "a process that reads it") from None
                except apsw.Error as error:
                    raise StoreError(str(error)) from error
        except StoreUnfinished:
            pass  # There was never a store in it.
        except (StoreError, NotAStore, struct.error, ValueError, TypeError):
            # A damaged file can have any value.
            self.is_damaged = True

    def filling(self) -> StoreImport:
        return SqliteImport(self.aside)

    def built(self) -> Store:
        return SqliteReader(self.aside)

    def swap(self) -> None:
        # The new store is one file in the folder.
        file = self.directory / FILE_NAME
        if any((self.directory / name).exists() for name in BESIDE):
            if file.exists():
                file.replace(self.aside / REPLACED)
            sync_directory(self.directory)
            for name in BESIDE:
                (self.directory / name).unlink(missing_ok=True)
        for name in map(file_name, KINDS):
            (self.directory / name).unlink(missing_ok=True)
        # The old WAL must be gone durably before there is a new file that SQLite could apply it to.
        sync_directory(self.directory)
        (self.aside / FILE_NAME).replace(file)
        sync_directory(self.directory)

    def __exit__(self, *_error: object) -> None:
        try:
            self._clear()
        finally:
            self._leave()

    def _leave(self) -> None:
        assert self._lock is not None
        made = [] if _has_store(self.directory) else self._made
        # Before we release the lock, because another process may own the file afterwards.
        for place in made[:1]:
            place.unlink(missing_ok=True)
        os.close(self._lock)
        for place in made[1:]:
            with suppress(OSError):
                place.rmdir()


class SqliteHold(StoreHold):
    """A directory with a store. It holds the lock, as a server does."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    def __enter__(self) -> Self:
        if not (self._directory / FILE_NAME).exists():
            raise NotAStore(str(self._directory), f"it has no {FILE_NAME}")
        self._lock = take_lock(self._directory)
        return self

    def check(self) -> None:
        """The system keeps the lock as long as the process lives."""

    def __exit__(self, *_error: object) -> None:
        os.close(self._lock)


def _has_store(directory: Path, name: str = FILE_NAME) -> bool:
    """A server that was refused leaves an empty file, which is no store."""
    path = directory / name
    return path.exists() and path.stat().st_size > 0
