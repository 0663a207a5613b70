"""MqFrames written out by hand, and what must hold of any bytes: used by the codec's tests and by the fuzzer."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import pack
from typing import Final, NamedTuple

from penstock.wire.mqframe import Disconnected, Message, Parser, Violation

EMPTY: Final = b"\x01"
EMPTY_LAST: Final = b"\x04"
PING: Final = b"\x06"

FRAMES_MAX: Final = 20
BYTES_MAX: Final = 300
"""Limits small enough that random bytes reach them."""


def more(payload: bytes) -> bytes:
    """A frame that others follow."""
    return b"\x02" + pack("<H", len(payload)) + payload if payload else EMPTY


def last(payload: bytes) -> bytes:
    """The last frame of a message."""
    return b"\x03" + pack("<H", len(payload)) + payload if payload else EMPTY_LAST


def command(data: bytes) -> bytes:
    return b"\x05" + pack("<H", len(data)) + data


def wire(frames: Sequence[bytes]) -> bytes:
    """A message as it goes over the wire."""
    return b"".join(map(more, frames[:-1])) + last(frames[-1])


class Outcome(NamedTuple):
    """What became of some bytes."""

    messages: list[Message]
    pings: int
    ended: Disconnected | Violation | None
    pending: int


def parsed(chunks: Iterable[bytes], frames_max: int = 1000, bytes_max: int = 1 << 20) -> Outcome:
    """What a new parser makes of bytes that come in these chunks."""
    parser = Parser(frames_max, bytes_max)
    messages = [message for chunk in chunks for message in parser.receive(chunk)]
    return Outcome(messages, parser.pings, parser.ended, parser.pending_bytes)


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def cut_at(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in chunks that end at these places."""
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


def held(parser: Parser) -> int:
    """How many bytes of payload and frames the parser really keeps."""
    return sum(map(len, parser._frames)) + len(parser._frames) + len(parser._part)


def check(chunks: Sequence[bytes], frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX) -> Outcome:
    """Whatever the bytes are, they are parsed without a raise, within the limits, and the same as when whole."""
    parser = Parser(frames_max, bytes_max)
    messages: list[Message] = []
    longest = max(map(len, chunks), default=0)
    for chunk in chunks:
        before, pings = parser.ended, parser.pings
        given = parser.receive(chunk)
        messages += given
        if before is not None:
            assert (given, parser.ended, parser.pings) == ([], before, pings)
        assert held(parser) <= bytes_max + longest
        if parser.ended is None:
            assert len(parser._frames) <= frames_max
            assert parser.pending_bytes <= bytes_max
    for message in messages:
        assert 1 <= len(message) <= frames_max
        assert len(wire(message)) <= bytes_max
        assert all(type(frame) is bytes for frame in message)
    outcome = Outcome(messages, parser.pings, parser.ended, parser.pending_bytes)
    whole = parsed([b"".join(chunks)], frames_max, bytes_max)
    assert messages == whole.messages
    # A disconnect of which only a part has come counts to the message that it interrupts, and may be too much for it.
    assert type(outcome.ended) is type(whole.ended) or outcome.ended == Violation(
        f"a message has more than {bytes_max} bytes"
    )
    if outcome.ended is None:
        assert outcome == whole
    return outcome
