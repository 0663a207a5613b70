"""What must hold of any bytes on a Remits connection, and of any message: for the property tests and the fuzzer."""

from struct import unpack
from typing import Final

from penstock import errors
from penstock.errors import PenstockError
from penstock.model import (
    AddMessages,
    Authenticate,
    CreateIterator,
    CreateLog,
    Done,
    DropIterator,
    DropLog,
    Encoded,
    Identity,
    ItemPage,
    ListIterators,
    ListLogs,
    LogSummary,
    Names,
    NextItems,
    Reply,
    Request,
    ShowLog,
)
from penstock.wire.remits.cbor import DEPTH_MAX, check_message
from penstock.wire.remits.frames import DATA, ERROR, INFO, Frame, Parser
from penstock.wire.remits.operations import Exchange, decode, item_payload, refusal_frame
from tests.wire.remits_answers import NAMES, parse_data, parse_error, parse_info

FRAME_BYTES_MAX: Final = 1 << 16
FAILURES: Final[tuple[PenstockError, ...]] = (
    errors.WriterBusy(3),
    errors.LogNotFound("\ud800"),
    errors.FunctionFailed("\ud800" * 9000, 4),
    errors.ResultUnreadable("a function", None),
    errors.Unexpected("\ud800"),
)
_REPLIES: Final[dict[type[Request], Reply]] = {
    ShowLog: LogSummary("orders", 638_505_760_891_234_567, 2, 19, []),
    ListLogs: Names(["orders"]),
    ListIterators: Names(["large", "total"]),
    NextItems: ItemPage([b"\x01", b"", b"\x82\x01\x02"]),
    Authenticate: Identity("shop", ("read,append:log:orders",)),
} | dict.fromkeys([CreateLog, DropLog, AddMessages, CreateIterator, DropIterator], Done())


def reply_to(request: Request) -> Reply:
    """A reply of the kind that the engine gives."""
    return _REPLIES[type(request)]


def one_frame(data: bytes) -> Frame:
    """The frame that these bytes are, whole."""
    (frame,) = Parser(1 << 32).receive(data)
    return frame


def frames_of(pieces: list[bytes], frame_bytes_max: int = FRAME_BYTES_MAX) -> tuple[list[Frame], int | None]:
    """All frames in the pieces, and the code if framing was lost."""
    parser = Parser(frame_bytes_max)
    frames = [frame for piece in pieces for frame in parser.receive(piece)]
    return frames, parser.lost.code if parser.lost else None


def check(pieces: list[bytes]) -> list[str]:
    """Take what came in these pieces and answer every frame in every way; what the answers are."""
    frames, lost = frames_of(pieces)
    assert (frames, lost) == frames_of([b"".join(pieces)])
    seen = [_check_frame(frame) for frame in frames]
    return seen if lost is None else [*seen, _described(refusal_frame(lost))]


def _check_frame(frame: Frame) -> str:
    exchange = decode(frame)
    if exchange.request is None:
        assert exchange.refused is not None
        return _described(exchange.answer())
    assert exchange.refused is None
    for failure in FAILURES:
        assert _described(exchange.answer(failure)) == f"error {NAMES[one_frame(exchange.answer(failure)).code]}"
    return _check_reply(exchange, reply_to(exchange.request))


def _check_reply(exchange: Exchange, reply: Reply) -> str:
    answer = exchange.answer(reply)
    if isinstance(reply, ItemPage):
        assert parse_data(one_frame(answer).payload) == reply.items
        encoded = Encoded(len(reply.items), item_payload(reply.items))
        assert exchange.answer(ItemPage([], encoded)) == answer
    return _described(answer)


def _described(answer: bytes) -> str:
    """What an answer is; that it is one, to the last byte."""
    frame = one_frame(answer)
    if frame.kind == INFO:
        assert (frame.code, parse_info(frame.payload)) == (0, "ok")
        return "info"
    if frame.kind == DATA:
        assert frame.code == 0
        assert all(check_message(item) is None or item == b"" for item in parse_data(frame.payload))
        return "data"
    assert frame.kind == ERROR
    assert check_message(frame.payload) is None
    failure = parse_error(frame)
    assert (failure.code, failure.name) == (frame.code, NAMES[frame.code])
    return f"error {failure.name}"


# --- CBOR as RFC 8949 has it, written down plainly ------------------------------------------------------------


def reference(data: bytes) -> bool:
    """Whether this is exactly one valid item, not nested too deep. Slow, recursive and without a limit of items."""
    try:
        return _item(data, 0, 0)[1] == len(data)
    except (IndexError, ValueError):
        return False


def _item(data: bytes, at: int, depth: int) -> tuple[object, int]:
    """What an item is compared by when it is a key, and where it ends."""
    start, major, info = at, data[at] >> 5, data[at] & 31
    if depth > DEPTH_MAX or (28 <= info <= 30) or (info == 31 and major in (0, 1, 6, 7)):
        raise ValueError
    value, at = (info, at + 1) if info < 24 or info == 31 else _number(data, at + 1, 1 << info - 24)
    if major < 2:
        return ("integer", -1 - value if major else value), at
    if major < 4:
        content, at = _pieces(data, at, major) if info == 31 else _string(data, at, value, major)
        return (major, content), at
    if major == 7:
        return _simple(info, value, data[start + 1 : at]), at
    if depth == DEPTH_MAX and (info == 31 or value or major == 6):
        raise ValueError
    if major == 6:
        at = _item(data, at, depth + 1)[1]
    else:
        at = _entries(data, at, None if info == 31 else value, 1 if major == 4 else 2, depth)
    return data[start:at], at


def _entries(data: bytes, at: int, count: int | None, each: int, depth: int) -> int:
    keys: list[object] = []
    while len(keys) != count and not (count is None and data[at] == 0xFF):
        key, at = _item(data, at, depth + 1)
        if each == 2:
            if key in keys:
                raise ValueError
            _, at = _item(data, at, depth + 1)
        keys.append(key)
    return at if count is not None else at + 1


def _number(data: bytes, at: int, width: int) -> tuple[int, int]:
    if at + width > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + width], "big"), at + width


def _string(data: bytes, at: int, length: int, major: int) -> tuple[object, int]:
    content = data[at : at + length]
    if len(content) < length:
        raise ValueError
    return content if major == 2 else content.decode(), at + length


def _pieces(data: bytes, at: int, major: int) -> tuple[object, int]:
    content = b""
    while data[at] != 0xFF:
        if data[at] >> 5 != major or data[at] & 31 > 27:
            raise ValueError
        info = data[at] & 31
        length, at = (info, at + 1) if info < 24 else _number(data, at + 1, 1 << info - 24)
        _, end = _string(data, at, length, major)
        content += data[at:end]
        at = end
    return content if major == 2 else content.decode(), at + 1


def _simple(info: int, value: int, number: bytes) -> object:
    if info == 24 and value < 32:
        raise ValueError
    # By what is printed, so that all NaNs are one and 0.0 and -0.0 are two.
    return ("simple", value) if info < 25 else ("float", repr(unpack({2: ">e", 4: ">f", 8: ">d"}[len(number)], number)))
