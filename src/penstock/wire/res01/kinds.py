"""The kinds of fields that messages have: how a value becomes frames, and frames a value.

A kind is used in both directions and in all dialects: the `Dialect` says how numbers and times are written. A field has
a kind, a name for error messages and docs, and the attribute of the request or reply that it stands for. A layout is
the fields of a message, or of one row of a list in it, in their order.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, cast

from penstock.errors import InvalidRequest
from penstock.model import NewEvent, ProducerMark, StoreStats, stamp_of
from penstock.wire.res01.dialects import Dialect, Frames
from penstock.wire.res01.events import FULL_FRAMES, full_events, full_frames
from penstock.wire.res01.fields import (
    BINARY_SCALARS,
    EVENT_FRAMES,
    TEXT_SCALARS,
    Fields,
    binary_of_stamp,
    read_text,
    swap_guid,
    swap_guids,
)


class Kind(Protocol):
    """How the values of a field travel."""

    @property
    def name(self) -> str:
        """What the docs call it."""

    @property
    def frames(self) -> int:
        """How many frames it has at least."""

    def read(self, fields: Fields, field: str) -> Any:
        """The value of the next frames; raises InvalidRequest."""

    def write(self, out: Frames, value: Any, dialect: Dialect) -> None:
        """Append the frames of a value."""


class Scalar(NamedTuple):
    """A value in one frame. The binary dialect has a way of its own for numbers and times."""

    name: str
    read: Callable[[Fields, str], Any]
    text: Callable[[Any], bytes]
    binary: Callable[[Any], bytes] | None = None
    frames: int = 1

    def write(self, out: Frames, value: Any, dialect: Dialect) -> None:
        """Append the frame."""
        out.append(self.binary(value) if dialect.is_binary and self.binary else self.text(value))

    def __call__(self, field: str, attribute: str | None = None, **more: Any) -> "Field":
        """A field of this kind; its attribute has the same name in Python's way of writing, or this one."""
        return Field(field, self, _CAPITAL.sub(r"_\1", field).lower() if attribute is None else attribute, **more)

    def or_null(self, read: Callable[[Fields, str], Any]) -> "Scalar":
        """The same where an empty frame is null."""
        text, binary = self.text, self.binary
        return Scalar(
            f"{self.name} or empty",
            read,
            lambda value: b"" if value is None else text(value),
            None if binary is None else lambda value: b"" if value is None else binary(value),
        )


def _time(ticks: int) -> bytes:
    return TEXT_SCALARS.write_stamp(stamp_of(ticks))


def _binary_time(ticks: int) -> bytes:
    return BINARY_SCALARS.write_stamp(stamp_of(ticks))


# The bound method writes an int faster than any function of ours.
_decimal: Final[Callable[[int], bytes]] = b"%d".__mod__

STRING: Final = Scalar("string", Fields.text, str.encode)
STRING_OR_NULL: Final = STRING.or_null(Fields.text_or_none)
INT: Final = Scalar("int", Fields.number, _decimal, BINARY_SCALARS.write_int)
LONG: Final = Scalar("long", Fields.number, _decimal, BINARY_SCALARS.write_long)
LONG_OR_NULL: Final = LONG.or_null(Fields.number_or_none)
LONG_OR_ZERO: Final = Scalar("long or empty", lambda fields, field: fields.number_or_none(field) or 0, _decimal)
TIME: Final = Scalar("datetime", Fields.ticks, _time, _binary_time)
TIME_OR_NULL: Final = TIME.or_null(Fields.ticks_or_none)
GUID: Final = Scalar("guid", Fields.guid, swap_guid)
BYTES: Final = Scalar("bytes", Fields.frame, bytes)
BYTES_OR_NULL: Final = Scalar("bytes or empty", lambda fields, field: fields.frame(field) or None, lambda b: b or b"")
FLAG: Final = Scalar("flag", Fields.flag, _decimal)
WAIT: Final = Scalar("int", Fields.wait_ms, _decimal)


def word(words: type[StrEnum]) -> Scalar:
    """One of a few words."""
    name = " or ".join(f"`{each}`" for each in words)
    return Scalar(name, lambda fields, field: fields.word(field, words), str.encode)


_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")

# --- fields and layouts ---------------------------------------------------------------------------------------

REQUIRED: Final = object()
"""The default of a field that cannot be left out."""


class Field(NamedTuple):
    """One field of a message."""

    name: str
    kind: Kind
    attribute: str = ""
    """What it stands for; without one it is read and forgotten."""
    get: Callable[[Any], Any] | None = None
    """How to find its value, where that is not simply the attribute."""
    default: Any = REQUIRED
    """The value of a last field that is left out. A field that has its default is not written."""


class Layout:
    """The fields of a message or a row, and what they make."""

    __slots__ = ("_has_defaults", "_read", "_text", "_write", "fields", "frames", "make")

    def __init__(self, make: Callable[..., Any], fields: Iterable[Field]) -> None:
        self.make = make
        self.fields = tuple(fields)
        self.frames = sum(field.kind.frames for field in self.fields if field.default is REQUIRED)
        self._has_defaults = any(field.default is not REQUIRED for field in self.fields)
        self._read = [(field.attribute, field.kind.read, field.name, field.default) for field in self.fields]
        written = [field for field in self.fields if field.get or field.attribute]
        self._write = [(_get(field), field.kind.write, field.default) for field in written]
        kinds = [field.kind for field in written]
        self._text: list[tuple[Callable[[Any], Any], Callable[[Any], bytes]]] | None = None
        if not self._has_defaults and all(isinstance(kind, Scalar) for kind in kinds):
            self._text = [(_get(field), cast("Scalar", field.kind).text) for field in written]

    def values(self, fields: Fields) -> dict[str, Any]:
        """The values of the next frames by attribute."""
        if not self._has_defaults:
            values = {attribute: read(fields, name) for attribute, read, name, _ in self._read}
        else:
            values = {
                attribute: read(fields, name) if default is REQUIRED or fields.left else default
                for attribute, read, name, default in self._read
            }
        # What has no attribute was read to be forgotten.
        values.pop("", None)
        return values

    def read(self, fields: Fields) -> Any:
        """What the next frames make."""
        return self.make(**self.values(fields))

    def write(self, out: Frames, owner: Any, dialect: Dialect) -> None:
        """Append the frames of what was made."""
        if self._text is not None and not dialect.is_binary:
            out += [text(get(owner)) for get, text in self._text]
            return
        for get, write, default in self._write:
            value = get(owner)
            if default is REQUIRED or value != default:
                write(out, value, dialect)


def _get(field: Field) -> Callable[[Any], Any]:
    return field.get or attrgetter(field.attribute)


# --- lists ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """A count, then so many rows. `to_end`: they are the last fields of the message."""

    layout: Layout
    count: str = "Count"
    collect: Callable[[Iterable[Any]], Any] = tuple
    to_end: bool = True
    frames = 1

    @property
    def name(self) -> str:
        """Its rows are in the docs."""
        return f"int `{self.count}`, then for each: {told(self.layout.fields)}"

    def read(self, fields: Fields, _field: str) -> Any:
        """All rows."""
        counted = fields.count_to_end if self.to_end else fields.count
        count = counted(self.count, self.layout.frames)
        return self.collect(self.layout.read(fields) for _ in range(count))

    def write(self, out: Frames, value: Sequence[Any], dialect: Dialect) -> None:
        """The count and all rows."""
        out.append(dialect.scalars.write_int(len(value)))
        for row in value:
            self.layout.write(out, row, dialect)


@dataclass(frozen=True, slots=True)
class Values:
    """A count, then so many frames of one kind; the field's name is that of one of them."""

    kind: Scalar
    count: str = "Count"
    collect: Callable[[Iterable[Any]], Any] = tuple
    frames = 1

    @property
    def name(self) -> str:
        """What each is."""
        return f"int `{self.count}`, then each: {self.kind.name}"

    def read(self, fields: Fields, field: str) -> Any:
        """All of them."""
        count = fields.count_to_end(self.count, 1)
        if self.kind is BYTES:
            return self.collect(fields.take(count))
        return self.collect(self.kind.read(fields, field) for _ in range(count))

    def write(self, out: Frames, value: Sequence[Any], dialect: Dialect) -> None:
        """The count and all of them."""
        out.append(dialect.scalars.write_int(len(value)))
        out.extend(value if self.kind is BYTES else map(self.kind.text, value))


# --- kinds of their own ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A producer's mark: Producer and Number, both or neither."""

    is_required: bool = False
    name = "string `Producer`, long `Number`; both empty for none"
    frames = 2

    def read(self, fields: Fields, _field: str) -> ProducerMark | None:
        """The mark, if there is one."""
        producer, number = fields.text("Producer"), fields.number_or_none("Number")
        if bool(producer) != (number is not None):
            missing = "Number" if producer else "Producer"
            raise InvalidRequest(missing, "is empty; a mark has both Producer and Number, and no mark has neither")
        if number is None and self.is_required:
            raise InvalidRequest("Producer", "is empty; whatever is published has a mark")
        return None if number is None else ProducerMark(producer, number)

    def write(self, out: Frames, value: ProducerMark | None, _dialect: Dialect) -> None:
        """Two frames."""
        out += (b"", b"") if value is None else (value.producer.encode(), b"%d" % value.number)


class Unmarked:
    """No frame: a commit of a transaction has no mark of its own."""

    name = ""
    frames = 0

    def read(self, _fields: Fields, _field: str) -> None:
        """Never one."""

    def write(self, _out: Frames, value: ProducerMark | None, _dialect: Dialect) -> None:
        """It must not have one."""
        if value is not None:
            raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")


@dataclass(frozen=True, slots=True)
class LeadingTime:
    """The UtcNow that the original's SQ has, and that others leave out: it is told by the number of frames."""

    behind: int
    """How many frames come behind it."""
    name = "datetime; may be left out"
    frames = 0

    def read(self, fields: Fields, field: str) -> None:
        """Nobody needs it."""
        fields.no_more_than(self.behind + 1)
        if fields.left > self.behind:
            fields.ticks(field)

    def write(self, _out: Frames, _value: Any, _dialect: Dialect) -> None:
        """Left out."""


@dataclass(frozen=True, slots=True)
class NewEvents:
    """The events of a commit: a count, then five frames for each."""

    to_end: bool = False
    least: int = 1
    name = (
        "int `EventCount`, then for each: `EventId` (guid), `Timestamp` (datetime), `TypeKey` (string), "
        "`Headers` (string), `Body` (bytes)"
    )
    frames = 1

    def read(self, fields: Fields, _field: str) -> tuple[NewEvent, ...]:
        """All events."""
        counted = fields.count_to_end if self.to_end else fields.count
        count = counted("EventCount", EVENT_FRAMES)
        if count < self.least:
            raise InvalidRequest("EventCount", "is 0; a commit has at least one event")
        return fields.events(count)

    def write(self, out: Frames, events: Sequence[NewEvent], dialect: Dialect) -> None:
        """The hot loop of appends: one pass per column."""
        out.append(dialect.scalars.write_int(len(events)))
        if len(events) == 1:
            number, stamp, kind, headers, body = events[0]
            out += (
                swap_guid(number),
                dialect.scalars.write_stamp(stamp),
                kind.encode(),
                (headers or "").encode(),
                body,
            )
            return
        frames = [b""] * (EVENT_FRAMES * len(events))
        frames[0::EVENT_FRAMES] = swap_guids([event.id for event in events])
        frames[1::EVENT_FRAMES] = [b"%d" % binary_of_stamp(event.stamp) for event in events]
        frames[2::EVENT_FRAMES] = [event.type.encode() for event in events]
        frames[3::EVENT_FRAMES] = [event.headers.encode() if event.headers else b"" for event in events]
        frames[4::EVENT_FRAMES] = [event.body for event in events]
        out += frames


class WholeEvents:
    """Events of which everything is told: a count, then eleven frames for each. A worker may have written them."""

    name = "int `Count`, then each: [a whole event](#everything-told)"
    frames = 1

    def read(self, fields: Fields, _field: str) -> list[Any]:
        """All events that are left."""
        count = fields.count_to_end("Count", FULL_FRAMES)
        return full_events(fields.take(FULL_FRAMES * count))

    def write(self, out: Frames, reply: Any, dialect: Dialect) -> None:
        """The events of a reply."""
        events, encoded = reply.events, reply.encoded
        out.append(dialect.scalars.write_int(len(events) if encoded is None else encoded.count))
        out += full_frames(events) if encoded is None else encoded.content


@dataclass(frozen=True, slots=True)
class Events:
    """Events as the original has them: eight frames for each, behind a count or, of one event, without."""

    has_count: bool = True
    frames = 1

    @property
    def name(self) -> str:
        """What each is."""
        return "int `Count`, then each: [an event](#events)" if self.has_count else "[an event](#events)"

    def read(self, _fields: Fields, field: str) -> Any:
        """No client of ours asks for these."""
        raise InvalidRequest(field, "is not read by this client")

    def write(self, out: Frames, reply: Any, dialect: Dialect) -> None:
        """The events of a reply."""
        events, encoded = reply.events, reply.encoded
        if self.has_count:
            out.append(dialect.scalars.write_int(len(events) if encoded is None else encoded.count))
        out += dialect.present(events) if encoded is None else encoded.content


class Types:
    """Type keys to read: a count, then each; none for all."""

    name = "int `TypeCount`, then each: string `TypeKey`; none for all"
    frames = 1

    def read(self, fields: Fields, _field: str) -> tuple[str, ...] | None:
        """The types, or None."""
        return tuple(fields.text("TypeKey") for _ in range(fields.count_to_end("TypeCount", 1))) or None

    def write(self, out: Frames, types: Iterable[str] | None, dialect: Dialect) -> None:
        """All of them."""
        keys = [] if types is None else [key.encode() for key in types]
        if types is not None and not keys:
            raise InvalidRequest("types", "are none at all; leave them out to read every type")
        out.append(dialect.scalars.write_int(len(keys)))
        out += keys


class Messages:
    """Messages of a log, some of which were erased: which ones, then all, an empty frame for each that was."""

    name = (
        "int `ErasedCount`, then each: int `Erased`, counted from 0; int `Count`, then each: bytes `Message`, "
        "empty if it was erased"
    )
    frames = 2

    def read(self, fields: Fields, _field: str) -> list[bytes | None]:
        """The messages."""
        erased = [fields.number("Erased") for _ in range(fields.count("ErasedCount", 1))]
        messages: list[bytes | None] = [*fields.take(fields.count_to_end("Count", 1))]
        for index in erased:
            if not 0 <= index < len(messages):
                raise InvalidRequest("Erased", f"is {index}, and {len(messages)} messages are there")
            messages[index] = None
        return messages

    def write(self, out: Frames, messages: Sequence[bytes | None], _dialect: Dialect) -> None:
        """Both lists."""
        erased = [b"%d" % index for index, message in enumerate(messages) if message is None]
        out += (b"%d" % len(erased), *erased, b"%d" % len(messages))
        out += [message or b"" for message in messages]


class Stats:
    """Counts by name, so that a newer server may tell more."""

    name = "int `Count`, then for each: `Name` (string), `Value` (long, or string)"
    frames = 1

    def read(self, fields: Fields, _field: str) -> dict[str, Any]:
        """Those that this client knows."""
        told = {fields.text("Name"): fields.frame("Value") for _ in range(fields.count_to_end("Count", 2))}
        return {field.name: self._value(field.name, field.type, told) for field in dataclass_fields(StoreStats)}

    def _value(self, name: str, kind: object, told: dict[str, bytes]) -> str | int:
        if name not in told:
            raise InvalidRequest(name, "is missing among the counts")
        return read_text(told[name], name) if kind is str else TEXT_SCALARS.read_number(told[name], name)

    def write(self, out: Frames, stats: StoreStats, _dialect: Dialect) -> None:
        """All of them."""
        names = [field.name for field in dataclass_fields(stats)]
        out.append(b"%d" % len(names))
        for name in names:
            value = getattr(stats, name)
            out += (name.encode(), value.encode() if isinstance(value, str) else b"%d" % value)


def told(fields: Iterable[Field]) -> str:
    """Fields as the docs list them."""
    return ", ".join(_told(field) for field in fields if field.kind.name)


def _told(field: Field) -> str:
    if not field.name:
        return field.kind.name
    default = "" if field.default is REQUIRED else "; may be left out"
    return f"`{field.name}` ({field.kind.name}{default})"
