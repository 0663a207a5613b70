"""Reading the history of a store on PostgreSQL.

Most pages come from a single statement. The database itself measures the records, so that it sends no more of them than
a page holds.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from penstock.errors import DamagedRecord
from penstock.model import EventFilter
from penstock.store.contract import Page, ReadLimits, RecordPage
from penstock.store.erasure_filter import Hidden
from penstock.store.postgres.arrays import Numbers
from penstock.store.postgres.database import Database
from penstock.store.record import SEQUENCE_MAX, Record
from penstock.store.seals import BLOCK_BITS
from penstock.store.tables.history import History, Located, StreamRange, after_prefix, stream_page

COMMITS_PER_QUERY: Final = 256
OUTPUTS_PER_QUERY: Final = 256
STREAM_BYTES_MAX: Final = 8 << 20
"""Bytes of a stream's records that one query may bring."""
POSITION_MAX: Final = (1 << 63) - 1

_Place = tuple[int, int]
"""The last sequence and the position of a commit."""


class PostgresHistory(History[Database]):
    positions_per_query: ClassVar[int] = 1 << 14
    last_name: ClassVar[str | bytes] = "\U0010ffff" * 129
    """Names have at most 512 bytes."""

    def _quick_stream_page(
        self, context: str, stream: str, first: int, last: int | None, limits: ReadLimits
    ) -> Page | None:
        limit = max(1, min(limits.events_max + 1, COMMITS_PER_QUERY))
        values = {"context": context, "stream": stream, "sequence": first, "limit": limit}
        rows = self.db.rows("first_page_of_stream", {**values, "bytes_max": STREAM_BYTES_MAX})
        stream_id, has_erasures, reached, *_ = rows[0]
        if stream_id is None or reached is None:
            return Page([], first, True)
        end = SEQUENCE_MAX if last is None else last
        if has_erasures or (len(rows) < limit and _is_cut(row[5] for row in rows)):
            return None
        wanted = StreamRange(stream_id, context, stream, end, False)
        page = stream_page(wanted, first, limits, _first_records(rows, end), Hidden())
        return None if page.end and len(rows) == limit and rows[-1][2] < end else page

    def _records_of_stream(self, wanted: StreamRange, first: int, events: int) -> Iterator[Located]:
        step = -1 if wanted.backward else 1
        name = "commits_backward" if wanted.backward else "commits_forward"
        limit = max(1, min(events, COMMITS_PER_QUERY))
        values = {"stream_id": wanted.stream_id, "sequence": first, "limit": limit}
        if wanted.backward:
            # Start at the commit that holds the first sequence.
            start = self.db.row("commits_forward", {**values, "limit": 1})
            values["sequence"] = start[0] if start else -1
        while places := _within(rows := self.db.rows(name, values), wanted):
            positions = {"positions": Numbers(position for _, position in places), "sign": step}
            found = self.db.rows("records_holding", {**positions, "bytes_max": STREAM_BYTES_MAX})
            held = [Record(data, position) for position, data in found]
            reached = yield from _each(held, places)
            is_end = len(places) < len(rows) or (not wanted.backward and reached >= wanted.end)
            if is_end and reached == places[-1][0]:
                return
            values["sequence"] = reached + step

    def _quick_record_page(
        self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None, checked: bool
    ) -> RecordPage | None:
        if wanted.context is None and wanted.prefix:
            return None
        name = "first_page" if wanted.context is None else "first_page_of_context"
        values: dict[str, Any] = {"position": position, "end": POSITION_MAX if end is None else end}
        values |= {"events_max": max(limits.events_max, 1), "bytes_max": max(limits.bytes_max, 1)}
        values["span"] = self.positions_per_query
        if wanted.context is not None:
            place = {
                "context": wanted.context,
                "prefix": wanted.prefix,
                "upper": after_prefix(wanted.prefix) or self.last_name,
            }
            values |= {**place, "block_bits": BLOCK_BITS}
        rows = self.db.rows(name, values)
        head, high, has_erasures, *_ = rows[0]
        if has_erasures:
            return None
        last = head if end is None else min(end, head)
        if position > last:
            return RecordPage([], position, True)
        records = [Record(data, first, checked=checked) for *_, first, data in rows if first is not None]
        is_full = sum(record.count for record in records) >= limits.events_max or (
            sum(len(record.data) for record in records) >= limits.bytes_max
        )
        # A context without a block from there on has nothing more.
        if not is_full and high is not None and high < last:
            return None
        reached = min(records[-1].last, last) if is_full else last
        return RecordPage(records, max(position, reached + 1), reached >= last)

    def _outputs(self, iterator: int, ordinal: int, limits: ReadLimits, /) -> Iterator[tuple[int, int, bytes]]:
        start: int = self.db.value("output_start", {"id": iterator, "ordinal": ordinal}) or 0
        limit = max(1, min(limits.events_max + 1, OUTPUTS_PER_QUERY))
        values = {"id": iterator, "ordinal": start, "limit": limit, "bytes_max": max(limits.bytes_max, 1)}
        while rows := self.db.rows("outputs_from", values):
            yield from rows
            values["ordinal"] = rows[-1][0] + 1


def _first_records(rows: list[Any], end: int) -> Iterator[Located]:
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


def _within(rows: Sequence[_Place], wanted: StreamRange) -> list[_Place]:
    """The commits (last sequence, position) that have something of a range, in the order they came."""
    if wanted.backward:
        return [(last, position) for last, position in rows if last >= wanted.end]
    cut = next((index for index, (last, _) in enumerate(rows, 1) if last >= wanted.end), len(rows))
    return list(rows[:cut])


def _each(held: list[Record], places: Sequence[_Place]) -> Generator[Located, None, int]:
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
