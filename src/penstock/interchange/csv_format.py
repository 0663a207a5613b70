"""CSV: a header row, then one event in each row; RFC 4180, UTF-8.

`encoding` says how `body` is written: `text`, or `base64` if it is not UTF-8. In a file without a column `body`, the
columns that no event has become the body, as a JSON object of texts.
"""

import csv
import io
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import IO, Final

from penstock.cloudevents import Incoming
from penstock.event_json import ALIASES, PLACES, BadEvent, Defaults, compact_json, decode_base64, event_of, text_of_id
from penstock.interchange.formats import Flaw
from penstock.interchange.json_format import LINE_BYTES_MAX, decoded_lines
from penstock.model import Event
from penstock.model.times import stamp_of, text_of_stamp

COLUMNS: Final = (
    *("position", "sequence", "context", "stream", "type", "id", "timestamp", "recorded_at"),
    *("headers", "encoding", "body"),
)
KNOWN: Final = frozenset((*COLUMNS, "time", *ALIASES, *PLACES))
TEXT: Final = "text"
BASE64: Final = "base64"

_field_limit_lock = Lock()


def csv_header() -> bytes:
    return _write_rows([COLUMNS])


def to_csv(events: Sequence[Event]) -> bytes:
    return _write_rows(map(_row, events))


def _write_rows(rows: Iterable[tuple[object, ...]]) -> bytes:
    text = io.StringIO(newline="")
    # With both characters in its line ends, the writer quotes every field that has one of them.
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def _row(event: Event) -> tuple[object, ...]:
    place = event.position, event.sequence, event.context, event.stream, event.type, text_of_id(event.id)
    times = text_of_stamp(event.stamp), text_of_stamp(stamp_of(event.recorded))
    try:
        return *place, *times, event.headers or "", TEXT, event.body.decode()
    except UnicodeDecodeError:
        return *place, *times, event.headers or "", BASE64, b64encode(event.body).decode()


def from_csv(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Raises Flaw."""
    rows = _read_rows(file)
    number, names = next(rows, (1, []))
    if not names:
        raise Flaw("line 1, column 1", "the file is empty: there is no header row")
    for at, name in enumerate(names, 1):
        if not name or names.index(name) != at - 1:
            reason = f"the header row names {name!r} twice" if name else "the header row has a column without a name"
            raise Flaw(f"line {number}, column {at}", reason)
        if name not in KNOWN and "body" in names:
            known = f"{name!r} is no column of events; what is known: {', '.join(COLUMNS)}"
            raise Flaw(f"line {number}, column {at}", known)
    for number, row in rows:
        if len(row) != len(names):
            place = f"line {number}, column {min(len(row), len(names)) + 1}"
            raise Flaw(place, f"there are {len(row)} columns, and {len(names)} in the header row")
        members = dict(zip(names, row, strict=True))
        try:
            yield event_of(members, defaults, body=_body(members))
        except BadEvent as error:
            at = names.index(error.member) + 1 if error.member in names else 1
            raise Flaw(f"line {number}, column {at}", f"{error.member!r} {error.reason}") from None


def _read_rows(file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, and the lines that they begin in."""
    length = 0

    def lines() -> Iterator[str]:
        nonlocal length
        for _, line in decoded_lines(file):
            length += len(line)
            if length > LINE_BYTES_MAX:
                raise Flaw(f"line {number}, column 1", f"a row has more than {LINE_BYTES_MAX} characters")
            yield line

    reader = csv.reader(lines(), strict=True)
    number = 1
    while True:
        length = 0
        try:
            row = _next_row(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise Flaw(f"line {number}, column 1", f"it is not CSV: {error}") from None
        if row:
            yield number, row
        number = reader.line_num + 1


def _next_row(reader: Iterator[list[str]]) -> list[str]:
    """The next row, with fields as large as a line may be. The limit of fields belongs to the whole process."""
    with _field_limit_lock:
        before = csv.field_size_limit(LINE_BYTES_MAX)
        try:
            return next(reader)
        finally:
            csv.field_size_limit(before)


def _body(members: dict[str, str]) -> bytes:
    text = members.get("body")
    if text is None:
        own = {name: value for name, value in members.items() if name not in KNOWN}
        return compact_json("body", own).encode() if own else b""
    encoding = members.get("encoding") or TEXT
    if encoding not in (TEXT, BASE64):
        raise BadEvent("encoding", f"is {encoding!r}; it must be {TEXT} or {BASE64}")
    return text.encode() if encoding == TEXT else decode_base64("body", text)
