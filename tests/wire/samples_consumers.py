"""Samples of messages for queues that hand out several allocations, settle them event by event, and are managed."""

from typing import Final

from penstock.model import (
    Allocation,
    Buried,
    DeadLetter,
    DeleteQueue,
    DeleteSubscription,
    Delivery,
    Done,
    Extended,
    ExtendQueue,
    ListLetters,
    ListPage,
    PauseQueue,
    PreviewQueue,
    PutBackCount,
    PutBackLetters,
    QueuePreview,
    Registered,
    RegisterSubscriptions,
    RenameQueue,
    Rest,
    Retried,
    Run,
    SetQueueFilter,
    SetRetryPolicy,
    SetSubscription,
    SettleQueue,
    SubscribeQueue,
    SubscriptionStart,
)
from tests.wire.sample_parts import EVENT, FULL_FRAMES, NOW, TEXT, TICKS, Sample, time

RUNS: Final = (Allocation(7, 9, 2, "worker-1", NOW, 1), Allocation(8, 8, 1, "worker-1", NOW, 3))
SEVERAL: Final = Delivery("shop", "mail", "worker-1", NOW, RUNS[0], [EVENT], runs=RUNS, ordered="stream")
RETRY: Final = b'{"delay":1.0}'
SELECTION: Final = b'{"types":["Paid"]}'
_QUEUE: Final = (b"mail", b"shop")
_QT: Final = [[b"QT", b"mail"]]

CONSUMERS: Final = [
    Sample(
        TEXT,
        "SD",
        [
            *(b"5000", b"mail", b"worker-1", b"shop", b"order-", time(TICKS), b"10", b"30000"),
            *(b"stream", SELECTION, RETRY, b"5"),
        ],
        (
            SubscribeQueue(
                *("shop", "mail", "worker-1", "order-", TICKS, 10, 30000, 5000),
                *("stream", SELECTION.decode(), RETRY.decode(), 5, True),
            ),
        ),
        [SEVERAL],
        [
            [
                *(b"DS", b"shop", b"mail", b"worker-1", time(NOW), time(NOW), b"stream"),
                *(b"2", b"7", b"9", b"2", b"1", b"8", b"8", b"1", b"3"),
                *(b"1", *FULL_FRAMES),
            ]
        ],
    ),
    Sample(
        TEXT,
        "KD",
        [
            *(*_QUEUE, b"worker-1", b"2", b"7", b"9", b"8", b"8", b"done", b"", b""),
            *(b"1", b"7", b"5000", b"no stock"),
            *(b"1", b"8", b"no JSON"),
        ],
        (
            SettleQueue(
                *("shop", "mail", "worker-1", (Run(7, 9), Run(8, 8)), Rest.DONE, None, ""),
                *((Retried(7, 5000, "no stock"),), (Buried(8, "no JSON"),)),
            ),
        ),
        [Done()],
        _QT,
    ),
    Sample(
        TEXT,
        "KX",
        [*_QUEUE, b"worker-1", b"1", b"7", b"9", b"30000"],
        (ExtendQueue("shop", "mail", "worker-1", (Run(7, 9),), 30000),),
        [Extended(NOW)],
        [[b"XT", time(NOW)]],
    ),
    Sample(TEXT, "QP", [*_QUEUE, b"1"], (PauseQueue("shop", "mail", True),), [Done()], _QT),
    Sample(TEXT, "QN", [*_QUEUE, b"post"], (RenameQueue("shop", "mail", "post"),), [Done()], _QT),
    Sample(TEXT, "XS", [b"4"], (DeleteSubscription(4),), [Done()], [[b"OK"]]),
    Sample(TEXT, "QD", [*_QUEUE], (DeleteQueue("shop", "mail"),), [Done()], _QT),
    Sample(TEXT, "QY", [*_QUEUE, RETRY], (SetRetryPolicy("shop", "mail", RETRY.decode()),), [Done()], _QT),
    Sample(
        TEXT,
        "QX",
        [*_QUEUE, b"order-", SELECTION],
        (SetQueueFilter("shop", "mail", "order-", SELECTION.decode()),),
        [Done()],
        _QT,
    ),
    Sample(
        TEXT,
        "QV",
        [*_QUEUE, b"order-", b"", time(TICKS), b""],
        (PreviewQueue("shop", "mail", "order-", None, TICKS, None),),
        [QueuePreview(8, 10_000, False, 4200, 3, 1)],
        [[b"PV", b"8", b"10000", b"0", b"4200", b"3", b"1"]],
    ),
    Sample(
        TEXT,
        "RM",
        [b"mailer", b"2", b"", b"", time(TICKS), b"", b"shop", b"order-", time(TICKS), SELECTION],
        (
            RegisterSubscriptions(
                "mailer",
                (
                    SubscriptionStart(None, "", TICKS),
                    SubscriptionStart("shop", "order-", TICKS, SELECTION.decode()),
                ),
            ),
        ),
        [Registered((4, 5))],
        [[b"SR", b"2", b"4", b"5"]],
    ),
    Sample(
        TEXT,
        "SM",
        [b"1", b"mailer", b"shop", b"order-", time(TICKS), SELECTION],
        (SetSubscription("mailer", "shop", "order-", TICKS, SELECTION.decode()),),
        [Done()],
        [[b"ST", b"1", b""]],
    ),
    Sample(
        TEXT,
        "DE",
        [*_QUEUE, b"0", b"100"],
        (ListLetters("shop", "mail", 0, 100),),
        [ListPage([DeadLetter(8, "order-1", 2, 3, "worker-1", "no JSON", NOW)], True)],
        [[b"DA", b"1", b"1", b"8", b"order-1", b"2", b"3", b"worker-1", b"no JSON", time(NOW)]],
    ),
    Sample(
        TEXT,
        "DB",
        [*_QUEUE, b"0", b"2", b"8", b"9"],
        (PutBackLetters("shop", "mail", (8, 9), False),),
        [PutBackCount(1)],
        [[b"PN", b"1"]],
    ),
]
