"""Erasures and stages on PostgreSQL, and VACUUM.

PostgreSQL keeps old versions of rows until VACUUM removes them. An erasure is finished only after that. Then no
statement can bring the contents back. Their bytes may stay in unused parts of the tables' files until something else is
written there, and in the write-ahead log, in archives and in backups until those are gone.
"""

import logging
import threading
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Final

import psycopg

from penstock.errors import PenstockError
from penstock.store.contract import Stage
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.connection import Target
from penstock.store.postgres.database import PostgresDatabase
from penstock.store.record import Record
from penstock.store.stages import Unit, low_of
from penstock.store.tables.erasures import ErasureStep, LedgerEntry
from penstock.store.tables.stages import Stages

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""A step of an erasure ends when it has rewritten so much, because all commits wait for it."""
CANCEL_S_MAX: Final = 1.0


class PostgresErasureStep(ErasureStep):
    _db: PostgresDatabase

    def __init__(self, db: PostgresDatabase, records_max: int) -> None:
        super().__init__(db, records_max, STEP_BYTES_MAX)

    def _remove_output(self, iterator: int, entry: LedgerEntry) -> int:
        values = {"id": iterator, "ordinal": entry.done, "limit": self.records_left, "bytes_max": STEP_BYTES_MAX}
        rows = self._db.rows("remove_outputs", values)
        self.spend(sum(size for _, size in rows), len(rows))
        self._db.has_sent = True
        return max(ordinal for ordinal, _ in rows) + 1 if rows else entry.last

    def _replace(self, record: Record, data: bytes) -> None:
        self._db.later("replace_record", {"position": record.position, "data": data})


class PostgresStages(Stages):
    """Stages on PostgreSQL. VACUUM removes the old versions of their rows together with those of erasures."""

    def _add(self, number: int, op: Stage) -> None:
        columns = {
            "id": number,
            "numbers": Numbers(range(op.number, op.number + len(op.units))),
            "contexts": Texts(unit.context for unit in op.units),
            "streams": Texts(unit.stream for unit in op.units),
            "expected": Numbers(unit.expected for unit in op.units),
            "lows": Blobs(map(low_of, op.units)),
            "keys": Blobs(unit.keys for unit in op.units),
            "data": Blobs(unit.data for unit in op.units),
        }
        self._db.later("add_staged", columns)

    def _units(self, ids: list[int]) -> dict[int, Unit]:
        return {row[0]: Unit(*row[1:]) for row in self._db.rows("staged_units", {"ids": Numbers(ids)})}

    def _remove(self, ids: Collection[int]) -> None:
        numbers = {"ids": Numbers(ids)}
        self._db.later("delete_staged", numbers)
        self._db.later("delete_stages", numbers)

    def forget_state(self, iterator: int) -> None:
        self._db.later("forget_state", {"id": iterator})


class Vacuum:
    """Runs VACUUM in a thread with its own connection, because it takes long on a large store.

    VACUUM can remove an old version when no reader still sees it. A query checks that first, so that an erasure does
    not count as finished while VACUUM has to leave something.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._thread: threading.Thread | None = None
        self._db: PostgresDatabase | None = None
        self._emptied: list[int] = []

    def take(self) -> list[int]:
        """The erasures without old versions, each until the ledger says that it is finished."""
        return [] if self._is_running() else self._emptied

    def start(self) -> None:
        if not self._is_running():
            self._emptied = []
            self._thread = threading.Thread(target=self._work, name="penstock-vacuum", daemon=True)
            self._thread.start()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        try:
            with closing(PostgresDatabase(self._target, write=True)) as db:
                self._db = db
                cleared = [number for (number,) in db.rows("cleared_erasures")]
                for table in ("records", "outputs", "staged") if cleared else ():
                    db.later(f"vacuum_{table}")
                self._emptied = cleared
        except PenstockError as error:
            log.warning("VACUUM after an erasure failed; trying again: %s", error)
        except Exception:
            log.exception("VACUUM after an erasure failed")

    def close(self) -> None:
        """End it; the next server starts again."""
        if self._thread is None:
            return
        while self._thread.is_alive():
            if self._db is not None:
                with suppress(psycopg.Error):
                    self._db.connection.cancel_safe(timeout=CANCEL_S_MAX)
            self._thread.join(CANCEL_S_MAX)
