"""`penstock log`: named logs of messages, which are JSON here and CBOR in the store."""

import json
import sys
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.append import numbered_lines
from penstock.cli.connecting import Data, Url, connected
from penstock.cli.output import (
    AsJson,
    counted,
    fail,
    iso,
    json_text,
    print_document,
    print_line,
    print_lines,
    print_table,
    refuse,
    shown,
)
from penstock.errors import LogNotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client import Client
    from penstock.model import LogSummary

__all__ = ["LogName", "app", "as_json_value", "messages", "need_name"]

LOG_CONTEXT: Final = "remits"
"""The context whose streams are the logs."""
COUNT: Final = 10
"""Messages that are shown unless somebody says how many."""

app = typer.Typer(help="Logs of messages.", no_args_is_help=True)

LogName = Annotated[str, typer.Argument(metavar="NAME", help="the log's name", show_default=False)]
Count = Annotated[int, typer.Option("--count", "-n", help="at most so many", metavar="N", min=1)]


def need_name(name: str, what: str) -> str:
    """A name for something new. Control characters in it are a slip of the shell's, and nobody could type it again."""
    if not name.isprintable():
        refuse(f"the name of {what} has characters that cannot be printed: {shown(name)}")
    return name


@app.command("add")
def add_command(name: LogName, url: Url = None, data: Data = None) -> None:
    """Make a log, unless it is there."""
    need_name(name, "a log")
    with connected(url, data, create=True) as client:
        is_there = name in client.logs()
        client.log(name).create()
    print_line(shown(f"log {name} {'was there already' if is_there else 'is made'}"))


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
        f"created    {iso(found.created)}",
        f"messages   {found.messages:,}, {found.size_bytes:,} bytes",
        f"iterators  {iterators}",
    ):
        print_line(shown(line))


def _document(log: "LogSummary") -> dict[str, Any]:
    return {
        "log": log.log,
        "created": iso(log.created),
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
) -> None:
    """Append a message to a log, or many: JSON lines on standard input.

    Lines that are there together are appended together. A line that is not JSON ends it; those before it are appended.
    """
    given = None if message is None else [_parsed(message)]
    with connected(url, data) as client:
        count = _append(client, name, given) if given is not None else _append_lines(client, name)
    print_line(f"appended {counted(count, 'message')}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except JSONDecodeError as error:
        refuse(f"the message is not JSON: {_where(error)}")
    except (ValueError, RecursionError) as error:
        refuse(f"the message is not JSON: {error}")


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _where(error: JSONDecodeError) -> str:
    return f"column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"


def _append(client: "Client", name: str, values: list[Any]) -> int:
    try:
        client.log(name).append(values)
    except LogNotFound as error:
        fail(f"{error}; make it with: penstock log add {shown(name)}")
    return len(values)


def _append_lines(client: "Client", name: str) -> int:
    """Append all lines, or those before the first that is not JSON."""
    done = 0
    for lines in numbered_lines(sys.stdin.buffer.fileno()):
        values: list[Any] = []
        for number, line in lines:
            try:
                if line.strip():
                    values.append(json.loads(line, parse_constant=_refused))
            except (ValueError, RecursionError) as error:
                done += _append(client, name, values)
                reason = _where(error) if isinstance(error, JSONDecodeError) else f"column 1: {error}"
                fail(f"line {number}, {reason}; {counted(done, 'message')} before it appended, and no more")
        try:
            done += _append(client, name, values)
        except PenstockError as error:
            fail(f"lines {lines[0][0]} to {lines[-1][0]}: {error}; {counted(done, 'message')} before them appended")
    return done


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
    from penstock.history.texts import json_of  # noqa: PLC0415

    return json_text(json.loads(json_of(message)))


@app.command("delete")
def delete_command(
    name: LogName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete a log with its messages and its iterators."""
    with connected(url, data) as client:
        found = client.log(name).show()
        what = f"{counted(found.messages, 'message')} and {counted(len(found.iterators), 'iterator')}"
        if not yes:
            _ask(f"Delete log {shown(name)} with {what}?")
        client.log(name).delete()
    print_line(shown(f"log {name} is deleted, with {what}"))


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        refuse("this cannot be undone: say --yes to delete without being asked")
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("nothing was deleted")
