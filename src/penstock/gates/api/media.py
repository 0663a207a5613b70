"""The forms of events in HTTP answers: JSON, JSON lines, CloudEvents, Arrow, and a stream of events for followers.

Workers call these functions, so an answer's events reach the server ready to send.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.cloudevents import BATCH_TYPE, NotACloudEvent, structured_json
from penstock.event_json import event_texts
from penstock.model import Event

JSON_TYPE: Final = "application/json"
LINES_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
EVENT_STREAM_TYPE: Final = "text/event-stream"

_RANGE = re.compile(r"\s*([^\s;,]+)\s*((?:;[^,]*)?)")
_QUALITY = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


class Presented(NamedTuple):
    """Events as a media type has them, and where the first and the last one are."""

    content: bytes
    positions: tuple[int, int]
    sequences: tuple[int, int]
    last_ticks: int = 0


def as_json(events: list[Event]) -> Presented:
    """Objects with commas between: what goes into an array."""
    return _presented(events, ",".join(event_texts(events)).encode())


def as_lines(events: list[Event]) -> Presented:
    return _presented(events, "".join(f"{text}\n" for text in event_texts(events)).encode())


def as_cloudevents(events: list[Event]) -> Presented:
    return _presented(events, f"[{','.join(map(_cloudevent, events))}]".encode())


def _cloudevent(event: Event) -> str:
    try:
        return structured_json(event)
    except NotACloudEvent as error:
        # One of a page: say which.
        raise NotACloudEvent(f"the event at position {event.position}: its {error.attribute}", error.reason) from None


def as_arrow(events: list[Event]) -> Presented:
    # They take long to import, and few requests need them.
    import pyarrow as pa  # noqa: PLC0415

    from penstock.history.columns import TABLE, batch_of, stored_columns, table_batch  # noqa: PLC0415

    batch = table_batch(batch_of(events, stored_columns(TABLE.names)), TABLE)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE) as writer:
        if events:
            writer.write_batch(batch)
    return _presented(events, sink.getvalue().to_pybytes())


def as_event_stream(begin: str, events: list[Event]) -> Presented:
    """Server-sent events. Their ids begin with what names the history, and end with the position."""
    texts = zip(events, event_texts(events), strict=True)
    content = "".join(f"id: {begin}{event.position}\ndata: {text}\n\n" for event, text in texts)
    return _presented(events, content.encode())


def _presented(events: Sequence[Event], content: bytes) -> Presented:
    if not events:
        return Presented(content, (0, 0), (0, 0))
    first, last = events[0], events[-1]
    return Presented(content, (first.position, last.position), (first.sequence, last.sequence), last.ticks)


PAGES: Final[dict[str, Callable[[list[Event]], Presented]]] = {
    JSON_TYPE: as_json,
    LINES_TYPE: as_lines,
    BATCH_TYPE: as_cloudevents,
    ARROW_TYPE: as_arrow,
}
"""The media types of pages. The first is for clients that accept any."""


def negotiated(accept: str | None, offered: Sequence[str]) -> str | None:
    """The offered media type that a client prefers; None if it accepts none of them."""
    if accept is None or not accept.strip():
        return offered[0]
    wishes: list[tuple[str, float]] = []
    for kind, parameters in _RANGE.findall(accept):
        quality = _QUALITY.search(parameters)
        wishes.append((kind.lower(), float(quality[1]) if quality else 1.0))
    best = max(offered, key=lambda kind: _quality(kind, wishes))
    return best if _quality(best, wishes) > 0 else None


def _quality(kind: str, wishes: Sequence[tuple[str, float]]) -> float:
    """How much a client wants a media type. A weight for the type itself comes before one for a wildcard."""
    ranges = dict(wishes)
    for name in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if name in ranges:
            return ranges[name]
    return 0.0
