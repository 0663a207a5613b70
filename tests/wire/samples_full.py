"""Samples of the commands that tell everything."""

from typing import Final

from penstock.errors import SubscriptionNotFound
from penstock.model import (
    AcknowledgeQueue,
    Append,
    Done,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    FindPosition,
    Found,
    ProducerMark,
    ReadAll,
    ReadEvent,
    ReadStream,
    ReleaseQueue,
    ResetQueue,
    SubscribeQueue,
)
from tests.wire.sample_parts import (
    APPENDED,
    COMMIT,
    DELIVERY,
    EVENT,
    FULL_FRAMES,
    NEW_COLUMNS,
    NEW_FRAMES,
    NOTHING,
    NOW,
    TEXT,
    TICKS,
    Sample,
    time,
)

FULL: Final = [
    Sample(
        TEXT,
        "AF",
        [b"importer", b"12", b"shop", b"order-1", b"1", b"1", *NEW_FRAMES],
        (Append("shop", "order-1", NEW_COLUMNS, 1, ProducerMark("importer", 12)),),
        [APPENDED],
        [[b"CF", COMMIT, b"7", b"1", b"1", b"0"]],
    ),
    Sample(
        TEXT,
        "QF",
        [b"shop", b"order-1", b"0", b"", b"10", b"1"],
        (ReadStream("shop", "order-1", 0, None, 10, True),),
        [EventPage([EVENT], 0, True)],
        [[b"PF", b"0", b"1", b"1", *FULL_FRAMES]],
    ),
    Sample(
        TEXT,
        "GF",
        [b"shop", b"order-1", b"1"],
        (ReadEvent("shop", "order-1", 1),),
        [EventPage([EVENT], 2, True)],
        [[b"PF", b"2", b"1", b"1", *FULL_FRAMES]],
    ),
    Sample(
        TEXT,
        "RF",
        [b"7", b"shop", b"order-", b"100", b"5000", b"2", b"Placed", b"Paid"],
        (ReadAll(7, "shop", "order-", ("Placed", "Paid"), 100, 5000),),
        [EventPage([EVENT], 8, False)],
        [[b"PF", b"8", b"0", b"1", *FULL_FRAMES]],
    ),
    Sample(
        TEXT,
        "TP",
        [b"shop", b"order-", time(TICKS)],
        (FindPosition("shop", "order-", TICKS),),
        [Found(7)],
        [[b"PT", b"7"]],
    ),
    Sample(
        TEXT,
        "FF",
        [b"5000", b"2", b"4", b"100", b"9", b"100"],
        (FetchSubscription(4, 100, 5000), FetchSubscription(9, 100, 5000)),
        [FetchedBatch(4, [EVENT]), SubscriptionNotFound("9")],
        [[b"BF", b"4", b"1", *FULL_FRAMES], [b"ER", b"7", b"no subscription 9"]],
    ),
    Sample(
        TEXT,
        "SF",
        [b"5000", b"mail", b"worker-1", b"shop", b"order-", time(TICKS), b"10", b"30000"],
        (SubscribeQueue("shop", "mail", "worker-1", "order-", TICKS, 10, 30000, 5000),),
        [DELIVERY],
        [
            [
                *(b"DF", b"shop", b"mail", b"worker-1", time(NOW), b"7", b"9", time(NOW), b"1"),
                *(b"1", *FULL_FRAMES),
            ]
        ],
    ),
    Sample(
        TEXT,
        "KF",
        [b"5000", b"shop", b"mail", b"worker-1", b"7", b"9", b"10", b"30000"],
        (AcknowledgeQueue("shop", "mail", "worker-1", 7, 9, 10, 30000, 5000),),
        [NOTHING],
        [[b"DF", b"shop", b"mail", b"worker-1", time(NOW), b"0", b"0", b"", b"0", b"0"]],
    ),
    Sample(
        TEXT,
        "RK",
        [b"mail", b"shop", b"worker-1", b"7", b"9"],
        (ReleaseQueue("shop", "mail", "worker-1", 7, 9),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
    Sample(
        TEXT,
        "RT",
        [b"mail", b"shop", time(TICKS)],
        (ResetQueue("shop", "mail", TICKS),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
]
