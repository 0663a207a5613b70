"""A digest of rows: the same for the same rows in the same order, whatever they were read from.

It goes over all columns of the table, one after the other: which values are null, the lengths of texts, and all bytes.
How Arrow happens to hold them (in chunks, with offsets, with bytes behind nulls) makes no difference.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128

from penstock.history.columns import TABLE

_EMPTY: Final[dict[Any, Any]] = {pa.string(): "", pa.binary(): b""}


def digest(rows: pa.Table) -> str:
    """The digest of rows that have all columns of the table."""
    found = xxh3_128(b"%d" % rows.num_rows)
    for field in TABLE:
        found.update(f"|{field.name}:{field.type}|".encode())
        _add(found, _whole(rows[field.name], field.type))
    return found.hexdigest()


def _whole(column: Any, kind: Any) -> Any:
    """A column as one array."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    return array


def _add(found: Any, array: Any) -> None:
    if array.null_count:
        found.update(np.packbits(np.asarray(pc.is_valid(array))))
        array = pc.fill_null(array, _EMPTY[array.type])
    if array.type in _EMPTY:
        _add_texts(found, array)
    else:
        found.update(_slice(array.buffers()[1], np.int64, array.offset, len(array)))


def _add_texts(found: Any, array: Any) -> None:
    _, offsets, data = array.buffers()
    if not len(array):
        return
    places = _slice(offsets, np.int32, array.offset, len(array) + 1)
    found.update(np.ascontiguousarray(np.diff(places)))
    if data is not None:
        found.update(memoryview(data)[int(places[0]) : int(places[-1])])


def _slice(buffer: Any, kind: Any, start: int, count: int) -> Any:
    return np.frombuffer(buffer if buffer is not None else b"", kind)[start : start + count]
