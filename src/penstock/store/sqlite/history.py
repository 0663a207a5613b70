"""Reading the history: streams, everything, records as they are, and the position of a time."""

import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.errors import DamagedRecord
from penstock.model import EventFilter, StreamInfo
from penstock.store.contract import Page, ReadLimits, RecordSpan
from penstock.store.layout import SEQUENCE_MAX
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS
from penstock.store.sqlite.database import Database
from penstock.store.tables import hiding, history
from penstock.store.tables.history import Stretch, after_prefix, page_of, stretch_of
from penstock.store.tombstones import shown

SPAN_POSITIONS: Final = 1 << 16
"""How many positions one query may pass over, so that a sparse scan looks at the clock in between."""
COMMITS_PER_QUERY: Final = 256


class History(history.History[Database]):
    """The reading half of a store on SQLite."""

    def head(self) -> int:
        return self.db.value("head") or 0

    def stream_head(self, context: str, stream: str) -> int:
        stream_id = self._stream_id(context, stream)
        return 0 if stream_id is None else self.db.value("stream_head", {"stream_id": stream_id}) or 0

    def _context_id(self, context: str) -> int | None:
        found: int | None = self.db.value("context_id", {"name": context})
        return found

    def _stream_id(self, context: str, stream: str) -> int | None:
        context_id = self._context_id(context)
        if context_id is None:
            return None
        found: int | None = self.db.value("stream_id", {"context_id": context_id, "name": stream})
        return found

    # -- one stream

    def read_stream(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits, backward: bool = False
    ) -> Page:
        with self.db.snapshot():
            stream_id = self._stream_id(context, stream)
            if stream_id is None:
                return Page([], max(first, 1), True)
            if backward:
                head = self.db.value("stream_head", {"stream_id": stream_id}) or 0
                first = min(first, head) if first > 0 else head
                wanted = Stretch(stream_id, context, stream, last or 1, True)
                records = self._records_of_stream_backward(stream_id, first, wanted.end)
            else:
                first = max(first, 1)
                wanted = Stretch(stream_id, context, stream, SEQUENCE_MAX if last is None else last, False)
                records = self._records_of_stream(stream_id, first, wanted.end)
            return page_of(wanted, first, limits, records, hiding.hidden_of_stream(self.db, context, stream))

    def place_of(self, context: str, stream: str, first: int, last: int) -> tuple[bytes, bytes, int]:
        """The ids of a stretch of a stream, erased events too, and the commit and position it begins with."""
        wanted = Stretch(self._stream_id(context, stream) or 0, context, stream, last, False)
        return stretch_of(wanted, first, self._records_of_stream(wanted.stream_id, first, last))

    def _records_of_stream(self, stream_id: int, sequence: int, end: int) -> Iterator[tuple[Record, int]]:
        """Each record that has events of a stream between two sequences, with the position of one of them."""
        previous = 0
        values = {"stream_id": stream_id, "sequence": sequence, "limit": COMMITS_PER_QUERY}
        while rows := self.db.rows("commits_forward", values):
            for last, position in rows:
                if position > previous:
                    record = self._record_at(position)
                    previous = record.last
                    yield record, position
                if last >= end:
                    return
                values["sequence"] = last + 1

    def _records_of_stream_backward(self, stream_id: int, sequence: int, end: int) -> Iterator[tuple[Record, int]]:
        start = self.db.row("commits_forward", {"stream_id": stream_id, "sequence": sequence, "limit": 1})
        if start is None:
            return
        following: int | None = None
        values = {"stream_id": stream_id, "sequence": start[0], "limit": COMMITS_PER_QUERY}
        while rows := self.db.rows("commits_backward", values):
            for last, position in rows:
                if last < end:
                    return
                if following is None or position < following:
                    record = self._record_at(position)
                    following = record.position
                    yield record, position
                values["sequence"] = last - 1

    def _record_at(self, position: int) -> Record:
        row = self.db.row("record_at", {"position": position})
        if row is None:
            raise DamagedRecord(position, "it is missing")
        record = Record(row[1], row[0])
        if record.last < position:
            raise DamagedRecord(position, "it is missing")
        return record

    # -- everything

    def _span(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None) -> RecordSpan:
        position = max(position, 1)
        deadline = time.monotonic() + limits.scan_ms_max / 1000
        records: list[Record] = []
        events = size = 0
        with self.db.snapshot():
            head = self.head()
            last = head if end is None else min(end, head)
            gone = hiding.hidden(self.db, wanted.context)

            def span(reached: int) -> RecordSpan:
                reached = min(reached, last)
                return RecordSpan(records, max(position, reached + 1), reached >= last)

            for name, values in self._queries(position, last, wanted):
                for first, data in self.db.each(name, values):
                    record = Record(data, first)
                    records.append(shown(record, gone) if gone else record)
                    events += record.last + 1 - max(first, position)
                    size += len(data)
                    if events >= limits.events_max or size >= limits.bytes_max or time.monotonic() > deadline:
                        return span(record.last)
                # The last record may reach beyond what the query passed over.
                reached = max(values["high"], records[-1].last if records else 0)
                if time.monotonic() > deadline and reached >= position:
                    return span(reached)
        return span(last)

    def _queries(self, position: int, last: int, wanted: EventFilter) -> Iterator[tuple[str, dict[str, Any]]]:
        """The queries that together give all records of a filter between two positions, in order."""
        if position > last:
            return
        # The record that holds `position` may begin before it.
        low = self.db.value("record_start", {"position": position}) or position
        if wanted.context is None:
            name = "records_of_streams" if wanted.prefix else "records_between"
            for start in range(low, last + 1, SPAN_POSITIONS):
                high = min(start + SPAN_POSITIONS - 1, last)
                yield name, _values(start, high, None, wanted.prefix)
            return
        context_id = self._context_id(wanted.context)
        if context_id is None:
            return
        name = "records_of_streams" if wanted.prefix else "records_of_context"
        while low <= last:
            block = self.db.value("next_block", {"context_id": context_id, "block": low >> BLOCK_BITS})
            if block is None:
                return
            low = max(low, block << BLOCK_BITS)
            high = min(((block + 1) << BLOCK_BITS) - 1, last)
            if low <= high:
                yield name, _values(low, high, context_id, wanted.prefix)
            low = high + 1

    # -- times and names

    def streams(self, context: str, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        context_id = self._context_id(context)
        if context_id is None:
            return []
        values = {"context_id": context_id, "after": after, "low": max(after, prefix), "upper": _after_prefix(prefix)}
        return [StreamInfo(*row) for row in self.db.rows("streams", {**values, "limit": limit})]


def _values(low: int, high: int, context_id: int | None, prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {"low": low, "high": high}
    if context_id is not None or prefix:
        values["context_id"] = context_id
    if prefix:
        values |= {"prefix": prefix, "upper": _after_prefix(prefix)}
    return values


def _after_prefix(prefix: str) -> str | bytes:
    """The first text after all that begin with a prefix; a blob, which SQLite sorts after any text, if none is."""
    return after_prefix(prefix) or b""
