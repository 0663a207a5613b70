"""The commands of the seeds: what each asks for, in the text dialect and in the binary one.

A decoder takes a message's fields in their order and gives the requests it makes and how they are answered.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.model import (
    ANY,
    NEW,
    AcknowledgeQueue,
    Append,
    Done,
    FetchSubscription,
    ProgressSubscription,
    ReadStream,
    RegisterSubscriptions,
    Request,
    ResetQueue,
    SetSubscription,
    SubscribeQueue,
    SubscriptionStart,
)
from penstock.wire.res01 import encoding
from penstock.wire.res01.codes import CONFLICT
from penstock.wire.res01.encoding import Dialect
from penstock.wire.res01.exchange import Compose, Presenter, refusal_payload
from penstock.wire.res01.fields import EVENT_FRAMES, Fields
from penstock.wire.res01.scalars import GUID_BYTES

SUBSCRIPTIONS_MAX: Final = 1000
"""Subscriptions that one message may fetch, progress or set."""
QUEUE_FRAMES: Final = 7
"""Frames of SQ without the UtcNow that may lead it."""

Asked = tuple[tuple[Request, ...], Compose]


class Command(NamedTuple):
    """A command: how its fields are read, what answers it when it succeeds, and how a worker presents what it read.

    Without `present`, events look as the dialect has them.
    """

    decode: Callable[[Fields, Dialect], Asked]
    answer: bytes
    present: Presenter | None = None


# --- commits and streams --------------------------------------------------------------------------------------


def append(fields: Fields, dialect: Dialect) -> Asked:
    """AC."""
    context, stream, expected = fields.text("Context"), fields.text("Stream"), fields.number("ExpectedVersion")
    count = fields.count_to_end("EventCount", EVENT_FRAMES)
    if not count:
        raise InvalidRequest("EventCount", "is 0; a commit has at least one event")
    return (Append(context, stream, fields.events(count), expected),), encoding.commit_answer(dialect)


def append_binary(fields: Fields, dialect: Dialect) -> Asked:
    """AC as the original has it: nothing to commit is fine, and a version that cannot be is a conflict."""
    context, stream, expected = fields.text("Context"), fields.text("Stream"), fields.number("ExpectedVersion")
    count = fields.count_to_end("EventCount", EVENT_FRAMES)
    events = fields.events(count)
    if not count:
        return (), encoding.always([b"CR", bytes(GUID_BYTES)])
    if expected < NEW and expected != ANY:
        sentence = f"expected version {expected} of stream {stream} in context {context}, which no stream can have"
        return (), encoding.always(refusal_payload(CONFLICT, f"{sentence}; nothing was written"))
    return (Append(context, stream, events, expected),), encoding.commit_answer(dialect)


def read_stream(fields: Fields, dialect: Dialect) -> Asked:
    """QS."""
    context, stream = fields.text("Context"), fields.text("Stream")
    first, last = fields.number("FromVersion"), fields.number_or_none("MaxVersion")
    return (ReadStream(context, stream, first, last),), encoding.stream_page(dialect)


# --- subscriptions --------------------------------------------------------------------------------------------


def register(fields: Fields, _dialect: Dialect) -> Asked:
    """RS."""
    subscriber = fields.text("SubscriberId")
    count = fields.count_to_end("Count", 3)
    starts = tuple(
        SubscriptionStart(fields.text("Context"), fields.text("Filter"), fields.ticks("StartTime"))
        for _ in range(count)
    )
    return (RegisterSubscriptions(subscriber, starts),), encoding.registered()


def fetch(fields: Fields, dialect: Dialect, wait_ms: int = 0) -> Asked:
    """FE."""
    count = fields.count_to_end("Count", 2, SUBSCRIPTIONS_MAX)
    if not count:
        # One answer for each subscription would be none at all, and the client would wait for ever.
        raise InvalidRequest("Count", "is 0; a fetch names at least one subscription")
    fetches = tuple(
        FetchSubscription(fields.number("SubscriptionId"), fields.number("SuggestedCount"), wait_ms)
        for _ in range(count)
    )
    return fetches, encoding.batches(dialect)


def progress(fields: Fields, _dialect: Dialect) -> Asked:
    """PS."""
    count = fields.count_to_end("Count", 2, SUBSCRIPTIONS_MAX)
    steps = tuple(
        ProgressSubscription(fields.number("SubscriptionId"), fields.ticks("LastEventTime")) for _ in range(count)
    )
    return steps, encoding.progressed(step.subscription for step in steps)


def set_subscriptions(fields: Fields, _dialect: Dialect) -> Asked:
    """SS."""
    count = fields.count_to_end("Count", 4, SUBSCRIPTIONS_MAX)
    moves = tuple(
        SetSubscription(
            fields.text("SubscriberId"), fields.text("Context"), fields.text("Filter"), fields.ticks("SetTo")
        )
        for _ in range(count)
    )
    return moves, encoding.subscriptions_set()


# --- queues ---------------------------------------------------------------------------------------------------


def subscribe_queue(fields: Fields, dialect: Dialect, wait_ms: int = 0) -> Asked:
    """SQ, with or without the leading UtcNow."""
    fields.no_more_than(QUEUE_FRAMES + 1)
    if fields.left > QUEUE_FRAMES:
        fields.ticks("UtcNow")
    queue, subscriber = fields.text("QueueId"), fields.text("SubscriberId")
    context, wanted, start = fields.text("Context"), fields.text("Filter"), fields.ticks("StartTime")
    count, ttl_ms = fields.number("Count"), fields.number("AllocationTimeInMilliseconds")
    request = SubscribeQueue(context, queue, subscriber, wanted, start, count, ttl_ms, wait_ms)
    return (request,), encoding.delivered(dialect)


def acknowledge(fields: Fields, dialect: Dialect, context: str | None = None, wait_ms: int = 0) -> Asked:
    """AQ."""
    queue, subscriber = fields.text("QueueId"), fields.text("SubscriberId")
    first, last = fields.number("StartMarker"), fields.number("EndMarker")
    count, ttl_ms = fields.number("Count"), fields.number("AllocationTimeInMilliseconds")
    request = AcknowledgeQueue(context, queue, subscriber, first, last, count, ttl_ms, wait_ms)
    return (request,), encoding.delivered(dialect)


def reset_queue(fields: Fields, _dialect: Dialect) -> Asked:
    """RQ."""
    queue, ticks = fields.text("QueueId"), fields.ticks("ResetTo")
    fields.ticks("UtcNow")
    return (ResetQueue(None, queue, ticks),), encoding.one(Done, lambda _done: [b"QT", queue.encode()])


def subscribe_queue_binary(fields: Fields, dialect: Dialect) -> Asked:
    """SQ in the binary dialect."""
    context, queue, subscriber = fields.text("Context"), fields.text("QueueId"), fields.text("SubscriberId")
    wanted, start = fields.text("Filter"), fields.ticks("StartTime")
    count, ttl_ms = fields.number("Count"), fields.number("AllocationTimeInMilliseconds")
    request = SubscribeQueue(context, queue, subscriber, wanted, start, count, ttl_ms)
    return (request,), encoding.delivered_binary(dialect)


def acknowledge_binary(fields: Fields, dialect: Dialect) -> Asked:
    """AQ in the binary dialect: an allocation has one number, its first marker."""
    context, queue, subscriber = fields.text("Context"), fields.text("QueueId"), fields.text("SubscriberId")
    allocation = fields.number_or_none("AllocationId")
    count, ttl_ms = fields.number("Count"), fields.number("AllocationTimeInMilliseconds")
    first, last = (0, 0) if allocation is None else (allocation, None)
    request = AcknowledgeQueue(context, queue, subscriber, first, last, count, ttl_ms)
    return (request,), encoding.delivered_binary(dialect)


TEXT: Final[dict[bytes, Command]] = {
    b"AC": Command(append, b"CR"),
    b"QS": Command(read_stream, b"QR"),
    b"RS": Command(register, b"SR"),
    b"FE": Command(fetch, b"EF"),
    b"PS": Command(progress, b"SP"),
    b"SS": Command(set_subscriptions, b"ST"),
    b"SQ": Command(subscribe_queue, b"QE"),
    b"AQ": Command(acknowledge, b"QE"),
    b"RQ": Command(reset_queue, b"QT"),
}
BINARY: Final[dict[bytes, Command]] = {
    b"AC": Command(append_binary, b"CR"),
    b"QS": Command(read_stream, b"QR"),
    b"SQ": Command(subscribe_queue_binary, b"QE"),
    b"AQ": Command(acknowledge_binary, b"QE"),
}
