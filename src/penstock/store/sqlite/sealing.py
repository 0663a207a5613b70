"""Seals in SQLite: putting one record in the place of many. See `penstock.store.tables.sealing` for the rest."""

import logging
from typing import Any

import apsw

from penstock.errors import StorageFailure
from penstock.store.contract import Seal, Unsealed
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.guarded import RECORDS, Value, blank, neighbours
from penstock.store.tables import sealing

log = logging.getLogger(__name__)


class Sealing(sealing.Sealing[Database]):
    """The reading half of seals on SQLite."""

    def sealed(self) -> int:
        return _mark(self.db)

    def unsealed(self) -> Unsealed | None:
        with self.db.snapshot():
            # A record that is missing in a damaged store is passed over; so is what began before the mark.
            first = self.db.value("next_record_start", {"position": self.sealed() - 1})
            found = self._group(first, self.head())
            return Unsealed(*found, _ledger(self.db)) if found else None


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
    place = sealing.seal_place(db, op, data)
    if place is None:
        return False
    try:
        _replace(db, op, neighbours(db, RECORDS, op.first, op.last), {**place, "size": len(data)})
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
