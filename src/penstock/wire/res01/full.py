"""Commands that tell everything: what a client needs that gives its callers whole events and whole replies.

They do what their relatives without an F do. Their answers have what the seeds leave out: of an event its position,
recorded time and commit, of a commit where it lies, of a page where to read on, of an allocation until when it holds.
"""

from typing import Final

from penstock.model import (
    AcknowledgeQueue,
    Appended,
    Batch,
    Delivery,
    EventPage,
    FindPosition,
    Found,
    ReadAll,
    ReadEvent,
    ReadStream,
    ReleaseQueue,
    ResetQueue,
)
from penstock.wire.res01 import extensions
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, each, one, text_time, texts
from penstock.wire.res01.events import full_frames
from penstock.wire.res01.exchange import Compose, Frames
from penstock.wire.res01.fields import Fields

# --- commits --------------------------------------------------------------------------------------------------


def append(fields: Fields, _dialect: Dialect) -> Asked:
    """AF."""
    mark = extensions.producer_mark(fields)
    return (extensions.commit(fields, mark),), _COMMITTED


_COMMITTED: Final = one(Appended, lambda appended: [b"CF", *extensions.commit_told(appended)])

# --- reading --------------------------------------------------------------------------------------------------


def read_stream(fields: Fields, _dialect: Dialect) -> Asked:
    """QF."""
    context, stream = fields.text("Context"), fields.text("Stream")
    first, last = fields.number("FromVersion"), fields.number_or_none("MaxVersion")
    limit, backward = fields.number_or_none("Limit"), fields.flag("Backward")
    return (ReadStream(context, stream, first, last, limit, backward),), _PAGE


def read_event(fields: Fields, _dialect: Dialect) -> Asked:
    """GF."""
    return (ReadEvent(fields.text("Context"), fields.text("Stream"), fields.number("Sequence")),), _PAGE


def read_all(fields: Fields, _dialect: Dialect) -> Asked:
    """RF."""
    position, context, wanted = fields.number("Position"), fields.text_or_none("Context"), fields.text("Filter")
    limit, wait_ms = fields.number_or_none("Limit"), fields.wait_ms()
    types = tuple(fields.text("TypeKey") for _ in range(fields.count_to_end("TypeCount", 1)))
    return (ReadAll(position, context, wanted, types or None, limit, wait_ms),), _PAGE


def find_position(fields: Fields, _dialect: Dialect) -> Asked:
    """TP."""
    request = FindPosition(fields.text("Context"), fields.text("Filter"), fields.ticks("Time"))
    return (request,), one(Found, lambda found: [b"PT", *texts(found.position)])


# --- subscriptions and queues ---------------------------------------------------------------------------------


def fetch(fields: Fields, dialect: Dialect) -> Asked:
    """FF: what FW asks for."""
    requests, _ = extensions.fetch_waiting(fields, dialect)
    return requests, _BATCHES


def subscribe_queue(fields: Fields, dialect: Dialect) -> Asked:
    """SF: what SW asks for."""
    requests, _ = extensions.subscribe_queue_waiting(fields, dialect)
    return requests, _DELIVERY


def acknowledge(fields: Fields, _dialect: Dialect) -> Asked:
    """KF: what AW asks for, also of an allocation that is known by its first marker alone."""
    wait_ms, context = fields.wait_ms(), fields.text_or_none("Context")
    queue, subscriber = fields.text("QueueId"), fields.text("SubscriberId")
    first, last = fields.number("StartMarker"), fields.number_or_none("EndMarker")
    count, ttl_ms = fields.number("Count"), fields.number("AllocationTimeInMilliseconds")
    return (AcknowledgeQueue(context, queue, subscriber, first, last, count, ttl_ms, wait_ms),), _DELIVERY


def release_queue(fields: Fields, _dialect: Dialect) -> Asked:
    """RK."""
    queue, context, subscriber = fields.text("QueueId"), fields.text_or_none("Context"), fields.text("SubscriberId")
    first, last = fields.number("StartMarker"), fields.number("EndMarker")
    counts = fields.flag("Counts") if fields.left else True
    return (ReleaseQueue(context, queue, subscriber, first, last, counts),), extensions.queue_changed(queue)


def reset_queue(fields: Fields, _dialect: Dialect) -> Asked:
    """RT."""
    queue, context = fields.text("QueueId"), fields.text_or_none("Context")
    ticks = fields.ticks("ResetTo")
    position = fields.number_or_none("Position") if fields.left else None
    return (ResetQueue(context, queue, ticks, position),), extensions.queue_changed(queue)


# --- answers --------------------------------------------------------------------------------------------------


def _full(reply: EventPage | Batch | Delivery) -> Frames:
    """The count of a reply's events, and their frames."""
    if reply.encoded is not None:
        return [b"%d" % reply.encoded.count, *reply.encoded.content]
    return [b"%d" % len(reply.events), *full_frames(reply.events)]


def _page(page: EventPage) -> Frames:
    return [b"PF", *texts(page.next, page.end), *_full(page)]


def _batch(batch: Batch) -> Frames:
    return [b"BF", *texts(batch.subscription), *_full(batch)]


def _delivery(delivery: Delivery) -> Frames:
    head = (delivery.context, delivery.queue, delivery.subscriber, text_time(delivery.now))
    given = delivery.allocation
    held = (given.first, given.last, text_time(given.expires), given.deliveries) if given else (0, 0, None, 0)
    return [b"DF", *texts(*head, *held), *_full(delivery)]


_PAGE: Final[Compose] = one(EventPage, _page)
_BATCHES: Final[Compose] = each(Batch, _batch)
_DELIVERY: Final[Compose] = one(Delivery, _delivery)

FULL: Final[dict[bytes, Command]] = {
    b"AF": Command(append, b"CF"),
    b"QF": Command(read_stream, b"PF", full_frames),
    b"GF": Command(read_event, b"PF", full_frames),
    b"RF": Command(read_all, b"PF", full_frames),
    b"TP": Command(find_position, b"PT"),
    b"FF": Command(fetch, b"BF", full_frames),
    b"SF": Command(subscribe_queue, b"DF", full_frames),
    b"KF": Command(acknowledge, b"DF", full_frames),
    b"RK": Command(release_queue, b"QT"),
    b"RT": Command(reset_queue, b"QT"),
}
