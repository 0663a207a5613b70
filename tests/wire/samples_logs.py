"""Samples of the commands for logs and iterators."""

from typing import Final

from penstock.model import (
    AddMessages,
    CreateIterator,
    CreateLog,
    Done,
    DropIterator,
    DropLog,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    ListIterators,
    ListLogs,
    LogSummary,
    Names,
    NextItems,
    Over,
    ShowIterator,
    ShowLog,
)
from tests.wire.sample_parts import TEXT, TICKS, Sample, time

LOGS: Final = [
    Sample(TEXT, "NL", [b"orders"], (CreateLog("orders"),), [Done()], [[b"OK"]]),
    Sample(TEXT, "XL", [b"orders"], (DropLog("orders"),), [Done()], [[b"OK"]]),
    Sample(
        TEXT,
        "GL",
        [b"orders"],
        (ShowLog("orders"),),
        [LogSummary("orders", TICKS, 2, 77, ["large", "total"])],
        [[b"LG", b"orders", time(TICKS), b"2", b"77", b"2", b"large", b"total"]],
    ),
    Sample(TEXT, "LL", [], (ListLogs(),), [Names(["orders"])], [[b"LN", b"1", b"orders"]]),
    Sample(
        TEXT,
        "ML",
        [b"orders", b"2", b"\x05", b"\xa1\x61\x61\x01"],
        (AddMessages("orders", (b"\x05", b"\xa1\x61\x61\x01")),),
        [Done()],
        [[b"OK"]],
    ),
    Sample(
        TEXT,
        "NI",
        [b"large", b"orders", b"filter", b"return msg > 4", b"1"],
        (CreateIterator("large", "orders", IteratorKind.FILTER, "return msg > 4", True),),
        [Done()],
        [[b"OK"]],
    ),
    Sample(TEXT, "XI", [b"orders", b"large"], (DropIterator("orders", "large"),), [Done()], [[b"OK"]]),
    Sample(
        TEXT,
        "GI",
        [b"large"],
        (ShowIterator("large"),),
        [IteratorSummary("large", "orders", Over.LOG, IteratorKind.FILTER, "return msg > 4", True, TICKS, 7, 0)],
        [[b"IG", b"large", b"orders", b"log", b"filter", b"return msg > 4", b"1", time(TICKS), b"7", b"0"]],
    ),
    Sample(TEXT, "LI", [b""], (ListIterators(None),), [Names(["large", "total"])], [[b"LN", b"2", b"large", b"total"]]),
    Sample(
        TEXT,
        "NX",
        [b"large", b"0", b"100"],
        (NextItems("large", 0, 100),),
        [ItemPage([b"\x05", b"\x18\x2a"])],
        [[b"IP", b"2", b"\x05", b"\x18\x2a"]],
    ),
]
