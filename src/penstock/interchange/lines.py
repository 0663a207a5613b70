"""JSON lines: one event in a line, an object as `penstock read --json` prints it. CloudEvents: one in a line, in JSON.

A body is `body`, any JSON value, if compact JSON of that value is the same bytes again; otherwise `text` if it is
UTF-8, otherwise `base64`. So each body comes back as it was, and what is JSON can be read as such. Headers are an
object under the same condition, otherwise text.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from json.encoder import encode_basestring as quoted
from typing import IO, Any, Final, NoReturn

from penstock import cloudevents
from penstock.cloudevents import Incoming, NotACloudEvent
from penstock.interchange.files import Flaw
from penstock.interchange.rows import (
    BODIES,
    KNOWN,
    Defaults,
    Wrong,
    checked,
    compact,
    compact_json,
    decoded,
    incoming,
    text_of,
    text_of_id,
)
from penstock.interchange.strict import decoder
from penstock.model import Event
from penstock.model.times import stamp_of, text_of_stamp

LINE_BYTES_MAX: Final = 64 << 20
"""One line: more than an event can be, however it is written."""
BOM: Final = b"\xef\xbb\xbf"

# --- out ------------------------------------------------------------------------------------------------------


def to_json_lines(events: Sequence[Event]) -> bytes:
    """Events as JSON lines."""
    return b"".join(map(_line, events))


def _line(event: Event) -> bytes:
    # The object is put together as text: bodies and headers that are JSON are in it as they are.
    return (
        f'{{"position":{event.position},"sequence":{event.sequence},"context":{quoted(event.context)},'
        f'"stream":{quoted(event.stream)},"type":{quoted(event.type)},"id":"{text_of_id(event.id)}",'
        f'"timestamp":"{text_of_stamp(event.stamp)}","recorded_at":"{text_of_stamp(stamp_of(event.recorded))}",'
        f'"headers":{_headers(event.headers)}{_body(event.body)}}}\n'
    ).encode()


def is_same(text: str) -> bool:
    """Whether a text is JSON of which the same text is made again."""
    try:
        return compact(json.loads(text)) == text
    except (ValueError, RecursionError):
        return False


def _headers(headers: str | None) -> str:
    if headers is None:
        return "null"
    return headers if headers[:1] == "{" and is_same(headers) else quoted(headers)


def _body(body: bytes) -> str:
    if not body:
        return ""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f',"base64":"{b64encode(body).decode()}"'
    return f',"body":{text}' if is_same(text) else f',"text":{quoted(text)}'


def to_cloud_lines(events: Sequence[Event]) -> bytes:
    """Events as CloudEvents, a line each. Raises Flaw where one cannot be a CloudEvent."""
    return b"".join(map(_cloud_line, events))


def _cloud_line(event: Event) -> bytes:
    try:
        document = cloudevents.to_structured(event)
    except NotACloudEvent as error:
        reason = f"it cannot be a CloudEvent: {error.attribute} {error.reason}"
        raise Flaw(f"the event at position {event.position}", reason) from None
    if "data" in document and not _comes_back(document["data"], event.body):
        # As a JSON value it would be spaced otherwise, or its numbers written in another way.
        del document["data"]
        document["data_base64"] = b64encode(event.body).decode()
    return compact(document).encode() + b"\n"


def _comes_back(data: Any, body: bytes) -> bool:
    """Whether these bytes are made of CloudEvent data again. Data that is text, not JSON, always does."""
    if compact(data).encode() == body:
        return True
    try:
        return bool(json.loads(body) != data)
    except (ValueError, RecursionError):
        return True


# --- in -------------------------------------------------------------------------------------------------------


def from_json_lines(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Events of JSON lines. Raises Flaw."""
    for number, text in _lines(file):
        members = _object(number, text)
        try:
            yield _event(members, defaults)
        except Wrong as wrong:
            _flawed(number, text, wrong.member, wrong.reason)


def from_cloud_lines(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Events of CloudEvents, a line each. Raises Flaw."""
    for number, text in _lines(file):
        members = _object(number, text)
        try:
            yield checked(_cloud_event(members, defaults), defaults.bytes_max)
        except NotACloudEvent as error:
            _flawed(number, text, error.attribute, error.reason)
        except Wrong as wrong:
            _flawed(number, text, wrong.member, wrong.reason)


def _cloud_event(members: dict[str, Any], defaults: Defaults) -> Incoming:
    """What a CloudEvent says counts; where it says nothing that we know, the defaults do."""
    source = members.get("source")
    is_own = not isinstance(source, str) or source.startswith(cloudevents.BASE)
    context = None if is_own else defaults.context
    stream = None if members.get("subject") is not None else defaults.stream
    if defaults.type is not None and members.get("type") is None:
        members = {**members, "type": defaults.type}
    return cloudevents.from_structured(members, context=context, stream=stream)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Lines that have something in them, and their numbers."""
    for number, line in decoded_lines(file):
        text = line.rstrip("\r\n")
        if text and not text.isspace():
            yield number, text


def decoded_lines(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """All lines, with their ends, and their numbers. Raises Flaw where one is too long or no UTF-8."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise Flaw(f"line {number}, column 1", f"a line has more than {LINE_BYTES_MAX} bytes")
        if number == 1:
            line = line.removeprefix(BOM)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            raise Flaw(f"line {number}, column {column}", "it is not UTF-8") from None
        yield number, text


def _object(number: int, text: str) -> dict[str, Any]:
    try:
        value = decoder.decode(text)
    except JSONDecodeError as error:
        raise Flaw(f"line {number}, column {error.pos + 1}", _lower(error.msg)) from None
    except (ValueError, RecursionError) as error:
        raise Flaw(f"line {number}, column 1", str(error)) from None
    if not isinstance(value, dict):
        raise Flaw(f"line {number}, column 1", "it is no JSON object")
    return value


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _event(members: dict[str, Any], defaults: Defaults) -> Incoming:
    if not members.keys() <= KNOWN:
        unknown = next(name for name in members if name not in KNOWN)
        raise Wrong(unknown, "is no member of an event; what is the event's own belongs into its body")
    return incoming(members, _bytes(members), defaults)


def _bytes(members: dict[str, Any]) -> bytes:
    given = [name for name in BODIES if name in members]
    if not given:
        return b""
    if len(given) > 1:
        raise Wrong(given[1], f"is there together with {given[0]}")
    (name,) = given
    if name == "body":
        return compact_json(name, members[name]).encode()
    text = text_of(name, members[name])
    return text.encode() if name == "text" else decoded(name, text)


def _flawed(number: int, text: str, member: str, reason: str) -> NoReturn:
    raise Flaw(f"line {number}, column {column_of(text, member) + 1}", f"{member!r} {reason}")


def column_of(text: str, member: str) -> int:
    """Where the value of a member of a JSON object begins; the object itself if it has none of that name."""
    decoder, at, found = json.JSONDecoder(), _after(text, text.index("{") + 1), text.index("{")
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        at = _after(text, _after(text, at) + 1)
        if name == member:
            found = at
        _, at = decoder.raw_decode(text, at)
        at = _after(text, at)
        if text[at] == ",":
            at = _after(text, at + 1)
    return found


def _after(text: str, at: int) -> int:
    """The next place that is no white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at
