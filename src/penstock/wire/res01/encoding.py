"""From replies to the frames after an answer's envelope.

A reply that a worker has turned into frames already carries them as `encoded`; one from elsewhere carries events.
Both give the same answer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError, Unexpected
from penstock.model import Appended, Batch, Delivery, EventPage, Registered, Reply, stamp_of
from penstock.wire.res01.codes import WRITER_BUSY, code_of
from penstock.wire.res01.exchange import Compose, Frames, Presenter, Replies, error_payload, sentence_of
from penstock.wire.res01.scalars import GUID_BYTES, Scalars, swap_guid

LEGACY_WRITER_BUSY: Final = b"0x1"

R = TypeVar("R", bound=Reply)
Failed = Callable[[PenstockError], Frames]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way of writing messages. `legacy`: commits are answered with the older results."""

    scalars: Scalars
    present: Presenter
    legacy: bool = False


# --- how many answers there are -------------------------------------------------------------------------------


def always(payload: Frames) -> Compose:
    """An answer that needs no reply."""
    return lambda _replies: [payload]


def one(kind: type[R], write: Callable[[R], Frames], failed: Failed = error_payload) -> Compose:
    """One request, one answer."""
    return lambda replies: [_written(replies[0], kind, write, failed)]


def each(kind: type[R], write: Callable[[R], Frames]) -> Compose:
    """One answer for each request, an error in the place of those that failed."""
    return lambda replies: [_written(reply, kind, write, error_payload) for reply in replies]


def together(payload: Frames) -> Compose:
    """One answer for all requests: this, or the first error."""

    def compose(replies: Replies) -> list[Frames]:
        errors = (reply for reply in replies if isinstance(reply, PenstockError))
        return [next(map(error_payload, errors), payload)]

    return compose


def _written(reply: Reply | PenstockError, kind: type[R], write: Callable[[R], Frames], failed: Failed) -> Frames:
    if isinstance(reply, kind):
        return write(reply)
    if not isinstance(reply, PenstockError):
        reply = Unexpected(f"{type(reply).__name__} came where {kind.__name__} was wanted")
    return failed(reply)


# --- commits --------------------------------------------------------------------------------------------------


def commit_result(appended: Appended) -> Frames:
    """CR."""
    return [b"CR", swap_guid(appended.commit)]


def legacy_commit_result(appended: Appended) -> Frames:
    """CR as it was: Result, Error, CommitId."""
    return [b"CR", b"", b"", swap_guid(appended.commit)]


def legacy_commit_error(error: PenstockError) -> Frames:
    """CR as it was, of a commit that failed. Its reader makes a guid of CommitId before it looks at Result."""
    code = code_of(error)
    result = LEGACY_WRITER_BUSY if code == WRITER_BUSY else b"%d" % code
    return [b"CR", result, sentence_of(error).encode(errors="replace"), bytes(GUID_BYTES)]


_COMMITTED: Final = one(Appended, commit_result)
_LEGACY_COMMITTED: Final = one(Appended, legacy_commit_result, legacy_commit_error)


def commit_answer(dialect: Dialect) -> Compose:
    """CR, or what says that there is none."""
    return _LEGACY_COMMITTED if dialect.legacy else _COMMITTED


# --- events ---------------------------------------------------------------------------------------------------


def event_frames(reply: EventPage | Batch | Delivery, dialect: Dialect) -> tuple[int, Frames]:
    """How many events a reply has, and their frames."""
    if reply.encoded is not None:
        return reply.encoded.count, reply.encoded.content
    return len(reply.events), dialect.present(reply.events)


def stream_page(dialect: Dialect) -> Compose:
    """QR."""

    def write(page: EventPage) -> Frames:
        count, frames = event_frames(page, dialect)
        return [b"QR", dialect.scalars.write_int(count), *frames]

    return one(EventPage, write)


def batches(dialect: Dialect) -> Compose:
    """EF for each subscription."""

    def write(batch: Batch) -> Frames:
        count, frames = event_frames(batch, dialect)
        scalars = dialect.scalars
        return [b"EF", scalars.write_long(batch.subscription), scalars.write_int(count), *frames]

    return each(Batch, write)


# --- subscriptions --------------------------------------------------------------------------------------------


def registered() -> Compose:
    """SR."""
    return one(Registered, lambda reply: [b"SR", *counted([b"%d" % number] for number in reply.ids)])


def progressed(ids: Iterable[int]) -> Compose:
    """SP."""
    return together([b"SP", *counted([b"%d" % number] for number in ids)])


def subscriptions_set() -> Compose:
    """ST: an empty frame for each that was set, the reason for each that was not."""

    def result(reply: Reply | PenstockError) -> Frames:
        return [sentence_of(reply).encode(errors="replace") if isinstance(reply, PenstockError) else b""]

    return lambda replies: [[b"ST", *counted(map(result, replies))]]


# --- queues ---------------------------------------------------------------------------------------------------


def delivered(dialect: Dialect) -> Compose:
    """QE in the text dialect: the allocation is known by its first and last marker."""

    def write(delivery: Delivery) -> Frames:
        count, frames = event_frames(delivery, dialect)
        scalars, given = dialect.scalars, delivery.allocation
        return [
            b"QE",
            delivery.queue.encode(),
            delivery.subscriber.encode(),
            scalars.write_stamp(stamp_of(delivery.now)),
            scalars.write_long(given.first if given else 0),
            scalars.write_long(given.last if given else 0),
            scalars.write_int(count),
            *frames,
        ]

    return one(Delivery, write)


def delivered_binary(dialect: Dialect) -> Compose:
    """QE in the binary dialect: the allocation is known by its first marker alone."""

    def write(delivery: Delivery) -> Frames:
        count, frames = event_frames(delivery, dialect)
        scalars, given = dialect.scalars, delivery.allocation
        return [
            b"QE",
            delivery.context.encode(),
            delivery.queue.encode(),
            delivery.subscriber.encode(),
            scalars.write_stamp(stamp_of(delivery.now)),
            scalars.write_long(given.first) if given else b"",
            scalars.write_int(count),
            *frames,
        ]

    return one(Delivery, write)


# --- leaves ---------------------------------------------------------------------------------------------------


def counted(items: Iterable[Frames]) -> Frames:
    """Items of the text dialect behind their count."""
    listed = list(items)
    return [b"%d" % len(listed), *chain.from_iterable(listed)]


def paged(answer: bytes, end: bool, rows: Iterable[Frames]) -> Frames:
    """A page of a list: whether it is the last one, then its rows behind their count."""
    return [answer, *texts(end), *counted(rows)]


def texts(*values: Any) -> Frames:
    """Fields of the text dialect."""
    return [text(value) for value in values]


def text(value: str | bytes | int | None) -> bytes:
    """A field of the text dialect; a flag is 0 or 1, and null is empty."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else b"%d" % value


def text_time(ticks: int | None) -> bytes:
    """A time of the server's own in the text dialect: of kind UTC, and null is empty."""
    return b"" if ticks is None else b"%d" % stamp_of(ticks)
