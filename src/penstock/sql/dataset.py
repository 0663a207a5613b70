"""The table `events` as DuckDB scans it.

DuckDB scans any dataset of Arrow through its `scanner`, and hands it the columns and as much of the filter as Arrow can
say. Here both become a read of the history: a stream of batches, with nothing but what the query needs. A scan begins
anew each time, and a query may have several under way; all of them end at the same head.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.history.columns import TABLE
from penstock.history.histories import Now, check_identity, open_history
from penstock.history.options import ReadOptions
from penstock.history.ranges import ReadPartition, read_range
from penstock.sql.extents import Extent, extent_of, narrowed, recorded_times
from penstock.sql.recorded import recorded_between
from penstock.sql.substrait import columns_of, tree


class Failures:
    """What kept a scan from going on. DuckDB passes on what it was as text only."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.stopped = threading.Event()

    def begin(self) -> None:
        """A query begins, which what became of others is no part of."""
        self.first = None
        self.stopped.clear()

    def watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, until somebody wants no more of them; what is raised between them is kept."""
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


class EventsDataset(ds.Dataset):  # type: ignore[misc]
    """The history of a store up to a head, from a position on."""

    def __init__(self, url: str, now: Now, failures: Failures, first: int = 1) -> None:
        # Nothing of the class above is set up: all that DuckDB asks for is here.
        self._options = ReadOptions(url, first=first, last=now.head)
        self._now = now
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return TABLE

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> "Scan":
        """One scan of some columns, of the rows that pass a filter."""
        names = TABLE.names if columns is None else list(columns)
        return Scan(self._options, self._now, self._failures, names, filter)


class Scan:
    """A scan that has not begun."""

    def __init__(
        self,
        options: ReadOptions,
        now: Now,
        failures: Failures,
        names: list[str],
        passing: pc.Expression | None,
    ) -> None:
        self._now = now
        self._failures = failures
        self._names = names
        self._passing = passing
        self._extent, looked_at = _understood(passing)
        self._options = narrowed(options, self._extent)
        needed = [name for name in TABLE.names if looked_at is None or name in names or name in looked_at]
        self._needed = pa.schema([TABLE.field(name) for name in needed])

    def to_reader(self) -> pa.RecordBatchReader:
        """Begin."""
        schema = pa.schema([TABLE.field(name) for name in self._names])
        return pa.RecordBatchReader.from_batches(schema, self._failures.watched(self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        first, last = self._positions()
        if first > last:
            return
        part = ReadPartition(self._now.identity, first, last, 0, last + 1)
        for batch in read_range(self._options, self._needed, part):
            passed = batch if self._passing is None else batch.filter(self._passing)
            if passed.num_rows:
                yield passed.select(self._names)

    def _positions(self) -> tuple[int, int]:
        """The first and the last position that can be wanted."""
        options = self._options
        first, last, times = options.first, options.last, recorded_times(self._extent)
        if first > last or (times == (None, None) and (options.since is None or options.context is None)):
            return first, last
        with closing(open_history(options.url)) as history:
            check_identity(self._now.identity, history.now().identity, "the beginning of this query")
            first, last = recorded_between(history, times, first, last)
            if options.since is not None and options.context is not None:
                found = history.position_of(options.context, options.since)
                first = last + 1 if found is None else max(first, found)
        return first, last


def _understood(passing: pc.Expression | None) -> tuple[Extent, frozenset[str] | None]:
    """Where the rows lie that pass a filter, and which columns it looks at; None if that is not known."""
    if passing is None:
        return Extent(), frozenset()
    node = tree(passing, TABLE)
    return extent_of(node), columns_of(node)
