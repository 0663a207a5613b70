"""Keeps the WAL short while appends go on.

A WAL is used again from its beginning once all of it is in the file. When it has grown to its limit, a thread with
its own connection copies it and syncs the file; what the writer adds meanwhile, a small rest, the writer copies and
syncs itself right after.

While somebody reads an old state for long the WAL grows beyond its limit. Its file does not shrink by itself when it is
used from its beginning again, so one of several times the limit is cut off at the next chance.

That connection is open as long as the store is. While there is one, a writer that reopens its own after a failed
sync goes on with the WAL as it was; if all were closed, SQLite would take the failed commit for a good one.
"""

import logging
import threading
import time
from typing import Final

from penstock.errors import PenstockError
from penstock.store.sqlite.database import BUSY_MS_MAX, PAGE_BYTES, Database

log = logging.getLogger(__name__)

EMPTIED_PAGES_MAX: Final = 512
"""A WAL that is longer is copied by the thread before the writer empties it."""
EMPTY_WAIT_MS_MAX: Final = 20
"""How long the writer waits for readers before it puts off emptying the WAL."""
EMPTY_PAUSE_S: Final = 0.2
"""How long it puts that off: everyone who writes waits while it is tried."""
OVERGROWN: Final = 4
"""A WAL file of so many times its limit is cut off."""
CUT_PAUSE_S: Final = 5.0
"""How long it is between two attempts at that."""


class Checkpointer:
    """Told by the writer after every commit how many pages the WAL has."""

    def __init__(self, database: Database, wal_bytes_max: int) -> None:
        self._database = database
        self._pages_max = max(64, wal_bytes_max // PAGE_BYTES)
        self._next_at = self._pages_max
        self._turn = threading.Lock()
        self._in_doubt = True
        self._to_empty = False
        self._not_before = self._cut_not_before = 0.0
        self._longest = database.wal_bytes() // PAGE_BYTES
        self._due = threading.Event()
        self._copied = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-checkpoints", daemon=True)
        self._thread.start()

    def committed(self, pages: int, writer: Database) -> None:
        """The writer's commit left this many pages in the WAL."""
        self._longest = max(self._longest, pages)
        if self._copied.is_set() and not self._to_empty:
            self._copied.clear()
            self._attempt(writer)
            # If a reader holds the WAL it goes on growing; then copy again when it has grown somewhat more.
            self._next_at = pages + self._pages_max // 4
        elif pages < self._pages_max:
            self._next_at = self._pages_max
        elif pages >= self._next_at and not self._due.is_set():
            self._next_at = pages + self._pages_max // 4
            self._due.set()
        if self._longest > OVERGROWN * self._pages_max:
            self._cut(writer)

    def empty(self, pages: int, writer: Database) -> bool:
        """Whether the WAL, which has this many pages, could be emptied now; ask again after another commit if not."""
        if self._due.is_set() or time.monotonic() < self._not_before:
            return False  # The thread is at it, or somebody just read what the WAL holds.
        self._to_empty = pages > EMPTIED_PAGES_MAX and not self._copied.is_set()
        if self._to_empty:
            # Copying so much would hold up the writer: the thread shall do it first.
            self._due.set()
            return False
        return self._empty(writer)

    def _empty(self, writer: Database) -> bool:
        self._copied.clear()
        self._not_before = time.monotonic() + EMPTY_PAUSE_S
        try:
            return self.copy(writer, restart=True, wait_ms_max=EMPTY_WAIT_MS_MAX)
        except PenstockError as error:
            log.warning("the write-ahead log could not be emptied; trying again: %s", error)
            return False

    def _cut(self, writer: Database) -> None:
        """Empty the WAL, unless too much of it is not in the file yet; then the thread shall copy that first."""
        if self._to_empty or self._due.is_set() or time.monotonic() < self._cut_not_before:
            return
        self._cut_not_before = time.monotonic() + CUT_PAUSE_S
        if writer.uncopied_pages() > EMPTIED_PAGES_MAX:
            self._due.set()
        else:
            self._empty(writer)

    def copy(self, database: Database, *, restart: bool = False, wait_ms_max: int = BUSY_MS_MAX) -> bool:
        """Bring the WAL into the file; with `restart` all of it, and the WAL is empty then.

        Raises if it fails; False if somebody still read what was to be emptied.
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
                # SQLite syncs only who reaches the WAL's end; without this the writer would sync all that we copied.
                database.sync_file()
            self._in_doubt = False
            return done

    def _attempt(self, database: Database) -> None:
        try:
            self.copy(database)
        except PenstockError as error:
            # Nothing is lost by it: the WAL holds everything until a later one succeeds.
            log.warning("a checkpoint failed and will be tried again: %s", error)
        except Exception:
            log.exception("a checkpoint failed and will be tried again")

    def _work(self) -> None:
        while self._due.wait() and not self._closing.is_set():
            self._attempt(self._database)
            self._copied.set()
            self._due.clear()
            # A close during the above has rung too, and that ring was just cleared.
            if self._closing.is_set():
                break

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._due.set()
        self._thread.join()
        self._database.close()
