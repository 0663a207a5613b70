"""What can be written to a store, operation by operation, and what it answers.

Positions that come from an earlier read are compared with the present state inside the transaction, so that several
writers can share one store.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.model import ProducerMark, StagedUnit, Winner
from penstock.store.record import Columns


@dataclass(frozen=True, slots=True)
class Commit:
    """Append the events of one commit. Answers Appended, or fails with VersionConflict."""

    context: str
    stream: str
    expected: int
    columns: Columns


@dataclass(frozen=True, slots=True)
class Register:
    """Make a subscription that starts at a position, or find it. Answers SubscriptionInfo."""

    subscriber: str
    context: str
    filter: str
    position: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Move a subscription from `start` to `next` if it is still at `start`.

    `last_ticks` is the time the batch ended on; None means events were only passed over. Answers whether it moved;
    a strict one that cannot fails with SubscriptionMoved.
    """

    subscription: int
    start: int
    next: int
    last_ticks: int | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class SetBookmark:
    """Move a subscription to a position, wherever it is. Fails with SubscriptionNotFound."""

    subscriber: str
    context: str
    filter: str
    position: int


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue that starts at a position, or find it. Answers QueueState; QueueFilterMismatch."""

    context: str
    name: str
    filter: str
    position: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """End an allocation if this subscriber still owns it. Answers whether it did; strict: else AllocationLost.

    Its first marker is enough to know it; then `last` is None.
    """

    queue: int
    subscriber: str
    first: int
    last: int | None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Let an allocation expire now if this subscriber still owns it. Answers whether it did.

    If it does not count, and the allocation is held still, this holder is none of those that let it expire.
    """

    queue: int
    subscriber: str
    first: int
    last: int
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a reader thinks a queue would give next.

    `marker` is where the queue stood. Without `first` there was nothing up to `next`. `kind` says whose it was.
    """

    kind: str
    marker: int
    next: int
    first: int = 0
    last: int = 0
    count: int = 0

    OWN: ClassVar[str] = "own"
    EXPIRED: ClassVar[str] = "expired"
    FRESH: ClassVar[str] = "fresh"
    NOTHING: ClassVar[str] = "nothing"


@dataclass(frozen=True, slots=True)
class Allocate:
    """Carry out a proposal if it still holds. Answers the Allocation, None for nothing, or STALE: propose again."""

    queue: int
    subscriber: str
    ttl_ms: int
    proposal: Proposal


STALE: Final = "stale"


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """Drop a queue's allocations and put its marker at a position."""

    queue: int
    position: int


@dataclass(frozen=True, slots=True)
class SetDeadRule:
    """Allocations of a queue become dead letters once so many holders let them expire; None: never."""

    queue: int
    dead_after: int | None


@dataclass(frozen=True, slots=True)
class Requeue:
    """Give a dead letter to the next consumer, its deliveries counted anew. Answers whether there was one."""

    queue: int
    first: int


@dataclass(frozen=True, slots=True)
class Reoffer:
    """Put events that a queue has handed out before back into it, as allocations that its next consumers get.

    Each of `runs` is (first, last, count) and becomes one; they are disjoint and in order. Answers True. Fails with
    QueueContended if a run shares a position with an allocation that is there, or does not lie before the marker.
    """

    queue: int
    runs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class AddLog:
    """Make a log unless it is there. Answers whether it was made; LimitExceeded when there are `LOGS_MAX` already."""

    name: str


@dataclass(frozen=True, slots=True)
class RequireLog:
    """Let the transaction fail with LogNotFound unless a log is there. Writes nothing; answers True."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """Delete a log with its iterators, iterators over those, and their output. Answers whether it was there.

    Nobody can read its events or that output from then on. They are entered in the ledger of erasures and leave the
    file in `Erase` steps. With `created` (ticks), only the log that was made then is deleted, and not a later one.
    """

    name: str
    created: int | None = None


@dataclass(frozen=True, slots=True)
class Erase:
    """One step of the oldest open erasures: up to `records_max` records become tombstones, or as much output goes.

    A damaged record is passed over; nobody can read it anyway. Answers how many erasures are open: one is until its
    contents are in none of the store's files any more, and the last of that may have to wait for those who read.
    """

    records_max: int


@dataclass(frozen=True, slots=True)
class AddIterator:
    """Make an iterator unless the same is there. Answers IteratorState.

    `log` is a log, else an indexed iterator, else a stream named `context/stream`; what it is now it stays. Fails with
    LogNotFound, IteratorExists, IteratorCycle, or LimitExceeded when there are `iterators_max` already.
    """

    name: str
    log: str
    kind: str
    function: str
    indexed: bool
    iterators_max: int = 10_000


@dataclass(frozen=True, slots=True)
class DeleteIterator:
    """Delete an iterator of a log, iterators over it, and their output. Fails with IteratorNotFound."""

    log: str
    name: str


@dataclass(frozen=True, slots=True)
class WriteOutput:
    """Add to an iterator's output what its log's next messages gave, and keep its state.

    `source` is the sequence it had read up to and `next_source` the one it has now; fails with OutputMoved when the
    iterator is not at `source`. An empty item stands for a message that failed. Answers the number of items it has now.
    """

    iterator: int
    source: int
    next_source: int
    items: tuple[bytes, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExpireProducers:
    """Forget producers that were last used before a time (ticks), at most so many. Answers how many."""

    before: int
    limit: int


@dataclass(frozen=True, slots=True)
class HideStream:
    """Enter all events that a stream has now in the ledger of erasures, if it has any. Answers Hid.

    Nobody can read them from then on, and iterators over them begin anew; `Erase` steps do the rest. With `last`, what
    comes after that sequence stays. A log's stream is refused with InvalidRequest: logs are deleted, not erased.
    """

    context: str
    stream: str
    last: int | None = None


@dataclass(frozen=True, slots=True)
class HideEvents:
    """The same for events by position: disjoint ranges (first, last) in order. Answers Hid.

    `streams` are the context and stream of all of them, so that iterators over them begin anew.
    """

    ranges: tuple[tuple[int, int], ...]
    streams: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """Put one record in the place of those that lie between two positions, and move the mark up to which all is sealed.

    Made by `penstock.store.sealing` from `Store.unsealed`. Without `data` only the mark moves. Answers whether it was
    done: it is not if the mark or the ledger of erasures is another one by now, because the record may hold what was
    erased meanwhile.
    """

    first: int
    last: int
    data: bytes | None
    next: int
    ledger: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give free space back to the file system, up to so many bytes. Answers how many are left that are worth it."""

    bytes_max: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage units of one attempt, from its unit `number` on; the same again does nothing. Answers whether it did.

    Fails with InvalidRequest if units before them are missing, and with LimitExceeded if the job has staged too much.
    The job of an iterator's output (`penstock.store.outputs`) fails with IteratorNotFound if there is no such iterator.
    """

    job: str
    part: int
    attempt: str
    number: int
    units: tuple[StagedUnit, ...]
    bytes_max: int
    units_max: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Place what the winners of a job have staged, and drop the job. Answers Placed. Belongs under a mark.

    Streams come in the order of their names. Fails with StageLost, VersionConflict, or LimitExceeded if more units of a
    stream overlap in their keys than can be merged; under a mark that was published by another `origin`, where both say
    one, with InvalidRequest.
    """

    job: str
    winners: tuple[Winner, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Unstage:
    """Drop what a job has staged. Answers how many attempts there were."""

    job: str


@dataclass(frozen=True, slots=True)
class Install:
    """Make chunks that the winners have staged the output of an iterator, and drop the job. Answers Installed.

    The build began where `source` messages had given `items`, and has read `messages` now. What the iterator has by
    itself meanwhile stays, and as many items are passed over; one that has read as far gets nothing. Fails with
    IteratorNotFound, StageLost, or InvalidRequest if there cannot be so many items for so many messages.
    """

    iterator: int
    source: int
    items: int
    messages: int
    winners: tuple[Winner, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class ExpireStages:
    """Drop attempts to which nothing was added since a time (ticks), at most so many. Answers how many."""

    before: int
    limit: int


LogOperation = AddLog | DeleteLog | AddIterator | DeleteIterator | WriteOutput
StageOperation = Stage | Publish | Install | Unstage | ExpireStages
UpkeepOperation = HideStream | HideEvents | Erase | Seal | GiveBack
Operation = (
    Commit
    | Register
    | Progress
    | SetBookmark
    | DeclareQueue
    | Acknowledge
    | Release
    | Allocate
    | MoveQueue
    | SetDeadRule
    | Requeue
    | Reoffer
    | ExpireProducers
    | RequireLog
    | LogOperation
    | StageOperation
    | UpkeepOperation
)


class Transaction(NamedTuple):
    """Operations that happen together or not at all.

    With a mark that was used before, nothing is written and the first results of its commits are answered. One with a
    refusal fails with it, unless the store recognises the mark or the commits: then it was written before, and is
    answered so.
    """

    operations: tuple[Operation, ...]
    mark: ProducerMark | None = None
    refusal: PenstockError | None = None
