"""Replaying part of a history: into streams of a store, or through a queue. The same call continues after any end.

A replay is a snapshot: it fixes its end when it begins. It sends batches in order, under producer marks whose numbers
are the positions of the source that the batches end at. So the target store knows how far the replay is, and no event
is there twice. A note in a file holds what the marks cannot: the request, the last position, and the batch in flight.
The replay writes it before each batch, and replaces it in one step.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Protocol, Self

from penstock.files import atomic_write, made_of, make_folder, private, read_file, sealed, try_lock, unsealed
from penstock.history.source import History, check_identity, open_history
from penstock.interchange.exporter import Selection
from penstock.interchange.replay_targets import (
    BatchLimits,
    IntoStreams,
    QueueTarget,
    ReplayBatch,
    ReplayRefused,
    ReplayTarget,
    StreamsTarget,
    ThroughQueue,
    cut_into_batches,
    history_pages,
)
from penstock.interchange.sender import BATCH_BYTES_MAX, Sender, open_sender
from penstock.model import Event, now_ticks
from penstock.model.times import now_text
from penstock.store.contract import StoreIdentity

SCHEME: Final = 1
"""Version of the meaning of marks' numbers."""
NOTE_BYTES_MAX: Final = 1 << 20
NOTE_S: Final = 1.0
"""How often a replay updates its note while it finds no events to send."""
FORGOTTEN_S_MIN: Final = 24 * 3600.0
"""Every target remembers a replay for at least so many seconds. If it does not know a younger one, nothing was sent."""
STEP_S: Final = 0.1
"""A replay with a rate sends what may go out in so many seconds together: small steps instead of bursts."""

Progressed = Callable[["Replay"], object]
"""Called from time to time."""


class Stop(Protocol):
    """Says when a replay is to stop."""

    @property
    def is_set(self) -> bool: ...

    def wait(self, seconds: float) -> bool:
        """Wait so many seconds. Returns False at once when the replay is to stop."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request to replay. `written_range` is how the user named positions and times."""

    url: str
    selection: Selection
    target: ThroughQueue | IntoStreams
    written_range: tuple[str | None, ...] = ()
    """The same words are the same replay."""
    name: str | None = None
    state: Path | None = None
    """The file of the note; by default one with the replay's name in `folder`."""
    folder: Path = Path()
    again: bool = False
    rate: float | None = None


# --- notes ----------------------------------------------------------------------------------------------------


@dataclass
class Note:
    """How far a replay is."""

    name: str
    asked: str
    """A digest of the request: only the same request continues."""
    source: tuple[str, int]
    target: tuple[str, int]
    """Store and timeline of both."""
    first: int
    last: int
    """The range of positions."""
    since: int | None = None
    until: int | None = None
    """The times of events, in ticks; the second one exclusive."""
    run: int = 0
    """Differs for each time that the user repeats a finished replay."""
    done: int = 0
    """The replay is done up to this position."""
    sending: int = 0
    sending_events: int = 0
    """The last position and the events of the batch in flight, or 0."""
    sending_at: float = 0.0
    """When the replay noted that batch, in seconds since 1970."""
    events: int = 0
    left_out: int = 0
    erased: int = 0
    finished: str | None = None
    """When the replay was finished."""


class NoteFile:
    """The file of a note, locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._refusing():
            make_folder(path.parent)
            self._lock = private(f"{path}.lock", os.O_RDWR | os.O_CREAT)
        if not try_lock(self._lock):
            os.close(self._lock)
            raise ReplayRefused(f"another process is at this replay; {path}.lock is its lock")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ReplayRefused(f"{self.path}: {reason}; name another file with --state") from None

    def read(self) -> Note | None:
        try:
            with self._refusing():
                data = read_file(self.path, NOTE_BYTES_MAX) if self.path.exists() else None
            if data is None:
                return None
            note = made_of(Note, unsealed(data))
            if not 0 <= note.first - 1 <= note.done <= max(note.last, note.first - 1) or note.sending < 0:
                raise ValueError("its positions do not fit together")
        except (ValueError, TypeError) as error:
            reason = f"{self.path} is no state of a replay: {error}; name another file with --state"
            raise ReplayRefused(reason) from None
        return note

    def write(self, note: Note, *, lasting: bool = False) -> None:
        """Replace the note. A `lasting` one survives a power cut."""
        with self._refusing(), atomic_write(self.path, sync=lasting) as file:
            file.write(sealed(asdict(note)).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


# --- the plan -------------------------------------------------------------------------------------------------


@contextmanager
def open_replay(request: ReplayRequest) -> Iterator["Replay"]:
    """A replay that is ready to begin or to continue. Raises ReplayRefused, StoreChanged."""
    url = request.target.url if isinstance(request.target, IntoStreams) else request.url
    with closing(open_history(request.url)) as history, open_sender(url) as sender:
        target = _open_target(request, sender)
        source, there = history.now(), target.identity()
        _check(request, history, source.identity, there)
        # Timelines do not identify a replay: one whose timeline has changed is found, and refused.
        selected = request.selection.context, request.selection.filter, request.selection.types
        asked = _digest([source.identity.id, there.id, *target.key, *selected, *request.written_range])
        name = request.name or f"replay-{asked[:12]}"
        if request.state is not None and not request.state.absolute().parent.is_dir():
            raise ReplayRefused(f"{request.state}: there is no such folder; name another file with --state")
        with NoteFile(request.state or request.folder / f"{name}.json") as file:
            new = Note(name, asked, (*source.identity,), (*there,), 1, source.head)
            note = _resume(file.read(), new, request.again) or _plan(new, request, history, target)
            replay = Replay(request, history, target, file, note)
            replay.catch_up()
            yield replay


def _open_target(request: ReplayRequest, sender: Sender) -> ReplayTarget:
    if isinstance(request.target, IntoStreams):
        return StreamsTarget(sender, request.target)
    target = QueueTarget(sender, request.target)
    queue, context = target.queue, request.selection.context
    if context not in (None, queue.context):
        raise ReplayRefused(f"queue {queue.name} is of context {queue.context}, and has no events of {context}")
    return target


def _check(request: ReplayRequest, history: History, source: StoreIdentity, there: StoreIdentity) -> None:
    context, target = request.selection.context, request.target
    if context is not None and not history.context_bytes(context):
        raise ReplayRefused(f"there is no context {context} with events in the source")
    if not isinstance(target, IntoStreams) or source != there:
        return
    if target.context in (None, context):
        raise ReplayRefused("the target is the source, which would feed on itself: say another --to-context")
    if context is None:
        raise ReplayRefused("the target is the source: say --context, so that it does not feed on itself")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps([SCHEME, value]).encode()).hexdigest()


def _resume(before: Note | None, new: Note, again: bool) -> Note | None:
    """The note to continue from, if one exists and the user does not repeat a finished replay."""
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


def _plan(new: Note, request: ReplayRequest, history: History, target: ReplayTarget) -> Note:
    """Fix the range of a new replay."""
    selection = request.selection
    new.since, new.until = selection.since, selection.until
    new.last = min(new.last, selection.last)
    if isinstance(target, QueueTarget):
        # Consumers get the events after the queue's position anyway.
        new.last = min(new.last, target.queue.position - 1)
        selection = replace(selection, context=target.queue.context)
    new.first = min(selection.begin_in(history), max(new.last, 0) + 1)
    new.done = new.first - 1
    return new


# --- the replay -----------------------------------------------------------------------------------------------


class Pace:
    """A token bucket that holds one step. A batch may take more than there is: then the next one waits longer."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock()

    def batch(self, events_max: int) -> int:
        """How many events a batch has, of so many at most."""
        return events_max if self._rate is None else max(1, min(events_max, int(self._rate * STEP_S)))

    def wait_s(self) -> float:
        """Seconds until the next batch may go out."""
        return max(0.0, self._due - self._clock())

    def took(self, events: int) -> None:
        """Take so many events out of the bucket."""
        if self._rate is not None:
            # After a slow time, the replay does not catch up all at once.
            self._due = max(self._due, self._clock() - STEP_S) + events / self._rate


class Replay:
    """One replay, from `open_replay`."""

    def __init__(
        self, request: ReplayRequest, history: History, target: ReplayTarget, file: NoteFile, note: Note
    ) -> None:
        self._selection = replace(request.selection, since=note.since, until=note.until)
        self._rate = request.rate
        self._history = history
        self._target = target
        self._file = file
        self._sent: ReplayBatch | None = None
        self._noted_at = time.monotonic()
        self.note = note
        self.resumed_at: int | None = None
        """The position up to which earlier runs have replayed."""

    @property
    def waiting(self) -> int | None:
        """Events that wait for consumers, if known."""
        return self._target.waiting

    @property
    def producer(self) -> str:
        """The producer of its marks."""
        note = self.note
        return f"replay-{_digest([note.name, note.asked, note.run, note.source])[:32]}"

    def catch_up(self) -> None:
        """Ask the target how far the replay is."""
        note = self.note
        if note.finished:
            return
        known = self._target.sender.highest(self.producer)
        is_old = time.time() - note.sending_at > FORGOTTEN_S_MIN
        if known is None and note.sending > note.done and (note.events or is_old):
            # Only the target could have said whether it has the batch in flight.
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
        """Replay the rest, and return whether that was all. After any end, another run continues."""
        note, pace = self.note, Pace(self._rate)
        try:
            for batch in self._batches(pace):
                self._settle()
                progressed(self)
                if stop.is_set or not self._send(batch, pace, stop, progressed):
                    return False
            self._settle()
            progressed(self)
            note.done, note.finished = note.last, now_text()
            return True
        finally:
            self._file.write(note, lasting=True)

    def _batches(self, pace: Pace) -> Iterator[ReplayBatch]:
        note, target, selection = self.note, self._target, self._selection
        first_end = note.sending if note.sending > note.done else 0
        limits = BatchLimits(pace.batch(target.events_max), BATCH_BYTES_MAX, first_end, target.unbroken)
        pages = history_pages(self._history, target.passing(selection), note.done + 1, note.last)
        return cut_into_batches(pages, self._is_selected, note.last, limits)

    def _is_selected(self, event: Event) -> bool:
        selection = self._selection
        prefix = "" if selection.filter == "*" else selection.filter
        is_named = event.stream.startswith(prefix) and (selection.types is None or event.type in selection.types)
        # Another process at the same replay may be further.
        return is_named and event.position > self.note.done and selection.includes_time(event)

    def _send(self, batch: ReplayBatch, pace: Pace, stop: Stop, progressed: Progressed) -> bool:
        """Send a batch when the rate allows it. False, without sending, if the replay is to stop."""
        note = self.note
        batch = batch._replace(events=[event for event in batch.events if event.position > note.done])
        if not batch.events:
            note.done = max(note.done, batch.last)
            note.erased += batch.erased
            if time.monotonic() - self._noted_at >= NOTE_S:
                self._noted_at = time.monotonic()
                self._file.write(note)
            return True

        def wait(seconds: float) -> bool:
            progressed(self)
            return stop.wait(seconds)

        if not wait(pace.wait_s()):
            return False
        # Note the batch first: after a kill, the next run must send the same one.
        note.sending, note.sending_events, note.sending_at = batch.last, len(batch.events), time.time()
        self._file.write(note)
        if not self._target.start(batch, self.producer, wait):
            note.sending = note.sending_events = 0
            return False
        self._sent = batch
        pace.took(len(batch.events))
        return True

    def _settle(self) -> None:
        """Wait for the batch in flight, and count it."""
        passed, left_out = self._target.settle()
        batch, self._sent = self._sent, None
        if batch is None:
            return
        note = self.note
        note.done = max(note.done, batch.last, passed)
        note.left_out += left_out
        note.events += len(batch.events) - left_out
        note.erased += batch.erased
        note.sending = note.sending_events = 0
