"""Stored records to Arrow, many at a time and without a loop over events.

NumPy concatenates the columns of all records (`penstock.store.concat`); it does not copy those of a single record. Text
columns (context, stream, type) come from one dictionary per batch.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LimitExceeded
from penstock.model import EventFilter
from penstock.model.times import TICKS_BITS, TICKS_MASK
from penstock.store.concat import Concat, TextTable
from penstock.store.record import SEQUENCE_MAX, Record
from penstock.store.selective_decode import Ints

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("context", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("ticks", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("recorded", pa.int64(), nullable=False),
        pa.field("commit", pa.binary(16), nullable=False),
    ]
)
"""Events as columns; `ticks` and `recorded` count 100 ns from 0001-01-01 UTC."""

KIND: Final = pa.field("kind", pa.int8(), nullable=False)
"""The kind of each event's time, for readers that ask for it."""
BATCH_BYTES_MAX: Final = (1 << 31) - 1
"""Bytes of bodies, or of headers, in one batch: Arrow's offsets have 32 bits."""

_FIELDS: Final = SCHEMA.append(KIND)
_Mask = npt.NDArray[np.bool_]


def record_batch(
    records: Iterable[Record],
    wanted: EventFilter | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """The events of these records that pass a filter, between two positions, tombstones left out; all columns or some.

    A record's damage raises DamagedRecord, in whichever column it is.
    """
    records = list(records)
    schema = SCHEMA if columns is None else pa.schema([_FIELDS.field(name) for name in columns])
    if not records:
        return pa.RecordBatch.from_pylist([], schema)
    joined = Concat(records)
    joined.check_text()
    size = max(len(joined.headers), len(joined.bodies))
    if size > BATCH_BYTES_MAX:
        raise LimitExceeded("batch_bytes_max", size, BATCH_BYTES_MAX)
    made = pa.RecordBatch.from_arrays([_MAKERS[name](joined) for name in schema.names], schema=schema)
    mask = _mask(joined, wanted or EventFilter(), first, last)
    return made if mask is None else made.filter(pa.array(mask))


def _headers(joined: Concat) -> Any:
    nulls = joined.header_lengths == 0
    if nulls.all():
        return pa.nulls(len(nulls), pa.string())
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return _variable(pa.string(), joined.header_lengths, joined.headers, valid)


def _text(texts: TextTable, indices: Ints) -> Any:
    """The texts at these indices. Often it is the same text everywhere."""
    if len(texts.index) == 1:
        (text,) = texts.index
        return _variable(pa.string(), np.full(len(indices), len(text), np.uint32), text * len(indices))
    return pa.array(list(texts.index), pa.binary()).cast(pa.string()).take(pa.array(indices))


def _fixed(data: npt.NDArray[Any]) -> Any:
    return pa.Array.from_buffers(pa.binary(16), len(data), [None, pa.py_buffer(data)])


def _variable(kind: Any, lengths: npt.NDArray[np.uint32], data: Any, valid: Any = None) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(lengths), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


_MAKERS: Final[dict[str, Callable[[Concat], Any]]] = {
    "position": lambda joined: pa.array(joined.positions()),
    "context": lambda joined: _text(joined.names, joined.per_event(joined.contexts)),
    "stream": lambda joined: _text(joined.names, joined.per_event(joined.streams)),
    "sequence": lambda joined: pa.array(joined.sequences()),
    "id": lambda joined: _fixed(joined.ids),
    "ticks": lambda joined: pa.array((joined.stamps & np.uint64(TICKS_MASK)).view(np.int64)),
    "type": lambda joined: _text(joined.types, joined.codes),
    "headers": _headers,
    "body": lambda joined: _variable(pa.binary(), joined.body_lengths, joined.bodies),
    "recorded": lambda joined: pa.array(joined.per_event(joined.runs["recorded"].astype(np.int64))),
    "commit": lambda joined: _fixed(joined.per_event(joined.runs["commit"])),
    "kind": lambda joined: pa.array((joined.stamps >> np.uint64(TICKS_BITS)).astype(np.int8)),
}


def _mask(joined: Concat, wanted: EventFilter, first: int | None, last: int | None) -> _Mask | None:
    """A mask of the wanted events; None if all are wanted."""
    masks: list[_Mask] = []
    types = [bool(name) and (wanted.types is None or name.decode() in wanted.types) for name in joined.types.index]
    if not all(types):
        masks.append(np.array(types)[joined.codes])
    if wanted.context is not None or wanted.prefix:
        context = None if wanted.context is None else wanted.context.encode()
        prefix = wanted.prefix.encode()
        in_context = np.array([context in (None, name) for name in joined.names.index], bool)
        in_stream = np.array([name.startswith(prefix) for name in joined.names.index], bool)
        masks.append(joined.per_event(in_context[joined.contexts] & in_stream[joined.streams]))
    if wanted.within is not None:
        names = [name.decode() for name in joined.names.index]
        places = list(zip(joined.contexts.tolist(), joined.streams.tolist(), strict=True))
        seen = {place: wanted.within.has_stream(names[place[0]], names[place[1]]) for place in set(places)}
        masks.append(joined.per_event(np.array([seen[place] for place in places], bool)))
    first, last = first or 0, SEQUENCE_MAX if last is None else last
    if not all(first <= record.position and record.last <= last for record in joined.records):
        positions = joined.positions()
        masks.append((positions >= first) & (positions <= last))
    return np.logical_and.reduce(masks) if masks else None
