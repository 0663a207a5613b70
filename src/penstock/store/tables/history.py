"""Reading the history: pages of events and of records, streams, and the position of a time."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, ClassVar, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from penstock.errors import DamagedRecord, StorageFailure
from penstock.model import ContextInfo, Event, EventFilter, StreamInfo
from penstock.store.contract import Page, ReadLimits, RecordSpan, Search
from penstock.store.erasure_filter import Hidden, hidden_in, hidden_in_stream, visible
from penstock.store.record import SEQUENCE_MAX, Record
from penstock.store.seals import BLOCK_BITS
from penstock.store.tables.database import Database

BLOCKS_PER_QUERY: Final = 64
COMMITS_PER_QUERY: Final = 256
SCANNED_EVENTS_MIN: Final = 1024
"""Events that a page scans for those of some types, however few the caller wants."""
Located = tuple[Record, int]
"""A record, and the position of one event of a stream in it."""


class StreamRange(NamedTuple):
    """The part of a stream to read: up to the sequence `end`, or down to it; all its events, or those of some types."""

    stream_id: int
    context: str
    stream: str
    end: int
    backward: bool
    types: Collection[str] | None = None


_Self = TypeVar("_Self", bound="HistoryReader")
_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")


def retried(method: Callable[Concatenate[_Self, _Params], _Answer]) -> Callable[Concatenate[_Self, _Params], _Answer]:
    """Retry a read of several statements once, on a new connection, if it lost its connection."""

    @wraps(method)
    def read(self: _Self, /, *given: _Params.args, **named: _Params.kwargs) -> _Answer:
        try:
            return method(self, *given, **named)
        except StorageFailure:
            if not self.db.can_retry():
                raise
        return method(self, *given, **named)

    return read


class HistoryReader(ABC):
    db: Database
    positions_per_query: ClassVar[int]
    """How many positions one query may scan, so that a sparse scan checks its deadline between queries."""
    last_name: ClassVar[str | bytes]
    """Sorts after every name."""

    def head(self) -> int:
        """The last position; 0 in an empty store."""
        return self.db.value("head") or 0

    def stream_head(self, context: str, stream: str) -> int:
        """A stream's last sequence; 0 if there is no such stream."""
        return self.db.value("stream_head", {"context": context, "stream": stream}) or 0

    def contexts(self, after: str, limit: int) -> list[ContextInfo]:
        return [ContextInfo(*row) for row in self.db.rows("contexts", {"after": after, "limit": limit})]

    def streams(self, context: str, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        values = {
            "context": context,
            "after": after,
            "low": max(after, prefix),
            "upper": after_prefix(prefix) or self.last_name,
        }
        return [StreamInfo(*row) for row in self.db.rows("streams", {**values, "limit": limit})]

    # -- one stream

    @retried
    def read_stream(
        self,
        context: str,
        stream: str,
        first: int,
        last: int | None,
        limits: ReadLimits,
        backward: bool = False,
        types: Collection[str] | None = None,
    ) -> Page:
        """Events of a stream from sequence `first` up to `last`, or down to it. First 0 backward: from the end."""
        is_quick = not backward and types is None
        if is_quick and (page := self._quick_stream_page(context, stream, max(first, 1), last, limits)):
            return page
        with self.db.snapshot():
            stream_id = self.db.value("find_stream", {"context": context, "stream": stream})
            if stream_id is None:
                return Page([], max(first, 1), True)
            if backward:
                head = self.db.value("last_of_stream", {"stream_id": stream_id}) or 0
                first = min(first, head) if first > 0 else head
                wanted = StreamRange(stream_id, context, stream, last or 1, True, types)
            else:
                first = max(first, 1)
                wanted = StreamRange(stream_id, context, stream, SEQUENCE_MAX if last is None else last, False, types)
            events = limits.events_max if types is None else COMMITS_PER_QUERY
            records = self._records_of_stream(wanted, first, events)
            return stream_page(wanted, first, limits, records, hidden_in_stream(self.db, context, stream))

    def _quick_stream_page(
        self, _context: str, _stream: str, _first: int, _last: int | None, _limits: ReadLimits
    ) -> Page | None:
        """A page from a single statement; None if that is not possible."""
        return None

    def _records_of_stream(self, wanted: StreamRange, first: int, events: int) -> Iterator[Located]:
        """The records of a range from a sequence on, each once; the caller needs about so many events."""
        name, step = ("commits_backward", -1) if wanted.backward else ("commits_forward", 1)
        limit = max(1, min(events, COMMITS_PER_QUERY))
        values = {"stream_id": wanted.stream_id, "sequence": first, "limit": limit}
        if wanted.backward:
            # Start at the commit that holds the first sequence.
            start = self.db.row("commits_forward", {**values, "limit": 1})
            values["sequence"] = start[0] if start else -1
        record: Record | None = None
        while commits := self.db.rows(name, values):
            held: list[Record] = []
            for index, (last, position) in enumerate(commits):
                if wanted.backward and last < wanted.end:
                    return
                if record is None or not record.position <= position <= record.last:
                    held = held or self._records_holding(commits, index, step)
                    record = held.pop(0) if held else None
                    if record is None or not record.position <= position <= record.last:
                        raise DamagedRecord(position, "it is missing")
                    yield record, position
                if not wanted.backward and last >= wanted.end:
                    return
                values["sequence"] = last + step

    @abstractmethod
    def _records_holding(self, commits: Sequence[tuple[int, int]], index: int, step: int) -> list[Record]:
        """The records that hold these commits (last sequence, position) from one on; perhaps only the first record."""

    def stored_ids(
        self, context: str, stream: str, first: int, last: int, staged: Sequence[Located] = ()
    ) -> tuple[bytes, bytes, int]:
        """The event ids of a range of sequences, with erased events, and the commit id and position of the first.

        `staged` are records that the database does not have yet.
        """
        stream_id = self.db.value("find_stream", {"context": context, "stream": stream}) or 0
        wanted = StreamRange(stream_id, context, stream, last, False)
        ids: list[bytes] = []
        commit, position = b"", 0
        for record, place in (*self._records_of_stream(wanted, first, last + 1 - first), *staged):
            found = record.stream_ids(place, context, stream, first, last)
            if not ids:
                _, commit, position = found
            ids += found[0]
        return b"".join(ids), commit, position

    # -- all streams

    def read_all(self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None = None) -> Page:
        """Events that pass a filter from a position on, up to and including `end`."""
        scanned = limits
        if wanted.types is not None:
            # Few of the events of a record may be of these types.
            scanned = limits._replace(events_max=max(limits.events_max, SCANNED_EVENTS_MIN))
        page = self._record_page(position, wanted, scanned, end)
        events: list[Event] = []
        for record in page.records:
            if len(events) > limits.events_max:
                break
            # One more than the caller wants tells where the next page begins.
            events += record.events(wanted, position, end, limit=limits.events_max - len(events) + 1)
        if len(events) > limits.events_max:
            return Page(events[: limits.events_max], events[limits.events_max].position, False)
        return Page(events, page.next, page.end)

    def read_records(
        self, position: int, wanted: EventFilter, limits: ReadLimits, *, checked: bool = True
    ) -> RecordSpan:
        """Records that may hold events of a filter; the first may begin before `position`.

        Without `checked` their checksums are not: the caller passes them on to a reader who does it.
        """
        return self._record_page(position, wanted, limits, None, checked=checked, whole=True)

    def find_position(self, wanted: EventFilter, ticks: int, limits: ReadLimits, start: int = 1) -> Search:
        """The first event of a context and prefix whose time is at or after `ticks`; searched from `start` on."""
        if start == 1 and wanted.context is not None:
            block = self.db.value("block_before_ticks", {"context": wanted.context, "ticks": ticks})
            # Everything before that block is older; a record that begins before the block may reach into it.
            start = max(1, (block or 0) << BLOCK_BITS)
        page = self.read_records(start, wanted, limits)
        for record in page.records:
            for event in record.events(wanted, start, since=ticks, limit=1):
                return Search(event.position, event.position + 1, False)
        return Search(None, page.next, page.end)

    @retried
    def _record_page(
        self,
        position: int,
        wanted: EventFilter,
        limits: ReadLimits,
        end: int | None,
        *,
        checked: bool = True,
        whole: bool = False,
    ) -> RecordSpan:
        """A page of records; `whole`: without the erased events of other contexts, too."""
        position = max(position, 1)
        if page := self._quick_record_page(position, wanted, limits, end, checked):
            return page
        deadline = time.monotonic() + limits.scan_ms_max / 1000
        records: list[Record] = []
        events = size = 0
        with self.db.snapshot():
            start = self.db.row("page_start", {"position": position, "context": wanted.context})
            head, low, context_id, has_erasures = start
            last = head if end is None else min(end, head)
            hidden = hidden_in(self.db, None if whole else wanted.context) if has_erasures else None

            def page_to(reached: int) -> RecordSpan:
                reached = min(reached, last)
                return RecordSpan(records, max(position, reached + 1), reached >= last)

            # The record that holds `position` may begin before it. A query that counts events counts all of it.
            low = low or position
            for name, values in self._queries(low, last, wanted, context_id) if position <= last else ():
                events_left = limits.events_max - events + position - low
                left = {"events_max": events_left, "bytes_max": limits.bytes_max - size}
                for first, data in self.db.each(name, {**values, **left, "limit": max(events_left, 1)}):
                    # A record without its erased events is a new one, with another checksum: check the old one.
                    record = Record(data, first, checked=checked or bool(hidden))
                    records.append(visible(record, hidden) if hidden else record)
                    events += record.last + 1 - max(first, position)
                    size += len(data)
                    if events >= limits.events_max or size >= limits.bytes_max or time.monotonic() > deadline:
                        return page_to(record.last)
                # The last record may reach beyond the range of the query.
                reached = max(values["high"], records[-1].last if records else 0)
                if time.monotonic() > deadline and reached >= position:
                    return page_to(reached)
        return page_to(last)

    def _quick_record_page(
        self, _position: int, _wanted: EventFilter, _limits: ReadLimits, _end: int | None, _checked: bool
    ) -> RecordSpan | None:
        """A page from a single statement; None if that is not possible."""
        return None

    def _queries(
        self, low: int, last: int, wanted: EventFilter, context_id: int | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The queries that together give all records of a filter between two positions, in order."""
        values: dict[str, Any] = {"context_id": context_id}
        if wanted.prefix:
            values |= {"prefix": wanted.prefix, "upper": after_prefix(wanted.prefix) or self.last_name}
        if wanted.context is None:
            name = "page_of_streams" if wanted.prefix else "page_of_records"
            for start in range(low, last + 1, self.positions_per_query):
                yield name, {**values, "low": start, "high": min(start + self.positions_per_query - 1, last)}
            return
        name = "page_of_streams" if wanted.prefix else "page_of_context"
        for start, high in self.ranges_of_context(context_id, low, last):
            yield name, {**values, "low": start, "high": high}

    def ranges_of_context(self, context_id: int | None, low: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges of positions in which a context has records; adjacent blocks make one range."""
        while context_id is not None and low <= last:
            values = {"context_id": context_id, "block": low >> BLOCK_BITS, "limit": BLOCKS_PER_QUERY}
            blocks = [block for (block,) in self.db.rows("next_blocks", values)]
            first = blocks[0] if blocks else 0
            for block, following in pairwise((*blocks, -1)):
                if following != block + 1 or block + 1 - first >= self.positions_per_query >> BLOCK_BITS:
                    start, high = max(low, first << BLOCK_BITS), min((block + 1 << BLOCK_BITS) - 1, last)
                    if start <= high:
                        yield start, high
                    first = following
            if len(blocks) < BLOCKS_PER_QUERY:
                return
            low = (blocks[-1] + 1) << BLOCK_BITS


def stream_page(
    wanted: StreamRange, first: int, limits: ReadLimits, records: Iterable[Located], hidden: Hidden
) -> Page:
    _, context, stream, end, backward, types = wanted
    step = -1 if backward else 1
    events: list[Event] = []
    budget = limits.bytes_max
    following = first
    deadline = time.monotonic() + limits.scan_ms_max / 1000
    for stored, position in records:
        record = visible(stored, hidden) if hidden else stored
        low, high = (end, following) if backward else (following, end)
        limit = limits.events_max - len(events) + 1
        for event in record.events_of_stream(position, context, stream, low, high, limit, backward, types):
            if len(events) >= limits.events_max or budget <= 0:
                return Page(events, following, False)
            events.append(event)
            budget -= len(event.body) + len(event.headers or "") + len(event.type) + 64
            following = event.sequence + step
        is_late = time.monotonic() > deadline
        if is_late or types is not None:
            # A long erased stream, or one of other types, has few events: the next page begins after this record, even
            # if this page is empty.
            mine = [run for run in record.runs() if (run.context, run.stream) == (context, stream)]
            if backward:
                following = max(min(following, mine[0].sequence - 1), end - 1)
            else:
                following = min(max(following, mine[-1].sequence + mine[-1].length), end + 1)
            # A page that is full does not search for one event more.
            if is_late or len(events) >= limits.events_max or budget <= 0:
                return Page(events, following, following < end if backward else following > end)
    return Page(events, following, True)


def after_prefix(prefix: str) -> str | None:
    """The first text after all names with a prefix; None if no text follows them."""
    while prefix and prefix[-1] == "\U0010ffff":
        prefix = prefix[:-1]
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)
