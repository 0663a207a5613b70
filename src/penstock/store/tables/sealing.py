"""Seals: which records come next, and whether one may still take the place of many.

See `penstock.store.sealing` for what is merged. The index of streams stays as it is, because it leads to positions and
a record is found by any position in it; so does the index of blocks, because only records of one block are merged.
"""

from typing import Any, Generic

from penstock.errors import DamagedRecord
from penstock.store.contract import Seal, Store
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS, checked, group, is_merge
from penstock.store.tables.queries import AnyQueries, Queries


class Sealing(Store, Generic[AnyQueries]):
    """The reading half of seals."""

    db: AnyQueries

    def _group(self, first: int | None, head: int) -> tuple[list[Record], int] | None:
        """The next records to be merged from one on, and where the mark goes; None if their block is not closed."""
        if first is None or first >> BLOCK_BITS >= (head + 1) >> BLOCK_BITS:
            return None
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


def seal_place(db: Queries, op: Seal, data: bytes) -> dict[str, Any] | None:
    """The row of a sealed record, without its data; None if there are other records than it was made of.

    Raises DamagedRecord if it does not have exactly what is in them: they stay.
    """
    first, count, context_id, stream_id = db.row("seal_place", {"first": op.first, "last": op.last})
    sealed = Record(data, op.first)
    if first != op.first or not count == op.last - op.first + 1 == sealed.count:
        return None
    if not is_merge(sealed, db.rows("unsealed_records", {"low": op.first, "high": op.last})):
        raise DamagedRecord(op.first, "it was to take the place of records that have other events")
    return {"position": op.first, "count": count, "context_id": context_id, "stream_id": stream_id}
