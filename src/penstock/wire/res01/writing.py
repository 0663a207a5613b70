"""The client's side: requests as the fields of their messages, in the text dialect.

Each function gives what follows the RequestId. What a request cannot say on this wire is InvalidRequest, before
anything is sent.
"""

from collections.abc import Sequence

from penstock.errors import InvalidRequest
from penstock.model import (
    AcknowledgeQueue,
    AddMessages,
    Append,
    BeginBuild,
    CreateIterator,
    CreateLog,
    DropIterator,
    DropLog,
    DropOutput,
    DropStages,
    EraseStream,
    EraseSubject,
    FetchSubscription,
    FindMessage,
    FindPosition,
    InstallOutput,
    ListContexts,
    ListDeadLetters,
    ListErasures,
    ListIterators,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    NewEvent,
    NextItems,
    ProducerMark,
    ProgressSubscription,
    PublishStages,
    PutBack,
    QueueReceipt,
    ReadAll,
    ReadEvent,
    ReadMessages,
    ReadRecords,
    ReadStream,
    RegisterSubscriptions,
    ReleaseQueue,
    ReplayQueue,
    Request,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    ShowIterator,
    ShowLog,
    StageEvents,
    StageOutput,
    SubscribeQueue,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
    Winner,
)
from penstock.wire.res01.encoding import counted, text_time, texts
from penstock.wire.res01.exchange import Frames
from penstock.wire.res01.fields import EVENT_FRAMES
from penstock.wire.res01.scalars import binary_of_stamp, swap_guid, swap_guids

# --- commits --------------------------------------------------------------------------------------------------


def append(request: Append) -> Frames:
    """AF."""
    return [*_mark(request.mark), *_commit(request)]


def transact(request: Transact) -> Frames:
    """TX."""
    if any(commit.mark for commit in request.commits):
        raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")
    return [
        *_mark(request.mark),
        *counted(map(_commit, request.commits)),
        *counted(map(_queue_receipt, request.acknowledge)),
        *counted(map(_subscription_receipt, request.progress)),
    ]


def _mark(mark: ProducerMark | None) -> Frames:
    return [b"", b""] if mark is None else texts(mark.producer, mark.number)


def _commit(commit: Append) -> Frames:
    events = commit.events
    return [
        commit.context.encode(),
        commit.stream.encode(),
        b"%d" % commit.expected,
        b"%d" % len(events),
        *(_event(events[0]) if len(events) == 1 else _events(events)),
    ]


def _event(event: NewEvent) -> Frames:
    """One event, as most commits have."""
    number, stamp, kind, headers, body = event
    return [swap_guid(number), b"%d" % binary_of_stamp(stamp), kind.encode(), (headers or "").encode(), body]


def _events(events: Sequence[NewEvent]) -> Frames:
    """Many events: the hot loop of appends, one pass per column."""
    frames = [b""] * (EVENT_FRAMES * len(events))
    frames[0::EVENT_FRAMES] = swap_guids([event.id for event in events])
    frames[1::EVENT_FRAMES] = [b"%d" % binary_of_stamp(event.stamp) for event in events]
    frames[2::EVENT_FRAMES] = [event.type.encode() for event in events]
    frames[3::EVENT_FRAMES] = [event.headers.encode() if event.headers else b"" for event in events]
    frames[4::EVENT_FRAMES] = [event.body for event in events]
    return frames


def _queue_receipt(receipt: QueueReceipt) -> Frames:
    return texts(receipt.context, receipt.queue, receipt.subscriber, receipt.first, receipt.last)


def _subscription_receipt(receipt: SubscriptionReceipt) -> Frames:
    return texts(receipt.subscription, text_time(receipt.last_ticks))


# --- reading --------------------------------------------------------------------------------------------------


def read_stream(request: ReadStream) -> Frames:
    """QF."""
    bounds = (request.from_sequence, request.to_sequence, request.limit, request.backward)
    return texts(request.context, request.stream, *bounds)


def read_event(request: ReadEvent) -> Frames:
    """GF."""
    return texts(request.context, request.stream, request.sequence)


def read_all(request: ReadAll) -> Frames:
    """RF."""
    types = request.types
    if types is not None and not types:
        raise InvalidRequest("types", "are none at all; leave them out to read every type")
    head = texts(request.position, request.context, request.filter, request.limit, request.wait_ms)
    return [*head, *counted(map(texts, types or ()))]


def read_records(request: ReadRecords) -> Frames:
    """RA."""
    return texts(request.position, request.context, request.filter, request.wait_ms)


def find_position(request: FindPosition) -> Frames:
    """TP."""
    return texts(request.context, request.filter, text_time(request.ticks))


# --- subscriptions --------------------------------------------------------------------------------------------


def register(request: RegisterSubscriptions) -> Frames:
    """RS."""

    def start(wanted: SubscriptionStart) -> Frames:
        return texts(wanted.context, wanted.filter, text_time(wanted.start_ticks))

    return [*texts(request.subscriber), *counted(map(start, request.subscriptions))]


def fetch(request: FetchSubscription) -> Frames:
    """FF, of one subscription."""
    return texts(request.wait_ms, 1, request.subscription, request.count)


def progress(request: ProgressSubscription) -> Frames:
    """PS, of one subscription."""
    return texts(1, request.subscription, text_time(request.last_ticks))


def set_subscription(request: SetSubscription) -> Frames:
    """SS, of one subscription."""
    return texts(1, request.subscriber, request.context, request.filter, text_time(request.ticks))


# --- queues ---------------------------------------------------------------------------------------------------


def subscribe_queue(request: SubscribeQueue) -> Frames:
    """SF."""
    who = (request.queue, request.subscriber, request.context, request.filter)
    return texts(request.wait_ms, *who, text_time(request.start_ticks), request.count, request.ttl_ms)


def acknowledge(request: AcknowledgeQueue) -> Frames:
    """KF."""
    who = (request.context, request.queue, request.subscriber)
    return texts(request.wait_ms, *who, request.first, request.last, request.count, request.ttl_ms)


def release_queue(request: ReleaseQueue) -> Frames:
    """RK."""
    counts = () if request.counts else (0,)
    return texts(request.queue, request.context, request.subscriber, request.first, request.last, *counts)


def reset_queue(request: ResetQueue) -> Frames:
    """RT."""
    return texts(request.queue, request.context, text_time(request.ticks), *_last(request.position))


def _last(field: int | None) -> tuple[int, ...]:
    """An optional last field."""
    return () if field is None else (field,)


def set_dead_letter_rule(request: SetDeadLetterRule) -> Frames:
    """DR."""
    return texts(request.queue, request.context, request.dead_after)


def list_dead_letters(request: ListDeadLetters) -> Frames:
    """DL."""
    return texts(request.queue, request.context, request.after, request.limit)


def put_back(request: PutBack) -> Frames:
    """DP."""
    return texts(request.queue, request.context, request.first)


def replay_queue(request: ReplayQueue) -> Frames:
    """RP."""
    return [*texts(request.queue, request.context, request.first, request.last), *_mark(request.mark)]


# --- lists and counts -----------------------------------------------------------------------------------------


def listing(request: ListContexts | ListQueues | ListSubscriptions | ListErasures) -> Frames:
    """LC, LQ, LU and EL."""
    return texts(request.after, request.limit)


def list_streams(request: ListStreams) -> Frames:
    """LS."""
    return texts(request.context, request.filter, request.after, request.limit)


def nothing(_request: Request) -> Frames:
    """A command without a payload."""
    return []


# --- logs and iterators ---------------------------------------------------------------------------------------


def log(request: CreateLog | ShowLog) -> Frames:
    """NL and GL."""
    return texts(request.log)


def drop_log(request: DropLog) -> Frames:
    """XL."""
    return texts(request.log) if request.created is None else texts(request.log, text_time(request.created))


def add_messages(request: AddMessages) -> Frames:
    """ML."""
    return [*texts(request.log, len(request.messages)), *request.messages]


def create_iterator(request: CreateIterator) -> Frames:
    """NI."""
    return texts(request.name, request.log, request.kind, request.function, request.indexed)


def drop_iterator(request: DropIterator) -> Frames:
    """XI."""
    return texts(request.log, request.name)


def show_iterator(request: ShowIterator) -> Frames:
    """GI."""
    return texts(request.name)


def list_iterators(request: ListIterators) -> Frames:
    """LI."""
    return texts(request.log)


def next_items(request: NextItems) -> Frames:
    """NX."""
    return texts(request.iterator, request.ordinal, request.count)


# --- erasing --------------------------------------------------------------------------------------------------


def erase_stream(request: EraseStream) -> Frames:
    """ES."""
    return texts(request.context, request.stream, *_last(request.last))


def erase_subject(request: EraseSubject) -> Frames:
    """EJ."""
    return texts(request.subject, request.context, request.position, *_last(request.last))


# --- staging --------------------------------------------------------------------------------------------------


def stage_events(request: StageEvents) -> Frames:
    """ZS."""
    head = texts(request.job, request.part, request.attempt, request.number)
    return [*head, *counted([*texts(u.context, u.stream, u.expected), u.data, u.keys] for u in request.units)]


def publish_stages(request: PublishStages) -> Frames:
    """ZP."""
    return [*_mark(request.mark), *texts(request.job, request.origin), *_winners(request.winners)]


def _winners(winners: Sequence[Winner]) -> Frames:
    return counted(texts(winner.part, winner.attempt, winner.units) for winner in winners)


def drop_stages(request: DropStages) -> Frames:
    """ZD."""
    return texts(request.job)


# --- builds ---------------------------------------------------------------------------------------------------


def begin_build(request: BeginBuild) -> Frames:
    """BB."""
    return texts(request.iterator)


def read_messages(request: ReadMessages) -> Frames:
    """BM."""
    return texts(request.iterator, request.id, request.ordinal, request.count)


def find_message(request: FindMessage) -> Frames:
    """BP."""
    return texts(request.iterator, request.id, request.ordinal)


def stage_output(request: StageOutput) -> Frames:
    """BO."""
    head = texts(request.id, request.part, request.attempt, request.number, len(request.chunks))
    return [*head, *request.chunks]


def install_output(request: InstallOutput) -> Frames:
    """BI."""
    head = texts(request.iterator, request.id, request.source, request.items, request.messages)
    return [*head, request.state or b"", *_winners(request.winners)]


def drop_output(request: DropOutput) -> Frames:
    """BD."""
    return texts(request.id)
