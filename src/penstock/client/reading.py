"""Reading the history: stored records as the server has them, taken apart here, page by page."""

from collections.abc import AsyncIterator, Collection
from typing import Any, Final

from penstock.client.calls import Calls
from penstock.errors import StoreChanged
from penstock.model import Event, EventFilter, ReadRecords, RecordPage
from penstock.store.record import Record

WAIT_S_MAX: Final = 30.0
"""How long one long poll waits on the server before it is begun again."""


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
        self.position = position
        self.until = until
        self.wanted = EventFilter(context, filter, types)


async def record_pages(calls: Calls, wanted: Range, *, follow: bool = False) -> AsyncIterator[list[Record]]:
    """Records that hold what is wanted, checked, a page at a time; with `follow` without end."""
    position, identity = wanted.position, None
    wait_ms = int(1000 * WAIT_S_MAX) if follow else 0
    while wanted.until is None or position <= wanted.until:
        request = ReadRecords(position, wanted.wanted.context, wanted.wanted.prefix, wait_ms)
        page = await calls.ask(request, RecordPage, wait=wait_ms / 1000)
        identity = _same_store(identity, page)
        if page.records:
            yield [Record.stored(data) for data in page.records]
        position = page.next
        if page.end and not follow:
            return


def _same_store(before: tuple[str, int] | None, page: RecordPage) -> tuple[str, int]:
    """Positions mean something in one store and timeline only."""
    now = page.store_id, page.timeline
    if before not in (None, now):
        raise StoreChanged(str(before), str(now))
    return now


async def event_pages(calls: Calls, wanted: Range, *, follow: bool = False) -> AsyncIterator[list[Event]]:
    """Events that are wanted, a page at a time."""
    last = wanted.until
    async for records in record_pages(calls, wanted, follow=follow):
        events = [event for record in records for event in record.events(wanted.wanted)]
        if records[0].position < wanted.position or (last is not None and records[-1].last > last):
            events = [e for e in events if wanted.position <= e.position and (last is None or e.position <= last)]
        if events:
            yield events


async def arrow_batches(calls: Calls, wanted: Range) -> AsyncIterator[Any]:
    """What is wanted as Arrow record batches, one for each page."""
    # Arrow takes long to import, and most clients do without.
    from penstock.store.arrow import record_batch  # noqa: PLC0415

    last = wanted.until
    async for records in record_pages(calls, wanted):
        batch = record_batch(records, wanted.wanted)
        if records[0].position < wanted.position or (last is not None and records[-1].last > last):
            batch = _between(batch, wanted.position, last)
        if batch.num_rows:
            yield batch


def _between(batch: Any, first: int, last: int | None) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    batch = batch.filter(pc.greater_equal(batch["position"], first))
    return batch if last is None else batch.filter(pc.less_equal(batch["position"], last))
