"""Seals in PostgreSQL: which records come next, and putting one in the place of many.

See `penstock.store.sealing` for what is merged. The index of streams stays as it is, because it leads to positions and
a record is found by any position in it; so does the index of blocks, because only records of one block are merged.
"""

from penstock.store.contract import Seal, Store, Unsealed
from penstock.store.postgres.database import Database, rereading
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS, checked, group


class Sealing(Store):
    """The reading half of seals on PostgreSQL."""

    db: Database

    def sealed(self) -> int:
        return int(self.db.value("sealed"))

    @rereading
    def unsealed(self) -> Unsealed | None:
        with self.db.snapshot():
            # A record that is missing in a damaged store is passed over; so is what began before the mark.
            first, head, *ledger = self.db.row("unsealed_start")
            if first is None or first >> BLOCK_BITS >= (head + 1) >> BLOCK_BITS:
                return None
            records, following = self._group(first)
            return Unsealed(records, following, (ledger[0], ledger[1]))

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
    first, count, context_id, stream_id = db.row("seal_place", {"first": op.first, "last": op.last})
    # The record is checked once more: it takes the place of others.
    if first != op.first or not count == op.last - op.first + 1 == Record(data, op.first).count:
        return False
    db.later("delete_records", {"first": op.first, "last": op.last})
    row = {"position": op.first, "count": count, "context_id": context_id, "stream_id": stream_id, "data": data}
    db.later("add_record", row)
    return True
