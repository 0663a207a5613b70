"""Keeping everybody from writing a store on PostgreSQL, for longer than one turn.

A session of its own has the lock that every write takes, so no server can change anything, whatever it believes. Other
servers end whoever stands still with that lock for too long; so it says something now and then.

That servers are there at all is seen from the name that their sessions have (`application_name`). It is looked at so
that they are stopped first rather than made to fail; the lock is what makes it safe.
"""

import threading
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from penstock.errors import PenstockError, StorageFailure, StoreInUse
from penstock.store.postgres.connecting import Target
from penstock.store.postgres.database import Database
from penstock.store.postgres.translation import translate
from penstock.store.replacing import StoreHold
from penstock.store.sql import load_queries

QUERIES: Final = load_queries("penstock.store.postgres", "exclusive.sql")

OTHERS_S_MAX: Final = 3.0
"""How long sessions may take to end that were closed just now."""
OWNING_S_MAX: Final = 10.0
"""How long a turn of somebody else is waited for."""
PAUSE_S: Final = 0.05
BEAT_S: Final = 2.0
PIDS_TOLD_MAX: Final = 5


class Hold(StoreHold):
    """A session that nobody writes beside. `is_strict`: refuses while other sessions of our name are connected."""

    def __init__(self, target: Target, *, is_strict: bool, is_changing: bool = False) -> None:
        self.target = target
        self._is_strict = is_strict
        # Who makes a schema, or brings it forward, takes another lock.
        self._locks = [target.lock, target.migration_lock] if is_changing else [target.lock]
        self._ending = threading.Event()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.db = Database(self.target, write=True)
            undo.callback(self.db.close)
            if self._is_strict:
                self._refuse_others()
            for lock in self._locks:
                self._own(lock)
            undo.callback(self._let_go)
            beating = threading.Thread(target=self._beat, name="penstock-hold", daemon=True)
            beating.start()
            undo.callback(beating.join)
            undo.callback(self._ending.set)
            self._undo = undo.pop_all()
        return self

    def rows(self, name: str, values: dict[str, Any] | None = None) -> list[Any]:
        """All rows of a query of `exclusive.sql`."""
        try:
            return self.db.connection.execute(QUERIES[name], values).fetchall()
        except psycopg.Error as error:
            raise translate(error) from error

    def value(self, name: str, values: dict[str, Any] | None = None) -> Any:
        """The first column of the first row."""
        return self.rows(name, values)[0][0]

    def _refuse_others(self) -> None:
        deadline = time.monotonic() + OTHERS_S_MAX
        while found := [pid for (pid,) in self.rows("others")]:
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, found[:PIDS_TOLD_MAX])) + ", …" * (len(found) > PIDS_TOLD_MAX)
                name = self.db.connection.info.parameter_status("application_name")
                raise StoreInUse(self.target.shown, f"sessions of the application {name} (PostgreSQL processes {pids})")
            time.sleep(PAUSE_S)

    def _own(self, lock: dict[str, int]) -> None:
        deadline = time.monotonic() + OWNING_S_MAX
        while not self.value("own", lock):
            if time.monotonic() > deadline:
                raise StoreInUse(self.target.shown, "somebody who is writing it, or has it to themselves")
            time.sleep(PAUSE_S)

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_S):
            # Whether it was lost is seen by `check`.
            with suppress(PenstockError):
                self.rows("beat")

    def _let_go(self) -> None:
        """Free the locks, if they were not lost: a session that is closed has its locks until it has ended."""
        with suppress(PenstockError):
            self.release()

    def release(self) -> None:
        """Let others write again; the session stays."""
        for lock in self._locks:
            self.rows("give_up", lock)
        self._locks = []

    def check(self) -> None:
        try:
            held = 0 if self.db.is_lost else self.value("beat")
        except StorageFailure:
            held = 0
        if held < len(self._locks):
            raise StorageFailure("the session that kept others from writing was lost; run it again")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
