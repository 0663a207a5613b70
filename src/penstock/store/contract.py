"""The words of the store's contract: operations and their results, limits, and notices between servers.

`penstock.store.tables.store.Store` takes the operations.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError
from penstock.model import (
    BY_PREFIX,
    BY_STREAM,
    Allocation,
    Appended,
    Credential,
    Event,
    EventFilter,
    Installed,
    Limits,
    PrincipalInfo,
    ProducerMark,
    Published,
    Selection,
    StagedUnit,
    SubscriptionInfo,
    Winner,
    order_key,
)
from penstock.model.columns import Columns
from penstock.store.record import Record

MESSAGE_TYPE: Final = "cbor"
"""The type of the events that are messages of logs."""
LOGS_MAX: Final = 100_000
"""Logs in one store."""
ITERATOR_CHAIN_MAX: Final = 16
"""Iterators that may read one another in a row."""


def is_order(ordered: str) -> bool:
    """Whether a queue can be ordered like this."""
    return ordered in ("", BY_STREAM) or (ordered.startswith(BY_PREFIX) and ordered != BY_PREFIX)


Run = tuple[int, int]
"""The first and the last position of an allocation."""


class StoreIdentity(NamedTuple):
    """Identifies a store. A position means something only together with it."""

    id: str
    timeline: int


class BatchTimes(NamedTuple):
    """The times of a batch, in ticks: the store's clock, and the recorded time of its commits."""

    now: int
    recorded: int


class ReadLimits(NamedTuple):
    """Limits of one page: a read always ends, and says where the next page begins."""

    events_max: int = 4096
    bytes_max: int = 8 << 20
    scan_ms_max: int = 250


class Page(NamedTuple):
    """Events in order, where the next page begins (position or sequence), and whether this was the last."""

    events: list[Event]
    next: int
    end: bool


class RecordSpan(NamedTuple):
    """Checked records in order, where the next page begins, and whether this was the last."""

    records: list[Record]
    next: int
    end: bool


class Search(NamedTuple):
    """A search for a time: the position if found, else where to go on, and whether that is the end."""

    position: int | None
    next: int
    end: bool


WAITING: Final = 1 << 62
"""When an allocation expires that waits for another of its key."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as its consumers need it. `selection` and `retry` are JSON objects or empty."""

    id: int
    context: str
    name: str
    filter: str
    position: int
    ordered: str = ""
    selection: str = ""
    retry: str = ""
    paused: int = 0
    dead_after: int | None = field(default=None, compare=False)
    version: int = 0
    """Changes with what it hands out, and whether it does."""

    @property
    def wanted(self) -> EventFilter:
        """The events that it hands out."""
        return Selection.parsed(self.selection).events(self.context, self.filter)

    def key_of(self, stream: str) -> str:
        """The key by which the queue orders the events of a stream; empty if the queue is not ordered."""
        return order_key(self.ordered, stream)


class Held(NamedTuple):
    """An allocation with its key."""

    first: int
    last: int
    events: int
    subscriber: str
    expires: int
    deliveries: int
    key: str = ""

    @property
    def run(self) -> Run:
        return self.first, self.last

    @property
    def allocation(self) -> Allocation:
        return Allocation(*self[:6])


class Part(NamedTuple):
    """An allocation to add: events of one key between two positions, which no consumer gets before `due` (ticks)."""

    first: int
    last: int
    events: int
    key: str = ""
    due: int = 0
    deliveries: int = 0


class Letter(NamedTuple):
    """An event to set aside as a dead letter."""

    position: int
    stream: str
    sequence: int
    deliveries: int
    subscriber: str
    reason: str


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log. Its message of ordinal i is the event of sequence `base` + i + 1 of its stream; `bytes` is their sum."""

    name: str
    created: int
    base: int
    bytes: int


@dataclass(frozen=True, slots=True)
class IteratorState:
    """An iterator, how far it has read, the number of items in its output, and its accumulator.

    Its message of ordinal i is the event of sequence `base` + i + 1 of its source; an item of ordinal i of another
    iterator counts as sequence i + 1. `source` is the last sequence that it has read.
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
    """The next records to seal: small ones in a row, in a block that gets no more records."""

    records: list[Record]
    next: int
    """Where the mark goes; there may be nothing to merge before it."""
    ledger: tuple[int, int]
    """The state of the ledger of erasures; see `Seal`."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """An entry in the ledger: a stream's events up to a sequence, events by position, or an iterator's output.

    `ranges` are (first, last). `timeline` is the timeline of the positions. `damaged` counts records that could not be
    rewritten. An erasure is finished when no file of the store holds any of it.
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
    """How many events are hidden from all readers, and which iterators restart because they had read them."""

    events: int
    rebuilt: list[IteratorState]


STATE_TABLES: Final = {
    "timelines": ("timeline", "after_position", "started"),
    "contexts": ("name", "events", "commits", "streams", "bytes", "top"),
    "subscriptions": ("id", "subscriber", "context", "filter", "position", "last_ticks", "selection"),
    "queues": ("id", "name", "context", "filter", "position", "dead_after", "ordered", "selection", "retry", "paused"),
    "allocations": ("queue_id", "first", "last", "count", "subscriber", "expires", "deliveries", "key", "due"),
    "dead_letters": ("queue_id", "position", "stream", "sequence", "deliveries", "subscriber", "reason", "died"),
    "producers": ("name", "number", "result", "used"),
    "logs": ("name", "created", "base", "bytes"),
    "iterators": ("id", "name", "log", "over", "kind", "function", "indexed", "created", "base"),
    "erasures": ("id", "context", "stream", "last", "ranges", "timeline", "events", "requested", "finished", "damaged"),
    "access": ("changed",),
    "principals": ("name", "grants", "limits", "created", "changed"),
    "credentials": ("id", "principal", "kind", "proof", "label", "created", "expires"),
}
"""Everything in a store except its records, by table and column. It leaves out the outputs of iterators, which are made
from the records, and erasures of outputs. `access` has one row if there ever was a principal."""
ACCESS_TABLES: Final = ("access", "principals", "credentials")
"""A restore does not bring them back as they were: what was revoked stays revoked."""


class AccessState(NamedTuple):
    """All principals and credentials. `version` grows with each change; 0: there never was a principal."""

    version: int
    principals: list[PrincipalInfo]
    credentials: list[Credential]


class Arrival(NamedTuple):
    """How a store came to its place if no server made it there: restored or moved, and facts about it."""

    what: str
    facts: dict[str, Any]


class StoreState(NamedTuple):
    """The state of a store at one moment, without its records up to `head`. Rows are as in STATE_TABLES."""

    identity: StoreIdentity
    head: int
    sealed: int
    tables: dict[str, list[tuple[Any, ...]]]


# --- operations -----------------------------------------------------------------------------------------------


class Operation:
    """A change of a store."""

    __slots__ = ()


class Commit(Operation, msgspec.Struct, frozen=True):
    """Append the events of one commit. Answers Appended, or fails with VersionConflict."""

    context: str
    stream: str
    expected: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class Register(Operation):
    """Make a subscription that starts at a position, or find it. Answers SubscriptionInfo; SubscriptionMismatch."""

    subscriber: str
    context: str | None
    filter: str
    position: int
    selection: str = ""


@dataclass(frozen=True, slots=True)
class Progress(Operation):
    """Move a subscription from `start` to `next` if it is still at `start`.

    `last_ticks` is the time of the last event of the batch; None if the batch had no events. Answers whether it moved;
    a strict one that does not fails with SubscriptionMoved.
    """

    subscription: int
    start: int
    next: int
    last_ticks: int | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class SetBookmark(Operation):
    """Move a subscription from any position. Fails with SubscriptionNotFound."""

    subscriber: str
    context: str | None
    filter: str
    position: int


@dataclass(frozen=True, slots=True)
class DeleteSubscription(Operation):
    """Whether there was one."""

    subscription: int


@dataclass(frozen=True, slots=True)
class DeclareQueue(Operation):
    """Make a queue that starts at a position, or find it. Answers QueueState; QueueFilterMismatch."""

    context: str
    name: str
    filter: str
    position: int
    ordered: str = ""
    selection: str = ""
    retry: str = ""
    dead_after: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledge(Operation):
    """End an allocation if this subscriber still owns it. Answers whether it did; strict: else AllocationLost."""

    queue: int
    subscriber: str
    first: int
    last: int | None
    """None: the first position alone identifies it."""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Release(Operation):
    """Let an allocation expire now if this subscriber still owns it. Answers whether it did."""

    queue: int
    subscriber: str
    first: int
    last: int
    counts: bool = True
    """Whether the delivery to this holder counts towards the dead-letter rule."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next allocation of a queue as a reader computed it.

    `marker` is the position of the queue at that time, and `version` its version. Without `first` there was nothing up
    to `next`. `kind` says where the allocation comes from.
    """

    kind: str
    marker: int
    next: int
    first: int = 0
    last: int = 0
    count: int = 0
    version: int = 0

    OWN: ClassVar[str] = "own"
    EXPIRED: ClassVar[str] = "expired"
    FRESH: ClassVar[str] = "fresh"
    NOTHING: ClassVar[str] = "nothing"


@dataclass(frozen=True, slots=True)
class Allocate(Operation):
    """Carry out a proposal if it still holds. Answers the Allocation, None for nothing, or STALE: propose again."""

    queue: int
    subscriber: str
    ttl_ms: int
    proposal: Proposal


STALE: Final = "stale"


@dataclass(frozen=True, slots=True)
class AllocateParts(Operation):
    """Carry out a proposal of several allocations if it still holds.

    Either the subscriber holds `own` already, or it takes over `taken`, gets `held`, and the queue keeps `kept` for
    later; then the marker goes from `marker` to `next`. If it was proposed `ahead` of the subscriber's request, it does
    not hold when the queue has something to hand out that it had before. Answers the subscriber's allocations in order,
    as Held; None if there are none; or STALE: propose again.
    """

    queue: int
    subscriber: str
    ttl_ms: int
    marker: int
    next: int
    own: tuple[Run, ...] = ()
    taken: tuple[Run, ...] = ()
    held: tuple[Part, ...] = ()
    kept: tuple[Part, ...] = ()
    version: int = 0
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Settle(Operation):
    """End allocations that a subscriber holds, or with `subscriber` None, that have expired.

    Instead of them the queue gets `back` for its next consumers, and `dead` as dead letters. What waited for their keys
    becomes available. Answers how many it ended. If one of `runs` is lost: with `strict` AllocationLost; else it ends
    the others, but if there is something to put in their place, nothing.
    """

    queue: int
    subscriber: str | None
    runs: tuple[Run, ...]
    back: tuple[Part, ...] = ()
    dead: tuple[Letter, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Extend(Operation):
    """Let allocations that a subscriber holds expire later. Answers when (ticks); AllocationLost if one is lost."""

    queue: int
    subscriber: str
    runs: tuple[Run, ...]
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Revive(Operation):
    """Take events from the dead letters; those of `parts`, one event each, go to the next consumers.

    Answers how many were dead letters.
    """

    queue: int
    positions: tuple[int, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeQueue(Operation):
    """Change what is not None. Answers True; QueueNotFound; QueueExists if another queue has the name.

    Another filter or selection is refused with InvalidRequest while the queue has allocations, or dead letters of
    streams that it would leave out: any principal that may use the queue could have them delivered.
    """

    queue: int
    name: str | None = None
    filter: str | None = None
    selection: str | None = None
    retry: str | None = None
    paused: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteQueue(Operation):
    """Delete a queue with its allocations and dead letters. Answers whether it existed."""

    queue: int


@dataclass(frozen=True, slots=True)
class MoveQueue(Operation):
    """Drop a queue's allocations and dead letters, and move its marker to a position."""

    queue: int
    position: int


@dataclass(frozen=True, slots=True)
class SetDeadRule(Operation):
    """Allocations of a queue become dead letters once so many holders let them expire; None: never."""

    queue: int
    dead_after: int | None


@dataclass(frozen=True, slots=True)
class Requeue(Operation):
    """Give a dead letter to the next consumer and reset its deliveries. Answers whether there was one."""

    queue: int
    first: int


@dataclass(frozen=True, slots=True)
class Reoffer(Operation):
    """Hand out again what a queue has handed out before, as allocations for its next consumers.

    Each of `runs` is (first, last, count) and becomes one allocation; they are disjoint and in order. Answers True.
    Fails with QueueContended if a run overlaps an existing allocation, or does not lie before the marker. An ordered
    queue has `parts` instead, one event each; those that an allocation begins with are left out.
    """

    queue: int
    runs: tuple[tuple[int, int, int], ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class AddLog(Operation):
    """Add a log unless it exists. Answers whether it did; LimitExceeded when there are `LOGS_MAX` already."""

    name: str


@dataclass(frozen=True, slots=True)
class RequireLog(Operation):
    """Make the transaction fail with LogNotFound unless a log exists. Writes nothing; answers True."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteLog(Operation):
    """Delete a log with its iterators, iterators over those, and their output. Answers whether it existed.

    Its events and that output are hidden from then on. `Erase` steps remove them from the files.
    """

    name: str
    created: int | None = None
    """When it was created (ticks): a later log of the same name stays."""
    strict: bool = False
    """Fail with LogNotFound if there is no such log."""


@dataclass(frozen=True, slots=True)
class Erase(Operation):
    """Take one step of the oldest open erasures: rewrite up to `records_max` records, or remove as many rows of output.

    A step skips damaged records, which readers cannot read either. Answers how many erasures are open. An erasure is
    open until no file of the store holds its contents; the last copies may have to wait for readers.
    """

    records_max: int


@dataclass(frozen=True, slots=True)
class AddIterator(Operation):
    """Add an iterator unless the same exists. Answers IteratorState.

    `log` is a log, else an indexed iterator, else a stream named `context/stream`; this is decided once, here. Fails
    with LogNotFound, IteratorExists, IteratorCycle, or LimitExceeded when there are `iterators_max` already.
    """

    name: str
    log: str
    kind: str
    function: str
    indexed: bool
    iterators_max: int = 10_000


@dataclass(frozen=True, slots=True)
class DeleteIterator(Operation):
    """Delete an iterator of a log, iterators over it, and their output. Fails with IteratorNotFound."""

    log: str
    name: str


@dataclass(frozen=True, slots=True)
class WriteOutput(Operation):
    """Add the items of the next messages to an iterator's output, and store its accumulator.

    The items come from the messages after the sequence `source` up to `next_source`; fails with OutputMoved when the
    iterator is not at `source`. An empty item stands for a message that failed. Answers the number of items it has now.
    """

    iterator: int
    source: int
    next_source: int
    items: tuple[bytes, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExpireProducers(Operation):
    """Delete the marks of producers that are idle since a time (ticks), at most so many. Answers how many.

    Either those of idempotency keys or those of all others.
    """

    before: int
    limit: int
    keys: bool = False


@dataclass(frozen=True, slots=True)
class HideStream(Operation):
    """Hide a stream's present events and add them to the ledger of erasures. Answers Hid.

    Iterators over them restart; `Erase` steps do the rest. With `last`, events after that sequence stay. A log's stream
    is refused with InvalidRequest: delete the log instead.
    """

    context: str
    stream: str
    last: int | None = None


@dataclass(frozen=True, slots=True)
class HideEvents(Operation):
    """Hide events by position: disjoint ranges (first, last) in order. Answers Hid."""

    ranges: tuple[tuple[int, int], ...]
    streams: tuple[tuple[str, str], ...]
    """The contexts and streams of all of them, so that iterators over them restart."""


@dataclass(frozen=True, slots=True)
class Seal(Operation):
    """Replace the records between two positions by one record, and move the mark.

    `penstock.store.seals` makes it from `Store.unsealed`. Without `data` only the mark moves. Answers whether it was
    done: the store refuses it if the mark or the ledger of erasures has changed, because the record may hold what was
    erased since.
    """

    first: int
    last: int
    data: bytes | None
    next: int
    ledger: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GiveBack(Operation):
    """Return free space to the file system, up to so many bytes. Answers how many more are worth it."""

    bytes_max: int


@dataclass(frozen=True, slots=True)
class Stage(Operation):
    """Stage units of one attempt, from its unit `number` on; the same again does nothing. Answers whether it did.

    Fails with InvalidRequest if units before them are missing, and with LimitExceeded if the job has staged too much.
    The job of an iterator's output (`penstock.store.outputs`) fails with IteratorNotFound if there is no such iterator.
    Fails with OverLimit if all jobs of the principal `owner` (`penstock.store.stages.jobs_of`) would have staged more
    than `owner_bytes_max` together.
    """

    job: str
    part: int
    attempt: str
    number: int
    units: tuple[StagedUnit, ...]
    bytes_max: int
    units_max: int
    owner: str = ""
    owner_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Publish(Operation):
    """Append what the winners of a job have staged, and drop the job. Answers Placed. Use it with a mark.

    Streams come in the order of their names. Fails with StageLost, VersionConflict, or LimitExceeded if more units of a
    stream overlap in their keys than can be merged; with InvalidRequest if another `origin` has used the mark.
    """

    job: str
    winners: tuple[Winner, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Unstage(Operation):
    """Drop what a job has staged. Answers how many attempts there were."""

    job: str


@dataclass(frozen=True, slots=True)
class Install(Operation):
    """Make chunks that the winners have staged the output of an iterator, and drop the job. Answers Installed.

    The build began after `source` messages, which gave `items`, and has read up to `messages`. Items that the iterator
    has built since then stay, and the installation skips as many; an iterator that has read as far gets nothing. Fails
    with IteratorNotFound, StageLost, or InvalidRequest if so many messages cannot give so many items.
    """

    iterator: int
    source: int
    items: int
    messages: int
    winners: tuple[Winner, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExpireStages(Operation):
    """Drop attempts that are idle since a time (ticks), at most so many. Answers how many."""

    before: int
    limit: int


@dataclass(frozen=True, slots=True)
class StorePrincipal(Operation):
    """Make a principal, or replace its grants and limits. Answers whether it is new; LimitExceeded.

    With `keeps_admin` it fails with LastAdministrator if no principal would have the right admin everywhere.
    """

    name: str
    grants: tuple[str, ...]
    limits: Limits
    keeps_admin: bool = False


@dataclass(frozen=True, slots=True)
class RemovePrincipal(Operation):
    """Delete a principal with its credentials. Answers whether there was one. `keeps_admin` as in StorePrincipal."""

    name: str
    keeps_admin: bool = False


@dataclass(frozen=True, slots=True)
class StoreCredential(Operation):
    """Add or replace a credential. Answers whether it is new.

    Fails with PrincipalNotFound, LimitExceeded, or InvalidRequest if another principal has it.
    """

    credential: Credential


@dataclass(frozen=True, slots=True)
class RemoveCredential(Operation):
    """Delete a credential. Answers whether there was one."""

    id: str


@dataclass(frozen=True, slots=True)
class ExpireCredentials(Operation):
    """Let a principal's credentials of a kind end at a time (ticks), but for one; earlier ends stay. Answers True."""

    principal: str
    kind: str
    until: int
    except_id: str


@dataclass(frozen=True, slots=True)
class RequireAdministrator(Operation):
    """Change nothing. Fails with NotAuthenticated unless who sends a change may still make it.

    A principal must have the right admin everywhere, and its credential, if it has shown one. Without a principal: the
    store must be open.
    """

    principal: str | None
    credential: Credential | None = None


@dataclass(frozen=True, slots=True)
class ReadAccess(Operation):
    """Change nothing. Answers the AccessState with all that comes before it in the batch."""


@dataclass(frozen=True, slots=True)
class ForgetArrival(Operation):
    """The arrival of the store is in the audit now. Answers True; InvalidRequest if no arrival was waiting for that."""


class Transaction(msgspec.Struct, frozen=True):
    """Operations that happen together or not at all.

    With a mark that was used before, the store writes nothing and answers the first results of its commits. A
    transaction with a refusal fails with it, unless the store recognises the mark or the commits as written before.

    `keys` belong to its only commit, one for all of it or one for each event. If the store knows them with the same
    numbers, it writes nothing and answers where those events are; if it knows some, or with other numbers, it fails.
    """

    operations: tuple[Operation, ...]
    mark: ProducerMark | None = None
    refusal: PenstockError | None = None
    keys: tuple[ProducerMark, ...] = ()


# --- outcomes -------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """The result of a publication, and the streams (context, stream) with new events."""

    published: Published
    streams: frozenset[tuple[str, str]]


Result = (
    Appended
    | Placed
    | Installed
    | Hid
    | SubscriptionInfo
    | QueueState
    | IteratorState
    | Allocation
    | tuple[Held, ...]
    | AccessState
    | bool
    | int
    | str
    | None
)
Outcome = list[Result] | PenstockError
"""One result per operation, or why the transaction failed."""


class Finding(NamedTuple):
    """A fault that `verify` found, and where."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Notice:
    """The changes of a commit, for clients that wait for them on other servers.

    `head` is the last position then. `streams` (context, stream) have new events, and `queues` may have something to
    hand out again; None: perhaps all. `has_changed_logs`: logs or iterators were added, deleted or restarted.
    `has_changed_access`: principals or credentials were.
    """

    is_own: bool
    head: int
    streams: tuple[tuple[str, str], ...] | None
    has_changed_logs: bool
    queues: tuple[int, ...] | None
    has_changed_access: bool = False


EVERYTHING: Final = Notice(False, 0, None, True, None, True)
"""Notices may have been lost: check everything again. Its head means nothing."""


Progressed = Callable[[int, int], None]
"""Takes done and total while a long job runs."""
