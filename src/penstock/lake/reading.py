"""The events of a store as a lake has them: ranges of positions, cut into pieces by day, each sorted.

What is erased in a store keeps its place there. A lake keeps it too, beside the rows, so that a store can be made of a
lake alone. So every position is accounted for: a range that has fewer is an error, never a smaller file.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import StoreError
from penstock.history.columns import TABLE, stored_columns, table_batch
from penstock.history.histories import check_identity, open_history
from penstock.lake.parquet import DAY_US, Erased, Piece, day_of, in_order
from penstock.model import EventFilter, PositionRange
from penstock.model.times import TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.store.arrow import record_batch
from penstock.store.concat import Concat
from penstock.store.contract import StoreIdentity
from penstock.store.record import Record

PIECE_BYTES_MAX: Final = 128 << 20
"""Bytes of events in one piece, which is made in memory and takes about seven times that; only an event that is larger
by itself makes it more."""
ROW_BYTES: Final = 100
"""About what an event takes beside its headers and body."""
_STORED: Final = stored_columns(TABLE.names)


def read_pieces(url: str, identity: StoreIdentity, span: PositionRange) -> Iterator[Piece]:
    """The events of a range in pieces: of one day each, and not too large. They are cut alike every time."""
    erased: list[Erased] = []
    held: list[pa.RecordBatch] = []
    first = span.first
    for rows, is_cut in _cut(_batches(_records(url, identity, span), span, erased)):
        if is_cut:
            last = _first_position(rows) - 1
            yield _piece(held, erased, PositionRange(first, last))
            held, first = [], last + 1
        held.append(rows)
    yield _piece(held, erased, PositionRange(first, span.last))


def read_rows(url: str, identity: StoreIdentity, span: PositionRange) -> tuple[pa.Table, list[Erased]]:
    """The events of a range, sorted, and what is erased of it."""
    return rows_of(_records(url, identity, span), span)


def rows_of(records: Iterable[Sequence[Record]], span: PositionRange) -> tuple[pa.Table, list[Erased]]:
    """The events of records, sorted, and what is erased of them."""
    erased: list[Erased] = []
    rows = in_order(_batches(records, span, erased))
    _check(rows.num_rows, erased, span)
    return rows, erased


def _piece(held: Sequence[pa.RecordBatch], erased: Sequence[Erased], span: PositionRange) -> Piece:
    rows = in_order(held)
    mine = [part for each in erased if (part := each.between(*span)) is not None]
    _check(rows.num_rows, mine, span)
    return Piece(_day(rows, mine), *span, rows, mine)


def _day(rows: pa.Table, erased: Sequence[Erased]) -> str:
    if rows.num_rows:
        return day_of(rows["recorded_at"][0].value)
    return day_of((erased[0].recorded - UNIX_EPOCH_TICKS) // TICKS_PER_US)


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
    """Rows by position; what is erased is added to a list."""
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
    """What is erased in records, in rows of the same commit."""
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


# -- cutting


def _cut(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Rows in slices, and whether a piece begins with each: where the day is another, or the last piece is full.

    Where that is depends on the rows alone, not on how they come in batches.
    """
    day: int | None = None
    size = 0
    for batch in batches:
        days, sizes = _days(batch), _sizes(batch)
        start = 0
        while start < batch.num_rows:
            begins = day is not None and (int(days[start]) != day or size + int(sizes[start]) > PIECE_BYTES_MAX)
            day, size = int(days[start]), 0 if begins else size
            sums = size + np.cumsum(sizes[start:])
            fits = max(1, int(np.searchsorted(sums, PIECE_BYTES_MAX, "right")))
            others = np.flatnonzero(days[start:] != day)
            count = min(fits, int(others[0])) if len(others) else fits
            yield batch.slice(start, count), begins
            size = int(sums[count - 1])
            start += count


def _days(batch: pa.RecordBatch) -> Any:
    return batch["recorded_at"].cast(pa.int64()).to_numpy() // DAY_US


def _sizes(batch: pa.RecordBatch) -> Any:
    return ROW_BYTES + _lengths(batch["body"]) + _lengths(batch["headers"])


def _lengths(texts: Any) -> Any:
    if texts.null_count == len(texts):
        return np.zeros(len(texts), np.int64)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.diff(offsets.astype(np.int64))


def _first_position(rows: pa.RecordBatch) -> int:
    return int(rows["position"][0].as_py())
