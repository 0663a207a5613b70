"""`penstock replay`: part of a history once more, through a queue or into streams of a store."""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.bars import rate_bar
from penstock.cli.connecting import Data, Url, address_of, explained, telling
from penstock.cli.exporting import check_names
from penstock.cli.options import TIMES, Filter, Types, moment
from penstock.cli.output import AsJson, complain, counted, fail, print_document, print_line, refuse, remark
from penstock.errors import CannotConnect, PenstockError
from penstock.model import check_context, check_stream, ticks_of_datetime
from penstock.settings.loading import without_password

if TYPE_CHECKING:
    from penstock.interchange.exporter import Selection
    from penstock.interchange.replay import IntoStreams, Replay, ReplayRequest, ThroughQueue

__all__ = ["replay_command"]

STATE_ENVIRONMENT: Final = "XDG_STATE_HOME"
"""The environment variable that names the directory for what programs keep from one run to the next."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SHOWN_S: Final = 0.1
"""How often progress is shown."""
WAIT_S_MAX: Final = 3600.0
"""Seconds that are waited for at a time."""
STALLED_S: Final = 10.0
"""After how long it is said that consumers are waited for, where no progress is shown."""


class Expected(StrEnum):
    """What there may be when a replay begins."""

    ANY = "any"
    NEW = "new"


def replay_command(
    context: Annotated[str | None, typer.Option("--context", help="only this context", metavar="NAME")] = None,
    filter: Filter = "",
    types: Types = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--from",
            help=f"from this position on, or only events of this time or later: {TIMES}",
            metavar="POSITION|TIME",
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="up to this position, which is the last, or only events of before this time",
            metavar="POSITION|TIME",
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="hand the events out once more, through this queue", metavar="NAME")
    ] = None,
    queue_context: Annotated[
        str | None,
        typer.Option("--queue-context", help="the queue's context, if others have one of that name", metavar="NAME"),
    ] = None,
    to_url: Annotated[
        str | None,
        typer.Option(
            "--to-url", help="append the events to this store, or through this server; as --url", metavar="URL"
        ),
    ] = None,
    to_context: Annotated[
        str | None,
        typer.Option(
            "--to-context",
            help="append the events to this context; without --to-url, of the same store",
            metavar="NAME",
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(
            "--to-stream-prefix", help="what names of streams begin with there", metavar="TEXT", show_default=False
        ),
    ] = "",
    expected: Annotated[
        Expected,
        typer.Option("--expected", help="new: begin only where there are no streams yet"),
    ] = Expected.ANY,
    rate: Annotated[
        float | None, typer.Option("--rate", help="at most so many events in a second", metavar="N", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="the name of this replay; otherwise one made from what is said here", metavar="NAME"
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="the file that notes what it is of, and how far", metavar="FILE", show_default=False
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="once more, if it was finished")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Replay part of a history: through a queue, or into streams of another context or store.

    Positions and times say which events, in the order of the history. Times are those of the events themselves, and
    each event is judged by its own. The end is fixed when a replay begins. Whatever ends it, the same command goes on
    where it was, and nothing goes out twice.
    """
    target = Given(queue, queue_context, to_url, to_context, prefix, expected)
    target.check()
    if rate is not None and not 0 < rate < float("inf"):
        refuse(f"--rate {rate} is no number of events in a second")
    if name is not None and not NAME.fullmatch(name):
        refuse("--name must be of letters, digits, dots, dashes and underscores")
    named = tuple(types) if types else None
    check_names(context, filter, named or ())
    selection = selected(context, filter, named, first, last)
    with telling():
        # It takes a moment to import, and help needs none of it.
        from penstock.interchange.replay import ReplayRequest  # noqa: PLC0415

        address = address_of(url, data)
        said = (first, last)
        wanted = ReplayRequest(address, selection, target.of(address), said, name, state, state_folder(), again, rate)
        _replay(wanted, target.shown(), as_json)


# --- what is asked for ----------------------------------------------------------------------------------------


class Given:
    """Where events go, as it was said."""

    def __init__(
        self,
        queue: str | None,
        queue_context: str | None,
        url: str | None,
        context: str | None,
        prefix: str,
        expected: Expected,
    ) -> None:
        self._queue = queue
        self._queue_context = queue_context
        self._url = url
        self._context = context
        self._prefix = prefix
        self._is_new = expected is Expected.NEW

    def check(self) -> None:
        """End the command if it names no place, or two."""
        into = self._url is not None or self._context is not None
        if self._queue is not None and into:
            refuse("--queue does not go with --to-url and --to-context: say one of them")
        if self._queue is None and not into:
            refuse("say where to: either --queue, or --to-url or --to-context")
        if self._queue is None and self._queue_context is not None:
            refuse("--queue-context belongs to --queue")
        if self._queue is not None and (self._prefix or self._is_new):
            refuse("--to-stream-prefix and --expected belong to --to-url and --to-context")
        if self._context is not None and (reason := check_context(self._context)):
            refuse(f"--to-context {reason}")
        if self._prefix and (reason := check_stream(self._prefix)):
            refuse(f"--to-stream-prefix {reason}")

    def of(self, address: str) -> "ThroughQueue | IntoStreams":
        """The same, for whoever does it."""
        from penstock.interchange.replay import IntoStreams, ThroughQueue  # noqa: PLC0415
        from penstock.interchange.replay_targets import Places  # noqa: PLC0415

        if self._queue is not None:
            return ThroughQueue(self._queue, self._queue_context)
        return IntoStreams(self._url or address, Places(self._context, self._prefix, self._is_new))

    def shown(self) -> str:
        """The same, for people."""
        if self._queue is not None:
            return f"through queue {self._queue}"
        context = "" if self._context is None else f"context {self._context}"
        store = "" if self._url is None else str(without_password(self._url))
        return "into " + " of ".join(filter(None, (context, store)))


def selected(
    context: str | None, filter: str, types: tuple[str, ...] | None, first: str | None, last: str | None
) -> "Selection":
    """Which events; ends the command if none can be."""
    from penstock.interchange.exporter import POSITION_MAX, Selection  # noqa: PLC0415

    begin, since = _end("--from", first)
    end, until = _end("--to", last)
    if (None not in (begin, end) and begin > end) or (None not in (since, until) and since >= until):  # type: ignore[operator]
        refuse(f"--from {first} comes after --to {last}: there is nothing between them")
    return Selection(
        context, filter, types, 1 if begin is None else begin, POSITION_MAX if end is None else end, since, until
    )


def _end(option: str, text: str | None) -> tuple[int | None, int | None]:
    """A position, or the ticks of a time."""
    if text is None:
        return None, None
    if not text.isdecimal():
        return None, ticks_of_datetime(moment(text))
    if not 1 <= int(text) < 1 << 63:
        refuse(f"{option} {text} is no position: they count from 1")
    return int(text), None


def state_folder() -> Path:
    """Where notes are kept."""
    return Path(os.environ.get(STATE_ENVIRONMENT) or "~/.local/state").expanduser() / "penstock" / "replays"


# --- ending it early ------------------------------------------------------------------------------------------


class Signals:
    """Ctrl-C and SIGTERM, once: what is under way is finished. The second one ends the process at once."""

    def __init__(self) -> None:
        self.number = 0
        self._read, self._write = os.pipe()

    @property
    def is_set(self) -> bool:
        """Whether one has come."""
        return bool(self.number)

    def wait(self, seconds: float) -> bool:
        """Wait so long; False, at once, when one comes."""
        deadline = time.monotonic() + seconds
        # No clock of the system's takes any number of seconds, which a very small rate makes.
        while not self.number and (left := deadline - time.monotonic()) > 0:
            select.select([self._read], [], [], min(left, WAIT_S_MAX))
        return not self.number

    def caught(self, number: int, _frame: FrameType | None) -> None:
        """One has come."""
        if self.number:
            os._exit(128 + number)
        self.number = number
        # A lock may be held by whoever was interrupted: only a pipe can wake it.
        os.write(self._write, b".")

    def close(self) -> None:
        """Release everything."""
        os.close(self._read)
        os.close(self._write)


@contextmanager
def signals() -> Iterator[Signals]:
    """From now on, signals do not end the process by themselves."""
    caught = Signals()
    before = {number: signal.signal(number, caught.caught) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        caught.close()


# --- doing it -------------------------------------------------------------------------------------------------


def _replay(wanted: "ReplayRequest", where: str, as_json: bool) -> None:
    from penstock.interchange.replay import open_replay  # noqa: PLC0415

    try:
        with open_replay(wanted) as replay:
            if replay.note.finished:
                _conclude(replay, where, as_json, before=True)
                return
            if replay.resumed_at is not None:
                remark(f"replay {replay.note.name} goes on behind position {replay.resumed_at:,}")
            _run(replay, where, wanted)
            _conclude(replay, where, as_json, before=False)
    except CannotConnect as error:
        fail(_told(error, wanted))


def _told(error: PenstockError, wanted: "ReplayRequest") -> str:
    """An error for people; two options name servers, and the right one is to be said."""
    to = getattr(wanted.target, "url", wanted.url)
    is_target = isinstance(error, CannotConnect) and to != wanted.url and error.url in to
    return explained(error).replace("or say --url", "or say --to-url") if is_target else explained(error)


def _run(replay: "Replay", where: str, wanted: "ReplayRequest") -> None:
    """Replay all of it, or end the command with how to go on."""
    with signals() as caught:
        try:
            with rate_bar("replaying", rated=False) as bar:
                is_done = replay.run(caught, Shown(bar).show)
        except PenstockError as error:
            fail(f"{_told(error, wanted)}: {_so_far(replay, where)}")
        if not is_done:
            raise typer.Exit(complain(f"interrupted: {_so_far(replay, where)}", 128 + caught.number))


def _so_far(replay: "Replay", where: str) -> str:
    note = replay.note
    done = f"{counted(note.events, 'event')} went {where}, up to position {note.done:,} of {note.last:,}"
    return f"{done}; run the same command again, and it goes on"


class Shown:
    """Progress for people: how many events, how fast, and where."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._begun: tuple[float, int] | None = None
        self._at = 0.0
        self._moved = -1, 0.0

    def show(self, replay: "Replay") -> None:
        """Show how far it is, if it was not shown a moment ago."""
        now, note = time.monotonic(), replay.note
        self._tell_if_stalled(replay, now)
        if self._begun is None:
            self._begun = now, note.events
        if now - self._at < SHOWN_S:
            return
        self._at = now
        rate = (note.events - self._begun[1]) / max(now - self._begun[0], SHOWN_S)
        waiting = "" if replay.waiting is None else f", {replay.waiting:,} waiting"
        what = f"{counted(note.events, 'event')}{waiting}, {rate:,.0f}/s, position {note.done:,}"
        self._bar(note.done - note.first + 1, note.last - note.first + 1, what)

    def _tell_if_stalled(self, replay: "Replay", now: float) -> None:
        """Say once that nothing goes on because nobody takes what waits: a log has no bar to look at."""
        done, since = self._moved
        if done != replay.note.done:
            self._moved = replay.note.done, now
        elif replay.waiting and now - since > STALLED_S and not sys.stderr.isatty():
            complain(f"{counted(replay.waiting, 'event')} in the queue wait for consumers, who are waited for", 0)
            self._moved = done, float("inf")


def _conclude(replay: "Replay", where: str, as_json: bool, *, before: bool) -> None:
    note = replay.note
    if as_json:
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
        print_document(document)
        return
    of = f"positions {note.first:,} to {note.last:,}" if note.first <= note.last else "no position"
    said = f"{counted(note.events, 'event')} {where}, of {of}"
    print_line(f"{said}{_rest(replay)}" + (_before(note.finished) if before else ""))


def _rest(replay: "Replay") -> str:
    note = replay.note
    parts = (
        (note.erased, f"{counted(note.erased, 'position')} had nothing any more"),
        (note.left_out, f"{counted(note.left_out, 'event')} left out: on their way anyway, or dead letters"),
        (replay.waiting, f"{counted(replay.waiting or 0, 'event')} waiting for consumers"),
    )
    is_none = note.first <= note.last and not note.events and not note.left_out
    nothing = "; there is none there that was asked for" if is_none else ""
    return nothing + "".join(f"; {text}" for number, text in parts if number)


def _before(finished: str | None) -> str:
    return f": this was finished at {finished}, and nothing was done now; say --again to do it once more"
