"""How a record is laid out, for `struct` and for NumPy; `penstock.store.record` says what it means."""

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

HEADER: Final = Struct("<QBBHIQIIII")
RUN: Final = Struct("<16sQQIII")

HEADER_TYPE: Final = np.dtype(
    [
        ("checksum", "<u8"),
        ("version", "u1"),
        ("flags", "u1"),
        ("types", "<u2"),
        ("events", "<u4"),
        ("position", "<u8"),
        ("runs", "<u4"),
        ("names", "<u4"),
        ("text_bytes", "<u4"),
        ("header_bytes", "<u4"),
    ]
)
RUN_TYPE: Final = np.dtype(
    [
        ("commit", "V16"),
        ("sequence", "<u8"),
        ("recorded", "<u8"),
        ("count", "<u4"),
        ("context", "<u4"),
        ("stream", "<u4"),
    ]
)
ONE_TYPE: Final = np.dtype(
    [
        ("header", HEADER_TYPE),
        ("run", RUN_TYPE),
        ("id", "V16"),
        ("stamp", "<u8"),
        ("type", "<u2"),
        ("header_length", "<u4"),
        ("body_length", "<u4"),
    ]
)
"""How the record of a single event begins."""


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
