"""Reading the history: pages of events from records, wherever those come from."""

import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, NamedTuple

from penstock.model import ContextInfo, Event, EventFilter
from penstock.store.contract import Page, ReadLimits, RecordSpan, Search, Store
from penstock.store.record import Record
from penstock.store.sealing import BLOCK_BITS
from penstock.store.tables.queries import AnyQueries
from penstock.store.tombstones import Gone, shown


class Stretch(NamedTuple):
    """What of a stream is read: up to `end`, or down to it."""

    stream_id: int
    context: str
    stream: str
    end: int
    backward: bool


class History(Store, Generic[AnyQueries]):
    """The part of reading that is the same wherever records come from."""

    db: AnyQueries

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

    @abstractmethod
    def _span(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None) -> RecordSpan:
        """Records of a filter from a position on."""

    def find_position(self, wanted: EventFilter, ticks: int, limits: ReadLimits, start: int = 1) -> Search:
        if start == 1 and wanted.context is not None:
            block = self.db.value("block_before_ticks", {"context": wanted.context, "ticks": ticks})
            # Everything before that block is older; what begins before the block may reach into it.
            start = max(1, (block or 0) << BLOCK_BITS)
        span = self.read_records(start, wanted, limits)
        for record in span.records:
            for event in record.events(wanted, start, since=ticks, limit=1):
                return Search(event.position, event.position + 1, False)
        return Search(None, span.next, span.end)

    def contexts(self, after: str, limit: int) -> list[ContextInfo]:
        return [ContextInfo(*row) for row in self.db.rows("contexts", {"after": after, "limit": limit})]


def page_of(wanted: Stretch, first: int, limits: ReadLimits, records: Iterable[tuple[Record, int]], gone: Gone) -> Page:
    """Events of a stream from a sequence on. Records come with the position of one of its events each."""
    _, context, stream, end, backward = wanted
    step = -1 if backward else 1
    events: list[Event] = []
    budget = limits.bytes_max
    following = first
    deadline = time.monotonic() + limits.scan_ms_max / 1000
    for stored, position in records:
        record = shown(stored, gone) if gone else stored
        low, high = (end, following) if backward else (following, end)
        limit = limits.events_max - len(events) + 1
        for event in record.events_of_stream(position, context, stream, low, high, limit, backward):
            if len(events) >= limits.events_max or budget <= 0:
                return Page(events, following, False)
            events.append(event)
            budget -= _size(event)
            following = event.sequence + step
        if time.monotonic() > deadline:
            # Most of a long erased stream is passed over: go on after this record, with or without events.
            following = _beyond(record, wanted, following)
            return Page(events, following, backward and following < end)
    return Page(events, following, True)


def _beyond(record: Record, wanted: Stretch, following: int) -> int:
    """Where to go on after a record."""
    mine = [run for run in record.runs() if (run.context, run.stream) == (wanted.context, wanted.stream)]
    if wanted.backward:
        return min(following, mine[0].sequence - 1)
    return max(following, mine[-1].sequence + mine[-1].length)


def _size(event: Event) -> int:
    return len(event.body) + len(event.headers or "") + len(event.type) + 64


def stretch_of(wanted: Stretch, first: int, records: Iterable[tuple[Record, int]]) -> tuple[bytes, bytes, int]:
    """The ids of a stretch of a stream, erased events too, and the commit and position it begins with."""
    ids: list[bytes] = []
    commit, position = b"", 0
    for record, place in records:
        found = record.stretch(place, wanted.context, wanted.stream, first, wanted.end)
        if not ids:
            _, commit, position = found
        ids += found[0]
    return b"".join(ids), commit, position


def after_prefix(prefix: str) -> str | None:
    """The first text after all that begin with a prefix; None if none is."""
    while prefix and prefix[-1] == "\U0010ffff":
        prefix = prefix[:-1]
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)
