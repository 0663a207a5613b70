"""Imports: the records and the state of another store become a new store.

The index reads the records as they are, of one commit or of thousands, and makes the rows that find them: streams,
commits and blocks (see `Appender.place`). It reads the tables of runs with NumPy, because a sealed record has a run for
each of its commits; the loop here is over records and over the streams in each.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from struct import Struct
from typing import Any, Final

import numpy as np

from penstock.errors import InvalidRequest
from penstock.model.times import TICKS_MASK
from penstock.store.contract import STATE_TABLES, Arrival, StoreState
from penstock.store.erasure_filter import pack_ranges
from penstock.store.record import HEADER, RUN, Record
from penstock.store.replacement import NO_NOTE, SOURCE
from penstock.store.seals import BLOCK_BITS
from penstock.store.selective_decode import RUN_TYPE, Ints
from penstock.store.tables.access import note_arrival
from penstock.store.tables.appends import NewRows
from penstock.store.tables.database import Database
from penstock.store.tables.logs import LAST_LOG
from penstock.store.tables.store import INDEXED, RANGES, Row

STREAMS_KNOWN_MAX: Final = 200_000
"""Streams whose numbers are in memory; the index looks up others."""

_FINISHED: Final = STATE_TABLES["erasures"].index("finished")
_STAMP: Final = Struct("<Q")


class StoreImport(ABC):
    """A new store that is being filled with the records and the state of another. It opens only after `finish`.

    An interrupted import goes on where it was.
    """

    _db: Database
    _index: "ImportIndex | None" = None

    def begin(self, source: str) -> str:
        """Store a note about the source before the first `add`; answers the earlier note of an interrupted import.

        The caller decides about the note, and whether to go on. An import that began without a note answers "".
        """
        note = self._db.value("meta", {"key": SOURCE})
        if note not in (None, NO_NOTE):
            return str(note)
        if self.head():
            return ""
        with self._transaction():
            self._db.later("set_meta", {"key": SOURCE, "value": source})
        return source

    def head(self) -> int:
        """The last position that is in and safe; 0 at first."""
        return self._db.value("head") or 0

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records, which begin right after `head`. They are safe when this returns."""
        # What the index knows is wrong after a rollback: then the next call loads a new one.
        index, self._index = self._index or ImportIndex(self._db), None
        with self._transaction():
            expected = self.head() + 1
            for record in records:
                if record.position != expected:
                    raise InvalidRequest("record", f"begins at {record.position}, and {expected} comes next")
                index.add(record)
                expected = record.last + 1
            index.write()
            if records:
                self._end_add(index, records[-1])
        self._index = index

    def finish(self, state: StoreState, arrival: Arrival | None = None) -> None:
        """Complete the store with this identity, state and timelines.

        Its server builds the outputs of iterators, and tells the audit of the arrival.
        """
        if self.head() != state.head:
            raise InvalidRequest("state", f"is of position {state.head}, and the records end at {self.head()}")
        with self._transaction():
            self._db.later("set_meta", {"key": "store_id", "value": state.identity.id})
            self._db.later("import_sealed", {"sealed": state.sealed})
            self._db.later("delete_meta", {"key": SOURCE})
            self._db.later("delete_meta", {"key": LAST_LOG})
            self._db.later("forget_timelines")
            now = self._now()
            if arrival is not None:
                facts = {**arrival.facts, "timeline": state.identity.timeline, "head": state.head}
                note_arrival(self._db, Arrival(arrival.what, facts))
            for name in STATE_TABLES:
                self._db.run_many(f"import_{name}", [_stored(name, row, now) for row in state.tables[name]])
            self._end_finish()

    def close(self) -> None:
        self._db.close()

    @abstractmethod
    def _now(self) -> int: ...

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def _end_finish(self) -> None: ...

    def _end_add(self, _index: "ImportIndex", _last: Record) -> None:
        """The last statements of an `add`."""
        return


def _stored(table: str, row: Row, now: int) -> Row:
    """A row in its stored form. Erasures are finished, because imported records have no erased contents."""
    values = list(row)
    if table == "erasures":
        values[RANGES] = pack_ranges(row[RANGES]) or None
        values[_FINISHED] = now if row[_FINISHED] is None else row[_FINISHED]
    elif table == "iterators":
        values[INDEXED] = bool(row[INDEXED])
    return tuple(values)


class _Context:
    """A context during the import: its number, its highest event time so far, and its last block in the index."""

    __slots__ = ("block", "id", "name", "top")

    def __init__(self, number: int, name: bytes, top: int, block: int) -> None:
        self.id, self.name, self.top, self.block = number, name, top, block


class ImportIndex:
    def __init__(self, db: Database) -> None:
        self._db = db
        rows = db.rows("import_tops")
        self.contexts = {name.encode(): _Context(number, name.encode(), *at) for number, name, *at in rows}
        self._streams: dict[tuple[int, bytes], int] = {}
        self.last_stream: int = db.value("last_stream_id") or 0
        self._begin()

    def _begin(self) -> None:
        self._rows = NewRows([], [], [], [])
        self._many: list[tuple[Ints, Ints, Ints]] = []
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
        self._rows.commits.append((stream_id, sequence + count - 1, record.position))
        self._rows.records.append((record.position, count, place.id, stream_id, record.data))
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
        tops = np.maximum.reduceat(_ticks(record), starts)
        for place in {place.id: place for place in places}.values():
            self._pass(place, record.position, int(tops[context_ids[inverse] == place.id].max()))
        one_context = places[0].id if len({place.id for place in places}) == 1 else None
        one_stream = ids[0] if len(ids) == 1 else None
        self._rows.records.append((record.position, record.count, one_context, one_stream, record.data))

    def _pass(self, context: _Context, position: int, top: int) -> None:
        """A context has a record at a position, whose highest event time of that context is `top`."""
        block = position >> BLOCK_BITS
        if block != context.block:
            self._rows.blocks.append((context.id, block, context.top))
            context.block = block
        context.top = max(context.top, top)
        self._changed[context.id] = context

    def _context(self, name: bytes) -> _Context:
        found = self.contexts.get(name)
        if found is None:
            found = self.contexts[name] = _Context(len(self.contexts) + 1, name, -1, -1)
        return found

    def _stream(self, context: _Context, name: bytes, sequence: int) -> int:
        key = context.id, name
        found = self._streams.get(key)
        if found is None and sequence == 1:
            found = self.last_stream = self.last_stream + 1
            self._rows.streams.append((found, context.id, name.decode()))
        elif found is None:
            found = self._db.value("stream_id", {"context_id": context.id, "name": name.decode()})
            if found is None:
                raise ValueError(f"it goes on with stream {name.decode()}, which has not begun")
        self._streams[key] = found
        return found

    def write(self) -> None:
        db = self._db
        db.run_many("import_top", [(c.id, c.name.decode(), c.top, c.block) for c in self._changed.values()])
        db.run_many("add_stream", self._rows.streams)
        db.run_many("add_record", self._rows.records)
        db.run_many("add_commit", sorted(self._rows.commits))
        db.run_many("add_commit", self._sorted())
        db.run_many("add_block", self._rows.blocks)
        self._begin()
        if len(self._streams) > STREAMS_KNOWN_MAX:
            self._streams.clear()

    def _sorted(self) -> list[Any]:
        """The commits of sealed records in the order of their table, which is the fastest to insert."""
        if not self._many:
            return []
        numbers, lasts, positions = (np.concatenate(column) for column in zip(*self._many, strict=True))
        order = np.lexsort((lasts, numbers))
        return list(zip(numbers[order].tolist(), lasts[order].tolist(), positions[order].tolist(), strict=True))


def _ticks(record: Record) -> Ints:
    stamps = np.frombuffer(record.data, "<u8", record.count, record.at.stamps)
    return (stamps & np.uint64(TICKS_MASK)).astype(np.int64)
