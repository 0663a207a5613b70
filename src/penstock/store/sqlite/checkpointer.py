"""Keeps the WAL short without making appends wait.

A WAL is used again from its beginning once all of it is in the file. When it has grown to its limit, a thread with
its own connection copies it; what the writer adds meanwhile, a small rest, the writer copies itself right after.
"""

import logging
import threading
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.store.sqlite.database import PAGE_BYTES, Database

log = logging.getLogger(__name__)


class Checkpointer:
    """Told by the writer after every commit how many pages the WAL has."""

    def __init__(self, connect: Callable[[], Database], wal_bytes_max: int) -> None:
        self._connect = connect
        self._pages_max = max(64, wal_bytes_max // PAGE_BYTES)
        self._next_at = self._pages_max
        self._due = threading.Event()
        self._copied = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def committed(self, pages: int, writer: Database) -> None:
        """The writer's commit left this many pages in the WAL."""
        if self._copied.is_set():
            self._copied.clear()
            _attempt(writer)
            # If a reader holds the WAL it goes on growing; then copy again when it has grown somewhat more.
            self._next_at = pages + self._pages_max // 4
        elif pages < self._pages_max:
            self._next_at = self._pages_max
        elif pages >= self._next_at and not self._due.is_set():
            self._next_at = pages + self._pages_max // 4
            self._start()
            self._due.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-checkpoints", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        database: Database | None = None
        while self._due.wait() and not self._closing.is_set():
            try:
                database = database or self._connect()
                _attempt(database)
            except PenstockError as error:
                log.warning("no connection for checkpoints; will try again: %s", error)
            self._copied.set()
            self._due.clear()
            # A close during the above has rung too, and that ring was just cleared.
            if self._closing.is_set():
                break
        if database is not None:
            database.close()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()


def _attempt(database: Database) -> None:
    try:
        database.checkpoint()
    except PenstockError as error:
        # Nothing is lost by it: the WAL holds everything until a later one succeeds.
        log.warning("a checkpoint failed and will be tried again: %s", error)
