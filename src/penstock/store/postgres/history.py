"""Reading the history: streams, everything, records as they are, and the position of a time.

A page is one snapshot of a few statements: what to read from, then records until there are enough of them, which the
database itself measures, so that no more of them come than are wanted.
"""

import time
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from penstock.errors import DamagedRecord
from penstock.model import EventFilter, StreamInfo
from penstock.store.contract import Page, ReadLimits, RecordSpan
from penstock.store.layout import SEQUENCE_MAX
from penstock.store.postgres.arrays import Numbers
from penstock.store.postgres.database import Database, fetched, rereading
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS
from penstock.store.tables import hiding, history
from penstock.store.tables.history import Stretch, after_prefix, page_of, stretch_of
from penstock.store.tombstones import Gone, shown

SPAN_POSITIONS: Final = 1 << 14
"""How many positions one query may pass over, so that a sparse scan looks at the clock in between."""
BLOCKS_PER_QUERY: Final = 64
COMMITS_PER_QUERY: Final = 256
STREAM_BYTES_MAX: Final = 8 << 20
"""Bytes of a stream's records that one query may bring."""
POSITION_MAX: Final = (1 << 63) - 1
LAST_NAME: Final = "\U0010ffff" * 129
"""Comes after every name, which has at most 512 bytes."""

_Range = tuple[int, int]


class History(history.History[Database]):
    """The reading half of a store on PostgreSQL."""

    def head(self) -> int:
        return int(self.db.value("head"))

    def stream_head(self, context: str, stream: str) -> int:
        return self.db.value("stream_head", {"context": context, "stream": stream}) or 0

    # -- one stream

    @rereading
    def read_stream(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits, backward: bool = False
    ) -> Page:
        page = None if backward else self._first_page_of_stream(context, stream, max(first, 1), last, limits)
        return page or self._read_stream(context, stream, first, last, limits, backward)

    def _first_page_of_stream(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits
    ) -> Page | None:
        """A page of a stream by one statement; None if that is not all."""
        limit = max(1, min(limits.events_max + 1, COMMITS_PER_QUERY))
        values = {"context": context, "stream": stream, "sequence": first, "limit": limit}
        rows = self.db.rows("first_page_of_stream", {**values, "bytes_max": STREAM_BYTES_MAX})
        stream_id, has_erasures, reached, *_ = rows[0]
        if stream_id is None or reached is None:
            return Page([], first, True)
        end = SEQUENCE_MAX if last is None else last
        if has_erasures or (len(rows) < limit and _is_cut(row[5] for row in rows)):
            return None
        wanted = Stretch(stream_id, context, stream, end, False)
        page = page_of(wanted, first, limits, _first_records(rows, end), Gone())
        return None if page.end and len(rows) == limit and rows[-1][2] < end else page

    def _read_stream(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits, backward: bool
    ) -> Page:
        with self.db.snapshot():
            stream_id = self.db.value("find_stream", {"context": context, "stream": stream})
            if stream_id is None:
                return Page([], max(first, 1), True)
            if backward:
                head = self.db.value("last_of_stream", {"stream_id": stream_id}) or 0
                first = min(first, head) if first > 0 else head
                wanted = Stretch(stream_id, context, stream, last or 1, True)
            else:
                wanted = Stretch(stream_id, context, stream, SEQUENCE_MAX if last is None else last, False)
                first = max(first, 1)
            records = self.records_of_stream(wanted, first, limits.events_max)
            return page_of(wanted, first, limits, records, hiding.hidden_of_stream(self.db, context, stream))

    def place_of(
        self, context: str, stream: str, first: int, last: int, staged: Sequence[tuple[Record, int]]
    ) -> tuple[bytes, bytes, int]:
        """The ids of a stretch of a stream, erased events too, and the commit and position it begins with.

        `staged` are records of the stream that are not in the database yet, with their positions.
        """
        stream_id = self.db.value("find_stream", {"context": context, "stream": stream}) or 0
        wanted = Stretch(stream_id, context, stream, last, False)
        stored = self.records_of_stream(wanted, first, last + 1 - first)
        return stretch_of(wanted, first, (*stored, *staged))

    def records_of_stream(self, wanted: Stretch, first: int, events: int) -> Iterator[tuple[Record, int]]:
        """Each record that has events of a stretch, with the position of one of them; about so many are wanted."""
        step = -1 if wanted.backward else 1
        name = "commits_backward" if wanted.backward else "commits_forward"
        sequence = self._begin_backward(wanted.stream_id, first) if wanted.backward else first
        limit = max(1, min(events, COMMITS_PER_QUERY))
        values = {"stream_id": wanted.stream_id, "sequence": sequence, "limit": limit}
        while places := _within(rows := self.db.rows(name, values), wanted):
            held = self._records_holding(Numbers(position for _, position in places), step)
            reached = yield from _each(held, places)
            is_end = len(places) < len(rows) or (not wanted.backward and reached >= wanted.end)
            if is_end and reached == places[-1][0]:
                return
            values["sequence"] = reached + step

    def _begin_backward(self, stream_id: int, first: int) -> int:
        """The last sequence of the commit that holds one; below all if there is none."""
        start = self.db.row("commits_forward", {"stream_id": stream_id, "sequence": first, "limit": 1})
        return start[0] if start else -1

    def _records_holding(self, positions: Numbers, sign: int) -> list[Record]:
        values = {"positions": positions, "sign": sign, "bytes_max": STREAM_BYTES_MAX}
        return [Record(data, position) for position, data in self.db.rows("records_holding", values)]

    # -- everything

    @rereading
    def _span(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None) -> RecordSpan:
        position = max(position, 1)
        return self._first_span(position, wanted, limits, end) or self._long_span(position, wanted, limits, end)

    def _first_span(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None) -> RecordSpan | None:
        """A page of records by one statement; None if that is not all."""
        if wanted.context is None and wanted.prefix:
            return None
        name = "first_page" if wanted.context is None else "first_page_of_context"
        values: dict[str, Any] = {"position": position, "end": POSITION_MAX if end is None else end}
        values |= {"events_max": max(limits.events_max, 1), "bytes_max": max(limits.bytes_max, 1)}
        values["span"] = SPAN_POSITIONS
        if wanted.context is not None:
            place = {"context": wanted.context, "prefix": wanted.prefix, "upper": _after_prefix(wanted.prefix)}
            values |= {**place, "block_bits": BLOCK_BITS}
        rows = self.db.rows(name, values)
        head, high, has_erasures, *_ = rows[0]
        if has_erasures:
            return None
        last = head if end is None else min(end, head)
        if position > last:
            return RecordSpan([], position, True)
        records = [Record(data, first) for *_, first, data in rows if first is not None]
        is_full = sum(record.count for record in records) >= limits.events_max or (
            sum(len(record.data) for record in records) >= limits.bytes_max
        )
        # A context without a block from there on has nothing more.
        if not is_full and high is not None and high < last:
            return None
        reached = min(records[-1].last, last) if is_full else last
        return RecordSpan(records, max(position, reached + 1), reached >= last)

    def _long_span(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None) -> RecordSpan:
        """A page for which more has to be looked through; it takes several statements, in one snapshot."""
        deadline = time.monotonic() + limits.scan_ms_max / 1000
        records: list[Record] = []
        events = size = 0
        with self.db.snapshot():
            start = fetched(self.db.ask("span_start", {"position": position, "context": wanted.context}))
            head, low, context_id, has_erasures = start[0]
            last = head if end is None else min(end, head)
            gone = hiding.hidden(self.db, wanted.context) if has_erasures else Gone()

            def span(reached: int) -> RecordSpan:
                reached = min(reached, last)
                shown_ = [shown(record, gone) for record in records] if gone else records
                return RecordSpan(shown_, max(position, reached + 1), reached >= last)

            for name, values in self._queries(position, low, last, wanted, context_id):
                left = {"events_max": limits.events_max - events, "bytes_max": limits.bytes_max - size}
                found = self.db.rows(name, {**values, **left, "limit": max(left["events_max"], 1)})
                for first, data in found:
                    records.append(Record(data, first))
                    events += records[-1].count
                    size += len(data)
                if events >= limits.events_max or size >= limits.bytes_max:
                    return span(records[-1].last)
                # The last record may reach beyond what the query passed over.
                reached = max(values["high"], records[-1].last if records else 0)
                if time.monotonic() > deadline and reached >= position:
                    return span(reached)
        return span(last)

    def _queries(
        self, position: int, start: int | None, last: int, wanted: EventFilter, context_id: int | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The queries that together give all records of a filter between two positions, in order."""
        if position > last:
            return
        # The record that holds `position` may begin before it.
        low = start or position
        if wanted.context is None:
            name = "page_of_streams" if wanted.prefix else "page_of_records"
            for high in range(low + SPAN_POSITIONS - 1, last + SPAN_POSITIONS, SPAN_POSITIONS):
                yield name, _values(high - SPAN_POSITIONS + 1, min(high, last), None, wanted.prefix)
            return
        name = "page_of_streams" if wanted.prefix else "page_of_context"
        for first, high in self._stretches(context_id, low, last):
            yield name, _values(first, high, context_id, wanted.prefix)

    def _stretches(self, context_id: int | None, low: int, last: int) -> Iterator[_Range]:
        """Where a context has records between two positions: blocks that lie side by side together."""
        while context_id is not None and low <= last:
            values = {"context_id": context_id, "block": low >> BLOCK_BITS, "limit": BLOCKS_PER_QUERY}
            blocks = [block for (block,) in self.db.rows("next_blocks", values)]
            for first, end in _side_by_side(blocks):
                start = max(low, first << BLOCK_BITS)
                high = min((end << BLOCK_BITS) - 1, last)
                if start <= high:
                    yield start, high
            if len(blocks) < BLOCKS_PER_QUERY:
                return
            low = (blocks[-1] + 1) << BLOCK_BITS

    # -- times and names

    def streams(self, context: str, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        values = {"context": context, "after": after, "low": max(after, prefix), "upper": _after_prefix(prefix)}
        return [StreamInfo(*row) for row in self.db.rows("streams", {**values, "limit": limit})]


def _first_records(rows: list[Any], end: int) -> Iterator[tuple[Record, int]]:
    """The records of a stream's first page, each with the position of one of its events."""
    for _, _, last, position, start, data in rows:
        if data is not None:
            record = Record(data, start)
            if record.last < position:
                raise DamagedRecord(position, "it is missing")
            yield record, position
        if last >= end:
            return


def _is_cut(data: Iterable[bytes | None]) -> bool:
    """Whether there may be more than one query brings."""
    return sum(len(each) for each in data if each is not None) >= STREAM_BYTES_MAX


def _within(rows: Sequence[_Range], wanted: Stretch) -> list[_Range]:
    """The commits (last sequence, position) that have something of a stretch, in the order they came."""
    if wanted.backward:
        return [(last, position) for last, position in rows if last >= wanted.end]
    cut = next((index for index, (last, _) in enumerate(rows, 1) if last >= wanted.end), len(rows))
    return list(rows[:cut])


def _each(held: list[Record], places: Sequence[_Range]) -> Generator[tuple[Record, int], None, int]:
    """The records that hold these commits, each once; answers the last sequence that they reach."""
    is_cut = _is_cut(record.data for record in held)
    by_position = sorted(held, key=lambda record: record.position)
    starts = [record.position for record in by_position]
    previous: Record | None = None
    reached = 0
    for last, position in places:
        index = bisect_right(starts, position) - 1
        record = by_position[index] if index >= 0 else None
        if record is None or record.last < position:
            if is_cut and previous is not None:
                return reached
            raise DamagedRecord(position, "it is missing")
        if record is not previous:
            yield record, position
            previous = record
        reached = last
    return reached


def _values(low: int, high: int, context_id: int | None, prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {"low": low, "high": high}
    if context_id is not None or prefix:
        values["context_id"] = context_id
    if prefix:
        values |= {"prefix": prefix, "upper": _after_prefix(prefix)}
    return values


def _side_by_side(blocks: Sequence[int]) -> Iterator[_Range]:
    """Blocks that follow one another, as (first, end), no more together than a query may pass over."""
    together_max = SPAN_POSITIONS >> BLOCK_BITS
    first = blocks[0] if blocks else 0
    for block, following in pairwise((*blocks, -1)):
        if following != block + 1 or block + 1 - first >= together_max:
            yield first, block + 1
            first = following


def _after_prefix(prefix: str) -> str:
    """The first text after all that begin with a prefix."""
    return after_prefix(prefix) or LAST_NAME
