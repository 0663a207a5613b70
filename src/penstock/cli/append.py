"""`penstock append`: one event from arguments, or many as JSON lines from standard input."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NoReturn, TypeVar
from uuid import UUID

import typer

from penstock.cli.connection import connected, error_line
from penstock.cli.options import AsJson, Data, Url, argument, moment, need_name, option
from penstock.cli.output import counted, fail, json_text, print_line, print_lines, refuse, stop_command
from penstock.cli.signals import INTERRUPTED
from penstock.errors import PenstockError, Retry
from penstock.model import ANY, NEW, Appended
from penstock.model.events import NewEvent, random_id, with_due
from penstock.model.times import now_ticks, stamp_of, ticks_of_datetime, ticks_of_text

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.cloudevents import Incoming

STDIN: Final = "-"
NEW_STREAM: Final = ("new", "none")
BOM: Final = b"\xef\xbb\xbf"
TRANSACTION_LINES_MAX: Final = 500
TRANSACTION_BYTES_MAX: Final = 4 << 20
"""Bytes of lines in one transaction; a longer line has its own transaction."""
READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 64 << 20
"""The longest line, or body, on standard input: far more than the default limits of a server."""


def append_command(
    context: Annotated[str, argument("CONTEXT", "the context, or - for JSON lines on standard input")],
    stream: Annotated[str | None, argument("STREAM", "the stream, or - for JSON lines of this context")] = None,
    type_: Annotated[str | None, argument("TYPE", "the event's type, or - for JSON lines of this stream")] = None,
    body: Annotated[str | None, argument("BODY", "JSON or other text, or - to read it from standard input")] = None,
    headers: Annotated[
        str | None, option("--headers", "the event's headers: a JSON object, or other text", "JSON")
    ] = None,
    number: Annotated[
        UUID | None,
        option(
            "--id",
            "the event's id (default: random). A second event may have the same id; --expected prevents that",
            "UUID",
        ),
    ] = None,
    time: Annotated[
        str | None, option("--time", "the event's time, or how long ago it was (default: now)", "TIME")
    ] = None,
    due: Annotated[
        str | None,
        option("--due", "queues hand the event out at this time, or after so long (10m), and not before", "TIME"),
    ] = None,
    expected: Annotated[
        str,
        option(
            "--expected",
            "the sequence that the event must get, so that running the same command twice appends one event; "
            "new (or none): the stream must not exist; any: no check",
            "N|new|any",
        ),
    ] = "any",
    text: Annotated[
        bool, option("--text", "accept a BODY, or headers, that look like JSON but are not valid JSON")
    ] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Append an event to a stream, or many: JSON lines on standard input.

    When the command ends with exit code 0, the events are on disk. JSON lines are what `penstock read --json` prints:
    objects with stream and type, and optionally context, body (or text, or base64), headers, id and timestamp. If the
    command names a context or stream, all lines belong to it, and a line that names another is an error. Lines are
    written in order, in transactions of up to 500 lines: all of these or none. The first line that is not an event, or
    that the server refuses, ends the command with its number: lines before it are written, no line after it is.
    """
    given = [context, stream, type_]
    for name, what in zip(given, ("a context", "a stream", "a type"), strict=True):
        need_name(name or "", what)
    if STDIN in given:
        end = given.index(STDIN)
        if (
            any(value is not None for value in (*given[end + 1 :], body, headers, number, time, due))
            or expected != "any"
        ):
            refuse("- for JSON lines must come last, and each line has the rest of its event")
        with connected(url, data, create=True) as client:
            place = [*given[:end], None, None][:2]
            transact = partial(_append_together, client, as_json)
            events = JsonLines(lambda line: event_of(line, *place), transact).append()
        if not as_json:
            print_line(f"appended {counted(events, 'event')}")
        return
    if stream is None or type_ is None:
        refuse("an event needs a CONTEXT, a STREAM and a TYPE; - in their place reads JSON lines from standard input")
    given_headers = _text("--headers", headers or "", text) or None
    if due is not None:
        given_headers = with_due(given_headers, moment(due, later=True))
    event = NewEvent(
        random_id() if number is None else number.bytes,
        stamp_of(now_ticks() if time is None else _ticks(time)),
        type_,
        given_headers,
        _body(body, text),
    )
    version = _expected_version(expected)
    with connected(url, data, create=True) as client:
        appended = client.append(context, stream, [event], expected=version)
    if as_json:
        print_lines(_documents(context, stream, [event], appended))
    else:
        print_line(f"position {appended.position}, event {appended.sequence} of {context}/{stream}")


def _body(given: str | None, as_text: bool) -> bytes:
    if given != STDIN:
        return os.fsencode(_text("BODY", given or "", as_text))
    found = sys.stdin.buffer.read(LINE_BYTES_MAX + 1)
    if len(found) > LINE_BYTES_MAX:
        fail(f"the body has more than {LINE_BYTES_MAX >> 20} MiB; nothing was written")
    return found


def _text(name: str, given: str, as_text: bool) -> str:
    """The text as given; text that begins like JSON but is not JSON is refused, because it is most likely a typo."""
    if not as_text and given.lstrip()[:1] in ("{", "["):
        from penstock.event_json import parse_json  # noqa: PLC0415

        try:
            parse_json(given)
        except (ValueError, RecursionError) as error:
            refuse(f"{name} is not JSON: {json_flaw(error)}; use --text to keep it as text")
    return given


def _ticks(time: str) -> int:
    try:
        # To 100 ns, which is finer than Python's datetime.
        return ticks_of_text(time)
    except ValueError:
        pass
    try:
        return ticks_of_datetime(moment(time))
    except typer.BadParameter as error:
        refuse(f"--time {error.message}")


def _expected_version(text: str) -> int:
    words = {"any": ANY, "new": NEW, "none": NEW}
    if text in words:
        return words[text]
    if not text.isdecimal() or int(text) < 1:
        refuse(f"--expected {text!r} is not a version: use new, any, or the sequence that the event must get, from 1")
    return int(text)


def _documents(context: str, stream: str, events: list[NewEvent], appended: Appended) -> Iterator[dict[str, Any]]:
    for offset, event in enumerate(events):
        place = {"position": appended.position + offset, "sequence": appended.sequence + offset}
        yield {**place, "context": context, "stream": stream, "id": str(UUID(bytes=event.id))}


Row = TypeVar("Row")


class JsonLines(Generic[Row]):
    """Appends the JSON lines on standard input, and knows how many are written.

    `parse` may raise ValueError. `transact` writes rows in one transaction, and returns what to print about them.
    """

    def __init__(self, parse: Callable[[bytes], Row], transact: Callable[[list[Row]], Iterable[Any]]) -> None:
        self._parse = parse
        self._transact = transact
        self._rows = 0
        self._written = 0
        self._in_flight: int | None = None
        """The last line of the transaction in flight."""

    def append(self) -> int:
        """Append all lines, or those before the first that is wrong, which ends the command. Returns their number."""
        try:
            for lines in numbered_lines(sys.stdin.buffer.fileno()):
                found: list[tuple[int, Row]] = []
                for number, line in lines:
                    try:
                        if line.strip():
                            found.append((number, self._parse(line)))
                    except (ValueError, RecursionError) as error:
                        self._write(found, number - 1)
                        self._end(f"line {number}: {json_flaw(error)}")
                self._write(found, lines[-1][0])
        except KeyboardInterrupt:
            last = self._in_flight
            doubt = "" if last is None else f", and perhaps those up to line {last}, all or none of them"
            stop_command(f"interrupted: {counted(self._written, 'line')} written{doubt}", INTERRUPTED)
        return self._rows

    def _write(self, lines: list[tuple[int, Row]], last: int) -> None:
        """Write rows in one transaction: everything up to line `last`."""
        try:
            if lines:
                self._in_flight = last
                documents = self._transact([row for _, row in lines])
                self._written, self._in_flight = last, None
                self._rows += len(lines)
                print_lines(documents)
                sys.stdout.flush()
        except PenstockError as error:
            first, final = lines[0][0], lines[-1][0]
            if error.retry is not Retry.NEVER or first == final:
                where = f"line {first}" if first == final else f"lines {first} to {final}"
                self._end(f"{where}: {error_line(error)}", is_known=error.retry is not Retry.UNKNOWN)
            # Nothing was written. One line is to blame: write them one by one, and name it.
            for number, row in lines:
                self._write([(number, row)], number)
        self._written = last

    def _end(self, reason: str, *, is_known: bool = True) -> NoReturn:
        before = "nothing was written" if is_known else "nothing was written before"
        if self._written:
            are = "is" if self._written == 1 else "are"
            before = f"{counted(self._written, 'line')} before it {are} written{', no more' if is_known else ''}"
        fail(f"{reason}; {before}")


def _append_together(client: "Client", as_json: bool, rows: list["Incoming"]) -> list[Any]:
    neighbours = [(*place, [row.event for row in group]) for place, group in groupby(rows, lambda row: row[:2])]
    with client.transaction() as transaction:
        for context, stream, events in neighbours:
            transaction.append(context, stream, events)
    if not as_json:
        return []
    pairs = zip(neighbours, transaction.result, strict=True)
    return [
        document
        for (context, stream, events), appended in pairs
        for document in _documents(context, stream, events, appended)
    ]


def event_of(line: bytes, context: str | None = None, stream: str | None = None) -> "Incoming":
    """The event of a JSON line. If it names a context or stream, it must be the given one. Raises ValueError."""
    # It takes a moment to import, and help does not need it.
    from penstock import event_json  # noqa: PLC0415

    document = event_json.parse_json(line.decode())
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    for member, given in (("context", context), ("stream", stream), ("type", None)):
        named = document.get(member, given)
        if given is not None and named != given:
            raise ValueError(f"{member} is {json_text(named)}, but the command says {json_text(given)}")
        if named in (None, ""):
            raise ValueError(f"{member} is missing")
    return event_json.event_of(document, event_json.Defaults(context, stream))


def json_flaw(error: Exception) -> str:
    """The mistake in a JSON text, and its column if that is known."""
    if isinstance(error, JSONDecodeError):
        return f"column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    if isinstance(error, UnicodeDecodeError):
        return f"column {error.start + 1}: it is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "it has half of a surrogate pair"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def numbered_lines(source: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file descriptor with their numbers: all that are available, within the limits."""
    number = 1
    for whole in _available_lines(source):
        lines: list[tuple[int, bytes]] = []
        size = 0
        for line in whole:
            lines.append((number, line.removeprefix(BOM) if number == 1 else line))
            number, size = number + 1, size + len(line)
            if len(lines) >= TRANSACTION_LINES_MAX or size >= TRANSACTION_BYTES_MAX:
                yield lines
                lines, size = [], 0
        if lines:
            yield lines


def _available_lines(source: int) -> Iterator[list[bytes]]:
    """Whole lines, without waiting for more while there are some. The last line may lack its end."""
    begun: list[bytes] = []
    while chunk := os.read(source, READ_BYTES):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = [others[-1]]
        elif sum(map(len, begun)) > LINE_BYTES_MAX:
            fail(f"a line has more than {LINE_BYTES_MAX >> 20} MiB")
    if any(begun):
        yield [b"".join(begun)]
