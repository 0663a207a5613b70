"""Taking a message apart frame by frame, with names for error messages."""

from enum import StrEnum
from functools import partial
from typing import Final, TypeVar, cast

from penstock.errors import InvalidRequest
from penstock.model import NewEvent, ticks_of
from penstock.wire.res01.scalars import Scalars, read_guid, read_guids, read_text, read_texts, shown

EVENT_FRAMES: Final = 5
"""Frames of an event in a request: id, timestamp, type, headers, body."""

W = TypeVar("W", bound=StrEnum)

# The constructor of a named tuple takes its fields one by one; this takes the row that `zip` has made.
new_event_of = partial(tuple.__new__, NewEvent)


class Fields:
    """The frames after the RequestId, from first to last."""

    __slots__ = ("_at", "_frames", "_scalars")

    def __init__(self, frames: list[bytes], at: int, scalars: Scalars) -> None:
        self._frames = frames
        self._at = at
        self._scalars = scalars

    @property
    def left(self) -> int:
        """How many frames are still to come."""
        return len(self._frames) - self._at

    def frame(self, field: str) -> bytes:
        """The next frame as it is."""
        at = self._at
        if at >= len(self._frames):
            raise InvalidRequest(field, "is missing: the message has too few frames")
        self._at = at + 1
        return self._frames[at]

    def text(self, field: str) -> str:
        """The next frame as text."""
        return read_text(self.frame(field), field)

    def text_or_none(self, field: str) -> str | None:
        """The next frame as text; an empty one is null."""
        return self.text(field) or None

    def number(self, field: str) -> int:
        """The next frame as a number."""
        return self._scalars.read_number(self.frame(field), field)

    def number_or_none(self, field: str) -> int | None:
        """The next frame as a number; an empty one is null."""
        frame = self.frame(field)
        return self._scalars.read_number(frame, field) if frame else None

    def ticks(self, field: str) -> int:
        """The next frame as a datetime, whatever its kind."""
        return ticks_of(self._scalars.read_stamp(self.frame(field), field))

    def ticks_or_none(self, field: str) -> int | None:
        """The next frame as a datetime; an empty one is null."""
        frame = self.frame(field)
        return ticks_of(self._scalars.read_stamp(frame, field)) if frame else None

    def flag(self, field: str) -> bool:
        """The next frame as 0 or 1."""
        frame = self.frame(field)
        if frame not in (b"0", b"1"):
            raise InvalidRequest(field, f"is neither 0 nor 1: {shown(frame)}")
        return frame == b"1"

    def word(self, field: str, words: type[W]) -> W:
        """The next frame as one of these words."""
        text = self.text(field)
        try:
            return words(text)
        except ValueError:
            raise InvalidRequest(field, f"is none of {', '.join(words)}: {shown(text.encode())}") from None

    def guid(self, field: str) -> bytes:
        """The next frame as a guid."""
        return read_guid(self.frame(field), field)

    def wait_ms(self, field: str) -> int:
        """The next frame as the time that a long poll may wait."""
        wait_ms = self.number(field)
        if wait_ms < 0:
            raise InvalidRequest(field, f"is {wait_ms}; it must be 0 (do not wait) or more")
        return wait_ms

    def count(self, field: str, frames_each: int, most: int | None = None) -> int:
        """A count of items that each take so many of the frames that are left, or more."""
        count = self.number(field)
        if count < 0 or count * frames_each > self.left:
            raise InvalidRequest(field, f"is {count}, but {self.left} frames follow ({frames_each} for each)")
        if most is not None and count > most:
            raise InvalidRequest(field, f"is {count}; at most {most} at once")
        return count

    def count_to_end(self, field: str, frames_each: int, most: int | None = None) -> int:
        """A count of items that take all the frames that are left."""
        count = self.count(field, frames_each, most)
        if count * frames_each != self.left:
            raise InvalidRequest(field, f"is {count}, but {self.left} frames follow ({frames_each} for each)")
        return count

    def take(self, count: int) -> list[bytes]:
        """So many frames, which are there, as they are."""
        start = self._at
        self._at = end = start + count
        return self._frames[start:end]

    def events(self, count: int) -> tuple[NewEvent, ...]:
        """So many events, whose frames are there. The hot loop of appends: one pass per column."""
        if count == 1:
            return (self._event(),)
        frames, start = self._frames, self._at
        self._at = end = start + EVENT_FRAMES * count
        ids = read_guids(frames[start:end:EVENT_FRAMES], "EventId")
        stamps = self._scalars.read_stamps(frames[start + 1 : end : EVENT_FRAMES], "Timestamp")
        types = read_texts(frames[start + 2 : end : EVENT_FRAMES], "TypeKey")
        headers = [text or None for text in read_texts(frames[start + 3 : end : EVENT_FRAMES], "Headers")]
        bodies = frames[start + 4 : end : EVENT_FRAMES]
        rows = zip(ids, stamps, types, headers, bodies, strict=True)
        return cast("tuple[NewEvent, ...]", tuple(map(new_event_of, rows)))

    def _event(self) -> NewEvent:
        """One event, as most commits have, in half the time that columns would take."""
        start = self._at
        self._at = end = start + EVENT_FRAMES
        number, stamp, kind, headers, body = self._frames[start:end]
        row = (
            read_guid(number, "EventId of event 1"),
            self._scalars.read_stamp(stamp, "Timestamp of event 1"),
            read_text(kind, "TypeKey of event 1"),
            read_text(headers, "Headers of event 1") or None,
            body,
        )
        return new_event_of(row)

    def no_more_than(self, count: int) -> None:
        """At most so many frames may follow."""
        if self.left > count:
            raise InvalidRequest("message", f"has too many frames: {self.left - count} more than it should")

    def end(self) -> None:
        """Nothing may follow."""
        self.no_more_than(0)
