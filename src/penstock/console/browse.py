"""Pages to look through what is stored: contexts, streams, the events of one, the history, and one event."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.responses import RedirectResponse, Response, StreamingResponse

from penstock.console import bodies
from penstock.console.bodies import Row, Shown
from penstock.console.visit import NUMBER_MAX, Refused, Visit, number, ticks, url
from penstock.errors import EventNotFound
from penstock.model import ContextInfo, EventPage, ListContexts, ListPage, ListStreams, ReadAll, ReadEvent, ReadStream
from penstock.model.times import EXAMPLE

NAMES: Final = 100
EVENTS: Final = 50
"""Names, and events, in a page."""
STEPS_MAX: Final = 10
"""How often a read goes on that has found nothing yet, after a second each time."""
WIDENING: Final = 8
"""How many times further back a page of the history looks when it has found nothing."""
PIECE_BYTES: Final = 256 << 10


async def contexts(visit: Visit) -> Mapping[str, Any]:
    after = visit.one("after")
    page = await visit.ask(ListContexts(after, NAMES), ListPage)
    items: list[ContextInfo] = page.items
    return {"contexts": items, "after": after, "next": None if page.end else items[-1].name}


async def streams(visit: Visit) -> Mapping[str, Any]:
    context, prefix, after = visit.one("context"), visit.one("prefix"), visit.one("after")
    page = await visit.ask(ListStreams(context, prefix, after, NAMES), ListPage)
    return {
        "title": context,
        "context": context,
        "prefix": prefix,
        "after": after,
        "streams": page.items,
        "next": None if page.end else page.items[-1].name,
    }


async def stream(visit: Visit) -> Mapping[str, Any] | Response:
    """The newest events first, or from a version on; a version, position or time leads to the event there."""
    context, name = visit.one("context"), visit.one("stream")
    if visit.one("at"):
        found = await _first_in_stream(visit, context, name)
        return RedirectResponse(url("/browse/event", context=context, stream=name, version=found), 303)
    start, is_forward = visit.number("from", 0), visit.one("order") == "oldest"
    rows, last = await asyncio.gather(
        _rows(visit, ReadStream(context, name, start or is_forward, None, EVENTS, not is_forward)),
        _rows(visit, ReadStream(context, name, 0, None, 1, True)),
    )
    newest = last[0].sequence if last else 0
    versions = [row.sequence for row in rows]
    return {
        "title": name,
        "context": context,
        "stream": name,
        "rows": rows[::-1] if is_forward else rows,
        "newest": newest,
        "older": min(versions) - 1 if rows and min(versions) > 1 else None,
        "newer": max(versions) + 1 if rows and max(versions) < newest else None,
    }


async def history(visit: Visit) -> Mapping[str, Any] | Response:
    """The events of all streams, newest first: from a position on, or those before one."""
    if visit.one("at"):
        return RedirectResponse(url("/browse/event", position=await _first_in_history(visit)), 303)
    head, start = visit.engine.head, visit.number("from", 0)
    if start:
        rows = await _rows(visit, ReadAll(start, limit=EVENTS))
    else:
        rows = await _rows_before(visit, visit.number("before", head + 1))
    return {
        "rows": rows[::-1],
        "head": head,
        "older": rows[0].position if rows and rows[0].position > 1 else None,
        "newer": rows[-1].position + 1 if rows and rows[-1].position < head else None,
    }


async def event(visit: Visit) -> Mapping[str, Any]:
    """One event, by context, stream and version or by position."""
    form = visit.one("as")
    if visit.one("position"):
        shown = await _event_at(visit, visit.number("position", 0), form)
    else:
        request = ReadEvent(visit.one("context"), visit.one("stream"), visit.number("version", 0))
        (shown,) = await _presented(visit, request, bodies.shown_as(form))
    row = shown.row
    in_stream = (row.context, row.stream)
    before, after, next = await asyncio.gather(
        _rows(visit, ReadStream(*in_stream, row.sequence - 1, None, 1, True) if row.sequence > 1 else None),
        _rows(visit, ReadStream(*in_stream, row.sequence + 1, None, 1)),
        _rows(visit, ReadAll(row.position + 1, limit=1)),
    )
    earlier = await _rows_before(visit, row.position, 1)
    return {
        "title": f"{row.type} {row.sequence}",
        "shown": shown,
        "event": row,
        "previous_in_stream": before[0] if before else None,
        "next_in_stream": after[0] if after else None,
        "previous": earlier[-1] if earlier else None,
        "next": next[0] if next else None,
    }


async def body(visit: Visit) -> Response:
    """The body of an event as a download, whatever is in it."""
    request = ReadEvent(visit.one("context"), visit.one("stream"), visit.number("version", 0))
    (content,) = await _presented(visit, request, bodies.whole)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]

    headers = {
        "content-disposition": f'attachment; filename="event-{request.sequence}.bin"',
        "content-length": str(len(content)),
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return StreamingResponse(pieces(), 200, headers, "application/octet-stream")


# --- reads ----------------------------------------------------------------------------------------------------


async def _presented(visit: Visit, request: Any, present: Callable[..., Any]) -> Any:
    page = await visit.ask(request, EventPage, present)
    assert page.encoded is not None
    return page.encoded.content


async def _page(visit: Visit, request: ReadStream | ReadAll) -> tuple[list[Row], int]:
    """The events of a page, and where it goes on. A long search is done in steps."""
    page = await visit.ask(request, EventPage, bodies.rows)
    for _ in range(STEPS_MAX):
        assert page.encoded is not None
        if page.encoded.count or page.end or isinstance(request, ReadStream):
            break
        request = replace(request, position=page.next)
        page = await visit.ask(request, EventPage, bodies.rows)
    assert page.encoded is not None
    return page.encoded.content, NUMBER_MAX if page.end else page.next


async def _rows(visit: Visit, request: ReadStream | ReadAll | None) -> list[Row]:
    """The events of a page; none without a request."""
    return [] if request is None else (await _page(visit, request))[0]


async def _rows_before(visit: Visit, before: int, limit: int = EVENTS) -> list[Row]:
    """The last events before a position, or some of the last without a gap.

    The history is read forward only. So this guesses where to begin, looks further back while it finds nothing, as it
    happens to a principal that sees few events, and begins later while a page does not reach the position.
    """

    async def seen(start: int) -> tuple[list[Row], bool]:
        rows, next = await _page(visit, ReadAll(start, limit=limit))
        return [row for row in rows if row.position < before], next >= before

    low, high, span = max(1, before - limit), before, limit
    found, is_whole = await seen(low)
    while not found and low > 1:
        span *= WIDENING
        low, high = max(1, before - span), low
        found, is_whole = await seen(low)
    while not is_whole and high - low > 1:
        middle = (low + high) // 2
        later, reaches = await seen(middle)
        if later:
            low, found, is_whole = middle, later, reaches
        else:
            high = middle
    return found


async def _event_at(visit: Visit, position: int, form: str) -> Shown:
    found = await _presented(visit, ReadAll(position, limit=1), bodies.shown_as(form)) if position else []
    if not found or found[0].row.position != position:
        raise Refused(
            404,
            f"there is no event at position {position:,} that you may see",
            f"It may be erased, not written yet (the last position is {visit.engine.head:,}), or not visible to you.",
        )
    shown: Shown = found[0]
    return shown


# --- jumps ----------------------------------------------------------------------------------------------------


async def _first_in_stream(visit: Visit, context: str, stream: str) -> int:
    """The version that a form asks for: itself, or the first one at or after a position or time."""
    kind, text = visit.one("by", "version"), visit.one("at")
    if kind == "version":
        return number("the version", text)
    last = await _rows(visit, ReadStream(context, stream, 0, None, 1, True))
    if not last:
        raise EventNotFound(context, stream, 1)
    is_there = _is_reached(kind, text)

    async def read(version: int) -> Row | None:
        found = await _rows(visit, ReadStream(context, stream, version, None, 1))
        return found[0] if found else None

    found = await _first(read, 1, last[0].sequence, is_there, lambda row: row.sequence)
    return found.sequence


async def _first_in_history(visit: Visit) -> int:
    kind, text = visit.one("by", "position"), visit.one("at")
    if kind == "position":
        return number("the position", text)
    is_there = _is_reached(kind, text)

    async def read(position: int) -> Row | None:
        found = await _rows(visit, ReadAll(position, limit=1))
        return found[0] if found else None

    found = await _first(read, 1, visit.engine.head, is_there, lambda row: row.position)
    return found.position


def _is_reached(kind: str, text: str) -> Callable[[Row], bool]:
    if kind == "position":
        position = number("the position", text)
        return lambda row: row.position >= position
    since = ticks(text, f"Write it as in {EXAMPLE}; it is the time of the server.")
    return lambda row: row.recorded >= since


async def _first(
    read: Callable[[int], Awaitable[Row | None]],
    low: int,
    high: int,
    is_there: Callable[[Row], bool],
    place: Callable[[Row], int],
) -> Row:
    """The first event for which something holds that holds for all later ones, too: by bisection, with gaps."""
    best: Row | None = None
    high = min(high, NUMBER_MAX)
    while low <= high:
        middle = (low + high) // 2
        row = await read(middle)
        if row is None or is_there(row):
            best = row or best
            high = middle - 1
        else:
            low = place(row) + 1
    if best is None:
        raise Refused(404, "there is no event so late", "The newest event is earlier than that.")
    return best
