"""Fields of Res01 messages in both dialects, written from the protocol's description alone.

It shares nothing with the server's codec, and forgives nothing: a frame too many, or a number that is not one, fails
the test.
"""

import re
import struct
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID, uuid4

UNSPECIFIED, UTC, LOCAL, LOCAL_SUMMER = range(4)
"""The kinds of a .NET DateTime: the top two bits of its `ToBinary()`."""
UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
TICKS_MAX: Final = 3_155_378_975_999_999_999
"""9999-12-31 23:59:59.9999999."""
LONG_AGO: Final = UTC << 62 | 0
"""A start time before everything."""

Time = int | str
"""What `DateTime.ToBinary()` gives, or ISO 8601."""


def to_binary(ticks: int, kind: int = UTC) -> int:
    """`DateTime.ToBinary()`: 62 bits of ticks under two bits of kind, as a signed number."""
    value = kind << 62 | ticks
    return value - (1 << 64) if value >> 63 else value


def ticks_of(binary: int) -> int:
    """The ticks of what `ToBinary()` gave."""
    return binary & ((1 << 62) - 1)


def kind_of(binary: int) -> int:
    """The kind of what `ToBinary()` gave."""
    return (binary >> 62) & 3


def now() -> int:
    """The present time, of kind UTC."""
    return to_binary(UNIX_EPOCH_TICKS + time.time_ns() // 100)


class Refused(Exception):
    """The server answered ER."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code
        self.message = message


class NewEvent(NamedTuple):
    """An event to append, as the client gives it."""

    id: UUID
    time: Time
    type: str
    headers: str
    body: bytes


def an_event(body: bytes = b"{}", *, at: Time | None = None, type: str = "Placed", headers: str = "") -> NewEvent:
    """A new event with an id of its own."""
    return NewEvent(uuid4(), now() if at is None else at, type, headers, body)


class StoredEvent(NamedTuple):
    """An event as EF, QE, QR and GR carry it."""

    id: UUID
    stream: str
    context: str
    sequence: int
    time: int
    type: str
    headers: str
    body: bytes


class Queued(NamedTuple):
    """QE of the text dialect."""

    queue: str
    subscriber: str
    now: int
    start: int
    end: int
    events: list[StoredEvent]

    @property
    def markers(self) -> tuple[int, int]:
        """What acknowledges it."""
        return self.start, self.end

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of its events."""
        return [event.body for event in self.events]


class BinaryQueued(NamedTuple):
    """QE of the binary dialect."""

    context: str
    queue: str
    subscriber: str
    now: int
    allocation: int | None
    events: list[StoredEvent]


# --- dialects -------------------------------------------------------------------------------------------------


class Dialect(Protocol):
    """How numbers and times look in frames."""

    tag: bytes

    def number(self, value: int) -> bytes:
        """A frame of an int, such as a count."""

    def long(self, value: int | None) -> bytes:
        """A frame of a long, such as a version; None is an empty one."""

    def time(self, value: Time) -> bytes:
        """A frame of a time."""

    def from_int(self, frame: bytes) -> int:
        """The int of a frame."""

    def from_long(self, frame: bytes) -> int:
        """The long of a frame."""


class Text:
    """Numbers are ASCII decimals."""

    tag = b"Res01"

    def number(self, value: int) -> bytes:
        """A decimal."""
        return str(value).encode()

    def long(self, value: int | None) -> bytes:
        """A decimal, or nothing."""
        return b"" if value is None else str(value).encode()

    def time(self, value: Time) -> bytes:
        """The decimal of ToBinary(), or ISO 8601 as it is."""
        return str(value).encode()

    def from_int(self, frame: bytes) -> Any:
        """A decimal and nothing else."""
        assert re.fullmatch(rb"0|-?[1-9][0-9]*", frame), f"not a decimal: {frame!r}"
        return int(frame)

    from_long = from_int


class OriginalText(Text):
    """The text dialect under the tag that original clients send."""

    tag = b"RC0.1"


class Binary:
    """Ints have four bytes and longs eight, the lowest first."""

    tag = b"RC0.1"

    def number(self, value: int) -> bytes:
        """Four bytes."""
        return struct.pack("<i", value)

    def long(self, value: int | None) -> bytes:
        """Eight bytes, or none."""
        return b"" if value is None else struct.pack("<q", value)

    def time(self, value: Time) -> bytes:
        """The eight bytes of ToBinary()."""
        assert isinstance(value, int)
        return struct.pack("<q", value)

    def from_int(self, frame: bytes) -> Any:
        """Of four bytes."""
        return struct.unpack("<i", frame)[0]

    def from_long(self, frame: bytes) -> Any:
        """Of eight bytes."""
        return struct.unpack("<q", frame)[0]


class Fields:
    """The details of an answer, taken one after the other; `end` when there must be no more."""

    def __init__(self, details: Sequence[bytes], dialect: Dialect) -> None:
        self._left = list(reversed(details))
        self._dialect = dialect

    def raw(self, name: str) -> bytes:
        assert self._left, f"there is no {name}"
        return self._left.pop()

    def text(self, name: str) -> str:
        return self.raw(name).decode()

    def number(self, name: str) -> Any:
        return self._dialect.from_int(self.raw(name))

    def long(self, name: str) -> Any:
        return self._dialect.from_long(self.raw(name))

    def optional_long(self, name: str) -> Any:
        frame = self.raw(name)
        return self._dialect.from_long(frame) if frame else None

    def guid(self, name: str) -> UUID:
        return UUID(bytes_le=self.raw(name))

    def flag(self, name: str) -> bool:
        value = self.number(name)
        assert value in (0, 1), f"{name} is {value}"
        return bool(value)

    def event(self) -> StoredEvent:
        return StoredEvent(
            id=self.guid("EventId"),
            stream=self.text("StreamId"),
            context=self.text("Context"),
            sequence=self.long("Sequence"),
            time=self.long("Timestamp"),
            type=self.text("Type tag"),
            headers=self.text("Headers"),
            body=self.raw("Body"),
        )

    def events(self) -> list[StoredEvent]:
        """Count and as many events, with nothing behind them."""
        events = [self.event() for _ in range(self.number("Count"))]
        self.end()
        return events

    def end(self) -> None:
        assert not self._left, f"{len(self._left)} frames too many: {self._left[:5]}"
