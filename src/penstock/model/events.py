"""Events, before and after they are history, and the rules for names.

Programs handle millions of them, so both kinds are light: an event to append is a tuple, and one of the history a
struct that the garbage collector does not track. Ids are 16 bytes in RFC 4122 order (`uuid.UUID.bytes`).

A name is non-empty UTF-8 without NUL, with a limit in bytes.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import takewhile
from time import time_ns
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec import Struct

from penstock.errors import InvalidRequest, NotJson
from penstock.model.access import Scope, View
from penstock.model.times import (
    UNIX_EPOCH_TICKS,
    datetime_of,
    stamp_of,
    text_of_stamp,
    ticks_of,
    ticks_of_time,
)

# --- names ----------------------------------------------------------------------------------------------------

CONTEXT_BYTES_MAX: Final = 255
STREAM_BYTES_MAX: Final = 512
TYPE_BYTES_MAX: Final = 1024
NAME_BYTES_MAX: Final = 512
"""Subscribers, queues, producers, logs, iterators."""
RESERVED_JOBS: Final = "penstock:"
"""How the names of jobs begin that the server itself stages: the output of iterators."""


def _reason(name: str, limit: int) -> str | None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not length:
        return "is empty"
    if length > limit:
        return f"has {length} bytes; at most {limit} are allowed"
    return "contains a NUL character" if "\0" in name else None


def check_context(name: str) -> str | None:
    """Why this is not a valid name of a context, or None."""
    return _reason(name, CONTEXT_BYTES_MAX)


def check_stream(name: str) -> str | None:
    return _reason(name, STREAM_BYTES_MAX)


def check_type(name: str) -> str | None:
    return _reason(name, TYPE_BYTES_MAX)


def check_name(name: str) -> str | None:
    """For a subscriber, queue, producer, log or iterator."""
    return _reason(name, NAME_BYTES_MAX)


def check_job(name: str) -> str | None:
    if name.startswith(RESERVED_JOBS):
        return f"begins with {RESERVED_JOBS}, as only jobs of the server itself do"
    return _reason(name, NAME_BYTES_MAX)


# --- events ---------------------------------------------------------------------------------------------------

NEW: Final = 1
"""Expected version of a stream that must not exist yet: its first event gets sequence 1."""
ANY: Final = -1
"""Expected version that is not checked."""
DUE: Final = "penstock-due"
"""The header that says when queues hand an event out: an RFC 3339 time."""


SHOWN_MAX: Final = 60
"""Bytes of a body, or characters of headers, in the `repr` of an event."""


class NewEvent(NamedTuple):
    id: bytes
    stamp: int
    type: str
    headers: str | None
    body: bytes

    def __repr__(self) -> str:
        return f"<NewEvent {_content(self)}>"


# Its fields refer to no other objects, so none can be part of a reference cycle.
class Event(Struct, frozen=True, gc=False):
    """An event of the history. `recorded` is the server's time at commit, in ticks."""

    position: int
    context: str
    stream: str
    sequence: int
    id: bytes
    stamp: int
    type: str
    headers: str | None
    body: bytes
    recorded: int
    commit: bytes

    @property
    def ticks(self) -> int:
        return ticks_of(self.stamp)

    @property
    def timestamp(self) -> datetime:
        """The client's event time, cut to microseconds."""
        return datetime_of(self.ticks)

    @property
    def recorded_at(self) -> datetime:
        """The server's time at commit, cut to microseconds."""
        return datetime_of(self.recorded)

    @property
    def uuid(self) -> UUID:
        return UUID(bytes=self.id)

    @property
    def id_text(self) -> str:
        return text_of_id(self.id)

    @property
    def header_map(self) -> dict[str, Any]:
        """The headers, which are a JSON object or absent. Raises NotJson."""
        if self.headers is None:
            return {}
        found = self._loaded(self.headers, "header text")
        if not isinstance(found, dict):
            raise NotJson(self._what("header text"), f"an object was expected, not {type(found).__name__}")
        return found

    def json(self) -> Any:
        """The body, which is JSON, as Python has it. Raises NotJson."""
        return self._loaded(self.body, "body")

    def _loaded(self, text: str | bytes, part: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NotJson(self._what(part), str(error)) from None

    def _what(self, part: str) -> str:
        return f"the {part} of event {self.sequence} of stream {self.stream} in context {self.context}"

    def __repr__(self) -> str:
        place, recorded = f"{self.context}/{self.stream}", _shown(text_of_stamp, stamp_of(self.recorded))
        where = f"{place!r} sequence={self.sequence} position={self.position}"
        return f"<Event {where} {_content(self)} recorded_at={recorded}>"


def _content(one: NewEvent | Event) -> str:
    """For people: what events of both kinds have."""
    number, time, body = _shown(text_of_id, one.id), _shown(text_of_stamp, one.stamp), _shown(_cut, one.body)
    headers = "" if one.headers is None else f" headers={_shown(_cut, one.headers)}"
    return f"type={one.type!r} id={number} timestamp={time}{headers} body={body}"


def _shown(show: Callable[[Any], str], value: Any) -> str:
    """A value for people. Checks elsewhere report a wrong value; `repr` must not fail because of it."""
    try:
        return show(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return repr(value)


def _cut(text: str | bytes) -> str:
    if len(text) <= SHOWN_MAX:
        return repr(text)
    return f"{text[:SHOWN_MAX]!r}… ({len(text)} {'characters' if isinstance(text, str) else 'bytes'})"


def text_of_id(id: bytes) -> str:
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def event(
    type: str,
    body: Any = b"",
    headers: str | Mapping[str, Any] | None = None,
    *,
    id: UUID | bytes | str | None = None,
    time: datetime | None = None,
    due: datetime | None = None,
) -> NewEvent:
    """An event to append. Bytes are its body as they are, text is encoded, anything else becomes JSON.

    It is in the history at once; queues hand it out when it is `due`. Raises NotJson, or InvalidRequest for an invalid
    id, and for an invalid time or one without a time zone.
    """
    if not isinstance(body, bytes):
        body = _bytes_of(body)
    if due is not None:
        headers = with_due(headers, due)
    if headers is not None and not isinstance(headers, str):
        headers = _json(headers, "headers").decode()
    return new_event(type, body, headers, id, time)


def with_due(headers: str | Mapping[str, Any] | None, due: datetime) -> str:
    """Headers that also say when queues hand the event out. Raises NotJson, or InvalidRequest without a time zone."""
    ticks_of_time(due, "due")
    text = due.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return _json({**_headers_of(headers), DUE: text}, "headers").decode()


def _headers_of(headers: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(headers, str):
        return headers or {}
    try:
        found = json.loads(headers)
    except (ValueError, RecursionError) as error:
        raise NotJson("the headers of an event", str(error)) from None
    if not isinstance(found, dict):
        raise NotJson("the headers of an event", f"an object was expected, not {type(found).__name__}")
    return found


compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""A value as JSON without spaces."""


def _bytes_of(body: Any) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        return _json(body, "body")
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("body", f"is not valid Unicode: {body[:40]!r}") from None


def _json(value: Any, what: str) -> bytes:
    try:
        return compact(value).encode()
    except (TypeError, ValueError) as error:
        raise NotJson(f"the {what} of an event", str(error)) from None


def new_event(
    type: str,
    body: bytes = b"",
    headers: str | None = None,
    id: UUID | bytes | str | None = None,
    time: datetime | None = None,
) -> NewEvent:
    """An event with a random id and the present time unless they are given."""
    number = random_id() if id is None else _id_of(id)
    stamp = _UTC | (UNIX_EPOCH_TICKS + time_ns() // 100 if time is None else ticks_of_time(time))
    return _make((number, stamp, type, headers or None, body))


def _id_of(id: UUID | bytes | str) -> bytes:
    if isinstance(id, UUID):
        return id.bytes
    if isinstance(id, bytes) and len(id) == 16:
        return id
    try:
        return UUID(id).bytes  # type: ignore[arg-type]
    except (ValueError, AttributeError, TypeError):
        raise InvalidRequest("event id", f"is {id!r}; pass a UUID, its text or its 16 bytes") from None


_make = partial(tuple.__new__, NewEvent)
_UTC: Final = stamp_of(0)

RANDOM_IDS: Final = 256
"""Ids that are made at once: a call of the system costs more than an event."""
_unused_ids: list[bytes] = []
# Two processes must not use the same ids: an event with the id of another would pass for a repeat of it.
os.register_at_fork(after_in_child=_unused_ids.clear)


def random_id() -> bytes:
    try:
        return _unused_ids.pop()
    except IndexError:
        made = random_ids(RANDOM_IDS)
        _unused_ids.extend(made[at : at + 16] for at in range(16, len(made), 16))
        return made[:16]


def random_ids(count: int) -> bytes:
    """The bytes of so many random UUIDs, one after the other."""
    raw = bytearray(os.urandom(16 * count))
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    return bytes(raw)


_VERSION: Final = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT: Final = bytes(byte & 0x3F | 0x80 for byte in range(256))


class PositionRange(NamedTuple):
    """Positions of the history, both ends included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events: of one context, of streams that begin with a prefix, of some types; or all of them.

    `within` leaves out what a principal may not see.
    """

    context: str | None = None
    prefix: str = ""
    types: Collection[str] | None = None
    within: View | None = None

    def __post_init__(self) -> None:
        # `*` and the empty string are the same filter: every stream.
        if self.prefix == "*":
            object.__setattr__(self, "prefix", "")
        if self.types is not None:
            object.__setattr__(self, "types", frozenset(self.types))

    def wants_stream(self, context: str, stream: str) -> bool:
        """Whether events of this stream can pass at all."""
        if self.within is not None and not self.within.has_stream(context, stream):
            return False
        return (self.context is None or self.context == context) and stream.startswith(self.prefix)

    @property
    def is_open(self) -> bool:
        return self.context is None and not self.prefix and self.types is None and self.within is None

    def seen_by(self, view: View | None) -> "EventFilter":
        """The part of it that a principal may see."""
        if view is None or (self.context is not None and view.has_filter(self.context, self.prefix)):
            return self
        if self.within is not None:
            return replace(self, within=self.within.meet(view))
        scopes = tuple(scope for scope in view.scopes if scope.meets_filter(self.context, self.prefix))
        if len(scopes) == 1 and scopes[0].context is not None:
            # Indexes find one context and prefix quickly.
            prefix = max(self.prefix, scopes[0].stream, key=len)
            # A grant can name streams that begin with a star, and as a filter a star alone is all streams.
            is_enough = not scopes[0].is_exact and prefix != "*"
            return EventFilter(scopes[0].context, prefix, self.types, None if is_enough else View(scopes))
        return replace(self, within=View(scopes))


SELECTED_MAX: Final = 100
"""Types, or prefixes, of one selection."""


class Selection(NamedTuple):
    """A narrower filter of a queue or subscription: types of events, and several prefixes; None: all."""

    types: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] | None = None

    @staticmethod
    @lru_cache(1024)
    def parsed(text: str) -> "Selection":
        """Raises InvalidRequest."""
        try:
            given = json.loads(text) if text else {}
            if not isinstance(given, dict):
                raise TypeError
            if unknown := given.keys() - set(Selection._fields):
                raise InvalidRequest("selection", f"has {min(unknown)!r}; it knows {', '.join(Selection._fields)}")
            selection = Selection(*(tuple(given[name]) if name in given else None for name in Selection._fields))
        except (ValueError, TypeError, RecursionError):
            raise InvalidRequest("selection", f"{text[:SHOWN_MAX]!r} is none") from None
        for name, values in selection._asdict().items():
            if values is not None and not 0 < len(values) <= SELECTED_MAX:
                raise InvalidRequest(name, f"are {len(values)}; there must be 1 to {SELECTED_MAX}")
            check = check_type if name == "types" else check_stream
            for value in values or ():
                if reason := check(value) if isinstance(value, str) else "is no text":
                    raise InvalidRequest(name.removesuffix("s"), reason)
        return selection

    @property
    def text(self) -> str:
        """As the store keeps it: empty if it selects everything."""
        given = {name: sorted(set(value)) for name, value in self._asdict().items() if value is not None}
        return compact(given) if given else ""

    def beginnings(self, filter: str) -> tuple[str, ...]:
        """How the names of all streams begin that pass a filter and this."""
        prefix = "" if filter == "*" else filter
        fitting = (one for one in self.prefixes or () if one.startswith(prefix) or prefix.startswith(one))
        return tuple(max(one, prefix, key=len) for one in fitting) or (prefix,)

    def events(self, context: str | None, filter: str) -> EventFilter:
        scopes = tuple(Scope(context, prefix) for prefix in self.prefixes or ())
        return EventFilter(context, filter, self.types, View(scopes) if scopes else None)


def selection_of(filter: str, types: Sequence[str] | None, prefixes: Sequence[str] | None) -> tuple[str, str]:
    """The filter of a consumer with several prefixes, which is what they have in common, and its selection.

    Raises InvalidRequest.
    """
    if isinstance(types, str) or isinstance(prefixes, str):
        raise InvalidRequest("types" if isinstance(types, str) else "prefixes", "must be a list of texts")
    if prefixes is not None:
        if filter:
            raise InvalidRequest("prefixes", "and filter were both given; one of them is enough")
        low, high = min(prefixes, default=""), max(prefixes, default="")
        # All names between two others begin with what these have in common.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
        filter = "".join(one for one, _ in same)
    given = (None if one is None else tuple(one) for one in (types, prefixes))
    return filter, Selection(*given).text
