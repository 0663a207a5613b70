"""One event as members by name, which JSON lines, CSV and Parquet share, and back.

| member | |
|---|---|
| `context`, `stream`, `type` | text; where one is missing, the import's defaults say it |
| `id` (`event_id`) | a UUID; a random one if it is missing |
| `time` (`timestamp`) | see `penstock.model.times`; the present if it is missing |
| `headers` | text as it is; in JSON also an object, which is kept as compact JSON |
| `body`, `text`, `base64` | one of them, at most; see the formats |
| `position`, `sequence`, `recorded`, `recorded_at`, `commit` | where an event was; nobody reads them |

Names and ids are checked here, so that a file's mistakes are found before anything is sent.
"""

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from penstock.cloudevents import Incoming
from penstock.model import NewEvent, check_context, check_stream, check_type, now_ticks
from penstock.model.events import random_id
from penstock.model.times import stamp_of, stamp_of_text
from penstock.store.contract import LOG_CONTEXT, MESSAGE_TYPE
from penstock.wire.remits import first_invalid

compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""A value as JSON the way that `penstock.event` writes it."""
NAMES_KEPT: Final = 10_000
"""Names that are not looked at again when they come again soon."""
ALIASES: Final = {"event_id": "id", "timestamp": "time"}
PASSED_OVER: Final = frozenset(("position", "sequence", "recorded", "recorded_at", "commit"))
"""Members that say where an event was: it gets a place of its own where it is imported."""
BODIES: Final = ("body", "text", "base64")
KNOWN: Final = frozenset(("context", "stream", "type", "id", "time", "headers", *BODIES, *ALIASES, *PASSED_OVER))


class Stamp(int):
    """A time that a reader has made a stamp of already. A number in a file is none: nobody says of what it is."""


class Wrong(ValueError):
    """A member that cannot be; what the file calls it, and why."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(f"{member} {reason}")
        self.member = member
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Defaults:
    """What events have whose file does not say it."""

    context: str | None = None
    stream: str | None = None
    type: str | None = None
    bytes_max: int | None = None
    """What is larger is refused here, to learn where it is."""

    def check(self) -> str | None:
        """Why they cannot be, or None if they can."""
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None and (reason := check(value)):
                return f"--{name} {reason}"
        return None


_CHECKS: Final = {
    "context": lru_cache(NAMES_KEPT)(check_context),
    "stream": lru_cache(NAMES_KEPT)(check_stream),
    "type": lru_cache(NAMES_KEPT)(check_type),
}


def incoming(members: Mapping[str, Any], body: bytes, defaults: Defaults) -> Incoming:
    """The event that members say, but for its body. Raises Wrong."""
    context = _name("context", members, defaults.context)
    stream = _name("stream", members, defaults.stream)
    kind = _name("type", members, defaults.type)
    event = NewEvent(_id(members), _stamp(members), kind, headers_of(members.get("headers")), body)
    return checked(Incoming(context, stream, event), defaults.bytes_max)


def size_of(row: Incoming) -> int:
    """About how many bytes an event has."""
    event = row.event
    return len(event.body) + len(event.headers or "") + len(event.type)


def checked(row: Incoming, bytes_max: int | None = None) -> Incoming:
    """A row whose names are sound and, if it goes into a log, whose body is a message. Raises Wrong."""
    for name, value in (("context", row.context), ("stream", row.stream), ("type", row.event.type)):
        if reason := _CHECKS[name](value):
            raise Wrong(name, reason)
    if row.context == LOG_CONTEXT:
        _check_message(row.event)
    if bytes_max is not None and size_of(row) > bytes_max:
        raise Wrong("body", "is too large")
    return row


def _check_message(event: NewEvent) -> None:
    """Logs keep CBOR only; see `penstock.engine.checks`, which would refuse anything else."""
    if event.type != MESSAGE_TYPE:
        raise Wrong("type", f"is {event.type!r}, and the context {LOG_CONTEXT} has logs: {MESSAGE_TYPE!r} only")
    if flaw := first_invalid([event.body]):
        raise Wrong("body", f"is no message for a log: {flaw[1]}")


def _name(member: str, members: Mapping[str, Any], default: str | None) -> str:
    value = members.get(member)
    if value is None or value == "":
        if default is None:
            raise Wrong(member, f"is missing; say --{member} for all events that have none")
        return default
    return text_of(member, value)


def text_of(member: str, value: Any) -> str:
    """A value that must be text which UTF-8 has."""
    if not isinstance(value, str):
        raise Wrong(member, f"is {_shown(value)}, where text belongs")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong(member, "has half of a surrogate pair") from None
    return value


def _shown(value: Any) -> str:
    return {dict: "an object", list: "an array", bool: "a boolean", type(None): "null"}.get(type(value), repr(value))


def _id(members: Mapping[str, Any]) -> bytes:
    name = "id" if members.get("id") not in (None, "") else "event_id"
    value: Any = members.get(name)
    if value is None or value == "":
        return random_id()
    if isinstance(value, bytes) and len(value) == 16:
        return bytes(value)
    try:
        return id_of(text_of(name, value))
    except ValueError as error:
        raise error if isinstance(error, Wrong) else Wrong(name, f"is {value[:40]!r}, which is no UUID") from None


def id_of(text: str) -> bytes:
    """The bytes of a UUID. Raises ValueError."""
    if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":
        # Nearly always: the same as below in a fraction of the time.
        found = bytes.fromhex(text.replace("-", ""))
        if len(found) == 16:
            return found
    return UUID(text).bytes


def text_of_id(id: bytes) -> str:
    """A UUID as text."""
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _stamp(members: Mapping[str, Any]) -> int:
    name = "time" if members.get("time") not in (None, "") else "timestamp"
    value = members.get(name)
    if value is None or value == "":
        return stamp_of(now_ticks())
    if isinstance(value, Stamp):
        return int(value)
    try:
        return stamp_of_text(text_of(name, value))
    except ValueError as error:
        raise error if isinstance(error, Wrong) else Wrong(name, str(error)) from None


def headers_of(value: Any) -> str | None:
    """Headers: text as it is, an object as compact JSON. No headers are none."""
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        return compact_json("headers", value)
    return text_of("headers", value)


def compact_json(member: str, value: Any) -> str:
    """A value as JSON the way that `penstock.event` writes it. Raises Wrong."""
    try:
        text = compact(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Wrong(member, f"is not JSON that can be kept: {error}") from None
    return text


def decoded(member: str, value: str) -> bytes:
    """The bytes of base64. Raises Wrong."""
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError) as error:
        raise Wrong(member, f"is not base64: {str(error).lower()}") from None
