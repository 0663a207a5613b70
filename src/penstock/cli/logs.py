"""`penstock log` and `penstock iterator`: logs of messages (JSON here, CBOR in the store), and functions over them."""

import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.append import JsonLines, json_flaw
from penstock.cli.connection import address_of, connected
from penstock.cli.options import COUNT_MAX, AsJson, Conf, Data, Master, Url, argument, need_name, option, session
from penstock.cli.output import (
    agreed,
    counted,
    fail,
    json_text,
    print_document,
    print_fields,
    print_line,
    print_lines,
    print_result,
    print_rows,
    progress_bar,
    refuse,
    remark,
)
from penstock.cli.signals import interruptible
from penstock.errors import FunctionFailed, IteratorNotFound, LogNotFound
from penstock.model import IteratorKind
from penstock.model.times import text_of_ticks
from penstock.settings import load
from penstock.terminal import print_error

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.model import IteratorSummary, LogSummary
    from penstock.spark.builds import BuildOutcome

LOG_CONTEXT: Final = "remits"
COUNT: Final = 10
FUNCTION_BYTES_MAX: Final = 1 << 20
TRIED_MAX: Final = 10_000
TRIAL_S_MAX: Final = 60.0
"""How long a whole trial may take; the function itself is stopped much earlier, as on a server."""

log_app = typer.Typer(no_args_is_help=True)
iterator_app = typer.Typer(no_args_is_help=True)

LogName = Annotated[str, argument("NAME", "the log's name")]
IteratorName = Annotated[str, argument("NAME", "the iterator's name")]
Over = Annotated[str, option("--log", "its input: a log, an indexed iterator, or CONTEXT/STREAM", "NAME")]
Count = Annotated[int, option("--count -n", "at most this many", "N", min=1, max=COUNT_MAX)]


@log_app.command("add")
def add_log(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Create a log, unless it exists."""
    need_name(name, "a log")
    with connected(url, data, create=True) as client:
        exists = name in client.logs()
        client.log(name).create()
    line = f"log {name} {'exists already' if exists else 'created'}"
    print_result({"log": name, "made": not exists}, line, as_json=as_json)


@log_app.command("list")
def list_logs(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all logs, and what is in them."""
    with connected(url, data) as client:
        found = [client.log(name).show() for name in client.logs()]
    rows = [(log.log, log.messages, log.size_bytes, len(log.iterators)) for log in found]
    columns = ("log", "#messages", "#bytes", "#iterators")
    print_rows(map(_log_document, found), columns, rows, empty="no logs", as_json=as_json)


@log_app.command("show")
def show_log(name: LogName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show a log: when it was created, its messages, its iterators."""
    with connected(url, data) as client:
        found = client.log(name).show()
    if as_json:
        print_document(_log_document(found))
        return
    messages, iterators = f"{found.messages:,}, {found.size_bytes:,} bytes", ", ".join(found.iterators) or "none"
    created = text_of_ticks(found.created)
    print_fields({"log": found.log, "created": created, "messages": messages, "iterators": iterators})


def _log_document(log: "LogSummary") -> dict[str, Any]:
    return {
        "log": log.log,
        "created": text_of_ticks(log.created),
        "messages": log.messages,
        "bytes": log.size_bytes,
        "iterators": log.iterators,
    }


@log_app.command("append")
def append_log(
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


@log_app.command("next", hidden=True)
@log_app.command("read")
def read_log(
    name: LogName,
    first: Annotated[int | None, option("--from", "from this message on; 0 is the first", min=0)] = None,
    count: Count = COUNT,
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


@log_app.command("delete")
def delete_log(
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


# --- iterators ------------------------------------------------------------------------------------------------


@iterator_app.command("add")
def add_iterator(
    name: IteratorName,
    log: Over,
    kind: Annotated[IteratorKind, option("--kind", "what the function does")],
    file: Annotated[Path, option("--file", "the function, in Lua", "FILE.lua")],
    indexed: Annotated[bool, option("--indexed", "store its results as they are computed")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create an iterator, unless the same one exists."""
    need_name(name, "an iterator")
    function = _read_function(file)
    with connected(url, data) as client:
        exists = name in client.iterators()
        try:
            client.iterator(name).create(log, kind, function, indexed=indexed)
        except FunctionFailed as error:
            fail(_in_file(file, str(error)))
    line = f"iterator {name} over {log} {'exists already' if exists else 'created'}"
    print_result({"iterator": name, "log": log, "made": not exists}, line, as_json=as_json)


def _read_function(file: Path) -> str:
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


def _in_file(file: Path, error: str, at: str = "") -> str:
    """An error of a function. Lua calls every function `function`; its author knows it by its file."""
    line = re.match(r"function(:\d+): ", error)
    return f"{file}{line[1]}: {at}{error[line.end() :]}" if line else f"{file}: {at}{error}"


@iterator_app.command("list")
def list_iterators(
    log: Annotated[str | None, option("--log", "only those with this input", "NAME")] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List iterators, and their inputs."""
    found: list[IteratorSummary] = []
    with connected(url, data) as client:
        for name in client.iterators(log):
            # An iterator may be deleted meanwhile.
            with suppress(IteratorNotFound):
                found.append(client.iterator(name).show())
    documents = ({"iterator": one.name, **_definition(one)} for one in found)
    rows = [(one.name, f"{one.over} {one.log}", one.kind, "yes" if one.indexed else "no") for one in found]
    print_rows(documents, ("iterator", "reads", "kind", "indexed"), rows, empty="no iterators", as_json=as_json)


def _definition(one: "IteratorSummary") -> dict[str, Any]:
    return {"log": one.log, "over": one.over, "kind": one.kind, "indexed": one.indexed}


@iterator_app.command("show")
def show_iterator(name: IteratorName, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show an iterator's input, kind, function and lag, and which iterators read it.

    This runs no function: `penstock iterator next NAME --from -1` prints the last result, or the error. With
    --data the command reads the store itself, and a server may have it open.
    """
    if data is not None:
        from penstock.engine.iterator_jobs import show_iterator  # noqa: PLC0415
        from penstock.engine.jobs import list_iterators  # noqa: PLC0415
        from penstock.store import open_reader  # noqa: PLC0415

        with closing(open_reader(address_of(url, data))) as store:
            one, readers = show_iterator(store, name), list_iterators(store, name).names
    else:
        with connected(url) as client:
            one, readers = client.iterator(name).show(), client.iterators(name)
    built = {"items": one.items, "behind": one.behind} if one.indexed else {}
    document = {"iterator": one.name, **_definition(one), **built, "created": text_of_ticks(one.created)}
    document |= {"function": one.function, "readers": readers}
    if as_json:
        print_document(document)
        return
    document["readers"] = ", ".join(readers) or "none"
    print_fields({name: value if isinstance(value, str) else json_text(value) for name, value in document.items()})


@iterator_app.command("next")
def next_iterator(
    name: IteratorName,
    first: Annotated[int, option("--from", "from this result on; 0 is the first, -1 the last", min=-1)] = 0,
    count: Count = COUNT,
    everything: Annotated[bool, option("--all", "all results")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Print results of an iterator, one JSON value per line."""
    with connected(url, data) as client:
        if first < 0:
            results: Iterable[Any] = client.iterator(name).next(-1, 1)
        else:
            results = (item for page in client.iterator(name).pages(first) for item in page)
        for item in _encoded(results if everything else islice(results, count)):
            print_line(as_json_value(item))


def _encoded(values: Iterable[Any]) -> Iterator[bytes]:
    import cbor2  # noqa: PLC0415

    return map(cbor2.dumps, values)


@iterator_app.command("delete")
def delete_iterator(
    name: IteratorName,
    log: Annotated[str | None, option("--log", "only if this is its input", "NAME")] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete an iterator, with its results."""
    with connected(url, data) as client:
        client.iterator(name).delete(client.iterator(name).show().log if log is None else log)
    print_line(f"deleted iterator {name}")


@iterator_app.command("build")
def build_iterator(
    name: IteratorName,
    url: Url = None,
    data: Data = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Build the results of an indexed iterator on Spark, up to the messages that exist now.

    The results are installed in one step. They are the same as those the server would compute, and the server continues
    from there. It may serve and accept messages meanwhile.
    """
    from penstock.engine.iterators import lua_limits  # noqa: PLC0415
    from penstock.spark.builds import begin_build  # noqa: PLC0415

    again = "interrupted: results that are not installed are discarded; run the same command again"
    with interruptible(again):
        address, lua = address_of(url, data), lua_limits(load({}, os.environ))
        started, began = session("penstock iterator build", master, conf), time.monotonic()
        with begin_build(address, name, lua) as building, started as spark, progress_bar("messages") as bar:

            def show(done: int, total: int) -> None:
                bar(done, total, f"messages, {building.failed:,} failed" if building.failed else "messages")

            outcome = building.run(spark, show)
    _report_build(outcome, time.monotonic() - began, as_json)


def _report_build(outcome: "BuildOutcome", seconds: float, as_json: bool) -> None:
    start, installed = outcome.start, outcome.installed
    document = {
        "iterator": start.iterator,
        "log": start.log,
        "kind": start.kind,
        "messages": outcome.messages,
        "added": installed.added,
        "items": installed.items,
        "seconds": round(seconds, 3),
        "failed": outcome.failed,
        "first_failed": _failure(outcome, outcome.failure),
        "error": _failure(outcome, outcome.error),
    }
    if not outcome.messages and outcome.error is None:
        line = f"iterator {start.iterator} has read all messages of {start.log}"
    else:
        rate = f"{seconds:.1f} s, {outcome.messages / max(seconds, 1e-9):,.0f} messages/s"
        built = f"{counted(outcome.messages, 'message')} read, {counted(installed.added, 'item')} added ({rate})"
        line = f"{built}; iterator {start.iterator} has {counted(installed.items, 'item')}"
    print_result(document, line, as_json=as_json)
    at = "" if outcome.position is None else f", position {outcome.position}"
    if (error := outcome.error) is not None:
        where = f"message {error.message}{at}: {error.reason}"
        fail(f"iterator {start.iterator} over {start.log} failed at {where}")
    if (first := outcome.failure) is not None:
        failed = f"{counted(outcome.failed, 'message')} of {start.log} failed"
        print_error(f"{failed}; the first is message {first.message}{at}: {first.reason}")


def _failure(outcome: "BuildOutcome", error: FunctionFailed | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"message": error.message, "position": outcome.position, "reason": error.reason}


@iterator_app.command("try")
def try_iterator(
    file: Annotated[Path, argument("FILE.lua", "the function, in Lua")],
    log: Over,
    kind: Annotated[IteratorKind, option("--kind", "what the function does")] = IteratorKind.MAP,
    count: Annotated[int, option("--count -n", "how many messages", "N", min=1, max=TRIED_MAX)] = COUNT,
    last: Annotated[bool, option("--last", "try the last messages, not the first")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Try a function on messages of a log, and create nothing. Unless --kind says otherwise, it maps.

    It runs on this machine as it would on the server: in a sandbox, and stopped if it takes too long. Each line has a
    message and its result; an error names the line of the function.
    """
    function = _read_function(file)
    with connected(url, data) as client:
        inputs = list(_inputs(client, log, count, last=last))
    if not inputs:
        fail(f"there are no messages in {log} to try the function on")
    results, error = _run_trial(kind, function, [message for _, message in inputs])
    dropped = 0
    for (number, message), output in zip(inputs, results or (), strict=False):
        text, result = as_json_value(message), None if output is None else as_json_value(output)
        dropped += result is None
        if as_json:
            out = {} if result is None else {"out": json.loads(result)}
            print_lines([{"message": number, "in": json.loads(text), "kept": result is not None, **out}])
        else:
            print_line(f"{number}  {text}  →  {'(dropped)' if result is None else result}")
    if not as_json and results:
        remark(f"{counted(len(results), 'message')} tried{f', {dropped} dropped' if dropped else ''}")
    if error is not None:
        fail(_in_file(file, error, f"at message {inputs[len(results)][0]}: " if results is not None else ""))


def _inputs(client: "Client", log: str, count: int, *, last: bool) -> Iterator[tuple[int, bytes]]:
    """The messages that an iterator over this input would get, with their numbers."""
    try:
        yield from messages(client, log, 0, count, last=last)
        return
    except LogNotFound:
        is_iterator = log in client.iterators()
        if not is_iterator and "/" not in log:
            raise
    if is_iterator:
        items = enumerate(item for page in client.iterator(log).pages() for item in page)
        wanted = deque(items, maxlen=count) if last else islice(items, count)
        for number, item in wanted:
            (message,) = _encoded([item])
            yield number, message
        return
    from penstock.engine.iterator_jobs import event_message  # noqa: PLC0415

    context, _, stream = log.partition("/")
    events = list(client.read_stream(context, stream, backward=last, limit=count))
    for event in reversed(events) if last else events:
        yield event.sequence - 1, event_message(event)


def _run_trial(
    kind: IteratorKind, function: str, messages: list[bytes]
) -> tuple[list[bytes | None] | None, str | None]:
    """Results up to the first message that failed, and its error. No results at all: the function does not compile."""
    import cbor2  # noqa: PLC0415

    request = cbor2.dumps([kind.value, function, messages])
    command = [sys.executable, "-m", "penstock.cli.trial"]
    try:
        process = subprocess.run(command, input=request, capture_output=True, timeout=TRIAL_S_MAX, check=True)  # noqa: S603
        results, error = cbor2.loads(process.stdout)
    except subprocess.TimeoutExpired:
        return None, f"the function was stopped: the trial took longer than {TRIAL_S_MAX:g} s"
    except (subprocess.CalledProcessError, cbor2.CBORDecodeError):
        return None, "the function ended the process that it was tried in"
    return results, error
