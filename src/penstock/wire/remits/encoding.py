"""Replies to frames: Info for what was done, Data for what was asked for, Error for what went wrong."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from cbor2 import dumps

from penstock.errors import FunctionFailed, PenstockError
from penstock.model import ItemPage, LogSummary, Names, Reply, unix_ns_of
from penstock.wire.remits.codes import LIMIT, NAMES, code_of
from penstock.wire.remits.frames import DATA, ERROR, INFO, LENGTH_MAX, LENGTH_MIN, pack

DETAIL_CHARACTERS_MAX: Final = 4096
"""How much is told of an error in a function; it may hold whatever the function made of it."""

_ITEM_LENGTH: Final = Struct(">I")
_OK: Final = pack(INFO, 0, dumps("ok"))


def item_payload(items: Iterable[bytes]) -> bytes:
    """Items, each behind its length: the payload of a Data frame. Workers are told to call it by its name."""
    length = _ITEM_LENGTH.pack
    return b"".join([part for item in items for part in (length(len(item)), item)])


def error_frame(error: PenstockError) -> bytes:
    """An Error frame: the name of the error's code, and of errors in functions also what they say."""
    return refusal_frame(code_of(error), str(error) if isinstance(error, FunctionFailed) else "")


def refusal_frame(code: int, detail: str = "") -> bytes:
    """An Error frame with a code."""
    text = f"{NAMES[code]}: {detail[:DETAIL_CHARACTERS_MAX]}" if detail else NAMES[code]
    # What a function says need not be Unicode.
    return pack(ERROR, code, dumps(text.encode(errors="replace").decode()))


def write_done(_reply: Reply) -> bytes:
    """Info `ok`."""
    return _OK


def write_summary(reply: LogSummary) -> bytes:
    """Log Show: one map."""
    shown = {
        "name": reply.log,
        "created_at": unix_ns_of(reply.created) // 1_000_000_000,
        "message_count": reply.messages,
        "bytes": reply.size_bytes,
        "iterators": reply.iterators,
    }
    return _data(item_payload([dumps(shown)]))


def write_array(reply: Names) -> bytes:
    """Log List: one item, an array of names."""
    return _data(item_payload([dumps(reply.names)]))


def write_each(reply: Names) -> bytes:
    """Iterator List: one item per name."""
    return _data(item_payload(map(dumps, reply.names)))


def write_items(reply: ItemPage) -> bytes:
    """Iterator Next: one item per message, as a worker has put them together or as they are."""
    return _data(item_payload(reply.items) if reply.encoded is None else reply.encoded.content)


def _data(payload: bytes) -> bytes:
    # Four bytes of length say no more. Pages end far below this; a list of millions of names might not.
    if len(payload) > LENGTH_MAX - LENGTH_MIN:
        return refusal_frame(LIMIT)
    return pack(DATA, 0, payload)
