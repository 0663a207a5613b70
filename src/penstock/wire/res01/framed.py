"""Res01 inside messages whose frames are short: MqFrames.

A message's frames are what a DEALER would send, with the leading empty frame or without; the answer does as the
message did. A field that is longer than a frame needs the tag `Res01L`, or `PEN1L` in the dialect of our own: then all
frames behind the tag, joined, are one byte string with the number of fields, their lengths and the fields themselves,
cut into frames anywhere.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple

from penstock.errors import DoesNotFit, InvalidRequest, LimitExceeded, PenstockError
from penstock.model import Event
from penstock.wire.mqframe import cut
from penstock.wire.res01.decoding import decode
from penstock.wire.res01.dialects import OWN, OWN_TAG, TEXT, TEXT_TAG, Frames, Presenter
from penstock.wire.res01.exchange import Envelope, Exchange

LARGE_TAG: Final = b"Res01L"
OWN_LARGE_TAG: Final = b"PEN1L"
LARGE: Final = {LARGE_TAG: TEXT_TAG, OWN_LARGE_TAG: OWN_TAG}
"""The tags of messages in one byte string, and the tags that their fields would have in frames."""
FIELDS_MAX: Final = 250_000
"""Fields of one Res01L message: empty ones cost little to send, but much to take apart."""
_COUNT: Final = Struct("<I")


class Framed(NamedTuple):
    """A message: what it asks for, and how its answers are put into frames."""

    exchange: Exchange
    frame_bytes_max: int
    bare: bool
    fields: int
    """How many there are: each takes memory, also an empty one."""
    large_tag: bytes | None = None

    @property
    def present(self) -> Presenter:
        """How events are turned into frames; what does not fit is said in the worker."""
        present = self.exchange.present
        return present if self.large_tag else partial(fitting, present, self.frame_bytes_max)

    def wrap(self, answer: Frames) -> Frames:
        """An answer of the exchange as frames that fit."""
        if self.large_tag:
            # Behind the empty frame and the tag come the fields.
            answer = [b"", self.large_tag, *cut(join_fields(answer[2:]), self.frame_bytes_max)]
        return answer[1:] if self.bare else answer

    def refusal(self, size: int) -> Frames:
        """The answer in place of one that does not fit."""
        return self.wrap(self.exchange.failed(DoesNotFit(size, self.frame_bytes_max)))


def decode_framed(frames: Frames, frame_bytes_max: int) -> Framed:
    """What a message asks for. Nothing that arrives makes this raise."""
    bare = frames[0] != b""
    if bare:
        frames = [b"", *frames]
    tag = frames[1] if len(frames) > 1 else b""
    if tag in LARGE:
        return _decode_large(frames, tag, frame_bytes_max, bare)
    return Framed(decode(frames), frame_bytes_max, bare, len(frames))


def _decode_large(frames: Frames, large_tag: bytes, frame_bytes_max: int, bare: bool) -> Framed:
    tag = LARGE[large_tag]
    try:
        fields = split_fields(b"".join(frames[2:]))
    except PenstockError as error:
        dialect = OWN if tag == OWN_TAG else TEXT
        exchange = Exchange(Envelope([], tag, b""), dialect, settled=dialect.failed(error))
        return Framed(exchange, frame_bytes_max, bare, 0, large_tag)
    return Framed(decode([b"", tag, *fields]), frame_bytes_max, bare, len(fields), large_tag)


def fitting(present: Presenter, frame_bytes_max: int, events: list[Event]) -> Frames:
    """Events as frames, unless one is too long: said in the worker, before anything is handed out for good."""
    frames = present(events)
    longest = max(map(len, frames), default=0)
    if longest > frame_bytes_max:
        raise DoesNotFit(longest, frame_bytes_max)
    return frames


def join_fields(fields: Sequence[bytes]) -> bytes:
    """Fields of any length as one byte string."""
    return b"".join((pack(f"<{len(fields) + 1}I", len(fields), *map(len, fields)), *fields))


def split_fields(content: bytes) -> Frames:
    """The fields of a byte string; the sum of their lengths must be what there is."""
    count = _COUNT.unpack_from(content)[0] if len(content) >= _COUNT.size else 0
    start = _COUNT.size * (count + 1)
    if start > len(content):
        raise InvalidRequest("Res01L", "is too short for the lengths of its fields")
    if count > FIELDS_MAX:
        raise LimitExceeded("message_fields_max", count, FIELDS_MAX)
    lengths = unpack_from(f"<{count}I", content, _COUNT.size)
    if start + sum(lengths) != len(content):
        reason = f"has {len(content) - start} bytes of fields where its lengths say {sum(lengths)}"
        raise InvalidRequest("Res01L", reason)
    ends = list(accumulate(lengths, initial=start))
    return [content[begin:end] for begin, end in pairwise(ends)]
