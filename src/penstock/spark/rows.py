"""From rows to units: every row is checked, events go by stream, and a unit is handed on when it is full."""

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.model import ANY, NewEvent, StagedUnit, now_ticks, stamp_of
from penstock.model.events import check_context, check_stream, check_type, random_id
from penstock.model.times import TICKS_MAX, TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.spark.writing import GIVEN
from penstock.store.contract import LOG_CONTEXT
from penstock.store.staging import UNIT_BYTES_MAX, UNIT_EVENTS_MAX, make_unit

HELD_BYTES_MAX: Final = 64 << 20
"""Memory for events of all streams that a task holds before it hands all of them on."""
HELD_EVENT_BYTES: Final = 224
HELD_STREAM_BYTES: Final = 416
"""Memory that an event takes besides its body, headers and key, and each stream besides its events."""
UNIT_EVENT_BYTES: Final = 64
"""What an event takes in a unit besides them."""
ID_BYTES: Final = 16
_SIGN: Final = 1 << 63


class BadRow(NamedTuple):
    """A row that cannot be an event, its number in its partition (from 0), the column at fault and the reason."""

    row: int
    column: str
    reason: str
    values: dict[str, Any]


class _Wrong(Exception):
    """What is wrong with a column of a row."""

    def __init__(self, column: str, reason: str) -> None:
        self.column = column
        self.reason = reason


class _Held:
    """The events of one stream that wait to become a unit."""

    __slots__ = ("events", "expected", "keys", "memory", "size")

    def __init__(self) -> None:
        self.events: list[NewEvent] = []
        self.keys: list[bytes] = []
        self.expected = ANY
        self.size = 0
        self.memory = HELD_STREAM_BYTES


class Units:
    """Takes the rows of one task, and gives units. `bad` is told of rows that are none; it may raise.

    An event has at most `event_bytes_max` bytes of type, headers and body.
    """

    def __init__(self, order_by: str | None, bad: Callable[[BadRow], None], event_bytes_max: int) -> None:
        self._order_by = order_by
        self._bad = bad
        self._event_bytes_max = event_bytes_max
        self._row = 0
        self._held: dict[tuple[str, str], _Held] = {}
        self._expected: dict[tuple[str, str], int] = {}
        self._memory = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[StagedUnit]:
        """Units that are full after these rows."""
        names = [name for name in batch.schema.names if name not in GIVEN or name == self._order_by]
        columns = [_values(batch.column(name)) for name in names]
        doubtful = [name for name, values in zip(names, columns, strict=True) if isinstance(values, _Doubtful)]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            try:
                full = self._take(row, doubtful)
            except _Wrong as wrong:
                self._bad(BadRow(self._row, wrong.column, wrong.reason, row))
                full = None
            self._row += 1
            if full is not None:
                yield self._unit(full)
            if self._memory >= HELD_BYTES_MAX:
                yield from self.rest()

    def rest(self) -> Iterator[StagedUnit]:
        """Units of all that is held."""
        for key in list(self._held):
            yield self._unit(key)

    def _take(self, row: dict[str, Any], doubtful: Sequence[str]) -> tuple[str, str] | None:
        for column in doubtful:
            if isinstance(row[column], _NoText):
                raise _Wrong(column, "is not UTF-8")
        key, event = _place(row), _event(row, self._event_bytes_max)
        order = b"" if self._order_by is None else _key(self._order_by, row[self._order_by])
        expected = self._expects(key, row.get("expected_version"))
        held = self._held.get(key) or self._begin(key)
        held.events.append(event)
        held.expected = expected
        if self._order_by is not None:
            held.keys.append(order)
        size = len(event.body) + len(event.headers or "") + len(order)
        held.size += size + UNIT_EVENT_BYTES
        held.memory += size + HELD_EVENT_BYTES
        self._memory += size + HELD_EVENT_BYTES
        return key if len(held.events) >= UNIT_EVENTS_MAX or held.size >= UNIT_BYTES_MAX else None

    def _begin(self, key: tuple[str, str]) -> _Held:
        held = self._held[key] = _Held()
        self._memory += held.memory
        return held

    def _expects(self, key: tuple[str, str], given: int | None) -> int:
        """What is expected of a stream; all rows that say it must say the same."""
        before = self._expected.get(key, ANY)
        if given is None or given == ANY:
            return before
        if given < 1:
            raise _Wrong("expected_version", f"is {given}; it must be -1, null or at least 1")
        if before not in (ANY, given):
            raise _Wrong("expected_version", f"is {given}, and an earlier row of stream {key[1]} says {before}")
        self._expected[key] = given
        return int(given)

    def _unit(self, key: tuple[str, str]) -> StagedUnit:
        held = self._held.pop(key)
        self._memory -= held.memory
        events, keys = held.events, held.keys
        if keys:
            order = sorted(range(len(keys)), key=keys.__getitem__)
            events, keys = [events[at] for at in order], [keys[at] for at in order]
        return make_unit(*key, events, held.expected, keys)


class _NoText(bytes):
    """What a column of text has that is none. Spark does not look."""


class _Doubtful(list[Any]):
    """The values of a column that has something of this kind."""


def _values(column: pa.Array) -> list[Any]:
    # Microseconds, because Python's own times have a zone that is the executor's.
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist())
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return _Doubtful(map(_decoded, column.cast(pa.binary()).to_pylist()))


def _decoded(value: bytes | None) -> str | bytes | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _NoText(value)


# -- columns


def _place(row: dict[str, Any]) -> tuple[str, str]:
    context, stream = _text(row, "context"), _text(row, "stream")
    if context == LOG_CONTEXT:
        raise _Wrong("context", f"is {LOG_CONTEXT}, which is that of logs; they take messages")
    for column, reason in (("context", check_context(context)), ("stream", check_stream(stream))):
        if reason:
            raise _Wrong(column, reason)
    return context, stream


def _event(row: dict[str, Any], bytes_max: int) -> NewEvent:
    kind = _text(row, "type")
    if reason := check_type(kind):
        raise _Wrong("type", reason)
    headers, body = row.get("headers") or None, _body(row)
    size = len(body) + len(kind.encode()) + len((headers or "").encode())
    if size > bytes_max:
        column = "body" if row.get("body") is not None else "text"
        raise _Wrong(column, f"makes an event of {size} bytes; {bytes_max} are the most")
    return NewEvent(
        _id(row.get("event_id")), stamp_of(_ticks(row.get("timestamp"), row.get("ticks"))), kind, headers, body
    )


def _text(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if value is None:
        raise _Wrong(column, "is null")
    return str(value)


def _body(row: dict[str, Any]) -> bytes:
    """The body, or where that is null the text; a row that was read has both."""
    body = row.get("body")
    if body is not None:
        return bytes(body)
    text = row.get("text")
    if text is None:
        raise _Wrong("body" if "body" in row else "text", "is null")
    return str(text).encode()


def _id(value: str | bytes | None) -> bytes:
    if value is None:
        return random_id()
    if isinstance(value, bytes):
        if len(value) != ID_BYTES:
            raise _Wrong("event_id", f"has {len(value)} bytes; an id has {ID_BYTES}")
        return value
    try:
        return UUID(value).bytes
    except ValueError:
        raise _Wrong("event_id", f"is {value!r}, which is no UUID") from None


def _ticks(micros: int | None, exact: int | None) -> int:
    """The event time. A row that was read has it exactly, too, which counts unless the timestamp is another by now."""
    if micros is None and exact is None:
        return now_ticks()
    if micros is None:
        return _in_range("ticks", int(exact or 0))
    ticks = UNIX_EPOCH_TICKS + TICKS_PER_US * micros
    if exact is not None and exact // TICKS_PER_US * TICKS_PER_US == ticks:
        ticks = exact
    return _in_range("timestamp", ticks)


def _in_range(column: str, ticks: int) -> int:
    if not 0 <= ticks <= TICKS_MAX:
        raise _Wrong(column, "is not within the years 1 to 9999")
    return ticks


# -- order


def _key(column: str, value: Any) -> bytes:
    """A value as bytes that come in the same order."""
    if value is None:
        raise _Wrong(column, "is null, and events are ordered by it")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return _float_key(column, value)
    if isinstance(value, date):
        value = value.toordinal()
    return struct.pack(">Q", int(value) + _SIGN)


def _float_key(column: str, value: float) -> bytes:
    if value != value:
        raise _Wrong(column, "is not a number, and events are ordered by it")
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
    return struct.pack(">Q", bits ^ (_SIGN * 2 - 1) if bits & _SIGN else bits | _SIGN)


def shown(bad: BadRow, part: int) -> InvalidRequest:
    """The error that a bad row fails its job with."""
    return InvalidRequest(f"row {bad.row} of partition {part}: column {bad.column}", bad.reason)


def utc_now() -> str:
    """The present time, as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
