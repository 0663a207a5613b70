"""`penstock log`: named logs of messages, which are JSON here and CBOR in the store."""

import json
import sys
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.append import numbered_lines
from penstock.cli.connecting import Data, Url, connected
from penstock.cli.options import COUNT_MAX, need_name
from penstock.cli.output import (
    INTERRUPTED,
    AsJson,
    agreed,
    complain,
    counted,
    fail,
    json_text,
    print_document,
    print_line,
    print_lines,
    print_table,
    refuse,
)
from penstock.errors import LogNotFound, PenstockError
from penstock.event_json import parse_json
from penstock.model.times import text_of_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client import Client
    from penstock.model import LogSummary

__all__ = ["LogName", "app", "as_json_value", "messages"]

LOG_CONTEXT: Final = "remits"
"""The context whose streams are the logs."""
COUNT: Final = 10
"""Messages that are shown unless somebody says how many."""

app = typer.Typer(help="Logs of messages.", no_args_is_help=True)

LogName = Annotated[str, typer.Argument(metavar="NAME", help="the log's name", show_default=False)]
Count = Annotated[int, typer.Option("--count", "-n", help="at most so many", metavar="N", min=1, max=COUNT_MAX)]


@app.command("add")
def add_command(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Make a log, unless it is there."""
    need_name(name, "a log")
    with connected(url, data, create=True) as client:
        is_there = name in client.logs()
        client.log(name).create()
    if as_json:
        print_document({"log": name, "made": not is_there})
    else:
        print_line(f"log {name} {'was there already' if is_there else 'is made'}")


@app.command("list")
def list_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all logs, and what is in them."""
    with connected(url, data) as client:
        found = [client.log(name).show() for name in client.logs()]
    if as_json:
        print_lines(map(_document, found))
    else:
        rows = [(log.log, log.messages, log.size_bytes, len(log.iterators)) for log in found]
        print_table(("log", "#messages", "#bytes", "#iterators"), rows, empty="no logs")


@app.command("show")
def show_command(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show what is known of a log."""
    with connected(url, data) as client:
        found = client.log(name).show()
    if as_json:
        print_document(_document(found))
        return
    iterators = ", ".join(found.iterators) or "none"
    for line in (
        f"log        {found.log}",
        f"created    {text_of_ticks(found.created)}",
        f"messages   {found.messages:,}, {found.size_bytes:,} bytes",
        f"iterators  {iterators}",
    ):
        print_line(line)


def _document(log: "LogSummary") -> dict[str, Any]:
    return {
        "log": log.log,
        "created": text_of_ticks(log.created),
        "messages": log.messages,
        "bytes": log.size_bytes,
        "iterators": log.iterators,
    }


@app.command("append")
def append_command(
    name: LogName,
    message: Annotated[
        str | None, typer.Argument(metavar="JSON", help="the message; without it, JSON lines on standard input")
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Append a message to a log, or many: JSON lines on standard input.

    Lines that are there together are appended together. A line that is not JSON ends it; those before it are appended.
    """
    given = None if message is None else [_parsed(message)]
    with connected(url, data) as client:
        count = Lines(client, name).append(sys.stdin.buffer.fileno()) if given is None else _append(client, name, given)
    if as_json:
        print_document({"log": name, "messages": count})
    else:
        print_line(f"appended {counted(count, 'message')}")


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except JSONDecodeError as error:
        refuse(f"the message is not JSON: {_where(error)}")
    except (ValueError, RecursionError) as error:
        refuse(f"the message is not JSON: {error}")


def _where(error: JSONDecodeError) -> str:
    return f"column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"


def _append(client: "Client", name: str, values: list[Any]) -> int:
    try:
        client.log(name).append(values)
    except LogNotFound as error:
        fail(f"{error}; make it with: penstock log add {name}")
    return len(values)


def _reason(error: Exception) -> str:
    if isinstance(error, JSONDecodeError):
        return _where(error)
    if isinstance(error, UnicodeDecodeError):
        return f"column {error.start + 1}: it is not UTF-8"
    return f"column 1: {error}"


class Lines:
    """Appends JSON lines, those that are there together in one go, and knows how far it is."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client = client
        self._name = name
        self._done = 0
        self._sent = 0
        """How many messages are on their way."""

    def append(self, source: int) -> int:
        """Append all lines, or those before the first that is not JSON; how many messages they were."""
        try:
            for lines in numbered_lines(source):
                self._together(lines)
        except KeyboardInterrupt:
            doubt = f", and perhaps {self._sent:,} more" if self._sent else ""
            message = f"interrupted: {counted(self._done, 'message')} appended{doubt}"
            raise typer.Exit(complain(message, INTERRUPTED)) from None
        return self._done

    def _together(self, lines: list[tuple[int, bytes]]) -> None:
        values: list[Any] = []
        for number, line in lines:
            try:
                if line.strip():
                    values.append(parse_json(line.decode()))
            except (ValueError, RecursionError) as error:
                self._send(values)
                before = f"{counted(self._done, 'message')} before it appended, and no more"
                fail(f"line {number}, {_reason(error)}; {before}")
        try:
            self._send(values)
        except PenstockError as error:
            before = f"{counted(self._done, 'message')} before them appended"
            fail(f"lines {lines[0][0]} to {lines[-1][0]}: {error}; {before}")

    def _send(self, values: list[Any]) -> None:
        self._sent = len(values)
        self._done += _append(self._client, self._name, values)
        self._sent = 0


@app.command("read")
def read_command(
    name: LogName,
    first: Annotated[int | None, typer.Option("--from", help="from this message on; 0 is the first", min=0)] = None,
    count: Count = COUNT,
    everything: Annotated[bool, typer.Option("--all", help="all messages, however many")] = False,
    last: Annotated[bool, typer.Option("--last", help="the last messages, not the first")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print messages of a log, one JSON value per line."""
    if last and (first is not None or everything):
        refuse("--last goes with --count only")
    with connected(url, data) as client:
        for _, body in messages(client, name, first or 0, None if everything else count, last=last):
            print_line(as_json_value(body))


app.command("next", hidden=True)(read_command)


def messages(
    client: "Client", name: str, first: int, count: int | None, *, last: bool = False
) -> "Iterator[tuple[int, bytes]]":
    """Messages of a log and their numbers, from one on or the last of them. Raises LogNotFound."""
    total = client.log(name).show().messages
    newest = next(iter(client.read_stream(LOG_CONTEXT, name, backward=True, limit=1)), None)
    # A log that was deleted and made again goes on behind the messages that it had.
    base = (newest.sequence if newest is not None else 0) - total
    if last:
        first = max(0, total - (count or total))
    if first < total:
        for event in client.read_stream(LOG_CONTEXT, name, base + first + 1, limit=count):
            yield event.sequence - base - 1, event.body


def as_json_value(message: bytes) -> str:
    """A message as JSON in one line; docs/spark.md says what becomes of what JSON does not have."""
    # It brings Arrow along, which takes long to import.
    from penstock.history.columns import json_of  # noqa: PLC0415

    return json_text(json.loads(json_of(message)))


@app.command("delete")
def delete_command(
    name: LogName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a log with its messages and its iterators."""
    with connected(url, data) as client:
        found = client.log(name).show()
        what = f"{counted(found.messages, 'message')} and {counted(len(found.iterators), 'iterator')}"
        if not yes:
            _ask(f"Delete log {name} with {what}?")
        client.log(name).delete()
    if as_json:
        print_document({"log": name, "messages": found.messages, "iterators": found.iterators})
    else:
        print_line(f"log {name} is deleted, with {what}")


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        refuse("this cannot be undone: say --yes to delete without being asked")
    if not agreed(question):
        fail("nothing was deleted")
