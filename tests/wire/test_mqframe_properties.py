"""Whatever messages are sent, they arrive, however the bytes are cut; whatever bytes arrive, nothing is raised."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.mqframe import FRAME_BYTES_MAX, Disconnected, Message, Reason, disconnect, encode, split_frames
from tests.fuzz.mqframe import CORPUS, fuzz_one, mutations, run
from tests.seeds import rng
from tests.wire.mqframe_checks import BYTES_MAX, FRAMES_MAX, PING, check, command, cut_at, last, more, parsed, wire

payloads = st.one_of(st.just(b""), st.binary(max_size=30), st.integers(31, FRAME_BYTES_MAX).map(bytes))
messages = st.lists(payloads, min_size=1, max_size=8)
short_messages = st.lists(st.binary(max_size=12), min_size=1, max_size=6)
pieces = st.one_of(
    short_messages.map(wire),
    st.binary(max_size=20).map(more),
    st.binary(max_size=20).map(last),
    st.binary(min_size=1, max_size=3).map(command),
    st.just(PING),
    st.binary(max_size=5),
    st.sampled_from([b"\x02\xff\xff", b"\x03\x00", b"\x05", b"\x02\0\0", b"\x01" * FRAMES_MAX]),
)


def chunked(draw: st.DataObject, data: bytes) -> list[bytes]:
    """The data in chunks as a network might give it."""
    return cut_at(data, draw.draw(st.lists(st.integers(0, len(data)), max_size=12), label="cuts"))


@given(messages)
def test_a_message_is_written_as_by_hand(message: Message) -> None:
    assert encode(message, FRAME_BYTES_MAX) == wire(message)


@given(st.lists(messages, max_size=5), st.data())
def test_messages_arrive_in_order_however_they_are_cut(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(encode(message, FRAME_BYTES_MAX) for message in sent)
    assert parsed(chunked(data, stream)) == (sent, 0, None, 0)


@given(st.lists(short_messages, max_size=6), st.data())
def test_pings_anywhere_between_frames_change_nothing(sent: list[Message], data: st.DataObject) -> None:
    frames = list(chain.from_iterable([*map(more, message[:-1]), last(message[-1])] for message in sent))
    before = data.draw(st.lists(st.integers(0, 3), min_size=len(frames), max_size=len(frames)))
    stream = b"".join(PING * count + frame for count, frame in zip(before, frames, strict=True))
    assert parsed(chunked(data, stream)) == (sent, sum(before), None, 0)


@given(st.lists(short_messages, max_size=4), st.sampled_from(Reason), st.binary(max_size=20), st.data())
def test_what_comes_before_a_disconnect_arrives_and_nothing_behind_it(
    sent: list[Message], reason: Reason, behind: bytes, data: st.DataObject
) -> None:
    stream = b"".join(map(encode, sent)) + disconnect(reason) + behind
    assert parsed(chunked(data, stream)) == (sent, 0, Disconnected(reason), 0)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_what_is_cut_into_frames_is_whole_when_joined(content: bytes, size: int) -> None:
    frames = list(split_frames(content, size))
    assert b"".join(frames) == content
    assert all(0 < len(frame) <= size for frame in frames)


@given(st.lists(pieces, max_size=30), st.data())
def test_any_frames_at_all_are_parsed_within_the_limits(stream: list[bytes], data: st.DataObject) -> None:
    check(chunked(data, b"".join(stream)))


@given(st.binary(max_size=2 * BYTES_MAX), st.data())
def test_any_bytes_at_all_are_parsed_within_the_limits(stream: bytes, data: st.DataObject) -> None:
    check(chunked(data, stream))


@given(st.lists(pieces, min_size=1, max_size=30), st.integers(1, 12), st.integers(1, 60), st.data())
def test_any_limits_hold(stream: list[bytes], frames_max: int, bytes_max: int, data: st.DataObject) -> None:
    check(chunked(data, b"".join(stream)), frames_max, bytes_max)


@given(st.sampled_from(CORPUS), st.integers(0, 255), st.integers(0, 1 << 32))
def test_valid_streams_with_bytes_changed_are_parsed_within_the_limits(stream: bytes, size: int, seed: int) -> None:
    for mutated in mutations(stream * 3, seed, count=3):
        fuzz_one(bytes([size]) + mutated)


def test_the_fuzzer_finds_nothing_in_a_short_run() -> None:
    summary = run(rng("the fuzzer of mqframe").randrange(1 << 32), count=3000)
    assert summary.startswith("mqframe: 3000 streams")
    for kind in ("disconnected", "message", "open", "ping", "violation"):
        assert summary.count(f"{kind} ") == 1
