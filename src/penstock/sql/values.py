"""The values of an answer as JSON and as texts have them.

- Bytes are text if they are UTF-8, else base64.
- Times are ISO 8601, with `Z` if they are moments and not what a clock on a wall shows.
- Numbers that are not finite are null, as JSON has none. Numbers with decimals that are exact stay exact: one that no
  float is becomes text.
- Lists, structs and maps are what JSON has for them.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from json import dumps
from json.encoder import encode_basestring
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.times import clocks, days, moments
from penstock.terminal import shown_document


def names_of(schema: pa.Schema) -> list[str]:
    """The names of columns, with a number behind those that were there before."""
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
    for test, made in _MADE:
        if test(kind):
            return made(array)
    values: list[Any] = array.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    return list(map(_plain, values))


def _texts(array: pa.Array) -> list[str | None]:
    try:
        # Nearly always: one look at all bytes together.
        found: list[str | None] = array.cast(pa.large_string()).to_pylist()
    except pa.ArrowInvalid:
        return [None if value is None else _text(value) for value in array.to_pylist()]
    return found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _number(value)
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)


def _number(value: Decimal) -> int | float | str:
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


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
    return [None if entry.values is None else _map(entry.values) for entry in array]


def _map(entries: pa.StructArray) -> dict[str, Any]:
    keys, items = map(plain, entries.flatten())
    return {key if isinstance(key, str) else _document(key): item for key, item in zip(keys, items, strict=True)}


# The first that a type passes makes its values.
_MADE: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Any]]]]] = (
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


# -- lines


def json_lines(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[str]:
    """Each row as an object on a line of its own; several lines at a time."""
    pattern = "{" + ",".join(encode_basestring(name).replace("%", "%%") + ":%s" for name in names) + "}\n"
    for batch in batches:
        columns = [_written(plain(column)) for column in batch.columns]
        yield shown_document("".join([pattern % row for row in zip(*columns, strict=True)]))


def _written(values: list[Any]) -> list[str]:
    return [encode_basestring(value) if type(value) is str else _document(value) for value in values]


def _document(value: Any) -> str:
    if value is None:
        return "null"
    return str(value) if type(value) is int else dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- cells


def cells(batch: pa.RecordBatch, escape: Callable[[str], str] | None = None) -> pa.RecordBatch:
    """A batch for CSV: numbers and truths as they are, all else as text."""
    arrays = [_cells(column, escape) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=cell_schema(batch.schema, escape))


def cell_schema(schema: pa.Schema, escape: Callable[[str], str] | None = None) -> pa.Schema:
    """The schema that `cells` gives."""
    names = schema.names if escape is None else map(escape, schema.names)
    kinds = (kind if _is_simple(kind) else pa.string() for kind in schema.types)
    return pa.schema(list(zip(names, kinds, strict=True)))


def _is_simple(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _cells(column: pa.Array, escape: Callable[[str], str] | None) -> pa.Array:
    if _is_simple(column.type):
        return column
    if pa.types.is_string(column.type) and escape is None:
        return column
    return pa.array([_cell(value, escape) for value in plain(column)], pa.string())


def _cell(value: Any, escape: Callable[[str], str] | None) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else dumps(value, ensure_ascii=False)
    return text if escape is None else escape(text)
