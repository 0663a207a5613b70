"""Reading as a stream: what there is, and what comes.

An offset is a store, a timeline and the last position that has been read. Positions are dense and history does not
change, so that two offsets always mean the same events, and a batch that is read again is the same batch. An offset of
another store or timeline is StoreChanged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import InvalidRequest
from penstock.files import made_of
from penstock.history.histories import History, Now, check_identity, open_history
from penstock.history.options import ReadOptions
from penstock.history.ranges import plan, read_range
from penstock.store.contract import StoreIdentity

Offset = dict[str, Any]


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process of the driver's, and reads their ranges in those of the executors."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        # Only the planning process opens it, and keeps it: Spark asks for the latest offset many times a second.
        self._history: History | None = None
        self._target: int | None = None
        self._planned = 0

    # -- where it is

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """What a new query begins after."""
        now, options = self._now(), self._options
        position = max(options.first, 1) - 1
        if options.since is not None and options.context is not None:
            found = self._open().position_of(options.context, options.since)
            position = max(position, now.head if found is None else found - 1)
        return _offset(now, position)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """How far the next batch goes."""
        now = self._now()
        after = _position(start, now)
        end = self._end(now)
        if isinstance(limit, ReadMaxRows):
            end = min(end, after + limit.max_rows)
        self._planned = max(after, end)
        return _offset(now, self._planned)

    def _end(self, now: Now) -> int:
        end = min(now.head, self._options.last)
        return end if self._target is None else min(end, self._target)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much goes into one batch."""
        events = self._options.trigger_events_max
        return ReadAllAvailable() if events is None else ReadMaxRows(events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What comes after this moment is for the next run."""
        self._target = self._now().head

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The head of the history, and how many events it is beyond what has been planned: for progress reports."""
        now = self._now()
        head = min(now.head, self._options.last)
        return {**_offset(now, head), "behind": max(0, head - self._planned)}

    # -- what a batch has

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of a batch."""
        now = self._now()
        first, last = _position(start, now) + 1, _position(end, now)
        ranges = plan(self._open(), now, self._options, first, last)
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range."""
        if partition.value is not None:
            yield from read_range(self._options, self._schema, partition.value)

    def stop(self) -> None:
        """The query is over."""
        history, self._history = self._history, None
        if history is not None:
            history.close()

    def _open(self) -> History:
        if self._history is None:
            self._history = open_history(self._options.url)
        return self._history

    def _now(self) -> Now:
        return self._open().now()


def _offset(now: Now, position: int) -> Offset:
    return {"store": now.identity.id, "timeline": now.identity.timeline, "position": position}


def _position(offset: Offset, now: Now) -> int:
    """The position of an offset of this history. Spark keeps offsets in files, which may be damaged."""
    try:
        found = made_of(_Place, offset)
    except TypeError as error:
        raise InvalidRequest("the checkpoint", f"is damaged ({error}); begin the query with a new one") from None
    check_identity(StoreIdentity(found.store, found.timeline), now.identity, "the checkpoint")
    return found.position


@dataclass(frozen=True, slots=True)
class _Place:
    """An offset."""

    store: str
    timeline: int
    position: int
