"""The commands of Res01, one entry each: from this table come decoding, encoding, limits, metrics, docs and samples.

A new command is an entry here and a handler in the engine; see CONTRIBUTING.md. Whether a repeat is harmless and which
right is needed is said by the request's class, because it holds on every wire.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock import __version__, model
from penstock.errors import InvalidRequest
from penstock.model import ANY, NEW, AcknowledgeQueue, Allocation, Append, Appended, Delivery, Done, Reply, Request
from penstock.model.requests import Repeat
from penstock.wire.res01.answers import Answer, CommitAnswer, Echo, Progressed, WereSet
from penstock.wire.res01.codes import CONFLICT
from penstock.wire.res01.dialects import OWN, TEXT, Frames, Presenter, refusal_payload
from penstock.wire.res01.events import full_frames, item_frames
from penstock.wire.res01.fields import GUID_BYTES, Fields
from penstock.wire.res01.kinds import (
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
    Events,
    Field,
    Layout,
    LeadingTime,
    Mark,
    Messages,
    NewEvents,
    Rows,
    Stats,
    Types,
    Unmarked,
    Values,
    WholeEvents,
    word,
)

SMALL_BYTES_MAX: Final = 2 << 20
"""Bytes of a message that carries names and numbers only, or one function."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Subscriptions that one message may fetch, progress or set."""
QUEUE_FRAMES: Final = 7
"""Frames of SQ behind the UtcNow that may lead it."""


VERSION: Final = 1
"""Of the dialect. It grows when something changes that those who speak the version before cannot pass over."""


@dataclass(frozen=True, slots=True)
class Hello(Request):
    """A client's first request on a connection. `supports` are the features that it understands."""

    repeat = Repeat.READS
    version: int
    software: str
    supports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome(Reply):
    """A server's answer: the version that it speaks, and the commands and features that it has."""

    version: int
    software: str
    supports: tuple[str, ...] = ()


class Command:
    """A command: what a message with it asks for, and what answers it.

    `each` are fields that come once for each of several requests, behind a count; then `fields` belong to all of them.
    `make` makes a request where the fields are not its attributes. `settled` may answer a request without the engine.
    """

    def __init__(
        self,
        code: str,
        about: str,
        request: type[Request],
        answer: Answer,
        *fields: Field,
        each: Iterable[Field] | None = None,
        each_min: int = 0,
        make: Callable[..., Request] | None = None,
        present: Presenter | None = None,
        settled: Callable[[Any], Frames | None] | None = None,
        bytes_max: int | None = SMALL_BYTES_MAX,
    ) -> None:
        self.name = code
        self.code = code.encode()
        self.about = about
        self.request = request
        self.answer = answer
        self.layout = Layout(make or request, fields)
        self.each = None if each is None else Layout(dict, each)
        self.each_min = each_min
        self.present = present
        self.settled = settled
        self.bytes_max = bytes_max

    def read(self, fields: Fields) -> tuple[Request, ...]:
        """The requests that a message makes, from the frames behind its RequestId."""
        if self.each is None:
            return (self.layout.read(fields),)
        shared = self.layout.values(fields)
        count = fields.count_to_end("Count", self.each.frames, SUBSCRIPTIONS_MAX)
        if count < self.each_min:
            # One answer for each subscription would be none at all, and the client would wait for ever.
            raise InvalidRequest("Count", "is 0; a fetch names at least one subscription")
        return tuple(self.request(**shared, **self.each.values(fields)) for _ in range(count))

    def write(self, request: Request) -> Frames:
        """The frames of one request behind the RequestId, in the text dialect."""
        out: Frames = []
        self.layout.write(out, request, TEXT)
        if self.each is not None:
            out.append(b"1")
            self.each.write(out, request, TEXT)
        return out


# --- fields that many have ---------------------------------------------------------------------------------------

CONTEXT: Final = STRING("Context")
ANY_CONTEXT: Final = STRING_OR_NULL("Context")
STREAM: Final = STRING("Stream")
FILTER: Final = STRING("Filter")
EXPECTED: Final = LONG("ExpectedVersion", "expected")
SUBSCRIBER: Final = STRING("SubscriberId", "subscriber")
SUBSCRIPTION: Final = LONG("SubscriptionId", "subscription")
QUEUE: Final = STRING("QueueId", "queue")
FIRST: Final = LONG("StartMarker", "first")
LAST: Final = LONG("EndMarker", "last")
COUNT: Final = INT("Count")
TTL: Final = INT("AllocationTimeInMilliseconds", "ttl_ms")
WAIT_MS: Final = WAIT("WaitMs")
POSITION: Final = LONG("Position")
LIMIT: Final = LONG_OR_NULL("Limit")
AFTER_NUMBER: Final = LONG_OR_ZERO("After")
MARK: Final = Field("", Mark(), "mark")
NAME: Final = STRING("Name")
LOG: Final = STRING("Log")
ITERATOR: Final = STRING("Name", "iterator")
ID: Final = LONG("Id")
PART: Final = INT("Part")
ATTEMPT: Final = STRING("Attempt")
NUMBER: Final = LONG("Number")
JOB: Final = STRING("Job")
END: Final = FLAG("End")
NEXT: Final = LONG("Next")
REPEATED: Final = FLAG("Repeated")
EVENTS: Final = Field("", WholeEvents(), "events", get=lambda reply: reply)
SHOWN_EVENTS: Final = Field("", Events(), "events", get=lambda reply: reply)
KIND: Final = Field("Kind", word(model.IteratorKind), "kind")
OVER: Final = Field("Over", word(model.Over), "over")
FUNCTION: Final = STRING("Function")
WINNERS: Final = Field("", Rows(Layout(model.Winner, (PART, ATTEMPT, LONG("Units"))), "WinnerCount"), "winners")
LAST_OR_ALL: Final = LONG_OR_NULL("Last", default=None)
UTC_NOW: Final = Field("UtcNow", TIME, get=lambda _request: 0)


def paged(code: str, page: type[Any], attribute: str, make: type, *fields: Field) -> Answer:
    """A page of a list: whether it is the last one, then its rows."""
    return Answer(code, page, END, Field("", Rows(Layout(make, fields), collect=list), attribute))


# --- answers -----------------------------------------------------------------------------------------------------

APPENDED: Final = (GUID("CommitId", "commit"), POSITION, LONG("Sequence"), LONG("Count"), REPEATED)
_ALLOCATION: Final = (
    LONG("StartMarker", "first", get=lambda d: d.allocation.first if d.allocation else 0),
    LONG("EndMarker", "last", get=lambda d: d.allocation.last if d.allocation else 0),
)
_DEAD: Final = (FIRST, LAST, LONG("Count"), STRING("Subscriber"), LONG("Deliveries"), TIME("Expired", "expires"))


def _delivery(
    first: int, last: int, expires: int | None, deliveries: int, subscriber: str, events: list[Any], **rest: Any
) -> Delivery:
    """A delivery has an allocation if that has a time when it expires."""
    held = None if expires is None else Allocation(first, last, len(events), subscriber, expires, deliveries)
    return Delivery(subscriber=subscriber, allocation=held, events=events, **rest)


OK: Final = Answer("OK", Done)
CR: Final = CommitAnswer("CR", Appended, *APPENDED[:1])
CF: Final = Answer("CF", Appended, *APPENDED)
TR: Final = Answer("TR", model.Transacted, Field("", Rows(Layout(Appended, APPENDED)), "commits"))
QR: Final = Answer("QR", model.EventPage, SHOWN_EVENTS)
GR: Final = Answer("GR", model.EventPage, Field("", Events(has_count=False), "events", get=lambda reply: reply))
PF: Final = Answer("PF", model.EventPage, NEXT, END, EVENTS)
RD: Final = Answer(
    "RD",
    model.RecordPage,
    STRING("StoreId"),
    LONG("Timeline"),
    NEXT,
    END,
    Field("Record", Values(BYTES, collect=list), "records"),
)
PT: Final = Answer("PT", model.Found, LONG_OR_NULL("Position"))
SR: Final = Answer("SR", model.Registered, Field("SubscriptionId", Values(LONG), "ids"))
EF: Final = Answer("EF", model.Batch, SUBSCRIPTION, SHOWN_EVENTS, each=True)
BF: Final = Answer("BF", model.Batch, SUBSCRIPTION, EVENTS, each=True)
SP: Final = Progressed()
ST: Final = WereSet()
QE: Final = Answer("QE", Delivery, QUEUE, SUBSCRIBER, TIME("UtcNow", "now"), *_ALLOCATION, SHOWN_EVENTS)
QE_BINARY: Final = Answer(
    "QE",
    Delivery,
    CONTEXT,
    QUEUE,
    SUBSCRIBER,
    TIME("UtcNow", "now"),
    LONG_OR_NULL("AllocationId", "first", get=lambda d: d.allocation and d.allocation.first),
    SHOWN_EVENTS,
)
DF: Final = Answer(
    "DF",
    Delivery,
    CONTEXT,
    QUEUE,
    SUBSCRIBER,
    TIME("UtcNow", "now"),
    *_ALLOCATION,
    TIME_OR_NULL("Expires", get=lambda d: d.allocation and d.allocation.expires),
    LONG("Deliveries", get=lambda d: d.allocation.deliveries if d.allocation else 0),
    EVENTS,
    make=_delivery,
)
QT: Final = Echo("QT", QUEUE)
PR: Final = Answer(
    "PR", model.Replayed, LONG("Events"), LONG("LeftOut"), LONG("Waiting"), FLAG("Full", "is_full"), REPEATED
)
CL: Final = paged(
    "CL",
    model.ContextPage,
    "contexts",
    model.ContextInfo,
    NAME,
    LONG("Events"),
    LONG("Commits"),
    LONG("Streams"),
    LONG("Bytes"),
)
SL: Final = paged("SL", model.StreamPage, "streams", model.StreamInfo, NAME, LONG("Events"))
QL: Final = paged(
    "QL",
    model.QueuePage,
    "queues",
    model.QueueInfo,
    ID,
    CONTEXT,
    NAME,
    FILTER,
    POSITION,
    LONG("Behind"),
    LONG("Allocated"),
    LONG("Allocations"),
    LONG("DeliveriesMax"),
    LONG("Dead"),
    LONG_OR_NULL("DeadAfter"),
)
UL: Final = paged(
    "UL",
    model.SubscriptionPage,
    "subscriptions",
    model.SubscriptionInfo,
    ID,
    STRING("Subscriber"),
    CONTEXT,
    FILTER,
    POSITION,
    TIME_OR_NULL("LastEventTime", "last_ticks"),
)
LD: Final = paged("LD", model.DeadLetterPage, "dead", Allocation, *_DEAD)
SG: Final = Answer(
    "SG",
    model.StoreStats,
    Field("", Stats(), "stats", get=lambda stats: stats),
    make=lambda stats: model.StoreStats(**stats),
)
LG: Final = Answer(
    "LG",
    model.LogSummary,
    LOG,
    TIME("Created"),
    LONG("Messages"),
    LONG("Bytes", "size_bytes"),
    Field("Name", Values(STRING, collect=list), "iterators"),
)
LN: Final = Answer("LN", model.Names, Field("Name", Values(STRING, collect=list), "names"))
IG: Final = Answer(
    "IG",
    model.IteratorSummary,
    NAME,
    LOG,
    OVER,
    KIND,
    FUNCTION,
    FLAG("Indexed"),
    TIME("Created"),
    LONG_OR_NULL("Items"),
    LONG_OR_NULL("Behind"),
)
IP: Final = Answer(
    "IP",
    model.ItemPage,
    Field(
        "Item",
        Values(BYTES, collect=list),
        "items",
        get=lambda page: page.items if page.encoded is None else page.encoded.content,
    ),
)
SE: Final = Answer("SE", model.Erased, LONG("Events"), NEXT, END)
LE: Final = paged(
    "LE",
    model.ErasurePage,
    "erasures",
    model.ErasureInfo,
    ID,
    ANY_CONTEXT,
    STRING_OR_NULL("Stream"),
    LONG("Events"),
    TIME("Requested"),
    TIME_OR_NULL("Finished"),
    LONG("Damaged"),
)
ZT: Final = Answer("ZT", model.StagesTaken, LONG("EventBytesMax"))
ZR: Final = Answer("ZR", model.Published, POSITION, LONG("Commits"), LONG("Events"), REPEATED)
BG: Final = Answer(
    "BG",
    model.BuildStart,
    ITERATOR,
    ID,
    LOG,
    OVER,
    KIND,
    FUNCTION,
    LONG("Source"),
    LONG("Items"),
    BYTES_OR_NULL("State"),
    LONG("Head"),
    LONG("CallMsMax"),
    LONG("MemoryBytesMax"),
    LONG("ResultBytesMax"),
)
MB: Final = Answer("MB", model.MessagePage, Field("", Messages(), "messages"))
BR: Final = Answer("BR", model.Installed, LONG("Items"), LONG("Added"), LONG("Messages"))

# --- what the original does in a way of its own ------------------------------------------------------------------


def _binary_commit(request: Append) -> Frames | None:
    """In the binary dialect nothing to commit is fine, and a version that cannot be is a conflict."""
    if not request.events:
        return [b"CR", bytes(GUID_BYTES)]
    if request.expected < NEW and request.expected != ANY:
        known = f"expected version {request.expected} of stream {request.stream} in context {request.context}"
        return refusal_payload(CONFLICT, f"{known}, which no stream can have; nothing was written")
    return None


def _binary_acknowledge(first: int | None, **rest: Any) -> AcknowledgeQueue:
    """In the binary dialect an allocation has one number, its first marker."""
    return AcknowledgeQueue(first=first or 0, last=0 if first is None else None, **rest)


# --- the table ---------------------------------------------------------------------------------------------------

COMMIT: Final = (CONTEXT, STREAM, EXPECTED)
LAST_OF_ALLOCATION: Final = LONG_OR_NULL("EndMarker", "last")
SUBSCRIBE: Final = (
    Field("UtcNow", LeadingTime(QUEUE_FRAMES)),
    QUEUE,
    SUBSCRIBER,
    CONTEXT,
    FILTER,
    TIME("StartTime", "start_ticks"),
    COUNT,
    TTL,
)
WHERE: Final = (QUEUE, SUBSCRIBER)
FETCH: Final = (SUBSCRIPTION, INT("SuggestedCount", "count"))

ORIGINAL: Final = (
    Command("AC", "appends a commit", Append, CR, *COMMIT, Field("", NewEvents(to_end=True), "events"), bytes_max=None),
    Command(
        "QS",
        "reads a stream",
        model.ReadStream,
        QR,
        CONTEXT,
        STREAM,
        LONG("FromVersion", "from_sequence"),
        LONG_OR_NULL("MaxVersion", "to_sequence"),
    ),
    Command(
        "RS",
        "registers durable subscriptions",
        model.RegisterSubscriptions,
        SR,
        SUBSCRIBER,
        Field(
            "",
            Rows(Layout(model.SubscriptionStart, (CONTEXT, FILTER, TIME("StartTime", "start_ticks")))),
            "subscriptions",
        ),
    ),
    Command("FE", "fetches events of subscriptions", model.FetchSubscription, EF, each=FETCH, each_min=1),
    Command(
        "PS",
        "progresses subscriptions past what was fetched",
        model.ProgressSubscription,
        SP,
        each=(SUBSCRIPTION, TIME("LastEventTime", "last_ticks")),
    ),
    Command(
        "SS",
        "sets subscriptions to a time",
        model.SetSubscription,
        ST,
        each=(SUBSCRIBER, CONTEXT, FILTER, TIME("SetTo", "ticks")),
    ),
    Command("SQ", "declares a queue and allocates events of it", model.SubscribeQueue, QE, *SUBSCRIBE),
    Command(
        "AQ",
        "acknowledges an allocation and allocates the next",
        AcknowledgeQueue,
        QE,
        *WHERE,
        FIRST,
        LAST,
        COUNT,
        TTL,
        make=partial(AcknowledgeQueue, context=None),
    ),
    Command(
        "RQ",
        "resets a queue to a time",
        model.ResetQueue,
        QT,
        QUEUE,
        TIME("ResetTo", "ticks"),
        UTC_NOW,
        make=partial(model.ResetQueue, None),
    ),
)
"""The commands of the original in the text dialect."""

ORIGINAL_BINARY: Final = (
    Command(
        "AC",
        "appends a commit",
        Append,
        CR,
        *COMMIT,
        Field("", NewEvents(to_end=True, least=0), "events"),
        settled=_binary_commit,
        bytes_max=None,
    ),
    ORIGINAL[1],
    Command(
        "SQ",
        "declares a queue and allocates events of it",
        model.SubscribeQueue,
        QE_BINARY,
        CONTEXT,
        *WHERE,
        FILTER,
        TIME("StartTime", "start_ticks"),
        COUNT,
        TTL,
    ),
    Command(
        "AQ",
        "acknowledges an allocation and allocates the next",
        AcknowledgeQueue,
        QE_BINARY,
        CONTEXT,
        *WHERE,
        LONG_OR_NULL("AllocationId", "first"),
        COUNT,
        TTL,
        make=_binary_acknowledge,
    ),
)
"""The commands of the original in the binary dialect."""

EXTENSIONS: Final = (
    # --- reading
    Command("GE", "gets one event", model.ReadEvent, GR, CONTEXT, STREAM, LONG("Sequence")),
    Command(
        "RA",
        "reads everything from a position on, as stored records",
        model.ReadRecords,
        RD,
        POSITION,
        ANY_CONTEXT,
        FILTER,
        WAIT_MS,
    ),
    Command(
        "QF",
        "reads a stream, as whole events",
        model.ReadStream,
        PF,
        CONTEXT,
        STREAM,
        LONG("FromVersion", "from_sequence"),
        LONG_OR_NULL("MaxVersion", "to_sequence"),
        LIMIT,
        FLAG("Backward"),
        present=full_frames,
    ),
    Command("GF", "gets one whole event", model.ReadEvent, PF, CONTEXT, STREAM, LONG("Sequence"), present=full_frames),
    Command(
        "RF",
        "reads the whole history, as whole events",
        model.ReadAll,
        PF,
        POSITION,
        ANY_CONTEXT,
        FILTER,
        LIMIT,
        WAIT_MS,
        Field("", Types(), "types"),
        present=full_frames,
    ),
    Command("TP", "finds the position of a time", model.FindPosition, PT, CONTEXT, FILTER, TIME("Time", "ticks")),
    # --- commits
    Command(
        "AF",
        "appends a commit, and is told where it lies",
        Append,
        CF,
        MARK,
        *COMMIT,
        Field("", NewEvents(), "events"),
        bytes_max=None,
    ),
    Command(
        "TX",
        "several commits and acknowledgements, all or nothing",
        model.Transact,
        TR,
        MARK,
        Field(
            "",
            Rows(
                Layout(Append, (*COMMIT, Field("", NewEvents(), "events"), Field("", Unmarked(), "mark"))),
                "CommitCount",
                to_end=False,
            ),
            "commits",
        ),
        Field(
            "",
            Rows(Layout(model.QueueReceipt, (CONTEXT, *WHERE, FIRST, LAST)), "AckCount", to_end=False),
            "acknowledge",
        ),
        Field(
            "",
            Rows(
                Layout(model.SubscriptionReceipt, (SUBSCRIPTION, TIME("LastEventTime", "last_ticks"))), "ProgressCount"
            ),
            "progress",
        ),
        bytes_max=None,
    ),
    # --- subscriptions and queues
    Command("FW", "as FE, waiting for events", model.FetchSubscription, EF, WAIT_MS, each=FETCH, each_min=1),
    Command(
        "FF",
        "as FW, with whole events",
        model.FetchSubscription,
        BF,
        WAIT_MS,
        each=FETCH,
        each_min=1,
        present=full_frames,
    ),
    Command("SW", "as SQ, waiting for events", model.SubscribeQueue, QE, WAIT_MS, *SUBSCRIBE),
    Command("SF", "as SW, with whole events", model.SubscribeQueue, DF, WAIT_MS, *SUBSCRIBE, present=full_frames),
    Command(
        "AW", "as AQ, waiting for events", AcknowledgeQueue, QE, WAIT_MS, ANY_CONTEXT, *WHERE, FIRST, LAST, COUNT, TTL
    ),
    Command(
        "KF",
        "as AW, with whole events",
        AcknowledgeQueue,
        DF,
        WAIT_MS,
        ANY_CONTEXT,
        *WHERE,
        FIRST,
        LAST_OF_ALLOCATION,
        COUNT,
        TTL,
        present=full_frames,
    ),
    Command(
        "RK",
        "gives an allocation up, for the queue's next consumer",
        model.ReleaseQueue,
        QT,
        QUEUE,
        ANY_CONTEXT,
        SUBSCRIBER,
        FIRST,
        LAST,
        FLAG("Counts", default=True),
    ),
    Command(
        "RT",
        "resets a queue of a context to a time or a position",
        model.ResetQueue,
        QT,
        QUEUE,
        ANY_CONTEXT,
        TIME("ResetTo", "ticks"),
        LONG_OR_NULL("Position", default=None),
    ),
    Command(
        "DR", "sets a dead-letter rule", model.SetDeadLetterRule, QT, QUEUE, ANY_CONTEXT, LONG_OR_NULL("DeadAfter")
    ),
    Command("DL", "lists dead letters", model.ListDeadLetters, LD, QUEUE, ANY_CONTEXT, AFTER_NUMBER, LIMIT),
    Command("DP", "puts a dead letter back", model.PutBack, QT, QUEUE, ANY_CONTEXT, FIRST),
    Command(
        "RP", "hands events of a queue out once more", model.ReplayQueue, PR, QUEUE, ANY_CONTEXT, FIRST, LAST, MARK
    ),
    # --- lists and counts
    Command("LC", "lists contexts", model.ListContexts, CL, STRING("After"), LIMIT),
    Command("LS", "lists streams", model.ListStreams, SL, CONTEXT, FILTER, STRING("After"), LIMIT),
    Command("LQ", "lists queues", model.ListQueues, QL, AFTER_NUMBER, LIMIT),
    Command("LU", "lists subscriptions", model.ListSubscriptions, UL, AFTER_NUMBER, LIMIT),
    Command("GS", "gets counts", model.GetStats, SG),
    # --- logs and iterators
    Command("NL", "makes a log", model.CreateLog, OK, LOG),
    Command("XL", "deletes a log", model.DropLog, OK, LOG, TIME_OR_NULL("Created", default=None)),
    Command("GL", "shows a log", model.ShowLog, LG, LOG),
    Command("LL", "lists logs", model.ListLogs, LN),
    Command(
        "ML",
        "adds messages to a log",
        model.AddMessages,
        OK,
        LOG,
        Field("Message", Values(BYTES), "messages"),
        bytes_max=None,
    ),
    Command("NI", "makes an iterator", model.CreateIterator, OK, NAME, LOG, KIND, FUNCTION, FLAG("Indexed")),
    Command("XI", "deletes an iterator", model.DropIterator, OK, LOG, NAME),
    Command("GI", "shows an iterator", model.ShowIterator, IG, NAME),
    Command("LI", "lists iterators", model.ListIterators, LN, STRING_OR_NULL("Log")),
    Command(
        "NX", "reads an iterator's output", model.NextItems, IP, ITERATOR, LONG("Ordinal"), COUNT, present=item_frames
    ),
    # --- erasing
    Command("ES", "erases a stream", model.EraseStream, SE, CONTEXT, STREAM, LAST_OR_ALL),
    Command(
        "EJ",
        "erases what names a subject",
        model.EraseSubject,
        SE,
        STRING("Subject"),
        ANY_CONTEXT,
        POSITION,
        LAST_OR_ALL,
    ),
    Command("EL", "lists what was erased", model.ListErasures, LE, AFTER_NUMBER, LIMIT),
    # --- staging
    Command(
        "ZS",
        "stages events of a job",
        model.StageEvents,
        ZT,
        JOB,
        PART,
        ATTEMPT,
        NUMBER,
        Field(
            "", Rows(Layout(model.StagedUnit, (*COMMIT, BYTES("Record", "data"), BYTES("Keys"))), "UnitCount"), "units"
        ),
        bytes_max=None,
    ),
    Command(
        "ZP",
        "publishes what a job has staged",
        model.PublishStages,
        ZR,
        Field("", Mark(is_required=True), "mark"),
        JOB,
        STRING("Origin"),
        WINNERS,
        bytes_max=None,
    ),
    Command("ZD", "drops what a job has staged", model.DropStages, OK, JOB),
    # --- builds
    Command("BB", "begins to build an iterator's output elsewhere", model.BeginBuild, BG, ITERATOR),
    Command("BM", "reads the messages of a build", model.ReadMessages, MB, ITERATOR, ID, LONG("Ordinal"), COUNT),
    Command("BP", "finds the position of a message", model.FindMessage, PT, ITERATOR, ID, LONG("Ordinal")),
    Command(
        "BO",
        "stages output",
        model.StageOutput,
        OK,
        ID,
        PART,
        ATTEMPT,
        NUMBER,
        Field("Chunk", Values(BYTES, "ChunkCount"), "chunks"),
        bytes_max=None,
    ),
    Command(
        "BI",
        "installs what was staged",
        model.InstallOutput,
        BR,
        ITERATOR,
        ID,
        LONG("Source"),
        LONG("Items"),
        LONG("Messages"),
        BYTES_OR_NULL("State"),
        WINNERS,
        bytes_max=None,
    ),
    Command("BD", "drops what was staged", model.DropOutput, OK, ID),
)
"""The commands that clients need beyond the original's: in the text dialect and in our own."""

_HELLO: Final = (INT("Version"), STRING("Software"), Field("Feature", Values(STRING), "supports"))
HELLO: Final = Command(
    "HI",
    "says hello",
    Hello,
    Answer("HO", Welcome, *_HELLO),
    *_HELLO,
    settled=lambda _hello: _welcome(),
)
"""The first command on a connection of our own clients."""

TEXT_COMMANDS: Final = {command.code: command for command in (*ORIGINAL, *EXTENSIONS)}
BINARY_COMMANDS: Final = {command.code: command for command in ORIGINAL_BINARY}
OWN_COMMANDS: Final = {**TEXT_COMMANDS, HELLO.code: HELLO}
OURS: Final = {command.request: command for command in OWN_COMMANDS.values()}
"""What our own client asks a request with: the last of its commands, which tells the most."""


def _welcome() -> Frames:
    """What this server answers to a hello."""
    welcome = Welcome(VERSION, f"penstock {__version__}", tuple(sorted(code.decode() for code in OWN_COMMANDS)))
    (payload,) = HELLO.answer.payloads([Hello(VERSION, "")], [welcome], OWN)
    return payload
