"""Answers in files, pipes and cells: CSV, JSON lines, Parquet.

- Bytes are text if they are UTF-8, else base64.
- Times are ISO 8601, with `Z` if they have a zone.
- Numbers that are not finite are null, as JSON has none. Decimals stay exact: one that no float equals becomes text.
- Lists, structs and maps are what JSON has for them.

A file is written under another name and renamed when it is whole: a file of its name is an answer, never part of one.
Links are followed. Pipes and devices are written in place.
"""

import errno
import math
import os
import sys
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from itertools import islice
from json import dumps
from json.encoder import encode_basestring
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.errors import InvalidRequest
from penstock.files import atomic_write, is_replaceable
from penstock.model.chunks import chunked
from penstock.sql.session import QueryResult
from penstock.terminal import escape_document

GROUP_BATCHES_MAX: Final = 60
GROUP_BYTES_MAX: Final = 64 << 20
"""Limits of one row group of Parquet, which the writer holds in memory."""

Escape = Callable[[str], str]


def write_csv(answer: QueryResult, file: IO[bytes], escape: Escape | None = None) -> None:
    """Write CSV with a header. Texts are quoted, and null is empty."""
    with pyarrow.csv.CSVWriter(file, cell_schema(answer.schema, escape)) as writer:
        for batch in answer.batches():
            writer.write_batch(cells(batch, escape))


def write_json(answer: QueryResult, file: IO[bytes]) -> None:
    """Write an object on each line."""
    names = map(encode_basestring, names_of(answer.schema))
    pattern = "{" + ",".join(name.replace("%", "%%") + ":%s" for name in names) + "}\n"
    for batch in answer.batches():
        columns = [[_json(value) for value in plain(column)] for column in batch.columns]
        lines = "".join([pattern % row for row in zip(*columns, strict=True)])
        file.write(escape_document(lines).encode())


def write_parquet(answer: QueryResult, file: IO[bytes]) -> None:
    names = names_of(answer.schema)
    schema = pa.schema([field.with_name(name) for field, name in zip(answer.schema, names, strict=True)])
    groups = chunked(answer.batches(), lambda batch: batch.nbytes, GROUP_BYTES_MAX, GROUP_BATCHES_MAX)
    try:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in groups:
                writer.write_table(pa.Table.from_batches(group).rename_columns(names))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidRequest("answer", f"has a column that Parquet cannot have: {error}; cast it") from None


@contextmanager
def opened(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, a pipe or a device, or a file that appears under its name once it is whole and synced."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if not is_replaceable(path):
            with path.open("wb") as file:
                yield file
            return
        # To replace a link with a file would be a surprise.
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
        with atomic_write(target, aside=aside, public=True) as file:
            yield file
    except OSError as error:
        # It may name a temporary file, which the user does not know.
        if error.errno is not None:
            error.filename = str(path)
        raise


# --- times ----------------------------------------------------------------------------------------------------
#
# DuckDB has years that Python lacks, and some that Arrow does not write. The calendar repeats every 400 years.

FOREVER: Final = {(1 << 63) - 1: "infinity", -(1 << 63) + 1: "-infinity"}
FOREVER_DAYS: Final = {(1 << 31) - 1: "infinity", -(1 << 31) + 1: "-infinity"}
DAY_S: Final = 86_400
CYCLE_DAYS: Final = 146_097
CYCLE_YEARS: Final = 400
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits after the seconds, by Arrow's unit."""
_UNWRITTEN: Final = "<"
"""First letter of Arrow's text for a time out of its range."""


def moments(array: pa.Array) -> list[str | None]:
    # DuckDB's times with a zone are in UTC here. Arrow takes thirty times as long to write them with a zone itself.
    digits, zone = _DIGITS[array.type.unit], "" if array.type.tz is None else "Z"
    texts = pc.replace_substring(array.cast(pa.timestamp(array.type.unit)).cast(pa.string()), " ", "T")
    if zone:
        texts = pc.binary_join_element_wise(texts, zone, "")

    def written(value: int) -> str:
        seconds, fraction = divmod(value, 10**digits)
        day, rest = divmod(seconds, DAY_S)
        clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
        return f"{_day(day)}T{clock}{f'.{fraction:0{digits}}' if digits else ''}{zone}"

    pairs = zip(texts.to_pylist(), array.cast(pa.int64()).to_pylist(), strict=True)
    return [FOREVER.get(value) or (written(value) if text and text[0] == _UNWRITTEN else text) for text, value in pairs]


def days(array: pa.Array) -> list[str | None]:
    numbers = array.cast(pa.date32()).cast(pa.int32()).to_pylist()
    pairs = zip(array.cast(pa.string()).to_pylist(), numbers, strict=True)
    return [FOREVER_DAYS.get(value) or _day(value) if text and text[0] == _UNWRITTEN else text for text, value in pairs]


def clocks(array: pa.Array) -> list[str | None]:
    """Times of a day. Arrow cannot write the last one."""
    texts = array.cast(pa.string()).to_pylist()
    shown = ("24:00:00" if text and text[0] == _UNWRITTEN else text for text in texts)
    return [text.rstrip("0").rstrip(".") if text is not None and "." in text else text for text in shown]


def _day(days: int) -> str:
    cycles, rest = divmod(days, CYCLE_DAYS)
    found = date.fromordinal(date(1970, 1, 1).toordinal() + rest)
    return f"{found.year + CYCLE_YEARS * cycles:04}-{found:%m-%d}"


# --- values ---------------------------------------------------------------------------------------------------


def names_of(schema: pa.Schema) -> list[str]:
    """The names of columns, with a number added to repeated ones."""
    found: list[str] = []
    for name in schema.names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def plain(array: pa.Array) -> list[Any]:
    """The values of a column as JSON can have them."""
    kind = array.type
    for test, convert in _CONVERTERS:
        if test(kind):
            return convert(array)
    values: list[Any] = array.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    return list(map(_plain, values))


def _texts(array: pa.Array) -> list[str | None]:
    try:
        # Nearly always, and much faster.
        found: list[str | None] = array.cast(pa.large_string()).to_pylist()
    except pa.ArrowInvalid:
        found = []
        for value in array.to_pylist():
            try:
                found.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                found.append(b64encode(value).decode())
    return found


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            if value == value.to_integral_value() and value.as_tuple().exponent == 0:
                return int(value)
            return float(value) if Decimal(repr(float(value))) == value else str(value)
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)


def _lists(array: pa.Array) -> list[list[Any] | None]:
    items = iter(plain(array.flatten()))
    lengths = pc.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _structs(array: pa.StructArray) -> list[dict[str, Any] | None]:
    names = [field.name for field in array.type]
    rows = zip(*map(plain, array.flatten()), strict=True) if names else iter([()] * len(array))
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_there else None for row, is_there in zip(rows, valid, strict=True)]


def _maps(array: pa.MapArray) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for entry in array:
        keys, items = ([], []) if entry.values is None else map(plain, entry.values.flatten())
        pairs = zip(keys, items, strict=True)
        members = {key if isinstance(key, str) else _json(key): item for key, item in pairs}
        found.append(None if entry.values is None else members)
    return found


# The first test that a type passes decides.
_CONVERTERS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]]]] = (
    (pa.types.is_dictionary, lambda array: plain(array.dictionary_decode())),
    (pa.types.is_timestamp, moments),
    (pa.types.is_date, days),
    (pa.types.is_time, clocks),
    (pa.types.is_binary, _texts),
    (pa.types.is_large_binary, _texts),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
    (pa.types.is_list, _lists),
    (pa.types.is_large_list, _lists),
    (pa.types.is_fixed_size_list, _lists),
)


def _json(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is str:
        return encode_basestring(value)
    return str(value) if type(value) is int else dumps(value, ensure_ascii=False, separators=(",", ":"))


def cells(batch: pa.RecordBatch, escape: Escape | None = None) -> pa.RecordBatch:
    """A batch for CSV: numbers and booleans stay, other values become text."""
    arrays = [_cells(column, escape) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=cell_schema(batch.schema, escape))


def _cells(column: pa.Array, escape: Escape | None) -> pa.Array:
    if _is_simple(column.type) or (pa.types.is_string(column.type) and escape is None):
        return column
    values = plain(column)
    texts = [value if isinstance(value, str | None) else dumps(value, ensure_ascii=False) for value in values]
    return pa.array(texts if escape is None else [text and escape(text) for text in texts], pa.string())


def cell_schema(schema: pa.Schema, escape: Escape | None = None) -> pa.Schema:
    """The schema of `cells`."""
    names = schema.names if escape is None else map(escape, schema.names)
    kinds = (kind if _is_simple(kind) else pa.string() for kind in schema.types)
    return pa.schema(list(zip(names, kinds, strict=True)))


def _is_simple(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
