"""Reading the history: streams, everything, records as they are, and the position of a time."""

import time
from collections.abc import Iterator
from typing import Any, Final

from penstock.errors import DamagedRecord
from penstock.model import ContextInfo, Event, EventFilter, StreamInfo
from penstock.store.contract import Page, ReadLimits, RecordSpan, Search, Store
from penstock.store.picking import SEQUENCE_MAX
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS
from penstock.store.sqlite.database import Database
from penstock.store.tables import hiding
from penstock.store.tombstones import shown

SPAN_POSITIONS: Final = 1 << 16
"""How many positions one query may pass over, so that a sparse scan looks at the clock in between."""
COMMITS_PER_QUERY: Final = 256


class History(Store):
    """The reading half of a store on SQLite."""

    db: Database

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
                return self._backward(stream_id, context, stream, first, last or 1, limits)
            return self._forward(stream_id, context, stream, max(first, 1), last, limits)

    def _forward(
        self, stream_id: int, context: str, stream: str, first: int, last: int | None, limits: ReadLimits
    ) -> Page:
        events: list[Event] = []
        budget = limits.bytes_max
        following = first
        deadline = time.monotonic() + limits.scan_ms_max / 1000
        gone = hiding.hidden_of_stream(self.db, context, stream)
        end = SEQUENCE_MAX if last is None else last
        for stored, position in self._records_of_stream(stream_id, first, end):
            record = shown(stored, gone) if gone else stored
            limit = limits.events_max - len(events) + 1
            for event in record.events_of_stream(position, context, stream, following, end, limit):
                if len(events) >= limits.events_max or budget <= 0:
                    return Page(events, following, False)
                events.append(event)
                budget -= _size(event)
                following = event.sequence + 1
            if time.monotonic() > deadline:
                # Most of a long erased stream is passed over: go on after this record, with or without events.
                return Page(events, max(following, _sequences(record, context, stream)[1] + 1), False)
        return Page(events, following, True)

    def place_of(self, context: str, stream: str, first: int, last: int) -> tuple[bytes, bytes, int]:
        """The ids of a stretch of a stream, erased events too, and the commit and position it begins with."""
        ids: list[bytes] = []
        commit, position = b"", 0
        for record, place in self._records_of_stream(self._stream_id(context, stream) or 0, first, last):
            found = record.stretch(place, context, stream, first, last)
            if not ids:
                _, commit, position = found
            ids += found[0]
        return b"".join(ids), commit, position

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

    def _backward(self, stream_id: int, context: str, stream: str, first: int, last: int, limits: ReadLimits) -> Page:
        head = self.db.value("stream_head", {"stream_id": stream_id}) or 0
        first = min(first, head) if first > 0 else head
        events: list[Event] = []
        budget = limits.bytes_max
        following = first
        deadline = time.monotonic() + limits.scan_ms_max / 1000
        gone = hiding.hidden_of_stream(self.db, context, stream)
        for stored, position in self._records_of_stream_backward(stream_id, first, last):
            record = shown(stored, gone) if gone else stored
            limit = limits.events_max - len(events) + 1
            for event in record.events_of_stream(position, context, stream, last, following, limit, backward=True):
                if len(events) >= limits.events_max or budget <= 0:
                    return Page(events, following, False)
                events.append(event)
                budget -= _size(event)
                following = event.sequence - 1
            if time.monotonic() > deadline:
                before = min(following, _sequences(record, context, stream)[0] - 1)
                return Page(events, before, before < last)
        return Page(events, following, True)

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

    def read_all(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None = None) -> Page:
        span = self._span(position, wanted, limits, end)
        events: list[Event] = []
        for record in span.records:
            if len(events) > limits.events_max:
                break
            # One more than is asked for says where to read on.
            events += record.events(wanted, position, end, limit=limits.events_max - len(events) + 1)
        if len(events) > limits.events_max:
            return Page(events[: limits.events_max], events[limits.events_max].position, False)
        return Page(events, span.next, span.end)

    def read_records(self, position: int, wanted: EventFilter, limits: ReadLimits) -> RecordSpan:
        return self._span(position, wanted, limits, None)

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

    def find_position(self, wanted: EventFilter, ticks: int, limits: ReadLimits, start: int = 1) -> Search:
        if start == 1 and wanted.context is not None:
            context_id = self._context_id(wanted.context)
            block = self.db.value("block_before_ticks", {"context_id": context_id, "ticks": ticks})
            # Everything before that block is older; what begins before the block may reach into it.
            start = max(1, (block or 0) << BLOCK_BITS)
        span = self.read_records(start, wanted, limits)
        for record in span.records:
            for event in record.events(wanted, start, since=ticks, limit=1):
                return Search(event.position, event.position + 1, False)
        return Search(None, span.next, span.end)

    def contexts(self, after: str, limit: int) -> list[ContextInfo]:
        return [ContextInfo(*row) for row in self.db.rows("contexts", {"after": after, "limit": limit})]

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
    while prefix and prefix[-1] == "\U0010ffff":
        prefix = prefix[:-1]
    if not prefix:
        return b""
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)


def _sequences(record: Record, context: str, stream: str) -> tuple[int, int]:
    """The first and last sequence of a stream's events in a record."""
    mine = [run for run in record.runs() if (run.context, run.stream) == (context, stream)]
    return mine[0].sequence, mine[-1].sequence + mine[-1].length - 1


def _size(event: Event) -> int:
    return len(event.body) + len(event.headers or "") + len(event.type) + 64
