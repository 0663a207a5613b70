"""How a record is laid out, for NumPy; `penstock.store.layout` has the same for `struct`."""

from typing import Final

import numpy as np

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
