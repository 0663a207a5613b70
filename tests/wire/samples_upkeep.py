"""Samples of the commands that erase."""

from typing import Final

from penstock.model import Erased, EraseStream, EraseSubject, ErasureInfo, ListErasures, ListPage
from tests.wire.sample_parts import NOW, TEXT, TICKS, Sample, time

UPKEEP: Final = [
    Sample(
        TEXT,
        "ES",
        [b"shop", b"order-1"],
        (EraseStream("shop", "order-1"),),
        [Erased(4, 0, True)],
        [[b"SE", b"4", b"0", b"1"]],
    ),
    Sample(
        TEXT,
        "EJ",
        [b"customer-7", b"", b"1"],
        (EraseSubject("customer-7", None, 1),),
        [Erased(3, 70001, False)],
        [[b"SE", b"3", b"70001", b"0"]],
    ),
    Sample(
        TEXT,
        "EL",
        [b"0", b"100"],
        (ListErasures(0, 100),),
        [
            ListPage(
                [
                    ErasureInfo(1, "shop", "order-1", 4, TICKS, NOW, 0),
                    ErasureInfo(2, None, None, 3, NOW, None, 1),
                ],
                True,
            )
        ],
        [
            [
                *(b"LE", b"1", b"2"),
                *(b"1", b"shop", b"order-1", b"4", time(TICKS), time(NOW), b"0"),
                *(b"2", b"", b"", b"3", time(NOW), b"", b"1"),
            ]
        ],
    ),
]
