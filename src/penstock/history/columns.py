"""The table that readers see: its columns as Arrow's, and how they are made from those of stored events.

Nothing here loops over events; what does, for bodies that are not plain text, is in `penstock.history.texts`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.history.texts import texts
from penstock.model import Event
from penstock.model.times import TICKS_MASK, TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.store.arrow import SCHEMA

_TIME: Final = pa.timestamp("us", tz="UTC")
TABLE: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("context", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("headers", pa.string()),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("recorded_at", _TIME, nullable=False),
        pa.field("ticks", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("text", pa.string()),
    ]
)
"""All columns, in order."""
COLUMNS: Final = tuple(TABLE.names)
NULLABLE: Final = tuple(field.name for field in TABLE if field.nullable)


def stored_columns(columns: Iterable[str]) -> list[str]:
    """The columns of stored events that these are made from."""
    return list(dict.fromkeys(source for name in columns for source in _MAKERS[name][0]))


def table_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Stored events as rows of the table; the schema has some of its columns."""
    arrays = [make(*(batch[source] for source in sources)) for sources, make in map(_MAKERS.__getitem__, schema.names)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of(events: Sequence[Event], columns: Sequence[str]) -> pa.RecordBatch:
    """A few events in the columns that they are stored in."""
    found = dict(zip(SCHEMA.names, zip(*events, strict=True), strict=True))
    found["ticks"] = tuple(stamp & TICKS_MASK for stamp in found["ticks"])
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([pa.array(found[field.name], field.type) for field in schema], schema=schema)


def between(batch: pa.RecordBatch, since: int | None, until: int | None) -> pa.RecordBatch:
    """The events whose time is at or after one, and before another."""
    if since is not None:
        batch = batch.filter(pc.greater_equal(batch["ticks"], since))
    return batch if until is None else batch.filter(pc.less(batch["ticks"], until))


# -- columns


def _same(array: pa.Array) -> pa.Array:
    return array


def _times(ticks: pa.Array) -> pa.Array:
    """Microseconds since 1970 of ticks, cut. Every tick there is lies within the years that Spark has."""
    micros = (ticks.to_numpy() // TICKS_PER_US) - UNIX_EPOCH_TICKS // TICKS_PER_US
    return pa.Array.from_buffers(_TIME, len(micros), [None, pa.py_buffer(micros)])


def _uuids(ids: pa.Array) -> pa.Array:
    """Ids as text: 32 digits with four dashes between them."""
    raw = np.frombuffer(ids.buffers()[1], "u1")[16 * ids.offset : 16 * (ids.offset + len(ids))]
    digits = _DIGITS[raw].view("u1").reshape(len(ids), 32)
    text = np.full((len(ids), 36), ord("-"), "u1")
    for place, start, end in _GROUPS:
        text[:, place : place + end - start] = digits[:, start:end]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * 36
    return pa.Array.from_buffers(pa.string(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


_DIGITS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "u2")
"""The two digits of each byte."""
_GROUPS: Final = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))
"""Where each group of digits goes, and which digits they are."""

_MAKERS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    **{name: ((name,), _same) for name in ("position", "sequence", "context", "stream", "type", "headers", "ticks")},
    "event_id": (("id",), _uuids),
    "timestamp": (("ticks",), _times),
    "recorded_at": (("recorded",), _times),
    "body": (("body",), _same),
    "text": (("body", "type"), texts),
}
