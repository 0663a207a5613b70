"""Seals: many small records become one of about 4,096 events, which reads many times faster.

A block is 4,096 positions. Only records that begin in the same block are merged, because the index of contexts and
times has an entry for each block. A block is closed when the next record will begin in a later block: from then on its
records do not change. Everything before the mark is sealed; the mark is always the position where a record begins.

- Large records stay as they are, and so does a small record between two large ones.
- A merged record has all runs of the records that it replaces, in order: events keep position, sequence, id, commit
  and times, and tombstones stay tombstones.
- A damaged record is never merged, because that would hide the damage or spread it. Sealing goes on after it.
- Another process makes the merged record. The writer compares it with the small records before it removes them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from penstock.errors import DamagedRecord, LimitExceeded
from penstock.model.columns import TYPES_MAX
from penstock.store.contract import Seal
from penstock.store.record import Record

if TYPE_CHECKING:
    from penstock.store.tables.store import Store

BLOCK_BITS: Final = 12
"""A block is 4,096 positions: the grain of the index of contexts and times, and of seals."""
SEALED_EVENTS: Final = 1 << BLOCK_BITS
"""About how many events a sealed record has, because that many positions are in a block."""
SEALED_BYTES_MAX: Final = 4 << 20
"""Bytes of the records that are merged into one, which is never larger than they are together."""
LARGE_EVENTS: Final = 512
LARGE_BYTES: Final = 1 << 20
"""A record of so many events, or bytes, reads well as it is."""

Row = tuple[int, int, int]
"""A record in a listing: its position, its count of events, its bytes of data."""


def group(rows: Sequence[Row]) -> tuple[list[int], int]:
    """The positions of the records to merge next, and where the mark goes then.

    `rows` are all records, in order, from the mark to the end of one or more closed blocks. The answer has the first
    group of two or more records that may be merged. The mark goes past them and past the records after them that stay
    as they are, so each step merges something until the rows are used up. Without a group the mark goes past all rows.
    """
    groups = _groups(rows)
    merged = next((index for index, members in enumerate(groups) if len(members) > 1), None)
    if merged is None:
        return [], rows[-1][0] + rows[-1][1]
    later = next((members[0] for members in groups[merged + 1 :] if len(members) > 1), None)
    return [position for position, _, _ in groups[merged]], later[0] if later else rows[-1][0] + rows[-1][1]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows to merge, end to end; a record that stays as it is has a group to itself."""
    groups: list[list[Row]] = []
    block, following, size = -1, 0, 0
    for row in rows:
        position, count, data_bytes = row
        large = count >= LARGE_EVENTS or data_bytes >= LARGE_BYTES
        size += data_bytes
        # Where a record is missing, in a damaged store, nothing is merged over the gap.
        if large or position >> BLOCK_BITS != block or position != following or size > SEALED_BYTES_MAX:
            groups.append([row])
            # Nothing is added to a large record.
            block, size = -1 if large else position >> BLOCK_BITS, data_bytes
        else:
            groups[-1].append(row)
        following = position + count
    return groups


def checked(rows: Sequence[tuple[int, int, object]]) -> list[Record]:
    """The records of rows of position, count and data: all up to the first that is damaged."""
    records: list[Record] = []
    for position, count, data in rows:
        try:
            record = Record(data, position)
        except DamagedRecord:
            break
        if record.count != count:
            break
        records.append(record)
    return records


def merge(records: Sequence[Record]) -> bytes:
    """One record with all runs of these, in order, in the first one's place; DamagedRecord if one of them is broken.

    Names and types are listed once each. The records must lie end to end.
    """
    # It needs NumPy, which takes long to import.
    from penstock.store.concat import Concat  # noqa: PLC0415

    for record, following in pairwise(records):
        if record.last + 1 != following.position:
            raise DamagedRecord(following.position, f"the record before it ends at {record.last}")
    for record in records:
        # Otherwise a small record could have so many types that no other fits next to it, and sealing would be stuck.
        if record.type_count > record.count:
            raise DamagedRecord(record.position, f"it has {record.type_count} types and {record.count} events")
    joined = Concat(records)
    joined.check_text()
    if len(joined.types.index) > TYPES_MAX:
        raise LimitExceeded("types of a record", len(joined.types.index), TYPES_MAX)
    return joined.parts().encode(records[0].position)


def is_merge(merged: Record, rows: Sequence[tuple[int, int, object]]) -> bool:
    """Whether a record has all that others have, whose rows of position, count and data are given, and nothing else.

    The writer asks this while other commits wait. A block may have thousands of records of single events, so these are
    compared column by column, which takes less than half the time.
    """
    from penstock.store.concat import is_merge_of_ones  # noqa: PLC0415 - as in `merge`

    datas = [data for _, _, data in rows if isinstance(data, bytes)]
    if len(datas) == merged.count == len(rows) and is_merge_of_ones(merged, datas):
        return True
    records = checked(rows)
    return bool(records) and len(records) == len(rows) and merge(records) == merged.data


def next_seal(store: "Store") -> Seal | None:
    """The next step of sealing, for the writer; None if nothing is closed yet."""
    unsealed = store.unsealed()
    if unsealed is None:
        return None
    records, mark = unsealed.records, unsealed.next
    while len(records) > 1:
        try:
            data = merge(records)
        except DamagedRecord as error:
            sound = [record for record in records if record.position < error.position]
            mark = records[len(sound)].last + 1
            records = sound
        else:
            return Seal(records[0].position, records[-1].last, data, mark, unsealed.ledger)
    return Seal(mark, mark - 1, None, mark, unsealed.ledger)
