"""The live tail: new events as they come, for all tabs of a browser on one connection.

The tabs agree among themselves which one of them has the connection (`static/tail.js`); its URL has the filters of all.
What a connection gets does not depend on how much is appended: a page of rows in each tick, and when it falls behind,
the number of positions that it skips.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from os.path import commonprefix
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.console.jobs import TailFilter, TailRows, last_rows
from penstock.console.visit import NUMBER_MAX, Refused, Visit
from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.errors import NotAuthenticated, PenstockError
from penstock.gates.api.call import CONNECTION, Attendance, ClientGone
from penstock.gates.api.followers import GIVEN_S, KEEP_ALIVE_S, RETRY_MS, SharedReads
from penstock.gates.api.media import EVENT_STREAM_TYPE
from penstock.gates.http import known_sender
from penstock.model import EventFilter, ReadAll

TAILS_MAX: Final = 64
TAILS_PER_PRINCIPAL_MAX: Final = 8
"""Connections: one for each browser."""
FILTERS_MAX: Final = 8
"""Filters of one connection: tabs with different ones."""
FILTER_CHARACTERS_MAX: Final = 2000
TYPES_MAX: Final = 20
ROWS: Final = 50
"""Events that are on the page when it comes."""
PAGE_EVENTS: Final = 50
"""Events in one tick."""
BEHIND_MAX: Final = 1000
"""Positions. A connection that is further behind goes on near the end, and says how many it skips."""
CHECK_S: Final = 1.0
"""How soon a connection notices that its session has ended."""


class Tails:
    """All connections of live tails."""

    def __init__(self, engine: Engine) -> None:
        self.reads = SharedReads(engine)
        self._open = Counter[str]()
        """By principal."""

    def enter(self, principal: str) -> None:
        """Count one more until `leave`. Raises Refused."""
        whose = f"{principal} has {TAILS_PER_PRINCIPAL_MAX} live tails open"
        for count, most, sentence in (
            (self._open[principal], TAILS_PER_PRINCIPAL_MAX, whose),
            (self._open.total(), TAILS_MAX, f"the server has {TAILS_MAX} live tails open"),
        ):
            if count >= most:
                advice = "Each browser has one. Close some in other browsers; this page retries every few seconds."
                raise Refused(503, f"{sentence}, and there can be no more", advice, {"retry-after": "10"})
        self._open[principal] += 1

    def leave(self, principal: str) -> None:
        self._open[principal] -= 1
        if not self._open[principal]:
            del self._open[principal]


class _EventStream(StreamingResponse):
    """Sends pieces until they end or the client leaves, then closes."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        super().__init__(pieces, 200, {"x-accel-buffering": "no"}, EVENT_STREAM_TYPE)
        self._pieces = pieces
        self._close = close

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await self.stream_response(send)
        finally:
            await self._pieces.aclose()
            self._close()


async def page(visit: Visit) -> Mapping[str, Any]:
    """The last events; scripts add what comes."""
    one = _filter(visit.one("context"), visit.one("prefix"), visit.one("types").split(","))
    head = visit.engine.head
    request = _request((one,))
    wanted = EventFilter(request.context, request.filter, request.types)
    rows = await visit.run(request, last_rows, wanted, head, ROWS)
    return {
        "one": one,
        "rows": rows[::-1],
        "filter": json.dumps(one._asdict(), ensure_ascii=False),
        "last": f"{visit.console.tails.reads.begin}{head}",
        # Tabs of different sessions do not share a connection.
        "scope": visit.csrf[:16],
    }


async def events(visit: Visit) -> Response:
    """New events as server-sent events, from now on or behind the event of an id."""
    if visit.http.method != "GET":
        raise Refused(405, "a live tail is only for GET", headers={"allow": "GET"})
    filters = tuple(dict.fromkeys(map(_parsed, visit.query.get("filter", ["{}"]))))
    if len(filters) > FILTERS_MAX:
        raise Refused(400, f"these are {len(filters)} filters; a live tail takes up to {FILTERS_MAX}")
    tails, engine, principal = visit.console.tails, visit.engine, visit.login.principal.name
    engine.permitted(visit.login.principal, _request(filters))
    position = _position(visit, visit.http.headers.get("last-event-id") or visit.one("after"))
    tails.enter(principal)
    try:
        attendance = Attendance(engine.access, lambda ended: _sender(visit, ended), lambda: _gone(visit.http))
    except BaseException:
        tails.leave(principal)
        raise

    def close() -> None:
        attendance.close()
        tails.leave(principal)

    return _EventStream(_followed(visit, attendance, filters, position), close)


async def _followed(
    visit: Visit, attendance: Attendance, filters: tuple[TailFilter, ...], position: int
) -> AsyncGenerator[bytes, None]:
    engine, reads, loop = visit.engine, visit.console.tails.reads, asyncio.get_running_loop()
    present, budget = TailRows(reads.begin, filters), engine.budget
    connection, is_next, told = visit.http.scope["state"][CONNECTION], False, loop.time()
    try:
        yield b"retry: %d\nevent: open\ndata: \n\n" % RETRY_MS
        while True:
            if (skipped := engine.head + 1 - position - BEHIND_MAX) > 0:
                skipped += BEHIND_MAX - PAGE_EVENTS
                position += skipped
                yield f"id: {reads.begin}{position - 1}\nevent: skipped\ndata: {skipped}\n\n".encode()
            connection.give_time(GIVEN_S)
            request = _request(filters, position, engine.settings.poll_wait_ms_max)
            read = reads.join(attendance.login, request, is_next, present)
            try:
                while not await attendance.wait(read.work, CHECK_S):
                    # A session with an open tail is not idle.
                    if visit.is_session and visit.console.sessions.find(visit.id) is None:
                        raise NotAuthenticated("the session has ended")
                    if loop.time() - told > KEEP_ALIVE_S:
                        told = loop.time()
                        connection.give_time(GIVEN_S)
                        yield b": nothing new\n\n"
                shown = read.work.result()
            finally:
                reads.leave(read)
            if visit.is_session and visit.console.sessions.find(visit.id) is None:
                raise NotAuthenticated("the session has ended")
            # In a tick no more than a page, also of what is there already.
            position, is_next = shown.next, True
            if not shown.content:
                # It need not look again at what it may pass over.
                if loop.time() - told > CHECK_S:
                    told = loop.time()
                    yield f"id: {reads.begin}{position - 1}\nevent: at\ndata: \n\n".encode()
                continue
            if not budget.take(len(shown.content)):
                return
            try:
                told = loop.time()
                yield shown.content
            finally:
                budget.give_back(len(shown.content))
    except NotAuthenticated:
        with suppress(ClientGone):
            yield b"event: over\ndata: \n\n"
    except (PenstockError, ClientGone):
        # The browser comes again with the id of the last event, if it is still there.
        return


def _sender(visit: Visit, ended: Callable[[Login], None]) -> Login:
    """The sender. `ended` is called when the login ends."""
    session = visit.console.sessions.find(visit.id) if visit.is_session else None
    if session is not None:
        return visit.engine.access.by_credential(session.credential, ended)
    return known_sender(visit.engine, visit.http, ended)


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _position(visit: Visit, id: str) -> int:
    """Where a connection begins: behind the event of an id, or at what comes next."""
    begin, head = visit.console.tails.reads.begin, visit.engine.head
    digits = id.removeprefix(begin)
    # An id of another history, as after a restore, says nothing here.
    is_ours = id.startswith(begin) and digits.isascii() and digits.isdecimal() and len(digits) < 20
    return min(int(digits), head, NUMBER_MAX) + 1 if is_ours else head + 1


def _parsed(text: str) -> TailFilter:
    """The filter that a tab sends. Raises Refused."""
    try:
        if len(text) > FILTER_CHARACTERS_MAX:
            raise ValueError
        given = json.loads(text)
        found = TailFilter(given.get("context", ""), given.get("prefix", ""), tuple(given.get("types", ())))
        if not all(isinstance(one, str) for one in (found.context, found.prefix, *found.types)):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refused(400, f"{text[:60]!r} is no filter of a live tail") from None
    return _filter(found.context, found.prefix, found.types)


def _filter(context: str, prefix: str, types: Any) -> TailFilter:
    kinds = tuple(sorted({one.strip() for one in types if one.strip()}))
    if len(kinds) > TYPES_MAX or len(context) + len(prefix) + sum(map(len, kinds)) > FILTER_CHARACTERS_MAX // 2:
        raise Refused(400, f"a live tail takes up to {TYPES_MAX} types, and short names", "Take fewer.")
    return TailFilter(context, prefix, kinds)


def _request(filters: tuple[TailFilter, ...], position: int = 1, wait_ms: int = 0) -> ReadAll:
    """Reads what any of the filters wants, and perhaps more."""
    contexts = {one.context for one in filters}
    context = contexts.pop() or None if len(contexts) == 1 else None
    prefix = commonprefix([one.prefix for one in filters])  # noqa: RUF071 - of letters; names are no paths
    types = sorted({kind for one in filters for kind in one.types})
    wants_all = not all(one.types for one in filters)
    return ReadAll(position, context, prefix, None if wants_all else tuple(types), PAGE_EVENTS, wait_ms)
