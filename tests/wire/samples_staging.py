"""Samples of the commands that stage events and publish them."""

from typing import Final

from penstock.model import (
    Done,
    DropStages,
    ProducerMark,
    Published,
    PublishStages,
    StagedUnit,
    StageEvents,
    StagesTaken,
    Winner,
)
from tests.wire.sample_parts import TEXT, Sample

STAGING: Final = [
    Sample(
        TEXT,
        "ZS",
        [*(b"copier/7", b"0", b"first", b"2", b"1"), *(b"shop", b"order-1", b"-1", b"record", b"keys")],
        (StageEvents("copier/7", 0, "first", 2, (StagedUnit("shop", "order-1", -1, b"record", b"keys"),)),),
        [StagesTaken(8 << 20)],
        [[b"ZT", b"8388608"]],
    ),
    Sample(
        TEXT,
        "ZP",
        [b"copier", b"7", b"copier/7", b"query", b"1", b"0", b"first", b"3"],
        (PublishStages("copier/7", (Winner(0, "first", 3),), ProducerMark("copier", 7), "query"),),
        [Published(12, 3, 250)],
        [[b"ZR", b"12", b"3", b"250", b"0"]],
    ),
    Sample(TEXT, "ZD", [b"copier/7"], (DropStages("copier/7"),), [Done()], [[b"OK"]]),
]
