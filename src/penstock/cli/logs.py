"""`penstock log`: named logs of messages, which are JSON here and CBOR in the store."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.append import JsonLines, json_flaw
from penstock.cli.connection import connected
from penstock.cli.options import COUNT_MAX, AsJson, Data, Url, argument, need_name, option
from penstock.cli.output import (
    agreed,
    counted,
    fail,
    json_text,
    print_document,
    print_fields,
    print_line,
    print_result,
    print_rows,
    refuse,
)
from penstock.errors import LogNotFound
from penstock.model.times import text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.model import LogSummary

LOG_CONTEXT: Final = "remits"
"""The context whose streams are the logs."""
COUNT: Final = 10

app = typer.Typer(no_args_is_help=True)

LogName = Annotated[str, argument("NAME", "the log's name")]


@app.command("add")
def add_command(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Create a log, unless it exists."""
    need_name(name, "a log")
    with connected(url, data, create=True) as client:
        exists = name in client.logs()
        client.log(name).create()
    line = f"log {name} {'exists already' if exists else 'created'}"
    print_result({"log": name, "made": not exists}, line, as_json=as_json)


@app.command("list")
def list_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all logs, and what is in them."""
    with connected(url, data) as client:
        found = [client.log(name).show() for name in client.logs()]
    rows = [(log.log, log.messages, log.size_bytes, len(log.iterators)) for log in found]
    columns = ("log", "#messages", "#bytes", "#iterators")
    print_rows(map(_document, found), columns, rows, empty="no logs", as_json=as_json)


@app.command("show")
def show_command(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show a log: when it was created, its messages, its iterators."""
    with connected(url, data) as client:
        found = client.log(name).show()
    if as_json:
        print_document(_document(found))
        return
    messages, iterators = f"{found.messages:,}, {found.size_bytes:,} bytes", ", ".join(found.iterators) or "none"
    created = text_of_ticks(found.created)
    print_fields({"log": found.log, "created": created, "messages": messages, "iterators": iterators})


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
    message: Annotated[str | None, argument("JSON", "the message; without it, JSON lines on standard input")] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Append a message to a log, or many: JSON lines on standard input.

    Lines that are available together are appended together. A line that is not JSON ends the command; lines before it
    are appended.
    """
    from penstock.event_json import parse_json  # noqa: PLC0415 - it takes a moment to import

    def append(values: list[Any]) -> list[Any]:
        try:
            client.log(name).append(values)
        except LogNotFound as error:
            fail(f"{error}; create it with: penstock log add {name}")
        return []

    value, count = None, 1
    if message is not None:
        try:
            value = parse_json(message)
        except (ValueError, RecursionError) as error:
            refuse(f"the message is not JSON: {json_flaw(error)}")
    with connected(url, data) as client:
        if message is not None:
            append([value])
        else:
            count = JsonLines(lambda line: parse_json(line.decode()), append).append()
    print_result({"log": name, "messages": count}, f"appended {counted(count, 'message')}", as_json=as_json)


@app.command("next", hidden=True)
@app.command("read")
def read_command(
    name: LogName,
    first: Annotated[int | None, option("--from", "from this message on; 0 is the first", min=0)] = None,
    count: Annotated[int, option("--count -n", "at most this many", "N", min=1, max=COUNT_MAX)] = COUNT,
    everything: Annotated[bool, option("--all", "all messages")] = False,
    last: Annotated[bool, option("--last", "the last messages, not the first")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print messages of a log, one JSON value per line."""
    if last and (first is not None or everything):
        refuse("--last can be combined with --count only")
    with connected(url, data) as client:
        for _, body in messages(client, name, first or 0, None if everything else count, last=last):
            print_line(as_json_value(body))


def messages(
    client: "Client", name: str, first: int, count: int | None, *, last: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Messages of a log with their numbers, from number `first` or the last ones. Raises LogNotFound."""
    total = client.log(name).show().messages
    newest = next(iter(client.read_stream(LOG_CONTEXT, name, backward=True, limit=1)), None)
    # A log that was deleted and created again continues the sequence of the deleted messages.
    base = (newest.sequence if newest is not None else 0) - total
    if last:
        first = max(0, total - (count or total))
    if first < total:
        for event in client.read_stream(LOG_CONTEXT, name, base + first + 1, limit=count):
            yield event.sequence - base - 1, event.body


def as_json_value(message: bytes) -> str:
    """A message as JSON in one line; docs/spark.md says how values that JSON lacks are written."""
    # Arrow takes long to import.
    from penstock.history.columns import json_of  # noqa: PLC0415

    return json_text(json.loads(json_of(message)))


@app.command("delete")
def delete_command(
    name: LogName,
    yes: Annotated[bool, option("--yes", "do not ask")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a log with its messages and its iterators."""
    with connected(url, data) as client:
        found = client.log(name).show()
        what = f"{counted(found.messages, 'message')} and {counted(len(found.iterators), 'iterator')}"
        if not yes and not sys.stdin.isatty():
            refuse("a deletion cannot be undone: use --yes to delete without a question")
        if not yes and not agreed(f"Delete log {name} with {what}?"):
            fail("nothing was deleted")
        client.log(name).delete()
    document = {"log": name, "messages": found.messages, "iterators": found.iterators}
    print_result(document, f"deleted log {name}, with {what}", as_json=as_json)
