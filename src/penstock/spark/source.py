"""The data source `penstock`, as Spark knows it. docs/spark.md is its guide.

Sources, readers and ranges are pickled on their way to other processes, so they hold options and nothing that is open;
a store is opened where it is read.
"""

import sys
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest
from penstock.history.histories import History, open_history
from penstock.history.options import ReadOptions
from penstock.history.ranges import plan, read_range
from penstock.spark.columns import arrow_schema, table_with
from penstock.spark.pushing import push
from penstock.spark.sink import PenstockStreamWriter, PenstockWriter
from penstock.spark.streaming import PenstockStreamReader
from penstock.spark.writing import WriteOptions, check_table

NAME: Final = "penstock"
PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockSource(DataSource):
    """The history of a Penstock as a table."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return NAME

    def schema(self) -> StructType:
        """The columns that are asked for, or all."""
        return table_with(ReadOptions.of(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what there is now."""
        options = ReadOptions.of(self.options)
        kind = PushingReader if options.push_filters and _filters_are_pushed() else PenstockReader
        return kind(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802 - Spark's name
        """A reader of what there is and what comes."""
        return PenstockStreamReader(ReadOptions.of(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> PenstockWriter:
        """A writer of a table. A history is only added to: the mode must be `append`."""
        return PenstockWriter(self._writing(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:  # noqa: N802 - Spark's name
        """A writer of a stream. Its output mode must be `append`."""
        return PenstockStreamWriter(self._writing(schema, overwrite))

    def _writing(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise InvalidRequest("mode", "is overwrite or complete; a history is only added to: say append")
        options = WriteOptions.of(self.options)
        check_table(schema, options)
        return options


def _filters_are_pushed() -> bool:
    """Whether this process is the one that a session with spark.sql.python.filterPushdown.enabled pushes filters with.

    Any other would fail because of a reader that takes filters.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHING_WORKER in sys.modules or getattr(main, "name", "") == PUSHING_WORKER


class PenstockReader(DataSourceReader):
    """Reads what was there when it was planned."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Ranges of positions, up to the head of the history."""
        with closing(open_history(self._options.url)) as history:
            now = history.now()
            first, last = max(self._options.first, 1), min(self._options.last, now.head)
            ranges = plan(history, now, self._options, self._start(history, first, last), last)
            return [InputPartition(each) for each in ranges]

    def _start(self, history: History, first: int, last: int) -> int:
        """Where to begin: the events of a context before the first one that is late enough need not be read."""
        since, context = self._options.since, self._options.context
        if since is None or context is None:
            return first
        found = history.position_of(context, since)
        return last + 1 if found is None else max(first, found)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range."""
        # Spark makes a partition of its own, without a value, if there is none.
        if partition.value is not None:
            yield from read_range(self._options, self._schema, partition.value)


class PushingReader(PenstockReader):
    """Reads only what filters let through.

    Spark 4.3 plans a table's read once, and has every scan of the same DataFrame use the plan that was made last, also
    scans with other filters or none. So this is only for those who ask for it with an option.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be taken; the filters that Spark has to apply itself."""
        self._options, left = push(self._options, filters)
        return left
