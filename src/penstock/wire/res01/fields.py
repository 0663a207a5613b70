"""Single fields, in the text dialect and in the binary one, and a cursor over the frames of a message.

Every reader takes the frame and the name of the field, so that an error can name it. Readers of many frames are for the
columns of a commit: they check a whole column at once, and look at single frames only if that fails.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import cycle
from struct import Struct, unpack
from typing import Final, NamedTuple, TypeVar

from penstock.errors import InvalidRequest
from penstock.model import KIND_UTC, TICKS_MAX, stamp_of, ticks_of, ticks_of_datetime
from penstock.model.columns import Columns, columns_of_parts
from penstock.model.times import TICKS_MASK, TICKS_PER_SECOND

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
NUMBER_BYTES_MAX: Final = 32
"""Longer than any valid number; anything longer is not parsed."""
TIME_BYTES_MAX: Final = 64
"""Longer than any ISO 8601 time; anything longer is not parsed."""
SHOWN_BYTES_MAX: Final = 40
"""How much of a wrong frame an error message shows."""
GUID_BYTES: Final = 16

LONG_DIGITS: Final = 19
_TICKS_PER_DAY: Final = 86_400 * TICKS_PER_SECOND
_NUMBER: Final = re.compile(rb"-?[0-9]+")
_SEVENTH: Final = re.compile(r"(?<=[.,]\d{6})(\d)\d*")
_YEAR_ZERO: Final = re.compile(r"\A0000(?=-?\d\d-?\d\d)")
INT_FORMAT: Final = Struct("<i")
LONG_FORMAT: Final = Struct("<q")
_SWAPS: Final = ((0, 3), (1, 2), (2, 1), (3, 0), (4, 5), (5, 4), (6, 7), (7, 6))
_FEW: Final = 12
"""Up to this many guids are converted faster one by one."""

T = TypeVar("T")


class Scalars(NamedTuple):
    """The fields of one dialect. A number that is read is an int or a long; a datetime is a stamp."""

    read_number: Callable[[bytes, str], int]
    read_stamp: Callable[[bytes, str], int]
    read_stamps: Callable[[list[bytes], str], list[int]]
    write_stamp: Callable[[int], bytes]


# --- text and guids, the same in both dialects ----------------------------------------------------------------


def read_text(frame: bytes, field: str) -> str:
    try:
        return frame.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(field, f"is not UTF-8 (byte {error.start})") from error


def read_texts(frames: list[bytes], field: str) -> list[str]:
    try:
        return list(map(bytes.decode, frames))
    except UnicodeDecodeError:
        return _one_by_one(read_text, frames, field)


def read_guid(frame: bytes, field: str) -> bytes:
    """16 bytes in .NET layout, as 16 bytes in RFC 4122 order."""
    if len(frame) != GUID_BYTES:
        raise InvalidRequest(field, f"has {len(frame)} bytes; a guid has {GUID_BYTES}")
    return swap_guid(frame)


def read_guids(frames: list[bytes], field: str) -> list[bytes]:
    if set(map(len, frames)) == {GUID_BYTES}:
        return swap_guids(frames)
    return _one_by_one(read_guid, frames, field)


def swap_guid(guid: bytes) -> bytes:
    """From .NET layout to RFC 4122 order, or back: the bytes of the first three fields are reversed."""
    return guid[3::-1] + guid[5:3:-1] + guid[7:5:-1] + guid[8:]


def swap_guids(guids: list[bytes] | tuple[bytes, ...]) -> list[bytes]:
    """Many at once: byte by byte of the layout instead of guid by guid."""
    if len(guids) <= _FEW:
        return list(map(swap_guid, guids))
    joined = b"".join(guids)
    swapped = bytearray(joined)
    for to, at in _SWAPS:
        swapped[to::GUID_BYTES] = joined[at::GUID_BYTES]
    flat = bytes(swapped)
    return [flat[at : at + GUID_BYTES] for at in range(0, len(flat), GUID_BYTES)]


# --- datetimes ------------------------------------------------------------------------------------------------


def stamp_of_binary(value: int) -> int:
    """The stamp of a .NET `DateTime.ToBinary()`; a time out of range becomes the nearest in range."""
    if not INT64_MIN <= value <= INT64_MAX:
        return stamp_of(TICKS_MAX if value > 0 else 0)
    bits = value & (1 << 64) - 1
    kind, ticks = bits >> 62, bits & TICKS_MASK
    if ticks > TICKS_MAX:
        # A local time before the first UTC tick wraps round to the top of the range.
        ticks = 0 if kind > KIND_UTC and ticks > TICKS_MASK - _TICKS_PER_DAY else TICKS_MAX
    return stamp_of(ticks, kind)


def binary_of_stamp(stamp: int) -> int:
    """The .NET `DateTime.ToBinary()` of a stamp: the same bits, read as a signed number."""
    return stamp - (1 << 64) if stamp >> 63 else stamp


def _iso_stamp(frame: bytes) -> int:
    """The stamp of an ISO 8601 time. Python parses microseconds; this adds the seventh digit of .NET's times."""
    if len(frame) > TIME_BYTES_MAX:
        raise ValueError("too long for a time")
    text = frame.decode("ascii")
    seventh = _SEVENTH.search(text)
    rest = int(seventh[1]) if seventh else 0
    # Python has no year 0. It is as long as the year 4, and all of it lies before the first tick.
    moment = datetime.fromisoformat(_YEAR_ZERO.sub("0004", _SEVENTH.sub("", text)))
    if _YEAR_ZERO.match(text):
        return stamp_of(0)
    return stamp_of(min(max(ticks_of_datetime(moment) + rest, 0), TICKS_MAX))


# --- text: ASCII decimals, datetimes also as ISO 8601 ---------------------------------------------------------


def _text_number(frame: bytes, field: str) -> int:
    if len(frame) > NUMBER_BYTES_MAX or not _NUMBER.fullmatch(frame):
        raise InvalidRequest(field, f"is not a number: {quoted(frame)}")
    number = int(frame)
    if not INT64_MIN <= number <= INT64_MAX:
        raise InvalidRequest(field, f"is {number}, which does not fit 64 bits")
    return number


def _are_plain(frames: list[bytes]) -> bool:
    """Whether these are decimals of 64 bits, so that `int` reads them."""
    return all(map(bytes.isdigit, frames)) and max(map(len, frames), default=0) < LONG_DIGITS


def read_text_numbers(frames: list[bytes], field: str) -> list[int]:
    if _are_plain(frames):
        return list(map(int, frames))
    return _one_by_one(_text_number, frames, field)


def _text_stamp(frame: bytes, field: str) -> int:
    if frame.isdigit() and len(frame) <= LONG_DIGITS:
        value = int(frame)
        # The bits of a time in range are its stamp.
        return value if value & TICKS_MASK <= TICKS_MAX and value <= INT64_MAX else stamp_of_binary(value)
    if len(frame) <= NUMBER_BYTES_MAX and _NUMBER.fullmatch(frame):
        return stamp_of_binary(int(frame))
    try:
        return _iso_stamp(frame)
    except ValueError as error:
        raise InvalidRequest(field, f"is neither ticks nor ISO 8601: {quoted(frame)}") from error


def _text_stamps(frames: list[bytes], field: str) -> list[int]:
    if all(map(bytes.isdigit, frames)) and max(map(len, frames), default=0) <= LONG_DIGITS:
        return [
            value if value & TICKS_MASK <= TICKS_MAX and value <= INT64_MAX else stamp_of_binary(value)
            for value in map(int, frames)
        ]
    return _one_by_one(_text_stamp, frames, field)


def _write_text_stamp(stamp: int) -> bytes:
    return b"%d" % binary_of_stamp(stamp)


# --- binary: little-endian, an int has 4 bytes and a long 8; both are accepted for a number ---------------------


def _binary_number(frame: bytes, field: str) -> int:
    if len(frame) not in (INT_FORMAT.size, LONG_FORMAT.size):
        raise InvalidRequest(field, f"has {len(frame)} bytes; a number has {INT_FORMAT.size} or {LONG_FORMAT.size}")
    return int.from_bytes(frame, "little", signed=True)


def _binary_stamp(frame: bytes, field: str) -> int:
    if len(frame) != LONG_FORMAT.size:
        raise InvalidRequest(field, f"has {len(frame)} bytes; a datetime has {LONG_FORMAT.size}")
    return stamp_of_binary(LONG_FORMAT.unpack(frame)[0])


def _binary_stamps(frames: list[bytes], field: str) -> list[int]:
    if set(map(len, frames)) == {LONG_FORMAT.size}:
        stamps: tuple[int, ...] = unpack(f"<{len(frames)}Q", b"".join(frames))
        return [
            stamp if stamp & TICKS_MASK <= TICKS_MAX else stamp_of_binary(binary_of_stamp(stamp)) for stamp in stamps
        ]
    return _one_by_one(_binary_stamp, frames, field)


def _write_binary_stamp(stamp: int) -> bytes:
    return LONG_FORMAT.pack(binary_of_stamp(stamp))


# --- leaves ---------------------------------------------------------------------------------------------------


def quoted(frame: bytes) -> str:
    """A frame in an error message, shortened."""
    return repr(frame[:SHOWN_BYTES_MAX])[1:] + ("…" if len(frame) > SHOWN_BYTES_MAX else "")


def _one_by_one(read: Callable[[bytes, str], T], frames: list[bytes], field: str) -> list[T]:
    """The slow way for a column, with an error that names the event."""
    return [read(frame, f"{field} of event {number}") for number, frame in enumerate(frames, 1)]


TEXT_SCALARS: Final = Scalars(_text_number, _text_stamp, _text_stamps, _write_text_stamp)
BINARY_SCALARS: Final = Scalars(_binary_number, _binary_stamp, _binary_stamps, _write_binary_stamp)


EVENT_FRAMES: Final = 5
"""Frames of an event in a request: id, timestamp, type, headers, body."""

W = TypeVar("W", bound=StrEnum)

# The constructor of a named tuple takes its fields one by one; this takes the row that `zip` has made.


class Fields:
    """A cursor over the frames after the RequestId."""

    __slots__ = ("_at", "_frames", "_scalars")

    def __init__(self, frames: list[bytes], at: int, scalars: Scalars) -> None:
        self._frames = frames
        self._at = at
        self._scalars = scalars

    @property
    def left(self) -> int:
        return len(self._frames) - self._at

    def frame(self, field: str) -> bytes:
        at = self._at
        if at >= len(self._frames):
            raise InvalidRequest(field, "is missing: the message has too few frames")
        self._at = at + 1
        return self._frames[at]

    def text(self, field: str) -> str:
        return read_text(self.frame(field), field)

    def number(self, field: str) -> int:
        return self._scalars.read_number(self.frame(field), field)

    def ticks(self, field: str) -> int:
        """The next frame as a datetime, whatever its kind."""
        return ticks_of(self._scalars.read_stamp(self.frame(field), field))

    def or_none(self, read: Callable[["Fields", str], T], field: str) -> T | None:
        """The value that a reader makes of the next frame; None if the frame is empty."""
        if self.frame(field):
            self._at -= 1
            return read(self, field)
        return None

    def flag(self, field: str) -> bool:
        frame = self.frame(field)
        if frame not in (b"0", b"1"):
            raise InvalidRequest(field, f"is neither 0 nor 1: {quoted(frame)}")
        return frame == b"1"

    def word(self, field: str, words: type[W]) -> W:
        text = self.text(field)
        try:
            return words(text)
        except ValueError:
            raise InvalidRequest(field, f"is none of {', '.join(words)}: {quoted(text.encode())}") from None

    def guid(self, field: str) -> bytes:
        return read_guid(self.frame(field), field)

    def wait_ms(self, field: str) -> int:
        wait_ms = self.number(field)
        if wait_ms < 0:
            raise InvalidRequest(field, f"is {wait_ms}; it must be 0 (do not wait) or more")
        return wait_ms

    def count(self, field: str, frames_each: int, most: int | None = None) -> int:
        """A count of items that have at least so many frames each."""
        count = self.number(field)
        if count < 0 or count * frames_each > self.left:
            raise InvalidRequest(field, f"is {count}, but {self.left} frames follow ({frames_each} for each)")
        if most is not None and count > most:
            raise InvalidRequest(field, f"is {count}; at most {most} at once")
        return count

    def count_to_end(self, field: str, frames_each: int, most: int | None = None) -> int:
        """A count of items that have exactly so many frames each, up to the end of the message."""
        count = self.count(field, frames_each, most)
        if count * frames_each != self.left:
            raise InvalidRequest(field, f"is {count}, but {self.left} frames follow ({frames_each} for each)")
        return count

    def take(self, count: int) -> list[bytes]:
        """The next frames. The caller has checked that they exist."""
        start = self._at
        self._at = end = start + count
        return self._frames[start:end]

    def number_rows(self, count: int, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """The next rows of numbers. The caller has checked that their frames exist."""
        frames, width = self.take(count * len(names)), len(names)
        if self._scalars is TEXT_SCALARS and _are_plain(frames):
            numbers = map(int, frames)
        else:
            numbers = map(self._scalars.read_number, frames, cycle(names))
        return zip(*[numbers] * width, strict=True)

    def events(self, count: int) -> Columns:
        """The next events, whose frames exist. The hot loop of appends: one pass per column."""
        frames, start = self._frames, self._at
        self._at = end = start + EVENT_FRAMES * count
        ids = read_guids(frames[start:end:EVENT_FRAMES], "EventId")
        stamps = self._scalars.read_stamps(frames[start + 1 : end : EVENT_FRAMES], "Timestamp")
        types, headers = (frames[start + place : end : EVENT_FRAMES] for place in (2, 3))
        for column, field in ((types, "TypeKey"), (headers, "Headers")):
            if not b"".join(column).isascii():
                read_texts(column, field)
        return columns_of_parts(ids, stamps, types, headers, frames[start + 4 : end : EVENT_FRAMES])

    def no_more_than(self, count: int) -> None:
        if self.left > count:
            raise InvalidRequest("message", f"has too many frames: {self.left - count} more than it should")

    def end(self) -> None:
        self.no_more_than(0)
