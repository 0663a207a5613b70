"""CSV: a header row, then one event in each row; RFC 4180, UTF-8.

`encoding` says what stands in `body`: `text`, or `base64` where a body is no UTF-8. In a file that has no column
`body`, the columns that no event has become the body, as a JSON object of texts.
"""

import csv
import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NoReturn

from penstock.cloudevents import Incoming
from penstock.interchange.files import Flaw
from penstock.interchange.lines import LINE_BYTES_MAX, decoded_lines
from penstock.interchange.rows import ALIASES, PASSED_OVER, Defaults, Wrong, compact_json, decoded, incoming, text_of_id
from penstock.model import Event
from penstock.model.times import stamp_of, text_of_stamp

COLUMNS: Final = (
    *("position", "sequence", "context", "stream", "type", "id", "timestamp", "recorded_at"),
    *("headers", "encoding", "body"),
)
KNOWN: Final = frozenset((*COLUMNS, "time", *ALIASES, *PASSED_OVER))
TEXT: Final = "text"
BASE64: Final = "base64"

# --- out ------------------------------------------------------------------------------------------------------


def csv_header() -> bytes:
    """The first row."""
    return _rows([COLUMNS])


def to_csv(events: Sequence[Event]) -> bytes:
    """Events as rows."""
    return _rows(map(_row, events))


def _rows(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    # With both in its line ends, the writer quotes every field that has one of them.
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def _row(event: Event) -> tuple[object, ...]:
    place = event.position, event.sequence, event.context, event.stream, event.type, text_of_id(event.id)
    times = text_of_stamp(event.stamp), text_of_stamp(stamp_of(event.recorded))
    try:
        return *place, *times, event.headers or "", TEXT, event.body.decode()
    except UnicodeDecodeError:
        return *place, *times, event.headers or "", BASE64, b64encode(event.body).decode()


# --- in -------------------------------------------------------------------------------------------------------


def from_csv(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Events of a CSV file. Raises Flaw."""
    # The limit is the module's, and what one line may have is enough for every field.
    csv.field_size_limit(LINE_BYTES_MAX)
    rows = _numbered(file)
    first = next(rows, None)
    if first is None:
        raise Flaw("line 1, column 1", "the file is empty: there is no header row")
    names = _header(*first)
    for number, row in rows:
        try:
            yield _event(_members(number, names, row), defaults)
        except Wrong as wrong:
            _flawed(number, names, wrong.member, wrong.reason)


def _numbered(file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Rows that have something in them, and the lines that they begin in."""
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
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise Flaw(f"line {number}, column 1", f"it is not CSV: {error}") from None
        if row:
            yield number, row
        number = reader.line_num + 1


def _header(number: int, names: list[str]) -> list[str]:
    for at, name in enumerate(names, 1):
        if not name or names.index(name) != at - 1:
            reason = f"the header row names {name!r} twice" if name else "the header row has a column without a name"
            raise Flaw(f"line {number}, column {at}", reason)
        if name not in KNOWN and "body" in names:
            raise Flaw(f"line {number}, column {at}", f"{name!r} is no column of events; what is known: {_all()}")
    return names


def _all() -> str:
    return ", ".join(COLUMNS)


def _members(number: int, names: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(names):
        at = min(len(row), len(names)) + 1
        raise Flaw(f"line {number}, column {at}", f"there are {len(row)} columns, and {len(names)} in the header row")
    return dict(zip(names, row, strict=True))


def _event(members: dict[str, str], defaults: Defaults) -> Incoming:
    return incoming(members, _body(members), defaults)


def _body(members: dict[str, str]) -> bytes:
    text = members.get("body")
    if text is None:
        own = {name: value for name, value in members.items() if name not in KNOWN}
        return compact_json("body", own).encode() if own else b""
    encoding = members.get("encoding") or TEXT
    if encoding not in (TEXT, BASE64):
        raise Wrong("encoding", f"is {encoding!r}; it must be {TEXT} or {BASE64}")
    return text.encode() if encoding == TEXT else decoded("body", text)


def _flawed(number: int, names: list[str], member: str, reason: str) -> NoReturn:
    at = names.index(member) + 1 if member in names else 1
    raise Flaw(f"line {number}, column {at}", f"{member!r} {reason}")
