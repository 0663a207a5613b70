"""The commands of Res01, one entry each: decoding, encoding, limits, metrics, docs and samples come from this table.

A new command is an entry here and a handler in the engine; see CONTRIBUTING.md. The request's class says whether a
repeat is harmless and which right the request needs, because that holds on every wire.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock import __version__, model
from penstock.model import ANY, NEW, AcknowledgeQueue, Allocation, Append, Appended, Delivery, Done, Reply, Request
from penstock.model.access import Right
from penstock.model.requests import Reach, Repeat, request
from penstock.wire.codes import Res01Code
from penstock.wire.res01.dialects import BINARY, OWN, Frames, full_frames, item_frames
from penstock.wire.res01.event_block import event_block
from penstock.wire.res01.fields import GUID_BYTES
from penstock.wire.res01.schema import (
    BYTES,
    BYTES_OR_NULL,
    FLAG,
    GUID,
    INT,
    LONG,
    LONG_OR_NULL,
    LONG_OR_ZERO,
    STRING,
    STRING_OR_NULL,
    TIME,
    TIME_OR_NULL,
    WAIT,
    WORDS,
    Answer,
    Command,
    CommitAnswer,
    Echo,
    EventBlock,
    EventColumns,
    Events,
    Field,
    Layout,
    LeadingTime,
    LimitsOfPrincipal,
    Mark,
    Messages,
    NewEvents,
    Progressed,
    Rows,
    Stats,
    Types,
    Unmarked,
    Values,
    WereSet,
    word,
)

VERSION: Final = 1
"""Of our own dialect. It grows with a change that the version before cannot ignore."""


@request(Right(0), Reach.NOTHING, Repeat.READS)
class Hello(Request):
    """A client's first request on a connection. `supports` are the features that it understands."""

    version: int
    software: str
    supports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome(Reply):
    """A server's answer: its version of the dialect, and its commands and features."""

    version: int
    software: str
    supports: tuple[str, ...] = ()


# --- fields of several messages ----------------------------------------------------------------------------------

CONTEXT: Final = STRING("Context")
ANY_CONTEXT: Final = STRING_OR_NULL("Context")
STREAM: Final = STRING("Stream")
FILTER: Final = STRING("Filter")
SUBSCRIBER: Final = STRING("SubscriberId", "subscriber")
SUBSCRIPTION: Final = LONG("SubscriptionId", "subscription")
START_TIME: Final = TIME("StartTime", "start_ticks")
LAST_EVENT_TIME: Final = TIME("LastEventTime", "last_ticks")
QUEUE: Final = STRING("QueueId", "queue")
FIRST: Final = LONG("StartMarker", "first")
LAST: Final = LONG("EndMarker", "last")
LAST_OR_NULL: Final = LONG_OR_NULL("EndMarker", "last")
COUNT: Final = INT("Count")
TTL: Final = INT("AllocationTimeInMilliseconds", "ttl_ms")
WAIT_MS: Final = WAIT("WaitMs")
POSITION: Final = LONG("Position")
LIMIT: Final = LONG_OR_NULL("Limit")
AFTER: Final = LONG_OR_ZERO("After")
AFTER_NAME: Final = STRING("After")
MARK: Final = Field("", Mark(), "mark")
NAME: Final = STRING("Name")
NAMES: Final = Values(STRING, collect=list)
LOG: Final = STRING("Log")
ITERATOR: Final = STRING("Name", "iterator")
ID: Final = LONG("Id")
PART: Final = INT("Part")
ATTEMPT: Final = STRING("Attempt")
NUMBER: Final = LONG("Number")
ORDINAL: Final = LONG("Ordinal")
ITEMS: Final = LONG("Items")
JOB: Final = STRING("Job")
END: Final = FLAG("End")
NEXT: Final = LONG("Next")
REPEATED: Final = FLAG("Repeated")
EVENT_COUNT: Final = LONG("Events")
EVENTS: Final = Field("", Events(), "events", get=lambda reply: reply)
EVENT_BLOCK: Final = Field("", EventBlock(), "events", get=lambda reply: reply)
WHOLE_EVENTS: Final = Field("", Events(whole=True), "events", get=lambda reply: reply)
KIND: Final = Field("Kind", word(model.IteratorKind), "kind")
OVER: Final = Field("Over", word(model.Over), "over")
FUNCTION: Final = STRING("Function")
LAST_OR_ALL: Final = LONG_OR_NULL("Last", default=None)
NOW: Final = TIME("UtcNow", "now")
UTC_NOW: Final = Field("UtcNow", TIME, get=lambda _request: 0)


def rows(make: Callable[..., Any], count: str, attribute: str, *fields: Field, to_end: bool = True) -> Field:
    return Field("", Rows(Layout(make, fields), count, to_end=to_end), attribute)


def paged(code: str, make: Callable[..., Any], *fields: Field) -> Answer:
    """A page of a list: whether it is the last one, then its rows."""
    return Answer(code, model.ListPage, END, Field("", Rows(Layout(make, fields), collect=list), "items"))


COMMIT: Final = (CONTEXT, STREAM, LONG("ExpectedVersion", "expected"))
NEW_EVENTS: Final = Field("", NewEvents(), "events")
READ_STREAM: Final = (CONTEXT, STREAM, LONG("FromVersion", "from_sequence"), LONG_OR_NULL("MaxVersion", "to_sequence"))
READ_EVENT: Final = (CONTEXT, STREAM, LONG("Sequence"))
FETCH: Final = (SUBSCRIPTION, INT("SuggestedCount", "count"))
WHERE: Final = (QUEUE, SUBSCRIBER)
HELD: Final = (*WHERE, FIRST, LAST)
DECLARE: Final = (*WHERE, CONTEXT, FILTER, START_TIME, COUNT, TTL)
SUBSCRIBE: Final = (Field("UtcNow", LeadingTime(len(DECLARE))), *DECLARE)
STAGE: Final = (PART, ATTEMPT, NUMBER)
WINNERS: Final = rows(model.Winner, "WinnerCount", "winners", PART, ATTEMPT, LONG("Units"))

# --- answers -----------------------------------------------------------------------------------------------------

APPENDED: Final = (GUID("CommitId", "commit"), POSITION, LONG("Sequence"), LONG("Count"), REPEATED)
_ALLOCATION: Final = (
    LONG("StartMarker", "first", get=lambda d: d.allocation.first if d.allocation else 0),
    LONG("EndMarker", "last", get=lambda d: d.allocation.last if d.allocation else 0),
)
_ALLOCATION_ID: Final = LONG_OR_NULL("AllocationId", "first", get=lambda d: d.allocation and d.allocation.first)
_EXPIRES: Final = TIME_OR_NULL("Expires", get=lambda d: d.allocation and d.allocation.expires)
_DELIVERIES: Final = LONG("Deliveries", get=lambda d: d.allocation.deliveries if d.allocation else 0)
_ITEMS: Final = Field(
    "Item", Values(BYTES, collect=list), "items", get=lambda p: p.items if p.encoded is None else p.encoded.content
)


def _delivery(
    first: int, last: int, expires: int | None, deliveries: int, subscriber: str, events: list[Any], **rest: Any
) -> Delivery:
    """A delivery has an allocation if that has a time when it expires."""
    held = None if expires is None else Allocation(first, last, len(events), subscriber, expires, deliveries)
    return Delivery(subscriber=subscriber, allocation=held, events=events, **rest)


def _deliveries(
    runs: tuple[dict[str, int], ...], expires: int | None, subscriber: str, events: list[Any], **rest: Any
) -> Delivery:
    """A delivery of several allocations, which expire together."""
    held = tuple(Allocation(subscriber=subscriber, expires=expires or 0, **run) for run in runs)
    first = held[0] if held else None
    return Delivery(subscriber=subscriber, allocation=first, runs=held, events=events, **rest)


OK: Final = Answer("OK", Done)
CR: Final = CommitAnswer("CR", Appended, *APPENDED[:1])
CF: Final = Answer("CF", Appended, *APPENDED)
TR: Final = Answer("TR", model.Transacted, rows(Appended, "Count", "commits", *APPENDED))
QR: Final = Answer("QR", model.EventPage, EVENTS)
GR: Final = Answer("GR", model.EventPage, Field("", Events(has_count=False), "events", get=lambda reply: reply))
PF: Final = Answer("PF", model.EventPage, NEXT, END, WHOLE_EVENTS)
PB: Final = Answer("PB", model.EventPage, NEXT, END, EVENT_BLOCK)
_RECORDS: Final = Field("Record", Values(BYTES, collect=list), "records")
RD: Final = Answer("RD", model.RecordPage, STRING("StoreId"), LONG("Timeline"), NEXT, END, _RECORDS)
PT: Final = Answer("PT", model.Found, LONG_OR_NULL("Position"))
SR: Final = Answer("SR", model.Registered, Field("SubscriptionId", Values(LONG), "ids"))
EF: Final = Answer("EF", model.FetchedBatch, SUBSCRIPTION, EVENTS, each=True)
BF: Final = Answer("BF", model.FetchedBatch, SUBSCRIPTION, WHOLE_EVENTS, each=True)
BK: Final = Answer("BK", model.FetchedBatch, SUBSCRIPTION, EVENT_BLOCK, each=True)
SP: Final = Progressed()
ST: Final = WereSet()
QE: Final = Answer("QE", Delivery, *WHERE, NOW, *_ALLOCATION, EVENTS)
QE_BINARY: Final = Answer("QE", Delivery, CONTEXT, *WHERE, NOW, _ALLOCATION_ID, EVENTS)
_WHOLE_DELIVERY: Final = (CONTEXT, *WHERE, NOW, *_ALLOCATION, _EXPIRES, _DELIVERIES, WHOLE_EVENTS)
DF: Final = Answer("DF", Delivery, *_WHOLE_DELIVERY, make=_delivery)
_RUN: Final = (FIRST, LAST, LONG("Count"), LONG("Deliveries"))
_DELIVERED: Final = rows(dict, "RunCount", "runs", *_RUN, to_end=False)
_SEVERAL: Final = (CONTEXT, *WHERE, NOW, _EXPIRES, STRING("Ordered"), _DELIVERED)
DS: Final = Answer("DS", Delivery, *_SEVERAL, WHOLE_EVENTS, make=_deliveries)
DK: Final = Answer("DK", Delivery, *_SEVERAL, EVENT_BLOCK, make=_deliveries)
XT: Final = Answer("XT", model.Extended, TIME("Expires"))
_LETTER: Final = (STREAM, LONG("Sequence"), LONG("Deliveries"), STRING("Subscriber"), STRING("Reason"), TIME("Died"))
DA: Final = paged("DA", model.DeadLetter, POSITION, *_LETTER)
PN: Final = Answer("PN", model.PutBackCount, EVENT_COUNT)
QT: Final = Echo("QT", QUEUE)
_FULL: Final = FLAG("Full", "is_full")
PR: Final = Answer("PR", model.Replayed, EVENT_COUNT, LONG("LeftOut"), LONG("Waiting"), _FULL, REPEATED)
_CONTEXT_INFO: Final = (NAME, EVENT_COUNT, LONG("Commits"), LONG("Streams"), LONG("Bytes"))
CL: Final = paged("CL", model.ContextInfo, *_CONTEXT_INFO)
SL: Final = paged("SL", model.StreamInfo, NAME, EVENT_COUNT)
_QUEUE_COUNTS: Final = [LONG(name) for name in ("Behind", "Allocated", "Allocations", "DeliveriesMax", "Dead")]
_QUEUE_INFO: Final = (ID, CONTEXT, NAME, FILTER, POSITION, *_QUEUE_COUNTS, LONG_OR_NULL("DeadAfter"))
QL: Final = paged("QL", model.QueueInfo, *_QUEUE_INFO)
_SELECTION: Final = STRING("Selection")
_LAG: Final = (FLAG("BehindIsExact"), LONG("BehindMs"))
_RULES_OF_QUEUE: Final = (STRING("Ordered"), _SELECTION, STRING("Retry"), FLAG("Paused"), LONG("Delayed"))
_PREVIEW: Final = (POSITION, LONG("Behind"), *_LAG, LONG("Allocations"), LONG("Dead"))
PV: Final = Answer("PV", model.QueuePreview, *_PREVIEW)
QM: Final = paged("QM", model.QueueInfo, *_QUEUE_INFO, *_LAG, *_RULES_OF_QUEUE)
_LAST_TIME: Final = TIME_OR_NULL("LastEventTime", "last_ticks")
_NO_CONTEXT: Final = STRING("Context", get=lambda info: info.context or "")
_SUBSCRIPTION_INFO: Final = (ID, STRING("Subscriber"), _NO_CONTEXT, FILTER, POSITION, _LAST_TIME)
UL: Final = paged("UL", model.SubscriptionInfo, *_SUBSCRIPTION_INFO)
_OF_SUBSCRIPTION: Final = (ID, STRING("Subscriber"), ANY_CONTEXT, FILTER, POSITION, _LAST_TIME)
UM: Final = paged("UM", model.SubscriptionInfo, *_OF_SUBSCRIPTION, LONG("Behind"), *_LAG, _SELECTION)
_DEAD: Final = (FIRST, LAST, LONG("Count"), STRING("Subscriber"), LONG("Deliveries"), TIME("Expired", "expires"))
LD: Final = paged("LD", Allocation, *_DEAD)
_STATS: Final = Field("", Stats(), "stats", get=lambda stats: stats)
SG: Final = Answer("SG", model.StoreStats, _STATS, make=lambda stats: model.StoreStats(**stats))
_LOG_COUNTS: Final = (TIME("Created"), LONG("Messages"), LONG("Bytes", "size_bytes"))
LG: Final = Answer("LG", model.LogSummary, LOG, *_LOG_COUNTS, Field("Name", NAMES, "iterators"))
LN: Final = Answer("LN", model.Names, Field("Name", NAMES, "names"))
_INDEX: Final = (FLAG("Indexed"), TIME("Created"), LONG_OR_NULL("Items"), LONG_OR_NULL("Behind"))
IG: Final = Answer("IG", model.IteratorSummary, NAME, LOG, OVER, KIND, FUNCTION, *_INDEX)
IP: Final = Answer("IP", model.ItemPage, _ITEMS)
SE: Final = Answer("SE", model.Erased, EVENT_COUNT, NEXT, END)
_ERASED: Final = (ANY_CONTEXT, STRING_OR_NULL("Stream"), EVENT_COUNT, TIME("Requested"), TIME_OR_NULL("Finished"))
LE: Final = paged("LE", model.ErasureInfo, ID, *_ERASED, LONG("Damaged"))
ZT: Final = Answer("ZT", model.StagesTaken, LONG("EventBytesMax"))
ZR: Final = Answer("ZR", model.Published, POSITION, LONG("Commits"), EVENT_COUNT, REPEATED)
_SOURCE: Final = (LONG("Source"), ITEMS, BYTES_OR_NULL("State"), LONG("Head"))
_LUA_LIMITS: Final = (LONG("CallMsMax"), LONG("MemoryBytesMax"), LONG("ResultBytesMax"))
BG: Final = Answer("BG", model.BuildStart, ITERATOR, ID, LOG, OVER, KIND, FUNCTION, *_SOURCE, *_LUA_LIMITS)
MB: Final = Answer("MB", model.MessagePage, Field("", Messages(), "messages"))
BR: Final = Answer("BR", model.Installed, ITEMS, LONG("Added"), LONG("Messages"))

PRINCIPAL: Final = STRING("Principal")
GRANTS: Final = WORDS("Grants")
LIMITS: Final = Field("", LimitsOfPrincipal(), "limits")
FORCE: Final = FLAG("Force")
EXPIRES: Final = TIME_OR_NULL("Expires")
LABEL: Final = STRING("Label")
ID_OF_CREDENTIAL: Final = STRING("Credential", "id")
IA: Final = Answer("IA", model.Identity, PRINCIPAL, GRANTS, EXPIRES, FLAG("Closed", "is_closed"), FLAG("SeesAll"))
TI: Final = Answer("TI", model.IssuedToken, ID_OF_CREDENTIAL, STRING("Token"), EXPIRES)
PL: Final = paged("PL", model.PrincipalInfo, NAME, GRANTS, TIME("Created"), TIME("Changed"), LIMITS)
_CREDENTIAL: Final = (ID_OF_CREDENTIAL, PRINCIPAL, STRING("Kind"), LABEL, TIME("Created"), EXPIRES)
KL: Final = paged("KL", partial(model.Credential, proof=""), *_CREDENTIAL)

# --- exceptions of the original protocol -------------------------------------------------------------------------


def _binary_commit(request: Append) -> Frames | None:
    """In the binary dialect an empty commit succeeds, and an impossible version is a conflict."""
    if not request.events:
        return [b"CR", bytes(GUID_BYTES)]
    if request.expected < NEW and request.expected != ANY:
        known = f"expected version {request.expected} of stream {request.stream} in context {request.context}"
        return BINARY.refused(Res01Code.CONFLICT, f"{known}, which no stream can have; nothing was written")
    return None


def _binary_acknowledge(first: int | None, **rest: Any) -> AcknowledgeQueue:
    """In the binary dialect an allocation has one number, its first marker."""
    return AcknowledgeQueue(first=first or 0, last=0 if first is None else None, **rest)


# --- the table ---------------------------------------------------------------------------------------------------

_APPEND: Final = partial(Command, "AC", "appends a commit", Append, CR, *COMMIT, bytes_max=None)
_DECLARE: Final = "declares a queue and allocates events of it"
_ACKNOWLEDGE: Final = "acknowledges an allocation and allocates the next"
_STARTS: Final = rows(model.SubscriptionStart, "Count", "subscriptions", CONTEXT, FILTER, START_TIME)
_OF_ANY: Final = partial(AcknowledgeQueue, context=None)
_SET: Final = (SUBSCRIBER, CONTEXT, FILTER, TIME("SetTo", "ticks"))
_RESET: Final = (QUEUE, TIME("ResetTo", "ticks"), UTC_NOW)

ORIGINAL: Final = (
    _APPEND(Field("", NewEvents(to_end=True), "events")),
    Command("QS", "reads a stream", model.ReadStream, QR, *READ_STREAM),
    Command("RS", "registers durable subscriptions", model.RegisterSubscriptions, SR, SUBSCRIBER, _STARTS),
    Command("FE", "fetches events of subscriptions", model.FetchSubscription, EF, each=FETCH, each_min=1),
    Command("PS", "progresses subscriptions", model.ProgressSubscription, SP, each=(SUBSCRIPTION, LAST_EVENT_TIME)),
    Command("SS", "sets subscriptions to a time", model.SetSubscription, ST, each=_SET),
    Command("SQ", _DECLARE, model.SubscribeQueue, QE, *SUBSCRIBE),
    Command("AQ", _ACKNOWLEDGE, AcknowledgeQueue, QE, *HELD, COUNT, TTL, make=_OF_ANY),
    Command("RQ", "resets a queue to a time", model.ResetQueue, QT, *_RESET, make=partial(model.ResetQueue, None)),
)

_ALLOCATED: Final = (CONTEXT, *WHERE, LONG_OR_NULL("AllocationId", "first"), COUNT, TTL)
ORIGINAL_BINARY: Final = (
    _APPEND(Field("", NewEvents(to_end=True, least=0), "events"), settled=_binary_commit),
    ORIGINAL[1],
    Command("SQ", _DECLARE, model.SubscribeQueue, QE_BINARY, CONTEXT, *WHERE, FILTER, START_TIME, COUNT, TTL),
    Command("AQ", _ACKNOWLEDGE, AcknowledgeQueue, QE_BINARY, *_ALLOCATED, make=_binary_acknowledge),
)

_READ_RECORDS: Final = (POSITION, ANY_CONTEXT, FILTER, WAIT_MS)
_READ_ALL: Final = (POSITION, ANY_CONTEXT, FILTER, LIMIT, WAIT_MS, Field("", Types(), "types"))
_READ_STREAM_PART: Final = (*READ_STREAM, LIMIT, FLAG("Backward"), Field("", Types(), "types", default=None))
_ERASE_SUBJECT: Final = (STRING("Subject"), ANY_CONTEXT, POSITION, LAST_OR_ALL)
_NO_MARK: Final = Field("", Unmarked(), "mark")
_COMMITS: Final = rows(Append, "CommitCount", "commits", *COMMIT, NEW_EVENTS, _NO_MARK, to_end=False)
_RECEIPTS: Final = rows(model.QueueReceipt, "AckCount", "acknowledge", CONTEXT, *HELD, to_end=False)
_PROGRESS: Final = rows(model.SubscriptionReceipt, "ProgressCount", "progress", SUBSCRIPTION, LAST_EVENT_TIME)
_QUEUE: Final = (QUEUE, ANY_CONTEXT)
_HELD: Final = (ANY_CONTEXT, *WHERE, FIRST)
_RULES: Final = (
    STRING_OR_NULL("Ordered"),
    STRING_OR_NULL("Selection"),
    STRING_OR_NULL("Retry"),
    LONG_OR_NULL("DeadAfter"),
)
_SUBSCRIBE_SEVERAL: Final = (WAIT_MS, *DECLARE, *_RULES)
_several: Final = partial(model.SubscribeQueue, several=True)
_RUNS: Final = rows(model.Run, "RunCount", "runs", FIRST, LAST, to_end=False)
_DELAY: Final = LONG_OR_NULL("DelayMs")
_REASON: Final = STRING("Reason")
_STARTS_ANYWHERE: Final = (ANY_CONTEXT, FILTER, START_TIME, _SELECTION)
_ALL_STARTS: Final = rows(model.SubscriptionStart, "Count", "subscriptions", *_STARTS_ANYWHERE)
_SET_ANYWHERE: Final = (SUBSCRIBER, ANY_CONTEXT, FILTER, TIME("SetTo", "ticks"), _SELECTION)
_RETRIED: Final = rows(model.Retried, "RetryCount", "retries", POSITION, _DELAY, _REASON, to_end=False)
_BURIED: Final = rows(model.Buried, "BuryCount", "buries", POSITION, _REASON)
_REST: Final = (Field("Rest", word(model.Rest), "rest"), _DELAY, _REASON)
_SETTLE: Final = (*_QUEUE, SUBSCRIBER, _RUNS, *_REST, _RETRIED, _BURIED)
_POSITIONS: Final = Field("Position", Values(LONG), "positions")
_RELEASE: Final = (*_QUEUE, SUBSCRIBER, FIRST, LAST, FLAG("Counts", default=True))
_RESET_TO: Final = (TIME("ResetTo", "ticks"), LONG_OR_NULL("Position", default=None))
_CHANGED: Final = (
    STRING_OR_NULL("Filter"),
    STRING_OR_NULL("Selection"),
    TIME_OR_NULL("ResetTo", "ticks"),
    LONG_OR_NULL("Position"),
)
_MESSAGES: Final = Field("Message", Values(BYTES), "messages")
_UNITS: Final = rows(model.StagedUnit, "UnitCount", "units", *COMMIT, BYTES("Record", "data"), BYTES("Keys"))
_CHUNKS: Final = Field("Chunk", Values(BYTES, "ChunkCount"), "chunks")
_BUILT: Final = (ITERATOR, ID, LONG("Source"), ITEMS, LONG("Messages"), BYTES_OR_NULL("State"), WINNERS)
_PUBLISH: Final = (Field("", Mark(is_required=True), "mark"), JOB, STRING("Origin"), WINNERS)
_whole: Final = partial(Command, present=full_frames)
_fetch: Final = partial(Command, each=FETCH, each_min=1)
_large: Final = partial(Command, bytes_max=None)

EXTENSIONS: Final = (
    # --- reads
    Command("GE", "gets one event", model.ReadEvent, GR, *READ_EVENT),
    Command("RA", "reads everything from a position on, as stored records", model.ReadRecords, RD, *_READ_RECORDS),
    _whole("QF", "reads a stream, as whole events", model.ReadStream, PF, *_READ_STREAM_PART),
    _whole("GF", "gets one whole event", model.ReadEvent, PF, *READ_EVENT),
    _whole("RF", "reads the whole history, as whole events", model.ReadAll, PF, *_READ_ALL),
    Command("TP", "finds the position of a time", model.FindPosition, PT, CONTEXT, FILTER, TIME("Time", "ticks")),
    # --- commits
    _large("AF", "appends a commit, and returns its position", Append, CF, MARK, *COMMIT, NEW_EVENTS),
    _large("TX", "commits and acknowledges, all or nothing", model.Transact, TR, MARK, _COMMITS, _RECEIPTS, _PROGRESS),
    # --- subscriptions and queues
    Command("RM", "as RS, of all contexts, or selecting", model.RegisterSubscriptions, SR, SUBSCRIBER, _ALL_STARTS),
    Command("SM", "as SS, of all contexts, or selecting", model.SetSubscription, ST, each=_SET_ANYWHERE),
    Command("XS", "deletes a subscription", model.DeleteSubscription, OK, SUBSCRIPTION),
    _fetch("FW", "as FE, waiting for events", model.FetchSubscription, EF, WAIT_MS),
    _fetch("FF", "as FW, with whole events", model.FetchSubscription, BF, WAIT_MS, present=full_frames),
    Command("SW", "as SQ, waiting for events", model.SubscribeQueue, QE, WAIT_MS, *SUBSCRIBE),
    _whole("SF", "as SW, with whole events", model.SubscribeQueue, DF, WAIT_MS, *SUBSCRIBE),
    Command("AW", "as AQ, waiting for events", AcknowledgeQueue, QE, WAIT_MS, *_HELD, LAST, COUNT, TTL),
    _whole("KF", "as AW, with whole events", AcknowledgeQueue, DF, WAIT_MS, *_HELD, LAST_OR_NULL, COUNT, TTL),
    _whole("SD", "as SF, several allocations", model.SubscribeQueue, DS, *_SUBSCRIBE_SEVERAL, make=_several),
    Command("KD", "settles a batch, event by event", model.SettleQueue, QT, *_SETTLE),
    Command("KX", "extends a lease", model.ExtendQueue, XT, *_QUEUE, SUBSCRIBER, _RUNS, TTL),
    Command("RK", "releases an allocation, for the queue's next consumer", model.ReleaseQueue, QT, *_RELEASE),
    Command("RT", "resets a queue of a context to a time or a position", model.ResetQueue, QT, *_QUEUE, *_RESET_TO),
    Command("QP", "pauses a queue, or resumes it", model.PauseQueue, QT, *_QUEUE, FLAG("Paused")),
    Command("QN", "renames a queue", model.RenameQueue, QT, *_QUEUE, NAME),
    Command("QD", "deletes a queue", model.DeleteQueue, QT, *_QUEUE),
    Command("QY", "sets a retry policy", model.SetRetryPolicy, QT, *_QUEUE, STRING("Retry")),
    Command("QX", "sets a filter", model.SetQueueFilter, QT, *_QUEUE, FILTER, _SELECTION),
    Command("QV", "previews another filter, or a move", model.PreviewQueue, PV, *_QUEUE, *_CHANGED),
    Command("DR", "sets a dead-letter rule", model.SetDeadLetterRule, QT, *_QUEUE, LONG_OR_NULL("DeadAfter")),
    Command("DL", "lists dead letters", model.ListDeadLetters, LD, *_QUEUE, AFTER, LIMIT),
    Command("DP", "puts a dead letter back", model.PutBack, QT, *_QUEUE, FIRST),
    Command("DE", "lists dead letters, event by event", model.ListLetters, DA, *_QUEUE, AFTER, LIMIT),
    Command("DB", "puts dead letters back, or drops them", model.PutBackLetters, PN, *_QUEUE, FLAG("Drop"), _POSITIONS),
    Command("RP", "delivers events of a queue again", model.ReplayQueue, PR, *_QUEUE, FIRST, LAST, MARK),
    # --- lists and counts
    Command("LC", "lists contexts", model.ListContexts, CL, AFTER_NAME, LIMIT),
    Command("LS", "lists streams", model.ListStreams, SL, CONTEXT, FILTER, AFTER_NAME, LIMIT),
    Command("LQ", "lists queues", model.ListQueues, QL, AFTER, LIMIT),
    Command("LU", "lists subscriptions", model.ListSubscriptions, UL, AFTER, LIMIT),
    Command("GQ", "as LQ, with whole lags", model.ListQueues, QM, AFTER, LIMIT),
    Command("GU", "as LU, with lags", model.ListSubscriptions, UM, AFTER, LIMIT),
    Command("GS", "gets counts", model.GetStats, SG),
    # --- logs and iterators
    Command("NL", "creates a log", model.CreateLog, OK, LOG),
    Command("XL", "deletes a log", model.DropLog, OK, LOG, TIME_OR_NULL("Created", default=None)),
    Command("GL", "shows a log", model.ShowLog, LG, LOG),
    Command("LL", "lists logs", model.ListLogs, LN),
    _large("ML", "adds messages to a log", model.AddMessages, OK, LOG, _MESSAGES),
    Command("NI", "creates an iterator", model.CreateIterator, OK, NAME, LOG, KIND, FUNCTION, FLAG("Indexed")),
    Command("XI", "deletes an iterator", model.DropIterator, OK, LOG, NAME),
    Command("GI", "shows an iterator", model.ShowIterator, IG, NAME),
    Command("LI", "lists iterators", model.ListIterators, LN, STRING_OR_NULL("Log")),
    Command("NX", "reads an iterator's output", model.NextItems, IP, ITERATOR, ORDINAL, COUNT, present=item_frames),
    # --- erasures
    Command("ES", "erases a stream", model.EraseStream, SE, CONTEXT, STREAM, LAST_OR_ALL),
    Command("EJ", "erases events that name a subject", model.EraseSubject, SE, *_ERASE_SUBJECT),
    Command("EL", "lists erasures", model.ListErasures, LE, AFTER, LIMIT),
    # --- staging
    _large("ZS", "stages events of a job", model.StageEvents, ZT, JOB, *STAGE, _UNITS),
    _large("ZP", "publishes what a job has staged", model.PublishStages, ZR, *_PUBLISH),
    Command("ZD", "drops what a job has staged", model.DropStages, OK, JOB),
    # --- builds
    Command("BB", "begins to build an iterator's output elsewhere", model.BeginBuild, BG, ITERATOR),
    Command("BM", "reads the messages of a build", model.ReadMessages, MB, ITERATOR, ID, ORDINAL, COUNT),
    Command("BP", "finds the position of a message", model.FindMessage, PT, ITERATOR, ID, ORDINAL),
    _large("BO", "stages output", model.StageOutput, OK, ID, *STAGE, _CHUNKS),
    _large("BI", "installs what was staged", model.InstallOutput, BR, *_BUILT),
    Command("BD", "drops what was staged", model.DropOutput, OK, ID),
    # --- access
    Command("AU", "authenticates with a token", model.Authenticate, IA, STRING("Token")),
    Command("WI", "tells who one is", model.WhoAmI, IA),
    Command("PP", "makes or changes a principal", model.PutPrincipal, OK, NAME, GRANTS, LIMITS, FORCE),
    Command("XP", "revokes a principal", model.DropPrincipal, OK, NAME, FORCE),
    Command("IT", "issues a token", model.IssueToken, TI, PRINCIPAL, LABEL, EXPIRES, LONG_OR_NULL("Rotate")),
    Command("AK", "adds a certificate or a key", model.AddCredential, OK, PRINCIPAL, ID_OF_CREDENTIAL, LABEL, EXPIRES),
    Command("XK", "revokes a credential", model.DropCredential, OK, ID_OF_CREDENTIAL),
    Command("LP", "lists principals", model.ListPrincipals, PL, AFTER_NAME, LIMIT),
    Command("LK", "lists credentials", model.ListCredentials, KL, STRING_OR_NULL("Principal"), AFTER_NAME, LIMIT),
)
"""The commands beyond the original's: in the text dialect and in our own."""

_HELLO: Final = (INT("Version"), STRING("Software"), Field("Feature", Values(STRING), "supports"))
HO: Final = Answer("HO", Welcome, *_HELLO)
HELLO: Final = Command("HI", "says hello", Hello, HO, *_HELLO, settled=lambda _hello: _welcome())
"""The first command on a connection of our own clients."""
_block: Final = partial(Command, present=event_block)
_COLUMNS: Final = Field("", EventColumns(), "events")
_COMMITS_IN_COLUMNS: Final = rows(Append, "CommitCount", "commits", *COMMIT, _COLUMNS, _NO_MARK, to_end=False)
_TRANSACT: Final = (MARK, _COMMITS_IN_COLUMNS, _RECEIPTS, _PROGRESS)
OWN_ONLY: Final = (
    HELLO,
    _block("QB", "as QF, with the events in a block", model.ReadStream, PB, *_READ_STREAM_PART),
    _fetch("FB", "as FF, with the events in a block", model.FetchSubscription, BK, WAIT_MS, present=event_block),
    _block("SB", "as SD, with the events in a block", model.SubscribeQueue, DK, *_SUBSCRIBE_SEVERAL, make=_several),
    _large("AB", "as AF, with the events as columns", Append, CF, MARK, *COMMIT, _COLUMNS),
    _large("TB", "as TX, with the events as columns", model.Transact, TR, *_TRANSACT),
)

TEXT_COMMANDS: Final = {command.code: command for command in (*ORIGINAL, *EXTENSIONS)}
BINARY_COMMANDS: Final = {command.code: command for command in ORIGINAL_BINARY}
OWN_COMMANDS: Final = TEXT_COMMANDS | {command.code: command for command in OWN_ONLY}
OURS: Final = {command.request: command for command in OWN_COMMANDS.values()}
"""The command that our own client sends for a request: the last in the table, whose answer has the most fields."""


def _welcome() -> Frames:
    welcome = Welcome(VERSION, f"penstock {__version__}", tuple(sorted(code.decode() for code in OWN_COMMANDS)))
    (payload,) = HO.payloads([Hello(VERSION, "")], [welcome], OWN)
    return payload
