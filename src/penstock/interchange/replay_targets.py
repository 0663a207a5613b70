"""Where a replay goes: streams of a store, or once more through a queue.

Both take pieces under producer marks whose numbers are positions of the source, so that the store that takes them
knows exactly how far the replay is, whatever becomes of whoever sends them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final

from penstock.errors import MarkSuperseded
from penstock.interchange.reading import BATCH_EVENTS_MAX
from penstock.interchange.replay_notes import ReplayRefused
from penstock.interchange.replay_reading import Piece
from penstock.interchange.sending import Sender
from penstock.model import (
    ANY,
    Append,
    Event,
    EventFilter,
    GetStats,
    ListQueues,
    ListStreams,
    NewEvent,
    ProducerMark,
    QueueInfo,
    QueuePage,
    Replayed,
    ReplayQueue,
    StoreStats,
    StreamPage,
    check_stream,
)
from penstock.store.contract import LOG_CONTEXT, StoreIdentity

QUEUE_EVENTS_MAX: Final = 100
"""Events that are put back into a queue together: what its consumers get as one batch."""
FULL_S_MIN: Final = 0.05
FULL_S_MAX: Final = 1.0
"""How long one waits for consumers before one asks again whether there is room in a queue."""

Wait = Callable[[float], bool]
"""Waits so many seconds; answers False, at once, if nobody wants to wait any more."""


class Target(ABC):
    """Where events go, a piece at a time."""

    events_max: ClassVar[int]
    """Events of a piece."""
    unbroken: ClassVar[bool]
    """Whether a piece has all events of the history, that the target could have, between its first and its last."""
    waiting: int | None = None
    """Events that wait there for somebody, if that is known."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._left_out = 0

    def take_left_out(self) -> int:
        """How many events were not taken since this was asked, because they are on their way anyway."""
        left_out, self._left_out = self._left_out, 0
        return left_out

    def identity(self) -> StoreIdentity:
        """What store it is."""
        stats = self._sender.ask(GetStats(), StoreStats)
        return StoreIdentity(stats.store_id, stats.timeline)

    def highest(self, producer: str) -> int | None:
        """Up to which position a producer's events are there, if it is known here."""
        return self._sender.highest(producer)

    @abstractmethod
    def start(self, piece: Piece, producer: str, wait: Wait) -> bool:
        """Send a piece; the one before must be settled. False if nobody wanted to wait any more: it was not sent."""

    @abstractmethod
    def settle(self) -> int | None:
        """Wait until what was sent is done. If somebody else was further already: up to which position."""


# --- streams of a store ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """How streams are called where they go."""

    context: str | None = None
    """None: the context that they have."""
    prefix: str = ""
    new: bool = False
    """Whether there may be none of them when the replay begins."""

    def of(self, event: Event) -> tuple[str, str]:
        """The context and stream that an event goes to. Raises ReplayRefused."""
        stream = self.prefix + event.stream
        if self.prefix and (reason := check_stream(stream)):
            raise ReplayRefused(f"the event at position {event.position} has no place: its stream {reason}")
        return self.context or event.context, stream


class StreamsTarget(Target):
    """Streams of a store: events are appended with the ids, times, types, headers and bodies that they have."""

    events_max = BATCH_EVENTS_MAX
    unbroken = False

    def __init__(self, sender: Sender, places: Places) -> None:
        super().__init__(sender)
        self._places = places
        self._logs: set[str] = set()

    def check_new(self, context: str | None) -> None:
        """Raise ReplayRefused if the streams must be new, and there are some where those of a context would go."""
        context = self._places.context or context
        if not self._places.new:
            return
        if context is None and self._sender.ask(GetStats(), StoreStats).head:
            raise ReplayRefused("there are events in the target already, which must be new: nothing was sent")
        if context is not None:
            page = self._sender.ask(ListStreams(context, self._places.prefix, "", 1), StreamPage)
            for found in page.streams:
                where = f"stream {found.name} of context {context} is there already"
                raise ReplayRefused(f"{where}, and streams must be new: nothing was sent")

    def start(self, piece: Piece, producer: str, wait: Wait) -> bool:  # noqa: ARG002 - a store has room
        """See Target."""
        grouped = [(place, list(events)) for place, events in groupby(piece.events, key=self._places.of)]
        self._make_logs({stream for (context, stream), _ in grouped if context == LOG_CONTEXT})
        commits = tuple(Append(context, stream, tuple(map(_new, events)), ANY) for (context, stream), events in grouped)
        self._sender.start(commits, len(piece.events), ProducerMark(producer, piece.last))
        return True

    def _make_logs(self, names: set[str]) -> None:
        self._sender.create_logs(tuple(sorted(names - self._logs)))
        self._logs |= names

    def settle(self) -> int | None:
        """See Target."""
        is_under_way = self._sender.is_under_way
        if self._sender.settle() is None and is_under_way:
            return self._sender.passed
        return None


def _new(event: Event) -> NewEvent:
    return NewEvent(event.id, event.stamp, event.type, event.headers, event.body)


# --- through a queue ------------------------------------------------------------------------------------------


class QueueTarget(Target):
    """A queue of the source: its consumers get events of it once more, while it stays where it is."""

    events_max = QUEUE_EVENTS_MAX
    unbroken = True

    def __init__(self, sender: Sender, name: str, context: str | None) -> None:
        super().__init__(sender)
        self.queue = find_queue(sender, name, context)
        self._passed: int | None = None

    @property
    def passing(self) -> EventFilter:
        """Which events are the queue's."""
        return EventFilter(self.queue.context, self.queue.filter)

    def start(self, piece: Piece, producer: str, wait: Wait) -> bool:
        """See Target. Done at once, unless there is no room: then consumers are waited for."""
        mark = ProducerMark(producer, piece.last)
        place = self.queue.context, self.queue.name, piece.events[0].position, piece.last
        pause = FULL_S_MIN
        while True:
            try:
                done = self._sender.ask(ReplayQueue(*place, mark), Replayed)
            except MarkSuperseded as error:
                self._passed = error.highest
                return True
            self.waiting = done.waiting
            if not done.is_full:
                self._left_out += done.left_out
                return True
            if not wait(pause):
                return False
            pause = min(2 * pause, FULL_S_MAX)

    def settle(self) -> int | None:
        """See Target."""
        passed, self._passed = self._passed, None
        return passed


def find_queue(sender: Sender, name: str, context: str | None) -> QueueInfo:
    """The queue of a name. Raises ReplayRefused."""
    found = [info for info in _queues(sender) if info.name == name and context in (None, info.context)]
    if len(found) == 1:
        return found[0]
    if found:
        contexts = ", ".join(info.context for info in found)
        raise ReplayRefused(f"there are queues {name} in the contexts {contexts}: say --queue-context")
    where = "" if context is None else f" in context {context}"
    raise ReplayRefused(f"no queue {name}{where}; see penstock queue list")


def _queues(sender: Sender) -> list[QueueInfo]:
    found: list[QueueInfo] = []
    while True:
        page = sender.ask(ListQueues(found[-1].id if found else 0), QueuePage)
        found += page.queues
        if page.end:
            return found
