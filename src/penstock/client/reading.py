"""Reading the history: stored records as the server has them, taken apart here, page by page."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from penstock.client.calls import Calls
from penstock.errors import InvalidRequest, StoreChanged
from penstock.model import Event, EventFilter, ReadRecords, RecordPage

if TYPE_CHECKING:
    from penstock.store.record import Record

WAIT_S_MAX: Final = 30.0
"""How long one long poll waits on the server before it is begun again."""

PAGES_AHEAD: Final = 2
"""Pages that the server is asked for while another one is taken apart."""


class Range:
    """What of the history is wanted: from a position, of a context, a prefix and some types; up to some end."""

    def __init__(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
    ) -> None:
        if isinstance(types, str):
            raise InvalidRequest("types", f"are one text; write [{types!r}]")
        self.position = position
        self.until = until
        self.wanted = EventFilter(context, filter, types)


class _Reader:
    """Asks for pages ahead: while one is taken apart, the server looks for the next two.

    Where the page after the next one begins is guessed: the pages of most histories have one size. Where they have not,
    a wrong guess is the last one.
    """

    def __init__(self, calls: Calls, wanted: Range, follow: bool) -> None:
        self._calls = calls
        self._wanted = wanted
        self._wait_s = WAIT_S_MAX if follow else 0.0
        self._position = wanted.position
        self._asked: deque[tuple[int, asyncio.Task[RecordPage]]] = deque()
        self._read = 0
        self._may_guess = not follow

    async def next(self) -> RecordPage:
        """The page at the position reached."""
        if self._asked and self._asked[0][0] != self._position:
            self._may_guess = False
            self.close()
        if not self._asked:
            self._ask(self._position)
        page = await self._asked.popleft()[1]
        size, self._position = page.next - self._position, page.next
        self._read += 1
        if not page.end:
            self._ask_ahead(size)
        return page

    def _ask_ahead(self, size: int) -> None:
        if not self._asked:
            self._ask(self._position)
        # One who reads but a page or two needs no second one.
        if self._may_guess and self._read > 1 and len(self._asked) < PAGES_AHEAD:
            self._ask(self._asked[-1][0] + size)

    def _ask(self, position: int) -> None:
        wanted = self._wanted.wanted
        request = ReadRecords(position, wanted.context, wanted.prefix, int(1000 * self._wait_s))
        self._asked.append((position, self._calls.begin(self._calls.ask(request, RecordPage, wait=self._wait_s))))

    def close(self) -> None:
        """Want no more of what was asked for."""
        for _, task in self._asked:
            task.cancel()
        self._asked.clear()


async def record_pages(calls: Calls, wanted: Range, *, follow: bool = False) -> AsyncGenerator[list["Record"], None]:
    """Records that hold what is wanted, checked, a page at a time, none twice; with `follow` without end."""
    # Stores take long to import, and clients that read no history do without.
    from penstock.store.record import Dedupe, Record  # noqa: PLC0415

    reader, identity, dedupe = _Reader(calls, wanted, follow), None, Dedupe()
    try:
        while True:
            page = await reader.next()
            identity = _same_store(identity, page)
            if records := dedupe.new([Record.stored(data) for data in page.records]):
                yield records
            if (page.end and not follow) or (wanted.until is not None and page.next > wanted.until):
                return
    finally:
        reader.close()


def _same_store(before: tuple[str, int] | None, page: RecordPage) -> tuple[str, int]:
    """Positions mean something in one store and timeline only."""
    now = page.store_id, page.timeline
    if before not in (None, now):
        raise StoreChanged(str(before), str(now))
    return now


async def event_pages(calls: Calls, wanted: Range, *, follow: bool = False) -> AsyncGenerator[list[Event], None]:
    """Events that are wanted, a page at a time."""
    last = wanted.until
    async with aclosing(record_pages(calls, wanted, follow=follow)) as pages:
        async for records in pages:
            events = [event for record in records for event in record.events(wanted.wanted)]
            if records[0].position < wanted.position or (last is not None and records[-1].last > last):
                events = [e for e in events if wanted.position <= e.position and (last is None or e.position <= last)]
            if events:
                yield events


async def arrow_batches(calls: Calls, wanted: Range) -> AsyncGenerator[Any, None]:
    """What is wanted as Arrow record batches, one for each page."""
    # Arrow takes long to import, and most clients do without.
    from penstock.store.arrow import record_batch  # noqa: PLC0415

    last = wanted.until
    async with aclosing(record_pages(calls, wanted)) as pages:
        async for records in pages:
            batch = record_batch(records, wanted.wanted)
            if records[0].position < wanted.position or (last is not None and records[-1].last > last):
                batch = _between(batch, wanted.position, last)
            if batch.num_rows:
                yield batch


def _between(batch: Any, first: int, last: int | None) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    batch = batch.filter(pc.greater_equal(batch["position"], first))
    return batch if last is None else batch.filter(pc.less_equal(batch["position"], last))
