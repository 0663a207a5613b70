"""Seals in SQLite: which records come next, and putting one in the place of many.

See `penstock.store.sealing` for what is merged. The index of streams stays as it is, because it leads to positions and
a record is found by any position in it; so does the index of blocks, because only records of one block are merged.
"""

import logging
from typing import Any

import apsw

from penstock.errors import StorageFailure
from penstock.store.contract import Seal, Store, Unsealed
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS, checked, group
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.guarded import RECORDS, Value, blank, neighbours

log = logging.getLogger(__name__)


class Sealing(Store):
    """The reading half of seals on SQLite."""

    db: Database

    def sealed(self) -> int:
        return _mark(self.db)

    def unsealed(self) -> Unsealed | None:
        with self.db.snapshot():
            mark = self.sealed()
            # A record that is missing in a damaged store is passed over; so is what began before the mark.
            first = self.db.value("next_record_start", {"position": mark - 1})
            if first is None or first >> BLOCK_BITS >= (self.head() + 1) >> BLOCK_BITS:
                return None
            records, following = self._group(first)
            return Unsealed(records, following, _ledger(self.db))

    def _group(self, first: int) -> tuple[list[Record], int]:
        """The next records to be merged, and where the mark goes."""
        end = ((first >> BLOCK_BITS) + 1 << BLOCK_BITS) - 1
        rows = self.db.rows("unsealed_rows", {"low": first, "high": end})
        positions, following = group(rows)
        if not positions:
            return [], self._after(rows[-1][0])
        found = self.db.rows("unsealed_records", {"low": positions[0], "high": positions[-1]})
        records, damaged = checked(found)
        if damaged is not None:
            return records, self._after(found[len(records)][0])
        return records, min(following, self._after(rows[-1][0]))

    def _after(self, position: int) -> int:
        """Where the record after one begins. A damaged count would lead astray."""
        following: int | None = self.db.value("next_record_start", {"position": position})
        return following or self.head() + 1


def _mark(db: Database) -> int:
    return int(db.value("meta", {"key": "sealed"}))


def _ledger(db: Database) -> tuple[int, int]:
    """Another one whenever something was entered in the ledger or a record was rewritten."""
    return db.value("last_erasure"), int(db.value("meta", {"key": "rewrites"}))


def seal(db: Database, op: Seal, unsealable: set[int]) -> bool:
    """Carry out a seal if everything is as it was when it was made.

    Where a page is damaged it fails and adds its first position to `unsealable`; there the mark moves on without it.
    """
    mark = _mark(db)
    if op.next <= mark or op.first < mark or op.ledger != _ledger(db):
        return False
    if op.data is not None and op.first not in unsealable and not _merge(db, op, op.data, unsealable):
        return False
    db.run("move_mark", {"position": op.next})
    return True


def _merge(db: Database, op: Seal, data: bytes, unsealable: set[int]) -> bool:
    first, count, context_id, stream_id = db.row("seal_place", {"first": op.first, "last": op.last})
    # The record is checked once more: it takes the place of others.
    if first != op.first or not count == op.last - op.first + 1 == Record(data, op.first).count:
        return False
    row = {"position": op.first, "count": count, "context_id": context_id, "stream_id": stream_id, "size": len(data)}
    try:
        _replace(db, op, neighbours(db, RECORDS, op.first, op.last), row)
    except StorageFailure as error:
        if isinstance(error.__cause__, apsw.CorruptError | UnicodeDecodeError):
            # A damaged page beside them, after which SQLite writes nothing more in this transaction. The page is not to
            # be touched, and these records are as good as they were.
            log.warning("positions %d to %d are not sealed: %s", op.first, op.last, error.reason)
            unsealable.add(op.first)
        raise
    db.overwrite(RECORDS.name, "data", op.first, data)
    return True


def _replace(db: Database, op: Seal, moved: list[Value], row: dict[str, Any]) -> None:
    with blank(db, RECORDS, moved):
        db.run("blank_records", {"first": op.first, "last": op.last})
        db.run("delete_records", {"first": op.first, "last": op.last})
        db.run("add_blank_record", row)
