"""Batches of a replay, and where they go: streams of a store, or a queue.

Where a batch ends depends on the events alone, so that a second run makes the same batches.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, NamedTuple

from penstock.errors import MarkSuperseded, PenstockError
from penstock.history.source import History
from penstock.interchange.exporter import Selection
from penstock.interchange.sender import BATCH_EVENTS_MAX, Sender
from penstock.model import (
    ANY,
    LOG_CONTEXT,
    Append,
    Event,
    EventFilter,
    GetStats,
    ListPage,
    ListQueues,
    ListStreams,
    NewEvent,
    ProducerMark,
    QueueInfo,
    Replayed,
    ReplayQueue,
    StoreStats,
    check_stream,
)
from penstock.store.contract import StoreIdentity
from penstock.store.record import Record

QUEUE_EVENTS_MAX: Final = 100
"""Events of a batch for a queue, which its consumers get together."""
FULL_S_MIN: Final = 0.05
FULL_S_MAX: Final = 1.0
"""How long a replay waits before it asks again whether a full queue has room."""

Wait = Callable[[float], bool]
"""Waits so many seconds. Returns False at once when the replay is to stop."""


class ReplayRefused(PenstockError):
    """A replay that is not possible as things are."""

    reason: str

    def __str__(self) -> str:
        return self.reason


# --- batches --------------------------------------------------------------------------------------------------


class HistoryPage(NamedTuple):
    """Events of a history, the number of erased events among them, and the next position."""

    events: list[Event]
    erased: int
    next: int


class ReplayBatch(NamedTuple):
    """Events to send together, perhaps none. After it, the replay is done up to `last`."""

    events: list[Event]
    last: int
    erased: int


def history_pages(history: History, passing: EventFilter, begin: int, last: int) -> Iterator[HistoryPage]:
    """The events between two positions, in order. Raises DamagedRecord, which names its position."""
    if begin > last:
        return
    for records in history.records(passing, begin, last + 1):
        events = [event for record in records for event in record.events(passing, begin, last)]
        erased = sum(_count_erased(record, passing, begin, last) for record in records)
        begin = min(records[-1].last, last) + 1
        yield HistoryPage(events, erased, begin)


def _count_erased(record: Record, passing: EventFilter, begin: int, last: int) -> int:
    """The number of erased events of these streams. Their types are not known any more."""
    with record.sound():
        if b"" not in record.texts()[record.name_count :]:
            return 0
    places, position = 0, record.position
    for run in record.runs():
        if passing.wants_stream(run.context, run.stream):
            places += max(0, min(position + run.length - 1, last) - max(position, begin) + 1)
        position += run.length
    return places - len(record.events(EventFilter(passing.context, passing.prefix), begin, last))


def size_of(event: Event) -> int:
    """About how many bytes an event takes."""
    return len(event.body) + len(event.headers or "") + len(event.type) + len(event.stream)


class BatchLimits(NamedTuple):
    events_max: int
    bytes_max: int
    first_end: int = 0
    unbroken: bool = False


def cut_into_batches(
    pages: Iterable[HistoryPage], is_selected: Callable[[Event], bool], last: int, limits: BatchLimits
) -> Iterator[ReplayBatch]:
    """Batches of the selected events, perhaps empty, the last one up to `last`. A larger event than that goes alone.

    A batch that was in flight when a replay ended goes out again as it was, up to `first_end`. If batches must be
    `unbroken`, a batch ends before an event that is not selected.
    """
    events_max, bytes_max, first_end, unbroken = limits
    events: list[Event] = []
    size = erased = 0

    def ends_before(event: Event, selected: bool) -> bool:
        if first_end:
            return event.position > first_end
        if not selected:
            return unbroken
        return len(events) >= events_max or size + size_of(event) > bytes_max

    for page in pages:
        for event in page.events:
            selected = is_selected(event)
            if events and ends_before(event, selected):
                yield ReplayBatch(events, max(first_end, events[-1].position), erased)
                events, size, erased, first_end = [], 0, 0, 0
            if selected:
                events.append(event)
                size += size_of(event)
        erased += page.erased
        if not events:
            yield ReplayBatch([], page.next - 1, erased)
            erased = 0
    if events:
        yield ReplayBatch(events, max(first_end, events[-1].position), erased)
        erased = 0
    yield ReplayBatch([], last, erased)


# --- targets --------------------------------------------------------------------------------------------------


class _Target:
    """Takes one batch at a time."""

    events_max: ClassVar[int]
    """Events of a batch."""
    unbroken: ClassVar[bool]
    """Whether a batch has all events for this target between its first and its last."""
    waiting: int | None = None
    """Events that wait in the target for consumers, if known."""

    key: tuple[str | None, ...]
    """Identifies the target within its store."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    def identity(self) -> StoreIdentity:
        stats = self.sender.ask(GetStats(), StoreStats)
        return StoreIdentity(stats.store_id, stats.timeline)

    def passing(self, selection: Selection) -> EventFilter:
        """The events that a batch looks at."""
        return EventFilter(selection.context, selection.filter, selection.types)


class Settled(NamedTuple):
    """The position up to which another process has replayed, or 0, and the events that consumers get anyway."""

    passed: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class IntoStreams:
    """Streams of a store, and how they are named."""

    url: str
    context: str | None = None
    """None keeps the context."""
    prefix: str = ""
    new: bool = False
    """Whether the replay begins only if none of them exists."""

    def place_of(self, event: Event) -> tuple[str, str]:
        """The context and stream for an event. Raises ReplayRefused."""
        stream = self.prefix + event.stream
        if self.prefix and (reason := check_stream(stream)):
            raise ReplayRefused(f"the event at position {event.position} has no place: its stream {reason}")
        return self.context or event.context, stream


class StreamsTarget(_Target):
    """Streams of a store. Events keep their ids, times, types, headers and bodies."""

    events_max = BATCH_EVENTS_MAX
    unbroken = False

    def __init__(self, sender: Sender, into: IntoStreams) -> None:
        super().__init__(sender)
        self._into = into
        self.key = ("streams", into.context, into.prefix)
        self._logs: set[str] = set()

    def check_new(self, context: str | None) -> None:
        """Raise ReplayRefused if streams must be new and some exist where those of a context would go."""
        context = self._into.context or context
        if not self._into.new:
            return
        if context is None and self.sender.ask(GetStats(), StoreStats).head:
            raise ReplayRefused("there are events in the target already, which must be new: nothing was sent")
        if context is not None:
            page = self.sender.ask(ListStreams(context, self._into.prefix, "", 1), ListPage)
            for found in page.items:
                where = f"stream {found.name} of context {context} is there already"
                raise ReplayRefused(f"{where}, and streams must be new: nothing was sent")

    def start(self, batch: ReplayBatch, producer: str, wait: Wait) -> bool:  # noqa: ARG002 - a store has room
        """Send a batch. Settle the one before first."""
        commits, logs = [], set()
        for (context, stream), events in groupby(batch.events, key=self._into.place_of):
            new = tuple(NewEvent(event.id, event.stamp, event.type, event.headers, event.body) for event in events)
            commits.append(Append(context, stream, new, ANY))
            if context == LOG_CONTEXT:
                logs.add(stream)
        self.sender.create_logs(tuple(sorted(logs - self._logs)))
        self._logs |= logs
        self.sender.start(tuple(commits), len(batch.events), ProducerMark(producer, batch.last))
        return True

    def settle(self) -> Settled:
        has_in_flight = self.sender.has_in_flight
        return Settled(self.sender.passed) if self.sender.settle() is None and has_in_flight else Settled()


@dataclass(frozen=True, slots=True)
class ThroughQueue:
    """A queue of the source."""

    queue: str
    context: str | None = None


class QueueTarget(_Target):
    """A queue of the source. Its consumers get events again, while its own position stays."""

    events_max = QUEUE_EVENTS_MAX
    unbroken = True

    def __init__(self, sender: Sender, through: ThroughQueue) -> None:
        super().__init__(sender)
        self.queue = _find_queue(sender, through.queue, through.context)
        self.key = ("queue", self.queue.context, self.queue.name)
        self._settled = Settled()

    def passing(self, selection: Selection) -> EventFilter:  # noqa: ARG002 - unbroken: of all events of the queue
        return EventFilter(self.queue.context, self.queue.filter)

    def start(self, batch: ReplayBatch, producer: str, wait: Wait) -> bool:
        """Replay a batch. While the queue is full, wait for its consumers; False if `wait` says to stop."""
        mark = ProducerMark(producer, batch.last)
        place = self.queue.context, self.queue.name, batch.events[0].position, batch.last
        pause = FULL_S_MIN
        while True:
            try:
                done = self.sender.ask(ReplayQueue(*place, mark), Replayed)
            except MarkSuperseded as error:
                self._settled = Settled(passed=error.highest)
                return True
            self.waiting = done.waiting
            if not done.is_full:
                self._settled = Settled(left_out=done.left_out)
                return True
            if not wait(pause):
                return False
            pause = min(2 * pause, FULL_S_MAX)

    def settle(self) -> Settled:
        settled, self._settled = self._settled, Settled()
        return settled


ReplayTarget = StreamsTarget | QueueTarget


def _find_queue(sender: Sender, name: str, context: str | None) -> QueueInfo:
    """Raises ReplayRefused if there is no such queue, or more than one."""
    queues: list[QueueInfo] = []
    is_end = False
    while not is_end:
        page = sender.ask(ListQueues(queues[-1].id if queues else 0), ListPage)
        queues += page.items
        is_end = page.end
    found = [info for info in queues if info.name == name and context in (None, info.context)]
    if len(found) == 1:
        return found[0]
    if found:
        contexts = ", ".join(info.context for info in found)
        raise ReplayRefused(f"there are queues {name} in the contexts {contexts}: say --queue-context")
    where = "" if context is None else f" in context {context}"
    raise ReplayRefused(f"no queue {name}{where}; see penstock queue list")
