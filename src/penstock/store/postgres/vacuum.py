"""Removing the old versions of rows that erasures leave behind: VACUUM, on a connection and in a thread of its own.

It takes long on a large store, and nobody waits for it. An old version can be removed when nobody reads from a moment
before it was replaced; that is looked at first, so that an erasure is not called finished when VACUUM had to leave
something.
"""

import logging
import threading
from contextlib import closing, suppress
from typing import Final

import psycopg

from penstock.errors import PenstockError
from penstock.store.postgres.connecting import Target
from penstock.store.postgres.database import Database

log = logging.getLogger(__name__)

CANCEL_S_MAX: Final = 1.0


class Vacuum:
    """Runs at most once at a time. `take` hands out the erasures of which no row is left."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._thread: threading.Thread | None = None
        self._db: Database | None = None
        self._emptied: list[int] = []

    def take(self) -> list[int]:
        """The erasures that it has come to the end of, each until it is entered in the ledger."""
        return [] if self._is_running() else self._emptied

    def start(self) -> None:
        """Begin unless it is at it."""
        if not self._is_running():
            self._emptied = []
            self._thread = threading.Thread(target=self._work, name="penstock-vacuum", daemon=True)
            self._thread.start()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        try:
            with closing(Database(self._target, write=True)) as db:
                self._db = db
                self._emptied = _vacuum(db)
        except PenstockError as error:
            log.warning("what was erased could not be vacuumed yet: %s", error)
        except Exception:
            log.exception("what was erased could not be vacuumed")

    def close(self) -> None:
        """End it; the next server begins anew."""
        if self._thread is None:
            return
        while self._thread.is_alive():
            if self._db is not None:
                with suppress(psycopg.Error):
                    self._db.connection.cancel_safe(timeout=CANCEL_S_MAX)
            self._thread.join(CANCEL_S_MAX)


def _vacuum(db: Database) -> list[int]:
    """Remove what no reader can see any more; the erasures of which nothing is left then."""
    cleared = [number for (number,) in db.rows("cleared_erasures")]
    if cleared:
        db.later("vacuum_records")
        db.later("vacuum_outputs")
        db.later("vacuum_staged")
    return cleared
