"""The client's side: answers as replies, in the text dialect.

Each function takes the fields behind an answer's command. Fields that are not what they should be are InvalidRequest
here as on the server's side; `asking` says it in the client's way.
"""

from dataclasses import fields as fields_of
from typing import Any, Final

from penstock.errors import InvalidRequest, PenstockError
from penstock.model import (
    Allocation,
    Appended,
    Batch,
    BuildStart,
    ContextInfo,
    ContextPage,
    DeadLetterPage,
    Delivery,
    Done,
    Erased,
    ErasureInfo,
    ErasurePage,
    Event,
    EventPage,
    Found,
    Installed,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    LogSummary,
    MessagePage,
    Names,
    Over,
    Published,
    QueueInfo,
    QueuePage,
    RecordPage,
    Registered,
    Replayed,
    StagesTaken,
    StoreStats,
    StreamInfo,
    StreamPage,
    SubscriptionInfo,
    SubscriptionPage,
    Transacted,
)
from penstock.wire.res01.events import FULL_FRAMES, full_events
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.refusals import error_of_reason
from penstock.wire.res01.scalars import TEXT_SCALARS, read_text

_DONE: Final = Done()

# --- commits --------------------------------------------------------------------------------------------------


def appended(fields: Fields) -> Appended:
    """CF, and each commit of TR."""
    commit, position, sequence = fields.guid("CommitId"), fields.number("Position"), fields.number("Sequence")
    return Appended(commit, position, sequence, fields.number("Count"), fields.flag("Repeated"))


def transacted(fields: Fields) -> Transacted:
    """TR."""
    return Transacted(tuple(appended(fields) for _ in range(fields.count_to_end("Count", 5))))


# --- reading --------------------------------------------------------------------------------------------------


def event_page(fields: Fields) -> EventPage:
    """PF."""
    following, end = fields.number("Next"), fields.flag("End")
    return EventPage(_events(fields), following, end)


def record_page(fields: Fields) -> RecordPage:
    """RD."""
    store_id, timeline = fields.text("StoreId"), fields.number("Timeline")
    following, end = fields.number("Next"), fields.flag("End")
    return RecordPage(store_id, timeline, fields.take(fields.count_to_end("Count", 1)), following, end)


def found(fields: Fields) -> Found:
    """PT."""
    return Found(fields.number_or_none("Position"))


def _events(fields: Fields) -> list[Event]:
    """The events that all the frames that are left tell of."""
    count = fields.count_to_end("Count", FULL_FRAMES)
    return full_events(fields.take(FULL_FRAMES * count))


# --- subscriptions --------------------------------------------------------------------------------------------


def registered(fields: Fields) -> Registered:
    """SR."""
    return Registered(_numbers(fields))


def batch(fields: Fields) -> Batch:
    """BF."""
    subscription = fields.number("SubscriptionId")
    return Batch(subscription, _events(fields))


def progressed(fields: Fields) -> Done:
    """SP."""
    _numbers(fields)
    return _DONE


def was_set(fields: Fields) -> Done | PenstockError:
    """ST of one subscription: empty, or the reason."""
    if (count := fields.count_to_end("Count", 1)) != 1:
        raise InvalidRequest("Count", f"is {count} where one subscription was set")
    reason = fields.text("Reason")
    return error_of_reason(reason) if reason else _DONE


def _numbers(fields: Fields) -> tuple[int, ...]:
    return tuple(fields.number("SubscriptionId") for _ in range(fields.count_to_end("Count", 1)))


# --- queues ---------------------------------------------------------------------------------------------------


def delivery(fields: Fields) -> Delivery:
    """DF."""
    context, queue, subscriber = fields.text("Context"), fields.text("QueueId"), fields.text("SubscriberId")
    now, first, last = fields.ticks("UtcNow"), fields.number("StartMarker"), fields.number("EndMarker")
    expires, deliveries = fields.ticks_or_none("Expires"), fields.number("Deliveries")
    events = _events(fields)
    held = None if expires is None else Allocation(first, last, len(events), subscriber, expires, deliveries)
    return Delivery(context, queue, subscriber, now, held, events)


def changed(fields: Fields) -> Done:
    """QT."""
    fields.text("QueueId")
    return _DONE


def replayed(fields: Fields) -> Replayed:
    """PR."""
    counts = fields.number("Events"), fields.number("LeftOut"), fields.number("Waiting")
    return Replayed(*counts, fields.flag("Full"), fields.flag("Repeated"))


def dead_letters(fields: Fields) -> DeadLetterPage:
    """LD."""
    end = fields.flag("End")
    return DeadLetterPage([_dead_letter(fields) for _ in range(fields.count_to_end("Count", 6))], end)


def _dead_letter(fields: Fields) -> Allocation:
    first, last, count = fields.number("StartMarker"), fields.number("EndMarker"), fields.number("Count")
    subscriber, deliveries = fields.text("Subscriber"), fields.number("Deliveries")
    return Allocation(first, last, count, subscriber, fields.ticks("Expired"), deliveries)


# --- lists and counts -----------------------------------------------------------------------------------------


def contexts(fields: Fields) -> ContextPage:
    """CL."""
    end = fields.flag("End")
    return ContextPage([_context(fields) for _ in range(fields.count_to_end("Count", 5))], end)


def _context(fields: Fields) -> ContextInfo:
    name, events, commits = fields.text("Name"), fields.number("Events"), fields.number("Commits")
    return ContextInfo(name, events, commits, fields.number("Streams"), fields.number("Bytes"))


def streams(fields: Fields) -> StreamPage:
    """SL."""
    end, count = fields.flag("End"), fields.count_to_end("Count", 2)
    return StreamPage([StreamInfo(fields.text("Name"), fields.number("Events")) for _ in range(count)], end)


def queues(fields: Fields) -> QueuePage:
    """QL."""
    end = fields.flag("End")
    return QueuePage([_queue(fields) for _ in range(fields.count_to_end("Count", 11))], end)


def _queue(fields: Fields) -> QueueInfo:
    # Arguments are evaluated from left to right, and the frames are in the order of the fields.
    return QueueInfo(
        id=fields.number("Id"),
        context=fields.text("Context"),
        name=fields.text("Name"),
        filter=fields.text("Filter"),
        position=fields.number("Position"),
        behind=fields.number("Behind"),
        allocated=fields.number("Allocated"),
        allocations=fields.number("Allocations"),
        deliveries_max=fields.number("DeliveriesMax"),
        dead=fields.number("Dead"),
        dead_after=fields.number_or_none("DeadAfter"),
    )


def subscriptions(fields: Fields) -> SubscriptionPage:
    """UL."""
    end = fields.flag("End")
    return SubscriptionPage([_subscription(fields) for _ in range(fields.count_to_end("Count", 6))], end)


def _subscription(fields: Fields) -> SubscriptionInfo:
    number, subscriber = fields.number("Id"), fields.text("Subscriber")
    context, wanted = fields.text("Context"), fields.text("Filter")
    return SubscriptionInfo(
        number, subscriber, context, wanted, fields.number("Position"), fields.ticks_or_none("LastEventTime")
    )


def stats(fields: Fields) -> StoreStats:
    """SG: the names that this client knows; a newer server may tell more."""
    told = {fields.text("Name"): fields.frame("Value") for _ in range(fields.count_to_end("Count", 2))}
    return StoreStats(*(_stat(field.name, field.type, told.get(field.name)) for field in fields_of(StoreStats)))


def _stat(name: str, kind: object, frame: bytes | None) -> Any:
    if frame is None:
        raise InvalidRequest(name, "is missing among the counts")
    return read_text(frame, name) if kind is str else TEXT_SCALARS.read_number(frame, name)


# --- logs and iterators ---------------------------------------------------------------------------------------


def done(_fields: Fields) -> Done:
    """OK."""
    return _DONE


def names(fields: Fields) -> Names:
    """LN."""
    return Names(_names(fields))


def log_summary(fields: Fields) -> LogSummary:
    """LG."""
    log, created = fields.text("Log"), fields.ticks("Created")
    messages, size_bytes = fields.number("Messages"), fields.number("Bytes")
    return LogSummary(log, created, messages, size_bytes, _names(fields))


def iterator_summary(fields: Fields) -> IteratorSummary:
    """IG."""
    # Arguments are evaluated from left to right, and the frames are in the order of the fields.
    return IteratorSummary(
        name=fields.text("Name"),
        log=fields.text("Log"),
        over=fields.word("Over", Over),
        kind=fields.word("Kind", IteratorKind),
        function=fields.text("Function"),
        indexed=fields.flag("Indexed"),
        created=fields.ticks("Created"),
        items=fields.number_or_none("Items"),
        behind=fields.number_or_none("Behind"),
    )


def item_page(fields: Fields) -> ItemPage:
    """IP."""
    return ItemPage(fields.take(fields.count_to_end("Count", 1)))


def _names(fields: Fields) -> list[str]:
    return [fields.text("Name") for _ in range(fields.count_to_end("Count", 1))]


# --- erasing --------------------------------------------------------------------------------------------------


def stages_taken(fields: Fields) -> StagesTaken:
    """ZT."""
    return StagesTaken(fields.number("EventBytesMax"))


def published(fields: Fields) -> Published:
    """ZR."""
    counts = fields.number("Position"), fields.number("Commits"), fields.number("Events")
    return Published(*counts, fields.flag("Repeated"))


def erased(fields: Fields) -> Erased:
    """SE."""
    return Erased(fields.number("Events"), fields.number("Next"), fields.flag("End"))


def erasures(fields: Fields) -> ErasurePage:
    """LE."""
    end = fields.flag("End")
    return ErasurePage([_erasure(fields) for _ in range(fields.count_to_end("Count", 7))], end)


def _erasure(fields: Fields) -> ErasureInfo:
    # Arguments are evaluated from left to right, and the frames are in the order of the fields.
    return ErasureInfo(
        id=fields.number("Id"),
        context=fields.text_or_none("Context"),
        stream=fields.text_or_none("Stream"),
        events=fields.number("Events"),
        requested=fields.ticks("Requested"),
        finished=fields.ticks_or_none("Finished"),
        damaged=fields.number("Damaged"),
    )


# --- builds ---------------------------------------------------------------------------------------------------


def build_start(fields: Fields) -> BuildStart:
    """BG."""
    # Arguments are evaluated from left to right, and the frames are in the order of the fields.
    return BuildStart(
        iterator=fields.text("Name"),
        id=fields.number("Id"),
        log=fields.text("Log"),
        over=fields.word("Over", Over),
        kind=fields.word("Kind", IteratorKind),
        function=fields.text("Function"),
        source=fields.number("Source"),
        items=fields.number("Items"),
        state=fields.frame("State") or None,
        head=fields.number("Head"),
        call_ms_max=fields.number("CallMsMax"),
        memory_bytes_max=fields.number("MemoryBytesMax"),
        result_bytes_max=fields.number("ResultBytesMax"),
    )


def message_page(fields: Fields) -> MessagePage:
    """MB."""
    erased = [fields.number("Erased") for _ in range(fields.count("ErasedCount", 1))]
    messages: list[bytes | None] = [*fields.take(fields.count_to_end("Count", 1))]
    for index in erased:
        if not 0 <= index < len(messages):
            raise InvalidRequest("Erased", f"is {index}, and {len(messages)} messages are there")
        messages[index] = None
    return MessagePage(messages)


def installed(fields: Fields) -> Installed:
    """BR."""
    return Installed(fields.number("Items"), fields.number("Added"), fields.number("Messages"))
