"""Parquet: the columns that the history has as a table everywhere (docs/spark.md), and `kind`, the kind of time.

Files are written and read by row groups, so that memory does not grow with them. In a file that has no column `body`,
the columns that no event has become the body, as a JSON object.
"""

import io
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from penstock.cloudevents import Incoming
from penstock.interchange.files import Flaw
from penstock.interchange.rows import ALIASES, PASSED_OVER, Defaults, Stamp, Wrong, compact_json, incoming
from penstock.model import Event
from penstock.model.times import KIND_UTC, UNIX_EPOCH_TICKS, stamp_of_ticks, text_of_stamp

ROW_GROUP_EVENTS_MAX: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 32 << 20
"""Bytes of bodies and headers in one row group; an event that is larger has one of its own."""
COMPRESSION: Final = "zstd"
STREAM_END_BYTES: Final = 8
"""What Arrow writes at the end of a stream; readers do without."""
READ_ROWS: Final = 1024
"""Rows that are taken apart at once."""
DERIVED: Final = "text"
"""The column that tables have beside `body`: it is the same again. Without one, it is as foreign as others."""
OWN: Final = ("context", "stream", "type", "id", "time", "headers", "body", "ticks", "kind", DERIVED)
KNOWN: Final = frozenset((*OWN, *ALIASES, *PASSED_OVER))
_PER_UNIT: Final = {"s": (10_000_000, 1), "ms": (10_000, 1), "us": (10, 1), "ns": (1, 100)}
"""Ticks of a unit of time: times the one, over the other."""


# --- out ------------------------------------------------------------------------------------------------------


class ParquetEvents:
    """A Parquet file that is being written. `abandon` leaves it as it is, `close` makes it whole."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._writer = pq.ParquetWriter(pa.PythonFile(file, "w"), _schema(), compression=COMPRESSION)
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, events: Sequence[Event]) -> None:
        """Add events; they go to the file when there are enough for a row group."""
        if events:
            self.add(_batch(events))

    def add(self, batch: Any) -> None:
        """Add events that are a record batch already."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_EVENTS_MAX or self._bytes >= ROW_GROUP_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415

        if self._rows:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """Write what is left, and what makes it a file that can be read."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Write no more: it would be no whole file anyway."""
        # Otherwise the writer would close itself when it is forgotten, and complain if that fails.
        self._writer.is_open = False


def _schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    from penstock.history.columns import TABLE  # noqa: PLC0415

    kind = pa.field("kind", pa.int8(), nullable=False)
    return pa.schema([*(field for field in TABLE if field.name != DERIVED), kind])


def _batch(events: Sequence[Event]) -> Any:
    """Events as rows."""
    import pyarrow as pa  # noqa: PLC0415

    from penstock.history.columns import batch_of, stored_columns, table_batch  # noqa: PLC0415

    schema = _schema()
    table = schema.remove(schema.get_field_index("kind"))
    batch = table_batch(batch_of(events, stored_columns(table.names)), table)
    kinds = pa.array([event.stamp >> 62 for event in events], pa.int8())
    return pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=schema)


# What is not a whole Parquet file yet is kept as a stream of Arrow's: a head, and batches behind it, one after the
# other. It can be cut off behind any of them and gone on with, which a Parquet file cannot.


def stream_head() -> bytes:
    """What an Arrow stream of events begins with."""
    return _streamed([])


def to_stream(events: Sequence[Event]) -> bytes:
    """Events as a part of an Arrow stream."""
    return _streamed([_batch(events)])[len(stream_head()) :] if events else b""


def _streamed(batches: list[Any]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415

    sink, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression=COMPRESSION)
    with pa.ipc.new_stream(sink, _schema(), options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()[:-STREAM_END_BYTES]


def parquet_of_stream(source: Path, target: IO[bytes]) -> None:
    """Make a Parquet file of an Arrow stream, a row group at a time. Raises Flaw if it is none of events."""
    parquet = ParquetEvents(target)
    try:
        for batch in _streamed_batches(source):
            parquet.add(batch)
        parquet.close()
    finally:
        parquet.abandon()


def _streamed_batches(source: Path) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415

    with source.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                if not stream.schema.equals(_schema()):
                    raise Flaw("the file as a whole", "has other columns than events")
                for batch in stream:
                    batch.validate(full=True)
                    yield batch
        except (pa.ArrowException, OSError, ValueError) as error:
            raise (
                error if isinstance(error, Flaw) else Flaw("the file as a whole", f"is damaged: {_sentence(error)}")
            ) from error


# --- in -------------------------------------------------------------------------------------------------------


def from_parquet(path: Path, defaults: Defaults) -> Iterator[Incoming]:
    """Events of a Parquet file. Raises Flaw."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for batch in file.iter_batches(READ_ROWS, columns=_wanted(names)):
                for members in _rows(batch):
                    number += 1
                    yield _event(number, names, members, defaults)
    except (FileNotFoundError, Flaw):
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # Arrow has times and dates that Python has no values for, and texts that are no UTF-8.
        place = f"row {number + 1}, column 1" if number else "the file as a whole"
        raise Flaw(place, f"it cannot be read as Parquet: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    """What Arrow says first; the rest is about its own code."""
    return str(error).partition("\n")[0].rstrip(". ")


def _wanted(names: list[str]) -> list[str]:
    """The columns that are read; Flaw if there are some that nobody knows beside a body, or two of one name."""
    for at, name in enumerate(names, 1):
        if names.index(name) != at - 1:
            raise Flaw(f"the header, column {at}", f"there are two columns {name!r}")
        if name not in KNOWN and "body" in names:
            raise Flaw(f"the header, column {at}", f"{name!r} is no column of events; what is known: {', '.join(OWN)}")
    is_derived = "body" in names
    return [name for name in names if name not in PASSED_OVER and not (is_derived and name == DERIVED)]


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    columns = [_values(batch.column(at)) for at in range(len(names))]
    if not columns:
        # Nothing of the file is read, and still each row is an event.
        return ({} for _ in range(batch.num_rows))
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    """The values of a column; times as ticks, which have more digits than Python's."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(column.type):
        times, over = _PER_UNIT[column.type.unit]
        units = column.cast(pa.int64()).to_pylist()
        return [None if unit is None else _Ticks(UNIX_EPOCH_TICKS + unit * times // over) for unit in units]
    values: list[Any] = column.to_pylist()
    return values


class _Ticks(int):
    """A time, which is no number of its own."""


def _event(number: int, names: list[str], members: dict[str, Any], defaults: Defaults) -> Incoming:
    try:
        stamp = _stamp(members)
        body = _body(members)
        return incoming(members if stamp is None else {**members, "time": stamp}, body, defaults)
    except Wrong as wrong:
        at = names.index(wrong.member) + 1 if wrong.member in names else 1
        raise Flaw(f"row {number}, column {at}", f"{wrong.member!r} {wrong.reason}") from None


def _stamp(members: Mapping[str, Any]) -> Stamp | None:
    """The stamp that numbers say; None if there are no numbers."""
    for name in ("ticks", "time", "timestamp"):
        value = members.get(name)
        if isinstance(value, int) and (name == "ticks" or isinstance(value, _Ticks)):
            kind = None if "kind" in _own(members) else members.get("kind")
            if kind is not None and not isinstance(kind, int):
                raise Wrong("kind", f"is {kind!r}, which is no kind of time")
            try:
                return Stamp(stamp_of_ticks(int(value), KIND_UTC if kind is None else kind))
            except ValueError as error:
                raise Wrong(name, str(error)) from None
        if value is not None and not isinstance(value, str):
            raise Wrong(name, f"is {value!r}, which is no time")
    return None


def _own(members: Mapping[str, Any]) -> list[str]:
    """The columns that make the body of a file that has none; `kind` is one of events beside `ticks` only."""
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
        raise Wrong("body", f"is {type(body).__name__}, where bytes or text belong")
    return body


def _plain(column: str, value: Any) -> Any:
    """A value of a foreign column as JSON has it: bytes are text or base64, NaN is null, what else it lacks is text."""
    if isinstance(value, dict):
        return {name: _plain(column, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(column, item) for item in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, _Ticks):
        return _time(column, value)
    return value if isinstance(value, str | int | None) else str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _time(column: str, ticks: int) -> str:
    try:
        return text_of_stamp(stamp_of_ticks(ticks))
    except ValueError as error:
        raise Wrong(column, str(error)) from None
