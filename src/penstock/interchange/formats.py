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

import msgspec.json
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from penstock import cloudevents
from penstock.cloudevents import Incoming, NotACloudEvent
from penstock.errors import PenstockError
from penstock.event_json import (
    ALIASES,
    ESCAPED_QUOTE,
    NAME_CHECKS,
    NOT_PLAIN,
    PLACES,
    BadEvent,
    Defaults,
    NotPlain,
    checked,
    compact_json,
    decode_base64,
    decoder,
    encode_plain,
    encode_plain_lines,
    event_of,
    is_shallow,
    plain_float,
    text_of_recorded,
)
from penstock.interchange.blocks import (
    ROWS_BYTES_MAX,
    ROWS_MAX,
    Block,
    block_of,
    blocks_of_rows,
    plain_block,
    plain_stamps,
)
from penstock.model import Event
from penstock.model.chunks import chunked
from penstock.model.events import compact
from penstock.model.times import text_of_stamp

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
READ_BYTES: Final = 64 << 10
"""Bytes of a file that become one block, and the rest of their last line."""
BOM: Final = b"\xef\xbb\xbf"


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


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A plain line. A missing member is UNSET, so that the encoder leaves it out again."""

    context: str | UnsetType | None = UNSET
    stream: str | UnsetType | None = UNSET
    type: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET
    event_id: str | UnsetType | None = UNSET
    time: str | UnsetType | None = UNSET
    timestamp: str | UnsetType | None = UNSET
    headers: dict[str, Any] | str | UnsetType | None = UNSET
    body: Any = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    sequence: int | UnsetType = UNSET
    recorded: str | UnsetType = UNSET
    recorded_at: str | UnsetType = UNSET
    commit: str | UnsetType = UNSET


_decode_line: Final = msgspec.json.Decoder(_Line, float_hook=plain_float).decode


def json_blocks(file: IO[bytes], defaults: Defaults) -> Iterator[Block]:
    """The events of `from_json_lines`, many at a time. Raises Flaw."""
    number = 0
    while lines := _some_lines(file):
        if not number:
            lines[0] = lines[0].removeprefix(BOM)
        try:
            yield _plain_lines(lines, defaults)
        except NotPlain:
            yield from _blocks_one_by_one(lines, number, defaults)
        number += len(lines)


def _some_lines(file: IO[bytes]) -> list[bytes]:
    """The next lines, without their ends. Only the last one can be too long, and it is not read further."""
    data = file.read(READ_BYTES)
    if data and data[-1:] != b"\n":
        data += file.readline(LINE_BYTES_MAX + 1)
    return data.removesuffix(b"\n").split(b"\n") if data else []


def cloud_blocks(file: IO[bytes], defaults: Defaults) -> Iterator[Block]:
    return blocks_of_rows(from_cloud_lines(file, defaults))


def _blocks_one_by_one(lines: list[bytes], number: int, defaults: Defaults) -> Iterator[Block]:
    rows: list[Incoming] = []
    for line in lines:
        number += 1
        try:
            rows += _plain_lines([line], defaults).rows()
        except NotPlain:
            if (row := _from_line(number, line, lambda members: event_of(members, defaults))) is not None:
                rows.append(row)
    if rows:
        yield block_of(rows)


def _plain_lines(lines: list[bytes], defaults: Defaults) -> Block:
    """A block of lines. Raises NotPlain if one is perhaps no event, or not an event of the same bytes."""
    whole = b"".join(lines)
    if ESCAPED_QUOTE in whole or max(map(len, lines)) > LINE_BYTES_MAX or not all(map(is_shallow, lines)):
        raise NotPlain
    try:
        rows = list(map(_decode_line, lines))
        if encode_plain_lines(rows).count(b'"') != whole.count(b'"'):
            raise NotPlain
        contexts, streams, types, ids, event_ids, times, timestamps, headers, *bodies, _, _, _, _, _ = zip(
            *map(astuple, rows), strict=True
        )
        return plain_block(
            defaults,
            (contexts, streams, types),
            _either(ids, event_ids),
            plain_stamps(_either(times, timestamps)),
            _plain_headers(headers),
            _plain_bodies(*bodies),
        )
    except (*NOT_PLAIN, BadEvent):
        raise NotPlain from None


def _either(ones: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
    """Of two names of a member, the first that is there and not empty."""
    return ones if not any(others) else [one or other for one, other in zip(ones, others, strict=True)]


def _plain_headers(headers: Sequence[Any]) -> Sequence[str]:
    kinds = set(map(type, headers))
    if kinds == {dict}:
        return encode_plain_lines(headers).decode()[:-1].split("\n")
    if dict not in kinds:
        return [text or "" for text in headers]
    return [encode_plain(value).decode() if type(value) is dict else value or "" for value in headers]


def _plain_bodies(values: Sequence[Any], texts: Sequence[Any], encoded: Sequence[Any]) -> Sequence[bytes]:
    if texts.count(UNSET) == encoded.count(UNSET) == len(values) and UNSET not in values:
        return encode_plain_lines(values)[:-1].split(b"\n")
    return list(map(_plain_body, values, texts, encoded))


def _plain_body(value: Any, text: Any, encoded: Any) -> bytes:
    given = [each for each in (value, text, encoded) if each is not UNSET]
    if len(given) > 1:
        raise NotPlain
    if value is not UNSET:
        return encode_plain(value)
    if text is not UNSET:
        return str(text).encode()
    return decode_base64("base64", encoded) if given else b""


def _from_lines(file: IO[bytes], convert: Callable[[dict[str, Any]], Incoming]) -> Iterator[Incoming]:
    for number, line in _numbered_lines(file):
        row = _from_line(number, line, convert)
        if row is not None:
            yield row


def _from_line(number: int, line: bytes, convert: Callable[[dict[str, Any]], Incoming]) -> Incoming | None:
    """The event of a line; None if there is nothing in it."""
    text = _decoded_line(number, line).rstrip("\r\n")
    if not text or text.isspace():
        return None
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
        return convert(members)
    except (BadEvent, NotACloudEvent) as error:
        member = error.member if isinstance(error, BadEvent) else error.attribute
        place = f"line {number}, column {column_of(text, member) + 1}"
        raise Flaw(place, f"{member!r} {error.reason}") from None


def _numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers and ends; of too long a line, more than it may have."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        yield number, line.removeprefix(BOM) if number == 1 else line


def _decoded_line(number: int, line: bytes) -> str:
    """Raises Flaw if a line is too long or not UTF-8."""
    if len(line) > LINE_BYTES_MAX:
        raise Flaw(f"line {number}, column 1", f"a line has more than {LINE_BYTES_MAX} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode()) + 1
        raise Flaw(f"line {number}, column {column}", "it is not UTF-8") from None


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
    times = text_of_stamp(event.stamp), text_of_recorded(event.recorded)
    try:
        return *place, *times, event.headers or "", TEXT, event.body.decode()
    except UnicodeDecodeError:
        return *place, *times, event.headers or "", BASE64, b64encode(event.body).decode()


def from_csv(file: IO[bytes], defaults: Defaults) -> Iterator[Incoming]:
    """Raises Flaw."""
    return (row for block in csv_blocks(file, defaults) for row in block.rows())


def csv_blocks(file: IO[bytes], defaults: Defaults) -> Iterator[Block]:
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
    for some in chunked(_with_flaw(rows), _size_of_row, ROWS_BYTES_MAX, ROWS_MAX):
        try:
            yield _plain_rows(names, some, defaults)
        except NotPlain:
            yield block_of([_csv_event(names, number, row, defaults) for number, row in some])


_NumberedRow = tuple[int, list[str] | Flaw]


def _with_flaw(rows: Iterator[tuple[int, list[str]]]) -> Iterator[_NumberedRow]:
    """Rows, and the flaw that ends them as one more: a row before it may have another, which has to come first."""
    try:
        yield from rows
    except Flaw as flaw:
        yield 0, flaw


def _size_of_row(row: _NumberedRow) -> int:
    return sum(map(len, row[1])) if isinstance(row[1], list) else 0


def _csv_event(names: list[str], number: int, row: list[str] | Flaw, defaults: Defaults) -> Incoming:
    if isinstance(row, Flaw):
        raise row
    if len(row) != len(names):
        place = f"line {number}, column {min(len(row), len(names)) + 1}"
        raise Flaw(place, f"there are {len(row)} columns, and {len(names)} in the header row")
    members = dict(zip(names, row, strict=True))
    try:
        return event_of(members, defaults, body=_csv_body(members))
    except BadEvent as error:
        at = names.index(error.member) + 1 if error.member in names else 1
        raise Flaw(f"line {number}, column {at}", f"{error.member!r} {error.reason}") from None


def _plain_rows(names: list[str], rows: Sequence[_NumberedRow], defaults: Defaults) -> Block:
    """A block of rows whose bodies are text. Raises NotPlain."""
    texts = [row for _, row in rows if isinstance(row, list) and len(row) == len(names)]
    if "body" not in names or len(texts) < len(rows):
        raise NotPlain
    missing = ("",) * len(rows)
    columns = dict(zip(names, zip(*texts, strict=True), strict=True))
    if not {"", TEXT}.issuperset(columns.get("encoding", missing)):
        raise NotPlain
    return plain_block(
        defaults,
        [columns.get(name, missing) for name in NAME_CHECKS],
        _either(columns.get("id", missing), columns.get("event_id", missing)),
        plain_stamps(_either(columns.get("time", missing), columns.get("timestamp", missing))),
        columns.get("headers", missing),
        list(map(str.encode, columns["body"])),
    )


def _read_rows(file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, and the lines that they begin in."""
    length = 0

    def lines() -> Iterator[str]:
        nonlocal length
        for at, raw in _numbered_lines(file):
            line = _decoded_line(at, raw)
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
