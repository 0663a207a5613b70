"""Reading the records of a store of any backend out of it, beside whoever serves it."""

from collections.abc import Iterator
from typing import Final

from penstock.model import EventFilter
from penstock.store.contract import ReadLimits, Store
from penstock.store.record import Record
from penstock.store.slices import cut

READ_LIMITS: Final = ReadLimits(events_max=1 << 20, bytes_max=4 << 20, scan_ms_max=250)
"""Of one read, so that a server's WAL is not held for long."""


def records_between(store: Store, first: int, last: int) -> Iterator[Record]:
    """The records from one position to another, cut where they reach beyond, without what is erased."""
    while first <= last:
        span = store.read_records(first, EventFilter(), READ_LIMITS)
        for record in span.records:
            if record.position > last:
                return
            yield cut(record, first, last)
        first = span.next
