"""Writing a table or a stream to a history: tasks stage events, and the driver publishes them in one transaction.

- A job that fails shows nothing. Each attempt at a task has its own name, and the driver publishes the attempts whose
  messages Spark accepted. An attempt that failed, or a speculative one that lost, adds nothing.
- A batch of a streaming query has the query's id, which its checkpoint keeps, and a number. A replayed batch adds
  nothing. To make the write of a table idempotent, users give it `producer` and `batch`.
- The numbers of a producer belong to one query, or to tables. Another writer with the same number brings other rows,
  which must not pass for a repeat. So each publication names its origin.

Every row is checked. Errors are InvalidRequest and name the option or the column. docs/spark.md has the tables.
"""

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from hashlib import blake2b
from io import TextIOWrapper
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, StructType

from penstock.errors import InvalidRequest, StoreInUse
from penstock.event_json import BadEvent, NotPlain, id_of, plain_ids
from penstock.files import created, make_folder, release
from penstock.history.options import check_url, option, parse_options, token_option, whole
from penstock.model import ANY, LOG_CONTEXT, ProducerMark, StagedUnit, Winner, now_ticks, stamp_of
from penstock.model.columns import columns_of_parts
from penstock.model.events import check_context, check_name, check_stream, check_type, random_id
from penstock.model.times import TICKS_MAX, TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.settings.table import choice
from penstock.spark.stages import open_stages, requests_of
from penstock.store.stages import UNIT_BYTES_MAX, UNIT_EVENTS_MAX, size_of, unit_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties in which Spark tells a task its query and batch."""
TABLE_ORIGIN: Final = "table"
FILE_NAME_CHARS_MAX: Final = 100
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^\w.-]")

# -- options


FAIL: Final = "fail"
DIVERT: Final = "divert"
PRODUCER_BYTES_MAX: Final = 400
"""Bytes of a producer's name. Its jobs' names consist of it, a query and a batch."""
_SPARK_OPTIONS: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark itself adds to a write."""


def _producer(value: str) -> str:
    if reason := check_name(value):
        raise ValueError(reason)
    if (size := len(value.encode())) > PRODUCER_BYTES_MAX:
        raise ValueError(f"has {size} bytes; at most {PRODUCER_BYTES_MAX} are allowed")
    return value


def _column(value: str) -> str:
    if not value:
        raise ValueError("must be the name of a column")
    return value


def _folder(value: str) -> str:
    path = value.removeprefix("file://")
    if not path or "://" in path:
        raise ValueError("must be a directory that the driver and all executors see under this name")
    return path


@dataclass(frozen=True, slots=True)
class WriteOptions:
    url: str = option("url", check_url)
    order_by: str | None = option("orderBy", _column, None)
    bad_rows: str = option("badRows", choice(FAIL, DIVERT), FAIL)
    bad_rows_path: str | None = option("badRowsPath", _folder, None)
    producer: str | None = option("producer", _producer, None)
    batch: int | None = option("batch", whole(0), None)
    token: None = token_option()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        options = parse_options(cls, given, _SPARK_OPTIONS)
        if (options.bad_rows == DIVERT) != (options.bad_rows_path is not None):
            raise InvalidRequest("option badRowsPath", "belongs to badRows=divert; set both, or neither")
        if options.batch is not None and options.producer is None:
            raise InvalidRequest("option batch", "is the number of a producer's table; set producer too")
        return options


# -- columns


_WHOLE: Final = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_TIMES: Final = (types.DateType, types.TimestampType, types.TimestampNTZType)
ORDERED: Final = (*_WHOLE, *_TIMES, types.FloatType, types.DoubleType, types.StringType, types.BinaryType)
"""Types that a column named by `orderBy` may have."""
TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "context": (types.StringType,),
    "stream": (types.StringType,),
    "type": (types.StringType,),
    "body": (types.BinaryType,),
    "text": (types.StringType,),
    "headers": (types.StringType,),
    "event_id": (types.StringType, types.BinaryType),
    "timestamp": (types.TimestampType,),
    "ticks": (types.LongType,),
    "expected_version": _WHOLE,
}
"""The columns that a write takes, and their types."""
REQUIRED: Final = ("context", "stream", "type")
ASSIGNED: Final = ("position", "sequence", "recorded_at")
"""Columns of a table that was read which a write ignores, because the store assigns them."""


def check_table(schema: StructType, options: WriteOptions) -> None:
    """Raise InvalidRequest unless a table of this schema can be written."""
    names = schema.fieldNames()
    for name in REQUIRED:
        if name not in names:
            raise InvalidRequest(f"column {name}", f"is missing; the table has {', '.join(names)}")
    if "body" not in names and "text" not in names:
        raise InvalidRequest("column body", f"is missing, and so is text; the table has {', '.join(names)}")
    if options.order_by is not None and options.order_by not in names:
        raise InvalidRequest("option orderBy", f"names {options.order_by!r}, which is no column of the table")
    for column in schema:
        name, kind = column.name, column.dataType
        if name == options.order_by and not isinstance(kind, ORDERED):
            raise InvalidRequest("option orderBy", f"names {name}, and {kind.simpleString()} is no type to order by")
        if name in TYPES and not isinstance(kind, TYPES[name]):
            wanted = " or ".join(one().simpleString() for one in TYPES[name])
            raise InvalidRequest(f"column {name}", f"is of type {kind.simpleString()}; it must be {wanted}")
        if name not in TYPES and name not in ASSIGNED and name != options.order_by:
            raise InvalidRequest(f"column {name}", f"is unknown; a table to write has {', '.join(TYPES)}")


# -- rows become units


BUFFERED_BYTES_MAX: Final = 64 << 20
"""Memory for the events of all streams that a task buffers. When they take more, it hands all of them on."""
BUFFERED_EVENT_BYTES: Final = 224
BUFFERED_STREAM_BYTES: Final = 416
"""Memory of an event without its body, headers and sort key, and of a stream without its events."""
UNIT_EVENT_BYTES: Final = 64
"""Bytes of an event in a unit, without body, headers and sort key."""
_SIGN: Final = 1 << 63


class BadRow(NamedTuple):
    """A row that cannot be an event: its number in its partition (from 0), the column at fault and the reason."""

    row: int
    column: str
    reason: str
    values: dict[str, Any]


class _Row(NamedTuple):
    """An event to stage: its parts as columns have them, and its sort key."""

    id: bytes
    stamp: int
    type: bytes
    headers: bytes
    body: bytes
    key: bytes


@dataclass(slots=True)
class _Buffer:
    """The events of one stream that will become a unit."""

    rows: list[_Row] = field(default_factory=list)
    expected: int = ANY
    size: int = 0
    memory: int = BUFFERED_STREAM_BYTES


class UnitBuilder:
    """Groups the rows of one task by stream and gives units when they are full. Calls `on_bad_row`, which may raise."""

    def __init__(self, order_by: str | None, on_bad_row: Callable[[BadRow], None], event_bytes_max: int) -> None:
        self._order_by = order_by
        self._on_bad_row = on_bad_row
        self._event_bytes_max = event_bytes_max
        self._row = 0
        self._buffers: dict[tuple[str, str], _Buffer] = {}
        self._expected: dict[tuple[str, str], int] = {}
        self._memory = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[StagedUnit]:
        """Add rows; the units that are full after them."""
        try:
            rows = self._plain_rows(batch)
        except NotPlain:
            yield from self._add_one_by_one(batch)
            return
        self._row += batch.num_rows
        for key, row in rows:
            full = self._buffer(key, row, self._expected.get(key, ANY))
            if full is not None:
                yield self._unit(full)
            if self._memory >= BUFFERED_BYTES_MAX:
                yield from self.flush()

    def _plain_rows(self, batch: pa.RecordBatch) -> Iterable[tuple[tuple[str, str], _Row]]:
        """Rows that are events, checked column by column. Raises NotPlain if one of them may be bad."""
        names, missing = batch.schema.names, [None] * batch.num_rows
        try:
            columns = {name: _values(batch.column(name)) for name in names if name in TYPES or name == self._order_by}
            contexts, streams, types = (columns[name] for name in REQUIRED)
            bodies = columns.get("body", missing)
            if None in bodies:
                texts = columns.get("text", missing)
                bodies = [text.encode() if body is None else body for body, text in zip(bodies, texts, strict=True)]
            headers = [text.encode() if text else b"" for text in columns.get("headers", missing)]
            stamps = map(_stamp, columns.get("timestamp", missing), columns.get("ticks", missing))
            order = (
                repeat(b"")
                if self._order_by is None
                else [_sort_key(self._order_by, value) for value in columns[self._order_by]]
            )
            ids = columns.get("event_id", missing)
            kinds = {name: name.encode() for name in set(types)}
            is_bad = any(map(check_context, set(contexts))) or any(map(check_stream, set(streams)))
            if is_bad or any(map(check_type, kinds)) or LOG_CONTEXT in contexts or "" in ids:
                raise NotPlain
            if not {None, ANY}.issuperset(columns.get("expected_version", missing)):
                raise NotPlain
            parts = zip(plain_ids(ids), list(stamps), [kinds[name] for name in types], headers, bodies, strict=True)
            rows = [_Row(*part, key) for part, key in zip(parts, order, strict=False)]
        except (AttributeError, TypeError, ValueError):
            # Nulls, text that is not UTF-8, values out of range: which row it is, a closer look shows.
            raise NotPlain from None
        if any(len(row.type) + len(row.headers) + len(row.body) > self._event_bytes_max for row in rows):
            raise NotPlain
        return zip(zip(contexts, streams, strict=True), rows, strict=True)

    def _add_one_by_one(self, batch: pa.RecordBatch) -> Iterator[StagedUnit]:
        names = [name for name in batch.schema.names if name not in ASSIGNED or name == self._order_by]
        columns, undecodable = [], []
        for name in names:
            try:
                columns.append(_values(batch.column(name)))
            except UnicodeDecodeError:
                undecodable.append(name)
                columns.append([_decoded(value) for value in batch.column(name).cast(pa.binary()).to_pylist()])
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            try:
                full = self._add_row(row, undecodable)
            except BadEvent as bad:
                self._on_bad_row(BadRow(self._row, bad.member, bad.reason, row))
                full = None
            self._row += 1
            if full is not None:
                yield self._unit(full)
            if self._memory >= BUFFERED_BYTES_MAX:
                yield from self.flush()

    def flush(self) -> Iterator[StagedUnit]:
        for key in list(self._buffers):
            yield self._unit(key)

    def _add_row(self, row: dict[str, Any], undecodable: Sequence[str]) -> tuple[str, str] | None:
        """Buffer a row, if it is an event; see `_buffer`."""
        for column in undecodable:
            if isinstance(row[column], _NotUtf8):
                raise BadEvent(column, "is not UTF-8")
        key, event = _stream_of(row), _event(row, self._event_bytes_max)
        if self._order_by is not None:
            event = event._replace(key=_sort_key(self._order_by, row[self._order_by]))
        return self._buffer(key, event, self._expected_version(key, row.get("expected_version")))

    def _buffer(self, key: tuple[str, str], row: _Row, expected: int) -> tuple[str, str] | None:
        """Buffer an event; its stream, if that has enough events for a unit."""
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _Buffer()
            self._memory += buffer.memory
        buffer.rows.append(row)
        buffer.expected = expected
        size = len(row.body) + len(row.headers) + len(row.key)
        buffer.size += size + UNIT_EVENT_BYTES
        buffer.memory += size + BUFFERED_EVENT_BYTES
        self._memory += size + BUFFERED_EVENT_BYTES
        return key if len(buffer.rows) >= UNIT_EVENTS_MAX or buffer.size >= UNIT_BYTES_MAX else None

    def _expected_version(self, key: tuple[str, str], given: int | None) -> int:
        """The expected version of a stream. All rows that give a number must give the same."""
        before = self._expected.get(key, ANY)
        if given is None or given == ANY:
            return before
        if given < 1:
            raise BadEvent("expected_version", f"is {given}; it must be -1, null or at least 1")
        if before not in (ANY, given):
            raise BadEvent("expected_version", f"is {given}, and an earlier row of stream {key[1]} says {before}")
        self._expected[key] = given
        return int(given)

    def _unit(self, key: tuple[str, str]) -> StagedUnit:
        buffer = self._buffers.pop(key)
        self._memory -= buffer.memory
        if self._order_by is not None:
            buffer.rows.sort(key=itemgetter(-1))
        *parts, keys = zip(*buffer.rows, strict=True)
        return unit_of(*key, columns_of_parts(*parts), buffer.expected, () if self._order_by is None else keys)


class _NotUtf8(bytes):
    """A value of a text column that is no UTF-8. Spark does not check."""


def _values(column: pa.Array) -> list[Any]:
    # Microseconds, because Python's own times have the executor's time zone.
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return _NotUtf8(value or b"")


def _stream_of(row: dict[str, Any]) -> tuple[str, str]:
    context, stream = _text(row, "context"), _text(row, "stream")
    if context == LOG_CONTEXT:
        raise BadEvent("context", f"is {LOG_CONTEXT}, the context of logs; append messages to a log instead")
    for column, reason in (("context", check_context(context)), ("stream", check_stream(stream))):
        if reason:
            raise BadEvent(column, reason)
    return context, stream


def _event(row: dict[str, Any], bytes_max: int) -> _Row:
    kind = _text(row, "type")
    if reason := check_type(kind):
        raise BadEvent("type", reason)
    headers, body = (row.get("headers") or "").encode(), row.get("body")
    column = "text" if body is None else "body"
    if body is None and (body := row.get("text")) is None:
        raise BadEvent("body" if "body" in row else "text", "is null")
    body = str(body).encode() if column == "text" else bytes(body)
    size = len(body) + len(kind.encode()) + len(headers)
    if size > bytes_max:
        raise BadEvent(column, f"makes an event of {size} bytes; {bytes_max} are the most")
    stamp = _stamp(row.get("timestamp"), row.get("ticks"))
    given = row.get("event_id")
    number = random_id() if given is None else id_of("event_id", given)
    return _Row(number, stamp, kind.encode(), headers, body, b"")


def _text(row: dict[str, Any], column: str) -> str:
    if row[column] is None:
        raise BadEvent(column, "is null")
    return str(row[column])


def _stamp(micros: int | None, exact: int | None) -> int:
    """The event time. A row that was read has the exact ticks too; they count unless the timestamp was changed."""
    if micros is None and exact is None:
        return stamp_of(now_ticks())
    column, ticks = ("ticks", exact or 0) if micros is None else ("timestamp", UNIX_EPOCH_TICKS + TICKS_PER_US * micros)
    if exact is not None and exact // TICKS_PER_US * TICKS_PER_US == ticks:
        ticks = exact
    if not 0 <= ticks <= TICKS_MAX:
        raise BadEvent(column, "is not within the years 1 to 9999")
    return stamp_of(int(ticks))


def _sort_key(column: str, value: Any) -> bytes:
    """Bytes that sort as the values do."""
    if value is None:
        raise BadEvent(column, "is null, and events are ordered by it")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        if value != value:
            raise BadEvent(column, "is not a number, and events are ordered by it")
        (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
        return struct.pack(">Q", bits ^ (_SIGN * 2 - 1) if bits & _SIGN else bits | _SIGN)
    if isinstance(value, date):
        value = value.toordinal()
    return struct.pack(">Q", int(value) + _SIGN)


# -- jobs


@dataclass(frozen=True)
class _Job:
    """A job: its name, the producer it publishes as, the origin of its numbers, and a label that a repeat keeps."""

    name: str
    producer: str
    origin: str
    label: str


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    job: _Job
    part: int
    attempt: str
    units: int
    diverted: int = 0


def _stage(options: WriteOptions, job: _Job, batches: Iterator[pa.RecordBatch]) -> TaskStaged:
    context = TaskContext.get()
    part = context.partitionId() if context is not None else 0
    attempt, number = uuid4().hex, 0
    bad_rows = _BadRows(BadRowFiles(options, job).path(part, attempt) if options.bad_rows == DIVERT else None, part)
    with closing(bad_rows), closing(open_stages(options.url, job.name)) as stages:
        builder = UnitBuilder(options.order_by, bad_rows, stages.event_bytes_max())

        def units() -> Iterator[StagedUnit]:
            for batch in batches:
                yield from builder.add(batch)
            yield from builder.flush()

        for request in requests_of(units(), size_of):
            stages.stage(part, attempt, number, request)
            number += len(request)
    return TaskStaged(job, part, attempt, number, bad_rows.count)


class _BadRows:
    """Writes bad rows to a file, one line of JSON each, or fails the task at the first if there is no file."""

    def __init__(self, path: Path | None, part: int) -> None:
        self._path = path
        self._part = part
        self._lines: Any = None
        self.count = 0

    def __call__(self, bad: BadRow) -> None:
        if self._path is None:
            raise InvalidRequest(f"row {bad.row} of partition {self._part}: column {bad.column}", bad.reason)
        if self._lines is None:
            self._path.parent.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self._path.parent)
            self._lines = TextIOWrapper(created(self._path, "wb"), encoding="utf-8")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"partition": self._part, "row": bad.row, "column": bad.column, "reason": bad.reason, "at": now}
        self._lines.write(json.dumps({**line, "values": bad.values}, default=_plain, ensure_ascii=False) + "\n")
        self.count += 1

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class BadRowFiles:
    """The files with the bad rows of a job. Until it is published they are in a folder that readers skip."""

    def __init__(self, options: WriteOptions, job: _Job) -> None:
        self._folder = Path(str(options.bad_rows_path))
        self._hidden = self._folder / f".{_file_name(job.name)}"
        self._name = _file_name(job.label)

    def path(self, part: int, attempt: str) -> Path:
        return self._hidden / f"{part:05}-{attempt}.json"

    def found(self, staged: Sequence[TaskStaged]) -> dict[Path, Path]:
        """The files by the names that they get. Raises InvalidRequest if the driver does not see one."""
        found = {}
        for message in staged:
            if message.diverted:
                path = self.path(message.part, message.attempt)
                if not path.is_file():
                    reason = f"is {self._folder}, and the driver does not see the bad rows of a task there"
                    raise InvalidRequest("option badRowsPath", f"{reason}; name a directory that all machines share")
                found[self._folder / f"{self._name}-{message.part:05}.json"] = path
        return found

    def show(self, found: Mapping[Path, Path]) -> None:
        """Give the files their names. Those of a repeated job replace the first ones."""
        for place, path in found.items():
            release(path, place)
            path.replace(place)
        for place in {*self._folder.glob(f"{self._name}-*.json")} - {*found}:
            place.unlink()
        self.drop()

    def drop(self) -> None:
        if self._hidden.is_dir():
            for path in self._hidden.iterdir():
                path.unlink()
            self._hidden.rmdir()


def _file_name(text: str) -> str:
    """A name for a file that no other text has."""
    # Readers of a folder do not see names that begin with a dot or an underscore.
    letters = _NOT_IN_FILE_NAMES.sub("_", text)[:FILE_NAME_CHARS_MAX].lstrip("._")
    return f"{letters}-{blake2b(text.encode(), digest_size=8).hexdigest()}"


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """Publish what tasks have staged, and only then show their bad rows."""
    staged = [message for message in messages if isinstance(message, TaskStaged)]
    if not staged:
        return
    job = staged[0].job
    bad_rows = BadRowFiles(options, job)
    # Check first: if a job fails after it was published, users believe that it added nothing.
    diverted = bad_rows.found(staged)
    winners = [Winner(message.part, message.attempt, message.units) for message in staged]
    with closing(open_stages(options.url, job.name)) as stages:
        try:
            stages.publish(winners, ProducerMark(job.producer, number), job.origin)
        except StoreInUse as error:
            advice = "if that is a server, write with its penstock://HOST:PORT; if it is a job, wait for it"
            raise InvalidRequest("option url", f"is of a store in use: {error}; {advice}") from error
    if options.bad_rows == DIVERT:
        bad_rows.show(diverted)


def _drop(options: WriteOptions, job: _Job) -> None:
    with closing(open_stages(options.url, job.name)) as stages:
        stages.drop()
    if options.bad_rows == DIVERT:
        BadRowFiles(options, job).drop()


class PenstockWriter(DataSourceArrowWriter):
    """Writes a table. Spark pickles it once, so its job has one name in all processes."""

    def __init__(self, options: WriteOptions) -> None:
        if options.producer is not None and options.batch is None:
            # All writes would have one number, and all but the first would pass for repeats.
            raise InvalidRequest("option producer", "needs a number for each table; set batch too")
        self._options = options
        label = f"spark/{uuid4().hex}" if options.producer is None else f"{options.producer}/{options.batch}"
        self._job = _Job(f"{label}/{uuid4().hex}", options.producer or label, TABLE_ORIGIN, label)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._options, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._options, messages, self._options.batch or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - the job has one name
        _drop(self._options, self._job)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        if options.batch is not None:
            raise InvalidRequest("option batch", "is for tables; Spark numbers the batches of a stream")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidRequest("query", "gave its task no id and no batch; use Spark 4.3")
        return _stage(self._options, _job_of(self._options, query, batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _publish(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        # Attempts that the driver does not know go when Spark replays the batch, or expire.
        for job in {message.job for message in messages if isinstance(message, TaskStaged)}:
            _drop(self._options, job)


def _job_of(options: WriteOptions, query: str, batch: str) -> _Job:
    name = f"spark/{query}" if options.producer is None else f"{options.producer}/{query}"
    return _Job(f"{name}/{batch}", options.producer or name, query, f"{name}/{batch}")
