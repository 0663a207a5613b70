"""MqFrames, frame by frame: whole, byte by byte, cut anywhere, and with the next message behind."""

from collections.abc import Callable
from typing import Final

import pytest

from penstock.wire.mqframe import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    Disconnected,
    EmptyMessage,
    FrameTooLong,
    Message,
    Parser,
    Reason,
    Violation,
    disconnect,
    encode,
    put_message,
    split_frames,
)
from penstock.wire.mqframe import PING as SENT_PING
from tests.wire.mqframe_checks import (
    EMPTY,
    EMPTY_LAST,
    PING,
    byte_by_byte,
    command,
    cut_at,
    last,
    more,
    parsed,
    wire,
)

MESSAGES: Final[dict[str, tuple[bytes, Message]]] = {
    "Last alone": (bytes.fromhex("03 0100 61"), [b"a"]),
    "EmptyLast alone": (bytes.fromhex("04"), [b""]),
    "More and Last": (bytes.fromhex("02 0200 6162 03 0100 63"), [b"ab", b"c"]),
    "Empty and Last": (bytes.fromhex("01 03 0100 61"), [b"", b"a"]),
    "Empty and EmptyLast": (bytes.fromhex("01 04"), [b"", b""]),
    "More and EmptyLast": (bytes.fromhex("02 0100 61 04"), [b"a", b""]),
    "many Empty": (bytes.fromhex("01 01 01 01 04"), [b""] * 5),
    "payloads that look like frames": (bytes.fromhex("02 0300 030100 03 0200 0406"), [b"\x03\x01\x00", b"\x04\x06"]),
    "a length of two bytes": (bytes.fromhex("03 0101") + bytes(257), [bytes(257)]),
    "four frames of ten": (wire([b"0123456789"] * 4), [b"0123456789"] * 4),
    "a frame that the original takes": (b"\x03\xfd\x3f" + bytes(16_381), [bytes(16_381)]),
    "a frame of 65,535": (b"\x03\xff\xff" + bytes(65_535), [bytes(65_535)]),
}
NEXT: Final = bytes.fromhex("02 0100 78 03 0100 79")
every_message = pytest.mark.parametrize(("data", "message"), MESSAGES.values(), ids=MESSAGES)
SHORT: Final = {title: (data, message) for title, (data, message) in MESSAGES.items() if len(data) < 1000}
every_short_message = pytest.mark.parametrize(("data", "message"), SHORT.values(), ids=SHORT)


# --- messages -------------------------------------------------------------------------------------------------


@every_message
def test_a_message_is_read_whole(data: bytes, message: Message) -> None:
    assert parsed([data]) == ([message], 0, None, 0)


@every_message
def test_a_message_is_read_byte_by_byte(data: bytes, message: Message) -> None:
    assert parsed(byte_by_byte(data)) == ([message], 0, None, 0)


@every_message
def test_a_message_is_given_with_its_last_byte_and_not_before(data: bytes, message: Message) -> None:
    parser = Parser(1000, 1 << 20)
    assert parser.receive(data[:-1]) == []
    assert parser.pending_bytes == len(data) - 1
    assert parser.receive(data[-1:]) == [message]
    assert parser.pending_bytes == 0


@every_message
def test_a_message_is_read_with_the_next_one_behind(data: bytes, message: Message) -> None:
    assert parsed([data + NEXT]).messages == [message, [b"x", b"y"]]
    assert parsed([data + NEXT[:-1], NEXT[-1:]]).messages == [message, [b"x", b"y"]]


@every_short_message
def test_a_message_is_read_cut_in_two_anywhere_with_the_next_one_behind(data: bytes, message: Message) -> None:
    both = data + NEXT
    for place in range(1, len(both)):
        assert parsed(cut_at(both, [place])) == ([message, [b"x", b"y"]], 0, None, 0)


@every_short_message
def test_a_message_is_read_cut_in_three_anywhere(data: bytes, message: Message) -> None:
    for first in range(min(len(data), 40)):
        for second in range(first, min(len(data), 40)):
            assert parsed(cut_at(data, [first, second])).messages == [message]


@pytest.mark.parametrize("place", [1, 2, 3, 4, 100, 16_384, 32_768, 65_535, 65_537])
def test_the_longest_frame_is_read_cut_anywhere(place: int) -> None:
    data, message = MESSAGES["a frame of 65,535"]
    assert parsed(cut_at(data + NEXT, [place])).messages == [message, [b"x", b"y"]]


def test_all_messages_behind_each_other_are_read_in_chunks_of_any_size() -> None:
    data = b"".join(data for data, _ in SHORT.values()) * 3
    messages = [message for _, message in SHORT.values()] * 3
    for size in range(1, 64):
        assert parsed(cut_at(data, range(size, len(data), size))).messages == messages


def test_a_chunk_without_bytes_changes_nothing() -> None:
    assert parsed([b"", b"\x02\x01", b"", b"\x00a", b"", EMPTY_LAST, b""]) == ([[b"a", b""]], 0, None, 0)


def test_frames_are_bytes_of_their_own() -> None:
    given = bytearray(wire([b"a", b"b"]))
    (message,) = Parser(10, 100).receive(bytes(given))
    given[:] = bytes(len(given))
    assert message == [b"a", b"b"]
    (joined,) = parsed(byte_by_byte(wire([b"a", b"b"]))).messages
    assert [type(frame) for frame in joined] == [bytes, bytes]


@every_message
def test_a_message_is_written_as_it_is_read(data: bytes, message: Message) -> None:
    assert encode(message, FRAME_BYTES_MAX) == data


# --- pings ----------------------------------------------------------------------------------------------------


def test_a_ping_is_counted_and_is_no_message() -> None:
    assert parsed([PING]) == ([], 1, None, 0)
    assert parsed([PING * 5]) == ([], 5, None, 0)


@pytest.mark.parametrize("chunked", [lambda data: [data], byte_by_byte], ids=["whole", "byte by byte"])
def test_pings_between_the_frames_of_a_message_are_not_part_of_it(chunked: Callable[[bytes], list[bytes]]) -> None:
    frames = [more(b"a"), EMPTY, more(b"bc"), last(b"d")]
    data = PING + PING.join(frames) + PING + PING + EMPTY_LAST + PING
    assert parsed(chunked(data)) == ([[b"a", b"", b"bc", b"d"], [b""]], 7, None, 0)


def test_a_ping_is_not_counted_as_a_byte_or_a_frame_of_the_message() -> None:
    assert parsed([more(b"a") + PING * 100]).pending == len(more(b"a"))
    assert parsed([EMPTY + PING * 100 + EMPTY_LAST], frames_max=2, bytes_max=2) == ([[b"", b""]], 100, None, 0)


def test_the_ping_that_is_sent_is_the_ping_that_is_read() -> None:
    assert SENT_PING == PING


# --- disconnect -----------------------------------------------------------------------------------------------

REASONS: Final = {
    0: "unknown",
    1: "server shutdown",
    2: "client closing",
    3: "server closing",
    4: "application error",
    5: "socket error",
    6: "time out",
    7: "protocol error",
    8: "internal error",
    9: "authentication failure",
    10: "authorization failure",
    11: "connection refused",
}


def test_every_reason_has_its_number() -> None:
    assert {reason.value: reason.words for reason in Reason} == REASONS


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.words)
def test_a_disconnect_is_read_as_it_is_written(reason: Reason) -> None:
    data = bytes([5, 2, 0, 0, reason])
    assert disconnect(reason) == data
    assert parsed([data]).ended == Disconnected(reason)
    assert parsed(byte_by_byte(data)).ended == Disconnected(reason)


@pytest.mark.parametrize("number", [12, 13, 100, 255])
def test_a_reason_that_nobody_knows_is_unknown(number: int) -> None:
    assert parsed([command(bytes([0, number]))]).ended == Disconnected(Reason.UNKNOWN)


def test_a_disconnect_without_a_reason_is_unknown() -> None:
    assert parsed([command(b"\0")]).ended == Disconnected(Reason.UNKNOWN)


@pytest.mark.parametrize("more_bytes", [1, 2, 1000, 65_533])
def test_what_stands_behind_the_reason_is_ignored(more_bytes: int) -> None:
    assert parsed([command(b"\0\x02" + bytes(more_bytes))]).ended == Disconnected(Reason.CLIENT_CLOSING)


def test_a_disconnect_may_come_in_the_middle_of_a_message() -> None:
    assert parsed([EMPTY_LAST + more(b"a") + command(b"\0\x03")])[:3] == (
        [[b""]],
        0,
        Disconnected(Reason.SERVER_CLOSING),
    )


def test_nothing_is_read_after_a_disconnect() -> None:
    data = EMPTY_LAST + command(b"\0\x03") + EMPTY_LAST + PING + b"\xff"
    for chunks in ([data], byte_by_byte(data)):
        assert parsed(chunks) == ([[b""]], 0, Disconnected(Reason.SERVER_CLOSING), 0)


# --- mistakes -------------------------------------------------------------------------------------------------

MISTAKES: Final[dict[str, tuple[bytes, str]]] = {
    "type 0": (b"\0", "there is no frame type 0"),
    **{f"type {kind}": (bytes([kind]), f"there is no frame type {kind}") for kind in (7, 8, 71, 127, 128, 255)},
    **{f"length 0 of type {kind}": (bytes([kind, 0, 0]), f"type {kind} has the length 0") for kind in (2, 3, 5)},
    **{f"command {first}": (command(bytes([first])), f"there is no command {first}") for first in (1, 2, 5, 255)},
    "command 1 with more": (command(b"\x01\x02\x03"), "there is no command 1"),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "there is no frame type 71"),
    "a TLS hello": (bytes.fromhex("16 03 01 00c8 01 0000c4 0303"), "there is no frame type 22"),
}
every_mistake = pytest.mark.parametrize(("data", "what"), MISTAKES.values(), ids=MISTAKES)


def is_violation(ended: object, what: str) -> bool:
    return isinstance(ended, Violation) and what in ended.what


@every_mistake
def test_a_mistake_from_the_first_byte_is_noticed(data: bytes, what: str) -> None:
    for chunks in ([data], byte_by_byte(data)):
        outcome = parsed(chunks)
        assert outcome.messages == []
        assert is_violation(outcome.ended, what)


@every_mistake
def test_messages_before_a_mistake_are_given_and_nothing_after_it(data: bytes, what: str) -> None:
    stream = wire([b"a", b"b"]) + PING + EMPTY_LAST + data + wire([b"c"]) + PING
    for chunks in ([stream], byte_by_byte(stream), cut_at(stream, [5, 12, 14])):
        outcome = parsed(chunks)
        assert (outcome.messages, outcome.pings) == ([[b"a", b"b"], [b""]], 1)
        assert is_violation(outcome.ended, what)


@every_mistake
def test_a_mistake_in_the_middle_of_a_message_is_noticed(data: bytes, what: str) -> None:
    stream = more(b"a") + data + last(b"b")
    for chunks in ([stream], byte_by_byte(stream)):
        outcome = parsed(chunks)
        assert outcome.messages == []
        assert is_violation(outcome.ended, what)


@every_mistake
def test_after_a_mistake_nothing_more_is_kept(data: bytes, what: str) -> None:
    parser = Parser(1000, 1 << 20)
    parser.receive(data)
    pending = parser.pending_bytes
    for _ in range(100):
        assert parser.receive(more(bytes(1000)) + EMPTY_LAST) == []
    assert parser.pending_bytes == pending <= len(data)


def test_a_length_of_zero_is_noticed_as_soon_as_it_is_there() -> None:
    parser = Parser(1000, 1 << 20)
    parser.receive(b"\x02\0")
    assert parser.ended is None
    parser.receive(b"\0")
    assert is_violation(parser.ended, "type 2 has the length 0")


def test_a_length_that_never_fills_is_held_and_nothing_else() -> None:
    parser = Parser(1000, 1 << 20)
    assert parser.receive(EMPTY_LAST + b"\x03\xff\xff" + bytes(60_000)) == [[b""]]
    assert (parser.pending_bytes, parser.ended) == (60_003, None)
    assert parser.receive(bytes(5535)) == [[bytes(65_535)]]
    assert parser.pending_bytes == 0


# --- limits ---------------------------------------------------------------------------------------------------

TOO_MANY_FRAMES: Final = Violation("a message has more than 10 frames")
TOO_MANY_BYTES: Final = Violation("a message has more than 100 bytes")


def limited(chunks: list[bytes]) -> tuple[list[Message], object]:
    messages, _, ended, _ = parsed(chunks, frames_max=10, bytes_max=100)
    return messages, ended


@pytest.mark.parametrize("message", [[b""] * 10, [b"a"] * 10, [*([b""] * 9), b"a" * 80]], ids=["empty", "one", "long"])
def test_a_message_of_as_many_frames_as_may_be_is_read(message: Message) -> None:
    assert limited([wire(message)]) == ([message], None)
    assert limited(byte_by_byte(wire(message))) == ([message], None)


@pytest.mark.parametrize("message", [[b""] * 11, [b"a"] * 11, [*([b""] * 10), b"a" * 80]], ids=["empty", "one", "long"])
def test_a_message_of_more_frames_is_refused(message: Message) -> None:
    assert limited([EMPTY_LAST + wire(message) + EMPTY_LAST]) == ([[b""]], TOO_MANY_FRAMES)
    assert limited(byte_by_byte(EMPTY_LAST + wire(message) + EMPTY_LAST)) == ([[b""]], TOO_MANY_FRAMES)


@pytest.mark.parametrize("message", [[bytes(97)], [bytes(50), bytes(44)], [b"", bytes(95), b""]])
def test_a_message_of_as_many_bytes_as_may_be_is_read(message: Message) -> None:
    assert len(wire(message)) == 100
    assert limited([wire(message)]) == ([message], None)
    assert limited(byte_by_byte(wire(message))) == ([message], None)


@pytest.mark.parametrize("message", [[bytes(98)], [bytes(50), bytes(45)], [b"", bytes(96), b""]])
def test_a_message_of_more_bytes_is_refused(message: Message) -> None:
    assert limited([EMPTY_LAST + wire(message) + EMPTY_LAST]) == ([[b""]], TOO_MANY_BYTES)
    assert limited(byte_by_byte(EMPTY_LAST + wire(message) + EMPTY_LAST)) == ([[b""]], TOO_MANY_BYTES)


@pytest.mark.parametrize(
    ("frame", "times", "ended"),
    [(EMPTY, 11, TOO_MANY_FRAMES), (more(b"a"), 11, TOO_MANY_FRAMES), (more(bytes(20)), 5, TOO_MANY_BYTES)],
    ids=["empty", "short", "long"],
)
def test_a_message_that_never_ends_is_refused(frame: bytes, times: int, ended: Violation) -> None:
    assert limited([frame * (times - 1)]) == ([], None)
    assert limited([frame * times]) == ([], ended)
    assert limited([frame] * times) == ([], ended)
    assert limited(byte_by_byte(frame * times)) == ([], ended)


def test_a_frame_that_would_be_too_much_is_refused_before_it_is_complete() -> None:
    assert limited([b"\x03\xff\xff" + bytes(97)]) == ([], None)
    assert limited([b"\x03\xff\xff" + bytes(98)]) == ([], TOO_MANY_BYTES)
    assert limited([b"\x03\xff\xff", *[b"\0"] * 98]) == ([], TOO_MANY_BYTES)


def test_the_limits_are_those_of_each_message_by_itself() -> None:
    message = [bytes(10)] * 7
    assert limited([wire(message) * 50]) == ([message] * 50, None)
    assert limited(byte_by_byte(wire(message) * 50)) == ([message] * 50, None)


def test_a_large_message_among_small_ones_is_within_the_limits_or_not_by_its_own_size() -> None:
    large = [bytes(60_000)] * 4
    data = wire([b"a"]) + wire(large) + wire([b"b"])
    for chunks in ([data], cut_at(data, range(5000, len(data), 5000))):
        assert parsed(chunks, bytes_max=len(wire(large))).messages == [[b"a"], large, [b"b"]]
        messages, _, ended, _ = parsed(chunks, bytes_max=len(wire(large)) - 1)
        assert messages == [[b"a"]]
        assert is_violation(ended, "more than 240011 bytes")


@pytest.mark.parametrize(("size", "longer"), [(16_381, False), (16_382, True), (65_535, True)])
def test_the_parser_knows_whether_the_peer_sends_longer_frames_than_the_original_takes(size: int, longer: bool) -> None:
    for chunks in ([wire([b"a", bytes(size), b"b"])], byte_by_byte(wire([bytes(size)]))):
        parser = Parser(1000, 1 << 20)
        for chunk in chunks:
            parser.receive(chunk)
        assert (parser.longest > FRAME_BYTES_SENT_MAX) == longer


def test_many_short_frames_are_no_long_one() -> None:
    parser = Parser(1000, 1 << 20)
    parser.receive(wire([bytes(16_000)] * 10))
    assert parser.longest <= FRAME_BYTES_SENT_MAX


# --- sending --------------------------------------------------------------------------------------------------


def test_the_limits_of_frames_are_those_of_the_protocol() -> None:
    assert (FRAME_BYTES_SENT_MAX, FRAME_BYTES_MAX) == (16_381, 65_535)


@pytest.mark.parametrize("frames", [[bytes(16_381)], [b"a", bytes(16_381)], [bytes(16_381), b""]])
def test_a_frame_of_16381_bytes_is_sent_to_anybody(frames: Message) -> None:
    assert encode(frames) == wire(frames)


@pytest.mark.parametrize(
    "frames", [[bytes(16_382)], [b"a", bytes(16_382)], [bytes(16_382), b"b"], [b"", bytes(70_000)]]
)
def test_a_longer_frame_is_not_sent_and_nothing_of_its_message_is(frames: Message) -> None:
    out = [b"before"]
    with pytest.raises(FrameTooLong, match="longer than the 16381") as raised:
        put_message(out, frames)
    assert raised.value.size == max(map(len, frames))
    assert out == [b"before"]


@pytest.mark.parametrize("frames", [[bytes(16_382)], [bytes(65_535), b"", bytes(20_000)], [b"", bytes(65_535), b""]])
def test_a_frame_of_65535_bytes_is_sent_to_who_takes_it(frames: Message) -> None:
    assert encode(frames, FRAME_BYTES_MAX) == wire(frames)
    assert parsed([encode(frames, FRAME_BYTES_MAX)]).messages == [frames]


def test_a_frame_of_more_than_65535_bytes_cannot_be_sent() -> None:
    out = [b"before"]
    with pytest.raises(FrameTooLong, match="of 65536 bytes is longer than the 65535"):
        put_message(out, [b"a", bytes(65_536)], FRAME_BYTES_MAX)
    assert out == [b"before"]


def test_a_message_without_frames_cannot_be_sent() -> None:
    out = [b"before"]
    with pytest.raises(EmptyMessage, match="at least one frame"):
        put_message(out, [])
    with pytest.raises(EmptyMessage):
        encode([], FRAME_BYTES_MAX)
    assert out == [b"before"]


def test_messages_are_put_behind_each_other() -> None:
    out: list[bytes] = []
    put_message(out, [b"a", b""])
    put_message(out, (b"",))
    put_message(out, [bytes(20_000), b"b"], FRAME_BYTES_MAX)
    assert b"".join(out) == wire([b"a", b""]) + wire([b""]) + wire([bytes(20_000), b"b"])


def test_content_is_cut_into_frames_that_fit() -> None:
    assert list(split_frames(bytes(40_000))) == [bytes(16_381), bytes(16_381), bytes(7238)]
    assert list(split_frames(b"abcdef", 4)) == [b"abcd", b"ef"]
    assert list(split_frames(b"abcd", 4)) == [b"abcd"]
    assert list(split_frames(b"")) == []
