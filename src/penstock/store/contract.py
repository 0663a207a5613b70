"""What every store can do. One synchronous contract, one test suite, several backends.

A store object belongs to one thread. All changes go through `write`, which takes a batch of transactions: each is
all or nothing and is judged on its own, and the batch is one commit of the database with one fsync. A transaction
that cannot be (a conflict, a lost allocation) is answered with its error and does not disturb its neighbours; if
the database itself fails, `write` raises, and after `recover` the whole batch is there or nothing of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.errors import NotDurable, PenstockError
from penstock.model import (
    Allocation,
    Appended,
    ContextInfo,
    Event,
    EventFilter,
    Installed,
    Over,
    QueueInfo,
    StoreStats,
    StreamInfo,
    SubscriptionInfo,
)
from penstock.store.operations import (
    STALE,
    Acknowledge,
    AddIterator,
    AddLog,
    Allocate,
    Commit,
    DeclareQueue,
    DeleteIterator,
    DeleteLog,
    Erase,
    ExpireProducers,
    ExpireStages,
    GiveBack,
    HideEvents,
    HideStream,
    Install,
    MoveQueue,
    Operation,
    Progress,
    Proposal,
    Publish,
    Register,
    Release,
    Reoffer,
    Requeue,
    RequireLog,
    Seal,
    SetBookmark,
    SetDeadRule,
    Stage,
    Transaction,
    Unstage,
    WriteOutput,
)
from penstock.store.record import Record
from penstock.store.staging import Placed

__all__ = [
    "EVERYTHING",
    "ITERATOR_CHAIN_MAX",
    "LOGS_MAX",
    "LOG_CONTEXT",
    "MESSAGE_TYPE",
    "STALE",
    "STATE_TABLES",
    "Acknowledge",
    "AddIterator",
    "AddLog",
    "Allocate",
    "Commit",
    "DeclareQueue",
    "DeleteIterator",
    "DeleteLog",
    "Erase",
    "Erasure",
    "ExpireProducers",
    "ExpireStages",
    "Finding",
    "GiveBack",
    "Hid",
    "HideEvents",
    "HideStream",
    "Install",
    "IteratorState",
    "Listener",
    "LogInfo",
    "MoveQueue",
    "Notice",
    "Operation",
    "Outcome",
    "Over",
    "Page",
    "Placed",
    "Progress",
    "Progressed",
    "Proposal",
    "Publish",
    "QueueState",
    "ReadLimits",
    "RecordSpan",
    "Register",
    "Release",
    "Reoffer",
    "Requeue",
    "RequireLog",
    "Result",
    "Seal",
    "Search",
    "SetBookmark",
    "SetDeadRule",
    "Stage",
    "Store",
    "StoreIdentity",
    "StoreImport",
    "StoreState",
    "Transaction",
    "Unsealed",
    "Unstage",
    "WriteOutput",
]

LOG_CONTEXT: Final = "remits"
"""Logs are streams of this context."""
MESSAGE_TYPE: Final = "cbor"
"""The type of the events that are messages of logs."""
LOGS_MAX: Final = 100_000
"""Logs in one store."""
ITERATOR_CHAIN_MAX: Final = 16
"""Iterators that may read one another in a row."""


class StoreIdentity(NamedTuple):
    """Which store this is. Positions mean something only together with it."""

    id: str
    timeline: int


class BatchTimes(NamedTuple):
    """The times of a batch, in ticks: the store's clock, and what its commits were recorded as."""

    now: int
    recorded: int


class ReadLimits(NamedTuple):
    """When a read stops: it always ends, with a place to read on from."""

    events_max: int = 4096
    bytes_max: int = 8 << 20
    scan_ms_max: int = 250


class Page(NamedTuple):
    """Events in order, where to read on (position or sequence), and whether the end was reached."""

    events: list[Event]
    next: int
    end: bool


class RecordSpan(NamedTuple):
    """Checked records in order, where to read on, and whether the end was reached."""

    records: list[Record]
    next: int
    end: bool


class Search(NamedTuple):
    """A search for a time: the position if found, else where to search on, and whether the end was reached."""

    position: int | None
    next: int
    end: bool


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as its consumers need it."""

    id: int
    context: str
    name: str
    filter: str
    position: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log. Its message of ordinal i is the event of sequence `base` + i + 1 of its stream; `bytes` are in all."""

    name: str
    created: int
    base: int
    bytes: int


@dataclass(frozen=True, slots=True)
class IteratorState:
    """An iterator: what it is, how far it has read (`source`), how much it gave, its accumulator.

    Its message of ordinal i is the event of sequence `base` + i + 1 of what it reads; an iterator's item of ordinal i
    has, so to say, the sequence i + 1. `source` is the last sequence it has read.
    """

    id: int
    name: str
    log: str
    over: str
    kind: str
    function: str
    indexed: bool
    created: int
    base: int
    source: int
    outputs: int
    state: bytes | None


class Unsealed(NamedTuple):
    """The next records to be sealed: small ones in a row that are closed, which means that none comes between them.

    `next` is where the mark goes; there may be nothing to merge before it. `ledger` says how the ledger of erasures
    stood; see `Seal`.
    """

    records: list[Record]
    next: int
    ledger: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Erasure:
    """An entry in the ledger: a stream's events up to a sequence, events by position, or an iterator's output.

    `ranges` are (first, last). `timeline` is the one that positions are of. `damaged` counts records that could not be
    rewritten. It is finished when no file of the store holds any of it.
    """

    id: int
    context: str | None
    stream: str | None
    last: int
    ranges: tuple[tuple[int, int], ...]
    iterator: int | None
    timeline: int
    events: int
    requested: int
    finished: int | None
    damaged: int


class Hid(NamedTuple):
    """Events that nobody can read any more: how many, and which iterators begin anew because they had seen them."""

    events: int
    rebuilt: list[IteratorState]


STATE_TABLES: Final = {
    "timelines": ("timeline", "after_position", "started"),
    "contexts": ("name", "events", "commits", "streams", "bytes", "top"),
    "subscriptions": ("id", "subscriber", "context", "filter", "position", "last_ticks"),
    "queues": ("id", "name", "context", "filter", "position", "dead_after"),
    "allocations": ("queue_id", "first", "last", "count", "subscriber", "expires", "deliveries"),
    "producers": ("name", "number", "result", "used"),
    "logs": ("name", "created", "base", "bytes"),
    "iterators": ("id", "name", "log", "over", "kind", "function", "indexed", "created", "base"),
    "erasures": ("id", "context", "stream", "last", "ranges", "timeline", "events", "requested", "finished", "damaged"),
}
"""All that a store holds beside its records, by table and column. Outputs of iterators are not among it: they are made
from the records. Of erasures, those of events."""


class StoreState(NamedTuple):
    """A store at one moment, but for its records up to `head`; `sealed` is its mark. Rows are as in STATE_TABLES."""

    identity: StoreIdentity
    head: int
    sealed: int
    tables: dict[str, list[tuple[Any, ...]]]


Result = (
    Appended
    | Placed
    | Installed
    | Hid
    | SubscriptionInfo
    | QueueState
    | IteratorState
    | Allocation
    | bool
    | int
    | str
    | None
)
Outcome = list[Result] | PenstockError
"""One result per operation, or why the transaction did not happen."""


class Finding(NamedTuple):
    """Something `verify` found wrong, and where."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What a commit of some server changed, for those who wait for such changes on others.

    `head` is the last position then. `streams` (context, stream) have new events, and `queues` may have something to
    hand out again; None: perhaps all. `has_changed_logs`: logs or iterators came, went or begin anew.
    """

    is_own: bool
    head: int
    streams: tuple[tuple[str, str], ...] | None
    has_changed_logs: bool
    queues: tuple[int, ...] | None


EVERYTHING: Final = Notice(False, 0, None, True, None)
"""Notices may have been missed: look at everything again. Its head says nothing."""


class Listener(ABC):
    """What a server hears of others that write the same store, and what they share out among them.

    It belongs to one thread, which need not be the store's, and has a connection of its own.
    """

    @abstractmethod
    def wait(self, seconds: float) -> list[Notice]:
        """Notices in the order of their commits, as soon as there is one; none when the time is up.

        A connection that was lost is made anew, and then there is EVERYTHING. While that fails, it answers early, with
        nothing.
        """

    @abstractmethod
    def lease(self, name: str, ms: int) -> bool:
        """Whether this server may do what a name stands for, alone, for so long from now on by the store's clock.

        The holder asks again in good time. Nobody else gets it before it has run out or was ended. It saves work to do
        something once; where it must not be done twice, the store compares (see WriteOutput, Seal). Raises
        StorageFailure.
        """

    @abstractmethod
    def end_lease(self, name: str) -> None:
        """Let others have it, if this server does. Raises StorageFailure."""

    @abstractmethod
    def close(self) -> None:
        """End all leases, and release everything; never raises."""


Progressed = Callable[[int, int], None]
"""Told done and total while a long job runs."""


class Store(ABC):
    """A history and all state that goes with it."""

    batch_times: BatchTimes
    """Those of the last `write`; before the first, the clock as the store was opened, and the last recorded time."""

    # -- writing

    @abstractmethod
    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        """Carry out a batch; see the module. Raises StorageFailure or StorageFull if nothing was done.

        While `refusal` says why, each transaction is refused with NotDurable, unless the store recognises it.
        """

    @abstractmethod
    def recover(self) -> None:
        """After a failed write: come back to what is surely on disk. Raises until the database works again.

        Where it raises NotDurable, `write` still recognises what was written before.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def listener(self) -> Listener | None:
        """A way to hear of others that write this store; None if nobody else can. May be asked from any thread."""
        return None

    # -- the history

    @abstractmethod
    def identity(self) -> StoreIdentity:
        """Which store and timeline this is."""

    @abstractmethod
    def now(self) -> int:
        """The store's clock in ticks. Times to live go by it; recorded times too, but those never go backwards."""

    @abstractmethod
    def head(self) -> int:
        """The last position; 0 in an empty store."""

    @abstractmethod
    def stream_head(self, context: str, stream: str) -> int:
        """A stream's last sequence; 0 if there is no such stream."""

    @abstractmethod
    def read_stream(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits, backward: bool = False
    ) -> Page:
        """Events of a stream from sequence `first` up to `last`, or down to it. First 0 backward: from the end."""

    @abstractmethod
    def read_all(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None = None) -> Page:
        """Events that pass a filter from a position on, up to and including `end`."""

    @abstractmethod
    def read_records(self, position: int, wanted: EventFilter, limits: ReadLimits) -> RecordSpan:
        """Records that may hold events that pass a filter; the first may begin before `position`."""

    @abstractmethod
    def find_position(self, wanted: EventFilter, ticks: int, limits: ReadLimits, start: int = 1) -> Search:
        """The first event of a context and prefix whose time is at or after `ticks`; searched from `start` on."""

    @abstractmethod
    def contexts(self, after: str, limit: int) -> list[ContextInfo]:
        """Contexts by name, after one."""

    @abstractmethod
    def streams(self, context: str, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        """Streams of a context by name, after one."""

    # -- subscriptions and queues

    @abstractmethod
    def subscription(self, number: int) -> SubscriptionInfo | None:
        """A subscription by its id."""

    @abstractmethod
    def find_subscription(self, subscriber: str, context: str, filter: str) -> SubscriptionInfo | None:
        """A subscription by what identifies it."""

    @abstractmethod
    def subscriptions(self, after: int, limit: int) -> list[SubscriptionInfo]:
        """Subscriptions by id, after one."""

    @abstractmethod
    def find_queues(self, name: str, context: str | None = None) -> list[QueueState]:
        """Queues of a name, of one context or of all."""

    @abstractmethod
    def queues(self, after: int, limit: int) -> list[QueueInfo]:
        """Queues with their counts, by id, after one."""

    @abstractmethod
    def allocations(self, queue: int, after: int, limit: int) -> list[Allocation]:
        """Allocations of a queue by marker, after one."""

    @abstractmethod
    def claim(self, queue: int, subscriber: str, except_first: int | None) -> Allocation | None:
        """What the queue would hand out again: the subscriber's live allocation, else the oldest expired one.

        Dead letters are not handed out.
        The allocation that begins at `except_first` is about to be acknowledged and does not count.
        """

    @abstractmethod
    def dead_letters(self, queue: int, after: int, limit: int) -> list[Allocation]:
        """Allocations of a queue that expired too often, by marker, after one."""

    @abstractmethod
    def next_expiry(self, queue: int, after: int) -> int | None:
        """When the next allocation of a queue expires after a time (ticks), if one does."""

    @abstractmethod
    def shared_allocations(self, queue: int, first: int, last: int, limit: int) -> list[Allocation]:
        """Allocations of a queue, by marker, that share a position with a range."""

    @abstractmethod
    def waiting(self, queue: int) -> tuple[int, int]:
        """How many allocations of a queue the next consumers get before anything new, and the events in them."""

    # -- logs and iterators

    @abstractmethod
    def log(self, name: str) -> LogInfo | None:
        """A log by its name."""

    @abstractmethod
    def logs(self, after: str, limit: int) -> list[LogInfo]:
        """Logs by name, after one."""

    @abstractmethod
    def iterator(self, name: str) -> IteratorState | None:
        """An iterator by its name."""

    @abstractmethod
    def iterators(self, log: str | None, after: str, limit: int) -> list[IteratorState]:
        """Iterators of a log, or of all, by name, after one; without their functions and accumulators."""

    @abstractmethod
    def output_count(self, number: int) -> int | None:
        """How many items the output of an iterator has, by its id; None if it is gone."""

    @abstractmethod
    def open_erasures(self) -> int:
        """How many erasures are not finished; see `Erase`."""

    @abstractmethod
    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        """Items of an iterator's output from an ordinal on."""

    # -- looking after it

    @abstractmethod
    def sealed(self) -> int:
        """The mark: all records that begin before this position are sealed."""

    @abstractmethod
    def unsealed(self) -> Unsealed | None:
        """The next records to be sealed, from the mark on; None if none are closed yet."""

    @abstractmethod
    def erasures(self, after: int, limit: int) -> list[Erasure]:
        """The ledger of erasures by id, after one."""

    @abstractmethod
    def state(self) -> StoreState:
        """All that is not records, at one moment."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space where the store's files grow; None if that cannot be known. May be asked from any thread."""

    def refusal(self) -> NotDurable | None:
        """Why nothing may be written, where acknowledged commits could be lost; None: all is well."""
        return None

    @abstractmethod
    def stats(self) -> StoreStats:
        """Counts of the whole store."""

    @abstractmethod
    def verify(self, progressed: Progressed) -> Iterator[Finding]:
        """Check everything, record by record; yields what is wrong."""


class StoreImport(ABC):
    """A new store that is being filled with the records and the state of another. Nobody can open it before `finish`.

    An import that was interrupted goes on where it was.
    """

    @abstractmethod
    def begin(self, source: str) -> str:
        """Note what it is filled from, before anything is added; what was noted if it was begun before.

        Who fills it decides what to note, and whether to go on. What was begun without a note answers nothing.
        """

    @abstractmethod
    def head(self) -> int:
        """The last position that is in and safe; 0 at first."""

    @abstractmethod
    def add(self, records: Sequence[Record]) -> None:
        """Add the next records, which begin right after `head`. They are safe when this returns."""

    @abstractmethod
    def finish(self, state: StoreState) -> None:
        """Make a store of it, with this identity, state and timelines. Outputs of iterators are built by its server."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""
