"""The data source `penstock`: what Spark calls to read a history, as table or stream. docs/spark.md is the guide.

Spark pickles sources, readers and partitions to send them to other processes. So they hold options and nothing that is
open; each process opens the store itself.

The offset of a stream is a store, a timeline and the last position read. Positions have no gaps and history does not
change, so two offsets always mean the same events, and a batch that Spark repeats has the same rows. An offset of
another store or timeline raises StoreChanged.
"""

import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest
from penstock.files import made_of
from penstock.history import columns
from penstock.history.options import POSITION_MAX, ReadOptions
from penstock.history.ranges import first_wanted, plan, read_range
from penstock.history.source import History, Now, check_identity, open_history
from penstock.model.events import check_context, check_stream
from penstock.spark.sink import PenstockStreamWriter, PenstockWriter, WriteOptions, check_table
from penstock.store.contract import StoreIdentity

NAME: Final = "penstock"
TABLE: Final = from_arrow_schema(columns.TABLE, prefer_timestamp_ntz=False)
"""All columns, in order, with Spark's types."""
PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
ALL: Final = "*"
"""The option `filter` that means every stream. In a query it is an ordinary text, which no option can express."""

Offset = dict[str, Any]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a read. Raises InvalidRequest if a column is not one of the table, with the table's type."""
    for field in schema:
        if field.name not in columns.COLUMNS or TABLE[field.name].dataType != field.dataType:
            raise InvalidRequest(f"column {field.name}", f"of type {field.dataType.simpleString()} is not in the table")
    return to_arrow_schema(schema, timezone="UTC")


class PenstockSource(DataSource):
    """A history as a table that Spark reads and appends to."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([TABLE[name] for name in ReadOptions.of(self.options).columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        kind = PushdownReader if options.push_filters and _is_pushdown_worker() else PenstockReader
        return kind(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> "PenstockStreamReader":  # noqa: N802 - Spark's name
        return PenstockStreamReader(ReadOptions.of(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> PenstockWriter:
        return PenstockWriter(self._write_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:  # noqa: N802 - Spark's name
        return PenstockStreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise InvalidRequest("mode", "is overwrite or complete, but a history only grows; use append")
        options = WriteOptions.of(self.options)
        check_table(schema, options)
        return options


def _is_pushdown_worker() -> bool:
    """Whether Spark runs this process to push filters down. In any other, Spark fails if a reader accepts filters."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == PUSHDOWN_WORKER


class PenstockReader(DataSourceReader):
    """Reads the history up to the head that it had when Spark planned the read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(open_history(options.url)) as history:
            now = history.now()
            last = min(options.last, now.head)
            first = first_wanted(history, options, max(options.first, 1), last)
            return [InputPartition(each) for each in plan(history, now, options, first, last)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # If a read has no partitions, Spark makes one without a value.
        if partition.value is not None:
            yield from read_range(self._options, self._schema, partition.value)


class PushdownReader(PenstockReader):
    """Reads only the rows that pass the query's filters.

    Spark 4.3 plans the read of a table once. Every scan of the same DataFrame then uses the last plan, even a scan with
    other filters or none. So users must ask for this reader with an option.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what options can express; returns the filters that Spark must still apply."""
        self._options, left = push_filters(self._options, filters)
        return left


# -- filters of a query that become options of its read


def push_filters(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """Options narrowed by filters, and the filters that the options do not fully cover."""
    left = []
    for each in filters:
        options, is_covered = _narrow(options, each)
        if not is_covered:
            left.append(each)
    return options, left


def _narrow(options: ReadOptions, given: Filter) -> tuple[ReadOptions, bool]:
    """Options narrowed by one filter, and whether they cover all of it."""
    match given:
        case datasource.EqualTo((column,), value) | datasource.EqualNullSafe((column,), value):
            return _one_of(options, column, (value,))
        case datasource.In((column,), values):
            return _one_of(options, column, values)
        case datasource.StringStartsWith(("stream",), str(prefix)):
            return _with_prefix(options, prefix), prefix != ALL
        case datasource.GreaterThan(("position",), int(value)):
            return replace(options, first=max(options.first, value + 1)), True
        case datasource.GreaterThanOrEqual(("position",), int(value)):
            return replace(options, first=max(options.first, value)), True
        case datasource.LessThan(("position",), int(value)):
            return replace(options, last=min(options.last, value - 1)), True
        case datasource.LessThanOrEqual(("position",), int(value)):
            return replace(options, last=min(options.last, value)), True
        case datasource.IsNotNull((column,)):
            return options, column not in columns.NULLABLE
        case _:
            return options, False


def _one_of(options: ReadOptions, column: str, values: Sequence[Any]) -> tuple[ReadOptions, bool]:
    known = [value for value in values if value is not None]
    match column, known:
        case "type", _:
            types = known if options.types is None else [value for value in known if value in options.types]
            return replace(options, types=tuple(types)), True
        case "context", [context]:
            if options.context not in (None, context) or check_context(context):
                return _nothing(options), True
            return replace(options, context=context), True
        case "stream", [stream]:
            # Other streams may begin with the same text.
            return _with_prefix(options, stream), False
        case "position", [position]:
            first, last = max(options.first, position), min(options.last, position)
            return replace(options, first=first, last=last), True
        case _:
            return options, False


def _with_prefix(options: ReadOptions, prefix: str) -> ReadOptions:
    given = "" if options.filter == ALL else options.filter
    if prefix == ALL or given.startswith(prefix):
        return options
    if not prefix.startswith(given) or check_stream(prefix):
        return _nothing(options)
    return replace(options, filter=prefix)


def _nothing(options: ReadOptions) -> ReadOptions:
    return replace(options, last=0)


# -- streams


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process of the driver; executors read their ranges."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        # Only the planning process opens it, and keeps it: Spark asks for the latest offset many times a second.
        self._history: History | None = None
        self._target = POSITION_MAX
        self._planned = 0

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        now = self._now()
        return _offset(now, first_wanted(self._open(), self._options, max(self._options.first, 1), now.head) - 1)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        now = self._now()
        after = _position(start, now)
        end = min(now.head, self._options.last, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, after + limit.max_rows)
        self._planned = max(after, end)
        return _offset(now, self._planned)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        events = self._options.trigger_events_max
        return ReadAllAvailable() if events is None else ReadMaxRows(events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._now().head

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The head of the history, and how many positions are not in a batch yet; for progress reports."""
        now = self._now()
        head = min(now.head, self._options.last)
        return {**_offset(now, head), "behind": max(0, head - self._planned)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        now = self._now()
        first, last = _position(start, now) + 1, _position(end, now)
        return [InputPartition(each) for each in plan(self._open(), now, self._options, first, last)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is not None:
            yield from read_range(self._options, self._schema, partition.value)

    def stop(self) -> None:
        history, self._history = self._history, None
        if history is not None:
            history.close()

    def _open(self) -> History:
        if self._history is None:
            self._history = open_history(self._options.url)
        return self._history

    def _now(self) -> Now:
        return self._open().now()


@dataclass(frozen=True, slots=True)
class _StreamPosition:
    store: str
    timeline: int
    position: int


def _offset(now: Now, position: int) -> Offset:
    return {"store": now.identity.id, "timeline": now.identity.timeline, "position": position}


def _position(offset: Offset, now: Now) -> int:
    """The position of an offset, if it is one of this history. Spark keeps offsets in files, which can be damaged."""
    try:
        found = made_of(_StreamPosition, offset)
    except TypeError as error:
        raise InvalidRequest("the checkpoint", f"is damaged ({error}); start the query with a new one") from None
    check_identity(StoreIdentity(found.store, found.timeline), now.identity, "the checkpoint")
    return found.position
