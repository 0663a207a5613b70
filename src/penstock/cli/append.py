"""`penstock append`: one event from arguments, or many as JSON lines from standard input.

Lines are written in the order they come in, together with what else was there to read: up to 500 lines at once, in one
transaction, all or nothing. A line that is no event, or that the server refuses, ends it; those before it are written,
and nothing after it is.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn
from uuid import UUID

import typer

from penstock.cli.connecting import Data, Url, connected, explained
from penstock.cli.events import Placed, event_of
from penstock.cli.options import moment, need_name
from penstock.cli.output import INTERRUPTED, AsJson, complain, counted, fail, json_text, print_line, refuse
from penstock.errors import PenstockError, Retry, VersionConflict
from penstock.event_json import parse_json
from penstock.model import ANY, NEW, Appended
from penstock.model.events import NewEvent, random_id
from penstock.model.times import now_ticks, stamp_of, ticks_of_datetime, ticks_of_text

if TYPE_CHECKING:
    from penstock.client import Client

__all__ = ["append_command", "numbered_lines"]

STDIN: Final = "-"
NEW_STREAM: Final = ("new", "none")
BOM: Final = b"\xef\xbb\xbf"
"""What some editors put before the first line of a text."""
TRANSACTION_LINES_MAX: Final = 500
TRANSACTION_BYTES_MAX: Final = 4 << 20
"""Bytes of lines that are written together; a longer line is written by itself."""
READ_BYTES: Final = 1 << 18
LINE_BYTES_MAX: Final = 64 << 20
"""A line, or a body, on standard input: more than a server takes unless its limits were raised by far."""


def append_command(
    context: Annotated[
        str, typer.Argument(metavar="CONTEXT", help="the context, or - for JSON lines on standard input")
    ],
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="the stream, or - for JSON lines of this context")
    ] = None,
    type_: Annotated[
        str | None, typer.Argument(metavar="TYPE", help="the event's type, or - for JSON lines of this stream")
    ] = None,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="JSON or other text, or - to read it from standard input")
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="the event's headers: a JSON object, or other text", metavar="JSON")
    ] = None,
    number: Annotated[
        UUID | None,
        typer.Option(
            "--id", help="the event's id; otherwise a random one. Ids are not compared: see --expected", metavar="UUID"
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="the event's time, or how long ago it was; otherwise now", metavar="TIME"),
    ] = None,
    expected: Annotated[
        str,
        typer.Option(
            "--expected",
            help="the sequence that the event must get, so that the same command cannot append it twice; "
            "new (or none): the stream must not exist; any: do not look",
            metavar="N|new|any",
        ),
    ] = "any",
    text: Annotated[
        bool, typer.Option("--text", help="keep a BODY, or headers, that look like JSON and are not as text")
    ] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Append an event to a stream, or many: JSON lines on standard input.

    An event is on disk when the command ends with exit code 0. JSON lines are what `penstock read --json` prints:
    objects with stream, type, and if you like context, body (or text, or base64), headers, id and timestamp. A context
    or stream that the command names is that of all lines, and a line that names another is an error. They are written
    in their order, up to 500 lines at a time in one transaction: all of these or none. At a line that is no
    event, or that the server refuses, it ends: the line is named, those before it are written, nothing after it is.
    """
    given = [context, stream, type_]
    for name, what in zip(given, ("a context", "a stream", "a type"), strict=True):
        need_name(name or "", what)
    if STDIN in given:
        end = given.index(STDIN)
        if any(value is not None for value in (*given[end + 1 :], body, headers, number, time)) or expected != "any":
            refuse("- for JSON lines comes last, and what belongs to one event is in its line")
        with connected(url, data, create=True) as client:
            Lines(client, *[*given[:end], None, None][:2], as_json=as_json).append(sys.stdin.buffer)
        return
    if stream is None or type_ is None:
        refuse("an event has a CONTEXT, a STREAM and a TYPE; - in their place reads JSON lines from standard input")
    event = NewEvent(
        random_id() if number is None else number.bytes,
        stamp_of(_ticks(time)),
        type_,
        _text("--headers", headers or "", text) or None,
        _body(body, text),
    )
    wanted = expected_version(expected)
    with connected(url, data, create=True) as client:
        try:
            appended = client.append(context, stream, [event], expected=wanted)
        except VersionConflict as error:
            if expected not in NEW_STREAM:
                raise
            fail(
                f"stream {stream} in context {context} must be new, but has {counted(error.actual, 'event')}; "
                "nothing was written"
            )
    report([Placed(context, stream, event)], appended, as_json)


def _body(given: str | None, as_text: bool) -> bytes:
    """The body as it was given."""
    if given != STDIN:
        return os.fsencode(_text("BODY", given or "", as_text))
    found = sys.stdin.buffer.read(LINE_BYTES_MAX + 1)
    if len(found) > LINE_BYTES_MAX:
        fail(f"the body has more than {LINE_BYTES_MAX >> 20} MiB; nothing was written")
    return found


def _text(name: str, given: str, as_text: bool) -> str:
    """A text as it was given. What begins like JSON and is not is a slip more often than it is meant."""
    if not as_text and given.lstrip()[:1] in ("{", "["):
        try:
            parse_json(given)
        except JSONDecodeError as error:
            refuse(f"{name} is not JSON: {where(error)}; say --text to keep it as text")
        except (ValueError, RecursionError) as error:
            refuse(f"{name} is not JSON: {error}; say --text to keep it as text")
    return given


def _ticks(time: str | None) -> int:
    if time is None:
        return now_ticks()
    try:
        # To 100 ns, which is finer than Python's own times are.
        return ticks_of_text(time)
    except ValueError:
        pass
    try:
        return ticks_of_datetime(moment(time))
    except typer.BadParameter as error:
        refuse(f"--time {error.message}")


def expected_version(text: str) -> int:
    """What `--expected` means."""
    words = {"any": ANY, **dict.fromkeys(NEW_STREAM, NEW)}
    if text in words:
        return words[text]
    if not text.isdecimal() or int(text) < 1:
        refuse(f"--expected {text!r} is no version: say new, any, or the sequence that the event must get, from 1 on")
    return int(text)


def where(error: JSONDecodeError) -> str:
    """What is wrong with a JSON text, and in which column."""
    return f"column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"


def report(placed: list[Placed], appended: Appended, as_json: bool) -> None:
    """Say where events have got to."""
    for offset, (context, stream, event) in enumerate(placed):
        position, sequence = appended.position + offset, appended.sequence + offset
        if as_json:
            number = str(UUID(bytes=event.id))
            found = {"position": position, "sequence": sequence, "context": context, "stream": stream, "id": number}
            print_line(json_text(found))
        else:
            print_line(f"position {position}, event {sequence} of {context}/{stream}")


# --- JSON lines -----------------------------------------------------------------------------------------------


class Lines:
    """Appends JSON lines, and knows how far it is."""

    def __init__(self, client: "Client", context: str | None, stream: str | None, *, as_json: bool) -> None:
        self._client = client
        self._place = context, stream
        self._as_json = as_json
        self._written = 0
        self._events = 0
        self._sent: int | None = None
        """The last line of those that are on their way."""

    def append(self, source: Any) -> None:
        """Append all lines, or those before the first that is no event."""
        try:
            self._append(source)
        except KeyboardInterrupt:
            raise typer.Exit(complain(self._interrupted(), INTERRUPTED)) from None
        if not self._as_json:
            print_line(f"appended {counted(self._events, 'event')}")

    def _interrupted(self) -> str:
        """How far it is, for somebody who goes on from there."""
        doubt = "" if self._sent is None else f", and perhaps those up to line {self._sent}, all or none of them"
        return f"interrupted: {counted(self._written, 'line')} written{doubt}"

    def _append(self, source: Any) -> None:
        for lines in numbered_lines(source.fileno()):
            found: list[Line] = []
            for number, line in lines:
                try:
                    if line.strip():
                        found.append(Line(number, event_of(parse_json(line.decode()), *self._place)))
                except (ValueError, RecursionError) as error:
                    self._write(found, number - 1)
                    self._end(f"line {number}: {_reason(error)}")
            self._write(found, lines[-1][0])

    def _write(self, lines: list["Line"], last: int) -> None:
        """Write events in one transaction: all that were read up to a line."""
        if lines:
            try:
                self._transact([line.placed for line in lines], last)
            except PenstockError as error:
                self._mend(lines, error)
        self._written = last

    def _transact(self, placed: list[Placed], last: int) -> None:
        groups, self._sent = list(neighbours(placed)), last
        with self._client.transaction() as transaction:
            for group in groups:
                transaction.append(group[0].context, group[0].stream, [event for _, _, event in group])
        self._written, self._sent = last, None
        self._events += len(placed)
        if self._as_json:
            for group, appended in zip(groups, transaction.result, strict=True):
                report(group, appended, as_json=True)
            sys.stdout.flush()

    def _mend(self, lines: list["Line"], error: PenstockError) -> None:
        """Nothing of these was written, or nobody knows. One of them may be to blame, and is named."""
        first, last = lines[0].number, lines[-1].number
        if error.retry is not Retry.NEVER or first == last:
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            self._end(f"{where}: {explained(error)}", is_known=error.retry is not Retry.UNKNOWN)
        for line in lines:
            self._write([line], line.number)

    def _end(self, reason: str, *, is_known: bool = True) -> NoReturn:
        """End with what is wrong, and how much is written."""
        before = "nothing was written" if is_known else "nothing was written before"
        if self._written:
            are = "is" if self._written == 1 else "are"
            before = f"{counted(self._written, 'line')} before it {are} written{', no more' if is_known else ''}"
        fail(f"{reason}; {before}")


class Line(NamedTuple):
    """A line that is an event."""

    number: int
    placed: Placed


def _reason(error: Exception) -> str:
    if isinstance(error, JSONDecodeError):
        return where(error)
    if isinstance(error, UnicodeDecodeError):
        return f"column {error.start + 1}: it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def neighbours(placed: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Events that follow one another in one stream, together."""
    group: list[Placed] = []
    for one in placed:
        if group and group[-1][:2] != one[:2]:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def numbered_lines(source: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file descriptor with their numbers: as many together as are there, within the limits."""
    number = 1
    for whole in available_lines(source):
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


def available_lines(source: int) -> Iterator[list[bytes]]:
    """Whole lines as they come: nobody waits for more while there are some. The last one may lack its end."""
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
