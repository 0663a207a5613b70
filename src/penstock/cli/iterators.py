"""`penstock iterator`: functions over logs, made, read, deleted, and tried before they are made."""

import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from penstock.cli.building import build_command
from penstock.cli.connecting import Data, Url, address_of, connected, telling
from penstock.cli.logs import as_json_value, messages
from penstock.cli.options import COUNT_MAX, need_name
from penstock.cli.output import (
    AsJson,
    counted,
    fail,
    json_text,
    print_document,
    print_line,
    print_lines,
    print_table,
    remark,
)
from penstock.errors import FunctionFailed, IteratorNotFound, LogNotFound
from penstock.model import IteratorKind
from penstock.model.times import text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.model import IteratorSummary

__all__ = ["app"]

FUNCTION_BYTES_MAX: Final = 1 << 20
TRIED: Final = 10
"""Messages that a function is tried on unless somebody says how many."""
TRIED_MAX: Final = 10_000
TRIAL_S_MAX: Final = 60.0
"""What a trial may take in all; the function itself is stopped much earlier, as it is on a server."""

app = typer.Typer(help="Functions over logs.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="the iterator's name", show_default=False)]
Over = Annotated[
    str, typer.Option("--log", help="what it reads: a log, an indexed iterator, or CONTEXT/STREAM", metavar="NAME")
]
Kind = Annotated[IteratorKind, typer.Option("--kind", help="what the function does", show_default=False)]


@app.command("add")
def add_command(
    name: Name,
    log: Over,
    kind: Kind,
    file: Annotated[Path, typer.Option("--file", help="the function, in Lua", metavar="FILE.lua")],
    indexed: Annotated[bool, typer.Option("--indexed", help="keep its results on disk as they come")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make an iterator, unless the same is there."""
    need_name(name, "an iterator")
    function = source_of(file)
    with connected(url, data) as client:
        is_there = name in client.iterators()
        try:
            client.iterator(name).create(log, kind, function, indexed=indexed)
        except FunctionFailed as error:
            fail(in_file(file, str(error)))
    if as_json:
        print_document({"iterator": name, "log": log, "made": not is_there})
    else:
        print_line(f"iterator {name} over {log} {'was there already' if is_there else 'is made'}")


def source_of(file: Path) -> str:
    """The text of a function."""
    try:
        with file.open("rb") as opened:
            found = opened.read(FUNCTION_BYTES_MAX + 1)
        if len(found) > FUNCTION_BYTES_MAX:
            fail(f"{file}: a function has at most {FUNCTION_BYTES_MAX:,} bytes")
        return found.decode()
    except OSError as error:
        fail(f"{file}: {(error.strerror or str(error)).lower()}")
    except UnicodeDecodeError:
        fail(f"{file}: it is not UTF-8")


# --- which there are ------------------------------------------------------------------------------------------


def known(client: "Client", log: str | None) -> Iterator["IteratorSummary"]:
    """All iterators, or those of a log; without those that are deleted meanwhile."""
    for name in client.iterators(log):
        with suppress(IteratorNotFound):
            yield client.iterator(name).show()


@app.command("list")
def list_command(
    log: Annotated[str | None, typer.Option("--log", help="only those that read this", metavar="NAME")] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List iterators, and what they read."""
    with connected(url, data) as client:
        found = list(known(client, log))
    if as_json:
        print_lines({"iterator": one.name, **_definition(one)} for one in found)
    else:
        rows = [(one.name, f"{one.over} {one.log}", one.kind, "yes" if one.indexed else "no") for one in found]
        print_table(("iterator", "reads", "kind", "indexed"), rows, empty="no iterators")


@app.command("show")
def show_command(name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show what an iterator reads and does, how far it is, and what reads it.

    No function is run for it: `penstock iterator next NAME --from -1` prints the last result, or why there is none.
    With --data it is the store that is asked, also one that is served.
    """
    if data is not None:
        with telling():
            document = defined(address_of(url, data), name)
    else:
        with connected(url) as client:
            document = _document(client.iterator(name).show(), client.iterators(name))
    if as_json:
        print_document(document)
        return
    for key, value in document.items():
        text = _text(value)
        # A function is shown line by line.
        for number, line in enumerate(text.splitlines() or [""]):
            print_line(f"{'' if number else key:<9} {line}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return value if isinstance(value, str) else json_text(value)


def defined(address: str, name: str) -> dict[str, Any]:
    """What a store has of an iterator. Raises IteratorNotFound."""
    from penstock.engine.iterator_jobs import show_iterator  # noqa: PLC0415
    from penstock.engine.jobs import list_iterators  # noqa: PLC0415
    from penstock.store import open_reader  # noqa: PLC0415

    with closing(open_reader(address)) as store:
        return _document(show_iterator(store, name), list_iterators(store, name))


def _document(one: "IteratorSummary", readers: list[str]) -> dict[str, Any]:
    built = {"items": one.items, "behind": one.behind} if one.indexed else {}
    what = {"iterator": one.name, **_definition(one), **built, "created": text_of_ticks(one.created)}
    return {**what, "function": one.function, "readers": readers}


def _definition(one: "IteratorSummary") -> dict[str, Any]:
    return {"log": one.log, "over": one.over, "kind": one.kind, "indexed": one.indexed}


def _encoded(values: Iterable[Any]) -> Iterator[bytes]:
    import cbor2  # noqa: PLC0415

    return map(cbor2.dumps, values)


@app.command("next")
def next_command(
    name: Name,
    first: Annotated[int, typer.Option("--from", help="from this result on; 0 is the first, -1 the last", min=-1)] = 0,
    count: Annotated[
        int, typer.Option("--count", "-n", help="at most so many", metavar="N", min=1, max=COUNT_MAX)
    ] = TRIED,
    everything: Annotated[bool, typer.Option("--all", help="all results, however many")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print results of an iterator, one JSON value per line."""
    with connected(url, data) as client:
        if first < 0:
            results: Iterator[Any] = iter(client.iterator(name).next(-1, 1))
        else:
            pages = client.iterator(name).pages(first)
            results = (item for page in pages for item in page)
        for item in _encoded(results if everything else islice(results, count)):
            print_line(as_json_value(item))


@app.command("delete")
def delete_command(
    name: Name,
    log: Annotated[str | None, typer.Option("--log", help="only if this is what it reads", metavar="NAME")] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete an iterator, with its results."""
    with connected(url, data) as client:
        client.iterator(name).delete(client.iterator(name).show().log if log is None else log)
    print_line(f"iterator {name} is deleted")


app.command("build")(build_command)


# --- trying ---------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """A message that a function was tried on; no result: a filter has dropped it."""

    number: int
    message: bytes
    result: bytes | None


@app.command("try")
def try_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.lua", help="the function, in Lua", show_default=False)],
    log: Over,
    kind: Annotated[IteratorKind, typer.Option("--kind", help="what the function does")] = IteratorKind.MAP,
    count: Annotated[
        int, typer.Option("--count", "-n", help="how many messages", metavar="N", min=1, max=TRIED_MAX)
    ] = TRIED,
    last: Annotated[bool, typer.Option("--last", help="try the last messages, not the first")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Try a function on messages of a log, and make nothing. Unless --kind says otherwise, it is one that maps.

    It runs on this machine, as it would on the server: in a sandbox, and stopped if it takes too long. Each line has a
    message and what comes of it; an error names the line of the function.
    """
    function = source_of(file)
    with connected(url, data) as client:
        tried_on = list(sources(client, log, count, last=last))
    if not tried_on:
        fail(f"there are no messages in {log} to try it on")
    results, error = tried(kind, function, [message for _, message in tried_on])
    trials = [Trial(*one, result) for one, result in zip(tried_on, results or (), strict=False)]
    _show(trials, as_json)
    if error is not None:
        fail(in_file(file, error, f"at message {tried_on[len(trials)][0]}: " if results is not None else ""))


def in_file(file: Path, error: str, at: str = "") -> str:
    """What is wrong with a function. Lua calls it `function`, and whoever wrote it knows it by its file."""
    line = re.match(r"function(:\d+): ", error)
    return f"{file}{line[1]}: {at}{error[line.end() :]}" if line else f"{file}: {at}{error}"


def sources(client: "Client", log: str, count: int, *, last: bool) -> Iterator[tuple[int, bytes]]:
    """The messages that an iterator over this would get, with their numbers."""
    try:
        yield from messages(client, log, 0, count, last=last)
    except LogNotFound:
        if log in client.iterators():
            yield from _items(client, log, count, last=last)
        elif "/" in log:
            yield from _events(client, log, count, last=last)
        else:
            raise


def _items(client: "Client", name: str, count: int, *, last: bool) -> Iterator[tuple[int, bytes]]:
    """Items of another iterator's output. To come to the last of them, all are passed through."""
    pages = client.iterator(name).pages()
    items = enumerate(item for page in pages for item in page)
    wanted = deque(items, maxlen=count) if last else islice(items, count)
    for number, item in wanted:
        (message,) = _encoded([item])
        yield number, message


def _events(client: "Client", name: str, count: int, *, last: bool) -> Iterator[tuple[int, bytes]]:
    """Events of a stream as functions get them."""
    from penstock.engine.iterator_jobs import event_message  # noqa: PLC0415

    context, _, stream = name.partition("/")
    events = list(client.read_stream(context, stream, backward=last, limit=count))
    for event in reversed(events) if last else events:
        yield event.sequence - 1, event_message(event)


def tried(kind: IteratorKind, function: str, messages: list[bytes]) -> tuple[list[bytes | None] | None, str | None]:
    """What came of messages, up to the first that failed, and why it did. None: the function does not compile."""
    import cbor2  # noqa: PLC0415

    asked = cbor2.dumps([kind.value, function, messages])
    command = [sys.executable, "-m", "penstock.cli.trial"]
    try:
        process = subprocess.run(command, input=asked, capture_output=True, timeout=TRIAL_S_MAX, check=True)  # noqa: S603
        results, error = cbor2.loads(process.stdout)
    except subprocess.TimeoutExpired:
        return None, f"the function was stopped: the trial took longer than {TRIAL_S_MAX:g} s"
    except (subprocess.CalledProcessError, cbor2.CBORDecodeError):
        return None, "the function has ended the process that it was tried in"
    return results, error


def _show(trials: list[Trial], as_json: bool) -> None:
    for one in trials:
        message = as_json_value(one.message)
        result = None if one.result is None else as_json_value(one.result)
        if as_json:
            out = {} if result is None else {"out": json.loads(result)}
            print_lines([{"message": one.number, "in": json.loads(message), "kept": result is not None, **out}])
        else:
            print_line(f"{one.number}  {message}  →  {'(dropped)' if result is None else result}")
    if not as_json and trials:
        dropped = sum(one.result is None for one in trials)
        remark(f"{counted(len(trials), 'message')} tried{f', {dropped} dropped' if dropped else ''}")
