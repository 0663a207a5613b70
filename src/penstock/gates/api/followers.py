"""Followers: streams of server-sent events that go on until the client leaves.

Followers that have seen all events wait for the same ones, so one read serves all followers with the same request. They
all get the same bytes. While events keep coming, all followers get them in pages, at the ticks of one clock, and not
event by event: a thousand small messages cost more than one large one, and would slow appends down.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.errors import PenstockError
from penstock.gates.api.call import Attendance, Call
from penstock.gates.api.media import Presented, as_event_stream
from penstock.model import EventPage, Principal, ReadAll

KEEP_ALIVE_S: Final = 15.0
"""After so long without events a follower gets a comment: proxies close silent connections, often after a minute."""
GIVEN_S: Final = 30.0
"""How long a follower may take to read what the server sends: longer than the silence between two comments."""
TICK_S: Final = 0.1
"""A follower gets one page in each tick, and the first one after a silence at once."""
RETRY_MS: Final = 1000
"""How long clients should wait after the end of a stream before they connect again."""


class SharedPage(NamedTuple):
    content: bytes
    events: int
    last: int
    """The position of the last event."""
    next: int
    end: bool


Present = Callable[[list[Any]], Presented]
"""A function that makes a page in a worker. Equal functions make equal pages of the same events."""
Key = tuple[Principal, ReadAll, Present | None]


class SharedReads:
    """Reads that wait for events, and the followers that wait for each."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: dict[Key, _Read] = {}
        self._present: Present | None = None

    @property
    def begin(self) -> str:
        """How the ids of events begin: with the history that positions belong to."""
        identity = self._engine.identity
        return f"{identity.id}.{identity.timeline}."

    def join(self, login: Login, request: ReadAll, is_next: bool, present: Present | None = None) -> "_Read":
        """The read of a request, which others may have begun. Call `leave` in the end.

        `is_next`: its events follow a page that came just now, so it waits for the next tick. Without `present` the
        page has the form of the API.
        """
        key = (login.principal, request, present)
        found = self._reads.get(key)
        if found is None or found.work.done():
            found = self._reads[key] = _Read(asyncio.ensure_future(self._page(key, is_next)))
            found.work.add_done_callback(partial(self._done, key))
        found.readers += 1
        return found

    def leave(self, read: "_Read") -> None:
        read.readers -= 1
        if not read.readers and not read.work.done():
            read.work.cancel()

    def _done(self, key: Key, work: "asyncio.Future[SharedPage]") -> None:
        if (found := self._reads.get(key)) is not None and found.work is work:
            del self._reads[key]
        if not work.cancelled():
            # If all followers have left, no other code looks at the exception.
            work.exception()

    async def _page(self, key: Key, is_next: bool) -> SharedPage:
        principal, request, present = key
        if is_next:
            await asyncio.sleep(TICK_S - asyncio.get_running_loop().time() % TICK_S)
        if self._present is None:
            self._present = partial(as_event_stream, self.begin)
        page = await self._engine.execute(principal, request, present or self._present)
        assert isinstance(page, EventPage)
        assert page.encoded is not None
        shown: Presented = page.encoded.content
        return SharedPage(shown.content, page.encoded.count, shown.positions[1], page.next, page.end)


class _Read:
    """A read in flight, or one that has ended."""

    __slots__ = ("readers", "work")

    def __init__(self, work: "asyncio.Future[SharedPage]") -> None:
        self.work = work
        self.readers = 0


async def followed(
    call: Call, attendance: Attendance, request: Callable[[int], ReadAll], position: int
) -> AsyncGenerator[bytes, None]:
    """The answer to a follower from a position on: pages of events, and a comment after each silence.

    It ends when the server drains, when it has no room for a page, and when the follower has lost its right. The client
    connects again with the id of the last event.
    """
    reads, budget = call.api.reads, call.engine.budget
    told, is_next = position - 1, False
    # Of NotAuthenticated, too: it was revoked.
    with suppress(PenstockError):
        yield b"retry: %d\n\n" % RETRY_MS
        while True:
            call.connection.give_time(GIVEN_S)
            read = reads.join(call.login, request(position), is_next)
            try:
                while not await attendance.wait(read.work, KEEP_ALIVE_S):
                    call.connection.give_time(GIVEN_S)
                    yield b": nothing new\n\n"
                page = read.work.result()
            finally:
                reads.leave(read)
            # Send events that are there already at once. After an empty page wait: long polls may be off.
            position, is_next = page.next, page.end or not page.events
            if page.events:
                if not budget.take(len(page.content)):
                    return
                try:
                    yield page.content
                finally:
                    budget.give_back(len(page.content))
                told = page.last
            elif position - 1 > told:
                # The follower need not read these events again, which it may not see.
                told = position - 1
                yield f"id: {reads.begin}{told}\n\n".encode()
