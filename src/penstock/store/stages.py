"""Staging: units, their order, and the commits that are made from them.

A unit is a record of one run without a place in the history: position and sequence 1, no commit id, no time. A unit
without keys becomes a commit as it is, by part and number. Units with keys are merged for each stream; overlapping
units are in memory together, up to `merge_bytes_max`.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, chain, groupby, pairwise
from typing import Final, NamedTuple

from penstock.errors import DamagedRecord, InvalidRequest, LimitExceeded
from penstock.model import ANY, NewEvent, Published, StagedUnit
from penstock.model.columns import Columns, columns_of, received_columns
from penstock.model.times import TICKS_MASK
from penstock.store.contract import Commit, Placed
from penstock.store.record import Record, encode_commit
from penstock.store.tables.appends import Appender

UNIT_EVENTS_MAX: Final = 4096
UNIT_BYTES_MAX: Final = 1 << 20
"""The size of one unit, and of one commit of merged events; a single event may be larger."""
FLUSH_BYTES: Final = 8 << 20
"""How much of a publication is in memory before it is written."""
MERGE_BYTES_MAX: Final = 256 << 20
"""Units of one stream whose keys overlap, all together."""
_AT: Final = 1
_NO_COMMIT: Final = bytes(16)

StreamKey = tuple[str, str]


def jobs_of(principal: str) -> str:
    """How the store's names of the jobs of a principal begin."""
    return f"~{principal}/"


class Unit(NamedTuple):
    context: str
    stream: str
    part: int
    number: int
    low: bytes
    keys: bytes
    data: bytes


def make_unit(
    context: str, stream: str, events: Sequence[NewEvent], expected: int = ANY, keys: Sequence[bytes] = ()
) -> StagedUnit:
    """A unit of these events; raises InvalidRequest if they cannot be stored. Keys are in ascending order."""
    return unit_of(context, stream, columns_of(events), expected, keys)


def unit_of(context: str, stream: str, columns: Columns, expected: int = ANY, keys: Sequence[bytes] = ()) -> StagedUnit:
    """The same from columns."""
    data = encode_commit(columns, _AT, context.encode(), stream.encode(), 1, _NO_COMMIT, 0)
    return StagedUnit(context, stream, expected, data, encode_keys(keys))


def check_unit(unit: StagedUnit) -> Columns:
    """The columns of a unit from a client; InvalidRequest if `make_unit` could not have made it."""
    try:
        record = Record(unit.data, _AT)
        if record.run_count != 1:
            raise InvalidRequest("unit", f"has {record.run_count} commits; it must have one")
        (run,) = record.runs()
        columns = received_columns(*columns_in(record)[:5])
    except DamagedRecord as error:
        raise InvalidRequest("unit", f"is damaged: {error.reason}") from None
    if (run.context, run.stream) != (unit.context, unit.stream):
        raise InvalidRequest("unit", "is not made as units are")
    if unit.keys:
        keys = decode_keys(unit.keys, record.count)
        if any(one > other for one, other in pairwise(keys)):
            raise InvalidRequest("keys", "of a unit are not in order")
    return columns


def columns_in(record: Record) -> Columns:
    """The columns of a record with one run, as they were before it had a place."""
    data, at = record.data, record.at
    with record.sound():
        types = tuple(record.texts()[record.name_count :])
        fixed, headers, bodies = data[at.ids : at.lengths], data[at.headers : at.bodies], data[at.bodies :]
        top = max(stamp & TICKS_MASK for stamp in struct.unpack_from(f"<{record.count}Q", data, at.stamps))
    size = len(fixed) + sum(map(len, types)) + len(headers) + len(bodies)
    return Columns(record.count, types, fixed, headers, bodies, top, size)


def encode_keys(keys: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(keys)}I", *map(len, keys)) + b"".join(keys)


def decode_keys(data: bytes, count: int) -> list[bytes]:
    """So many keys; InvalidRequest if there are others."""
    try:
        lengths = struct.unpack_from(f"<{count}I", data)
    except struct.error:
        raise InvalidRequest("keys", "are fewer than there are events") from None
    ends = list(accumulate(lengths, initial=4 * count))
    if ends[-1] != len(data):
        raise InvalidRequest("keys", "do not fill their place")
    return [data[a:b] for a, b in pairwise(ends)]


def low_of(unit: StagedUnit) -> bytes:
    """The lowest key of a unit; empty if it has none."""
    if not unit.keys:
        return b""
    events = Record(unit.data, _AT).count
    return decode_keys(unit.keys, events)[0]


def size_of(unit: StagedUnit) -> int:
    return len(unit.data) + len(unit.keys)


def publish(units: Iterable[Unit], appender: Appender, merge_bytes_max: int = MERGE_BYTES_MAX) -> Placed:
    """Append units, which come by context, stream, lowest key, part and number. The caller rolls back a failure."""
    position = commits = events = unflushed = 0
    streams: set[StreamKey] = set()
    for key, group in groupby(units, lambda unit: (unit.context, unit.stream)):
        streams.add(key)
        for columns in _commits(group, merge_bytes_max):
            appended = appender.place(Commit(*key, ANY, columns))
            position = position or appended.position
            commits, events, unflushed = commits + 1, events + columns.length, unflushed + columns.size
            if unflushed >= FLUSH_BYTES:
                appender.flush()
                unflushed = 0
    return Placed(Published(position, commits, events), frozenset(streams))


def _commits(units: Iterator[Unit], merge_bytes_max: int) -> Iterator[Columns]:
    first = next(units)
    rest = chain([first], units)
    if first.keys:
        return _cut(_merged(rest, merge_bytes_max))
    return (columns_in(Record(unit.data, _AT)) for unit in rest)


class _Open:
    def __init__(self, unit: Unit) -> None:
        record = Record(unit.data, _AT)
        self.size = len(unit.data)
        self.events = record.events()
        self.keys = decode_keys(unit.keys, record.count)


def _merged(units: Iterator[Unit], bytes_max: int) -> Iterator[NewEvent]:
    """The events of a stream by key, and within a key by part, unit and place. Units are opened as late as possible."""
    heap: list[tuple[bytes, int, int, int, _Open]] = []
    size = 0

    def pop() -> NewEvent:
        nonlocal size
        _, part, number, at, unit = heappop(heap)
        if at + 1 < len(unit.events):
            heappush(heap, (unit.keys[at + 1], part, number, at + 1, unit))
        else:
            size -= unit.size
        event = unit.events[at]
        return NewEvent(event.id, event.stamp, event.type, event.headers, event.body)

    for unit in units:
        while heap and heap[0][0] < unit.low:
            yield pop()
        opened = _Open(unit)
        size += opened.size
        if size > bytes_max:
            raise LimitExceeded("merge_bytes_max", size, bytes_max)
        heappush(heap, (opened.keys[0], unit.part, unit.number, 0, opened))
    while heap:
        yield pop()


def _cut(events: Iterable[NewEvent]) -> Iterator[Columns]:
    held: list[NewEvent] = []
    size = 0
    for event in events:
        held.append(event)
        size += len(event.body) + len(event.headers or "")
        if len(held) >= UNIT_EVENTS_MAX or size >= UNIT_BYTES_MAX:
            yield columns_of(held)
            held, size = [], 0
    if held:
        yield columns_of(held)
