"""`penstock import`, `penstock export` and `penstock replay`: events from files, into files, and again into stores."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from penstock.cli.connection import address_of, error_line, read_token
from penstock.cli.options import TIMES, AsJson, Data, Filter, OfContext, Types, Url, argument, moment, option
from penstock.cli.output import (
    counted,
    fail,
    json_text,
    print_line,
    print_lines,
    print_result,
    progress_bar,
    refuse,
    remark,
    stop_command,
)
from penstock.cli.signals import INTERRUPTED, stop_signals
from penstock.client.transport import transport_to
from penstock.errors import CannotConnect, PenstockError
from penstock.event_json import Defaults
from penstock.interchange.exporter import POSITION_MAX, Selection, export_events
from penstock.interchange.formats import STANDARD, FileRefused, Format, format_of, named_errors
from penstock.interchange.importer import Source, Spool, Survey, import_file, rehearsed, survey
from penstock.interchange.replay import Replay, ReplayRequest, open_replay
from penstock.interchange.replay_targets import IntoStreams, ThroughQueue
from penstock.model import check_context, check_stream, check_type, ticks_of_datetime
from penstock.model.address import Address
from penstock.settings.sources import without_password
from penstock.terminal import print_error

if TYPE_CHECKING:
    from penstock.cli.screen import Bar

STATE_ENVIRONMENT: Final = "XDG_STATE_HOME"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SHOWN_S: Final = 0.1
STALLED_S: Final = 10.0
"""How long a replay stands still before the command says that it waits for consumers."""
COPY_BYTES: Final = 1 << 20

FormatOption = Annotated[Format | None, option("--format", "the format of the files, if their names do not tell")]


def _format_of(path: str, format: Format | None) -> Format:
    try:
        return format_of(path, format)
    except FileRefused as error:
        refuse(str(error))


def import_command(
    files: Annotated[list[str], argument("FILE…", "files to import; - is standard input")],
    format: FormatOption = None,
    context: Annotated[str | None, option("--context", "the context of events whose file has none", "NAME")] = None,
    stream: Annotated[str | None, option("--stream", "the stream of events whose file has none", "NAME")] = None,
    type: Annotated[str | None, option("--type", "the type of events whose file has none", "NAME")] = None,
    name: Annotated[str, option("--name", "import files again that were imported under another name", "TEXT")] = "",
    check: Annotated[bool, option("--check", "only check whether the files can be imported")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Import events from files: JSON lines, CSV, Parquet or CloudEvents.

    The command checks all files first: if one has a mistake, nothing is imported. If an import is interrupted, run the
    same command again: it continues where it was, and imports nothing twice.
    """
    defaults = Defaults(context, stream, type)
    if reason := defaults.check():
        refuse(reason)
    if files.count(STANDARD) > 1:
        refuse("standard input can be read only once")
    with ExitStack() as spools:
        address = None if check else address_of(url, data)
        if address is not None:
            # Report a wrong address now, not after all files are read.
            transport_to(address)
        sources = [spools.enter_context(_source(file, format, defaults)) for file in files]
        spool = None if address is None else spools.enter_context(closing(_spool()))
        surveys: list[Survey] = []
        for source in sources:
            with progress_bar(f"checking {source.path.name}") as bar:
                found = survey(source, name, partial(bar, total=None), spool)
            # The server checks it too: nothing is sent before all files are sound.
            surveys.append(rehearsed(found, address))
        for found in surveys:
            new = None if address is None else _import(found, address, spool)
            if as_json:
                counts = {"events": found.events} if new is None else {"events": found.events, "new_events": new}
                print_lines([{"file": found.source.name, "format": found.source.format.value, **counts}])
            else:
                print_line(f"{found.source.name}: {counted(found.events, 'event')}{_import_result(found, new)}")
            sys.stdout.flush()


def _spool() -> Spool:
    with named_errors("$TMPDIR"):
        return Spool()


@contextmanager
def _source(file: str, format: Format | None, defaults: Defaults) -> Iterator[Source]:
    """A file that can be read twice: a pipe is copied into a temporary file first."""
    kind, path = _format_of(file, format), Path(file)
    is_pipe = path.exists() and not path.is_file() and not path.is_dir()
    if file != STANDARD and not is_pipe:
        yield Source(file, path, kind, defaults)
        return
    name = "standard input" if file == STANDARD else file
    with named_errors("$TMPDIR"):
        spool = tempfile.NamedTemporaryFile(prefix="penstock-import-", buffering=0)  # noqa: SIM115 - closed below
    with spool:
        with sys.stdin.buffer if file == STANDARD else path.open("rb") as pipe:
            while True:
                with named_errors(name):
                    rest = memoryview(pipe.read(COPY_BYTES))
                if not rest:
                    break
                with named_errors(spool.name):
                    while rest:
                        rest = rest[spool.write(rest) :]
        yield Source(name, Path(spool.name), kind, defaults)


def _import(found: Survey, address: str, spool: Spool | None) -> int:
    """Import a file, and return the number of new events. An error says how much is imported."""
    written = 0

    def progress(events: int) -> None:
        nonlocal written
        written = events
        bar(events, found.events)

    def so_far() -> str:
        events = f"{written:,} of the {counted(found.events, 'event')} of {found.source.name}"
        return f"{events} are imported; run the same command again to continue"

    try:
        with progress_bar(f"importing {found.source.path.name}") as bar:
            return import_file(found, address, progress, spool)
    except KeyboardInterrupt:
        stop_command(f"interrupted: {so_far()}", INTERRUPTED)
    except PenstockError as error:
        if not written:
            raise
        fail(f"{error_line(error)}: {so_far()}")


def _import_result(found: Survey, new: int | None) -> str:
    if new is None:
        return ", nothing wrong"
    if new == found.events:
        return " imported"
    return f" imported, {new:,} of them now" if new else ", all of them imported before"


def export_command(
    path: Annotated[str, argument("PATH", "the file to write; - is standard output")],
    format: FormatOption = None,
    context: OfContext = None,
    filter: Filter = "",
    types: Types = None,
    first: Annotated[int, option("--from", "from this position on", "POSITION", min=1)] = 1,
    last: Annotated[int | None, option("--to", "up to and including this position", "POSITION", min=0)] = None,
    since: Annotated[str | None, option("--since", f"only events of this time or later: {TIMES}", "TIME")] = None,
    until: Annotated[str | None, option("--until", "only events before this time", "TIME")] = None,
    anew: Annotated[bool, option("--anew", "start over instead of continuing an unfinished export")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Export events to a file: JSON lines, CSV, Parquet or CloudEvents.

    The file appears when it is complete. Until then the command writes PATH.partial, and if it is interrupted, the same
    command continues with that.
    """
    path = STANDARD if path == "/dev/stdout" else path
    check_names(context, filter, types)
    named = tuple(types) if types else None
    times = (None if text is None else ticks_of_datetime(moment(text)) for text in (since, until))
    selection = Selection(context, filter, named, first, POSITION_MAX if last is None else last, *times)
    kind = _format_of(path, format)
    is_on_screen = path == STANDARD and sys.stdout.isatty()
    if kind is Format.PARQUET and is_on_screen:
        refuse("Parquet is binary: name a file, or redirect the output into a file or a pipe")
    address = address_of(url, data)
    try:
        # A bar would run into events that are printed on the same terminal.
        with progress_bar(f"exporting {Path(path).name}", hidden=is_on_screen) as bar:
            exported = export_events(
                address,
                path,
                kind,
                selection,
                lambda done, total, _: bar(done, total),
                written_times=(since, until),
                restart=anew,
            )
    except KeyboardInterrupt:
        can_continue = path != STANDARD and Path(path + ".partial.json").exists()
        stop_command(f"interrupted{': run the same command again to continue' * can_continue}", INTERRUPTED)
    if as_json:
        counts = {"events": exported.events, "resumed_events": exported.resumed_events, "last": exported.last}
        line = json_text({"file": path, **counts})
    else:
        before = f", {exported.resumed_events:,} of them before" if exported.resumed_events else ""
        name = "standard output" if path == STANDARD else path
        line = f"{name}: {counted(exported.events, 'event')}{before}, up to position {exported.last:,}"
    if path == STANDARD:
        remark(line)
    else:
        print_line(line)


def check_names(context: str | None, filter: str, types: list[str] | None) -> None:
    """End the command if an option has a name that no context, stream or type can have."""
    check_name("--context", context, check_context)
    check_name("--filter", filter, check_stream)
    for name in types or ():
        check_name("--type", name, check_type)


def check_name(flag: str, name: str | None, check: Callable[[str], str | None]) -> None:
    if name and (reason := check(name)):
        refuse(f"{flag} {reason}")


# --- replay -------------------------------------------------------------------------------------------------------


def replay_command(
    context: OfContext = None,
    filter: Filter = "",
    types: Types = None,
    first: Annotated[
        str | None,
        option("--from", f"from this position on, or only events of this time or later: {TIMES}", "POSITION|TIME"),
    ] = None,
    last: Annotated[
        str | None,
        option("--to", "up to and including this position, or only events before this time", "POSITION|TIME"),
    ] = None,
    queue: Annotated[str | None, option("--queue", "deliver the events again, through this queue", "NAME")] = None,
    queue_context: Annotated[
        str | None,
        option("--queue-context", "the queue's context, if several contexts have a queue of that name", "NAME"),
    ] = None,
    to_url: Annotated[
        str | None, option("--to-url", "append the events to this store, or through this server; as --url", "URL")
    ] = None,
    to_token: Annotated[
        str | None,
        option("--to-token", "a file with the token for the server of --to-url, which does not get yours", "@FILE"),
    ] = None,
    to_context: Annotated[
        str | None,
        option("--to-context", "append the events to this context; without --to-url, in the same store", "NAME"),
    ] = None,
    prefix: Annotated[str, option("--to-stream-prefix", "prefix of the names of the new streams", "TEXT")] = "",
    expected: Annotated[
        Literal["any", "new"], option("--expected", "new: begin only if the target has no such streams yet")
    ] = "any",
    rate: Annotated[float | None, option("--rate", "at most this many events per second", "N")] = None,
    name: Annotated[
        str | None, option("--name", "the name of this replay (default: made from the other options)", "NAME")
    ] = None,
    state: Annotated[Path | None, option("--state", "the file that keeps the progress of the replay", "FILE")] = None,
    again: Annotated[bool, option("--again", "repeat a replay that is finished")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Replay part of a history: through a queue, or into streams of another context or store.

    Positions and times select the events, which are replayed in the order of the history. Times are those of the
    events. The end is fixed when a replay begins. If a replay is interrupted, the same command continues where it was,
    and no event is replayed twice.
    """
    is_store = to_url is not None or to_context is not None
    for is_wrong, reason in (
        (queue is not None and is_store, "--queue cannot be combined with --to-url or --to-context: use one of them"),
        (queue is None and not is_store, "say where to: either --queue, or --to-url or --to-context"),
        (to_url is None and to_token is not None, "--to-token belongs to --to-url"),
        (queue is None and queue_context is not None, "--queue-context belongs to --queue"),
        (
            queue is not None and (prefix != "" or expected == "new"),
            "--to-stream-prefix and --expected belong to --to-url and --to-context",
        ),
        (rate is not None and not 0 < rate < float("inf"), f"--rate {rate} is not a number of events per second"),
        (
            name is not None and not NAME.fullmatch(name),
            "--name must consist of letters, digits, dots, dashes and underscores",
        ),
    ):
        if is_wrong:
            refuse(reason)
    check_names(context, filter, types)
    check_name("--to-context", to_context, check_context)
    check_name("--to-stream-prefix", prefix, check_stream)
    begin, since = _position_or_ticks("--from", first, 1)
    end, until = _position_or_ticks("--to", last, POSITION_MAX)
    if begin > end or (since is not None and until is not None and since >= until):
        refuse(f"--from {first} comes after --to {last}: there are no events between them")
    selection = Selection(context, filter, tuple(types) if types else None, begin, end, since, until)
    address = address_of(url, data)
    if queue is not None:
        target: IntoStreams | ThroughQueue = ThroughQueue(queue, queue_context)
        where = f"through queue {queue}"
    else:
        target = IntoStreams(_target(to_url, to_token, address), to_context, prefix, expected == "new")
        parts = (f"context {to_context}" if to_context else "", str(without_password(to_url)) if to_url else "")
        where = "into " + " of ".join(part for part in parts if part)
    notes = Path(os.environ.get(STATE_ENVIRONMENT) or "~/.local/state").expanduser() / "penstock" / "replays"
    request = ReplayRequest(address, selection, target, (first, last), name, state, notes, again, rate)
    _replay(request, where, as_json)


def _target(to_url: str | None, to_token: str | None, address: str) -> str:
    """Where to append. The token of one server is not shown to another."""
    if to_token is not None:
        return Address(to_url or address, read_token("--to-token", to_token))
    return address if to_url in (None, address) else Address(to_url or address, "")


def _position_or_ticks(flag: str, text: str | None, default: int) -> tuple[int, int | None]:
    if text is None:
        return default, None
    if not text.isdecimal():
        return default, ticks_of_datetime(moment(text))
    if not 1 <= int(text) <= POSITION_MAX:
        refuse(f"{flag} {text} is not a position: positions begin with 1")
    return int(text), None


def _replay(request: ReplayRequest, where: str, as_json: bool) -> None:
    def so_far() -> str:
        note = replay.note
        done = f"{counted(note.events, 'event')} went {where}, up to position {note.done:,} of {note.last:,}"
        return f"{done}; run the same command again to continue"

    try:
        with open_replay(request) as replay:
            if replay.note.finished:
                _print_result(replay, where, as_json, before=True)
                return
            if replay.resumed_at is not None:
                remark(f"replay {replay.note.name} continues after position {replay.resumed_at:,}")
            with stop_signals() as stop:
                try:
                    with progress_bar("replaying", rated=False) as bar:
                        is_done = replay.run(stop, ReplayProgress(bar).show)
                except PenstockError as error:
                    fail(f"{_replay_error(error, request)}: {so_far()}")
                except KeyboardInterrupt:
                    is_done = False
                if not is_done:
                    stop_command(f"interrupted: {so_far()}", stop.exit_code)
            _print_result(replay, where, as_json, before=False)
    except CannotConnect as error:
        fail(_replay_error(error, request))


def _replay_error(error: PenstockError, request: ReplayRequest) -> str:
    """An error as one line. Two options name servers; the advice must name the right one."""
    to = getattr(request.target, "url", request.url)
    is_target = isinstance(error, CannotConnect) and to != request.url and error.url in to
    return error_line(error).replace("name it with --url", "name it with --to-url") if is_target else error_line(error)


class ReplayProgress:
    def __init__(self, bar: "Bar") -> None:
        self._bar = bar
        self._begun: tuple[float, int] | None = None
        self._shown_at = 0.0
        self._moved = -1, 0.0

    def show(self, replay: Replay) -> None:
        now, note = time.monotonic(), replay.note
        self._warn_if_stalled(replay, now)
        if self._begun is None:
            self._begun = now, note.events
        if now - self._shown_at < SHOWN_S:
            return
        self._shown_at = now
        rate = (note.events - self._begun[1]) / max(now - self._begun[0], SHOWN_S)
        waiting = "" if replay.waiting is None else f", {replay.waiting:,} waiting"
        what = f"{counted(note.events, 'event')}{waiting}, {rate:,.0f}/s, position {note.done:,}"
        self._bar(note.done - note.first + 1, note.last - note.first + 1, what)

    def _warn_if_stalled(self, replay: Replay, now: float) -> None:
        """Say once that the replay waits for consumers, where there is no terminal for a bar."""
        done, since = self._moved
        if done != replay.note.done:
            self._moved = replay.note.done, now
        elif replay.waiting and now - since > STALLED_S and not sys.stderr.isatty():
            print_error(f"waiting for consumers: {counted(replay.waiting, 'event')} in the queue")
            self._moved = done, float("inf")


def _print_result(replay: Replay, where: str, as_json: bool, *, before: bool) -> None:
    note = replay.note
    document = {
        "name": note.name,
        "first": note.first,
        "last": note.last,
        "events": note.events,
        "erased": note.erased,
        "left_out": note.left_out,
        "waiting": replay.waiting,
        "resumed_at": replay.resumed_at,
        "finished": note.finished,
        "finished_before": before,
    }
    of = f"positions {note.first:,} to {note.last:,}" if note.first <= note.last else "no position"
    line = f"{counted(note.events, 'event')} {where}, of {of}"
    if note.first <= note.last and not note.events and not note.left_out:
        line += "; no event there matches the options"
    if note.erased:
        line += f"; {counted(note.erased, 'position')} were erased"
    if note.left_out:
        line += f"; {counted(note.left_out, 'event')} left out: in flight already, or dead letters"
    if replay.waiting:
        line += f"; {counted(replay.waiting, 'event')} waiting for consumers"
    if before:
        line += f": this replay finished at {note.finished}, and nothing was done now; use --again to repeat it"
    print_result(document, line, as_json=as_json)
