"""Bodies as text.

- The body of an event of type `cbor`, as messages of logs are, is CBOR, and shown as JSON.
- Any other body that is UTF-8 is text as it stands.
- What is not the one thing may still be the other: UTF-8 of type `cbor`, or CBOR of another type. Else there is none.

A body is CBOR if it is exactly one valid item, as the Remits gate has it. JSON has less than CBOR: bytes become base64
in the alphabet for URLs without padding, `undefined`, other simple values and numbers that are not finite become null,
tags are left out but for those of big numbers (of up to 1,024 bytes), and keys become text.
"""

import json
import math
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import cbor2
import pyarrow as pa
import pyarrow.compute as pc

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
    if is_message and (shown := _shown(body)) is not None:
        return shown
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None if is_message else _shown(body)


def _shown(body: bytes) -> str | None:
    return None if check_message(body) else json_of(body)


def json_of(body: bytes) -> str:
    """One valid CBOR item as JSON."""
    value = _loads(body)
    try:
        return _dumps(value)
    except (TypeError, ValueError):
        return _dumps(_plain(value))


def _untagged(value: Any, _immutable: bool) -> Any:
    return value.value if isinstance(value, cbor2.CBORTag) else value


def _big(value: Any, _immutable: bool) -> Any:
    """What tag 2 means: the number that bytes are. On anything else, and on very many bytes, it means nothing."""
    return int.from_bytes(value) if isinstance(value, bytes) and len(value) <= BIG_BYTES_MAX else value


def _big_negative(value: Any, immutable: bool) -> Any:
    big = _big(value, immutable)
    return big if big is value else -1 - big


BIG_BYTES_MAX: Final = 1024
"""Bytes of a big number that is shown as one. Python writes out no number of more than 4,300 digits."""
_INTERPRETED: Final = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""The tags that cbor2 would interpret by itself, but for big numbers; on a value that does not fit it would fail."""
_loads = partial(
    cbor2.loads,
    max_depth=DEPTH_MAX + 1,
    tag_hook=_untagged,
    semantic_decoders={**dict.fromkeys(_INTERPRETED, _untagged), 2: _big, 3: _big_negative},
)
_dumps = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """A value as JSON can have it."""
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
