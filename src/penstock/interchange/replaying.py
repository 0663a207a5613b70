"""Part of a history once more: into streams of a store, or through a queue; going on where it was interrupted.

A replay is of one moment: its end is fixed when it begins. It goes out in pieces, in order, under producer marks whose
numbers are the positions of the source that the pieces end at. So the store that takes them knows how far the replay
is, and nothing is there twice, whatever ends it. A note in a file says what it is of; see `replay_notes`.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from penstock.history.histories import History, check_identity, open_history
from penstock.interchange.exporting import Selection, begin_of, in_time
from penstock.interchange.reading import BATCH_BYTES_MAX
from penstock.interchange.replay_notes import Note, NoteFile, ReplayRefused
from penstock.interchange.replay_pace import Pace
from penstock.interchange.replay_reading import Cutter, Piece, stretches
from penstock.interchange.replay_targets import Places, QueueTarget, StreamsTarget, Target
from penstock.interchange.sending import Sender, sender_to
from penstock.model import Event, EventFilter, now_ticks
from penstock.model.times import now_text
from penstock.store.contract import StoreIdentity

SCHEME: Final = 1
"""Changes with what the numbers of marks mean."""
NOTE_S: Final = 1.0
"""How often it is noted how far one is where nothing is sent."""
FORGOTTEN_S_MIN: Final = 24 * 3600.0
"""Seconds that every target remembers a replay for, and longer: a younger one that it does not know was never sent."""

Progressed = Callable[["Replay"], object]
"""Told now and then how far a replay is."""


class Stop(Protocol):
    """Says when somebody wants a replay to end."""

    @property
    def is_set(self) -> bool:
        """Whether they do."""

    def wait(self, seconds: float) -> bool:
        """Wait so long; answers False, at once, when they do."""


@dataclass(frozen=True, slots=True)
class Through:
    """A queue of the source."""

    queue: str
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Into:
    """Streams of a store."""

    url: str
    places: Places


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. `said` is how positions and times were named: the same words are the same replay."""

    url: str
    selection: Selection
    target: Through | Into
    said: tuple[str | None, ...] = ()
    name: str | None = None
    state: Path | None = None
    """The file of the note; None: one of its name in `folder`."""
    folder: Path = Path()
    again: bool = False
    rate: float | None = None


# --- beginning ------------------------------------------------------------------------------------------------


@contextmanager
def replay_of(wanted: Wanted) -> Iterator["Replay"]:
    """A replay, ready to begin or to go on. Raises ReplayRefused, StoreChanged."""
    url = wanted.target.url if isinstance(wanted.target, Into) else wanted.url
    with closing(open_history(wanted.url)) as history, sender_to(url) as sender:
        target = _target(wanted, sender)
        source, there = history.now(), target.identity()
        _check(wanted, history, source.identity, there)
        asked = _digest(_asked(wanted, target, source.identity, there))
        name = wanted.name or f"replay-{asked[:12]}"
        if wanted.state is not None and not wanted.state.absolute().parent.is_dir():
            raise ReplayRefused(f"{wanted.state}: there is no such folder; name another file with --state")
        with NoteFile(wanted.state or wanted.folder / f"{name}.json") as file:
            new = Note(name, asked, _pair(source.identity), _pair(there), 1, source.head)
            note = _gone_on(file.read(), new, wanted.again) or _planned(new, wanted, history, target)
            replay = Replay(wanted, history, target, file, note)
            replay.catch_up()
            yield replay


def _target(wanted: Wanted, sender: Sender) -> Target:
    if isinstance(wanted.target, Into):
        return StreamsTarget(sender, wanted.target.places)
    target = QueueTarget(sender, wanted.target.queue, wanted.target.context)
    queue, context = target.queue, wanted.selection.context
    if context not in (None, queue.context):
        raise ReplayRefused(f"queue {queue.name} is of context {queue.context}, and has no events of {context}")
    return target


def _check(wanted: Wanted, history: History, source: StoreIdentity, there: StoreIdentity) -> None:
    context, target = wanted.selection.context, wanted.target
    if context is not None and not history.context_bytes(context):
        raise ReplayRefused(f"there is no context {context} with events in the source")
    if not isinstance(target, Into) or source != there:
        return
    if target.places.context in (None, context):
        raise ReplayRefused("the target is the source, which would feed on itself: say another --to-context")
    if context is None:
        raise ReplayRefused("the target is the source: say --context, so that it does not feed on itself")


def _asked(wanted: Wanted, target: Target, source: StoreIdentity, there: StoreIdentity) -> list[object]:
    """What makes it the same replay. Timelines do not: one that has changed is found, and refused."""
    selection = wanted.selection
    where: tuple[object, ...]
    if isinstance(target, QueueTarget):
        where = ("queue", target.queue.context, target.queue.name)
    else:
        assert isinstance(wanted.target, Into)
        where = ("streams", wanted.target.places.context, wanted.target.places.prefix)
    return [source.id, there.id, *where, selection.context, selection.filter, selection.types, *wanted.said]


def _pair(identity: StoreIdentity) -> tuple[str, int]:
    return identity.id, identity.timeline


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps([SCHEME, value]).encode()).hexdigest()


def _gone_on(before: Note | None, new: Note, again: bool) -> Note | None:
    """The note to go on with; None if there is none, or a finished one is to be done again."""
    if before is None:
        new.run = now_ticks() if again else 0
        return None
    if before.asked != new.asked:
        raise ReplayRefused(f"replay {before.name} is of other events, or to another place; say another --name")
    if before.finished and again:
        new.run = now_ticks()
        return None
    if not before.finished:
        where = "the state of this replay"
        check_identity(StoreIdentity(*before.source), StoreIdentity(*new.source), where)
        check_identity(StoreIdentity(*before.target), StoreIdentity(*new.target), where)
    return before


def _planned(new: Note, wanted: Wanted, history: History, target: Target) -> Note:
    """Fix what it is of, from now on."""
    selection = wanted.selection
    new.since, new.until = selection.since, selection.until
    new.last = min(new.last, selection.last)
    if isinstance(target, QueueTarget):
        # What the queue has not come to yet is handed out anyway.
        new.last = min(new.last, target.queue.position - 1)
        selection = replace(selection, context=target.queue.context)
    new.first = min(begin_of(history, selection), max(new.last, 0) + 1)
    new.done = new.first - 1
    return new


# --- doing it -------------------------------------------------------------------------------------------------


class Replay:
    """A replay that is under way."""

    def __init__(self, wanted: Wanted, history: History, target: Target, file: NoteFile, note: Note) -> None:
        self._wanted = wanted
        self._selection = replace(wanted.selection, since=note.since, until=note.until)
        self._history = history
        self._target = target
        self._file = file
        self._sent: Piece | None = None
        self._noted_at = time.monotonic()
        self.note = note
        self.resumed_at: int | None = None
        """The position up to which it was done before, if it goes on."""

    @property
    def waiting(self) -> int | None:
        """Events that wait for consumers, if that is known."""
        return self._target.waiting

    @property
    def producer(self) -> str:
        """Under which name its marks are kept."""
        note = self.note
        return f"replay-{_digest([note.name, note.asked, note.run, note.source])[:32]}"

    def catch_up(self) -> None:
        """Learn from the target how far it is."""
        note = self.note
        if note.finished:
            return
        known = self._target.highest(self.producer)
        is_old = time.time() - note.sending_at > FORGOTTEN_S_MIN
        if known is None and note.sending > note.done and (note.events or is_old):
            # Whether that piece is there the target could have said, had it not forgotten the replay meanwhile.
            raise ReplayRefused(
                f"the target has forgotten how far replay {note.name} is, which was at position {note.done}: look "
                f"whether it has what comes behind that position, up to {note.sending}, and begin another with --from"
            )
        if known is not None and known >= note.sending > note.done:
            note.events += note.sending_events
        note.done = max(note.done, known or 0)
        if note.done >= note.first:
            self.resumed_at = note.done
        elif isinstance(self._target, StreamsTarget):
            self._target.check_new(self._selection.context)
        self._file.write(note, lasting=True)

    def run(self, stop: Stop, progressed: Progressed) -> bool:
        """Replay what is left; whether that was all. Whatever ends it, it can be gone on with."""
        try:
            if not self._run(stop, progressed):
                return False
            self.note.done, self.note.finished = self.note.last, now_text()
            return True
        finally:
            self._file.write(self.note, lasting=True)

    def _run(self, stop: Stop, progressed: Progressed) -> bool:
        pace = Pace(self._wanted.rate)
        for piece in self._pieces(pace):
            self._settle()
            progressed(self)
            if stop.is_set or not self._send(piece, pace, stop, progressed):
                return False
        self._settle()
        progressed(self)
        return True

    def _pieces(self, pace: Pace) -> Iterator[Piece]:
        note, target = self.note, self._target
        sending = note.sending if note.sending > note.done else 0
        size = pace.batch(target.events_max)
        cutter = Cutter(size, BATCH_BYTES_MAX, sending, unbroken=target.unbroken)
        found = stretches(self._history, self._passing(), note.done + 1, note.last)
        return cutter.cut(found, self._is_wanted, note.last)

    def _passing(self) -> EventFilter:
        if isinstance(self._target, QueueTarget):
            return self._target.passing
        return EventFilter(self._selection.context, self._selection.filter, self._selection.types)

    def _is_wanted(self, event: Event) -> bool:
        wanted = self._selection
        prefix = "" if wanted.filter == "*" else wanted.filter
        is_named = event.stream.startswith(prefix) and (wanted.types is None or event.type in wanted.types)
        # Somebody who is at the same replay may be further than this.
        return is_named and event.position > self.note.done and in_time(event, wanted)

    def _send(self, piece: Piece, pace: Pace, stop: Stop, progressed: Progressed) -> bool:
        """Send a piece when its time has come. False if somebody wants the replay to end: then it was not sent."""
        piece = piece._replace(events=[event for event in piece.events if event.position > self.note.done])
        if not piece.events:
            self._pass(piece)
            return True

        def wait(seconds: float) -> bool:
            progressed(self)
            return stop.wait(seconds)

        if not wait(pace.wait_s()):
            return False
        self._note_sending(piece)
        if not self._target.start(piece, self.producer, wait):
            self.note.sending = self.note.sending_events = 0
            return False
        self._sent = piece
        pace.took(len(piece.events))
        return True

    def _note_sending(self, piece: Piece) -> None:
        """Say first what goes out: sent again after a kill, it must be the same piece."""
        self.note.sending, self.note.sending_events = piece.last, len(piece.events)
        self.note.sending_at = time.time()
        self._file.write(self.note)

    def _pass(self, piece: Piece) -> None:
        """Nothing was wanted up to here."""
        self.note.done = max(self.note.done, piece.last)
        self.note.erased += piece.erased
        if time.monotonic() - self._noted_at >= NOTE_S:
            self._noted_at = time.monotonic()
            self._file.write(self.note)

    def _settle(self) -> None:
        """Wait for what was sent; from then on it is done."""
        passed = self._target.settle()
        piece, self._sent = self._sent, None
        if piece is None:
            return
        note = self.note
        note.done = max(note.done, piece.last, passed or 0)
        left_out = self._target.take_left_out()
        note.left_out += left_out
        note.events += len(piece.events) - left_out
        note.erased += piece.erased
        note.sending = note.sending_events = 0
