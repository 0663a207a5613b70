"""Requests: what clients can ask of the engine. Every gate speaks these; none of them knows a protocol.

Times are ticks. A `filter` is a stream prefix; `*` and the empty string mean every stream. `wait_ms` above zero makes a
read that finds nothing wait that long for new events.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

from penstock.model.access import Limits, Right
from penstock.model.columns import Columns, columns_of
from penstock.model.events import ANY, NewEvent, Selection

R = TypeVar("R", bound="Request")

KEYS: Final = "idempotency:"
"""How the store's names of producers begin that are idempotency keys."""


class Repeat(StrEnum):
    """Whether a client may resend a request whose outcome is unknown."""

    READS = "reads"
    """Yes: the request only reads."""
    HARMLESS = "harmless"
    """Yes: a repeat changes nothing, or nothing that matters."""
    MARKED = "marked"
    """Yes, if the request identifies itself, so that a repeat differs from a new request; see `Request.is_marked`."""
    NEVER = "never"
    """No: a repeat may do harm, and only the caller can decide."""


class Reach(StrEnum):
    """The part of the store that a request is about, where the principal needs its right.

    If a request names a place outside of the principal's grants, the engine refuses it, whether the name exists or not.
    For other requests it passes the view of the principal to the handler, for which everything else does not exist.
    """

    STREAM = "one stream: `context` and `stream`"
    LOG = "one log: `log`"
    EACH = "every stream or filter that it names"
    """Those of `places`."""
    FILTER = "the part that the principal may see of `context` and `filter`"
    VISIBLE = "whatever the principal may see of a list or a sum"
    QUEUE = "a queue that the principal may use, all of it"
    SUBSCRIPTION = "a subscription that the principal may use, all of it"
    ITERATOR = "an iterator, by what it reads"
    OWN = "what the principal itself has staged"
    STORE = "the whole store"
    NOTHING = "nothing that is stored"


HANDLED: Final = frozenset(
    (Reach.FILTER, Reach.VISIBLE, Reach.QUEUE, Reach.SUBSCRIPTION, Reach.ITERATOR, Reach.OWN, Reach.EACH)
)
"""Of these a handler gets what the principal may see."""


class Place(NamedTuple):
    """A stream, or with `is_filter` all streams that begin so."""

    context: str
    stream: str
    is_filter: bool = False
    right: Right | None = None
    """The right that this place needs, if it is not the one of the request."""


class Request:
    """The base of all requests; each says which right it needs and where, and whether a repeat is harmless."""

    __slots__ = ()
    right: ClassVar[Right] = Right.READ
    reach: ClassVar[Reach] = Reach.STORE
    repeat: ClassVar[Repeat] = Repeat.NEVER
    marked_by: ClassVar[str] = ""
    """The attribute that identifies a request, if it is not None."""

    def needs(self) -> Right:
        return self.right

    def places(self) -> Iterable[Place]:
        """Where a request of `Reach.EACH` needs its rights."""
        return ()

    def is_marked(self) -> bool:
        """Whether this identifies itself, so that a repeat of it differs from a new request."""
        return bool(self.marked_by) and getattr(self, self.marked_by) is not None

    def may_repeat(self) -> bool:
        """Whether a client may resend this when its outcome is unknown."""
        return self.repeat in (Repeat.READS, Repeat.HARMLESS) or (self.repeat is Repeat.MARKED and self.is_marked())


@dataclass_transform(frozen_default=True)
def request(
    right: Right, reach: Reach, repeat: Repeat = Repeat.NEVER, marked_by: str = ""
) -> Callable[[type[R]], type[R]]:
    """Make a class a request that needs a right; `repeat` and `marked_by` say whether a client may resend it."""

    def make(kind: type[R]) -> type[R]:
        made = dataclass(frozen=True, slots=True)(kind)
        made.right, made.reach, made.repeat, made.marked_by = right, reach, repeat, marked_by
        return made

    return make


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """A producer's own number for a write. The same number again is answered, not written again."""

    producer: str
    number: int
    owner: str = ""
    """Begins the store's name of the producer: a principal with narrow grants shares no producers."""

    @property
    def key(self) -> str:
        return self.owner + self.producer


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identifies a request, or an event, in its context. If the key comes again, the server answers and writes nothing.

    Unlike a producer's numbers, keys have no order, and the store forgets each after a time.
    """

    name: str
    fingerprint: int
    """A digest of the part of a request that a repeat must have too."""
    owner: str = ""
    """As in a ProducerMark."""

    def mark(self, context: str) -> ProducerMark:
        """The producer as which the store keeps it. Each key is a separate one."""
        digest = blake2b(f"{self.owner}\0{context}\0{self.name}".encode(), digest_size=20).hexdigest()
        return ProducerMark(f"{KEYS}{digest}", self.fingerprint)


@request(Right.APPEND, Reach.STREAM, Repeat.MARKED)
class Append(Request):
    """One commit: all of these events or none. `expected` is the sequence the first one must get, or ANY.

    `keys` are none, one for the whole commit, or one for each event.
    """

    context: str
    stream: str
    events: tuple[NewEvent, ...] | list[NewEvent] | Columns
    expected: int
    mark: ProducerMark | None = None
    keys: tuple[IdempotencyKey, ...] = ()

    def columns(self) -> Columns:
        """Its events, encoded and checked. Raises InvalidRequest."""
        return self.events if isinstance(self.events, Columns) else columns_of(self.events)

    def is_marked(self) -> bool:
        """By its mark or keys; or by its version, where the store knows the same events again."""
        return self.mark is not None or bool(self.keys) or self.expected != ANY


class QueueReceipt(NamedTuple):
    """An allocation to acknowledge inside a transaction, which fails if another consumer holds it by then."""

    context: str
    queue: str
    subscriber: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SubscriptionReceipt:
    """A fetched batch to progress past inside a transaction. It fails if the subscription has moved."""

    subscription: int
    last_ticks: int


@request(Right.APPEND, Reach.EACH, Repeat.MARKED, "mark")
class Transact(Request):
    """Several commits together with what they were made from: all or nothing."""

    commits: tuple[Append, ...] = ()
    acknowledge: tuple[QueueReceipt, ...] = ()
    progress: tuple[SubscriptionReceipt, ...] = ()
    mark: ProducerMark | None = None

    def needs(self) -> Right:
        """To append; with receipts, also to consume."""
        return Right.APPEND | Right.CONSUME if self.acknowledge or self.progress else Right.APPEND

    def places(self) -> Iterable[Place]:
        return (Place(commit.context, commit.stream, right=Right.APPEND) for commit in self.commits)


@request(Right.READ, Reach.STREAM, Repeat.READS)
class ReadStream(Request):
    """Events of one stream from a sequence on, or with `backward` from it down. Sequence 0 backward: the last.

    A page with `types` may be empty and not the end.
    """

    context: str
    stream: str
    from_sequence: int = 1
    to_sequence: int | None = None
    limit: int | None = None
    backward: bool = False
    types: Collection[str] | None = None


@request(Right.READ, Reach.STREAM, Repeat.READS)
class ReadEvent(Request):
    context: str
    stream: str
    sequence: int


@request(Right.READ, Reach.FILTER, Repeat.READS)
class ReadAll(Request):
    position: int = 1
    context: str | None = None
    filter: str = ""
    types: Collection[str] | None = None
    limit: int | None = None
    wait_ms: int = 0


@request(Right.READ, Reach.FILTER, Repeat.READS)
class ReadRecords(Request):
    """Stored records, as they are, that hold events of a context and filter from a position on."""

    position: int = 1
    context: str | None = None
    filter: str = ""
    wait_ms: int = 0


@request(Right.READ, Reach.FILTER, Repeat.READS)
class FindPosition(Request):
    """The first position of a context and filter whose event time is at or after `ticks`."""

    context: str
    filter: str
    ticks: int


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListContexts(Request):
    after: str = ""
    limit: int | None = None


@request(Right.READ, Reach.FILTER, Repeat.READS)
class ListStreams(Request):
    """Streams of a context by name, after one."""

    context: str
    filter: str = ""
    after: str = ""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Without `context`: all contexts that the principal may see. `selection` is the text of a `Selection`."""

    context: str | None
    filter: str
    start_ticks: int
    selection: str = ""


@request(Right.CONSUME, Reach.EACH, Repeat.HARMLESS)
class RegisterSubscriptions(Request):
    subscriber: str
    subscriptions: tuple[SubscriptionStart, ...]

    def places(self) -> Iterable[Place]:
        return (place for one in self.subscriptions for place in _places(one.context, one.filter, one.selection))


def _places(context: str | None, filter: str, selection: str | None) -> Iterable[Place]:
    """The places that a consumer with this filter needs: none for all contexts, where it gets what it may see."""
    if context is None:
        return ()
    return (Place(context, prefix, True) for prefix in Selection.parsed(selection or "").beginnings(filter))


@request(Right.CONSUME, Reach.SUBSCRIPTION, Repeat.READS)
class FetchSubscription(Request):
    """The next batch; the same one until it is progressed or set. A read: the server would give it again."""

    subscription: int
    count: int
    wait_ms: int = 0


@request(Right.CONSUME, Reach.SUBSCRIPTION)
class ProgressSubscription(Request):
    """Progress past the fetched batch whose last event has this time. For any other time nothing changes."""

    subscription: int
    last_ticks: int


@request(Right.CONSUME, Reach.EACH)
class SetSubscription(Request):
    """Move a subscription to a time. A repeat would move it back over what was progressed since."""

    subscriber: str
    context: str | None
    filter: str
    ticks: int
    selection: str = ""

    def places(self) -> Iterable[Place]:
        return _places(self.context, self.filter, self.selection)


@request(Right.CONSUME, Reach.SUBSCRIPTION)
class DeleteSubscription(Request):
    """Forget a subscription and where it is. Events stay in the history."""

    subscription: int


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListSubscriptions(Request):
    """Subscriptions by id, after one."""

    after: int = 0
    limit: int | None = None


@request(Right.CONSUME, Reach.EACH, Repeat.HARMLESS)
class SubscribeQueue(Request):
    """Declare a queue if it is new, and allocate events of it. `ttl_ms` of −1 allocates nothing.

    How a new queue works: None is the usual. `selection` is the text of a `Selection`, `retry` of a `RetryPolicy`.
    `several`: the consumer understands several allocations at a time.
    """

    context: str
    queue: str
    subscriber: str
    filter: str
    start_ticks: int
    count: int
    ttl_ms: int
    wait_ms: int = 0
    ordered: str | None = None
    selection: str | None = None
    retry: str | None = None
    dead_after: int | None = None
    several: bool = False

    def places(self) -> Iterable[Place]:
        return _places(self.context, self.filter, self.selection)


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class AcknowledgeQueue(Request):
    """Acknowledge an allocation (markers 0, 0: none) and allocate the next; `ttl_ms` of −1 allocates nothing.

    Without a context the queue is found by its name, and without `last` the allocation by its first marker. `several`
    is as in SubscribeQueue.
    """

    context: str | None
    queue: str
    subscriber: str
    first: int
    last: int | None
    count: int
    ttl_ms: int
    wait_ms: int = 0
    several: bool = False


BY_STREAM: Final = "stream"
BY_PREFIX: Final = "prefix:"
"""How a queue is ordered: by stream, or by the part of its name before the separator that follows."""


def order_key(ordered: str, stream: str) -> str:
    """The key by which a queue orders the events of a stream; empty if it is not ordered."""
    if not ordered:
        return ""
    if ordered == BY_STREAM:
        return stream
    separator = ordered.removeprefix(BY_PREFIX)
    # No other key has the separator in it.
    return stream.partition(separator)[0] or separator


class Run(NamedTuple):
    """An allocation: its first and its last position."""

    first: int
    last: int


class Rest(StrEnum):
    """The outcome of all events of a batch that the request does not name."""

    DONE = "done"
    RETRY = "retry"
    BACK = "back"
    """They go back, and this delivery does not count."""


NOT_TRIED: Final = -1
"""Instead of a delay: the consumer has not tried the event, which goes back, and this delivery does not count."""


REASON_CHARACTERS_MAX: Final = 1000


def short_reason(reason: str) -> str:
    """A reason that every store can keep."""
    return reason[:REASON_CHARACTERS_MAX].replace("\0", " ").encode(errors="replace").decode()


class Retried(NamedTuple):
    """An event that comes again after a delay; None: as the queue's policy says. Or NOT_TRIED."""

    position: int
    delay_ms: int | None
    reason: str


class Buried(NamedTuple):
    position: int
    reason: str


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class SettleQueue(Request):
    """End allocations that a consumer holds, with an outcome for each event. AllocationLost if one of them is lost.

    A repeat finds them lost. Events that failed as often as the queue's dead-letter rule says become dead letters.
    """

    context: str | None
    queue: str
    subscriber: str
    runs: tuple[Run, ...]
    rest: Rest = Rest.DONE
    delay_ms: int | None = None
    reason: str = ""
    retries: tuple[Retried, ...] = ()
    buries: tuple[Buried, ...] = ()

    @property
    def is_all_done(self) -> bool:
        """Whether it acknowledges every event."""
        return self.rest == Rest.DONE and not self.retries and not self.buries


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class ExtendQueue(Request):
    """Hold allocations for so long from now on. AllocationLost if one of them is lost."""

    context: str | None
    queue: str
    subscriber: str
    runs: tuple[Run, ...]
    ttl_ms: int


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class PauseQueue(Request):
    """Hand out nothing until the queue is resumed. Consumers keep what they hold."""

    context: str | None
    queue: str
    paused: bool = True


@request(Right.CONSUME, Reach.QUEUE)
class DeleteQueue(Request):
    """With its allocations and dead letters. Events stay in the history."""

    context: str | None
    queue: str


@request(Right.CONSUME, Reach.QUEUE)
class RenameQueue(Request):
    context: str | None
    queue: str
    name: str


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class SetRetryPolicy(Request):
    """How long events wait that failed. `retry` is the text of a `RetryPolicy`; empty: the usual one."""

    context: str | None
    queue: str
    retry: str


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class SetQueueFilter(Request):
    """Deliver other events from the marker on. Refused while the queue has allocations."""

    context: str | None
    queue: str
    filter: str
    selection: str = ""


@request(Right.READ, Reach.QUEUE, Repeat.READS)
class PreviewQueue(Request):
    """Count what a queue would deliver with another filter, or after a move; nothing changes. None: as it is.

    With `filter` or `selection` as in SetQueueFilter, with `position` or `ticks` as in ResetQueue; not both of those.
    """

    context: str | None
    queue: str
    filter: str | None = None
    selection: str | None = None
    ticks: int | None = None
    position: int | None = None


@request(Right.READ, Reach.QUEUE, Repeat.READS)
class ListLetters(Request):
    """Dead letters, event by event, by position, after one."""

    context: str | None
    queue: str
    after: int = 0
    limit: int | None = None


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class PutBackLetters(Request):
    """Give dead letters to the queue's next consumers, or with `drop` forget them. Answers how many there were."""

    context: str | None
    queue: str
    positions: tuple[int, ...]
    drop: bool = False


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class ReleaseQueue(Request):
    """Give an allocation, unless it is lost, to the queue's next consumer at once.

    `counts`: as one of the holders that let it expire, after so many of which it is a dead letter.
    """

    context: str | None
    queue: str
    subscriber: str
    first: int
    last: int
    counts: bool = True


@request(Right.CONSUME, Reach.QUEUE)
class ResetQueue(Request):
    """Drop a queue's allocations and move its marker. A repeat would drop what consumers were given since."""

    context: str | None
    queue: str
    ticks: int
    position: int | None = None


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class SetDeadLetterRule(Request):
    """Make allocations of a queue dead letters once so many holders have let them expire; None: never."""

    context: str | None
    queue: str
    dead_after: int | None


@request(Right.READ, Reach.QUEUE, Repeat.READS)
class ListDeadLetters(Request):
    """By first marker, after one."""

    context: str | None
    queue: str
    after: int = 0
    limit: int | None = None


@request(Right.CONSUME, Reach.QUEUE, Repeat.HARMLESS)
class PutBack(Request):
    """Give a dead letter, unless it is back already, to the queue's next consumer; its deliveries count from 0."""

    context: str | None
    queue: str
    first: int


@request(Right.CONSUME, Reach.QUEUE, Repeat.MARKED, "mark")
class ReplayQueue(Request):
    """Deliver a queue's events between two positions, below its marker, again: all of them or none.

    It leaves out those that a consumer holds, that come again anyway or that are dead letters.
    """

    context: str | None
    queue: str
    first: int
    last: int
    mark: ProducerMark | None = None


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListQueues(Request):
    """Queues with their state, by number, after one."""

    after: int = 0
    limit: int | None = None


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class GetStats(Request):
    pass


# --- logs and iterators --------------------------------------------------------------------------------------


class IteratorKind(StrEnum):
    MAP = "map"
    FILTER = "filter"
    REDUCE = "reduce"


class Over(StrEnum):
    LOG = "log"
    ITERATOR = "iterator"
    STREAM = "stream"


@request(Right.APPEND, Reach.LOG, Repeat.HARMLESS)
class CreateLog(Request):
    log: str


@request(Right.APPEND, Reach.LOG, Repeat.MARKED, "created")
class DropLog(Request):
    """Delete a log, its contents and its iterators, if it exists; with `created`, only the one that was made then."""

    log: str
    created: int | None = None


@request(Right.READ, Reach.LOG, Repeat.READS)
class ShowLog(Request):
    log: str


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListLogs(Request):
    pass


@request(Right.APPEND, Reach.LOG)
class AddMessages(Request):
    """Append messages to a log, each one CBOR item: all of them or none."""

    log: str
    messages: tuple[bytes, ...]


@request(Right.APPEND, Reach.ITERATOR, Repeat.HARMLESS)
class CreateIterator(Request):
    """Make an iterator unless the same one exists."""

    name: str
    log: str
    kind: IteratorKind
    function: str
    indexed: bool


@request(Right.APPEND, Reach.ITERATOR)
class DropIterator(Request):
    log: str
    name: str


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListIterators(Request):
    """Of one log, or all."""

    log: str | None


@request(Right.READ, Reach.ITERATOR, Repeat.READS)
class ShowIterator(Request):
    name: str


@request(Right.READ, Reach.ITERATOR, Repeat.READS)
class NextItems(Request):
    """Up to `count` items of an iterator's output from an ordinal on; -1 is the last one."""

    iterator: str
    ordinal: int
    count: int


# --- staging -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedUnit:
    """Some events of one stream, in order: a record as `penstock.store.stages` makes it.

    `expected` is the sequence that the job's first event in this stream must get, or ANY. `keys` put the events of a
    stream in order; without keys, parts follow one another as they are numbered.
    """

    context: str
    stream: str
    expected: int
    data: bytes
    keys: bytes = b""


@dataclass(frozen=True, slots=True)
class Winner:
    """The attempt of a part that counts, and how many units it has staged."""

    part: int
    attempt: str
    units: int


@request(Right.APPEND, Reach.EACH, Repeat.HARMLESS)
class StageEvents(Request):
    """Stage units of one attempt, the first of which is its unit `number` (from 0). A repeat does nothing.

    A request without units only asks for the limit. Readers see published units only.
    """

    job: str
    part: int
    attempt: str
    number: int
    units: tuple[StagedUnit, ...]

    def places(self) -> Iterable[Place]:
        return (Place(unit.context, unit.stream) for unit in self.units)


@request(Right.APPEND, Reach.OWN, Repeat.MARKED, "mark")
class PublishStages(Request):
    """Append what the winners have staged, all or nothing, and drop the job.

    `origin` says who gives the mark its number, such as a query: another one under the same mark is refused.
    """

    job: str
    winners: tuple[Winner, ...]
    mark: ProducerMark
    origin: str = ""


@request(Right.APPEND, Reach.OWN, Repeat.HARMLESS)
class DropStages(Request):
    job: str


# --- builds of indexed iterators elsewhere -------------------------------------------------------------------


@request(Right.READ, Reach.ITERATOR, Repeat.READS)
class BeginBuild(Request):
    """Where the build of an indexed iterator begins, and what it needs."""

    iterator: str


@request(Right.READ, Reach.ITERATOR, Repeat.READS)
class ReadMessages(Request):
    """Up to `count` messages that an iterator reads. IteratorNotFound if the one of this name has another id now."""

    iterator: str
    id: int
    ordinal: int
    count: int


@request(Right.READ, Reach.ITERATOR, Repeat.READS)
class FindMessage(Request):
    """The position of a message that an iterator reads; None if it is erased or an item. Fails as ReadMessages does."""

    iterator: str
    id: int
    ordinal: int


@request(Right.APPEND, Reach.ITERATOR, Repeat.HARMLESS)
class StageOutput(Request):
    """Stage chunks of output of one attempt, the first of which is its chunk `number` (from 0). A repeat does nothing.

    A chunk is some items in order, as `penstock.store.outputs.pack_items` makes it.
    """

    id: int
    part: int
    attempt: str
    number: int
    chunks: tuple[bytes, ...]


@request(Right.APPEND, Reach.ITERATOR, Repeat.HARMLESS)
class InstallOutput(Request):
    """Make what the winners have staged the output of an iterator, all or nothing, and drop the rest.

    `source` and `items` are those of its BuildStart, and `messages` is how many are read at its end. Output that the
    server has built meanwhile stays. `state` is the accumulator of a reduce at the end.
    """

    iterator: str
    id: int
    source: int
    items: int
    messages: int
    winners: tuple[Winner, ...]
    state: bytes | None = None


@request(Right.APPEND, Reach.ITERATOR, Repeat.HARMLESS)
class DropOutput(Request):
    """Drop what is staged as the output of an iterator."""

    id: int


# --- erasing -------------------------------------------------------------------------------------------------


@request(Right.ADMIN, Reach.STREAM, Repeat.MARKED, "last")
class EraseStream(Request):
    """Erase the events of a stream up to a sequence, or all: they keep id, sequence, position and time."""

    context: str
    stream: str
    last: int | None = None


@request(Right.ADMIN, Reach.FILTER, Repeat.MARKED, "last")
class EraseSubject(Request):
    """Erase events whose headers name a subject, in one context or all, as far as one step goes.

    The reply says where to go on. With `last`, a position, what comes after it stays.
    """

    subject: str
    context: str | None = None
    position: int = 1
    last: int | None = None


@request(Right.READ, Reach.VISIBLE, Repeat.READS)
class ListErasures(Request):
    """A page of the ledger of erasures, by id, after one."""

    after: int = 0
    limit: int | None = None


# --- access --------------------------------------------------------------------------------------------------


@request(Right(0), Reach.NOTHING, Repeat.READS)
class Authenticate(Request):
    """Be another principal from now on, on this connection and for this sender. Its gate carries it out."""

    token: str

    def __repr__(self) -> str:
        return "Authenticate(token=…)"


@request(Right(0), Reach.NOTHING, Repeat.READS)
class WhoAmI(Request):
    """Get the principal that the sender is, and its grants."""


@request(Right.ADMIN, Reach.STORE, Repeat.HARMLESS)
class PutPrincipal(Request):
    """Make a principal, or replace the grants and limits of one. Its credentials stay.

    Without `force` the last principal with the right admin everywhere keeps it.
    """

    name: str
    grants: tuple[str, ...]
    limits: Limits = Limits()
    force: bool = False


@request(Right.ADMIN, Reach.STORE, Repeat.HARMLESS)
class DropPrincipal(Request):
    """Revoke a principal with all its credentials; only with `force` the last that has the right admin everywhere."""

    name: str
    force: bool = False


@request(Right.ADMIN, Reach.STORE)
class IssueToken(Request):
    """Make a token of a principal. The reply has its secret, which is stored nowhere.

    With `rotate` its other tokens end after so many seconds.
    """

    principal: str
    label: str = ""
    expires: int | None = None
    rotate: int | None = None


@request(Right.ADMIN, Reach.STORE, Repeat.HARMLESS)
class AddCredential(Request):
    """Let a client certificate or a key of CURVE stand for a principal. `id` is that of a `Credential`."""

    principal: str
    id: str
    label: str = ""
    expires: int | None = None


@request(Right.ADMIN, Reach.STORE, Repeat.HARMLESS)
class DropCredential(Request):
    """Revoke one credential, by its id."""

    id: str


@request(Right.ADMIN, Reach.STORE, Repeat.READS)
class ListPrincipals(Request):
    """Principals by name, after one."""

    after: str = ""
    limit: int | None = None


@request(Right.ADMIN, Reach.STORE, Repeat.READS)
class ListCredentials(Request):
    """Credentials, without what proves them, of one principal or all, by id, after one."""

    principal: str | None = None
    after: str = ""
    limit: int | None = None
