"""Replies: what the engine answers. Only a codec knows how a reply looks on its wire."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from penstock.model.events import Event, EventFilter, Selection
from penstock.model.requests import IteratorKind, Over, order_key
from penstock.model.times import datetime_of

Item = TypeVar("Item")


class Reply:
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Events as a wire has them, made in a worker process; a reply that has this has no `events`."""

    count: int
    content: Any


@dataclass(frozen=True, slots=True)
class Done(Reply):
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class Appended(Reply):
    """A commit that is on disk. `repeated`: it was there before, and nothing was written now."""

    commit: bytes
    position: int
    sequence: int
    count: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Transacted(Reply):
    commits: tuple[Appended, ...]


@dataclass(frozen=True, slots=True)
class EventPage(Reply):
    """Events in order. `next` is where to read on (a position, or of a stream a sequence); `end`: no more now."""

    events: list[Event]
    next: int
    end: bool
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class RecordPage(Reply):
    """Stored records in position order, unchanged; `next` and `end` as in an EventPage. The reader filters.

    The first may begin before the requested position, and a record may hold events of other streams.
    """

    store_id: str
    timeline: int
    records: Sequence[bytes | memoryview]
    next: int
    end: bool


@dataclass(frozen=True, slots=True)
class Found(Reply):
    """The position of the first match, if there is one."""

    position: int | None


@dataclass(frozen=True, slots=True)
class ListPage(Reply, Generic[Item]):
    """Some items of a list, in its order; `end`: no more."""

    items: list[Item]
    end: bool


@dataclass(frozen=True, slots=True)
class ContextInfo:
    name: str
    events: int
    commits: int
    streams: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StreamInfo:
    name: str
    events: int


@dataclass(frozen=True, slots=True)
class Registered(Reply):
    """Ids of subscriptions, in the order of the request."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchedBatch(Reply):
    """A subscription's batch; empty when there is nothing new."""

    subscription: int
    events: list[Event]
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A durable subscription. `position` is the next it will look at; `last_ticks` the time its last batch ended on.

    Without `context` it is of all contexts. `selection` is as in SubscriptionStart. `behind` counts the events that it
    will get; the other two are as in a QueueInfo. Only lists count them.
    """

    id: int
    subscriber: str
    context: str | None
    filter: str
    position: int
    last_ticks: int | None
    behind: int = 0
    behind_is_exact: bool = False
    behind_ms: int = 0
    selection: str = ""

    @property
    def wanted(self) -> EventFilter:
        """The events that it delivers."""
        return Selection.parsed(self.selection).events(self.context, self.filter)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Events that one subscriber holds until `expires` (ticks). `deliveries` counts the holders so far."""

    first: int
    last: int
    count: int
    subscriber: str
    expires: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a queue hands out no more, who had it last, why it is here, and since when (ticks)."""

    position: int
    stream: str
    sequence: int
    deliveries: int
    subscriber: str
    reason: str
    died: int

    @property
    def died_at(self) -> datetime:
        """Cut to microseconds."""
        return datetime_of(self.died)


@dataclass(frozen=True, slots=True)
class Delivery(Reply):
    """An allocation of a queue with its events, or neither. `now` is the server's time in ticks.

    `runs` are all allocations: more than one only for who asks for several. `ordered` says how the queue is ordered.
    """

    context: str
    queue: str
    subscriber: str
    now: int
    allocation: Allocation | None
    events: list[Event]
    encoded: Encoded | None = None
    runs: Sequence[Allocation] = ()
    ordered: str = ""

    def attempts(self, places: Iterable[tuple[int, str]]) -> dict[int, int]:
        """How often each event, by its position and stream, was delivered by now; 1 for the first time."""
        keys = {position: order_key(self.ordered, stream) for position, stream in places}
        # Allocations of several keys may overlap. Each begins and ends with events of its key, if they are not erased.
        by_key: dict[str | None, list[Allocation]] = {}
        for run in sorted(self.runs, key=_first):
            by_key.setdefault(keys.get(run.first, keys.get(run.last)), []).append(run)
        found = {}
        for position, key in keys.items():
            known = (by_key.get(one, []) for one in (key, None))
            near = (runs[at - 1] for runs in known if (at := bisect_right(runs, position, key=_first)))
            found[position] = max((run.deliveries for run in near if position <= run.last), default=1)
        return found


def _first(run: Allocation) -> int:
    return run.first


@dataclass(frozen=True, slots=True)
class Extended(Reply):
    """When the allocations expire now (ticks)."""

    expires: int


@dataclass(frozen=True, slots=True)
class QueuePreview(Reply):
    """From `position` on a queue would deliver `behind` events; unless that is exact, more.

    `behind_ms` is how long ago the oldest of them was recorded. A move would drop `allocations` and `dead` letters.
    """

    position: int
    behind: int
    behind_is_exact: bool
    behind_ms: int
    allocations: int
    dead: int


@dataclass(frozen=True, slots=True)
class PutBackCount(Reply):
    events: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's state. `position` is the marker: what lies below it was allocated or passed over.

    `behind` counts the events that are still to be handed out, for the first time or again; unless `behind_is_exact`,
    there may be more. `behind_ms` is how long ago the oldest of them was recorded; 0 without any. `allocated` counts
    events that consumers hold, `allocations` all that is not acknowledged, `dead` the dead letters.
    `deliveries_max` is the most holders that one allocation had. `delayed` counts events that wait for a time: they are
    due later, or failed and come again. `ordered`, `selection` and `retry` are as in SubscribeQueue.
    """

    id: int
    context: str
    name: str
    filter: str
    position: int
    behind: int
    allocated: int
    allocations: int
    deliveries_max: int
    dead: int
    dead_after: int | None
    behind_is_exact: bool = False
    behind_ms: int = 0
    ordered: str = ""
    selection: str = ""
    retry: str = ""
    paused: bool = False
    delayed: int = 0

    @property
    def wanted(self) -> EventFilter:
        """The events that it delivers."""
        return Selection.parsed(self.selection).events(self.context, self.filter)


@dataclass(frozen=True, slots=True)
class Replayed(Reply):
    """How many events the queue delivers again, how many it leaves out, and how many wait in all.

    `is_full`: too much waits already, so the queue delivers none of them again. `repeated`: an earlier request with
    this mark did it.
    """

    events: int
    left_out: int
    waiting: int
    is_full: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class StoreStats(Reply):
    """Counts of the whole store. `head` is the last position.

    `body_bytes` are the bytes of all events with their fields, `file_bytes` what the store takes on disk, and `sealed`
    is how many of the first events are in sealed records, or in others that read as well.
    """

    store_id: str
    timeline: int
    schema: int
    head: int
    commits: int
    contexts: int
    streams: int
    subscriptions: int
    queues: int
    logs: int
    iterators: int
    body_bytes: int
    file_bytes: int
    sealed: int = 0


@dataclass(frozen=True, slots=True)
class Names(Reply):
    names: list[str]


@dataclass(frozen=True, slots=True)
class LogSummary(Reply):
    """A log, when it was made (ticks), and what is in it."""

    log: str
    created: int
    messages: int
    size_bytes: int
    iterators: list[str]


@dataclass(frozen=True, slots=True)
class IteratorSummary(Reply):
    """An iterator. `log` is what it reads: a log, an iterator, or a stream as `context/stream`; `over` says which.

    An indexed one has `items` in its output and is so many messages `behind`; of a plain one both are None.
    """

    name: str
    log: str
    over: Over
    kind: IteratorKind
    function: str
    indexed: bool
    created: int
    items: int | None
    behind: int | None


@dataclass(frozen=True, slots=True)
class ItemPage(Reply):
    """Items in order, each as CBOR. None: there are no more now."""

    items: list[bytes]
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class BuildStart(Reply):
    """An indexed iterator as it is now, and what its function may use.

    Of `head` messages its index has read `source`, which gave `items` and, for a reduce, the accumulator `state`. One
    that restarts, because an event that it had read was erased, gets another `id`.
    """

    iterator: str
    id: int
    log: str
    over: Over
    kind: IteratorKind
    function: str
    source: int
    items: int
    state: bytes | None
    head: int
    call_ms_max: int
    memory_bytes_max: int
    result_bytes_max: int


@dataclass(frozen=True, slots=True)
class MessagePage(Reply):
    """Messages in order, each as CBOR. None was erased; an empty one is what the iterator above failed at."""

    messages: list[bytes | None]


@dataclass(frozen=True, slots=True)
class Installed(Reply):
    """The output of an iterator: how many items it has now, how many were added, and how many messages are read."""

    items: int
    added: int
    messages: int


@dataclass(frozen=True, slots=True)
class StagesTaken(Reply):
    """Units are staged. `event_bytes_max`: bytes of type, headers and body that one event may have."""

    event_bytes_max: int


@dataclass(frozen=True, slots=True)
class Published(Reply):
    """A job that is history. `position` is its first, or 0; `repeated`: nothing was written now."""

    position: int
    commits: int
    events: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Erased(Reply):
    """How many events were hidden; where to search on, and whether the end was reached."""

    events: int
    next: int
    end: bool


@dataclass(frozen=True, slots=True)
class ErasureInfo:
    """An entry of the ledger. Context and stream are None if events were erased one by one, or an iterator's output.

    `finished` (ticks): no file of the store holds any of it. `damaged` counts records that could not be rewritten.
    """

    id: int
    context: str | None
    stream: str | None
    events: int
    requested: int
    finished: int | None
    damaged: int


# --- access --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity(Reply):
    """A principal as it sees itself. `expires` (ticks): when its credential ends."""

    principal: str
    grants: tuple[str, ...]
    expires: int | None = None
    is_closed: bool = False
    """Whether the server has principals. If not, everyone may do everything."""
    sees_all: bool = True
    """Whether nothing of the history is hidden from it."""


@dataclass(frozen=True, slots=True)
class IssuedToken(Reply):
    """A new token. The store keeps only a digest of it, so this is the only time that it is shown."""

    id: str
    token: str
    expires: int | None = None

    def __repr__(self) -> str:
        return f"IssuedToken(id={self.id!r}, token=…)"
