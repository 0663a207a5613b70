"""Columns: the events of one commit as they are stored, before they have a place in the history.

A client makes them, a server checks them, and the store writes them as they are: no step handles single events.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, pairwise, repeat
from operator import and_
from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.model.events import TYPE_BYTES_MAX, NewEvent, check_type, random_id, random_ids
from penstock.model.times import TICKS_MASK, TICKS_MAX

TYPES_MAX: Final = (1 << 16) - 1
FIXED_BYTES: Final = 34
"""Bytes of an event in `Columns.fixed`."""
_U64: Final = Struct("<Q")
_ONE: Final = Struct("<16sQHII")


class Columns(NamedTuple):
    """The events of one commit. All numbers are little-endian."""

    length: int
    types: tuple[bytes, ...]
    """Each type once."""
    fixed: bytes
    """Column by column: id 16, stamp u64, type u16 (an index into `types`), length of headers u32, of body u32."""
    headers: bytes
    bodies: bytes
    top_ticks: int
    size: int

    def numbers(self) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
        """Stamps, types, lengths of headers and lengths of bodies."""
        return _numbers(self.length, self.fixed)

    def split_bodies(self) -> list[bytes]:
        ends = list(accumulate(self.numbers()[3], initial=0))
        return [self.bodies[a:b] for a, b in pairwise(ends)]

    def sizes(self) -> list[int]:
        """The bytes of each event's type, headers and body."""
        _, codes, headers, bodies = self.numbers()
        lengths = list(map(len, self.types))
        return [lengths[code] + header + body for code, header, body in zip(codes, headers, bodies, strict=True)]


NO_COLUMNS: Final = Columns(0, (), b"", b"", b"", 0, 0)
"""Of no events at all: what is never stored."""


def columns_of(events: Sequence[NewEvent]) -> Columns:
    """Encode events, checking every field: what this returns can be stored."""
    if len(events) == 1 and (columns := plain_columns(events[0])) is not None:
        return columns
    if not events:
        raise InvalidRequest("events", "are missing: a commit has at least one")
    try:
        ids, stamps, names, texts, bodies = zip(*events, strict=True)
        headers = [b"" if text is None else text.encode() for text in texts]
        types = {name: name.encode() for name in set(names)}
        columns = columns_of_parts(ids, stamps, [types[name] for name in names], headers, bodies)
    except UnicodeEncodeError as error:
        raise InvalidRequest("text", f"is not valid Unicode: {error.object[:40]!r}") from None
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise InvalidRequest("events", f"cannot be stored: {error}") from error
    # Joined lengths too: a buffer of larger items than bytes has fewer items than bytes.
    if set(map(len, ids)) != {16} or len(b"".join(ids)) != 16 * len(ids):
        raise InvalidRequest("event id", "is not 16 bytes long")
    if len(columns.bodies) != sum(map(len, bodies)):
        raise InvalidRequest("body", "is not made of bytes")
    if columns.top_ticks > TICKS_MAX:
        raise InvalidRequest("timestamp", f"of {columns.top_ticks} ticks lies after the year 9999")
    return columns


def columns_of_parts(
    ids: Sequence[bytes],
    stamps: Sequence[int],
    types: Sequence[bytes],
    headers: Sequence[bytes],
    bodies: Sequence[bytes],
) -> Columns:
    """The columns of events whose ids, stamps and headers are checked. Raises InvalidRequest for a bad type."""
    length = len(ids)
    codes: dict[bytes, int] = {}
    type_codes = [codes.setdefault(name, len(codes)) for name in types]
    _check_types(codes)
    fixed = struct_of(f"<{16 * length}s{length}Q{length}H{length}I{length}I").pack(
        b"".join(ids), *stamps, *type_codes, *map(len, headers), *map(len, bodies)
    )
    top_ticks = _top_ticks(stamps)
    return _columns(length, tuple(codes), fixed, b"".join(headers), b"".join(bodies), top_ticks)


def _top_ticks(stamps: Sequence[int]) -> int:
    """The highest time. Most commits have times of one kind: then the highest stamp has it."""
    high = max(stamps)
    if high & ~TICKS_MASK == min(stamps) & ~TICKS_MASK:
        return high & TICKS_MASK
    top: int = max(map(and_, stamps, repeat(TICKS_MASK)))
    return top


def _columns(
    length: int, types: tuple[bytes, ...], fixed: bytes, headers: bytes, bodies: bytes, top_ticks: int
) -> Columns:
    size = len(fixed) + sum(map(len, types)) + len(headers) + len(bodies)
    return Columns(length, types, fixed, headers, bodies, top_ticks, size)


def columns_of_one(number: bytes, stamp: int, kind: bytes, headers: bytes, body: bytes) -> Columns:
    """The same for one event, as most commits have."""
    if reason := _reason(kind):
        raise InvalidRequest("event type", reason)
    fixed = _ONE.pack(number, stamp, 0, len(headers), len(body))
    size = FIXED_BYTES + len(kind) + len(headers) + len(body)
    return Columns(1, (kind,), fixed, headers, body, stamp & TICKS_MASK, size)


def plain_columns(event: NewEvent) -> Columns | None:
    """The columns of a plain single event, in half the time; None leaves it to the general way."""
    try:
        number, stamp, name, text, body = event
        if type(number) is not bytes or len(number) != 16 or type(body) is not bytes or type(stamp) is not int:
            return None
        if stamp & TICKS_MASK > TICKS_MAX:
            return None
        return columns_of_one(number, stamp, name.encode(), b"" if text is None else text.encode(), body)
    except (TypeError, ValueError, AttributeError, struct.error):
        return None


def received_columns(length: int, types: Sequence[bytes], fixed: bytes, headers: bytes, bodies: bytes) -> Columns:
    """Columns that a client made, checked as `columns_of` checks events. Raises InvalidRequest."""
    if length < 1:
        raise InvalidRequest("EventCount", f"is {length}; a commit has at least one event")
    if len(fixed) != FIXED_BYTES * length:
        raise InvalidRequest("Fixed", f"has {len(fixed)} bytes; {length} events have {FIXED_BYTES * length}")
    stamps, codes, header_lengths, body_lengths = _numbers(length, fixed)
    if sum(header_lengths) != len(headers):
        raise InvalidRequest("Headers", f"has {len(headers)} bytes; its lengths add up to {sum(header_lengths)}")
    if sum(body_lengths) != len(bodies):
        raise InvalidRequest("Bodies", f"has {len(bodies)} bytes; its lengths add up to {sum(body_lengths)}")
    if len(types) != len(set(types)) or set(codes) != set(range(len(types))):
        raise InvalidRequest("event types", "do not belong to the events: each type is there once, and is used")
    _check_types(types)
    top_ticks = _top_ticks(stamps)
    if top_ticks > TICKS_MAX:
        raise InvalidRequest("timestamp", f"of {top_ticks} ticks lies after the year 9999")
    if not headers.isascii():
        # All of them together may be UTF-8 although one ends within a character.
        for index, (a, b) in enumerate(pairwise(accumulate(header_lengths, initial=0))):
            try:
                headers[a:b].decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest("Headers", f"of event {index} is not UTF-8 (byte {error.start})") from None
    return _columns(length, tuple(types), fixed, headers, bodies, top_ticks)


def received_one(kind: bytes, fixed: bytes, headers: bytes, body: bytes) -> Columns | None:
    """The same for a plain single event, in a third of the time; None leaves it to the general way."""
    if len(fixed) != FIXED_BYTES:
        return None
    _, stamp, code, header_length, body_length = _ONE.unpack(fixed)
    if code or header_length != len(headers) or body_length != len(body):
        return None
    ticks = stamp & TICKS_MASK
    if ticks > TICKS_MAX or _reason(kind) or not headers.isascii():
        return None
    return Columns(1, (kind,), fixed, headers, body, ticks, FIXED_BYTES + len(kind) + header_length + body_length)


def _check_types(types: Collection[bytes]) -> None:
    if len(types) > TYPES_MAX:
        raise InvalidRequest("event types", f"are {len(types)}; a commit has at most {TYPES_MAX} different ones")
    for name in types:
        if reason := _reason(name):
            raise InvalidRequest("event type", reason)


def _reason(name: bytes) -> str | None:
    """Why this is no type; None if it is one."""
    if len(name) > TYPE_BYTES_MAX:
        # Not cached: the cache would keep it, however long it is.
        return f"has {len(name)} bytes; at most {TYPE_BYTES_MAX} are allowed"
    return _reason_of_short(name)


@lru_cache(maxsize=1024)
def _reason_of_short(name: bytes) -> str | None:
    try:
        return check_type(name.decode())
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start})"


def _numbers(length: int, fixed: bytes) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    found = struct_of(f"<{length}Q{length}H{length}I{length}I").unpack_from(fixed, 16 * length)
    return found[:length], found[length : 2 * length], found[2 * length : 3 * length], found[3 * length :]


def columns_of_bodies(name: str, stamp: int, bodies: Sequence[bytes]) -> Columns:
    """The columns of events of one valid type and one time, without headers, with new ids: messages of a log."""
    events = len(bodies)
    if events == 1:
        return columns_of_one(random_id(), stamp, name.encode(), b"", bodies[0])
    lengths = struct_of(f"<{events}I").pack(*map(len, bodies))
    fixed = b"".join((random_ids(events), _U64.pack(stamp) * events, bytes(6 * events), lengths))
    return _columns(events, (name.encode(),), fixed, b"", b"".join(bodies), stamp & TICKS_MASK)


def cuts(data: bytes, start: int, lengths: Iterable[int]) -> Iterator[bytes]:
    """The pieces of these lengths, one after the other, in a third of the time of slices. Check the lengths first."""
    source = BytesIO(data)
    source.seek(start)
    return map(source.read, lengths)


@lru_cache(maxsize=1024)
def struct_of(text: str) -> Struct:
    return Struct(text)
