"""A fuzzer target for columns that a client sends: `python -m tests.fuzz.columns --seconds 60 --seed 1`.

Columns that the server takes are events that it would have taken one by one, and readers can read them.
"""

import random
import struct
from collections.abc import Iterable

from penstock.errors import InvalidRequest
from penstock.model import NewEvent
from penstock.model.columns import Columns, columns_of, received_columns
from penstock.store.record import Record, encode_commit
from tests.fuzz.streams import command_line, mutated, run_streams

PARTS = struct.Struct("<HBHHH")
"""The number of events and of types, and the lengths of the fixed columns, the headers and the bodies."""
EVENTS = (
    NewEvent(bytes(range(16)), 5250191779318622791, "Placed", None, b"{}"),
    NewEvent(b"e" * 16, 638505760891234567, "Paid", "größe", b""),
    NewEvent(b"f" * 16, 0, "Placed", "h", b"x" * 40),
)


def joined(columns: Columns) -> bytes:
    """Columns as `fuzz_one` wants them."""
    lengths = len(columns.fixed), len(columns.headers), len(columns.bodies)
    types = b"".join(bytes([len(name)]) + name for name in columns.types)
    head = PARTS.pack(columns.length, len(columns.types), *lengths)
    return head + types + columns.fixed + columns.headers + columns.bodies


def fuzz_one(data: bytes) -> Iterable[str]:
    """Whatever the bytes are, the columns are refused, or the same as those of their events. Else it raises: a find."""
    length, count, *lengths = PARTS.unpack(data[: PARTS.size].ljust(PARTS.size, b"\0"))
    at, pieces = PARTS.size, []
    for _ in range(count):
        size = data[at] if at < len(data) else 0
        pieces.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    for size in lengths:
        pieces.append(data[at : at + size])
        at += size
    *types, fixed, headers, bodies = pieces
    try:
        columns = received_columns(length, types, fixed, headers, bodies)
    except InvalidRequest as refusal:
        return [refusal.field]
    events = events_in(columns)
    assert events_in(columns_of(events)) == events
    assert columns.sizes() == [len(e.type.encode()) + len((e.headers or "").encode()) + len(e.body) for e in events]
    assert b"".join(columns.split_bodies()) == bodies
    return ["taken"]


def events_in(columns: Columns) -> list[NewEvent]:
    """The events as a reader sees them."""
    found = Record(encode_commit(columns, 1, b"c", b"s", 1, bytes(16), 0), 1).events()
    assert len(found) == columns.length
    return [NewEvent(one.id, one.stamp, one.type, one.headers, one.body) for one in found]


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    corpus = [joined(columns_of(EVENTS[:size])) for size in (1, 2, 3)] + [joined(columns_of(EVENTS * 10))]
    names = [name.encode() for name in ("Placed", "\0", "größe", "")]

    def make(chance: random.Random) -> bytes:
        return mutated(chance.choice(corpus), chance, b"\x00\x01\x02\x10\x22\xc3\xff", names)

    return run_streams("columns", seed, make, fuzz_one, count, seconds)


if __name__ == "__main__":
    command_line(__doc__ or "", run)
