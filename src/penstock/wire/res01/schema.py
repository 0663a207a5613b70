"""How messages are described: kinds of fields, fields, layouts, answers and commands. `commands` is the table of them.

A kind turns a value into frames and frames into a value, in all dialects: the `Dialect` says how numbers and times are
encoded. A field has a kind, a name for error messages and docs, and the attribute of the request or reply that it
stands for. A layout is the fields of a message, or of one row of a list in it, in order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, cast

from penstock.errors import InvalidRequest, PenstockError, Unexpected
from penstock.model import Done, Event, Limits, NewEvent, ProducerMark, Reply, Request, StoreStats, stamp_of
from penstock.model.columns import Columns, columns_of, received_columns
from penstock.wire.res01.dialects import (
    FULL_FRAMES,
    TEXT,
    Dialect,
    EventEncoder,
    Frames,
    error_of,
    full_events,
    full_frames,
)
from penstock.wire.res01.event_block import event_block, events_of_block
from penstock.wire.res01.fields import (
    BINARY_SCALARS,
    EVENT_FRAMES,
    INT_FORMAT,
    LONG_FORMAT,
    TEXT_SCALARS,
    Fields,
    read_text,
    swap_guid,
)

SMALL_BYTES_MAX: Final = 2 << 20
"""Bytes of a message that carries names and numbers only, or one function."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Subscriptions that one message may fetch, progress or set."""


class Kind(Protocol):
    """How the values of a field are encoded."""

    @property
    def name(self) -> str:
        """Its name in the docs."""

    @property
    def frames(self) -> int:
        """The least number of frames."""

    def read(self, fields: Fields, field: str) -> Any:
        """The value of the next frames; raises InvalidRequest."""

    def write(self, out: Frames, value: Any, dialect: Dialect) -> None:
        """Append the frames of a value."""


class Scalar(NamedTuple):
    """A value in one frame. The binary dialect encodes numbers and times differently."""

    name: str
    read: Callable[[Fields, str], Any]
    text: Callable[[Any], bytes]
    binary: Callable[[Any], bytes] | None = None
    frames: int = 1

    def write(self, out: Frames, value: Any, dialect: Dialect) -> None:
        out.append(self.binary(value) if dialect.is_binary and self.binary else self.text(value))

    def __call__(self, field: str, attribute: str | None = None, **more: Any) -> "Field":
        """A field of this kind. By default its attribute is the same name in snake case."""
        return Field(field, self, _CAPITAL.sub(r"_\1", field).lower() if attribute is None else attribute, **more)

    def or_null(self) -> "Scalar":
        """The same where an empty frame is null."""
        read, text, binary = self.read, self.text, self.binary
        return Scalar(
            f"{self.name} or empty",
            lambda fields, field: fields.or_none(read, field),
            lambda value: b"" if value is None else text(value),
            None if binary is None else lambda value: b"" if value is None else binary(value),
        )


# The bound method writes an int faster than any function of ours.
_decimal: Final[Callable[[int], bytes]] = b"%d".__mod__

STRING: Final = Scalar("string", Fields.text, str.encode)
STRING_OR_NULL: Final = STRING.or_null()
INT: Final = Scalar("int", Fields.number, _decimal, INT_FORMAT.pack)
LONG: Final = Scalar("long", Fields.number, _decimal, LONG_FORMAT.pack)
LONG_OR_NULL: Final = LONG.or_null()
LONG_OR_ZERO: Final = Scalar("long or empty", lambda fields, field: fields.or_none(Fields.number, field) or 0, _decimal)
TIME: Final = Scalar(
    "datetime",
    Fields.ticks,
    lambda ticks: TEXT_SCALARS.write_stamp(stamp_of(ticks)),
    lambda ticks: BINARY_SCALARS.write_stamp(stamp_of(ticks)),
)
TIME_OR_NULL: Final = TIME.or_null()
GUID: Final = Scalar("guid", Fields.guid, swap_guid)
WORDS: Final = Scalar(
    "string, words with spaces between",
    lambda fields, field: tuple(fields.text(field).split()),
    lambda words: " ".join(words).encode(),
)
BYTES: Final = Scalar("bytes", Fields.frame, bytes)
BYTES_OR_NULL: Final = Scalar("bytes or empty", lambda fields, field: fields.frame(field) or None, lambda b: b or b"")
FLAG: Final = Scalar("flag", Fields.flag, _decimal)
WAIT: Final = Scalar("int", Fields.wait_ms, _decimal)


def word(words: type[StrEnum]) -> Scalar:
    name = " or ".join(f"`{each}`" for each in words)
    return Scalar(name, lambda fields, field: fields.word(field, words), str.encode)


_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")

# --- fields and layouts ---------------------------------------------------------------------------------------

REQUIRED: Final = object()
"""The default of a field that cannot be left out."""


class Field(NamedTuple):
    name: str
    kind: Kind
    attribute: str = ""
    """Of the request or reply; without one the value is ignored."""
    get: Callable[[Any], Any] | None = None
    """Finds its value, where that is not simply the attribute."""
    default: Any = REQUIRED
    """The value of an absent last field. A field that has its default is not written."""


class Layout:
    """The fields of a message or a row, and the class that they make."""

    __slots__ = ("_has_defaults", "_numbers", "_read", "_text", "_write", "fields", "frames", "make")

    def __init__(self, make: Callable[..., Any], fields: Iterable[Field]) -> None:
        self.make = make
        self.fields = tuple(fields)
        self.frames = sum(field.kind.frames for field in self.fields if field.default is REQUIRED)
        self._has_defaults = any(field.default is not REQUIRED for field in self.fields)
        self._read = [(field.attribute, field.kind.read, field.name, field.default) for field in self.fields]
        written = [field for field in self.fields if field.get or field.attribute]
        self._write = [(_get(field), field.kind.write, field.default) for field in written]
        kinds = [field.kind for field in written]
        numbers = [field.attribute for field in self.fields if field.kind in (INT, LONG) and field.get is None]
        are_numbers = not self._has_defaults and len(numbers) == len(self.fields) > 1 and all(numbers)
        # Rows of numbers alone are read and written together, which is much faster.
        self._numbers = attrgetter(*numbers) if are_numbers else None
        self._text: list[tuple[Callable[[Any], Any], Callable[[Any], bytes]]] | None = None
        if not self._has_defaults and all(isinstance(kind, Scalar) for kind in kinds):
            self._text = [(_get(field), cast("Scalar", field.kind).text) for field in written]

    def values(self, fields: Fields) -> dict[str, Any]:
        if not self._has_defaults:
            values = {attribute: read(fields, name) for attribute, read, name, _ in self._read}
        else:
            values = {
                attribute: read(fields, name) if default is REQUIRED or fields.left else default
                for attribute, read, name, default in self._read
            }
        # Fields without an attribute are ignored.
        values.pop("", None)
        return values

    def read(self, fields: Fields) -> Any:
        return self.make(**self.values(fields))

    def read_rows(self, fields: Fields, count: int) -> Iterator[Any]:
        if self._numbers is None:
            return (self.read(fields) for _ in range(count))
        rows = fields.number_rows(count, [field.name for field in self.fields])
        attributes = [field.attribute for field in self.fields]
        return (self.make(**dict(zip(attributes, row, strict=True))) for row in rows)

    def write_rows(self, out: Frames, rows: Sequence[Any], dialect: Dialect) -> None:
        if self._numbers is not None and not dialect.is_binary:
            out += map(_decimal, chain.from_iterable(map(self._numbers, rows)))
            return
        for row in rows:
            self.write(out, row, dialect)

    def write(self, out: Frames, owner: Any, dialect: Dialect) -> None:
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
    """A count, then that many rows. `to_end`: they are the last fields of the message."""

    layout: Layout
    count: str = "Count"
    collect: Callable[[Iterable[Any]], Any] = tuple
    to_end: bool = True
    frames = 1

    @property
    def name(self) -> str:
        return f"int `{self.count}`, then for each: {described(self.layout.fields)}"

    def read(self, fields: Fields, _field: str) -> Any:
        counted = fields.count_to_end if self.to_end else fields.count
        count = counted(self.count, self.layout.frames)
        return self.collect(self.layout.read_rows(fields, count))

    def write(self, out: Frames, value: Sequence[Any], dialect: Dialect) -> None:
        INT.write(out, len(value), dialect)
        self.layout.write_rows(out, value, dialect)


@dataclass(frozen=True, slots=True)
class Values:
    """A count, then that many frames of one kind; the field's name is that of one of them."""

    kind: Scalar
    count: str = "Count"
    collect: Callable[[Iterable[Any]], Any] = tuple
    frames = 1

    @property
    def name(self) -> str:
        return f"int `{self.count}`, then each: {self.kind.name}"

    def read(self, fields: Fields, field: str) -> Any:
        count = fields.count_to_end(self.count, 1)
        if self.kind is BYTES:
            return self.collect(fields.take(count))
        return self.collect(self.kind.read(fields, field) for _ in range(count))

    def write(self, out: Frames, value: Sequence[Any], dialect: Dialect) -> None:
        INT.write(out, len(value), dialect)
        out.extend(value if self.kind is BYTES else map(self.kind.text, value))


# --- special kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A producer mark: Producer and Number, both or neither."""

    is_required: bool = False
    name = "string `Producer`, long `Number`; both empty for none"
    frames = 2

    def read(self, fields: Fields, _field: str) -> ProducerMark | None:
        producer, number = fields.text("Producer"), fields.or_none(Fields.number, "Number")
        if bool(producer) != (number is not None):
            missing = "Number" if producer else "Producer"
            raise InvalidRequest(missing, "is empty; a mark has both Producer and Number, and no mark has neither")
        if number is None and self.is_required:
            raise InvalidRequest("Producer", "is empty; a publication needs a mark")
        return None if number is None else ProducerMark(producer, number)

    def write(self, out: Frames, value: ProducerMark | None, _dialect: Dialect) -> None:
        out += (b"", b"") if value is None else (value.producer.encode(), b"%d" % value.number)


class LimitsOfPrincipal:
    """The limits of a principal, one frame each, in the order of their names in `Limits`."""

    name = ", ".join(f"long `{field.name}` or empty" for field in dataclass_fields(Limits))
    frames = len(dataclass_fields(Limits))

    def read(self, fields: Fields, _field: str) -> Limits:
        return Limits(*(LONG_OR_NULL.read(fields, field.name) for field in dataclass_fields(Limits)))

    def write(self, out: Frames, value: Limits, dialect: Dialect) -> None:
        for field in dataclass_fields(Limits):
            LONG_OR_NULL.write(out, getattr(value, field.name), dialect)


class Unmarked:
    """No frame: a commit of a transaction cannot have a mark."""

    name = ""
    frames = 0

    def read(self, _fields: Fields, _field: str) -> None:
        pass

    def write(self, _out: Frames, value: ProducerMark | None, _dialect: Dialect) -> None:
        if value is not None:
            raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")


@dataclass(frozen=True, slots=True)
class LeadingTime:
    """The UtcNow of the original's SQ, which others omit: the number of frames tells whether it is there."""

    behind: int
    name = "datetime; may be left out"
    frames = 0

    def read(self, fields: Fields, field: str) -> None:
        fields.no_more_than(self.behind + 1)
        if fields.left > self.behind:
            fields.ticks(field)

    def write(self, _out: Frames, _value: Any, _dialect: Dialect) -> None:
        pass


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

    def read(self, fields: Fields, _field: str) -> Columns | tuple[NewEvent, ...]:
        counted = fields.count_to_end if self.to_end else fields.count
        count = counted("EventCount", EVENT_FRAMES)
        if count < self.least:
            raise InvalidRequest("EventCount", "is 0; a commit has at least one event")
        return fields.events(count) if count else ()

    def write(self, out: Frames, events: Sequence[NewEvent], dialect: Dialect) -> None:
        INT.write(out, len(events), dialect)
        for number, stamp, kind, headers, body in events:
            out += (swap_guid(number), dialect.scalars.write_stamp(stamp), kind.encode())
            out += ((headers or "").encode(), body)


class EventColumns:
    """The events of a commit as the store has them: see "Columns" in docs/protocols/res01.md."""

    name = (
        "int `EventCount`, int `TypeCount`, then each: string `TypeKey`; then [columns](#columns): bytes `Fixed`, "
        "bytes `Headers`, bytes `Bodies`"
    )
    frames = 5

    def read(self, fields: Fields, _field: str) -> Columns:
        length, types = fields.number("EventCount"), fields.take(fields.count("TypeCount", 1))
        return received_columns(length, types, fields.frame("Fixed"), fields.frame("Headers"), fields.frame("Bodies"))

    def write(self, out: Frames, events: Columns | Sequence[NewEvent], _dialect: Dialect) -> None:
        columns = events if isinstance(events, Columns) else columns_of(events)
        types = columns.types
        out += (b"%d" % columns.length, b"%d" % len(types), *types, columns.fixed, columns.headers, columns.bodies)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a reply. A worker may have encoded them.

    `whole`: eleven frames for each, instead of the original's eight. One event may come without a count.
    """

    whole: bool = False
    has_count: bool = True
    frames = 1

    @property
    def name(self) -> str:
        event = "[a whole event](#everything-told)" if self.whole else "[an event](#events)"
        return f"int `Count`, then each: {event}" if self.has_count else event

    def read(self, fields: Fields, field: str) -> Any:
        if not self.whole:
            raise InvalidRequest(field, "is not read by this client")
        count = fields.count_to_end("Count", FULL_FRAMES)
        return full_events(fields.take(FULL_FRAMES * count))

    def write(self, out: Frames, reply: Any, dialect: Dialect) -> None:
        events, encoded = reply.events, reply.encoded
        if self.has_count:
            INT.write(out, len(events) if encoded is None else encoded.count, dialect)
        if encoded is not None:
            out += encoded.content
        else:
            out += full_frames(events) if self.whole else dialect.present(events)


class EventBlock:
    """The events of a reply in one frame. A worker may have encoded them."""

    name = "[a block of events](#blocks-of-events) `Events`"
    frames = 1

    def read(self, fields: Fields, field: str) -> list[Event]:
        return events_of_block(fields.frame(field))

    def write(self, out: Frames, reply: Any, _dialect: Dialect) -> None:
        out += event_block(reply.events) if reply.encoded is None else reply.encoded.content


class Types:
    """Type keys to read: a count, then each; none for all."""

    name = "int `TypeCount`, then each: string `TypeKey`; none for all"
    frames = 1

    def read(self, fields: Fields, _field: str) -> tuple[str, ...] | None:
        return tuple(fields.text("TypeKey") for _ in range(fields.count_to_end("TypeCount", 1))) or None

    def write(self, out: Frames, types: Iterable[str] | None, dialect: Dialect) -> None:
        keys = [] if types is None else [key.encode() for key in types]
        if types is not None and not keys:
            raise InvalidRequest("types", "are none at all; leave them out to read every type")
        INT.write(out, len(keys), dialect)
        out += keys


class Messages:
    """Messages of a log: the indexes of the erased ones, then all, with an empty frame for each erased one."""

    name = (
        "int `ErasedCount`, then each: int `Erased`, counted from 0; int `Count`, then each: bytes `Message`, "
        "empty if it was erased"
    )
    frames = 2

    def read(self, fields: Fields, _field: str) -> list[bytes | None]:
        erased = [fields.number("Erased") for _ in range(fields.count("ErasedCount", 1))]
        messages: list[bytes | None] = [*fields.take(fields.count_to_end("Count", 1))]
        for index in erased:
            if not 0 <= index < len(messages):
                raise InvalidRequest("Erased", f"is {index}, and {len(messages)} messages are there")
            messages[index] = None
        return messages

    def write(self, out: Frames, messages: Sequence[bytes | None], _dialect: Dialect) -> None:
        erased = [b"%d" % index for index, message in enumerate(messages) if message is None]
        out += (b"%d" % len(erased), *erased, b"%d" % len(messages))
        out += [message or b"" for message in messages]


class Stats:
    """Counts by name, so that a newer server may send more of them."""

    name = "int `Count`, then for each: `Name` (string), `Value` (long, or string)"
    frames = 1

    def read(self, fields: Fields, _field: str) -> dict[str, Any]:
        found = {fields.text("Name"): fields.frame("Value") for _ in range(fields.count_to_end("Count", 2))}
        values: dict[str, Any] = {}
        for field in dataclass_fields(StoreStats):
            if (frame := found.get(field.name)) is None:
                raise InvalidRequest(field.name, "is missing among the counts")
            is_text = field.type is str
            values[field.name] = (read_text if is_text else TEXT_SCALARS.read_number)(frame, field.name)
        return values

    def write(self, out: Frames, stats: StoreStats, _dialect: Dialect) -> None:
        names = [field.name for field in dataclass_fields(stats)]
        out.append(b"%d" % len(names))
        for name in names:
            value = getattr(stats, name)
            out += (name.encode(), value.encode() if isinstance(value, str) else b"%d" % value)


# --- answers and commands ----------------------------------------------------------------------------------------

Replies = Sequence[Reply | PenstockError]


class Answer:
    """One answer for each request: its code and the fields of the reply. With `each`, it does not wait for others."""

    def __init__(
        self,
        code: str,
        reply: type[Reply],
        *fields: Field,
        make: Callable[..., Any] | None = None,
        each: bool = False,
    ) -> None:
        self.code = code.encode()
        self.reply = reply
        self.layout = Layout(make or reply, fields)
        self.each = each

    def payloads(self, requests: Sequence[Request], replies: Replies, dialect: Dialect) -> list[Frames]:
        """The answers, in order, from the replies, in order."""
        if len(replies) == 1:
            return [self._payload(requests[0], replies[0], dialect)]
        return [self._payload(request, reply, dialect) for request, reply in zip(requests, replies, strict=False)]

    def _payload(self, request: Request, reply: Reply | PenstockError, dialect: Dialect) -> Frames:
        if not isinstance(reply, self.reply):
            wrong = f"the reply is {type(reply).__name__} instead of {self.reply.__name__}"
            return self.failed(reply if isinstance(reply, PenstockError) else Unexpected(wrong), dialect)
        payload = [self.code]
        self.write(payload, request, reply, dialect)
        return payload

    def failed(self, error: PenstockError, dialect: Dialect) -> Frames:
        return dialect.failed(error)

    def write(self, payload: Frames, _request: Request, reply: Reply, dialect: Dialect) -> None:
        self.layout.write(payload, reply, dialect)

    def read(self, fields: Fields) -> Reply | PenstockError:
        reply: Reply = self.layout.read(fields)
        return reply


class CommitAnswer(Answer):
    """CR, with the older results on an endpoint for older clients."""

    def write(self, payload: Frames, _request: Request, reply: Reply, dialect: Dialect) -> None:
        if dialect.legacy:
            # Result and Error: empty for a commit that is on disk.
            payload += (b"", b"")
        self.layout.write(payload, reply, dialect)

    def failed(self, error: PenstockError, dialect: Dialect) -> Frames:
        return dialect.failed_commit(error)


class Echo(Answer):
    """Done: the fields repeat those of the request."""

    def __init__(self, code: str, *fields: Field) -> None:
        super().__init__(code, Done, *fields, make=lambda **_echoed: Done())

    def write(self, payload: Frames, request: Request, _reply: Reply, dialect: Dialect) -> None:
        self.layout.write(payload, request, dialect)


class Progressed(Answer):
    """SP: one answer for all requests, or the first error."""

    def __init__(self) -> None:
        super().__init__("SP", Done, Field("SubscriptionId", Values(LONG)))

    def payloads(self, requests: Sequence[Any], replies: Replies, dialect: Dialect) -> list[Frames]:
        for reply in replies:
            if isinstance(reply, PenstockError):
                return [dialect.failed(reply)]
        return [[self.code, b"%d" % len(requests), *(b"%d" % request.subscription for request in requests)]]


class WereSet(Answer):
    """ST: one answer for all requests, with an empty frame for each success, and the reason for others."""

    def __init__(self) -> None:
        super().__init__("ST", Done)

    def payloads(self, _requests: Sequence[Request], replies: Replies, dialect: Dialect) -> list[Frames]:
        reasons = [dialect.reason(reply) if isinstance(reply, PenstockError) else b"" for reply in replies]
        return [[self.code, b"%d" % len(reasons), *reasons]]

    def read(self, fields: Fields) -> Reply | PenstockError:
        # Our client sets one at a time.
        if (count := fields.count_to_end("Count", 1)) != 1:
            raise InvalidRequest("Count", f"is {count} where one subscription was set")
        reason = fields.frame("Reason")
        return error_of(reason) if reason else Done()


class Command:
    """A command: the request that a message with it makes, and its answer.

    `each` are fields that come once for each of several requests, after a count; then `fields` belong to all of them.
    `make` makes a request where the fields are not its attributes. `settled` may answer a request without the engine.
    """

    def __init__(
        self,
        code: str,
        about: str,
        request: type[Request],
        answer: Answer,
        *fields: Field,
        each: Iterable[Field] | None = None,
        each_min: int = 0,
        make: Callable[..., Request] | None = None,
        present: EventEncoder | None = None,
        settled: Callable[[Any], Frames | None] | None = None,
        bytes_max: int | None = SMALL_BYTES_MAX,
    ) -> None:
        self.name = code
        self.code = code.encode()
        self.about = about
        self.request = request
        self.answer = answer
        self.layout = Layout(make or request, fields)
        self.each = None if each is None else Layout(dict, each)
        self.each_min = each_min
        self.present = present
        self.settled = settled
        self.bytes_max = bytes_max

    def read(self, fields: Fields) -> tuple[Request, ...]:
        """The requests of a message, from the frames after its RequestId."""
        if self.each is None:
            return (self.layout.read(fields),)
        shared = self.layout.values(fields)
        count = fields.count_to_end("Count", self.each.frames, SUBSCRIPTIONS_MAX)
        if count < self.each_min:
            # With no answer at all the client would wait for ever.
            raise InvalidRequest("Count", "is 0; a fetch names at least one subscription")
        return tuple(self.request(**shared, **self.each.values(fields)) for _ in range(count))

    def write(self, request: Request) -> Frames:
        """The frames of one request after the RequestId, in the text dialect."""
        out: Frames = []
        self.layout.write(out, request, TEXT)
        if self.each is not None:
            out.append(b"1")
            self.each.write(out, request, TEXT)
        return out


# --- for the docs -------------------------------------------------------------------------------------------------


def described(fields: Iterable[Field]) -> str:
    """Fields as the docs list them."""
    return ", ".join(_described(field) for field in fields if field.kind.name)


def _described(field: Field) -> str:
    if not field.name:
        return field.kind.name
    default = "" if field.default is REQUIRED else "; may be left out"
    return f"`{field.name}` ({field.kind.name}{default})"
