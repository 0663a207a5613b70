"""Erasing events for good, and waiting until no file of the store has anything of them.

An erasure says where it ends, which is looked up first: sent twice, it does not erase what has come meanwhile.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from penstock.client.calls import Calls
from penstock.model import (
    Erased,
    EraseStream,
    EraseSubject,
    ErasureInfo,
    ErasurePage,
    GetStats,
    ListErasures,
    ListStreams,
    StoreStats,
    StreamPage,
)

PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0
"""Between two looks at erasures that are not finished: twice as long each time."""


async def erase_stream(calls: Calls, context: str, stream: str) -> int:
    """Erase a stream's events; how many."""
    last = await _last_sequence(calls, context, stream)
    return (await calls.ask(EraseStream(context, stream, last), Erased)).events


async def _last_sequence(calls: Calls, context: str, stream: str) -> int:
    """A stream's last sequence; 0 if there is no such stream."""
    # Streams come by name, so the one of just this name is the first. But the filter `*` is every stream.
    after, limit = "", None if stream == "*" else 1
    while True:
        page = await calls.ask(ListStreams(context, stream, after, limit), StreamPage)
        for info in page.streams:
            if info.name == stream:
                return info.events
        if page.end or limit:
            return 0
        after = page.streams[-1].name


async def subject_steps(calls: Calls, subject: str, context: str | None) -> AsyncGenerator[Erased, None]:
    """Erase what names a subject, step by step up to the end of the history."""
    position, head = 1, (await calls.ask(GetStats(), StoreStats)).head
    while True:
        erased = await calls.ask(EraseSubject(subject, context, position, head), Erased)
        yield erased
        if erased.end:
            return
        position = erased.next


async def erase_subject(calls: Calls, subject: str, context: str | None) -> int:
    """Erase what names a subject; how many events."""
    async with aclosing(subject_steps(calls, subject, context)) as steps:
        return sum([erased.events async for erased in steps])


async def erasure_pages(calls: Calls, after: int = 0) -> AsyncGenerator[list[ErasureInfo], None]:
    """The ledger by id, after one. In pages."""
    while True:
        page = await calls.ask(ListErasures(after), ErasurePage)
        if page.erasures:
            yield page.erasures
            after = page.erasures[-1].id
        if page.end:
            return


async def gone(calls: Calls) -> None:
    """Return when everything is gone that was erased before."""
    waiting = await _open(calls, 0)
    pause = PAUSE_S_MIN
    while waiting:
        await calls.pause(pause)
        pause = min(2 * pause, PAUSE_S_MAX)
        # What comes after the last of them was erased later, and is somebody else's concern.
        waiting &= await _open(calls, min(waiting) - 1)


async def _open(calls: Calls, after: int) -> set[int]:
    async with aclosing(erasure_pages(calls, after)) as pages:
        return {info.id async for page in pages for info in page if info.finished is None}
