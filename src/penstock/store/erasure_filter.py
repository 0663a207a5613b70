"""The erasure filter: which events readers must not see any more, although records may still hold them.

The ledger of erasures has an entry for a stream up to a sequence, for ranges of positions, or for an iterator's output.
An entry hides its events from the commit that adds it. Deferred steps erase them from the records.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.store.record import Record
from penstock.store.tables.database import Database

Ranges = tuple[tuple[int, int], ...]

_RANGE: Final = Struct("<QQ")


class Hidden(NamedTuple):
    """Hidden events: of a (context, stream) all up to a sequence, and events by position.

    `ranges` are (first, last) positions, disjoint and in order.
    """

    streams: Mapping[tuple[str, str], int] = MappingProxyType({})
    ranges: Sequence[tuple[int, int]] = ()

    def __bool__(self) -> bool:
        return bool(self.streams or self.ranges)


def visible(record: Record, hidden: Hidden) -> Record:
    """A record with tombstones in place of hidden events; the record itself if it has none."""
    # It needs NumPy, and most stores have nothing erased.
    from penstock.store.rewrites import erased  # noqa: PLC0415

    return erased(record, hidden)


def unpack_ranges(data: bytes | None) -> Ranges:
    return tuple(_RANGE.iter_unpack(data or b""))


def pack_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_RANGE.pack(*each) for each in ranges)


def after(ranges: Ranges, done: int) -> Ranges:
    """The ranges that end after a position."""
    return ranges[bisect_left(ranges, done + 1, key=itemgetter(1)) :]


def add_entry(db: Database, now: int, **entry: Any) -> None:
    """Add an entry to the ledger: for a context and stream, for an iterator, or for ranges of positions."""
    whole = {"context": None, "stream": None, "iterator_id": None, "ranges": None, "done": 0, "events": 0, **entry}
    db.later("add_erasure", {**whole, "requested": now})


def hidden_in(db: Database, context: str | None) -> Hidden:
    """The hidden events of a context, or of all contexts."""
    streams = {(context, stream): last for context, stream, last in db.rows("hidden", {"context": context})}
    return Hidden(streams, _hidden_ranges(db))


def hidden_in_stream(db: Database, context: str, stream: str) -> Hidden:
    last = db.value("hidden_of_stream", {"context": context, "stream": stream})
    return Hidden({} if last is None else {(context, stream): last}, _hidden_ranges(db))


def _hidden_ranges(db: Database) -> Ranges:
    found = [(unpack_ranges(data), done) for done, data in db.rows("hidden_ranges")]
    if len(found) == 1:
        return after(*found[0])
    return merged_ranges(each for ranges, done in found for each in after(ranges, done))


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Disjoint ranges in order, from ranges that may overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged)
