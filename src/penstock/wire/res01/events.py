"""Events as frames. These functions run in worker processes: an answer's events leave the worker ready to send.

Both are hot loops, a column at a time; `bench/` has their figures with those of the gate.
"""

from struct import Struct
from typing import Final

from penstock.model import Event
from penstock.wire.res01.scalars import swap_guids

EVENT_FRAMES: Final = 8
"""Frames of an event in an answer: id, stream, context, sequence, timestamp, type, headers, body."""

_LONG: Final = Struct("<q")
_BITS: Final = Struct("<Q")
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


def text_frames(events: list[Event]) -> list[bytes]:
    """Eight frames for each event, in the text dialect."""
    sequences = [b"%d" % event.sequence for event in events]
    times = [b"%d" % (stamp if (stamp := event.stamp) < _SIGN else stamp - _WRAP) for event in events]
    return _frames(events, sequences, times)


def binary_frames(events: list[Event]) -> list[bytes]:
    """Eight frames for each event, in the binary dialect."""
    sequences = [_LONG.pack(event.sequence) for event in events]
    # The bits of a stamp are those of its signed number.
    times = [_BITS.pack(event.stamp) for event in events]
    return _frames(events, sequences, times)


def _frames(events: list[Event], sequences: list[bytes], times: list[bytes]) -> list[bytes]:
    frames = [b""] * (EVENT_FRAMES * len(events))
    frames[0::EVENT_FRAMES] = swap_guids([event.id for event in events])
    frames[1::EVENT_FRAMES] = [event.stream.encode() for event in events]
    frames[2::EVENT_FRAMES] = [event.context.encode() for event in events]
    frames[3::EVENT_FRAMES] = sequences
    frames[4::EVENT_FRAMES] = times
    frames[5::EVENT_FRAMES] = [event.type.encode() for event in events]
    frames[6::EVENT_FRAMES] = [event.headers.encode() if event.headers else b"" for event in events]
    frames[7::EVENT_FRAMES] = [event.body for event in events]
    return frames
