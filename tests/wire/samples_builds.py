"""Samples of the commands of builds."""

from typing import Final

from penstock.model import (
    BeginBuild,
    BuildStart,
    Done,
    DropOutput,
    FindMessage,
    Found,
    Installed,
    InstallOutput,
    IteratorKind,
    MessagePage,
    Over,
    ReadMessages,
    StageOutput,
    Winner,
)
from tests.wire.sample_parts import TEXT, Sample

CHUNK: Final = b"\x01\0\0\0\x01\0\0\0\x05"
START: Final = BuildStart(
    iterator="total",
    id=3,
    log="orders",
    over=Over.LOG,
    kind=IteratorKind.REDUCE,
    function="return (acc or 0) + msg",
    source=2,
    items=2,
    state=b"\x18\x2a",
    head=700,
    call_ms_max=1000,
    memory_bytes_max=67108864,
    result_bytes_max=8388608,
)

BUILDS: Final = [
    Sample(
        TEXT,
        "BB",
        [b"total"],
        (BeginBuild("total"),),
        [START],
        [
            [
                *(b"BG", b"total", b"3", b"orders", b"log", b"reduce", b"return (acc or 0) + msg"),
                *(b"2", b"2", b"\x18\x2a", b"700", b"1000", b"67108864", b"8388608"),
            ]
        ],
    ),
    Sample(
        TEXT,
        "BM",
        [b"total", b"3", b"2", b"4"],
        (ReadMessages("total", 3, 2, 4),),
        [MessagePage([b"\x05", None, b"", None])],
        [[b"MB", b"2", b"1", b"3", b"4", b"\x05", b"", b"", b""]],
    ),
    Sample(TEXT, "BP", [b"total", b"3", b"2"], (FindMessage("total", 3, 2),), [Found(18)], [[b"PT", b"18"]]),
    Sample(
        TEXT,
        "BO",
        [b"3", b"0", b"first", b"2", b"1", CHUNK],
        (StageOutput(3, 0, "first", 2, (CHUNK,)),),
        [Done()],
        [[b"OK"]],
    ),
    Sample(
        TEXT,
        "BI",
        [*(b"total", b"3", b"2", b"2", b"700", b"\x18\x2a"), *(b"1", b"0", b"first", b"3")],
        (InstallOutput("total", 3, 2, 2, 700, (Winner(0, "first", 3),), b"\x18\x2a"),),
        [Installed(700, 690, 700)],
        [[b"BR", b"700", b"690", b"700"]],
    ),
    Sample(TEXT, "BD", [b"3"], (DropOutput(3),), [Done()], [[b"OK"]]),
]
