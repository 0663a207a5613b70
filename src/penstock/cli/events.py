"""Events on the command line: as JSON for programs, both ways, and as lines for people.

    {"position": 3, "sequence": 1, "context": "shop", "stream": "order-2", "type": "OrderPlaced", "id": "0b0c…",
     "timestamp": "2026-11-15T06:00:00Z", "recorded_at": "2026-11-15T06:00:00.0012345Z", "headers": null,
     "body": {"amount": 7}}

A body that is not JSON is under `text` in place of `body`, and one that is no text either under `base64`. Headers are
an object if they are a JSON object, text if they are something else, null if there are none. What `event_document`
makes of an event, `event_of` makes an event of, with the same id, time, type, headers and body; of JSON only the
spacing, and the way numbers are written, may change.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.cli.output import Painted, json_text
from penstock.event_json import parse_json
from penstock.model import Event, NewEvent, check_context, check_stream, check_type
from penstock.model.events import random_id
from penstock.model.times import now_ticks, stamp_of, stamp_of_text, text_of_ticks, ticks_of_text

__all__ = ["BadEvent", "Placed", "body_text", "event_document", "event_line", "event_of"]

BODIES: Final = ("body", "text", "base64")
GIVEN: Final = ("context", "stream", "type", "id", "timestamp", "time", "headers", *BODIES)
KNOWN: Final = frozenset((*GIVEN, "event_id", "position", "sequence", "recorded", "recorded_at", "commit"))
"""The names that an event's JSON may have, here and in files to import. Those of the store itself are passed over."""

BODY_LETTERS_MAX: Final = 10_000
"""What a line for people shows of a body; JSON has all of it."""


class BadEvent(ValueError):
    """JSON that is no event: which member of it is wrong, and why."""

    def __init__(self, member: str, reason: str) -> None:
        self.member = member
        self.reason = reason
        super().__init__(f"{member} {reason}")


class Placed(NamedTuple):
    """An event with the stream that it belongs to."""

    context: str
    stream: str
    event: NewEvent


# --- to JSON --------------------------------------------------------------------------------------------------


def event_document(event: Event) -> dict[str, Any]:
    """An event for programs."""
    return {
        "position": event.position,
        "sequence": event.sequence,
        "context": event.context,
        "stream": event.stream,
        "type": event.type,
        "id": str(event.uuid),
        "timestamp": text_of_ticks(event.ticks),
        "recorded_at": text_of_ticks(event.recorded),
        "headers": _headers(event.headers),
        **_body(event.body),
    }


def _body(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}
    try:
        return {"body": parse_json(text)}
    except (ValueError, RecursionError):
        return {"text": text}


def _headers(headers: str | None) -> Any:
    try:
        found = parse_json(headers) if headers is not None else None
    except (ValueError, RecursionError):
        return headers
    return found if isinstance(found, dict) else headers


# --- from JSON ------------------------------------------------------------------------------------------------


def event_of(document: Any, context: str | None = None, stream: str | None = None) -> Placed:
    """The event of a JSON object, and where it belongs: if it says so itself, it must be this. Raises BadEvent."""
    if not isinstance(document, dict):
        raise BadEvent("it", "is no JSON object")
    if unknown := document.keys() - KNOWN:
        raise BadEvent(repr(min(unknown)), f"is unknown; an event has {', '.join(GIVEN)}")
    for member, given in (("context", context), ("stream", stream)):
        if given is not None and document.get(member, given) != given:
            raise BadEvent(member, f"is {json_text(document[member])}, and the command says {json_text(given)}")
    place = _name(document, "context", context), _name(document, "stream", stream)
    return Placed(*place, new_event_of(document))


def new_event_of(document: Mapping[str, Any]) -> NewEvent:
    """The event itself."""
    number, when = document.get("id", document.get("event_id")), document.get("timestamp", document.get("time"))
    return NewEvent(
        random_id() if number is None else _id(number),
        stamp_of(now_ticks()) if when is None else _stamp(when),
        _name(document, "type", None),
        _headers_of(document.get("headers")),
        _body_of(document),
    )


def _name(document: Mapping[str, Any], member: str, otherwise: str | None) -> str:
    value = document.get(member, otherwise)
    if value is None:
        raise BadEvent(member, "is missing")
    if not isinstance(value, str):
        raise BadEvent(member, f"is {json_text(value)}, where a text belongs")
    check = {"context": check_context, "stream": check_stream, "type": check_type}[member]
    if reason := check(value):
        raise BadEvent(member, reason)
    return value


def _id(value: Any) -> bytes:
    try:
        return UUID(value).bytes
    except (ValueError, AttributeError, TypeError):
        raise BadEvent("id", f"is {json_text(value)}, where a UUID belongs") from None


def _stamp(value: Any) -> int:
    """The time with its kind, as in a file to import; of a day, its first moment in UTC."""
    text = value if isinstance(value, str) else ""
    with suppress(ValueError):
        return stamp_of_text(text)
    try:
        return stamp_of(ticks_of_text(text))
    except ValueError:
        raise BadEvent("timestamp", f"is {json_text(value)}, where a time like 2026-11-15T06:00:00Z belongs") from None


def _headers_of(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    if not isinstance(value, dict):
        raise BadEvent("headers", "are neither an object nor a text")
    return compact(value, "headers").decode()


def _body_of(document: Mapping[str, Any]) -> bytes:
    given = [member for member in BODIES if member in document]
    if len(given) > 1:
        raise BadEvent(" and ".join(given), "are both there; an event has one body")
    if not given:
        return b""
    (member,), value = given, document[given[0]]
    if member == "body":
        return compact(value, member)
    if not isinstance(value, str):
        raise BadEvent(member, f"is {json_text(value)}, where a text belongs")
    try:
        return value.encode() if member == "text" else b64decode(value, validate=True)
    except (NotBase64, ValueError):
        raise BadEvent(member, "is not Unicode" if member == "text" else "is not base64") from None


def compact(value: Any, member: str) -> bytes:
    """A value as JSON without spaces."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise BadEvent(member, f"cannot be kept as JSON: {error}") from None


# --- for people -----------------------------------------------------------------------------------------------


def event_line(event: Event) -> tuple[str | Painted, ...]:
    """An event in a line: position, time, stream and sequence, type, body."""
    return (
        Painted(str(event.position), "dim"),
        "  ",
        Painted(text_of_ticks(event.ticks), "dim"),
        f"  {event.context}/{event.stream} {event.sequence}  ",
        Painted(event.type, "cyan"),
        f"  {body_text(event.body)}",
    )


def body_text(body: bytes) -> str:
    """A body for people: text, JSON too, as it is; otherwise how long it is."""
    size = f"«{len(body):,} bytes»"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return size
    return text if len(text) <= BODY_LETTERS_MAX else f"{text[:BODY_LETTERS_MAX]}… {size}"
