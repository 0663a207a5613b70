"""Erasing what nobody shall read any more, in steps.

From the moment that it is entered in the ledger nobody can read it: readers see tombstones in its place (`hiding`). A
step then puts tombstones into some records, or removes some rows of output. PostgreSQL keeps the old versions of rows
until VACUUM removes them, which `vacuum` does; only then is an erasure finished.

What that means: no statement can bring the contents back any more. Their bytes may stay in unused parts of the tables'
files until something is written there, and in the write-ahead log, in archives and in backups until those are gone.
"""

from collections.abc import Collection
from typing import Final

from penstock.store.contract import Erase
from penstock.store.postgres.arrays import Numbers
from penstock.store.postgres.database import Database
from penstock.store.record import Record
from penstock.store.tables.erasing import Entry, Step

STEP_BYTES_MAX: Final = 4 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""


def erase(db: Database, op: Erase, now: int, emptied: Collection[int]) -> int:
    """One step of the oldest erasures; how many are open after it. Of those in `emptied` no row is left either."""
    if emptied:
        db.later("finish_erasures", {"ids": Numbers(emptied), "now": now})
    return _Step(db, op.records_max, STEP_BYTES_MAX).carry_out()


class _Step(Step[Database]):
    def _remove_output(self, iterator: int, entry: Entry) -> int:
        values = {"id": iterator, "ordinal": entry.done, "limit": self.records_left, "bytes_max": STEP_BYTES_MAX}
        rows = self._db.rows("remove_outputs", values)
        self.spend(sum(size for _, size in rows), len(rows))
        self._db.has_sent = True
        return max(ordinal for ordinal, _ in rows) + 1 if rows else entry.last

    def _put(self, record: Record, data: bytes) -> None:
        self._db.later("replace_record", {"position": record.position, "data": data})
