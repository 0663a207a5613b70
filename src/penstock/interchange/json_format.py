"""JSON lines, one event in each line (`penstock.event_json`), and CloudEvents in JSON, one in each line."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from json import JSONDecodeError
from typing import IO, Any, Final

from penstock import cloudevents
from penstock.cloudevents import Incoming, NotACloudEvent
from penstock.event_json import BadEvent, Defaults, checked, decoder, event_of, json_line
from penstock.interchange.formats import Flaw
from penstock.model import Event
from penstock.model.events import compact

LINE_BYTES_MAX: Final = 64 << 20
"""Bytes of one line: more than any event needs."""
BOM: Final = b"\xef\xbb\xbf"


def to_json_lines(events: Sequence[Event]) -> bytes:
    return b"".join(map(json_line, events))


def to_cloud_lines(events: Sequence[Event]) -> bytes:
    """Raises Flaw if an event cannot be a CloudEvent."""
    return b"".join(map(_cloud_line, events))


def _cloud_line(event: Event) -> bytes:
    try:
        document = cloudevents.to_structured(event)
    except NotACloudEvent as error:
        reason = f"it cannot be a CloudEvent: {error.attribute} {error.reason}"
        raise Flaw(f"the event at position {event.position}", reason) from None
    if "data" in document and not _comes_back(document["data"], event.body):
        # As a JSON value it would come back with other spacing, or with its numbers in another form.
        del document["data"]
        document["data_base64"] = b64encode(event.body).decode()
    return compact(document).encode() + b"\n"


def _comes_back(data: Any, body: bytes) -> bool:
    """Whether an import makes the same bytes of CloudEvent data. Text that is not JSON always comes back."""
    if compact(data).encode() == body:
        return True
    try:
        return bool(json.loads(body) != data)
    except (ValueError, RecursionError):
        return True


def from_json_lines(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Raises Flaw."""
    return _from_lines(file, lambda members: event_of(members, defaults))


def from_cloud_lines(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Raises Flaw."""
    return _from_lines(file, lambda members: checked(_cloud_event(members, defaults), defaults.bytes_max))


def _cloud_event(members: dict[str, Any], defaults: Defaults) -> Incoming:
    """The attributes of a CloudEvent come first; defaults apply where they name no context, stream or type."""
    source = members.get("source")
    is_own = not isinstance(source, str) or source.startswith(cloudevents.BASE)
    context = None if is_own else defaults.context
    stream = None if members.get("subject") is not None else defaults.stream
    if defaults.type is not None and members.get("type") is None:
        members = {**members, "type": defaults.type}
    return cloudevents.from_structured(members, context=context, stream=stream)


def _from_lines(file: IO[bytes], convert: Callable[[dict[str, Any]], Incoming]) -> Iterator[Incoming]:
    for number, line in decoded_lines(file):
        text = line.rstrip("\r\n")
        if not text or text.isspace():
            continue
        try:
            members = decoder.decode(text)
        except JSONDecodeError as error:
            reason = error.msg[:1].lower() + error.msg[1:]
            raise Flaw(f"line {number}, column {error.pos + 1}", reason) from None
        except (ValueError, RecursionError) as error:
            raise Flaw(f"line {number}, column 1", str(error)) from None
        if not isinstance(members, dict):
            raise Flaw(f"line {number}, column 1", "it is no JSON object")
        try:
            yield convert(members)
        except (BadEvent, NotACloudEvent) as error:
            member = error.member if isinstance(error, BadEvent) else error.attribute
            place = f"line {number}, column {column_of(text, member) + 1}"
            raise Flaw(place, f"{member!r} {error.reason}") from None


def decoded_lines(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers and ends. Raises Flaw if one is too long or not UTF-8."""
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


def column_of(text: str, member: str) -> int:
    """Where the value of a member begins in a JSON object; where the object begins if it lacks the member."""
    decoder, found = json.JSONDecoder(), text.index("{")
    at = _skip_space(text, found + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        at = _skip_space(text, _skip_space(text, at) + 1)
        if name == member:
            found = at
        _, at = decoder.raw_decode(text, at)
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
