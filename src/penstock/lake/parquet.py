"""Files of events: how rows are sorted, written, read and digested.

Rows are sorted by context, stream and position, so that engines can skip row groups and pages by their statistics. A
file's metadata has its format, its positions, and which of them are erased; see `Erased`.

A digest covers all columns: which values are null, the lengths of texts, and all bytes. It is the same for the same
rows in the same order, however Arrow holds them (in chunks, with offsets, with bytes behind nulls).
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_128, xxh3_128_hexdigest

from penstock.files import parsed
from penstock.history.columns import TABLE
from penstock.lake.manifests import FORMAT_VERSION, LakeFile, path_of
from penstock.model.times import TICKS_MAX

ROW_GROUP_ROWS: Final = 131_072
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
DAY_US: Final = 86_400_000_000
_REPEATED: Final = ("context", "stream", "type", "headers")
"""Columns whose values repeat: they get a dictionary."""
_COUNTED: Final = ("position", "sequence", "timestamp", "recorded_at", "ticks")
"""Columns of numbers close to one another: Parquet stores their differences."""
_WITHOUT_STATISTICS: Final = ("body", "text")
_SORTED: Final = ("context", "stream", "position")
ERASED_BYTES_MAX: Final = 256 << 20
"""Uncompressed bytes of a file's list of erased events."""
POSITIONS_MAX: Final = 1 << 28
"""Positions of one file. Only a file with almost all events erased can have so many."""
POSITION_MAX: Final = (1 << 63) - 1
_FORMAT: Final = b"penstock.lake"
_ERASED: Final = b"penstock.erased"


class Erased(NamedTuple):
    """Consecutive erased events of a stream, from a position and a sequence on, recorded at a time (ticks)."""

    position: int
    events: int
    context: str
    stream: str
    sequence: int
    recorded: int

    @property
    def last(self) -> int:
        return self.position + self.events - 1

    def between(self, first: int, last: int) -> "Erased | None":
        low, high = max(first, self.position), min(last, self.last)
        if low > high:
            return None
        moved = low - self.position
        return self._replace(position=low, events=high - low + 1, sequence=self.sequence + moved)


class FileContents(NamedTuple):
    """The contents of one file: the sorted rows of these positions, and which of them are erased."""

    day: str
    first: int
    last: int
    rows: pa.Table
    erased: Sequence[Erased]


def day_of(micros: int) -> str:
    return str(np.datetime64(micros // DAY_US, "D"))


def in_order(batches: Iterable[pa.RecordBatch | pa.Table]) -> pa.Table:
    """Rows that come by position, sorted by context, stream and position."""
    tables = [part if isinstance(part, pa.Table) else pa.Table.from_batches([part], TABLE) for part in batches]
    rows = pa.concat_tables(tables).combine_chunks() if tables else TABLE.empty_table()
    if rows.num_rows < 2:
        return rows
    contexts, streams = (_ranks(rows[name]) for name in ("context", "stream"))
    keys = contexts * (int(streams.max()) + 1) + streams
    if (np.diff(keys) >= 0).all():
        return rows
    # A stable sort keeps the order of positions within each stream.
    return rows.take(pa.array(np.argsort(keys, kind="stable")))


def whole(column: pa.ChunkedArray) -> Any:
    """A column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _ranks(column: pa.ChunkedArray) -> Any:
    """The rank of each text among all. Texts sort by their bytes, as in Parquet's statistics."""
    encoded = whole(column).dictionary_encode()
    order = np.argsort(np.array([text.encode() for text in encoded.dictionary.to_pylist()], object), kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[encoded.indices.to_numpy()]


def encode_file(contents: FileContents) -> tuple[LakeFile, pa.Buffer]:
    """A file's entry in the manifest, and its bytes."""
    rows, first, last = contents.rows, contents.first, contents.last
    found = digest(rows)
    about = {"format": FORMAT_VERSION, "first": first, "last": last, "digest": found}
    metadata = {_FORMAT: json.dumps(about).encode()}
    if contents.erased:
        metadata[_ERASED] = b85encode(zlib.compress(json.dumps(contents.erased).encode()))
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata(metadata),
        sink,
        row_group_size=ROW_GROUP_ROWS,
        compression=COMPRESSION,
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=list(_REPEATED),
        column_encoding=dict.fromkeys(_COUNTED, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in TABLE.names if name not in _WITHOUT_STATISTICS],
        write_page_index=True,
        sorting_columns=[pq.SortingColumn(TABLE.get_field_index(name)) for name in _SORTED],
    )
    data = sink.getvalue()
    # `text` does not count, because it is made from bodies.
    sizes = rows.num_rows, data.size, int(rows["body"].nbytes + rows["headers"].nbytes)
    bounds = [*_bounds(rows["position"]), *_bounds(rows["recorded_at"].cast(pa.int64()))]
    path, sums = path_of(contents.day, first, last), (xxh3_128_hexdigest(data), found)
    return LakeFile(path, first, last, *sizes, *sums, *bounds), data


def _bounds(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    if not len(column):
        return None, None
    values = column.to_numpy()
    return int(values.min()), int(values.max())


def decode(data: pa.Buffer | bytes) -> tuple[pa.Table, list[Erased]]:
    """The rows and the erased events of a file. Raises ValueError if it is no such file."""
    try:
        found = pq.read_table(pa.BufferReader(data), partitioning=None)
        rows = found.replace_schema_metadata(None).cast(TABLE)
        # Arrow itself does not check texts and offsets.
        rows.validate(full=True)
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise ValueError(next(iter(str(error).splitlines()), type(error).__name__)) from error
    return rows, erased_in(found.schema.metadata or {})


def erased_in(metadata: dict[bytes, bytes]) -> list[Erased]:
    """The erased events in a file's metadata. Raises ValueError if they are not valid."""
    packed = metadata.get(_ERASED)
    if not packed:
        return []
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(b85decode(packed), ERASED_BYTES_MAX)
        if not unpacking.eof:
            raise ValueError(f"what is erased in it is cut off, or has more than {ERASED_BYTES_MAX} bytes")
        return [_erased(each) for each in parsed(text)]
    except (zlib.error, TypeError) as error:
        raise ValueError(f"what is erased in it cannot be read: {error}") from error


def _erased(entry: Any) -> Erased:
    found = Erased(*entry)
    numbers = found.position, found.events, found.sequence, found.recorded
    if not all(type(each) is int and 0 <= each <= POSITION_MAX for each in numbers):
        raise TypeError("one of its numbers is not valid")
    for name in (found.context, found.stream):
        if not isinstance(name, str):
            raise TypeError("a name in it is no text")
        name.encode()
    return found


def check_positions(first: int, last: int, rows: pa.Table, erased: Sequence[Erased]) -> None:
    """Raise ValueError unless rows and erased events cover all positions, once each."""
    events = last - first + 1
    if any(each.events < 1 or each.position < first or each.last > last for each in erased):
        raise ValueError("events are erased in it that are elsewhere")
    if rows.num_rows + sum(each.events for each in erased) != events:
        raise ValueError(f"it has {rows.num_rows} events of {events}, and the others are not erased")
    if events > POSITIONS_MAX:
        raise ValueError(f"it has {events} positions, more than {POSITIONS_MAX}")
    at, seen = rows["position"].to_numpy() - first, np.zeros(events, np.bool_)
    seen[at[(at >= 0) & (at < events)]] = True
    for each in erased:
        seen[each.position - first : each.last - first + 1] = True
    if not seen.all():
        raise ValueError(f"it has no event at position {first + int(np.argmin(seen))}")
    for name, low, high in (("sequence", 1, POSITION_MAX), ("ticks", 0, TICKS_MAX)):
        values = rows[name].to_numpy()
        if len(values) and not (low <= values.min() and values.max() <= high):
            raise ValueError(f"it has a {name} that cannot be")


_EMPTY: Final[dict[Any, Any]] = {pa.string(): "", pa.binary(): b""}


def digest(rows: pa.Table) -> str:
    found = xxh3_128(b"%d" % rows.num_rows)
    for field in TABLE:
        found.update(f"|{field.name}:{field.type}|".encode())
        _add(found, whole(rows[field.name]))
    return found.hexdigest()


def _add(found: Any, array: Any) -> None:
    if array.null_count:
        found.update(np.packbits(np.asarray(pc.is_valid(array))))
        array = pc.fill_null(array, _EMPTY[array.type])
    if array.type not in _EMPTY:
        found.update(_slice(array.buffers()[1], np.int64, array.offset, len(array)))
    elif len(array):
        _, offsets, data = array.buffers()
        places = _slice(offsets, np.int32, array.offset, len(array) + 1)
        found.update(np.ascontiguousarray(np.diff(places)))
        if data is not None:
            found.update(memoryview(data)[int(places[0]) : int(places[-1])])


def _slice(buffer: Any, kind: Any, start: int, count: int) -> Any:
    return np.frombuffer(buffer if buffer is not None else b"", kind)[start : start + count]
