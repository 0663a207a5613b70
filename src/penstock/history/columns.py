"""The table that readers see: its columns in Arrow, and how they are made from those of stored events.

The column `text` has the bodies as text:
- The body of an event of type `cbor`, as messages of logs are, is CBOR, and becomes JSON.
- Any other body that is UTF-8 is text as it stands.
- Otherwise the other rule is tried: UTF-8 of type `cbor`, or CBOR of another type. Else there is no text.

A body is CBOR if it is exactly one valid item, as the Remits gate requires. JSON has less than CBOR: bytes are base64
in the alphabet for URLs without padding; `undefined`, other simple values and numbers that are not finite become null;
tags are left out except those of big numbers (of up to 1,024 bytes); keys become text.
"""

import json
import math
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Event
from penstock.model.times import TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.store.arrow import SCHEMA
from penstock.store.contract import MESSAGE_TYPE
from penstock.wire.remits.cbor import DEPTH_MAX, check_message


def texts(bodies: pa.Array, types: pa.Array) -> pa.Array:
    """The bodies of events as text, null where they have none."""
    is_message = pc.equal(types, MESSAGE_TYPE)
    if not pc.any(is_message).as_py():
        try:
            # Nearly always: one look at all bytes together, and no copy.
            return bodies.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    found = map(_text, bodies.to_pylist(), is_message.to_pylist())
    return pa.array(list(found), pa.string())


def _text(body: bytes, is_message: bool) -> str | None:
    if is_message and (shown := _message_text(body)) is not None:
        return shown
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None if is_message else _message_text(body)


def _message_text(body: bytes) -> str | None:
    return None if check_message(body) else json_of(body)


def json_of(body: bytes) -> str:
    value = _loads(body)
    try:
        return _dumps(value)
    except (TypeError, ValueError):
        return _dumps(_plain(value))


def _untagged(value: Any, _immutable: bool) -> Any:
    return value.value if isinstance(value, cbor2.CBORTag) else value


def _big(value: Any, _immutable: bool) -> Any:
    """Tag 2: the number that bytes are. On other values, and on very many bytes, the tag has no meaning."""
    return int.from_bytes(value) if isinstance(value, bytes) and len(value) <= BIG_BYTES_MAX else value


def _big_negative(value: Any, immutable: bool) -> Any:
    big = _big(value, immutable)
    return big if big is value else -1 - big


BIG_BYTES_MAX: Final = 1024
"""Bytes of a big number that is shown as one. Python writes out no number of more than 4,300 digits."""
_INTERPRETED: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""The tags that cbor2 would interpret, except big numbers; it would fail on a value of the wrong type."""
_loads = partial(
    cbor2.loads,
    max_depth=DEPTH_MAX + 1,
    tag_hook=_untagged,
    semantic_decoders={**dict.fromkeys(_INTERPRETED, _untagged), 2: _big, 3: _big_negative},
)
_dumps = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return urlsafe_b64encode(value).rstrip(b"=").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else _dumps(plain)


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
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    arrays = [pa.array(map(attrgetter(field.name), events), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def between(batch: pa.RecordBatch, since: int | None, until: int | None) -> pa.RecordBatch:
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
