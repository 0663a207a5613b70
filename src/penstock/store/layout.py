"""How a record is laid out; `penstock.store.record` says what it means, and `penstock.store.dtypes` has it for NumPy.

NumPy takes longer to import than all else that a worker needs. So it is imported where many events are gone over, and
not before somebody does.
"""

from struct import Struct
from typing import Final, NamedTuple

HEADER: Final = Struct("<QBBHIQIIII")
RUN: Final = Struct("<16sQQIII")

SEQUENCE_MAX: Final = (1 << 63) - 1


class Bounds(NamedTuple):
    """Which events of a record are wanted, beside a filter: positions, a least time in ticks, and how many at most."""

    first: int = 0
    last: int | None = None
    since: int = 0
    limit: int | None = None


class Offsets(NamedTuple):
    """Where each part of a record begins."""

    runs: int
    ids: int
    stamps: int
    types: int
    header_lengths: int
    body_lengths: int
    lengths: int
    text: int
    headers: int
    bodies: int

    @classmethod
    def of(cls, runs: int, events: int, texts: int, text_bytes: int, header_bytes: int) -> "Offsets":
        """From what a record's header says."""
        ids = HEADER.size + RUN.size * runs
        stamps = ids + 16 * events
        types = stamps + 8 * events
        header_lengths = types + 2 * events
        body_lengths = header_lengths + 4 * events
        lengths = body_lengths + 4 * events
        text = lengths + 2 * texts
        headers = text + text_bytes
        return cls(
            *(HEADER.size, ids, stamps, types, header_lengths, body_lengths, lengths, text, headers),
            headers + header_bytes,
        )
