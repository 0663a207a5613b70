"""What clients need beyond the seeds: further commands in the same envelope, in the text dialect only."""

from dataclasses import fields as fields_of
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import (
    Append,
    Appended,
    ContextPage,
    DeadLetterPage,
    Done,
    EventPage,
    GetStats,
    ListContexts,
    ListDeadLetters,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    ProducerMark,
    PutBack,
    QueuePage,
    QueueReceipt,
    ReadEvent,
    ReadRecords,
    RecordPage,
    Replayed,
    ReplayQueue,
    SetDeadLetterRule,
    StoreStats,
    StreamPage,
    SubscriptionPage,
    SubscriptionReceipt,
    Transact,
    Transacted,
)
from penstock.wire.res01 import commands
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, counted, event_frames, one, paged, text_time, texts
from penstock.wire.res01.exchange import Compose, Frames
from penstock.wire.res01.fields import EVENT_FRAMES, Fields
from penstock.wire.res01.scalars import swap_guid

# --- reading --------------------------------------------------------------------------------------------------


def read_event(fields: Fields, dialect: Dialect) -> Asked:
    """GE."""
    request = ReadEvent(fields.text("Context"), fields.text("Stream"), fields.number("Sequence"))

    def write(page: EventPage) -> Frames:
        return [b"GR", *event_frames(page, dialect)[1]]

    return (request,), one(EventPage, write)


def read_records(fields: Fields, _dialect: Dialect) -> Asked:
    """RA."""
    position, context, wanted = fields.number("Position"), fields.text_or_none("Context"), fields.text("Filter")

    def write(page: RecordPage) -> Frames:
        head = texts(page.store_id, page.timeline, page.next, page.end, len(page.records))
        return [b"RD", *head, *page.records]

    return (ReadRecords(position, context, wanted, fields.wait_ms()),), one(RecordPage, write)


# --- transactions ---------------------------------------------------------------------------------------------


def transact(fields: Fields, _dialect: Dialect) -> Asked:
    """TX."""
    mark = producer_mark(fields)
    commits = tuple(commit(fields) for _ in range(fields.count("CommitCount", 4)))
    receipts = tuple(_queue_receipt(fields) for _ in range(fields.count("AckCount", 5)))
    steps = tuple(
        SubscriptionReceipt(fields.number("SubscriptionId"), fields.ticks("LastEventTime"))
        for _ in range(fields.count_to_end("ProgressCount", 2))
    )

    def write(reply: Transacted) -> Frames:
        return [b"TR", *counted(map(commit_told, reply.commits))]

    return (Transact(commits, receipts, steps, mark),), one(Transacted, write)


def commit_told(done: Appended) -> Frames:
    """All that there is to tell of a commit that is on disk."""
    return [
        swap_guid(done.commit),
        b"%d" % done.position,
        b"%d" % done.sequence,
        b"%d" % done.count,
        b"%d" % done.repeated,
    ]


def producer_mark(fields: Fields) -> ProducerMark | None:
    """Producer and Number: both, or neither."""
    producer, number = fields.text("Producer"), fields.number_or_none("Number")
    if bool(producer) != (number is not None):
        missing = "Number" if producer else "Producer"
        raise InvalidRequest(missing, "is empty; a mark has both Producer and Number, and no mark has neither")
    return None if number is None else ProducerMark(producer, number)


def commit(fields: Fields, mark: ProducerMark | None = None) -> Append:
    """A commit with its events; more may follow."""
    context, stream, expected = fields.text("Context"), fields.text("Stream"), fields.number("ExpectedVersion")
    count = fields.count("EventCount", EVENT_FRAMES)
    if not count:
        raise InvalidRequest("EventCount", "is 0; a commit has at least one event")
    return Append(context, stream, fields.events(count), expected, mark)


def _queue_receipt(fields: Fields) -> QueueReceipt:
    context, queue, subscriber = fields.text("Context"), fields.text("QueueId"), fields.text("SubscriberId")
    return QueueReceipt(context, queue, subscriber, fields.number("StartMarker"), fields.number("EndMarker"))


# --- long polls -----------------------------------------------------------------------------------------------


def fetch_waiting(fields: Fields, dialect: Dialect) -> Asked:
    """FW."""
    return commands.fetch(fields, dialect, fields.wait_ms())


def subscribe_queue_waiting(fields: Fields, dialect: Dialect) -> Asked:
    """SW."""
    return commands.subscribe_queue(fields, dialect, fields.wait_ms())


def acknowledge_waiting(fields: Fields, dialect: Dialect) -> Asked:
    """AW."""
    wait_ms, context = fields.wait_ms(), fields.text_or_none("Context")
    return commands.acknowledge(fields, dialect, context, wait_ms)


# --- lists and counts -----------------------------------------------------------------------------------------


def list_contexts(fields: Fields, _dialect: Dialect) -> Asked:
    """LC."""
    request = ListContexts(fields.text("After"), fields.number_or_none("Limit"))

    def write(page: ContextPage) -> Frames:
        rows = (texts(c.name, c.events, c.commits, c.streams, c.bytes) for c in page.contexts)
        return paged(b"CL", page.end, rows)

    return (request,), one(ContextPage, write)


def list_streams(fields: Fields, _dialect: Dialect) -> Asked:
    """LS."""
    context, wanted, after = fields.text("Context"), fields.text("Filter"), fields.text("After")

    def write(page: StreamPage) -> Frames:
        return paged(b"SL", page.end, (texts(s.name, s.events) for s in page.streams))

    return (ListStreams(context, wanted, after, fields.number_or_none("Limit")),), one(StreamPage, write)


def list_queues(fields: Fields, _dialect: Dialect) -> Asked:
    """LQ."""
    request = ListQueues(fields.number_or_none("After") or 0, fields.number_or_none("Limit"))

    def write(page: QueuePage) -> Frames:
        rows = (
            texts(
                queue.id,
                queue.context,
                queue.name,
                queue.filter,
                queue.position,
                queue.behind,
                queue.allocated,
                queue.allocations,
                queue.deliveries_max,
                queue.dead,
                queue.dead_after,
            )
            for queue in page.queues
        )
        return paged(b"QL", page.end, rows)

    return (request,), one(QueuePage, write)


def list_subscriptions(fields: Fields, _dialect: Dialect) -> Asked:
    """LU."""
    request = ListSubscriptions(fields.number_or_none("After") or 0, fields.number_or_none("Limit"))

    def write(page: SubscriptionPage) -> Frames:
        rows = (
            texts(s.id, s.subscriber, s.context, s.filter, s.position, text_time(s.last_ticks))
            for s in page.subscriptions
        )
        return paged(b"UL", page.end, rows)

    return (request,), one(SubscriptionPage, write)


def get_stats(_fields: Fields, _dialect: Dialect) -> Asked:
    """GS."""

    def write(stats: StoreStats) -> Frames:
        names = (field.name for field in fields_of(stats))
        return [b"SG", *counted(texts(name, getattr(stats, name)) for name in names)]

    return (GetStats(),), one(StoreStats, write)


# --- dead letters ---------------------------------------------------------------------------------------------


def set_dead_letter_rule(fields: Fields, _dialect: Dialect) -> Asked:
    """DR."""
    queue, context = fields.text("QueueId"), fields.text_or_none("Context")
    return (SetDeadLetterRule(context, queue, fields.number_or_none("DeadAfter")),), queue_changed(queue)


def list_dead_letters(fields: Fields, _dialect: Dialect) -> Asked:
    """DL."""
    queue, context = fields.text("QueueId"), fields.text_or_none("Context")
    request = ListDeadLetters(context, queue, fields.number_or_none("After") or 0, fields.number_or_none("Limit"))

    def write(page: DeadLetterPage) -> Frames:
        rows = (
            texts(dead.first, dead.last, dead.count, dead.subscriber, dead.deliveries, text_time(dead.expires))
            for dead in page.dead
        )
        return paged(b"LD", page.end, rows)

    return (request,), one(DeadLetterPage, write)


def put_back(fields: Fields, _dialect: Dialect) -> Asked:
    """DP."""
    queue, context = fields.text("QueueId"), fields.text_or_none("Context")
    return (PutBack(context, queue, fields.number("StartMarker")),), queue_changed(queue)


def replay_queue(fields: Fields, _dialect: Dialect) -> Asked:
    """RP."""
    queue, context = fields.text("QueueId"), fields.text_or_none("Context")
    first, last, mark = fields.number("StartMarker"), fields.number("EndMarker"), producer_mark(fields)

    def write(done: Replayed) -> Frames:
        return [b"PR", *texts(done.events, done.left_out, done.waiting, done.is_full, done.repeated)]

    return (ReplayQueue(context, queue, first, last, mark),), one(Replayed, write)


def queue_changed(queue: str) -> Compose:
    """QT."""
    return one(Done, lambda _done: [b"QT", queue.encode()])


EXTENSIONS: Final[dict[bytes, Command]] = {
    b"GE": Command(read_event, b"GR"),
    b"RA": Command(read_records, b"RD"),
    b"TX": Command(transact, b"TR"),
    b"FW": Command(fetch_waiting, b"EF"),
    b"SW": Command(subscribe_queue_waiting, b"QE"),
    b"AW": Command(acknowledge_waiting, b"QE"),
    b"LC": Command(list_contexts, b"CL"),
    b"LS": Command(list_streams, b"SL"),
    b"LQ": Command(list_queues, b"QL"),
    b"LU": Command(list_subscriptions, b"UL"),
    b"GS": Command(get_stats, b"SG"),
    b"DR": Command(set_dead_letter_rule, b"QT"),
    b"DL": Command(list_dead_letters, b"LD"),
    b"DP": Command(put_back, b"QT"),
    b"RP": Command(replay_queue, b"PR"),
}
