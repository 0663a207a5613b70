"""`penstock iterator`: functions over logs: created, read, deleted, tried before they are created, built on Spark."""

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

from penstock.cli.connection import address_of, connected
from penstock.cli.logs import as_json_value, messages
from penstock.cli.options import COUNT_MAX, AsJson, Conf, Data, Master, Url, argument, need_name, option, session
from penstock.cli.output import (
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
    from penstock.model import IteratorSummary
    from penstock.spark.builds import Outcome

FUNCTION_BYTES_MAX: Final = 1 << 20
COUNT: Final = 10
TRIED_MAX: Final = 10_000
TRIAL_S_MAX: Final = 60.0
"""How long a whole trial may take; the function itself is stopped much earlier, as on a server."""
APP_NAME: Final = "penstock iterator build"
"""The name of the Spark application."""

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, argument("NAME", "the iterator's name")]
Over = Annotated[str, option("--log", "its input: a log, an indexed iterator, or CONTEXT/STREAM", "NAME")]


@app.command("add")
def add_command(
    name: Name,
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


@app.command("list")
def list_command(
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


@app.command("show")
def show_command(name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
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


@app.command("next")
def next_command(
    name: Name,
    first: Annotated[int, option("--from", "from this result on; 0 is the first, -1 the last", min=-1)] = 0,
    count: Annotated[int, option("--count -n", "at most this many", "N", min=1, max=COUNT_MAX)] = COUNT,
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


@app.command("delete")
def delete_command(
    name: Name,
    log: Annotated[str | None, option("--log", "only if this is its input", "NAME")] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete an iterator, with its results."""
    with connected(url, data) as client:
        client.iterator(name).delete(client.iterator(name).show().log if log is None else log)
    print_line(f"deleted iterator {name}")


@app.command("build")
def build_command(
    name: Name, url: Url = None, data: Data = None, master: Master = None, conf: Conf = None, as_json: AsJson = False
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
        started, began = session(APP_NAME, master, conf), time.monotonic()
        with begin_build(address, name, lua) as building, started as spark, progress_bar("messages") as bar:

            def show(done: int, total: int) -> None:
                bar(done, total, f"messages, {building.failed:,} failed" if building.failed else "messages")

            outcome = building.run(spark, show)
    _report_build(outcome, time.monotonic() - began, as_json)


def _report_build(outcome: "Outcome", seconds: float, as_json: bool) -> None:
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


def _failure(outcome: "Outcome", error: FunctionFailed | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"message": error.message, "position": outcome.position, "reason": error.reason}


@app.command("try")
def try_command(
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
