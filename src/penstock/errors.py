"""The one exception tree.

Errors carry fields and say in a sentence what happened and, where it helps, what to do. They travel between
processes, so each is rebuilt from its fields alone. Every wire has one table from these to its codes.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar


class Retry(StrEnum):
    """Whether the same request may be sent again after an error."""

    SAFE = "safe"
    """Nothing was done: sending it again does no harm, and may help."""
    NEVER = "never"
    """It would fail again until something else is mended, or what it would do has been decided otherwise."""
    UNKNOWN = "unknown"
    """It may have been done: safe for what only reads, and for writes that the store can recognise."""


@dataclass(eq=False)
class PenstockError(Exception):
    """The base of everything Penstock raises on purpose."""

    _retry: ClassVar[Retry] = Retry.NEVER

    @property
    def retry(self) -> Retry:
        """Whether the same request may be sent again."""
        return self._retry

    def __str__(self) -> str:
        return self.__doc__ or type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


# --- the request itself ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class InvalidRequest(PenstockError):
    """A request that could never succeed."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field} {self.reason}"


@dataclass(eq=False)
class LimitExceeded(PenstockError):
    """Something is larger than a named limit allows."""

    limit: str
    value: int
    maximum: int

    def __str__(self) -> str:
        return f"{self.value} is more than {self.limit} allows ({self.maximum})"


@dataclass(eq=False)
class DoesNotFit(PenstockError):
    """An answer has a field that is longer than a frame may be on this connection. Nothing was handed out."""

    size: int
    maximum: int

    def __str__(self) -> str:
        return (
            f"the answer has a field of {self.size} bytes, and a frame has at most {self.maximum} here; "
            "nothing was handed out: ask again with the protocol tag Res01L"
        )


@dataclass(eq=False)
class NotAllowed(PenstockError):
    """The principal lacks a right."""

    principal: str
    right: str

    def __str__(self) -> str:
        return f"{self.principal} may not do this: it needs the right {self.right}"


@dataclass(eq=False)
class Unexpected(PenstockError):
    """Something nobody foresaw; the server's log has the details."""

    _retry = Retry.UNKNOWN
    reason: str

    def __str__(self) -> str:
        return f"unexpected error: {self.reason}"


# --- what the history says ------------------------------------------------------------------------------------


@dataclass(eq=False)
class VersionConflict(PenstockError):
    """The stream is not where the append expected it; nothing was written."""

    context: str
    stream: str
    expected: int
    actual: int

    def __str__(self) -> str:
        return (
            f"expected version {self.expected} of stream {self.stream} in context {self.context}, "
            f"but its last sequence is {self.actual}; nothing was written"
        )


@dataclass(eq=False)
class MarkSuperseded(PenstockError):
    """A producer's number is below the highest one it has used."""

    producer: str
    number: int
    highest: int

    def __str__(self) -> str:
        return (
            f"producer {self.producer} has already gone on to number {self.highest}; "
            f"number {self.number} was not written now, and its result is no longer kept"
        )


@dataclass(eq=False)
class StageLost(PenstockError):
    """What a part of a job has staged is not there as a whole; nothing was published."""

    job: str
    part: int
    units: int
    found: int

    def __str__(self) -> str:
        return (
            f"part {self.part} of job {self.job} has staged {self.units} units, and {self.found} are there: they have "
            "expired, or the job was dropped or published; nothing was written"
        )


@dataclass(eq=False)
class EventNotFound(PenstockError):
    """There is no such event."""

    _retry = Retry.SAFE
    context: str
    stream: str
    sequence: int

    def __str__(self) -> str:
        return f"stream {self.stream} in context {self.context} has no event {self.sequence}"


# --- subscriptions and queues ---------------------------------------------------------------------------------


@dataclass(eq=False)
class SubscriptionNotFound(PenstockError):
    """There is no such subscription."""

    wanted: str

    def __str__(self) -> str:
        return f"no subscription {self.wanted}"


@dataclass(eq=False)
class SubscriptionMoved(PenstockError):
    """The subscription is no longer where a transaction wanted to progress it from."""

    subscription: int

    def __str__(self) -> str:
        return f"subscription {self.subscription} has moved on or was set; fetch again. Nothing was written"


@dataclass(eq=False)
class QueueNotFound(PenstockError):
    """There is no such queue."""

    queue: str

    def __str__(self) -> str:
        return f"no queue {self.queue}; subscribe to it first"


@dataclass(eq=False)
class QueueAmbiguous(PenstockError):
    """More than one context has a queue of this name."""

    queue: str

    def __str__(self) -> str:
        return f"more than one context has a queue {self.queue}; name the context"


@dataclass(eq=False)
class QueueFilterMismatch(PenstockError):
    """The queue exists with another filter."""

    queue: str
    filter: str
    wanted: str

    def __str__(self) -> str:
        return f"queue {self.queue} exists with the filter '{self.filter}', not '{self.wanted}'"


@dataclass(eq=False)
class QueueContended(PenstockError):
    """A queue changed under every attempt to allocate from it."""

    _retry = Retry.SAFE
    queue: str

    def __str__(self) -> str:
        return (
            f"queue {self.queue} changed too often while events of it were looked for; ask again. "
            "What was acknowledged stays acknowledged"
        )


@dataclass(eq=False)
class AllocationLost(PenstockError):
    """An acknowledgement inside a transaction came too late."""

    queue: str
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"the allocation {self.first} to {self.last} of queue {self.queue} is not yours any more; "
            "nothing was written"
        )


@dataclass(eq=False)
class DeadLetterNotFound(PenstockError):
    """Nothing was set aside at a marker."""

    queue: str
    first: int

    def __str__(self) -> str:
        return f"queue {self.queue} has nothing set aside that begins at {self.first}"


# --- logs and iterators ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class LogNotFound(PenstockError):
    """There is no such log."""

    log: str

    def __str__(self) -> str:
        return f"no log {self.log}"


@dataclass(eq=False)
class IteratorNotFound(PenstockError):
    """There is no such iterator."""

    iterator: str

    def __str__(self) -> str:
        return f"no iterator {self.iterator}"


@dataclass(eq=False)
class IteratorExists(PenstockError):
    """An iterator of this name has another definition."""

    iterator: str

    def __str__(self) -> str:
        return f"iterator {self.iterator} exists with another definition; delete it first"


@dataclass(eq=False)
class OutputMoved(PenstockError):
    """An iterator's output is not where its builder thought."""

    iterator: int

    def __str__(self) -> str:
        return f"the output of iterator {self.iterator} has moved on; read its state again"


@dataclass(eq=False)
class NotCbor(PenstockError):
    """A message is not exactly one well-formed CBOR item within the limits."""

    index: int
    reason: str

    def __str__(self) -> str:
        return f"message {self.index} is not one valid CBOR item: {self.reason}"


@dataclass(eq=False)
class FunctionFailed(PenstockError):
    """An iterator's function does not compile, or failed at a message of its log."""

    reason: str
    message: int | None = None

    def __str__(self) -> str:
        return self.reason if self.message is None else f"at message {self.message}: {self.reason}"


@dataclass(eq=False)
class ResultUnreadable(FunctionFailed):
    """An iterator's function returned something that has no place in CBOR."""


@dataclass(eq=False)
class FunctionTimedOut(FunctionFailed):
    """An iterator's function took longer for one message than it may."""


@dataclass(eq=False)
class IteratorCycle(PenstockError):
    """An iterator would read its own output, by way of others."""

    iterator: str

    def __str__(self) -> str:
        return f"iterator {self.iterator} would read its own output"


# --- load -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Busy(PenstockError):
    """A queue is full; nothing was done."""

    _retry = Retry.SAFE
    queued: int

    def __str__(self) -> str:
        return f"{self.queued} requests are waiting already; nothing was done, try again later"


class WriterBusy(Busy):
    """Too many writes wait."""


class ReaderBusy(Busy):
    """Too many reads wait."""


@dataclass(eq=False)
class TimedOut(PenstockError):
    """A request waited too long for its turn; nothing was done."""

    _retry = Retry.SAFE
    waited_ms: int

    def __str__(self) -> str:
        return f"waited {self.waited_ms} ms for a turn; nothing was done, try again later"


class WriterTimeout(TimedOut):
    """A write waited too long."""


class ReaderTimeout(TimedOut):
    """A read waited too long."""


@dataclass(eq=False)
class WorkerDied(PenstockError):
    """The worker process that served a read is gone; a new one is being started."""

    _retry = Retry.SAFE
    reason: str

    def __str__(self) -> str:
        return f"the worker process serving this {self.reason}; try again"


@dataclass(eq=False)
class Closed(PenstockError):
    """The server is shutting down or the store is closed; nothing was done."""

    _retry = Retry.SAFE
    what: str = "the engine"

    def __str__(self) -> str:
        return f"{self.what} is closed; nothing was done"


# --- the store ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class StoreError(PenstockError):
    """The store failed or cannot be used."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class StorageFailure(StoreError):
    """The disk or database failed under a request."""

    _retry = Retry.UNKNOWN

    def __str__(self) -> str:
        return (
            f"the store failed: {self.reason}. Whether this was written is not known; "
            "sending it again with the same ids or producer mark is safe"
        )


class ReadFailure(StorageFailure):
    """The disk or database failed under a read, which writes nothing."""

    def __str__(self) -> str:
        return f"the store cannot be read: {self.reason}"


class StorageFull(StoreError):
    """There was no room; nothing was written."""

    _retry = Retry.SAFE

    def __str__(self) -> str:
        return f"the store is full: {self.reason}. Nothing was written; free some space and try again"


class NotDurable(StoreError):
    """The database would lose what it acknowledges, so the store takes no writes; nothing was written."""

    _retry = Retry.SAFE

    def __str__(self) -> str:
        return f"the store takes no writes: {self.reason}. Nothing was written; change that setting and try again"


@dataclass(eq=False)
class DamagedRecord(PenstockError):
    """A stored record is not what was written. It is never served."""

    position: int
    reason: str

    def __str__(self) -> str:
        return f"the record at position {self.position} is damaged ({self.reason}); run penstock verify"


@dataclass(eq=False)
class StoreInUse(PenstockError):
    """Somebody has the store open who must not."""

    path: str
    holder: str

    def __str__(self) -> str:
        why = "stop them first" if "://" in self.path else "only one server can own an embedded store"
        return f"the store in {self.path} is in use by {self.holder}; {why}"


@dataclass(eq=False)
class StoreTooNew(PenstockError):
    """A newer Penstock wrote this store."""

    path: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"the store in {self.path} has schema version {self.found}, and this Penstock knows versions up to "
            f"{self.known}; use a newer Penstock"
        )


@dataclass(eq=False)
class NotAStore(PenstockError):
    """There is no Penstock store at a path, or it is something else."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is not a Penstock store: {self.reason}"


@dataclass(eq=False)
class StoreUnfinished(PenstockError):
    """A store that was being filled by a restore or a copy, and is not whole."""

    path: str

    def __str__(self) -> str:
        return f"the store in {self.path} is not whole: a restore or copy into it was not finished; run that again"


@dataclass(eq=False)
class PlaceRefused(PenstockError):
    """A place for backups, or where a store is to go, that cannot be used for that. Nothing was changed there."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be used: {self.reason}"


@dataclass(eq=False)
class BackupDamaged(PenstockError):
    """A backup is not what was written. Nothing is restored from it."""

    path: str
    what: str
    reason: str

    def __str__(self) -> str:
        return f"the backup in {self.path} is damaged: {self.what} {self.reason}"


@dataclass(eq=False)
class LakeDamaged(PenstockError):
    """A lake is not what was written: a file is missing or another one. Nothing was changed in it."""

    path: str
    what: str
    reason: str

    def __str__(self) -> str:
        return f"the lake in {self.path} is damaged: {self.what} {self.reason}"


@dataclass(eq=False)
class LakeInUse(PenstockError):
    """Somebody else is at work on the lake. Nothing was changed."""

    _retry = Retry.SAFE
    path: str
    holder: str

    def __str__(self) -> str:
        return f"the lake in {self.path} is in use by {self.holder}; wait until that has ended"


# --- the client -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class BadUrl(PenstockError):
    """An address that a client cannot connect to, whatever is there."""

    url: str
    reason: str

    def __str__(self) -> str:
        return f"{self.url!r} is no address of a Penstock: {self.reason}"


@dataclass(eq=False)
class CannotConnect(PenstockError):
    """Nobody could be reached. Nothing was sent."""

    _retry = Retry.SAFE
    url: str
    reason: str

    def __str__(self) -> str:
        return f"cannot connect to {self.url}: {self.reason}; nothing was sent, so it is safe to try again"


@dataclass(eq=False)
class ConnectionLost(PenstockError):
    """The connection ended before the answer came. What was asked for may have been done."""

    _retry = Retry.UNKNOWN
    url: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the connection to {self.url} was lost before the answer came ({self.reason}): "
            "what was asked for may have been done"
        )


@dataclass(eq=False)
class DeadlinePassed(PenstockError):
    """The time for a call is up. If it was sent, what was asked for may have been done."""

    seconds: float
    was_sent: bool
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        known = (
            "it was sent and may have been done" if self.was_sent else "nothing was sent, so it is safe to try again"
        )
        return f"no answer within {self.seconds:g} s{why}: {known}"

    @property
    def retry(self) -> Retry:
        """It depends on whether it was sent."""
        return Retry.UNKNOWN if self.was_sent else Retry.SAFE


@dataclass(eq=False)
class ClientClosed(PenstockError):
    """A client was used after it was closed."""

    def __str__(self) -> str:
        return "this client is closed; connect again"


@dataclass(eq=False)
class StoreChanged(PenstockError):
    """Another store, or another timeline of it, answers now; positions read before mean nothing there."""

    before: str
    now: str

    def __str__(self) -> str:
        return f"what is read here has become another history: it was {self.before}, now it is {self.now}"


@dataclass(eq=False)
class NotAppended(PenstockError):
    """One of many commits failed. Those before it are written; of those after it, some may be."""

    index: int
    written: int
    reason: str

    def __str__(self) -> str:
        return f"commit {self.index} failed, {self.written} others are written: {self.reason}"


@dataclass(eq=False)
class NotJson(PenstockError):
    """JSON was asked for where there is none."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} is not JSON: {self.reason}"


@dataclass(eq=False)
class Refused(PenstockError):
    """The server answered with an error that this client has no other name for."""

    code: int
    sentence: str
    may_retry: Retry = Retry.UNKNOWN

    def __str__(self) -> str:
        return self.sentence

    @property
    def retry(self) -> Retry:
        """As far as the code tells."""
        return self.may_retry


@dataclass(eq=False)
class AnswerMalformed(PenstockError):
    """An answer is not what the protocol says. What was asked for may have been done."""

    _retry = Retry.UNKNOWN
    reason: str

    def __str__(self) -> str:
        return f"the server's answer cannot be read: {self.reason}; what was asked for may have been done"


# --- the server -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class NotLoopback(PenstockError):
    """A gate would listen beyond this machine, and nobody allowed that."""

    gate: str
    address: str

    def __str__(self) -> str:
        return (
            f"--{self.gate} {self.address} would listen beyond loopback, and whoever reaches it may do everything; "
            "use an address such as 127.0.0.1, or allow it with --insecure"
        )


@dataclass(eq=False)
class CannotListen(PenstockError):
    """A gate's address cannot be used."""

    gate: str
    address: str
    reason: str

    def __str__(self) -> str:
        return f"cannot listen on --{self.gate} {self.address}: {self.reason}"


def drop_traceback(error: PenstockError) -> None:
    """Break the cycle between an error and the frames of its traceback, which refer to the error and to the request.

    Otherwise the request stays in memory until the garbage collector finds the cycle.
    """
    error.__traceback__ = None
