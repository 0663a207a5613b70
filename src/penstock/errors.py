"""The one exception tree.

An error is a class with typed fields, and a sentence made from them: what happened, then what to do. The docstring of a
class says what its sentence does not. Errors travel between processes and over every wire as their class and fields; no
program reads the sentence.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, dataclass_transform


class Retry(StrEnum):
    """Whether a client may send the same request again after an error."""

    SAFE = "safe"
    """Nothing was done: another attempt does no harm, and may help."""
    NEVER = "never"
    """It would fail again until something else changes."""
    UNKNOWN = "unknown"
    """It may have been done: safe for reads, and for writes that the store can recognise."""


@dataclass_transform(eq_default=False)
@dataclass(eq=False)
class PenstockError(Exception):
    """The base of everything Penstock raises on purpose."""

    _sentence: ClassVar[str] = ""
    """With the names of fields in braces."""
    _retry: ClassVar[Retry] = Retry.NEVER

    def __init_subclass__(cls) -> None:
        dataclass(eq=False)(cls)

    @property
    def retry(self) -> Retry:
        return self._retry

    def __str__(self) -> str:
        return self._sentence.format_map(vars(self)) or self.__doc__ or type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


# --- the request itself ---------------------------------------------------------------------------------------


class InvalidRequest(PenstockError):
    """A request that could never succeed."""

    _sentence = "{field} {reason}"
    field: str
    reason: str


class LimitExceeded(PenstockError):
    _sentence = "{value} is more than {limit} allows ({maximum})"
    limit: str
    value: int
    maximum: int


class DoesNotFit(PenstockError):
    _sentence = (
        "the answer has a field of {size} bytes, and a frame has at most {maximum} here; "
        "nothing was handed out: ask again with the protocol tag Res01L"
    )
    size: int
    maximum: int


class NotAllowed(PenstockError):
    """The answer is the same whether the place exists or not."""

    principal: str
    right: str
    place: str = ""

    def __str__(self) -> str:
        where = f" on {self.place}" if self.place else ""
        return f"{self.principal} may not do this: it needs the right {self.right}{where}; ask an administrator"


class NotAuthenticated(PenstockError):
    """Nothing was done. A wrong token and a revoked one get the same answer."""

    _sentence = "{reason}"
    reason: str


class PrincipalNotFound(PenstockError):
    _sentence = "no principal {principal}; penstock access list shows them"
    principal: str


class LastAdministrator(PenstockError):
    """Nothing was done. A request with the field `allowed_by` does it nevertheless."""

    _sentence = (
        "{principal} is the last principal with the right admin everywhere, and without one only the owner of the "
        "store's files can change rights (penstock access init); give another the right admin first, "
        "or allow it with --{allowed_by}"
    )
    principal: str
    allowed_by: str = "force"


class Unexpected(PenstockError):
    """A bug or another surprise; the server's log has the details."""

    _sentence = "unexpected error: {reason}"
    _retry = Retry.UNKNOWN
    reason: str


# --- the history ------------------------------------------------------------------------------------


class VersionConflict(PenstockError):
    """`expected` is the sequence that the first new event was to get, `actual` the last one that the stream has."""

    context: str
    stream: str
    expected: int
    actual: int

    def __str__(self) -> str:
        # What is expected is a next sequence: an append that expects 4 fits a stream at version 3.
        return (
            f"stream {self.context}/{self.stream} is at version {self.actual}: its next event gets sequence "
            f"{self.actual + 1}, expected {self.expected}; nothing was written, read it again and retry"
        )


class MarkSuperseded(PenstockError):
    _sentence = (
        "producer {producer} has already used number {highest}; "
        "number {number} was not written now, and its result is no longer kept"
    )
    producer: str
    number: int
    highest: int


class KeyReused(PenstockError):
    """Nothing was written. The key may be that of a CloudEvent: its source and id."""

    _sentence = (
        "the idempotency key {key} of context {context} was used for another request; nothing was written: "
        "use another key for other events"
    )
    context: str
    key: str


class PartlyRepeated(PenstockError):
    _sentence = (
        "{known} of these {events} events are in context {context} already, and the others are not; nothing was "
        "written: send the others alone"
    )
    context: str
    known: int
    events: int


class StageLost(PenstockError):
    _sentence = (
        "part {part} of job {job} has staged {units} units, and {found} are there: they have "
        "expired, or the job was dropped or published; nothing was written"
    )
    job: str
    part: int
    units: int
    found: int


class EventNotFound(PenstockError):
    _sentence = "stream {stream} in context {context} has no event {sequence}"
    _retry = Retry.SAFE
    context: str
    stream: str
    sequence: int


# --- subscriptions and queues ---------------------------------------------------------------------------------


class SubscriptionNotFound(PenstockError):
    _sentence = "no subscription {wanted}"
    wanted: str


class SubscriptionMoved(PenstockError):
    _sentence = "subscription {subscription} has moved on or was set; nothing was written, fetch again"
    subscription: int


class SubscriptionMismatch(PenstockError):
    _sentence = (
        "subscription of {subscriber} exists with the selection {known!r}, not {wanted!r}; use that, or another name"
    )
    subscriber: str
    known: str
    wanted: str


class QueueNotFound(PenstockError):
    _sentence = "no queue {queue}; penstock queue list shows them, and the first consumer of a queue creates it"
    queue: str


class QueueAmbiguous(PenstockError):
    _sentence = "more than one context has a queue {queue}; name the context"
    queue: str


class QueueFilterMismatch(PenstockError):
    _sentence = (
        "queue {queue} exists with the filter '{filter}', not '{wanted}'; use its filter, or change it with set_filter"
    )
    queue: str
    filter: str
    wanted: str


class QueueMismatch(PenstockError):
    _sentence = (
        "queue {queue} exists with another {what}: it has {known}, not {wanted}; leave that out, or use another name"
    )
    queue: str
    what: str
    known: str
    wanted: str


class QueueExists(PenstockError):
    _sentence = "context {context} has a queue {queue} already; choose another name, or delete that queue"
    queue: str
    context: str


class QueueContended(PenstockError):
    _sentence = "queue {queue} changed during every attempt to allocate from it; try again. Acknowledgements are kept"
    _retry = Retry.SAFE
    queue: str


class AllocationLost(PenstockError):
    _sentence = (
        "the allocation {first} to {last} of queue {queue} has expired or has another holder; nothing was written, "
        "and the next consumer handles its events: take another batch, with a longer ttl if the work takes that long"
    )
    queue: str
    first: int
    last: int


class DeadLetterNotFound(PenstockError):
    _sentence = "queue {queue} has no dead letter at position {first}; penstock queue dead shows them"
    queue: str
    first: int


# --- logs and iterators ---------------------------------------------------------------------------------------


class LogNotFound(PenstockError):
    _sentence = "no log {log}"
    log: str


class IteratorNotFound(PenstockError):
    _sentence = "no iterator {iterator}"
    iterator: str


class IteratorExists(PenstockError):
    _sentence = "iterator {iterator} exists with another definition; delete it first"
    iterator: str


class OutputMoved(PenstockError):
    _sentence = "the output of iterator {iterator} has moved on; read its state again"
    iterator: int


class NotCbor(PenstockError):
    _sentence = "message {index} is not one valid CBOR item: {reason}"
    index: int
    reason: str


class FunctionFailed(PenstockError):
    """An iterator's function does not compile, or failed at a message of its log."""

    reason: str
    message: int | None = None

    def __str__(self) -> str:
        return self.reason if self.message is None else f"at message {self.message}: {self.reason}"


class ResultUnreadable(FunctionFailed):
    """An iterator's function returned something that has no place in CBOR."""


class FunctionTimedOut(FunctionFailed):
    """An iterator's function took longer for one message than it may."""


class IteratorCycle(PenstockError):
    _sentence = "iterator {iterator} would read its own output"
    iterator: str


# --- load -----------------------------------------------------------------------------------------------------


class Busy(PenstockError):
    _sentence = "{queued} requests are waiting already; nothing was done, try again later"
    _retry = Retry.SAFE
    queued: int


class WriterBusy(Busy):
    """Too many writes wait."""


class ReaderBusy(Busy):
    """Too many reads wait."""


class OverLimit(Busy):
    """A principal is over a limit of its own; see `penstock access show`."""

    _sentence = "{principal} is over its limit {limit} ({maximum}); nothing was done, try again in {retry_after_ms} ms"
    principal: str
    limit: str
    maximum: int
    retry_after_ms: int


class TimedOut(PenstockError):
    _sentence = "waited {waited_ms} ms for a turn; nothing was done, try again later"
    _retry = Retry.SAFE
    waited_ms: int


class WriterTimeout(TimedOut):
    """A write waited too long."""


class ReaderTimeout(TimedOut):
    """A read waited too long."""


class WorkerDied(PenstockError):
    _sentence = "the worker process serving this {reason}; try again"
    _retry = Retry.SAFE
    reason: str


class Closed(PenstockError):
    _sentence = "{what} is closed; nothing was done"
    _retry = Retry.SAFE
    what: str = "the engine"


# --- the store ------------------------------------------------------------------------------------------------


class StoreError(PenstockError):
    _sentence = "{reason}"
    reason: str


class StorageFailure(StoreError):
    _sentence = (
        "the store failed: {reason}. Whether this was written is not known; "
        "sending it again with the same ids or producer mark is safe"
    )
    _retry = Retry.UNKNOWN


class ReadFailure(StorageFailure):
    _sentence = "the store cannot be read: {reason}"


class StorageFull(StoreError):
    _sentence = "the store is full: {reason}. Nothing was written; free some space and try again"
    _retry = Retry.SAFE


class NotDurable(StoreError):
    """The database would lose what it acknowledges, so the store takes no writes; nothing was written."""

    _sentence = "the store takes no writes: {reason}. Nothing was written; change that setting and try again"
    _retry = Retry.SAFE


class DamagedRecord(PenstockError):
    """A stored record is not what was written. It is never served."""

    _sentence = "the record at position {position} is damaged ({reason}); run penstock verify"
    position: int
    reason: str


class StoreInUse(PenstockError):
    path: str
    holder: str

    def __str__(self) -> str:
        why = "stop them first" if "://" in self.path else "only one server can own an embedded store"
        return f"the store in {self.path} is in use by {self.holder}; {why}"


class StoreTooNew(PenstockError):
    _sentence = (
        "the store in {path} has schema version {found}, and this Penstock knows versions up to "
        "{known}; use a newer Penstock"
    )
    path: str
    found: int
    known: int


class NotAStore(PenstockError):
    _sentence = "{path} is not a Penstock store: {reason}"
    path: str
    reason: str


class StoreUnfinished(PenstockError):
    _sentence = "the store in {path} is not whole: a restore or copy into it was not finished; run that again"
    path: str


class PlaceRefused(PenstockError):
    """A place for backups, or where a store is to go, that cannot be used for that. Nothing was changed there."""

    _sentence = "{path} cannot be used: {reason}"
    path: str
    reason: str


class BackupDamaged(PenstockError):
    """A backup is not what was written. Nothing is restored from it."""

    _sentence = "the backup in {path} is damaged: {what} {reason}"
    path: str
    what: str
    reason: str


class LakeDamaged(PenstockError):
    """A lake is not what was written: a file is missing or another one. Nothing was changed in it."""

    _sentence = "the lake in {path} is damaged: {what} {reason}"
    path: str
    what: str
    reason: str


class LakeInUse(PenstockError):
    _sentence = "the lake in {path} is in use by {holder}; wait until that has ended"
    _retry = Retry.SAFE
    path: str
    holder: str


# --- the client -----------------------------------------------------------------------------------------------


class BadUrl(PenstockError):
    _sentence = "{url!r} is no address of a Penstock: {reason}"
    url: str
    reason: str


class CannotConnect(PenstockError):
    _sentence = "cannot connect to {url}: {reason}; nothing was sent, so it is safe to try again"
    _retry = Retry.SAFE
    url: str
    reason: str


class TlsFailed(PenstockError):
    """No encrypted connection, for a reason that stays; the request was not carried out."""

    _sentence = "no encrypted connection to {url}: {reason}"
    url: str
    reason: str


class ConnectionLost(PenstockError):
    _sentence = (
        "the connection to {url} was lost before the answer came ({reason}); "
        "the server may have carried the request out"
    )
    _retry = Retry.UNKNOWN
    url: str
    reason: str


class DeadlinePassed(PenstockError):
    """The time for a call is up. If the request was sent, the server may have carried it out."""

    seconds: float
    was_sent: bool
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        if self.was_sent:
            return f"no answer within {self.seconds:g} s{why}: it was sent, and the server may have carried it out"
        return f"no answer within {self.seconds:g} s{why}: nothing was sent, so it is safe to try again"

    @property
    def retry(self) -> Retry:
        return Retry.UNKNOWN if self.was_sent else Retry.SAFE


class ClientClosed(PenstockError):
    _sentence = "this client is closed; connect again"


class StoreChanged(PenstockError):
    _sentence = (
        "this is another history now: it was {before}, and is {now}; positions of the one mean nothing in the other"
    )
    before: str
    now: str


class NotAppended(PenstockError):
    """One of many commits failed. Those before it are written; of those after it, some may be."""

    _sentence = "commit {index} failed, {written} others are written: {reason}"
    index: int
    written: int
    reason: str


class NotJson(PenstockError):
    _sentence = "{what} is not JSON: {reason}"
    what: str
    reason: str


class Refused(PenstockError):
    """The server answered with an error that this client has no other name for."""

    code: int
    sentence: str
    may_retry: Retry = Retry.UNKNOWN

    def __str__(self) -> str:
        return self.sentence

    @property
    def retry(self) -> Retry:
        return self.may_retry


class AnswerMalformed(PenstockError):
    _sentence = "the server's answer cannot be read: {reason}; it may have carried the request out"
    _retry = Retry.UNKNOWN
    reason: str


# --- the server -----------------------------------------------------------------------------------------------


class NotLoopback(PenstockError):
    _sentence = "--{gate} {address} would listen beyond loopback {reason}; or use an address such as 127.0.0.1"
    gate: str
    address: str
    reason: str


class CannotListen(PenstockError):
    _sentence = "cannot listen on --{gate} {address}: {reason}"
    gate: str
    address: str
    reason: str


def drop_traceback(error: PenstockError) -> None:
    """Break the cycle of an error and its traceback, which would keep the request in memory until it is collected."""
    error.__traceback__ = None
