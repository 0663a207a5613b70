"""Catch-up reads: stored records, page by page, as the server has them. The client checks and decodes them."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from penstock.client.calls import Calls
from penstock.errors import InvalidRequest, StoreChanged
from penstock.model import Event, EventFilter, EventPage, ReadAll, ReadRecords, RecordPage

if TYPE_CHECKING:
    from penstock.store.record import Record

WAIT_S_MAX: Final = 30.0
"""How long the server waits in one long poll. Then the client begins another one."""

PAGES_AHEAD: Final = 2
"""Pages that the client requests while it decodes another one."""


PICKED_EVENTS_MAX: Final = 4096
"""Up to so many events the server picks for a limited read, and sends no others; more come sooner as records."""


def types_of(types: Collection[str] | None) -> frozenset[str] | None:
    """The types to read, or None for all. Raises InvalidRequest for a single text, whose letters it would take."""
    if isinstance(types, str):
        raise InvalidRequest("types", f"is a single text; write [{types!r}]")
    return None if types is None else frozenset(types)


class HistoryRange:
    """A part of the history: from one position to another, of one context, one stream prefix and some types."""

    def __init__(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
    ) -> None:
        self.position = position
        self.until = until
        self.filter = EventFilter(context, filter, types_of(types))

    def cuts(self, records: "list[Record]") -> bool:
        """Whether some events of these records lie outside."""
        return records[0].position < self.position or (self.until is not None and records[-1].last > self.until)


class _Pages:
    """Prefetches pages: while the client decodes one, the server looks for the next two.

    The client guesses where the second one begins, as most pages of a history have one size. After a wrong guess it
    stops guessing.
    """

    def __init__(self, calls: Calls, range: HistoryRange, follow: bool) -> None:
        self._calls = calls
        self._filter = range.filter
        self._wait_s = WAIT_S_MAX if follow else 0.0
        self._position = range.position
        self._requested: deque[tuple[int, asyncio.Task[RecordPage]]] = deque()
        self._read = 0
        self._may_guess = not follow

    async def next(self) -> RecordPage:
        if self._requested and self._requested[0][0] != self._position:
            self._may_guess = False
            self.close()
        if not self._requested:
            self._request(self._position)
        page = await self._requested.popleft()[1]
        size, self._position = page.next - self._position, page.next
        self._read += 1
        if not page.end:
            if not self._requested:
                self._request(self._position)
            # A caller that reads only a page or two needs no second one.
            if self._may_guess and self._read > 1 and len(self._requested) < PAGES_AHEAD:
                self._request(self._requested[-1][0] + size)
        return page

    def _request(self, position: int) -> None:
        request = ReadRecords(position, self._filter.context, self._filter.prefix, int(1000 * self._wait_s))
        self._requested.append((position, self._calls.begin(self._calls.ask(request, RecordPage, wait=self._wait_s))))

    def close(self) -> None:
        for _, task in self._requested:
            task.cancel()
        self._requested.clear()


async def record_pages(
    calls: Calls, range: HistoryRange, *, follow: bool = False
) -> "AsyncGenerator[list[Record], None]":
    """Checked records, a page at a time, each once; with `follow` without end."""
    # The store takes long to import, and clients that read no history do not need it.
    from penstock.store.record import Dedupe, Record  # noqa: PLC0415

    pages, identity, dedupe = _Pages(calls, range, follow), None, Dedupe()
    try:
        while True:
            page = await pages.next()
            # A position means something in one store and timeline only.
            found = page.store_id, page.timeline
            if identity not in (None, found):
                raise StoreChanged(str(identity), str(found))
            identity = found
            if records := dedupe.new([Record.stored(bytes(data)) for data in page.records]):
                yield records
            if (page.end and not follow) or (range.until is not None and page.next > range.until):
                return
    finally:
        pages.close()


async def event_pages(calls: Calls, range: HistoryRange, *, follow: bool = False) -> AsyncGenerator[list[Event], None]:
    last = range.until
    async with aclosing(record_pages(calls, range, follow=follow)) as pages:
        async for records in pages:
            events = [event for record in records for event in record.events(range.filter)]
            if range.cuts(records):
                events = [e for e in events if range.position <= e.position and (last is None or e.position <= last)]
            if events:
                yield events


async def first_pages(calls: Calls, range: HistoryRange, limit: int) -> AsyncGenerator[list[Event], None]:
    """The first events of a range, at most `limit`."""
    if limit > PICKED_EVENTS_MAX:
        async with aclosing(event_pages(calls, range)) as pages:
            async for events in pages:
                yield events[:limit]
                limit -= len(events)
                if limit <= 0:
                    return
        return
    position, wanted, last = range.position, range.filter, range.until
    while limit > 0 and wanted.types != frozenset():
        request = ReadAll(position, wanted.context, wanted.prefix, wanted.types, limit)
        page = await calls.ask(request, EventPage)
        if events := [event for event in page.events if last is None or event.position <= last]:
            yield events
        limit -= len(events)
        position = page.next
        if page.end or (last is not None and position > last):
            return


async def arrow_batches(calls: Calls, range: HistoryRange) -> AsyncGenerator[Any, None]:
    # Arrow takes long to import, and most clients do not need it.
    import pyarrow.compute as pc  # noqa: PLC0415

    from penstock.store.arrow import record_batch  # noqa: PLC0415

    async with aclosing(record_pages(calls, range)) as pages:
        async for records in pages:
            batch = record_batch(records, range.filter)
            if range.cuts(records):
                batch = batch.filter(pc.greater_equal(batch["position"], range.position))
                if range.until is not None:
                    batch = batch.filter(pc.less_equal(batch["position"], range.until))
            if batch.num_rows:
                yield batch
