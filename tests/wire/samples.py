"""One message of every command in every dialect, what it asks for, what the engine replies, and the answers.

The page docs/protocols/res01.md shows the same messages.
"""

from typing import Final

from penstock.errors import SubscriptionNotFound
from penstock.model import (
    AcknowledgeQueue,
    Allocation,
    Append,
    ContextInfo,
    Done,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    GetStats,
    ListContexts,
    ListDeadLetters,
    ListPage,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    ProducerMark,
    ProgressSubscription,
    PutBack,
    QueueInfo,
    QueueReceipt,
    ReadEvent,
    ReadRecords,
    ReadStream,
    RecordPage,
    Registered,
    RegisterSubscriptions,
    Replayed,
    ReplayQueue,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    StreamInfo,
    SubscribeQueue,
    SubscriptionInfo,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
    Transacted,
)
from tests.wire.sample_parts import (
    ALLOCATION,
    APPENDED,
    BINARY,
    BODY,
    COMMIT,
    COMMIT_ID,
    DELIVERY,
    EVENT,
    EVENT_FRAMES,
    EVENT_FRAMES_BINARY,
    EVENT_ID,
    GUID,
    LATER,
    LEGACY,
    NEW_COLUMNS,
    NEW_EVENT,
    NEW_FRAMES,
    NEW_FRAMES_BINARY,
    NOTHING,
    NOW,
    REQUEST_ID,
    STAMP,
    STATS,
    STATS_FRAMES,
    TEXT,
    TEXT_ID,
    TICKS,
    UTC_BITS,
    Sample,
    int4,
    long8,
    time,
    time8,
)
from tests.wire.samples_access import ACCESS
from tests.wire.samples_builds import BUILDS
from tests.wire.samples_consumers import CONSUMERS
from tests.wire.samples_full import FULL
from tests.wire.samples_logs import LOGS
from tests.wire.samples_staging import STAGING
from tests.wire.samples_upkeep import UPKEEP

__all__ = [
    "ALLOCATION",
    "APPENDED",
    "BINARY",
    "BODY",
    "COMMIT",
    "COMMIT_ID",
    "DELIVERY",
    "EVENT",
    "EVENT_FRAMES",
    "EVENT_FRAMES_BINARY",
    "EVENT_ID",
    "EXTENSIONS",
    "GUID",
    "LATER",
    "LEGACY",
    "NEW_EVENT",
    "NEW_FRAMES",
    "NEW_FRAMES_BINARY",
    "NOTHING",
    "NOW",
    "REQUEST_ID",
    "SAMPLES",
    "SEEDS",
    "STAMP",
    "STATS",
    "STATS_FRAMES",
    "TEXT",
    "TEXT_ID",
    "TICKS",
    "UTC_BITS",
    "Sample",
    "int4",
    "long8",
    "sample",
    "time",
    "time8",
]

SEEDS: Final = [
    Sample(
        TEXT,
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES],
        (Append("shop", "order-1", NEW_COLUMNS, 1),),
        [APPENDED],
        [[b"CR", COMMIT]],
    ),
    Sample(
        LEGACY,
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES],
        (Append("shop", "order-1", NEW_COLUMNS, 1),),
        [APPENDED],
        [[b"CR", b"", b"", COMMIT]],
    ),
    Sample(
        BINARY,
        "AC",
        [b"shop", b"order-1", long8(1), int4(1), *NEW_FRAMES_BINARY],
        (Append("shop", "order-1", NEW_COLUMNS, 1),),
        [APPENDED],
        [[b"CR", COMMIT]],
    ),
    Sample(
        TEXT,
        "QS",
        [b"shop", b"order-1", b"1", b""],
        (ReadStream("shop", "order-1", 1, None),),
        [EventPage([EVENT], 2, True)],
        [[b"QR", b"1", *EVENT_FRAMES]],
    ),
    Sample(
        BINARY,
        "QS",
        [b"shop", b"order-1", long8(1), long8(50)],
        (ReadStream("shop", "order-1", 1, 50),),
        [EventPage([EVENT], 2, True)],
        [[b"QR", int4(1), *EVENT_FRAMES_BINARY]],
    ),
    Sample(
        TEXT,
        "RS",
        [b"mailer", b"2", b"shop", b"order-", time(TICKS), b"shop", b"*", b"2024-05-06T07:08:09.1234567Z"],
        (
            RegisterSubscriptions(
                "mailer", (SubscriptionStart("shop", "order-", TICKS), SubscriptionStart("shop", "*", TICKS))
            ),
        ),
        [Registered((4, 5))],
        [[b"SR", b"2", b"4", b"5"]],
    ),
    Sample(
        TEXT,
        "FE",
        [b"2", b"4", b"100", b"9", b"100"],
        (FetchSubscription(4, 100), FetchSubscription(9, 100)),
        [FetchedBatch(4, [EVENT]), SubscriptionNotFound("9")],
        [[b"EF", b"4", b"1", *EVENT_FRAMES], [b"ER", b"7", b"no subscription 9"]],
    ),
    Sample(
        TEXT,
        "PS",
        [b"1", b"4", time(TICKS)],
        (ProgressSubscription(4, TICKS),),
        [Done()],
        [[b"SP", b"1", b"4"]],
    ),
    Sample(
        TEXT,
        "SS",
        [b"2", b"mailer", b"shop", b"order-", time(TICKS), b"who", b"shop", b"", time(TICKS)],
        (SetSubscription("mailer", "shop", "order-", TICKS), SetSubscription("who", "shop", "", TICKS)),
        [Done(), SubscriptionNotFound("of who to '' in context shop")],
        [[b"ST", b"2", b"", b"no subscription of who to '' in context shop"]],
    ),
    Sample(
        TEXT,
        "SQ",
        [time(NOW), b"mail", b"worker-1", b"shop", b"order-", time(TICKS), b"10", b"30000"],
        (SubscribeQueue("shop", "mail", "worker-1", "order-", TICKS, 10, 30000),),
        [DELIVERY],
        [[b"QE", b"mail", b"worker-1", time(NOW), b"7", b"9", b"1", *EVENT_FRAMES]],
    ),
    Sample(
        BINARY,
        "SQ",
        [b"shop", b"mail", b"worker-1", b"order-", time8(TICKS), int4(10), int4(30000)],
        (SubscribeQueue("shop", "mail", "worker-1", "order-", TICKS, 10, 30000),),
        [DELIVERY],
        [[b"QE", b"shop", b"mail", b"worker-1", time8(NOW), long8(7), int4(1), *EVENT_FRAMES_BINARY]],
    ),
    Sample(
        TEXT,
        "AQ",
        [b"mail", b"worker-1", b"7", b"9", b"10", b"30000"],
        (AcknowledgeQueue(None, "mail", "worker-1", 7, 9, 10, 30000),),
        [NOTHING],
        [[b"QE", b"mail", b"worker-1", time(NOW), b"0", b"0", b"0"]],
    ),
    Sample(
        BINARY,
        "AQ",
        [b"shop", b"mail", b"worker-1", long8(7), int4(10), int4(30000)],
        (AcknowledgeQueue("shop", "mail", "worker-1", 7, None, 10, 30000),),
        [NOTHING],
        [[b"QE", b"shop", b"mail", b"worker-1", time8(NOW), b"", int4(0)]],
    ),
    Sample(
        TEXT,
        "RQ",
        [b"mail", time(TICKS), time(NOW)],
        (ResetQueue(None, "mail", TICKS),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
]

EXTENSIONS: Final = [
    Sample(
        TEXT,
        "GE",
        [b"shop", b"order-1", b"1"],
        (ReadEvent("shop", "order-1", 1),),
        [EventPage([EVENT], 2, True)],
        [[b"GR", *EVENT_FRAMES]],
    ),
    Sample(
        TEXT,
        "RA",
        [b"1", b"shop", b"order-", b"5000"],
        (ReadRecords(1, "shop", "order-", 5000),),
        [RecordPage("8f3a", 1, [b"\x01\x02", b"\x03"], 8, True)],
        [[b"RD", b"8f3a", b"1", b"8", b"1", b"2", b"\x01\x02", b"\x03"]],
    ),
    Sample(
        TEXT,
        "TX",
        [
            *(b"importer", b"12"),
            *(b"1", b"shop", b"order-1", b"1", b"1", *NEW_FRAMES),
            *(b"1", b"shop", b"mail", b"worker-1", b"7", b"9"),
            *(b"1", b"4", time(TICKS)),
        ],
        (
            Transact(
                (Append("shop", "order-1", NEW_COLUMNS, 1),),
                (QueueReceipt("shop", "mail", "worker-1", 7, 9),),
                (SubscriptionReceipt(4, TICKS),),
                ProducerMark("importer", 12),
            ),
        ),
        [Transacted((APPENDED,))],
        [[b"TR", b"1", COMMIT, b"7", b"1", b"1", b"0"]],
    ),
    Sample(
        TEXT,
        "FW",
        [b"5000", b"1", b"4", b"100"],
        (FetchSubscription(4, 100, 5000),),
        [FetchedBatch(4, [])],
        [[b"EF", b"4", b"0"]],
    ),
    Sample(
        TEXT,
        "SW",
        [b"5000", b"mail", b"worker-1", b"shop", b"order-", time(TICKS), b"10", b"30000"],
        (SubscribeQueue("shop", "mail", "worker-1", "order-", TICKS, 10, 30000, 5000),),
        [NOTHING],
        [[b"QE", b"mail", b"worker-1", time(NOW), b"0", b"0", b"0"]],
    ),
    Sample(
        TEXT,
        "AW",
        [b"5000", b"shop", b"mail", b"worker-1", b"7", b"9", b"10", b"30000"],
        (AcknowledgeQueue("shop", "mail", "worker-1", 7, 9, 10, 30000, 5000),),
        [NOTHING],
        [[b"QE", b"mail", b"worker-1", time(NOW), b"0", b"0", b"0"]],
    ),
    Sample(
        TEXT,
        "LC",
        [b"a", b"100"],
        (ListContexts("a", 100),),
        [ListPage([ContextInfo("shop", 7, 5, 2, 77)], True)],
        [[b"CL", b"1", b"1", b"shop", b"7", b"5", b"2", b"77"]],
    ),
    Sample(
        TEXT,
        "LS",
        [b"shop", b"order-", b"", b""],
        (ListStreams("shop", "order-", "", None),),
        [ListPage([StreamInfo("order-1", 1), StreamInfo("order-2", 6)], False)],
        [[b"SL", b"0", b"2", b"order-1", b"1", b"order-2", b"6"]],
    ),
    Sample(
        TEXT,
        "LQ",
        [b"0", b""],
        (ListQueues(0, None),),
        [ListPage([QueueInfo(1, "shop", "mail", "order-", 8, 0, 3, 1, 2, 1, 5)], True)],
        [
            [
                *(b"QL", b"1", b"1", b"1", b"shop", b"mail", b"order-", b"8"),
                *(b"0", b"3", b"1", b"2", b"1", b"5"),
            ]
        ],
    ),
    Sample(
        TEXT,
        "LU",
        [b"0", b"100"],
        (ListSubscriptions(0, 100),),
        [ListPage([SubscriptionInfo(4, "mailer", "shop", "order-", 8, TICKS)], True)],
        [[b"UL", b"1", b"1", b"4", b"mailer", b"shop", b"order-", b"8", time(TICKS)]],
    ),
    Sample(
        TEXT,
        "GQ",
        [b"0", b""],
        (ListQueues(0, None),),
        [
            ListPage(
                [
                    QueueInfo(
                        1, "shop", "mail", "order-", 8, 10_000, 3, 1, 2, 1, 5, False, 4200, "stream", "", "", True, 2
                    )
                ],
                True,
            )
        ],
        [
            [
                *(b"QM", b"1", b"1", b"1", b"shop", b"mail", b"order-", b"8"),
                *(b"10000", b"3", b"1", b"2", b"1", b"5", b"0", b"4200", b"stream", b"", b"", b"1", b"2"),
            ]
        ],
    ),
    Sample(
        TEXT,
        "GU",
        [b"0", b"100"],
        (ListSubscriptions(0, 100),),
        [ListPage([SubscriptionInfo(4, "mailer", None, "order-", 8, TICKS, 2, True, 4200, '{"types":["T"]}')], True)],
        [
            [
                *(b"UM", b"1", b"1", b"4", b"mailer", b"", b"order-", b"8", time(TICKS), b"2", b"1", b"4200"),
                b'{"types":["T"]}',
            ]
        ],
    ),
    Sample(TEXT, "GS", [], (GetStats(),), [STATS], [[b"SG", b"14", *STATS_FRAMES]]),
    Sample(
        TEXT,
        "DR",
        [b"mail", b"shop", b"5"],
        (SetDeadLetterRule("shop", "mail", 5),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
    Sample(
        TEXT,
        "DL",
        [b"mail", b"", b"0", b"100"],
        (ListDeadLetters(None, "mail", 0, 100),),
        [ListPage([Allocation(7, 9, 2, "worker-1", NOW, 5)], True)],
        [[b"LD", b"1", b"1", b"7", b"9", b"2", b"worker-1", b"5", time(NOW)]],
    ),
    Sample(
        TEXT,
        "DP",
        [b"mail", b"shop", b"7"],
        (PutBack("shop", "mail", 7),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
    Sample(
        TEXT,
        "RP",
        [b"mail", b"shop", b"7", b"9", b"nightly", b"9"],
        (ReplayQueue("shop", "mail", 7, 9, ProducerMark("nightly", 9)),),
        [Replayed(2, 1, 5)],
        [[b"PR", b"2", b"1", b"5", b"0", b"0"]],
    ),
]

SAMPLES: Final = [*SEEDS, *EXTENSIONS, *FULL, *CONSUMERS, *LOGS, *UPKEEP, *STAGING, *BUILDS, *ACCESS]


def sample(title: str) -> Sample:
    """The sample of a title."""
    return next(sample for sample in SAMPLES if sample.title == title)
