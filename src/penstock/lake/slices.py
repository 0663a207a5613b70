"""Ranges of a store's events as a lake's files have them: sliced by day, each slice sorted.

Erased events keep their positions in a store. A lake keeps them too, so that a store can be restored from it. Every
position must be accounted for: a range with fewer events is an error, never a smaller file.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import StoreError
from penstock.history.columns import TABLE, stored_columns, table_batch
from penstock.history.source import check_identity, open_history
from penstock.lake.parquet import DAY_US, Erased, FileContents, day_of, in_order
from penstock.model import EventFilter, PositionRange
from penstock.model.times import TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.store.arrow import record_batch
from penstock.store.concat import Concat
from penstock.store.contract import StoreIdentity
from penstock.store.record import Record

EVENTS_BYTES_MAX: Final = 128 << 20
"""Bytes of events in one file, unless a single event has more. It takes about seven times that in memory."""
ROW_BYTES: Final = 100
"""About the bytes of an event without headers and body."""
_STORED: Final = stored_columns(TABLE.names)


def read_slices(url: str, identity: StoreIdentity, span: PositionRange) -> Iterator[FileContents]:
    """The events of a range as contents of files: of one day each, and not too large. Slices are always the same."""
    erased: list[Erased] = []
    held: list[pa.RecordBatch] = []
    first = span.first
    for rows, is_cut in _cut(_batches(_records(url, identity, span), span, erased)):
        if is_cut:
            last = int(rows["position"][0].as_py()) - 1
            yield _contents(held, erased, PositionRange(first, last))
            held, first = [], last + 1
        held.append(rows)
    yield _contents(held, erased, PositionRange(first, span.last))


def read_rows(url: str, identity: StoreIdentity, span: PositionRange) -> tuple[pa.Table, list[Erased]]:
    """The events of a range, sorted, and what is erased of it."""
    return rows_of(_records(url, identity, span), span)


def rows_of(records: Iterable[Sequence[Record]], span: PositionRange) -> tuple[pa.Table, list[Erased]]:
    erased: list[Erased] = []
    rows = in_order(_batches(records, span, erased))
    _check(rows.num_rows, erased, span)
    return rows, erased


def _contents(held: Sequence[pa.RecordBatch], erased: Sequence[Erased], span: PositionRange) -> FileContents:
    rows = in_order(held)
    mine = [part for each in erased if (part := each.between(*span)) is not None]
    _check(rows.num_rows, mine, span)
    first = rows["recorded_at"][0].value if rows.num_rows else (mine[0].recorded - UNIX_EPOCH_TICKS) // TICKS_PER_US
    return FileContents(day_of(first), *span, rows, mine)


def _check(rows: int, erased: Sequence[Erased], span: PositionRange) -> None:
    found = rows + sum(each.events for each in erased)
    if found != span.length:
        raise StoreError(f"positions {span.first} to {span.last} are {found} events, not {span.length}: run verify")


# -- from records to rows


def _records(url: str, identity: StoreIdentity, span: PositionRange) -> Iterator[list[Record]]:
    with closing(open_history(url)) as history:
        check_identity(identity, history.now().identity, "the lake")
        yield from history.records(EventFilter(), span.first, span.last + 1)


def _batches(
    records: Iterable[Sequence[Record]], span: PositionRange, erased: list[Erased]
) -> Iterator[pa.RecordBatch]:
    """Rows by position. Adds erased events to a list."""
    for found in records:
        mine = [record for record in found if record.last >= span.first and record.position <= span.last]
        if not mine:
            continue
        batch = record_batch(mine, first=span.first, last=span.last, columns=_STORED)
        wanted = min(mine[-1].last, span.last) - max(mine[0].position, span.first) + 1
        if batch.num_rows < wanted:
            erased += _erased(mine, span)
        if batch.num_rows:
            yield table_batch(batch, TABLE)


def _erased(records: Sequence[Record], span: PositionRange) -> list[Erased]:
    """The erased events of records, in runs of the same commit."""
    joined = Concat(records)
    positions = joined.positions()
    empty = joined.types.index.get(b"", -1)
    (gone,) = np.nonzero((joined.codes == empty) & (positions >= span.first) & (positions <= span.last))
    if not len(gone):
        return []
    runs = joined.per_event(np.arange(len(joined.runs)))[gone]
    starts = np.flatnonzero((np.diff(runs, prepend=-1) != 0) | (np.diff(gone, prepend=-2) != 1))
    counts = np.diff(np.append(starts, len(gone)))
    names = [name.decode() for name in joined.names.index]
    at, of = gone[starts], runs[starts]
    columns: Any = (
        *(positions[at], counts, joined.contexts[of], joined.streams[of]),
        *(joined.sequences()[at], joined.runs["recorded"][of]),
    )
    return [
        Erased(position, count, names[context], names[stream], sequence, recorded)
        for position, count, context, stream, sequence, recorded in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]


# -- slices


def _cut(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Slices of rows, and whether a new file begins with each: when the day changes, or the last file is full.

    That depends on the rows only, not on the size of batches.
    """
    day: int | None = None
    size = 0
    for batch in batches:
        days = batch["recorded_at"].cast(pa.int64()).to_numpy() // DAY_US
        sizes = ROW_BYTES + _lengths(batch["body"]) + _lengths(batch["headers"])
        start = 0
        while start < batch.num_rows:
            begins = day is not None and (int(days[start]) != day or size + int(sizes[start]) > EVENTS_BYTES_MAX)
            day, size = int(days[start]), 0 if begins else size
            sums = size + np.cumsum(sizes[start:])
            fits = max(1, int(np.searchsorted(sums, EVENTS_BYTES_MAX, "right")))
            others = np.flatnonzero(days[start:] != day)
            count = min(fits, int(others[0])) if len(others) else fits
            yield batch.slice(start, count), begins
            size = int(sums[count - 1])
            start += count


def _lengths(texts: Any) -> Any:
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.diff(offsets.astype(np.int64))
