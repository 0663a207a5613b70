"""Events as JSON objects and rows: commands, files and Spark share the names of members and their rules.

| member | |
|---|---|
| `context`, `stream`, `type` | text; `Defaults` fill in missing ones |
| `id` (`event_id`) | a UUID; by default a random one |
| `time` (`timestamp`) | see `penstock.model.times`; by default now |
| `headers` | text; in JSON also an object, which becomes compact JSON |
| `body`, `text`, `base64` | at most one of them |
| `position`, `sequence`, `recorded`, `recorded_at`, `commit` | where the event was; readers ignore them |

`json_lines` writes a body that comes back byte by byte: `body`, any JSON value, only if compact JSON of that value is
the same bytes; otherwise `text` if it is UTF-8, otherwise `base64`. Headers follow the same rule. `event_document` is
for reading: there every JSON body is a `body`, and its spacing and the form of its numbers may change. `event_texts`
has every JSON body as a `body` too, digit by digit as it is stored; only its line ends become spaces.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from operator import eq
from typing import Any, Final
from uuid import UUID

import msgspec
import msgspec.json

from penstock.cloudevents import Incoming
from penstock.model import LOG_CONTEXT, Event, NewEvent, check_context, check_stream, check_type, now_ticks
from penstock.model.events import compact, random_id
from penstock.model.times import stamp_of, stamp_of_text, text_of_stamp, text_of_ticks
from penstock.store.contract import MESSAGE_TYPE
from penstock.wire.remits.cbor import first_invalid

NAMES_CACHED: Final = 10_000
ALIASES: Final = {"event_id": "id", "timestamp": "time"}
PLACES: Final = frozenset(("position", "sequence", "recorded", "recorded_at", "commit"))
"""Members that readers ignore: an imported event gets a new place."""
BODIES: Final = ("body", "text", "base64")
MEMBERS: Final = frozenset(("context", "stream", "type", "id", "time", "headers", *BODIES, *ALIASES, *PLACES))


class BadEvent(ValueError):
    """A member that cannot be part of an event, and why."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(f"{member} {reason}")
        self.member = member
        self.reason = reason


# --- strict JSON ----------------------------------------------------------------------------------------------
#
# Python's reader takes the last of two members of one name, turns 1e999 into infinity, and accepts NaN. To keep what
# was sent, these refuse all three.


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


DIGITS_MAX: Final = 17
"""Digits that every number keeps as a double."""
_DIGITS = re.compile(r"-?0*\.?0*([0-9.]*)")


def _exact(text: str) -> float:
    """A number of a request, whose digits are not cut off unseen."""
    found = _DIGITS.match(text)
    assert found is not None
    if len(found[1].replace(".", "").rstrip("0")) > DIGITS_MAX:
        raise ValueError(f"{text[:40]} has more than {DIGITS_MAX} digits, which are not kept; send it as text")
    return _finite(text)


exact_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_exact, object_pairs_hook=_unique)
tolerant: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=str, parse_int=str)
"""For texts of which only matters that they are JSON."""


def parse_json(text: str, decoder: json.JSONDecoder = decoder) -> Any:
    """The value of a JSON text, if nothing of it is lost. Raises ValueError."""
    found = decoder.decode(text)
    if "\\u" in text:
        # JSON can name half of a surrogate pair, which UTF-8 cannot hold.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def compact_json(member: str, value: Any) -> str:
    """Raises BadEvent if a value is not JSON, or not Unicode."""
    try:
        text = compact(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadEvent(member, f"is not JSON that can be kept: {error}") from None
    return text


# --- plain JSON -----------------------------------------------------------------------------------------------
#
# msgspec is many times as fast as Python's own JSON, and agrees with it where these say so. It takes the last of two
# members of one name: then the encoded text has fewer quotes.

PLAIN_BRACKETS_MAX: Final = 400
"""Of a value that is surely not nested too deeply for Python's own decoder."""
ESCAPED_QUOTE: Final = b"\\u0022"


def plain_float(text: str) -> float:
    """A number that msgspec writes as Python does. Raises ValueError for others."""
    number = float(text)
    if 1e-4 <= abs(number) < 1e16 or not number:
        return number
    raise ValueError(text)


encode_plain: Final = msgspec.json.Encoder().encode
encode_plain_lines: Final = msgspec.json.Encoder().encode_lines
decode_any: Final = msgspec.json.Decoder().decode
decode_plain: Final = msgspec.json.Decoder(float_hook=plain_float).decode
NOT_PLAIN: Final = (ValueError, TypeError, RecursionError)
"""Errors of the encoder and decoder for values that they do not handle, valid or not."""


def is_shallow(text: bytes) -> bool:
    return len(text) <= 2 * PLAIN_BRACKETS_MAX or text.count(b"[") + text.count(b"{") <= PLAIN_BRACKETS_MAX


# --- out ------------------------------------------------------------------------------------------------------


def event_document(event: Event) -> dict[str, Any]:
    """An event as `penstock read --json` prints it."""
    headers: Any = event.headers
    try:
        found = None if headers is None else parse_json(headers)
        headers = found if isinstance(found, dict) else headers
    except (ValueError, RecursionError):
        pass
    body: dict[str, Any]
    try:
        body = {"text": event.body.decode()}
        body = {"body": parse_json(body["text"])}
    except UnicodeDecodeError:
        body = {"base64": b64encode(event.body).decode()}
    except (ValueError, RecursionError):
        pass
    return {
        "position": event.position,
        "sequence": event.sequence,
        "context": event.context,
        "stream": event.stream,
        "type": event.type,
        "id": event.id_text,
        "timestamp": text_of_ticks(event.ticks),
        "recorded_at": text_of_ticks(event.recorded),
        "headers": headers,
        **body,
    }


def json_lines(events: Sequence[Event]) -> bytes:
    """Events as lines of JSON that `event_of` turns into the same events."""
    are_bodies = _are_compact([event.body for event in events])
    are_headers = _are_compact([(event.headers or "").encode() for event in events])
    return "".join(f"{text}\n" for text in map(_json_text, events, are_bodies, are_headers)).encode()


def event_texts(events: Sequence[Event]) -> list[str]:
    """Events as JSON objects, one line each, with JSON bodies as they are stored."""
    are_headers = (is_json((event.headers or "").encode()) for event in events)
    return list(map(_json_text, events, (is_json(event.body) for event in events), are_headers))


def _json_text(event: Event, is_body: bool, is_headers: bool) -> str:
    """One line; the flags tell whether body and headers are JSON, which goes in as it is."""
    headers, body = "null", ""
    if event.headers is not None:
        headers = one_line(event.headers) if is_headers and event.headers[:1] == "{" else quoted(event.headers)
    if event.body:
        try:
            text = event.body.decode()
            body = f',"body":{one_line(text)}' if is_body else f',"text":{quoted(text)}'
        except UnicodeDecodeError:
            body = f',"base64":"{b64encode(event.body).decode()}"'
    return (
        f'{{"position":{event.position},"sequence":{event.sequence},"context":{quoted(event.context)},'
        f'"stream":{quoted(event.stream)},"type":{quoted(event.type)},"id":"{event.id_text}",'
        f'"timestamp":"{text_of_stamp(event.stamp)}","recorded_at":"{text_of_recorded(event.recorded)}",'
        f'"headers":{headers}{body}}}'
    )


def one_line(text: str) -> str:
    """A JSON text, in which line ends can only stand between its parts."""
    return text.replace("\n", " ").replace("\r", " ")


def is_json(text: bytes) -> bool:
    """Whether a text is JSON that a reader surely takes: UTF-8, no NaN, and no half of a surrogate pair."""
    if not text:
        # Most events have no headers, and an exception costs as much as all the rest of an event.
        return False
    try:
        if is_shallow(text):
            decode_any(text)
            return True
    except NOT_PLAIN:
        pass
    try:
        whole = text.decode()
        found = tolerant.decode(whole)
        if "\\u" in whole:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _are_compact(texts: Sequence[bytes]) -> Sequence[bool]:
    """Whether each of some texts is JSON as `compact` writes it."""
    try:
        if all(texts) and all(map(is_shallow, texts)):
            return list(map(eq, encode_plain_lines(map(decode_plain, texts))[:-1].split(b"\n"), texts))
    except NOT_PLAIN:
        pass
    return list(map(_is_compact, texts))


def _is_compact(text: bytes) -> bool:
    if not text:
        return False
    try:
        if is_shallow(text):
            return encode_plain(decode_plain(text)) == text
    except NOT_PLAIN:
        pass
    try:
        whole = text.decode()
        return compact(json.loads(whole)) == whole
    except (ValueError, RecursionError):
        return False


@lru_cache(NAMES_CACHED)
def text_of_recorded(ticks: int) -> str:
    """The time of a commit, which many events share."""
    return text_of_stamp(stamp_of(ticks))


# --- in -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Defaults:
    context: str | None = None
    stream: str | None = None
    type: str | None = None
    bytes_max: int | None = None
    """Refuse larger events, to learn where they are."""

    def check(self) -> str | None:
        """Why a default cannot be, or None."""
        for name, check in NAME_CHECKS.items():
            value = getattr(self, name)
            if value is not None and (reason := check(value)):
                return f"--{name} {reason}"
        return None


NAME_CHECKS: Final = {
    "context": lru_cache(NAMES_CACHED)(check_context),
    "stream": lru_cache(NAMES_CACHED)(check_stream),
    "type": lru_cache(NAMES_CACHED)(check_type),
}


def event_of(
    members: Mapping[str, Any],
    defaults: Defaults = Defaults(),  # noqa: B008 - it cannot be changed
    *,
    body: bytes | None = None,
    stamp: int | None = None,
) -> Incoming:
    """The event of a JSON object or a row. Raises BadEvent.

    Formats with their own rules for bodies and times pass `body` and `stamp`; then they also check for unknown members.
    """
    if body is None:
        if not members.keys() <= MEMBERS:
            unknown = next(name for name in members if name not in MEMBERS)
            raise BadEvent(unknown, "is no member of an event; put the event's own data into its body")
        body = _body(members)
    context = _name("context", members, defaults.context)
    stream = _name("stream", members, defaults.stream)
    kind = _name("type", members, defaults.type)
    stamp = _stamp(members) if stamp is None else stamp
    name, given = _given(members, "id", "event_id")
    id = random_id() if given is None else id_of(name, given)
    headers = members.get("headers")
    if isinstance(headers, dict):
        headers = compact_json("headers", headers)
    elif headers is not None:
        headers = text_of("headers", headers) or None
    return checked(Incoming(context, stream, NewEvent(id, stamp, kind, headers, body)), defaults.bytes_max)


def size_of(row: Incoming) -> int:
    return len(row.event.body) + len(row.event.headers or "") + len(row.event.type)


def checked(row: Incoming, bytes_max: int | None = None) -> Incoming:
    """An event with valid names that, if it goes into a log, is a message. Raises BadEvent."""
    event = row.event
    for name, value in (("context", row.context), ("stream", row.stream), ("type", event.type)):
        if reason := NAME_CHECKS[name](value):
            raise BadEvent(name, reason)
    if row.context == LOG_CONTEXT:
        # Logs take only CBOR: the engine would refuse everything else.
        if event.type != MESSAGE_TYPE:
            raise BadEvent("type", f"is {event.type!r}, and the context {LOG_CONTEXT} has logs: {MESSAGE_TYPE!r} only")
        if flaw := first_invalid([event.body]):
            raise BadEvent("body", f"is no message for a log: {flaw[1]}")
    if bytes_max is not None and size_of(row) > bytes_max:
        raise BadEvent("body", "is too large")
    return row


def _body(members: Mapping[str, Any]) -> bytes:
    given = [name for name in BODIES if name in members]
    if not given:
        return b""
    if len(given) > 1:
        raise BadEvent(given[1], f"is there together with {given[0]}")
    (name,) = given
    if name == "body":
        return compact_json(name, members[name]).encode()
    text = text_of(name, members[name])
    return text.encode() if name == "text" else decode_base64(name, text)


def decode_base64(member: str, text: str) -> bytes:
    """Raises BadEvent."""
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise BadEvent(member, f"is not base64: {str(error).lower()}") from None


def _name(member: str, members: Mapping[str, Any], default: str | None) -> str:
    value = members.get(member)
    if value is None or value == "":
        if default is None:
            raise BadEvent(member, f"is missing; say --{member} for all events that have none")
        return default
    return text_of(member, value)


def text_of(member: str, value: Any) -> str:
    """A value that is text and Unicode. Raises BadEvent."""
    if not isinstance(value, str):
        kinds = {dict: "an object", list: "an array", bool: "a boolean", type(None): "null"}
        raise BadEvent(member, f"is {kinds.get(type(value), repr(value))}, where text belongs")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadEvent(member, "has half of a surrogate pair") from None
    return value


def _given(members: Mapping[str, Any], *names: str) -> tuple[str, Any]:
    """The first of some members that is there and not empty; None if none is."""
    for name in names:
        value = members.get(name)
        if value is not None and value != "":
            return name, value
    return names[0], None


def id_of(member: str, value: Any) -> bytes:
    """The bytes of a UUID, from text or from its 16 bytes. Raises BadEvent."""
    if isinstance(value, bytes):
        if len(value) != 16:
            raise BadEvent(member, f"has {len(value)} bytes; an id has 16")
        return bytes(value)
    text = text_of(member, value)
    try:
        if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":
            # Nearly always, and much faster than UUID.
            found = bytes.fromhex(text.replace("-", ""))
            if len(found) == 16:
                return found
        return UUID(text).bytes
    except ValueError:
        raise BadEvent(member, f"is {text[:40]!r}, which is no UUID") from None


def _stamp(members: Mapping[str, Any]) -> int:
    name, value = _given(members, "time", "timestamp")
    if value is None:
        return stamp_of(now_ticks())
    text = text_of(name, value)
    try:
        return stamp_of_text(text)
    except ValueError as error:
        raise BadEvent(name, str(error)) from None


# --- many at once ---------------------------------------------------------------------------------------------

ID_CHARS: Final = 36
ID_DASHES: Final = (8, 13, 18, 23)
_TEXT_KINDS: Final = frozenset((str, type(None), msgspec.UnsetType))


class NotPlain(Exception):
    """Rows that have to be read one by one."""


def check_kinds(values: Iterable[Any]) -> None:
    """Raise NotPlain if there is anything but texts and missing ones: an empty number is not missing."""
    if not _TEXT_KINDS.issuperset(map(type, values)):
        raise NotPlain


def plain_ids(texts: Sequence[Any]) -> list[bytes]:
    """The ids in texts; a new one for an empty text."""
    check_kinds(texts)
    if not all(texts):
        return [plain_ids([text])[0] if text else random_id() for text in texts]
    try:
        joined = "".join(texts)
        if set(map(len, texts)) != {ID_CHARS} or joined.count("-") != len(ID_DASHES) * len(texts):
            raise NotPlain
        if any(joined[at::ID_CHARS] != "-" * len(texts) for at in ID_DASHES):
            raise NotPlain
        raw = bytes.fromhex(joined.replace("-", ""))
    except (TypeError, ValueError):
        raise NotPlain from None
    # Spaces between the digits are nothing to `fromhex`.
    if len(raw) != 16 * len(texts):
        raise NotPlain
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]
