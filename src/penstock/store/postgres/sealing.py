"""Seals in PostgreSQL: putting one record in the place of many. See `penstock.store.tables.sealing` for the rest."""

from penstock.store.contract import Seal, Unsealed
from penstock.store.postgres.database import Database, rereading
from penstock.store.tables import sealing


class Sealing(sealing.Sealing[Database]):
    """The reading half of seals on PostgreSQL."""

    def sealed(self) -> int:
        return int(self.db.value("sealed"))

    @rereading
    def unsealed(self) -> Unsealed | None:
        with self.db.snapshot():
            # A record that is missing in a damaged store is passed over; so is what began before the mark.
            first, head, *ledger = self.db.row("unsealed_start")
            found = self._group(first, head)
            return Unsealed(*found, (ledger[0], ledger[1])) if found else None


def seal(db: Database, op: Seal) -> bool:
    """Carry out a seal if everything is as it was when it was made."""
    mark, *ledger = db.row("ledger")
    if op.next <= mark or op.first < mark or op.ledger != tuple(ledger):
        return False
    if op.data is not None and not _merge(db, op, op.data):
        return False
    db.later("move_mark", {"position": op.next})
    return True


def _merge(db: Database, op: Seal, data: bytes) -> bool:
    place = sealing.seal_place(db, op, data)
    if place is None:
        return False
    db.later("delete_records", {"first": op.first, "last": op.last})
    db.later("add_record", {**place, "data": data})
    return True
