"""Writing: tasks stage what they have, and the driver publishes it in one transaction when all have succeeded.

- A job that fails shows nothing. Each attempt of a task has a name of its own, and the driver publishes the attempts
  whose messages it got: one that failed, or a speculative one that lost, adds nothing.
- A batch of a streaming query is known by the query's id, which its checkpoint keeps, and the batch's number; a batch
  that is replayed adds nothing. A batch write that shall be known again says `producer` and `batch`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.errors import InvalidRequest
from penstock.model import ProducerMark, Winner
from penstock.spark.rows import BadRow, Units, shown, utc_now
from penstock.spark.stages import open_stages, portions
from penstock.spark.writing import DIVERT, WriteOptions
from penstock.store.staging import size_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Where a task finds the query and the batch that it works for."""


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    """What a task that has succeeded tells the driver."""

    job: str
    producer: str
    part: int
    attempt: str
    units: int
    diverted: int = 0


@dataclass(frozen=True)
class _Job:
    """The job that a task works for: its name, and whose number it is published under."""

    name: str
    producer: str


def _stage(options: WriteOptions, job: _Job, batches: Iterator[pa.RecordBatch]) -> TaskStaged:
    """Stage the rows of one task."""
    context = TaskContext.get()
    part = context.partitionId() if context is not None else 0
    attempt, number = uuid4().hex, 0
    bad = _Diverted(options, job.name, part, attempt)
    units = Units(options.order_by, bad)
    with closing(bad), closing(open_stages(options.url, job.name)) as stages:
        for portion in portions(_units(units, batches), size_of):
            stages.stage(part, attempt, number, portion)
            number += len(portion)
    return TaskStaged(job.name, job.producer, part, attempt, number, bad.count)


def _units(units: Units, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from units.add(batch)
    yield from units.rest()


class _Diverted:
    """What becomes of bad rows: the first fails the task, or they go to a file of the attempt, a line each."""

    def __init__(self, options: WriteOptions, job: str, part: int, attempt: str) -> None:
        self._options = options
        self._job = job
        self._part = part
        self._name = f"{part:05}-{attempt}.json"
        self._lines: Any = None
        self.count = 0

    def __call__(self, bad: BadRow) -> None:
        if self._options.bad_rows != DIVERT:
            raise shown(bad, self._part)
        if self._lines is None:
            folder = _aside(self._options, self._job)
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = (folder / self._name).open("w", encoding="utf-8")
        line = {"partition": self._part, "row": bad.row, "column": bad.column, "reason": bad.reason, "at": utc_now()}
        self._lines.write(json.dumps({**line, "values": bad.values}, default=_plain, ensure_ascii=False) + "\n")
        self.count += 1

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _aside(options: WriteOptions, job: str) -> Path:
    """Where bad rows of a job wait until it is published; readers of folders leave out what begins with a dot."""
    return Path(str(options.bad_rows_path)) / f".{job.replace('/', '_')}"


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """Publish what tasks have staged, and only then show their bad rows."""
    staged = [message for message in messages if isinstance(message, TaskStaged)]
    if not staged:
        return
    job, producer = staged[0].job, staged[0].producer
    winners = [Winner(message.part, message.attempt, message.units) for message in staged]
    with closing(open_stages(options.url, job)) as stages:
        stages.publish(winners, ProducerMark(producer, number))
    _show_diverted(options, staged)


def _show_diverted(options: WriteOptions, staged: Sequence[TaskStaged]) -> None:
    if options.bad_rows != DIVERT:
        return
    job = staged[0].job
    for message in staged:
        if message.diverted:
            name = f"{message.part:05}-{message.attempt}.json"
            # A batch that is replayed puts the same rows in the place of the first ones.
            shown_as = f"{job.replace('/', '_')}-{message.part:05}.json"
            (_aside(options, job) / name).replace(Path(str(options.bad_rows_path)) / shown_as)
    _drop_aside(options, job)


def _drop_aside(options: WriteOptions, job: str) -> None:
    folder = _aside(options, job)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _drop(options: WriteOptions, job: str) -> None:
    with closing(open_stages(options.url, job)) as stages:
        stages.drop()
    if options.bad_rows == DIVERT:
        _drop_aside(options, job)


class PenstockWriter(DataSourceArrowWriter):
    """Writes a table. It is pickled once, and so its job has one name in all processes."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        name = options.producer or "spark"
        batch = "" if options.batch is None else f"/{options.batch}"
        self._job = _Job(f"{name}{batch}/{uuid4().hex}", options.producer or f"spark/{uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return _stage(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded."""
        _publish(self._options, messages, self._options.batch or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - the job has one name
        """The job has failed."""
        _drop(self._options, self._job.name)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        if options.batch is not None:
            raise InvalidRequest("option batch", "is for tables; the batches of a stream have numbers of their own")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidRequest("query", "has told its task neither its id nor its batch; this Spark is not known")
        producer = self._options.producer or f"spark/{query}"
        return _stage(self._options, _Job(f"{producer}/{batch}", producer), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a batch have succeeded."""
        _publish(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """A batch has failed. What the driver has not heard of goes when the batch is replayed, or expires."""
        for job in {message.job for message in messages if isinstance(message, TaskStaged)}:
            _drop(self._options, job)
