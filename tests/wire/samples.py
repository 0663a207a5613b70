"""One message of every command in every dialect, what it asks for, what the engine replies, and the answers.

Bytes are written out here, not made by the codec under test. The page docs/protocols/res01.md shows the same messages.
"""

from struct import pack
from typing import Final, NamedTuple
from uuid import UUID

from penstock.errors import PenstockError, SubscriptionNotFound
from penstock.model import (
    AcknowledgeQueue,
    Allocation,
    Append,
    Appended,
    Batch,
    ContextInfo,
    ContextPage,
    DeadLetterPage,
    Delivery,
    Done,
    Event,
    EventPage,
    FetchSubscription,
    GetStats,
    ListContexts,
    ListDeadLetters,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    NewEvent,
    ProducerMark,
    ProgressSubscription,
    PutBack,
    QueueInfo,
    QueuePage,
    QueueReceipt,
    ReadEvent,
    ReadRecords,
    ReadStream,
    RecordPage,
    Registered,
    RegisterSubscriptions,
    Reply,
    Request,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    StoreStats,
    StreamInfo,
    StreamPage,
    SubscribeQueue,
    SubscriptionInfo,
    SubscriptionPage,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
    Transacted,
)

TEXT: Final = "Res01"
BINARY: Final = "RC0.1"
LEGACY: Final = "001"

REQUEST_ID: Final = UUID("a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf").bytes_le
EVENT_ID: Final = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
COMMIT_ID: Final = UUID("11121314-1516-1718-191a-1b1c1d1e1f20")
GUID: Final = bytes.fromhex("0403020106050807090a0b0c0d0e0f10")
COMMIT: Final = bytes.fromhex("1413121116151817191a1b1c1d1e1f20")

# 2024-05-06 07:08:09.1234567 UTC, and one second and one minute later.
TICKS: Final = 638_505_760_891_234_567
LATER: Final = TICKS + 10_000_000
NOW: Final = TICKS + 600_000_000
UTC_BITS: Final = 1 << 62
STAMP: Final = UTC_BITS + TICKS
BODY: Final = b'{"total":5}'


def time(ticks: int) -> bytes:
    return b"%d" % (UTC_BITS + ticks)


def time8(ticks: int) -> bytes:
    return pack("<q", UTC_BITS + ticks)


def int4(number: int) -> bytes:
    return pack("<i", number)


def long8(number: int) -> bytes:
    return pack("<q", number)


NEW_EVENT: Final = NewEvent(EVENT_ID.bytes, STAMP, "Placed", "h", BODY)
NEW_FRAMES: Final = [GUID, time(TICKS), b"Placed", b"h", BODY]
NEW_FRAMES_BINARY: Final = [GUID, time8(TICKS), b"Placed", b"h", BODY]

EVENT: Final = Event(7, "shop", "order-1", 1, EVENT_ID.bytes, STAMP, "Placed", "h", BODY, NOW, COMMIT_ID.bytes)
EVENT_FRAMES: Final = [GUID, b"order-1", b"shop", b"1", time(TICKS), b"Placed", b"h", BODY]
EVENT_FRAMES_BINARY: Final = [GUID, b"order-1", b"shop", long8(1), time8(TICKS), b"Placed", b"h", BODY]

APPENDED: Final = Appended(COMMIT_ID.bytes, 7, 1, 1)
ALLOCATION: Final = Allocation(7, 9, 1, "worker-1", NOW, 1)
DELIVERY: Final = Delivery("shop", "mail", "worker-1", NOW, ALLOCATION, [EVENT])
NOTHING: Final = Delivery("shop", "mail", "worker-1", NOW, None, [])
STATS: Final = StoreStats("8f3a", 1, 2, 7, 5, 1, 2, 3, 4, 0, 0, 77, 4096)
STATS_FRAMES: Final = [
    *(b"store_id", b"8f3a", b"timeline", b"1", b"schema", b"2", b"head", b"7", b"commits", b"5", b"contexts", b"1"),
    *(b"streams", b"2", b"subscriptions", b"3", b"queues", b"4", b"logs", b"0", b"iterators", b"0"),
    *(b"body_bytes", b"77", b"file_bytes", b"4096"),
]


class Sample(NamedTuple):
    """A message and all that becomes of it."""

    dialect: str
    command: str
    payload: list[bytes]
    requests: tuple[Request, ...]
    replies: list[Reply | PenstockError]
    answers: list[list[bytes]]

    @property
    def title(self) -> str:
        """What the page and test reports call it."""
        return self.command if self.dialect == TEXT else f"{self.command} {self.dialect}"

    @property
    def tag(self) -> bytes:
        return b"RC0.1" if self.dialect == BINARY else b"Res01"

    @property
    def is_legacy(self) -> bool:
        return self.dialect == LEGACY

    def message(self, *routing: bytes) -> list[bytes]:
        """All its frames."""
        return [*routing, b"", self.tag, self.command.encode(), REQUEST_ID, *self.payload]

    def answer_messages(self, *routing: bytes) -> list[list[bytes]]:
        """All frames of all its answers."""
        return [[*routing, b"", self.tag, REQUEST_ID, *answer] for answer in self.answers]


SEEDS: Final = [
    Sample(
        TEXT,
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES],
        (Append("shop", "order-1", (NEW_EVENT,), 1),),
        [APPENDED],
        [[b"CR", COMMIT]],
    ),
    Sample(
        LEGACY,
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES],
        (Append("shop", "order-1", (NEW_EVENT,), 1),),
        [APPENDED],
        [[b"CR", b"", b"", COMMIT]],
    ),
    Sample(
        BINARY,
        "AC",
        [b"shop", b"order-1", long8(1), int4(1), *NEW_FRAMES_BINARY],
        (Append("shop", "order-1", (NEW_EVENT,), 1),),
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
        [Batch(4, [EVENT]), SubscriptionNotFound("9")],
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
                (Append("shop", "order-1", (NEW_EVENT,), 1),),
                (QueueReceipt("shop", "mail", "worker-1", 7, 9),),
                (SubscriptionReceipt(4, TICKS),),
                ProducerMark("importer", 12),
            ),
        ),
        [Transacted((APPENDED,))],
        [[b"TR", b"1", COMMIT, b"7", b"1", b"0"]],
    ),
    Sample(
        TEXT,
        "FW",
        [b"5000", b"1", b"4", b"100"],
        (FetchSubscription(4, 100, 5000),),
        [Batch(4, [])],
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
        [ContextPage([ContextInfo("shop", 7, 5, 2, 77)], True)],
        [[b"CL", b"1", b"1", b"shop", b"7", b"5", b"2", b"77"]],
    ),
    Sample(
        TEXT,
        "LS",
        [b"shop", b"order-", b"", b""],
        (ListStreams("shop", "order-", "", None),),
        [StreamPage([StreamInfo("order-1", 1), StreamInfo("order-2", 6)], False)],
        [[b"SL", b"0", b"2", b"order-1", b"1", b"order-2", b"6"]],
    ),
    Sample(
        TEXT,
        "LQ",
        [b"0", b""],
        (ListQueues(0, None),),
        [QueuePage([QueueInfo(1, "shop", "mail", "order-", 8, 0, 3, 1, 2, 1, 5)], True)],
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
        [SubscriptionPage([SubscriptionInfo(4, "mailer", "shop", "order-", 8, None)], True)],
        [[b"UL", b"1", b"1", b"4", b"mailer", b"shop", b"order-", b"8"]],
    ),
    Sample(TEXT, "GS", [], (GetStats(),), [STATS], [[b"SG", b"13", *STATS_FRAMES]]),
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
        [DeadLetterPage([Allocation(7, 9, 2, "worker-1", NOW, 5)], True)],
        [[b"LD", b"1", b"1", b"7", b"9", b"2", b"worker-1", b"5"]],
    ),
    Sample(
        TEXT,
        "DP",
        [b"mail", b"shop", b"7"],
        (PutBack("shop", "mail", 7),),
        [Done()],
        [[b"QT", b"mail"]],
    ),
]

SAMPLES: Final = [*SEEDS, *EXTENSIONS]


def sample(title: str) -> Sample:
    """The sample of a title."""
    return next(sample for sample in SAMPLES if sample.title == title)
