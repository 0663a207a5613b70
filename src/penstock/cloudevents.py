"""CloudEvents in and out: version 1.0, as JSON (structured), as headers and a body (binary), or as objects.

The source of a CloudEvent is `penstock:` and the name of the context; its subject is the stream. Type and time are the
same. The id is the same if it is a UUID. Extensions are members of the event's headers. Attributes that an event cannot
hold, such as a foreign source or an id that is no UUID, go into its headers under their names in HTTP, `ce-source` or
`ce-id`, so that the same CloudEvent comes out again. Headers that a CloudEvent cannot hold, because they are no flat
JSON object, go into an extension. docs/client.md has the table.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID, uuid5

from penstock.errors import InvalidRequest, PenstockError
from penstock.model import Event, NewEvent, check_context, check_stream, check_type, now_ticks, ticks_of_datetime
from penstock.model.events import compact
from penstock.model.times import (
    TICKS_MAX,
    TICKS_PER_SECOND,
    datetime_of,
    stamp_of,
    text_of_ticks,
    ticks_of,
    ticks_of_time,
)

BASE: Final = "penstock:"
"""Prefix of a source that names a context."""
MEDIA_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
JSON_TYPE: Final = "application/json"
BYTES_TYPE: Final = "application/octet-stream"

IDS: Final = UUID("9eaa5738-3c61-4fc9-a0ae-51a430679b60")
"""Namespace of ids that are made from a source and an id that is no UUID."""
HEADERS: Final = "penstockheaders"
"""The extension, of CloudEvents' type Binary, for whole headers that others cannot carry."""
POSITION: Final = "penstockposition"
SEQUENCE: Final = "penstocksequence"
"""Extensions for an event's place in the history. Readers ignore them."""

REQUIRED: Final = ("specversion", "id", "source", "type")
KEPT: Final = ("id", "source", "subject", "time", "datacontenttype", "dataschema")
"""Attributes that go into the headers if they differ from what the event shows without them."""
NOT_EXTENSIONS: Final = {*REQUIRED, *KEPT, "data", HEADERS, POSITION, SEQUENCE}
INTEGER_MAX: Final = (1 << 31) - 1
HEADER_CHARACTERS: Final = "!#$&'()*+,/:;<=>?@[\\]^`{|}~"
"""Characters that stay as they are in an HTTP header, like letters and digits. Others are percent-encoded."""

_NAME = re.compile(r"[a-z0-9]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_JSON = re.compile(r"(application|text)/([^;]+\+)?json\s*(;.*)?", re.IGNORECASE)
_TEXT = re.compile(r"(text/|application/([^;]+\+)?xml\b)", re.IGNORECASE)
_CHARSET = re.compile(r';\s*charset="?([^;"\s]+)', re.IGNORECASE)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

Attributes = dict[str, Any]


class NotACloudEvent(PenstockError):
    """A value that is not a CloudEvent, or not one that can become an event."""

    _sentence = "not a CloudEvent that can be taken: {attribute} {reason}"
    attribute: str
    reason: str


class Incoming(NamedTuple):
    """An event and its place: `client.append(context, stream, [event])`."""

    context: str
    stream: str
    event: NewEvent


# --- in -------------------------------------------------------------------------------------------------------


def from_structured(
    value: Mapping[str, Any] | bytes | str, *, context: str | None = None, stream: str | None = None, base: str = BASE
) -> Incoming:
    """A CloudEvent in JSON, as text or parsed. Raises NotACloudEvent.

    Unless you give context and stream, its source must be `base` and a context, and its subject a stream.
    """
    if not isinstance(value, Mapping):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise NotACloudEvent("the event", f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise NotACloudEvent("the event", f"is a JSON {type(value).__name__}, not an object")
    attributes = dict(value)
    has_data, data, encoded = "data" in attributes, attributes.pop("data", None), attributes.pop("data_base64", None)
    if encoded is not None and has_data:
        raise NotACloudEvent("data_base64", "is there together with data")
    body = _body(data, attributes.get("datacontenttype")) if has_data else b""
    return _taken(attributes, body if encoded is None else _decoded(encoded), context, stream, base)


def from_http(
    headers: Mapping[str, str], body: bytes, *, context: str | None = None, stream: str | None = None, base: str = BASE
) -> Incoming:
    """A CloudEvent from HTTP, in binary or structured mode. Raises NotACloudEvent; see `from_structured`."""
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type")
    if kind is not None and kind.lower().startswith("application/cloudevents"):
        if not re.match(re.escape(MEDIA_TYPE) + r"\s*(;|$)", kind, re.IGNORECASE):
            raise NotACloudEvent("content-type", f"is {kind!r}; {MEDIA_TYPE} can be read, one event at a time")
        return from_structured(body, context=context, stream=stream, base=base)
    attributes = {name[3:]: _unquoted(name[3:], value) for name, value in lower.items() if name.startswith("ce-")}
    return _taken({**attributes, "datacontenttype": kind}, body, context, stream, base)


def from_object(value: Any, *, context: str | None = None, stream: str | None = None, base: str = BASE) -> Incoming:
    """An object of the `cloudevents` package. Raises NotACloudEvent; see `from_structured`."""
    attributes, data = dict(value.get_attributes()), value.get_data()
    if isinstance(when := attributes.get("time"), datetime):
        try:
            attributes["time"] = text_of_ticks(ticks_of_time(when))
        except InvalidRequest as error:
            raise NotACloudEvent("time", error.reason) from None
    if data is None or isinstance(data, bytes | bytearray):
        return _taken(attributes, bytes(data or b""), context, stream, base)
    return _taken(attributes, _body(data, attributes.get("datacontenttype")), context, stream, base)


def _taken(attributes: Attributes, body: bytes, context: str | None, stream: str | None, base: str) -> Incoming:
    """The event of some attributes. Its headers get those that it would not show otherwise."""
    given = _checked(attributes)
    if context is None:
        source = given["source"]
        if not source.startswith(base):
            raise NotACloudEvent("source", f"is {source!r}, which does not begin with {base!r}; say which context")
        context = _unquoted("source", source.removeprefix(base))
        if reason := check_context(context):
            raise NotACloudEvent("source", f"names a context that {reason}; say which context")
    if stream is None:
        stream = given.get("subject")
        if stream is None:
            raise NotACloudEvent("subject", "is missing; say which stream")
        if reason := check_stream(stream):
            raise NotACloudEvent("subject", f"{reason} as the name of a stream; say which stream")
    event = NewEvent(_id(given), stamp_of(_ticks(given.get("time"))), given["type"], None, body)
    shown = _shown(context, stream, event.id, event.stamp, body, base)
    # A missing content type means the one that we would give.
    shown["datacontenttype"] = given.get("datacontenttype") and shown["datacontenttype"]
    kept = {f"ce-{name}": given.get(name) for name in KEPT if given.get(name) != shown.get(name)}
    extensions = {name: value for name, value in given.items() if name not in NOT_EXTENSIONS}
    members = {**kept, **extensions}
    headers = compact(members) if members else None
    if HEADERS in given:
        try:
            headers = _decoded(given[HEADERS], HEADERS).decode()
        except UnicodeDecodeError:
            raise NotACloudEvent(HEADERS, "is not UTF-8") from None
    return Incoming(context, stream, event._replace(headers=headers))


def _checked(attributes: Attributes) -> Attributes:
    given = {name: value for name, value in attributes.items() if value is not None}
    for name in REQUIRED:
        if name not in given:
            raise NotACloudEvent(name, "is missing")
    for name, value in given.items():
        if reason := _reason(name, value):
            raise NotACloudEvent(name, reason)
    if given["specversion"] != "1.0":
        raise NotACloudEvent("specversion", f"is {given['specversion']!r}; only 1.0 is known")
    if reason := check_type(given["type"]):
        raise NotACloudEvent("type", reason)
    return given


def _reason(name: str, value: Any) -> str | None:
    if not _NAME.fullmatch(name):
        return "is no name of an attribute: it may have lower-case letters and digits"
    if isinstance(value, str):
        if name in NOT_EXTENSIONS and not value:
            return "is empty"
        return "has a control character or half of a surrogate pair" if _CONTROL.search(value) else None
    if name in NOT_EXTENSIONS:
        return f"is {type(value).__name__}, not text"
    if isinstance(value, int):
        return None if -INTEGER_MAX - 1 <= value <= INTEGER_MAX else "has more than 32 bits"
    return f"is {type(value).__name__}; text, an integer or a boolean can be an attribute"


def _id(given: Attributes) -> bytes:
    """A UUID that is always the same for a source and an id, so that duplicates are recognised."""
    with suppress(ValueError):
        found = UUID(given["id"])
        if str(found) == given["id"]:
            return found.bytes
    return uuid5(IDS, f"{given['source']}\n{given['id']}").bytes


# --- out ------------------------------------------------------------------------------------------------------


def to_structured(event: Event, *, base: str = BASE) -> dict[str, Any]:
    """An event as a CloudEvent in JSON, for `json.dumps`; over HTTP its content type is MEDIA_TYPE."""
    attributes = _attributes(event, base)
    return {**attributes, **_data(event.body, attributes.get("datacontenttype"))}


def structured_json(event: Event, *, base: str = BASE) -> str:
    """The same as JSON on one line, with data that is JSON digit by digit as it is stored."""
    attributes = _attributes(event, base)
    kind = attributes.get("datacontenttype")
    data = _data(event.body, kind)
    if "data" not in data or (kind is not None and not _JSON.fullmatch(kind)):
        return compact({**attributes, **data})
    text = event.body.decode().replace("\n", " ").replace("\r", " ")
    return f'{compact(attributes)[:-1]},"data":{text}}}'


def to_binary(event: Event, *, base: str = BASE) -> tuple[dict[str, str], bytes]:
    """An event as a CloudEvent in binary mode: headers and the body."""
    attributes = _attributes(event, base, are_text=True)
    kind = attributes.pop("datacontenttype", None)
    headers = {f"ce-{name}": quote(value, safe=HEADER_CHARACTERS) for name, value in attributes.items()}
    return (headers if kind is None else {**headers, "content-type": kind}), event.body


def to_object(event: Event, *, base: str = BASE) -> Any:
    """An event as an object of the `cloudevents` package, which must be installed."""
    from cloudevents.core.v1.event import CloudEvent  # noqa: PLC0415

    attributes = _attributes(event, base)
    if "time" in attributes:
        attributes["time"] = datetime_of(_ticks(attributes["time"]))
    data = _data(event.body, attributes.get("datacontenttype"))
    return CloudEvent(attributes, event.body if "data_base64" in data else data.get("data"))


def _attributes(event: Event, base: str, *, are_text: bool = False) -> Attributes:
    """The first choice of attributes that make the same event again. In HTTP headers all are text."""
    problem: NotACloudEvent | None = None
    for choice in _choices(event, base):
        attributes = {name: value for name, value in choice.items() if value is not None}
        if are_text:
            attributes = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in attributes.items()}
        try:
            made = _taken(attributes, event.body, event.context, event.stream, base).event
        except NotACloudEvent as error:
            problem = error
            continue
        # An event without a time gets the present one.
        when = stamp_of(event.ticks) if "time" in attributes else made.stamp
        if made == (event.id, when, event.type, event.headers, event.body):
            return {**attributes, POSITION: str(event.position), SEQUENCE: str(event.sequence)}
    assert problem is not None, "whole headers make the same event again"
    raise problem


def _choices(event: Event, base: str) -> Iterator[Attributes]:
    """Members of the headers as extensions; the same and the whole headers; the whole headers alone."""
    shown = _shown(event.context, event.stream, event.id, event.stamp, event.body, base)
    plain = {"specversion": "1.0", **shown, "type": event.type}
    members = _members(event.headers)
    kept = {name: members[f"ce-{name}"] for name in KEPT if f"ce-{name}" in members}
    extensions = {
        name: value
        for name, value in members.items()
        if name not in NOT_EXTENSIONS and value is not None and _reason(name, value) is None
    }
    yield {**plain, **kept, **extensions}
    whole = {HEADERS: b64encode((event.headers or "").encode()).decode()}
    yield {**plain, **kept, **extensions, **whole}
    yield {**plain, **whole}


def _shown(context: str, stream: str, id: bytes, stamp: int, body: bytes, base: str) -> Attributes:
    """The attributes that an event shows without its headers."""
    return {
        "id": str(UUID(bytes=id)),
        "source": base + quote(context, safe=""),
        "subject": stream,
        "time": text_of_ticks(ticks_of(stamp)),
        "datacontenttype": (JSON_TYPE if _has_json(body) else BYTES_TYPE) if body else None,
    }


def _members(headers: str | None) -> dict[str, Any]:
    """The members of headers that are a JSON object. Other headers have none."""
    try:
        members = json.loads(headers or "{}")
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}


# --- data -----------------------------------------------------------------------------------------------------


def _body(data: Any, kind: Any) -> bytes:
    if kind is None or (isinstance(kind, str) and _JSON.fullmatch(kind)):
        try:
            return compact(data).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise NotACloudEvent("data", f"is not JSON: {error}") from None
    if not isinstance(data, str):
        raise NotACloudEvent("data", f"is {type(data).__name__}, not text, and datacontenttype is not JSON")
    try:
        return data.encode(_charset(str(kind)))
    except (LookupError, UnicodeEncodeError) as error:
        raise NotACloudEvent("data", f"cannot be encoded: {error}") from None


def _data(body: bytes, kind: str | None) -> dict[str, Any]:
    if not body:
        return {}
    if (kind is None or _JSON.fullmatch(kind)) and _has_json(body):
        return {"data": json.loads(body)}
    if kind is not None and _TEXT.match(kind) and not _JSON.fullmatch(kind):
        with suppress(LookupError, UnicodeError):
            text = body.decode(_charset(kind))
            if text.encode(_charset(kind)) == body:
                return {"data": text}
    return {"data_base64": b64encode(body).decode()}


def _charset(kind: str) -> str:
    found = _CHARSET.search(kind)
    return found[1] if found else "utf-8"


def _has_json(body: bytes) -> bool:
    try:
        compact(json.loads(body)).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _decoded(encoded: Any, attribute: str = "data_base64") -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise NotACloudEvent(attribute, f"is not base64: {error}") from None


def _ticks(text: str | None) -> int:
    """The time of an RFC 3339 text, or now."""
    if text is None:
        return now_ticks()
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError("is not like 2026-11-15T06:00:00Z")
        day, minute, second, fraction, offset = found.groups()
        start = datetime.fromisoformat(f"{day}T{minute}:00{offset.upper()}")
    except ValueError as error:
        raise NotACloudEvent("time", f"{text!r} is not RFC 3339: {error}") from None
    # A leap second is the first of the next minute.
    ticks = ticks_of_datetime(start) + int(second) * TICKS_PER_SECOND + int((fraction or "").ljust(7, "0")[:7])
    if int(second) > 60 or not 0 <= ticks <= TICKS_MAX:
        raise NotACloudEvent("time", f"{text!r} is no time that can be kept")
    return ticks


def _unquoted(name: str, value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise NotACloudEvent(name, "is not UTF-8 behind its percent signs") from None
