"""The lag of a reader: how many events that pass its filter lie before it, and when the oldest of them was recorded.

The work for one reader is bounded, however far behind it is and however large the store is. Where a limit of
`LagLimits` ends the count, the lag is a lower bound.

The index of records has the number of events in each record, and the context and stream if they are all of one. Mostly
that is enough, and the count reads no record. It does read records of several contexts or streams, all records for a
filter with types, and those that may have tombstones, because the index counts tombstones as events.
"""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from penstock.errors import DamagedRecord
from penstock.model import EventFilter
from penstock.store.contract import ReadLimits
from penstock.store.record import Record
from penstock.store.tables.history import HistoryReader, after_prefix

POSITIONS_PER_QUERY: Final = 1 << 13
"""How far one query looks, so that a search that finds nothing checks its time between queries."""


class LagLimits(NamedTuple):
    """Where the count of one lag ends. The last query may exceed `count_ms_max`.

    So may the first `steps_min` steps, of a record or a query each: a reader that has kept up gets an exact lag from a
    busy machine, too.
    """

    events_max: int = 10_000
    records_max: int = 20_000
    count_ms_max: int = 50
    steps_min: int = 16


class EventLag(NamedTuple):
    """`events` lie before a reader; if that is not exact, there may be more. `oldest`: when the first was recorded.

    `oldest` is in ticks, or None if the count found no event.
    """

    events: int
    is_exact: bool
    oldest: int | None


def lag_of(reader: HistoryReader, wanted: EventFilter, position: int, limits: LagLimits) -> EventLag:
    """The lag of a reader that is at a position, inside a snapshot."""
    deadline = time.monotonic() + limits.count_ms_max / 1000
    counts = _read_counts if _must_read(reader, wanted, position) else _index_counts
    events = 0
    oldest: int | None = None
    try:
        for number, (first, last, found) in enumerate(counts(reader, wanted, max(position, 1), limits), 1):
            if found and oldest is None:
                page = reader.read_all(first, wanted, ReadLimits(events_max=1), last)
                oldest = page.events[0].recorded if page.events else None
            events += found
            if events > limits.events_max:
                return EventLag(limits.events_max, False, oldest)
            if number >= limits.records_max or (number > limits.steps_min and time.monotonic() > deadline):
                return EventLag(events, False, oldest)
    except DamagedRecord:
        # A read of the record raises this error. A list of lags must not fail because of it.
        return EventLag(events, False, oldest)
    return EventLag(events, True, oldest)


Count = tuple[int, int, int]
"""The first and last position of a part of the history, and how many of its events pass."""


def _must_read(reader: HistoryReader, wanted: EventFilter, position: int) -> bool:
    if wanted.context is None or wanted.types is not None or wanted.within is not None:
        return True
    return bool(reader.db.value("may_have_tombstones", {"position": position}))


def _read_counts(reader: HistoryReader, wanted: EventFilter, position: int, limits: LagLimits) -> Iterator[Count]:
    page_limits = ReadLimits(limits.events_max, scan_ms_max=limits.count_ms_max)
    while True:
        page = reader.read_records(position, wanted, page_limits)
        for record in page.records:
            yield max(position, record.position), record.last, record.count_of(wanted, position)
        if page.end:
            return
        position = page.next
        yield position, position, 0


def _index_counts(reader: HistoryReader, wanted: EventFilter, position: int, limits: LagLimits) -> Iterator[Count]:
    head, low, context_id, _ = reader.db.row("page_start", {"position": position, "context": wanted.context})
    if position > head:
        return
    values: dict[str, Any] = {"context_id": context_id, "limit": limits.records_max}
    name = "counts_of_context"
    if wanted.prefix:
        values |= {"prefix": wanted.prefix, "upper": after_prefix(wanted.prefix) or reader.last_name}
        name = "counts_of_streams"
    for start, end in reader.ranges_of_context(context_id, low or position, head):
        for first in range(start, end + 1, POSITIONS_PER_QUERY):
            last = min(first + POSITIONS_PER_QUERY - 1, end)
            for begin, count, is_whole in reader.db.rows(name, {**values, "low": first, "high": last}):
                begins, ends = max(begin, position), begin + count - 1
                if is_whole:
                    yield begins, ends, max(ends + 1 - begins, 0)
                else:
                    _, data = reader.db.row("record_at", {"position": begin})
                    yield begins, ends, Record(data, begin).count_of(wanted, position)
            yield last, last, 0
