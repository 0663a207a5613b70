"""Reading a store on PostgreSQL.

Most pages come from a single statement. The database itself measures the records, so that it sends no more of them than
a page holds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar, Final

from penstock.errors import DamagedRecord, NotDurable
from penstock.model import EventFilter, StoreStats, ticks_of_unix_ns
from penstock.store import watermarks
from penstock.store.contract import Page, ReadLimits, RecordSpan
from penstock.store.erasure_filter import Hidden
from penstock.store.postgres import schema
from penstock.store.postgres.arrays import Numbers
from penstock.store.postgres.connection import Target
from penstock.store.postgres.database import PostgresDatabase
from penstock.store.record import SEQUENCE_MAX, Record
from penstock.store.seals import BLOCK_BITS
from penstock.store.tables.history import COMMITS_PER_QUERY, Located, StreamRange, after_prefix, retried, stream_page
from penstock.store.tables.store import Store

OUTPUTS_PER_QUERY: Final = 256
STREAM_BYTES_MAX: Final = 8 << 20
"""Bytes of a stream's records that one query may bring."""
POSITION_MAX: Final = (1 << 63) - 1

Clock = Callable[[], int]
"""Nanoseconds since 1970."""


class PostgresReader(Store):
    """A store that is open for reading, next to the processes that write it. It reconnects after a lost connection."""

    db: PostgresDatabase
    positions_per_query: ClassVar[int] = 1 << 14
    last_name: ClassVar[str | bytes] = "\U0010ffff" * 129
    """Names have at most 512 bytes."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.target = Target.of(url)
        self._clock = clock
        self.db = self._open()

    def _open(self) -> PostgresDatabase:
        database = PostgresDatabase(self.target, write=False)
        try:
            schema.require(database)
        except BaseException:
            database.close()
            raise
        return database

    def now(self) -> int:
        return int(self.db.value("now")) if self._clock is None else ticks_of_unix_ns(self._clock())

    @retried
    def stats(self) -> StoreStats:
        with self.db.snapshot():
            counts = self.db.row("stats")
            return StoreStats(*self.identity(), schema.SCHEMA_VERSION, *counts)

    def free_bytes(self) -> int | None:
        return None

    def note_watermark(self, mark: watermarks.Watermark) -> None:
        with closing(PostgresDatabase(self.target, write=True)) as database, database.turn():
            database.later("set_meta", {"key": watermarks.file_name(mark.kind), "value": watermarks.encode(mark)})

    @retried
    def watermarks(self) -> list[watermarks.Watermark]:
        texts = [self.db.value("meta", {"key": watermarks.file_name(kind)}) for kind in watermarks.KINDS]
        return [mark for text in texts if text and (mark := watermarks.decode(text))]

    def refusal(self) -> NotDurable | None:
        return self.db.refusal()

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
        size = sum(len(row[5]) for row in rows if row[5] is not None)
        if has_erasures or (len(rows) < limit and size >= STREAM_BYTES_MAX):
            return None
        wanted = StreamRange(stream_id, context, stream, end, False)
        page = stream_page(wanted, first, limits, _first_records(rows, end), Hidden())
        return None if page.end and len(rows) == limit and rows[-1][2] < end else page

    def _records_holding(self, commits: Sequence[tuple[int, int]], index: int, step: int) -> list[Record]:
        positions = Numbers(position for _, position in commits[index:])
        values = {"positions": positions, "sign": step, "bytes_max": STREAM_BYTES_MAX}
        return [Record(data, position) for position, data in self.db.rows("records_holding", values)]

    def _quick_record_page(
        self, position: int, wanted: EventFilter, limits: ReadLimits, end: int | None, checked: bool
    ) -> RecordSpan | None:
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
            return RecordSpan([], position, True)
        records = [Record(data, first, checked=checked) for *_, first, data in rows if first is not None]
        is_full = sum(record.count for record in records) >= limits.events_max or (
            sum(len(record.data) for record in records) >= limits.bytes_max
        )
        # A context without a block from there on has nothing more.
        if not is_full and high is not None and high < last:
            return None
        reached = min(records[-1].last, last) if is_full else last
        return RecordSpan(records, max(position, reached + 1), reached >= last)

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
