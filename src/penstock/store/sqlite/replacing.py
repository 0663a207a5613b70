"""Putting a new store in the place of the one in a directory, so that a crash leaves one of them, whole.

The new store is built in the folder `restoring` inside the directory, and is then moved onto the old one's file. Before
that, the old store is made one file, without a WAL: it stays a good store, and no WAL of one can meet the file of the
other. A store that is too damaged for that is first moved into the folder. While there is only that folder, nobody
begins an empty store beside it; see `unfinished`.
"""

import os
import shutil
import struct
import time
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import apsw

from penstock.errors import NotAStore, PlaceRefused, StoreError, StoreInUse, StoreUnfinished
from penstock.files import is_shared, sync_directory
from penstock.model import ticks_of_unix_ns
from penstock.store.contract import Store, StoreIdentity, StoreImport
from penstock.store.replacing import Replaced, StoreHold, StoreReplacement
from penstock.store.sqlite import schema
from penstock.store.sqlite.access import BESIDE, settle_access
from penstock.store.sqlite.database import APPLICATION_ID, FILE_NAME, Database
from penstock.store.sqlite.importing import SqliteImport
from penstock.store.sqlite.lock import LOCK_NAME, make_directory, take_lock
from penstock.store.sqlite.store import SqliteReader
from penstock.store.sqlite.unfinished import IMPORTING_ID, RESTORING
from penstock.store.tables.state import table

REPLACED: Final = "replaced.db"
"""A damaged store, out of the way inside the folder until the new one is in its place."""
_OURS: Final = frozenset((FILE_NAME, *BESIDE, LOCK_NAME, RESTORING))
_OURS_ASIDE: Final = frozenset((FILE_NAME, *BESIDE, LOCK_NAME, REPLACED))
_MAGIC: Final = b"SQLite format 3\0"


class Replacement(StoreReplacement):
    """A directory of which the store is being replaced, or that gets one. Owned as a server owns it."""

    def __init__(self, directory: Path | str, *, replace: bool) -> None:
        self.directory = Path(directory)
        self.shown = str(self.directory)
        self.aside = self.directory / RESTORING
        self._replace = replace
        self._lock: int | None = None
        self._made: list[Path] = []
        """The lock, the directory and those above it, as far as they were made here: gone again if nothing is put."""

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
        """Remove the folder; if a store is there that was to be replaced and was not, put it back first."""
        if _has_store(self.aside, REPLACED) and not _has_store(self.directory):
            (self.aside / REPLACED).replace(self.directory / FILE_NAME)
        if self.aside.exists():
            sync_directory(self.directory)
            shutil.rmtree(self.aside)
            sync_directory(self.directory)

    def _settle(self) -> None:
        """Read what outlives the old store, and make it one file."""
        try:
            with closing(Database(self.directory, create=False, write=True)) as db:
                schema.migrate(db, self.directory, ticks_of_unix_ns(time.time_ns()))
                identity = StoreIdentity(db.value("meta", {"key": "store_id"}), db.value("timeline"))
                self.replaced = Replaced(identity, table(db, "timelines"), table(db, "erasures"))
                _make_one_file(db, self.directory)
        except StoreUnfinished:
            pass  # There was never a store in it.
        except (StoreError, NotAStore, struct.error, ValueError, TypeError):
            # Where a file is damaged, any value can be in it.
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
        # The old one's WAL must be gone for good before there is another file that it could be taken for.
        sync_directory(self.directory)
        (self.aside / FILE_NAME).replace(file)
        sync_directory(self.directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clear()
        finally:
            self._leave()

    def _leave(self) -> None:
        assert self._lock is not None
        made = [] if _has_store(self.directory) else self._made
        # Before it is given up: a lock that somebody else has by then is not ours to remove.
        for place in made[:1]:
            place.unlink(missing_ok=True)
        os.close(self._lock)
        for place in made[1:]:
            with suppress(OSError):
                place.rmdir()


class Hold(StoreHold):
    """A directory with a store, owned as a server owns it."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    def __enter__(self) -> Self:
        if not (self._directory / FILE_NAME).exists():
            raise NotAStore(str(self._directory), f"it has no {FILE_NAME}")
        self._lock = take_lock(self._directory)
        return self

    def check(self) -> None:
        """The system keeps the lock as long as the process lives."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)


def _has_store(directory: Path, name: str = FILE_NAME) -> bool:
    """An empty file is what is left where a server was refused."""
    path = directory / name
    return path.exists() and path.stat().st_size > 0


def _make_one_file(db: Database, directory: Path) -> None:
    try:
        db.connection.pragma("journal_mode", "delete")
    except apsw.BusyError:
        raise StoreInUse(str(directory), "a process that reads it") from None
    except apsw.Error as error:
        raise StoreError(str(error)) from error
