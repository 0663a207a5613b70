"""The formats of files that are text: JSON lines, CloudEvents in JSON, one in each line, and CSV; errors about files.

CSV is RFC 4180 in UTF-8: a header row, then one event in each row. `encoding` says how `body` is written: `text`, or
`base64` if it is not UTF-8. In a file without a column `body`, the columns that no event has become the body, as a JSON
object of texts. `parquet_format` has the format that needs Arrow.
"""

import csv
import errno
import io
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from json import JSONDecodeError
from pathlib import Path, PurePath
from threading import Lock
from typing import IO, Any, Final

from penstock import cloudevents
from penstock.cloudevents import Incoming, NotACloudEvent
from penstock.errors import PenstockError
from penstock.event_json import (
    ALIASES,
    PLACES,
    BadEvent,
    Defaults,
    checked,
    compact_json,
    decode_base64,
    decoder,
    event_of,
    json_line,
)
from penstock.model import Event
from penstock.model.events import compact
from penstock.model.times import stamp_of, text_of_stamp

STANDARD: Final = "-"
"""In place of a path: standard input or output."""
FULL: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Format(StrEnum):
    """The format of a file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    CLOUDEVENTS = "cloudevents"


_SUFFIXES: Final = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".cloudevents": Format.CLOUDEVENTS,
    ".ce": Format.CLOUDEVENTS,
}


class FileRefused(PenstockError):
    """A file that cannot be read or written, whatever its content."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BrokenFile(PenstockError):
    """Part of a file is not an event. The import has sent nothing of the file."""

    path: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}; nothing of this file was imported"


class Flaw(ValueError):
    """A mistake in a file, from a reader that does not know the name of the file."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


def format_of(path: str, given: Format | None) -> Format:
    """The given format, or the one that the name ends in; JSON lines for a pipe. Raises FileRefused."""
    if given is not None:
        return given
    if path == STANDARD:
        return Format.JSONL
    # The last two suffixes: `orders.cloudevents.jsonl`, as some editors know only the last one.
    for suffix in PurePath(path).suffixes[-2:]:
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    known = ", ".join(sorted(_SUFFIXES))
    raise FileRefused(path, f"its name does not end in one of {known}; say --format {'|'.join(Format)}")


@contextmanager
def refusing(path: str | Path) -> Iterator[None]:
    """Raise FileRefused with the path that the user named in place of OSError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        rest = "; run the same command again when there is room, and it goes on" if error.errno in FULL else ""
        # A link or a pipe is in the place of a file next to it.
        name = str(error.filename) if error.errno in (errno.ELOOP, errno.EINVAL) else str(path)
        raise FileRefused(name, reason + rest) from None


@contextmanager
def named_errors(name: str | None) -> Iterator[None]:
    """Put a file's name into errors: those of an open file have none."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


# --- JSON lines and CloudEvents -------------------------------------------------------------------------------

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


# --- CSV ------------------------------------------------------------------------------------------------------

CSV_COLUMNS: Final = (
    *("position", "sequence", "context", "stream", "type", "id", "timestamp", "recorded_at"),
    *("headers", "encoding", "body"),
)
_KNOWN_COLUMNS: Final = frozenset((*CSV_COLUMNS, "time", *ALIASES, *PLACES))
TEXT: Final = "text"
BASE64: Final = "base64"

_field_limit_lock = Lock()


def csv_header() -> bytes:
    return _write_rows([CSV_COLUMNS])


def to_csv(events: Sequence[Event]) -> bytes:
    return _write_rows(map(_csv_row, events))


def _write_rows(rows: Iterable[tuple[object, ...]]) -> bytes:
    text = io.StringIO(newline="")
    # With both characters in its line ends, the writer quotes every field that has one of them.
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def _csv_row(event: Event) -> tuple[object, ...]:
    place = event.position, event.sequence, event.context, event.stream, event.type, event.id_text
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
        if name not in _KNOWN_COLUMNS and "body" in names:
            known = f"{name!r} is no column of events; what is known: {', '.join(CSV_COLUMNS)}"
            raise Flaw(f"line {number}, column {at}", known)
    for number, row in rows:
        if len(row) != len(names):
            place = f"line {number}, column {min(len(row), len(names)) + 1}"
            raise Flaw(place, f"there are {len(row)} columns, and {len(names)} in the header row")
        members = dict(zip(names, row, strict=True))
        try:
            yield event_of(members, defaults, body=_csv_body(members))
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


def _csv_body(members: dict[str, str]) -> bytes:
    text = members.get("body")
    if text is None:
        own = {name: value for name, value in members.items() if name not in _KNOWN_COLUMNS}
        return compact_json("body", own).encode() if own else b""
    encoding = members.get("encoding") or TEXT
    if encoding not in (TEXT, BASE64):
        raise BadEvent("encoding", f"is {encoding!r}; it must be {TEXT} or {BASE64}")
    return text.encode() if encoding == TEXT else decode_base64("body", text)
