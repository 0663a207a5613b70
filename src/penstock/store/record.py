"""The commit record: how events lie on disk, column by column.

A record holds *runs*; a run is the consecutive events of one commit. An append writes a record of one run; the sealer
merges many into one. A record has everything that a reader needs, so it travels from the store to the client as it is.

Layout, little-endian, nothing aligned:

    header      checksum u64 (XXH3 of all that follows), version u8, flags u8, types u16, events u32, first position
                u64, runs u32, names u32, bytes of names and types u32, bytes of headers u32
    runs        per run: commit id 16, first sequence u64, recorded ticks u64, events u32, context u32, stream u32
                (context and stream are indices into names)
    events      column by column: id 16, stamp u64, type u16 (index into types), length of headers u32, of body u32
    lengths     u16 each of names, then of types
    text        names, then types, UTF-8
    headers     UTF-8, one after the other; length 0 is null
    bodies      one after the other

A name is listed once, except for a commit whose context and stream have the same name. An event with an empty type is a
tombstone: it keeps its place, and readers leave it out.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count, repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from penstock.errors import DamagedRecord
from penstock.model import Event, EventFilter
from penstock.model.columns import Columns, cuts, struct_of
from penstock.model.times import TICKS_MASK

if TYPE_CHECKING:
    from penstock.store.selective_decode import Picker

VERSION: Final = 1
CHECKSUM_BYTES: Final = 8
HEADER: Final = Struct("<QBBHIQIIII")
RUN: Final = Struct("<16sQQIII")
SEQUENCE_MAX: Final = (1 << 63) - 1
PICKED_EVENTS_MIN: Final = 64
PICKED_PART: Final = 4
"""For fewer events in one run, or for more than this part of them, it is quicker to decode all."""

_U64: Final = Struct("<Q")
_COMMIT: Final = Struct("<BBHIQIIII16sQQIII")
_THREE: Final = Struct("<HHH")
_EVERYTHING: Final = EventFilter()


class Run(NamedTuple):
    """The events of one commit, as a record names them."""

    commit: bytes
    sequence: int
    recorded: int
    length: int
    context: str
    stream: str


_make_run = partial(tuple.__new__, Run)


class Offsets(NamedTuple):
    """Where each part of a record begins."""

    runs: int
    ids: int
    stamps: int
    types: int
    header_lengths: int
    body_lengths: int
    lengths: int
    text: int
    headers: int
    bodies: int

    @staticmethod
    def of(runs: int, n: int, texts: int, text_bytes: int, header_bytes: int) -> "Offsets":
        """Of a record with so many runs, `n` events, and texts: names and types."""
        sizes = (HEADER.size, RUN.size * runs, 16 * n, 8 * n, 2 * n, 4 * n, 4 * n, 2 * texts, text_bytes, header_bytes)
        return _make_offsets(accumulate(sizes))


_make_offsets = partial(tuple.__new__, Offsets)


def _picker(record: "Record") -> "Picker":
    # NumPy takes longer to import than everything else that a worker needs, and most records are decoded without it.
    from penstock.store.selective_decode import Picker  # noqa: PLC0415

    return Picker(record)


def encode_commit(
    columns: Columns, position: int, context: bytes, stream: bytes, sequence: int, commit: bytes, recorded: int
) -> bytes:
    types = columns.types
    texts = (context, stream, *types)
    text = b"".join(texts)
    rest = b"".join(
        (
            _COMMIT.pack(
                *(VERSION, 0, len(types), columns.length, position, 1, 2, len(text), len(columns.headers)),
                *(commit, sequence, recorded, columns.length, 0, 1),
            ),
            columns.fixed,
            struct_of(f"<{len(texts)}H").pack(*map(len, texts)),
            text,
            columns.headers,
            columns.bodies,
        )
    )
    return with_checksum(rest)


def with_checksum(rest: bytes) -> bytes:
    """A record from all that follows its checksum."""
    return _U64.pack(xxh3_64_intdigest(rest)) + rest


class Record:
    """A stored record, checked, with the offsets of its columns."""

    __slots__ = ("at", "count", "data", "name_count", "position", "run_count", "type_count")

    def __init__(self, data: object, position: int, *, checked: bool = True) -> None:
        """Check the record that is stored at `position`; raises DamagedRecord if it is not whole.

        Without `checked` only its header is: for a page that its reader checks.
        """
        # A damaged file can have null or text here.
        if not isinstance(data, bytes):
            raise DamagedRecord(position, "no bytes at all")
        if len(data) < HEADER.size:
            raise DamagedRecord(position, f"only {len(data)} bytes long")
        header = HEADER.unpack_from(data)
        checksum, version, _flags, types, events, first, runs, names, text_bytes, header_bytes = header
        if checked and xxh3_64_intdigest(memoryview(data)[CHECKSUM_BYTES:]) != checksum:
            raise DamagedRecord(position, "its checksum does not match")
        if version != VERSION:
            raise DamagedRecord(position, f"its format version {version} is unknown")
        if first != position:
            raise DamagedRecord(position, f"it belongs at position {first}")
        self.data = data
        self.position = position
        self.count: int = events
        self.run_count = runs
        self.name_count = names
        self.type_count = types
        self.at = Offsets.of(runs, events, names + types, text_bytes, header_bytes)
        if self.at.bodies > len(data):
            raise DamagedRecord(position, "its columns are longer than it is")

    @classmethod
    def stored(cls, data: bytes) -> "Record":
        """A record whose position only the record itself tells."""
        return cls(data, HEADER.unpack_from(data)[5] if len(data) >= HEADER.size else 0)

    @property
    def last(self) -> int:
        return self.position + self.count - 1

    def texts(self) -> list[bytes]:
        total = self.name_count + self.type_count
        if total == 3:
            return self._three_texts()
        lengths = struct_of(f"<{total}H").unpack_from(self.data, self.at.lengths)
        if self.at.text + sum(lengths) != self.at.headers:
            raise DamagedRecord(self.position, "its names and types do not fill their place")
        return list(cuts(self.data, self.at.text, lengths))

    def _three_texts(self) -> list[bytes]:
        """The same in half the time: most commits are of one type."""
        data, start = self.data, self.at.text
        one, two, three = _THREE.unpack_from(data, self.at.lengths)
        first, second = start + one, start + one + two
        if second + three != self.at.headers:
            raise DamagedRecord(self.position, "its names and types do not fill their place")
        return [data[start:first], data[first:second], data[second : second + three]]

    def runs(self) -> list[Run]:
        with self.sound():
            if self.run_count == 1:
                return [self._run(self.texts())]
            names = [name.decode() for name in self.texts()[: self.name_count]]
            table = RUN.iter_unpack(self.data[self.at.runs : self.at.ids])
            commits, sequences, recorded, lengths, contexts, streams = zip(*table, strict=True)
            self.check_lengths(sum(lengths))
            places = map(names.__getitem__, contexts), map(names.__getitem__, streams)
            return list(map(_make_run, zip(commits, sequences, recorded, lengths, *places, strict=True)))

    def _run(self, texts: list[bytes]) -> Run:
        commit, sequence, recorded, length, context, stream = RUN.unpack_from(self.data, self.at.runs)
        self.check_lengths(length)
        names = texts[: self.name_count]
        return Run(commit, sequence, recorded, length, names[context].decode(), names[stream].decode())

    def check_lengths(self, events: int) -> None:
        """Raise DamagedRecord unless its runs have as many events, together, as it has itself."""
        if events != self.count:
            raise DamagedRecord(self.position, f"its commits have {events} events, and it has {self.count}")

    @contextmanager
    def sound(self) -> Iterator[None]:
        """A checksum proves that a record is unchanged, not that its writer was right."""
        try:
            yield
        except (IndexError, ValueError, OverflowError, struct.error) as error:
            raise DamagedRecord(self.position, f"its insides do not fit together: {error}") from error

    def ids(self) -> list[bytes]:
        return list(cuts(self.data, self.at.ids, repeat(16, self.count)))

    def events(
        self,
        wanted: EventFilter = _EVERYTHING,
        first: int = 0,
        last: int | None = None,
        *,
        since: int = 0,
        limit: int | None = None,
    ) -> list[Event]:
        """The events that pass a filter, tombstones left out.

        Only those between two positions, with a time at or after `since` (ticks), and at most `limit`. Other events are
        not decoded.
        """
        end = self.last if last is None else last
        if self.run_count != 1 or self._is_few(min(end - first + 1, self.count if limit is None else limit)):
            with self.sound():
                picker = _picker(self)
                return picker.events(picker.wanted(wanted, first, end, since).cut(limit))
        rows = self._plain(wanted)
        if first > self.position or end < self.last or since > 0:
            rows = [one for one in rows if first <= one.position <= end and one.stamp & TICKS_MASK >= since]
        return rows if limit is None else rows[:limit]

    def count_of(self, wanted: EventFilter, first: int = 0) -> int:
        """How many events pass a filter, tombstones left out, from a position on. No headers and bodies are decoded."""
        with self.sound():
            if self.run_count == 1:
                texts = self.texts()
                run = self._run(texts)
                if not wanted.wants_stream(run.context, run.stream):
                    return 0
                types = texts[self.name_count :]
                if b"" not in types and (wanted.types is None or {one.decode() for one in types} <= set(wanted.types)):
                    return max(self.last + 1 - max(first, self.position), 0)
            return len(_picker(self).wanted(wanted, first, self.last).offsets)

    def _is_few(self, events: int) -> bool:
        """Whether so many of one run are found quicker than all are decoded."""
        return self.count >= PICKED_EVENTS_MIN and events * PICKED_PART < self.count

    def _plain(self, wanted: EventFilter) -> list[Event]:
        with self.sound():
            texts = self.texts()
            types = [name.decode() for name in texts[self.name_count :]]
            rows = self._rows(texts, types, wanted)
        if "" in types:
            rows = [event for event in rows if event.type]
        if wanted.types is not None and not set(types) <= set(wanted.types):
            rows = [event for event in rows if event.type in wanted.types]
        return rows

    def events_of_stream(
        self,
        position: int,
        context: str,
        stream: str,
        low: int,
        high: int,
        limit: int | None,
        backward: bool = False,
        types: Collection[str] | None = None,
    ) -> list[Event]:
        """The events of a stream between two sequences, tombstones left out, from the last to the first if `backward`.

        `position` is that of one of its events here, or of a tombstone; an event of another stream there gives nothing.
        """
        if self.run_count == 1 and not self._is_few(high - low + 1 if limit is None else limit):
            rows = self._plain(_EVERYTHING if types is None else EventFilter(types=types))
            if rows and (rows[0].context, rows[0].stream) != (context, stream):
                return []
            if rows and not (low <= rows[0].sequence and rows[-1].sequence <= high):
                rows = [one for one in rows if low <= one.sequence <= high]
            return (rows[::-1] if backward else rows)[:limit]
        with self.sound():
            picker = _picker(self)
            picked = picker.living(picker.of_stream(position, context, stream, low, high), types)
            return picker.events(picked.cut(limit, backward))

    def stream_ids(
        self, position: int, context: str, stream: str, low: int, high: int
    ) -> tuple[list[bytes], bytes, int]:
        """The ids of a stream's events between two sequences, tombstones too; the commit and position of the first."""
        with self.sound():
            if self.run_count == 1:
                (run,) = self.runs()
                start, end = max(low - run.sequence, 0), min(high + 1 - run.sequence, run.length)
                if start >= end or (run.context, run.stream) != (context, stream):
                    return [], b"", 0
                return self.ids()[start:end], run.commit, self.position + start
            picker = _picker(self)
            return picker.place(picker.of_stream(position, context, stream, low, high))

    def _rows(self, texts: list[bytes], types: list[str], wanted: EventFilter) -> list[Event]:
        # The hot loop of every read that yields events: one map over the columns. See bench/reads.py.
        data, at, events = self.data, self.at, self.count
        fixed = struct_of(f"<{events}Q{events}H{events}I{events}I").unpack_from(data, at.stamps)
        type_codes, header_lengths = fixed[events : 2 * events], fixed[2 * events : 3 * events]
        body_lengths = fixed[3 * events :]
        names = map(types.__getitem__, type_codes) if any(type_codes) else repeat(types[0])
        headers: Iterable[str | None] = repeat(None)
        if any(header_lengths) or at.bodies > at.headers:
            if at.headers + sum(header_lengths) != at.bodies:
                raise DamagedRecord(self.position, "its headers do not fill their place")
            headers = [cut.decode() if cut else None for cut in cuts(data, at.headers, header_lengths)]
        if at.bodies + sum(body_lengths) != len(data):
            raise DamagedRecord(self.position, "its bodies do not fill it")
        commit, sequence, recorded, _, context, stream = self._run(texts)
        if not wanted.wants_stream(context, stream):
            return []
        columns = (
            *(count(self.position), repeat(context), repeat(stream), count(sequence)),
            *(cuts(data, at.ids, repeat(16, events)), fixed[:events], names, headers),
            *(cuts(data, at.bodies, body_lengths), repeat(recorded), repeat(commit)),
        )
        return list(map(Event, *columns))


class Dedupe:
    """Drops from the records of each step the positions that earlier steps had.

    A reader ends a step anywhere and continues there. The sealer may merge small records meanwhile: then the first
    record of a step begins with events of the step before.
    """

    def __init__(self) -> None:
        self._reached = 0

    def new(self, records: list[Record]) -> list[Record]:
        if records and records[0].position < self._reached:
            # It needs NumPy, and is rarely necessary.
            from penstock.store.rewrites import cut  # noqa: PLC0415

            records = [cut(record, self._reached, record.last) for record in records if record.last >= self._reached]
        if records:
            self._reached = records[-1].last + 1
        return records
