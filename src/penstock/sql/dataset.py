"""Tables of events as DuckDB scans them.

DuckDB scans any dataset of Arrow through its `scanner`, with the columns that it needs and as much of the filter as
Arrow can express. Here both become a read of the history or of files, as a stream of batches. Each scan starts from
the beginning, a query may run several at once, and all of them end at the same head.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.errors import DamagedRecord
from penstock.history.columns import TABLE
from penstock.history.options import ReadOptions
from penstock.history.ranges import ReadPartition, first_wanted, read_range
from penstock.history.source import History, Now, check_identity, open_history
from penstock.model import EventFilter, View
from penstock.sql.pushdown import Constraints, ParsedFilter, ValueRange, narrowed, parse_filter, recorded_ticks
from penstock.store.record import Record


class Failures:
    """The first error of a scan. DuckDB passes on its text only."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.stopped = threading.Event()

    def begin(self) -> None:
        """Forget the errors of earlier queries."""
        self.first = None
        self.stopped.clear()

    def watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on until the query is stopped, and keep the first error."""
        try:
            for batch in batches:
                if self.stopped.is_set():
                    # To end here would look as if there were no more rows.
                    raise KeyboardInterrupt
                yield batch
        except GeneratorExit:
            raise
        except BaseException as error:
            self.first = self.first or error
            raise


Read = Callable[[list[str], Constraints], Iterator[pa.RecordBatch]]
"""Reads rows with at least these columns. It may leave out rows that are not within the constraints."""


class ScannedTable(ds.Dataset):  # type: ignore[misc]
    """A table with the columns of events."""

    def __init__(self, read: Read, failures: Failures) -> None:
        # The base class stays uninitialised: DuckDB uses only what is defined here.
        self._read = read
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        return TABLE

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> "Scan":
        return Scan(self._read, self._failures, TABLE.names if columns is None else list(columns), filter)


class Scan:
    """One scan of some columns, of the rows that pass a filter."""

    def __init__(self, read: Read, failures: Failures, names: list[str], passing: pc.Expression | None) -> None:
        self._failures = failures
        self._names = names
        self._passing = passing
        parsed = ParsedFilter(frozenset()) if passing is None else parse_filter(passing, TABLE)
        needed = [name for name in TABLE.names if parsed.columns is None or name in names or name in parsed.columns]
        self._found = partial(read, needed, parsed.constraints)

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([TABLE.field(name) for name in self._names])
        return pa.RecordBatchReader.from_batches(schema, self._failures.watched(self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._found():
            passed = batch if self._passing is None else batch.filter(self._passing)
            if passed.num_rows:
                yield passed.select(self._names)


# --- the history ------------------------------------------------------------------------------------------------


def read_history(
    url: str, now: Now, begin: int, view: View | None, names: list[str], constraints: Constraints
) -> Iterator[pa.RecordBatch]:
    """The history of a store up to a head, from a position on, or the part of it that is in a view."""
    options = narrowed(ReadOptions(url, first=begin, last=now.head), constraints)
    first, last = _positions(options, now, recorded_ticks(constraints))
    if first <= last:
        needed = pa.schema([TABLE.field(name) for name in names])
        yield from read_range(options, needed, ReadPartition(now.identity, first, last, 0, last + 1), view)


def _positions(options: ReadOptions, now: Now, times: ValueRange) -> tuple[int, int]:
    """The first and the last position to read."""
    first, last = options.first, options.last
    if first > last or (times == (None, None) and (options.since is None or options.context is None)):
        return first, last
    with closing(open_history(options.url)) as history:
        check_identity(now.identity, history.now().identity, "the beginning of this query")
        first, last = recorded_between(history, times, first, last)
        return first_wanted(history, options, first, last), last


# --- positions of recorded times ------------------------------------------------------------------------------


def recorded_between(history: History, times: ValueRange, first: int, last: int) -> tuple[int, int]:
    """The first and the last position in a range whose events were recorded between two ticks, by binary search.

    If the search meets a damaged record, it returns the whole range: the scan finds out whether it needs that record.
    """
    try:
        low = first if times.low is None else _first_at(history, times.low, first, last)
        return low, last if times.high is None else _first_at(history, times.high + 1, low, last) - 1
    except (DamagedRecord, LookupError):
        return first, last


def _first_at(history: History, ticks: int, first: int, last: int) -> int:
    """The first position that was recorded at or after a time, or the one after the last."""
    low, high = first, last
    while low <= high:
        record = _record_at(history, (low + high) // 2)
        runs = record.runs()
        if runs[-1].recorded < ticks:
            low = record.last + 1
        elif runs[0].recorded >= ticks:
            high = record.position - 1
        else:
            begins = accumulate((run.length for run in runs), initial=record.position)
            found = next(begin for begin, run in zip(begins, runs, strict=False) if run.recorded >= ticks)
            return min(max(first, found), last + 1)
    return min(low, last + 1)


def _record_at(history: History, position: int) -> Record:
    for records in history.records(EventFilter(), position, position + 1):
        for record in records:
            if record.position <= position <= record.last:
                return record
    raise LookupError(position)
