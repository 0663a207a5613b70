"""`penstock replay`: part of a history again, through a queue or into streams of a store."""

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from penstock.cli.connection import address_of, error_line
from penstock.cli.interchange import check_names
from penstock.cli.options import TIMES, AsJson, Data, Filter, OfContext, Types, Url, moment, option
from penstock.cli.output import counted, fail, print_result, progress_bar, refuse, remark, stop_command
from penstock.cli.signals import stop_signals
from penstock.errors import CannotConnect, PenstockError
from penstock.model import check_context, check_stream, ticks_of_datetime
from penstock.settings.sources import without_password
from penstock.terminal import print_error

if TYPE_CHECKING:
    from penstock.cli.screen import Bar
    from penstock.interchange.exporter import Selection
    from penstock.interchange.replay import Replay, ReplayRequest

STATE_ENVIRONMENT: Final = "XDG_STATE_HOME"
"""The environment variable that names the directory where programs keep their state."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SHOWN_S: Final = 0.1
"""The shortest time between two updates of the bar."""
STALLED_S: Final = 10.0
"""How long a replay stands still before the command says that it waits for consumers."""


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
    if queue is not None and is_store:
        refuse("--queue cannot be combined with --to-url or --to-context: use one of them")
    if queue is None and not is_store:
        refuse("say where to: either --queue, or --to-url or --to-context")
    if queue is None and queue_context is not None:
        refuse("--queue-context belongs to --queue")
    if queue is not None and (prefix or expected == "new"):
        refuse("--to-stream-prefix and --expected belong to --to-url and --to-context")
    if to_context is not None and (reason := check_context(to_context)):
        refuse(f"--to-context {reason}")
    if prefix and (reason := check_stream(prefix)):
        refuse(f"--to-stream-prefix {reason}")
    if rate is not None and not 0 < rate < float("inf"):
        refuse(f"--rate {rate} is not a number of events per second")
    if name is not None and not NAME.fullmatch(name):
        refuse("--name must consist of letters, digits, dots, dashes and underscores")
    named = tuple(types) if types else None
    check_names(context, filter, named or ())
    selection = _selection(context, filter, named, first, last)
    # They take a moment to import, and help does not need them.
    from penstock.interchange.replay import ReplayRequest  # noqa: PLC0415
    from penstock.interchange.replay_targets import IntoStreams, ThroughQueue  # noqa: PLC0415

    address = address_of(url, data)
    if queue is not None:
        target: IntoStreams | ThroughQueue = ThroughQueue(queue, queue_context)
        where = f"through queue {queue}"
    else:
        target = IntoStreams(to_url or address, to_context, prefix, expected == "new")
        parts = (f"context {to_context}" if to_context else "", str(without_password(to_url)) if to_url else "")
        where = "into " + " of ".join(part for part in parts if part)
    notes = Path(os.environ.get(STATE_ENVIRONMENT) or "~/.local/state").expanduser() / "penstock" / "replays"
    request = ReplayRequest(address, selection, target, (first, last), name, state, notes, again, rate)
    _replay(request, where, as_json)


def _selection(
    context: str | None, filter: str, types: tuple[str, ...] | None, first: str | None, last: str | None
) -> "Selection":
    from penstock.interchange.exporter import POSITION_MAX, Selection  # noqa: PLC0415

    begin, since = _position_or_ticks("--from", first)
    end, until = _position_or_ticks("--to", last)
    if (None not in (begin, end) and begin > end) or (None not in (since, until) and since >= until):  # type: ignore[operator]
        refuse(f"--from {first} comes after --to {last}: there are no events between them")
    return Selection(
        context, filter, types, 1 if begin is None else begin, POSITION_MAX if end is None else end, since, until
    )


def _position_or_ticks(option: str, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if not text.isdecimal():
        return None, ticks_of_datetime(moment(text))
    if not 1 <= int(text) < 1 << 63:
        refuse(f"{option} {text} is not a position: positions begin with 1")
    return int(text), None


def _replay(request: "ReplayRequest", where: str, as_json: bool) -> None:
    from penstock.interchange.replay import open_replay  # noqa: PLC0415

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


def _replay_error(error: PenstockError, request: "ReplayRequest") -> str:
    """An error as one line. Two options name servers; the advice must name the right one."""
    to = getattr(request.target, "url", request.url)
    is_target = isinstance(error, CannotConnect) and to != request.url and error.url in to
    return error_line(error).replace("name it with --url", "name it with --to-url") if is_target else error_line(error)


class ReplayProgress:
    """Shows how many events were replayed, how fast, and the position."""

    def __init__(self, bar: "Bar") -> None:
        self._bar = bar
        self._begun: tuple[float, int] | None = None
        self._shown_at = 0.0
        self._moved = -1, 0.0

    def show(self, replay: "Replay") -> None:
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

    def _warn_if_stalled(self, replay: "Replay", now: float) -> None:
        """Say once that the replay waits for consumers, where there is no terminal for a bar."""
        done, since = self._moved
        if done != replay.note.done:
            self._moved = replay.note.done, now
        elif replay.waiting and now - since > STALLED_S and not sys.stderr.isatty():
            print_error(f"waiting for consumers: {counted(replay.waiting, 'event')} in the queue")
            self._moved = done, float("inf")


def _print_result(replay: "Replay", where: str, as_json: bool, *, before: bool) -> None:
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
