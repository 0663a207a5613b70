"""Parquet: the columns of the history's table (docs/spark.md), and `kind`, the kind of time.

Reader and writer hold one row group in memory. In a file without a column `body`, the columns that no event has become
the body, as a JSON object.

A Parquet file cannot be continued. So until it is whole, an export keeps its events as a stream of Arrow's: a head, and
batches after it, which can be cut off after any batch and continued.
"""

import io
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cloudevents import Incoming
from penstock.event_json import (
    ALIASES,
    NAME_CHECKS,
    PLACES,
    BadEvent,
    Defaults,
    NotPlain,
    check_kinds,
    compact_json,
    event_of,
)
from penstock.history.columns import TABLE, between, stored_columns, table_batch
from penstock.interchange.blocks import Block, block_of, plain_block
from penstock.interchange.formats import Flaw
from penstock.model import EventFilter
from penstock.model.times import (
    KIND_LOCAL,
    KIND_UNSPECIFIED,
    KIND_UTC,
    TICKS_BITS,
    TICKS_MAX,
    UNIX_EPOCH_TICKS,
    stamp_of_ticks,
    text_of_stamp,
)
from penstock.store.arrow import KIND, record_batch
from penstock.store.record import Record

ROW_GROUP_EVENTS_MAX: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 32 << 20
"""Bytes of bodies and headers in one row group. A larger event gets its own."""
COMPRESSION: Final = "zstd"
STREAM_END_BYTES: Final = 8
"""Arrow's mark for the end of a stream, which readers do not need."""
READ_ROWS: Final = 1024
"""Rows that become Python values at once."""
DERIVED: Final = "text"
"""Tables repeat `body` in this column. In a file without `body` it is a foreign column."""
OWN: Final = ("context", "stream", "type", "id", "time", "headers", "body", "ticks", "kind", DERIVED)
KNOWN: Final = frozenset((*OWN, *ALIASES, *PLACES))
_PER_UNIT: Final = {"s": (10_000_000, 1), "ms": (10_000, 1), "us": (10, 1), "ns": (1, 100)}
"""Ticks of a unit of time, as a fraction."""
_COLUMNS: Final = pa.schema([field for field in TABLE if field.name != DERIVED])
_SCHEMA: Final = _COLUMNS.append(KIND)
_PLAIN: Final = {"ticks": pa.int64(), "kind": pa.int8(), "body": pa.binary()}
"""Columns of a plain file and their types."""
_PLAIN_TEXTS: Final = (*NAME_CHECKS, "id", "event_id", "headers")
_STORED: Final = [*stored_columns(_COLUMNS.names), KIND.name]

# --- out ------------------------------------------------------------------------------------------------------


class ParquetEvents:
    """Writes a Parquet file. `close` makes it whole, `abandon` does not."""

    def __init__(self, file: IO[bytes]) -> None:
        self._writer = pq.ParquetWriter(pa.PythonFile(file, "w"), _SCHEMA, compression=COMPRESSION)
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, batch: Any) -> None:
        """Add events. The writer writes them once they fill a row group."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_EVENTS_MAX or self._bytes >= ROW_GROUP_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        # Otherwise the writer closes itself when it is collected as garbage, and complains if that fails.
        self._writer.is_open = False


def batch_of_records(
    records: Sequence[Record], wanted: EventFilter, first: int, last: int, since: int | None, until: int | None
) -> pa.RecordBatch:
    """The wanted events of some records between two positions and two times, in the columns of the file."""
    batch = record_batch(records, wanted, first=first, last=last, columns=_STORED)
    batch = between(batch, since, until)
    return pa.RecordBatch.from_arrays([*table_batch(batch, _COLUMNS).columns, batch[KIND.name]], schema=_SCHEMA)


@cache
def stream_head() -> bytes:
    return _streamed([])


def to_stream(batch: pa.RecordBatch) -> bytes:
    return _streamed([batch])[len(stream_head()) :] if batch.num_rows else b""


def _streamed(batches: list[Any]) -> bytes:
    sink, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression=COMPRESSION)
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()[:-STREAM_END_BYTES]


def parquet_of_stream(source: Path, target: IO[bytes]) -> None:
    """Convert an Arrow stream of events to Parquet, a row group at a time. Raises Flaw if it is damaged."""
    parquet = ParquetEvents(target)
    try:
        for batch in _streamed_batches(source):
            parquet.write(batch)
        parquet.close()
    finally:
        parquet.abandon()


def _streamed_batches(source: Path) -> Iterator[Any]:
    with source.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                if not stream.schema.equals(_SCHEMA):
                    raise Flaw("the file as a whole", "has other columns than events")
                for batch in stream:
                    batch.validate(full=True)
                    yield batch
        except Flaw:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Flaw("the file as a whole", f"is damaged: {_sentence(error)}") from error


# --- in -------------------------------------------------------------------------------------------------------


def from_parquet(path: Path, defaults: Defaults) -> Iterator[Incoming]:
    """Raises Flaw."""
    return (row for block in parquet_blocks(path, defaults) for row in block.rows())


def parquet_blocks(path: Path, defaults: Defaults) -> Iterator[Block]:
    """Raises Flaw."""
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for batch in file.iter_batches(READ_ROWS, columns=_columns_to_read(names)):
                try:
                    block = _plain_batch(batch, defaults)
                except NotPlain:
                    for members in _rows(batch):
                        number += 1
                        yield block_of([_row(members, names, number, defaults)])
                else:
                    number += batch.num_rows
                    yield block
    except (FileNotFoundError, Flaw):
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # Arrow has times and dates that Python lacks, and texts that are not UTF-8.
        place = f"row {number + 1}, column 1" if number else "the file as a whole"
        raise Flaw(place, f"it cannot be read as Parquet: {_sentence(error)}") from None


def _row(members: dict[str, Any], names: list[str], number: int, defaults: Defaults) -> Incoming:
    try:
        return event_of(members, defaults, body=_body(members), stamp=_stamp(members))
    except BadEvent as error:
        at = names.index(error.member) + 1 if error.member in names else 1
        raise Flaw(f"row {number}, column {at}", f"{error.member!r} {error.reason}") from None


def _plain_batch(batch: Any, defaults: Defaults) -> Block:
    """A block of rows with bodies and exact times, as an export writes them. Raises NotPlain."""
    fields = {field.name: field.type for field in batch.schema}
    if any(fields.get(name) != kind or batch[name].null_count for name, kind in _PLAIN.items()) or not batch.num_rows:
        raise NotPlain
    ticks, kinds = batch["ticks"].to_numpy(), batch["kind"].to_numpy()
    if ticks.min() < 0 or ticks.max() > TICKS_MAX or kinds.min() < KIND_UNSPECIFIED or kinds.max() > KIND_LOCAL:
        raise NotPlain
    stamps = (kinds.astype("u8") << TICKS_BITS | ticks.astype("u8")).tolist()
    missing = [None] * batch.num_rows
    try:
        texts = {name: batch[name].to_pylist() if name in fields else missing for name in _PLAIN_TEXTS}
        bodies = batch["body"].to_pylist()
    except ValueError:
        raise NotPlain from None
    for column in texts.values():
        check_kinds(column)
    headers = [text or "" for text in texts["headers"]]
    ids = [one or other for one, other in zip(texts["id"], texts["event_id"], strict=True)]
    return plain_block(defaults, [texts[name] for name in NAME_CHECKS], ids, stamps, headers, bodies)


def _sentence(error: Exception) -> str:
    """The first line of Arrow's message. The rest is about its code."""
    return str(error).partition("\n")[0].rstrip(". ")


def _columns_to_read(names: list[str]) -> list[str]:
    """Raises Flaw if a file with bodies has unknown columns, or if two columns have one name."""
    for at, name in enumerate(names, 1):
        if names.index(name) != at - 1:
            raise Flaw(f"the header, column {at}", f"there are two columns {name!r}")
        if name not in KNOWN and "body" in names:
            raise Flaw(f"the header, column {at}", f"{name!r} is no column of events; what is known: {', '.join(OWN)}")
    is_derived = "body" in names
    return [name for name in names if name not in PLACES and not (is_derived and name == DERIVED)]


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    columns = [_values(batch.column(at)) for at in range(len(names))]
    if not columns:
        # Each row is an event, even if the file has no column to read.
        return ({} for _ in range(batch.num_rows))
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    """The values of a column, with times as ticks, which have more digits than Python's times."""
    if pa.types.is_timestamp(column.type):
        times, over = _PER_UNIT[column.type.unit]
        units = column.cast(pa.int64()).to_pylist()
        return [None if unit is None else _Ticks(UNIX_EPOCH_TICKS + unit * times // over) for unit in units]
    values: list[Any] = column.to_pylist()
    return values


class _Ticks(int):
    """A time, to tell it from a number."""


def _stamp(members: Mapping[str, Any]) -> int | None:
    """The stamp from columns of numbers or times; None if the time is text or missing."""
    for name in ("ticks", "time", "timestamp"):
        value = members.get(name)
        if isinstance(value, int) and (name == "ticks" or isinstance(value, _Ticks)):
            kind = None if "kind" in _own(members) else members.get("kind")
            if kind is not None and not isinstance(kind, int):
                raise BadEvent("kind", f"is {kind!r}, which is no kind of time")
            try:
                return stamp_of_ticks(int(value), KIND_UTC if kind is None else kind)
            except ValueError as error:
                raise BadEvent(name, str(error)) from None
        if value is not None and not isinstance(value, str):
            raise BadEvent(name, f"is {value!r}, which is no time")
    return None


def _own(members: Mapping[str, Any]) -> list[str]:
    """The columns that make up the body in a file without one. `kind` belongs to events only along with `ticks`."""
    if "body" in members:
        return []
    foreign = {DERIVED} if "ticks" in members else {DERIVED, "kind"}
    return [name for name in members if name not in KNOWN or name in foreign]


def _body(members: Mapping[str, Any]) -> bytes:
    if "body" not in members:
        plain = {name: _plain(name, members[name]) for name in _own(members)}
        return compact_json("body", plain).encode() if plain else b""
    body = members["body"]
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if not isinstance(body, bytes):
        raise BadEvent("body", f"is {type(body).__name__}, where bytes or text belong")
    return body


def _plain(column: str, value: Any) -> Any:
    """A value of a foreign column as JSON: bytes are text or base64, NaN is null, other types are text."""
    if isinstance(value, dict):
        return {name: _plain(column, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(column, item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _Ticks):
        try:
            return text_of_stamp(stamp_of_ticks(value))
        except ValueError as error:
            raise BadEvent(column, str(error)) from None
    return value if isinstance(value, str | int | None) else str(value)
