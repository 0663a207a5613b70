"""Events as frames, and frames as events.

Presenters run in worker processes: an answer's events leave the worker ready to send. All are hot loops, a column at a
time; `bench/` has their figures with those of the gate.
"""

from functools import partial
from struct import Struct
from typing import Any, Final, cast

from penstock.model import Event, stamp_of, ticks_of
from penstock.wire.res01.fields import (
    TEXT_SCALARS,
    read_guids,
    read_text,
    read_text_numbers,
    read_texts,
    swap_guids,
)

EVENT_FRAMES: Final = 8
"""Frames of an event in an answer: id, stream, context, sequence, timestamp, type, headers, body."""
FULL_FRAMES: Final = 11
"""Frames of an event of which everything is told: behind the others position, recorded time and commit id."""

_LONG: Final = Struct("<q")
_BITS: Final = Struct("<Q")
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


# The constructor of a named tuple takes its fields one by one; this takes the row that `zip` has made.
_event = partial(tuple.__new__, Event)


def text_frames(events: list[Event]) -> list[bytes]:
    """Eight frames for each event, in the text dialect."""
    return _frames(events, _text_sequences(events), _text_times(events))


def binary_frames(events: list[Event]) -> list[bytes]:
    """Eight frames for each event, in the binary dialect."""
    sequences = [_LONG.pack(event.sequence) for event in events]
    # The bits of a stamp are those of its signed number.
    times = [_BITS.pack(event.stamp) for event in events]
    return _frames(events, sequences, times)


def full_frames(events: list[Event]) -> list[bytes]:
    """Eleven frames for each event, in the text dialect: everything that is known of it."""
    frames = _frames(events, _text_sequences(events), _text_times(events), FULL_FRAMES)
    frames[8::FULL_FRAMES] = [b"%d" % event.position for event in events]
    frames[9::FULL_FRAMES] = [b"%d" % stamp_of(event.recorded) for event in events]
    frames[10::FULL_FRAMES] = swap_guids([event.commit for event in events])
    return frames


def item_frames(items: list[Any]) -> list[bytes]:
    """A frame for each item of an iterator: an item is bytes already."""
    return items


def _text_sequences(events: list[Event]) -> list[bytes]:
    return [b"%d" % event.sequence for event in events]


def _text_times(events: list[Event]) -> list[bytes]:
    return [b"%d" % (stamp if (stamp := event.stamp) < _SIGN else stamp - _WRAP) for event in events]


def _frames(
    events: list[Event], sequences: list[bytes], times: list[bytes], frames_each: int = EVENT_FRAMES
) -> list[bytes]:
    frames = [b""] * (frames_each * len(events))
    frames[0::frames_each] = swap_guids([event.id for event in events])
    frames[1::frames_each] = [event.stream.encode() for event in events]
    frames[2::frames_each] = [event.context.encode() for event in events]
    frames[3::frames_each] = sequences
    frames[4::frames_each] = times
    frames[5::frames_each] = [event.type.encode() for event in events]
    frames[6::frames_each] = [event.headers.encode() if event.headers else b"" for event in events]
    frames[7::frames_each] = [event.body for event in events]
    return frames


# --- the client's side ----------------------------------------------------------------------------------------


def full_events(frames: list[bytes]) -> list[Event]:
    """Events from eleven frames each: what `full_frames` makes of them, undone."""
    each = FULL_FRAMES
    rows = zip(
        read_text_numbers(frames[8::each], "Position"),
        _names(frames[2::each], "Context"),
        _names(frames[1::each], "StreamId"),
        read_text_numbers(frames[3::each], "Sequence"),
        read_guids(frames[0::each], "EventId"),
        TEXT_SCALARS.read_stamps(frames[4::each], "Timestamp"),
        _names(frames[5::each], "Type tag"),
        [text or None for text in read_texts(frames[6::each], "Headers")],
        frames[7::each],
        map(ticks_of, TEXT_SCALARS.read_stamps(frames[9::each], "Recorded")),
        read_guids(frames[10::each], "CommitId"),
        strict=True,
    )
    return cast("list[Event]", list(map(_event, rows)))


def _names(column: list[bytes], field: str) -> list[str]:
    """A column of names. Often it is one name all the way down: then it is decoded, and kept, once."""
    if column and column.count(column[0]) == len(column):
        return [read_text(column[0], f"{field} of event 1")] * len(column)
    return read_texts(column, field)
