"""Writing: tasks stage what they have, and the driver publishes it in one transaction when all have succeeded.

- A job that fails shows nothing. Each attempt of a task has a name of its own, and the driver publishes the attempts
  whose messages it got: one that failed, or a speculative one that lost, adds nothing.
- A batch of a streaming query is known by the query's id, which its checkpoint keeps, and the batch's number; a batch
  that is replayed adds nothing. A batch write that shall be known again says `producer` and `batch`.
- The numbers of a producer are those of one query, or of tables. Whoever else comes with the same number brings other
  rows, which must not pass for a repetition: so publications say their origin.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from io import TextIOWrapper
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
from penstock.files import created, make_folder, release
from penstock.model import ProducerMark, Winner
from penstock.spark.rows import BadRow, Units, shown, utc_now
from penstock.spark.stages import open_stages, portions
from penstock.spark.writing import DIVERT, WriteOptions
from penstock.store.staging import size_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Where a task finds the query and the batch that it works for."""
TABLE: Final = "table"
"""The origin of tables."""
NAME_LETTERS_MAX: Final = 100
"""Letters of a job's name in that of a file."""
_NO_LETTER: Final = re.compile(r"[^\w.-]")


@dataclass(frozen=True)
class _Job:
    """The job that a task works for: its name, whose number it is published under, and whose that is in turn.

    `label` is in the names of files with bad rows. It is the same for a job that comes again.
    """

    name: str
    producer: str
    origin: str
    label: str


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    """What a task that has succeeded tells the driver."""

    job: _Job
    part: int
    attempt: str
    units: int
    diverted: int = 0


def _stage(options: WriteOptions, job: _Job, batches: Iterator[pa.RecordBatch]) -> TaskStaged:
    """Stage the rows of one task."""
    context = TaskContext.get()
    part = context.partitionId() if context is not None else 0
    attempt, number = uuid4().hex, 0
    bad = _Diverted(options, job.name, part, attempt)
    with closing(bad), closing(open_stages(options.url, job.name)) as stages:
        units = Units(options.order_by, bad, stages.event_bytes_max())
        for portion in portions(_units(units, batches), size_of):
            stages.stage(part, attempt, number, portion)
            number += len(portion)
    return TaskStaged(job, part, attempt, number, bad.count)


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
        self._name = _aside_name(part, attempt)
        self._lines: Any = None
        self.count = 0

    def __call__(self, bad: BadRow) -> None:
        if self._options.bad_rows != DIVERT:
            raise shown(bad, self._part)
        if self._lines is None:
            folder = _aside(self._options, self._job)
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder)
            self._lines = TextIOWrapper(created(folder / self._name, "wb"), encoding="utf-8")
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
    return Path(str(options.bad_rows_path)) / f".{_file_name(job)}"


def _aside_name(part: int, attempt: str) -> str:
    return f"{part:05}-{attempt}.json"


def _file_name(text: str) -> str:
    """A name for a file, of which no two texts have the same."""
    # A name that begins so is hidden from those who read the folder.
    letters = _NO_LETTER.sub("_", text)[:NAME_LETTERS_MAX].lstrip("._")
    return f"{letters}-{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """Publish what tasks have staged, and only then show their bad rows."""
    staged = [message for message in messages if isinstance(message, TaskStaged)]
    if not staged:
        return
    job = staged[0].job
    # Afterwards would be too late: a job that has failed is believed to have added nothing.
    diverted = _diverted(options, staged)
    winners = [Winner(message.part, message.attempt, message.units) for message in staged]
    with closing(open_stages(options.url, job.name)) as stages:
        stages.publish(winners, ProducerMark(job.producer, number), job.origin)
    if options.bad_rows == DIVERT:
        _show(options, job, diverted)


def _diverted(options: WriteOptions, staged: Sequence[TaskStaged]) -> dict[int, Path]:
    """The files with bad rows, by part. InvalidRequest if the driver does not see one."""
    found = {}
    for message in staged:
        if message.diverted:
            path = _aside(options, message.job.name) / _aside_name(message.part, message.attempt)
            if not path.is_file():
                reason = f"is {options.bad_rows_path}, and the driver does not see the bad rows of a task there"
                raise InvalidRequest("option badRowsPath", f"{reason}: it must be one directory for all")
            found[message.part] = path
    return found


def _show(options: WriteOptions, job: _Job, diverted: Mapping[int, Path]) -> None:
    """Show bad rows. Those of a job that comes again take the place of the first ones."""
    folder, name = Path(str(options.bad_rows_path)), _file_name(job.label)
    places = {folder / f"{name}-{part:05}.json": path for part, path in diverted.items()}
    for place, path in places.items():
        release(path, place)
        path.replace(place)
    for place in {*folder.glob(f"{name}-*.json")} - {*places}:
        place.unlink()
    _drop_aside(options, job.name)


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
        if options.producer is not None and options.batch is None:
            # All writes would have one number, and all but the first would pass for repetitions of it.
            raise InvalidRequest("option producer", "is for tables with a number: say batch too, a new one for each")
        self._options = options
        label = f"spark/{uuid4().hex}" if options.producer is None else f"{options.producer}/{options.batch}"
        self._job = _Job(f"{label}/{uuid4().hex}", options.producer or label, TABLE, label)

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
        return _stage(self._options, _job_of(self._options, query, batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a batch have succeeded."""
        _publish(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """A batch has failed. What the driver has not heard of goes when the batch is replayed, or expires."""
        for job in {message.job.name for message in messages if isinstance(message, TaskStaged)}:
            _drop(self._options, job)


def _job_of(options: WriteOptions, query: str, batch: str) -> _Job:
    """The job of a query's batch."""
    name = f"spark/{query}" if options.producer is None else f"{options.producer}/{query}"
    return _Job(f"{name}/{batch}", options.producer or name, query, f"{name}/{batch}")
