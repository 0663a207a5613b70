"""Events in and out: appends to streams, pages of streams and of the history, and followers."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import xxhash

from penstock.errors import InvalidRequest, StoreChanged
from penstock.event_json import compact_json
from penstock.gates.api.call import ENGINE_S_MAX, Answer, Call
from penstock.gates.api.followers import followed
from penstock.gates.api.incoming import BATCH, BINARY, STRUCTURED, Parcel, kind_of, parcel_job, parcel_of
from penstock.gates.api.media import EVENT_STREAM_TYPE, JSON_TYPE, PAGES, Presented, negotiated
from penstock.gates.api.problems import Problem
from penstock.model import ANY, NEW, Append, Appended, EventPage, FindPosition, Found, ReadAll, ReadStream
from penstock.model.times import ticks_of_text

INLINE_BYTES_MAX: Final = 16 << 10
"""Bodies that are parsed on the loop, in less than a millisecond. Workers parse larger ones."""
NUMBER_MAX: Final = (1 << 63) - 1
STREAMS: Final = "/v1/streams"
EVENTS: Final = "/v1/events"
END: Final = "end"
"""As the beginning of a read: after all events that there are."""


# --- in -------------------------------------------------------------------------------------------------------


async def append(call: Call) -> Answer:
    """One commit: all events of the body or none."""
    kind = kind_of(call.headers)
    if kind not in (JSON_TYPE, STRUCTURED, BATCH, BINARY):
        known = f"{JSON_TYPE}, {STRUCTURED}, {BATCH}, or a CloudEvent in headers"
        raise Problem(415, f"a body of type {kind[:80] or 'none'} is not known here; send {known}", accept=JSON_TYPE)
    context, stream, expected = call.names["context"], call.names["stream"], expected_of(call)
    headers = dict(call.headers)
    asked = (kind, headers, call.body, context, stream, headers.get("idempotency-key"))
    if len(call.body) <= INLINE_BYTES_MAX:
        parcel = parcel_of(*asked)
    else:
        parcel = await call.engine.pool.run(parcel_job, *asked)
    return await appended(call, context, stream, parcel, expected)


async def appended(call: Call, context: str, stream: str, parcel: Parcel, expected: int = ANY) -> Answer:
    done = await call.execute(Append(context, stream, parcel.columns, expected, keys=parcel.keys))
    assert isinstance(done, Appended)
    document = {
        "context": context,
        "stream": stream,
        "position": done.position,
        "version": done.sequence,
        "events": done.count,
    }
    place = _link(STREAMS, [("context", context), ("stream", stream), ("from", done.sequence), ("limit", done.count)])
    headers = {"location": place, **({"idempotent-replayed": "true"} if done.repeated else {})}
    return Answer(compact_json("answer", document).encode() + b"\n", 201, headers=headers)


def expected_of(call: Call) -> int:
    """The sequence that the first event must get."""
    given = call.headers.get("expected-version", "any").strip().lower()
    if given in ("any", "new"):
        return ANY if given == "any" else NEW
    return number_of("Expected-Version", given, "new, any, or the version that the first event gets: ")


def number_of(name: str, text: str, otherwise: str = "") -> int:
    """A number from 1 on. Raises InvalidRequest."""
    if re.fullmatch(r"[0-9]{1,19}", text) and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    raise InvalidRequest(name, f"is {text[:40]!r}; it must be {otherwise}a number from 1 to {NUMBER_MAX}")


# --- out ------------------------------------------------------------------------------------------------------


async def read_stream(call: Call) -> Answer:
    context, stream = call.names["context"], call.names["stream"]
    media, limit, types = _media(call, tuple(PAGES)), _limit(call), _types(call)
    direction = call.one("direction") or "forward"
    if direction not in ("forward", "backward"):
        raise InvalidRequest("direction", f"is {direction[:40]!r}; it must be forward or backward")
    backward, given = direction == "backward", call.one("from")
    first = number_of("from", given) if given is not None else 0 if backward else 1
    to = call.one("to")
    last = None if to is None else number_of("to", to)
    page = await call.execute(ReadStream(context, stream, first, last, limit, backward, types or None), PAGES[media])
    assert isinstance(page, EventPage)
    assert page.encoded is not None
    shown: Presented = page.encoded.content
    query: list[tuple[str, Any]] = [("context", context), ("stream", stream), *(("type", kind) for kind in types)]
    query += [] if limit is None else [("limit", limit)]
    bound: list[tuple[str, Any]] = [] if last is None else [("to", last)]
    links = {}
    if page.next >= 1 and not (page.end and (backward or (last is not None and page.next > last))):
        links["next"] = _link(STREAMS, [*query, ("from", page.next), ("direction", direction), *bound])
    if page.encoded.count and (backward or shown.sequences[0] > 1):
        other, start = ("forward", shown.sequences[0] + 1) if backward else ("backward", shown.sequences[0] - 1)
        links["prev"] = _link(STREAMS, [*query, ("from", start), ("direction", other)])
    # Later events do not change a page that has events behind it, or that begins with a known event.
    is_closed = 0 < shown.sequences[0] == first if backward else not page.end
    return _page(call, media, page, links, is_closed)


async def read_events(call: Call) -> Answer:
    media = _media(call, (*PAGES, EVENT_STREAM_TYPE))
    context, prefix, limit, types = call.one("context"), call.one("prefix") or "", _limit(call), _types(call)
    wait_ms = _wait_ms(call)
    position = await _start(call, context, prefix)

    def request(position: int, wait_ms: int = wait_ms) -> ReadAll:
        return ReadAll(position, context, prefix, tuple(types) or None, limit, wait_ms)

    if media == EVENT_STREAM_TYPE:
        settings = call.engine.settings
        # Refuse it now, and not in the middle of an answer.
        call.engine.permitted(call.login.principal, request(position))
        attendance = call.attend()
        pieces = followed(call, attendance, lambda at: request(at, settings.poll_wait_ms_max), position)
        return Answer(media=media, headers={"cache-control": "no-store", "x-accel-buffering": "no"}, pieces=pieces)
    if wait_ms:
        attendance = call.attend()
        call.connection.give_time(wait_ms / 1000 + ENGINE_S_MAX)
        page = await attendance.result(asyncio.ensure_future(call.execute(request(position), PAGES[media])))
    else:
        page = await call.execute(request(position), PAGES[media])
    assert isinstance(page, EventPage)
    assert page.encoded is not None
    query: list[tuple[str, Any]] = [] if context is None else [("context", context)]
    query += [("prefix", prefix)] if prefix else []
    query += [("type", kind) for kind in types]
    query += [] if limit is None else [("limit", limit)]
    query += [("wait", call.one("wait"))] if wait_ms else []
    return _page(call, media, page, {"next": _link(EVENTS, [*query, ("from", page.next)])}, not page.end)


async def _start(call: Call, context: str | None, prefix: str) -> int:
    """The position at which a read begins."""
    last, given = call.headers.get("last-event-id"), call.one("from")
    if last:
        return _after(call, last)
    if given is None:
        return 1
    head = call.engine.head
    if given == END:
        return head + 1
    if re.fullmatch("[0-9]+", given):
        return number_of("from", given)
    try:
        ticks = ticks_of_text(given)
    except ValueError:
        reason = f"is {given[:40]!r}; it must be a position, a time such as 2026-11-15T06:00:00Z, or {END}"
        raise InvalidRequest("from", reason) from None
    if context is None:
        raise InvalidRequest("from", "is a time, and times are found in one context only; say which")
    found = await call.execute(FindPosition(context, prefix, ticks))
    assert isinstance(found, Found)
    return head + 1 if found.position is None else found.position


def _after(call: Call, last: str) -> int:
    """The position after the one that an event's id ends with. Raises StoreChanged for one of another history."""
    begin, _, number = last.rpartition(".")
    ours = call.api.reads.begin
    if begin and f"{begin}." != ours:
        raise StoreChanged(begin[:100], ours[:-1])
    return (number_of("Last-Event-ID", number) if number.strip("0") else 0) + 1


def _media(call: Call, offered: Sequence[str]) -> str:
    media = negotiated(call.headers.get("accept"), offered)
    if media is None:
        raise Problem(406, f"none of what this request accepts is there; there are {', '.join(offered)}")
    return media


def _limit(call: Call) -> int | None:
    given = call.one("limit")
    return None if given is None else number_of("limit", given)


def _types(call: Call) -> list[str]:
    return sorted(set(call.query.get("type", ())))


def _wait_ms(call: Call) -> int:
    given = call.one("wait")
    if given is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", given):
        raise InvalidRequest("wait", f"is {given[:40]!r}; it must be seconds, such as 30 or 0.5")
    return min(round(float(given) * 1000), call.engine.settings.poll_wait_ms_max)


def _link(path: str, query: Sequence[tuple[str, Any]]) -> str:
    return f"{path}?{urlencode(query)}"


def _page(call: Call, media: str, page: EventPage, links: dict[str, str], is_closed: bool) -> Answer:
    """A page as an answer. A closed one has an ETag, which changes only when events are erased."""
    assert page.encoded is not None
    content: bytes = page.encoded.content.content
    if media == JSON_TYPE:
        rest = {"end": page.end, "next": links.get("next"), "prev": links.get("prev")}
        content = b'{"events":[%s],%s\n' % (content, compact_json("page", rest)[1:].encode())
    headers = {"vary": "accept, authorization", "penstock-end": str(page.end).lower()}
    if links:
        headers["link"] = ", ".join(f'<{link}>; rel="{name}"' for name, link in links.items())
    if is_closed:
        tag = f'"{xxhash.xxh3_128_hexdigest(content)}"'
        # Clients may keep the page but ask each time whether it still holds: rights change, and events are erased.
        headers |= {"etag": tag, "cache-control": "private, no-cache"}
        wanted = call.headers.get("if-none-match", "")
        if wanted.strip() == "*" or tag in re.findall(r'"[^"]*"', wanted):
            return Answer(status=304, media=None, headers=headers)
    return Answer(content, media=media, headers=headers)
