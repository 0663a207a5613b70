"""From records to the rows that find them: streams, commits, blocks. See `Placing.place` for what each row means.

Records are taken as they are, of one commit or of thousands. Their tables of runs are read with NumPy, because a sealed
record has a run for each of its commits; the loop here is over records and over the streams in each.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np

from penstock.model.times import TICKS_MASK
from penstock.store.dtypes import RUN_TYPE
from penstock.store.picking import Ints
from penstock.store.record import HEADER, RUN, Record
from penstock.store.sealing import BLOCK_BITS
from penstock.store.tables.queries import Rows

STREAMS_KNOWN_MAX: Final = 200_000
"""Streams whose numbers are kept in memory; others are looked up."""

_STAMP: Final = Struct("<Q")


class _Context:
    """A context on the way: its number, its highest event time so far, and the last block entered for it."""

    __slots__ = ("block", "id", "name", "top")

    def __init__(self, number: int, name: bytes, top: int, block: int) -> None:
        self.id, self.name, self.top, self.block = number, name, top, block


class Indexing:
    """The rows of records that come in order. What `write` wrote must be committed, or this be made anew."""

    def __init__(self, db: Rows) -> None:
        self._db = db
        rows = db.rows("import_tops")
        self._contexts = {name.encode(): _Context(number, name.encode(), *at) for number, name, *at in rows}
        self._streams: dict[tuple[int, bytes], int] = {}
        self._last_stream: int = db.value("last_stream_id") or 0
        self._begin()

    def _begin(self) -> None:
        self._records: list[tuple[int, int, int | None, int | None, bytes]] = []
        self._commits: list[tuple[int, int, int]] = []
        self._many: list[tuple[Ints, Ints, Ints]] = []
        self._new_streams: list[tuple[int, int, str]] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._changed: dict[int, _Context] = {}

    def add(self, record: Record) -> None:
        """Note the next record's rows; raises DamagedRecord if its insides do not fit together."""
        with record.sound():
            names = record.texts()[: record.name_count]
            if record.run_count == 1:
                self._add_one(record, names)
            else:
                self._add_many(record, names)

    def _add_one(self, record: Record, names: list[bytes]) -> None:
        _commit, sequence, _recorded, count, context, stream = RUN.unpack_from(record.data, HEADER.size)
        if count != record.count or count < 1:
            raise ValueError(f"its commit has {count} events, and it has {record.count}")
        place = self._context(names[context])
        stream_id = self._stream(place, names[stream], sequence)
        self._commits.append((stream_id, sequence + count - 1, record.position))
        self._records.append((record.position, count, place.id, stream_id, record.data))
        top = _STAMP.unpack_from(record.data, record.at.stamps)[0] & TICKS_MASK if count == 1 else _ticks(record).max()
        self._pass(place, record.position, int(top))

    def _add_many(self, record: Record, names: list[bytes]) -> None:
        runs = np.frombuffer(record.data, RUN_TYPE, record.run_count, HEADER.size)
        counts: Ints = runs["count"].astype(np.int64)
        ends = np.cumsum(counts)
        if not counts.size or counts.min() < 1 or ends[-1] != record.count:
            raise ValueError(f"its commits do not have the {record.count} events it has")
        keys = runs["context"].astype(np.int64) * (1 << 32) + runs["stream"]
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        places = [self._context(names[key >> 32]) for key in unique.tolist()]
        sequences: Ints = runs["sequence"].astype(np.int64)
        ids = [
            self._stream(place, names[key & 0xFFFFFFFF], sequence)
            for place, key, sequence in zip(places, unique.tolist(), sequences[first].tolist(), strict=True)
        ]
        starts = ends - counts
        numbers: Ints = np.array(ids, np.int64)[inverse]
        self._many.append((numbers, sequences + counts - 1, record.position + starts))
        context_ids = np.array([place.id for place in places], np.int64)
        self._enter(record, places, context_ids[inverse], np.maximum.reduceat(_ticks(record), starts))
        one_context = places[0].id if len({place.id for place in places}) == 1 else None
        one_stream = ids[0] if len(ids) == 1 else None
        self._records.append((record.position, record.count, one_context, one_stream, record.data))

    def _enter(self, record: Record, places: Sequence[_Context], of_runs: Ints, tops: Ints) -> None:
        for place in {place.id: place for place in places}.values():
            self._pass(place, record.position, int(tops[of_runs == place.id].max()))

    def _pass(self, context: _Context, position: int, top: int) -> None:
        """A context has a record at a position, whose highest event time of that context is `top`."""
        block = position >> BLOCK_BITS
        if block != context.block:
            self._blocks.append((context.id, block, context.top))
            context.block = block
        context.top = max(context.top, top)
        self._changed[context.id] = context

    def _context(self, name: bytes) -> _Context:
        found = self._contexts.get(name)
        if found is None:
            found = self._contexts[name] = _Context(len(self._contexts) + 1, name, -1, -1)
        return found

    def _stream(self, context: _Context, name: bytes, sequence: int) -> int:
        key = context.id, name
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = self._add_stream(*key) if sequence == 1 else self._find_stream(*key)
        return found

    def _add_stream(self, context_id: int, name: bytes) -> int:
        self._last_stream += 1
        self._new_streams.append((self._last_stream, context_id, name.decode()))
        return self._last_stream

    def _find_stream(self, context_id: int, name: bytes) -> int:
        found: int | None = self._db.value("stream_id", {"context_id": context_id, "name": name.decode()})
        if found is None:
            raise ValueError(f"it goes on with stream {name.decode()}, which has not begun")
        return found

    def write(self) -> None:
        """Write the rows that were noted."""
        db = self._db
        db.run_many("import_top", [(c.id, c.name.decode(), c.top, c.block) for c in self._changed.values()])
        db.run_many("add_stream", self._new_streams)
        db.run_many("add_record", self._records)
        db.run_many("add_commit", sorted(self._commits))
        db.run_many("add_commit", self._sorted())
        db.run_many("add_block", self._blocks)
        self._begin()
        if len(self._streams) > STREAMS_KNOWN_MAX:
            self._streams.clear()

    def _sorted(self) -> list[Any]:
        """The commits of sealed records in the order of their table, in which a database takes them fastest."""
        if not self._many:
            return []
        numbers, lasts, positions = (np.concatenate(column) for column in zip(*self._many, strict=True))
        order = np.lexsort((lasts, numbers))
        return list(zip(numbers[order].tolist(), lasts[order].tolist(), positions[order].tolist(), strict=True))


def _ticks(record: Record) -> Ints:
    stamps = np.frombuffer(record.data, "<u8", record.count, record.at.stamps)
    return (stamps & np.uint64(TICKS_MASK)).astype(np.int64)
