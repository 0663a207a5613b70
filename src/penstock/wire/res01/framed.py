"""Res01 inside messages whose frames are short: MqFrames.

A message's frames are what a DEALER would send, with the leading empty frame or without; the answer does as the
message did. A field that is longer than a frame needs the tag `Res01L`: then all frames behind the tag, joined, are
one byte string with the number of fields, their lengths and the fields themselves, cut into frames anywhere.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Final, NamedTuple

from penstock.errors import DoesNotFit, InvalidRequest, LimitExceeded, PenstockError
from penstock.model import Event
from penstock.wire.mqframe import cut
from penstock.wire.res01 import encoding
from penstock.wire.res01.decoding import TEXT_TAG, decode
from penstock.wire.res01.events import text_frames
from penstock.wire.res01.exchange import Envelope, Exchange, Frames, Presenter, error_payload

LARGE_TAG: Final = b"Res01L"
FIELDS_MAX: Final = 250_000
"""Fields of one Res01L message: empty ones cost little to send, but much to take apart."""
_COUNT: Final = Struct("<I")


class Framed(NamedTuple):
    """A message: what it asks for, and how its answers are put into frames."""

    exchange: Exchange
    frame_bytes_max: int
    bare: bool
    large: bool
    fields: int
    """How many there are: each takes memory, also an empty one."""

    @property
    def present(self) -> Presenter:
        """How events are turned into frames; what does not fit is said in the worker."""
        present = self.exchange.present
        return present if self.large else partial(fitting, present, self.frame_bytes_max)

    def wrap(self, answer: Frames) -> Frames:
        """An answer of the exchange as frames that fit."""
        if self.large:
            # Behind the empty frame and the tag come the fields.
            answer = [b"", LARGE_TAG, *cut(join_fields(answer[2:]), self.frame_bytes_max)]
        return answer[1:] if self.bare else answer

    def refusal(self, size: int) -> Frames:
        """The answer in place of one that does not fit."""
        error = DoesNotFit(size, self.frame_bytes_max)
        return self.wrap(self.exchange.envelope.around(error_payload(error)))


def decode_framed(frames: Frames, frame_bytes_max: int) -> Framed:
    """What a message asks for. Nothing that arrives makes this raise."""
    bare = frames[0] != b""
    if bare:
        frames = [b"", *frames]
    if len(frames) > 1 and frames[1] == LARGE_TAG:
        return _decode_large(frames, frame_bytes_max, bare)
    return Framed(decode(frames), frame_bytes_max, bare, False, len(frames))


def _decode_large(frames: Frames, frame_bytes_max: int, bare: bool) -> Framed:
    try:
        fields = split_fields(b"".join(frames[2:]))
    except PenstockError as error:
        exchange = Exchange(Envelope([], TEXT_TAG, b""), (), encoding.always(error_payload(error)), text_frames)
        return Framed(exchange, frame_bytes_max, bare, True, 0)
    return Framed(decode([b"", TEXT_TAG, *fields]), frame_bytes_max, bare, True, len(fields))


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
