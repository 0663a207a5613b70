"""What the samples of messages are made of. Bytes are written out here, not made by the codec under test."""

from struct import pack
from typing import Final, NamedTuple, NoReturn, TypeVar
from uuid import UUID

from penstock.errors import PenstockError
from penstock.model import (
    Allocation,
    Appended,
    Delivery,
    Event,
    NewEvent,
    Reply,
    Request,
    StoreStats,
)
from penstock.model.columns import columns_of

Value = TypeVar("Value")


class ByRequest(dict[type[Request], Value]):
    """Test inputs for each request. A missing one names the step of CONTRIBUTING.md that adds it."""

    def __missing__(self, kind: type[Request]) -> NoReturn:
        step = "step 4 of `Add a Res01 command` in CONTRIBUTING.md names the three tables in tests/wire"
        raise AssertionError(f"{kind.__name__} has no sample, no reply or no strategy: {step}")


TEXT: Final = "Res01"
BINARY: Final = "binary"
LEGACY: Final = "001"

REQUEST_ID: Final = UUID("a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf").bytes_le
TEXT_ID: Final = b"a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
"""The RequestId as original text clients write it."""
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
NEW_COLUMNS: Final = columns_of((NEW_EVENT,))
NEW_FRAMES: Final = [GUID, time(TICKS), b"Placed", b"h", BODY]
NEW_FRAMES_BINARY: Final = [GUID, time8(TICKS), b"Placed", b"h", BODY]

EVENT: Final = Event(7, "shop", "order-1", 1, EVENT_ID.bytes, STAMP, "Placed", "h", BODY, NOW, COMMIT_ID.bytes)
EVENT_FRAMES: Final = [GUID, b"order-1", b"shop", b"1", time(TICKS), b"Placed", b"h", BODY]
FULL_FRAMES: Final = [*EVENT_FRAMES, b"7", time(NOW), COMMIT]
EVENT_FRAMES_BINARY: Final = [GUID, b"order-1", b"shop", long8(1), time8(TICKS), b"Placed", b"h", BODY]

APPENDED: Final = Appended(COMMIT_ID.bytes, 7, 1, 1)
ALLOCATION: Final = Allocation(7, 9, 1, "worker-1", NOW, 1)
DELIVERY: Final = Delivery("shop", "mail", "worker-1", NOW, ALLOCATION, [EVENT])
NOTHING: Final = Delivery("shop", "mail", "worker-1", NOW, None, [])
STATS: Final = StoreStats("8f3a", 1, 2, 7, 5, 1, 2, 3, 4, 0, 0, 77, 4096, 6)
STATS_FRAMES: Final = [
    *(b"store_id", b"8f3a", b"timeline", b"1", b"schema", b"2", b"head", b"7", b"commits", b"5", b"contexts", b"1"),
    *(b"streams", b"2", b"subscriptions", b"3", b"queues", b"4", b"logs", b"0", b"iterators", b"0"),
    *(b"body_bytes", b"77", b"file_bytes", b"4096", b"sealed", b"6"),
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
