"""Frames as they are sent: a type, for most a length, and the payload."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

FRAME_BYTES_MAX: Final = 65_535
"""The longest payload that the length field can say; all of them are accepted."""
FRAME_BYTES_SENT_MAX: Final = 16_381
"""The longest payload that the original receives. Longer ones go only to a peer that has sent such itself."""

EMPTY: Final = 1
MORE: Final = 2
LAST: Final = 3
EMPTY_LAST: Final = 4
COMMAND: Final = 5
PING_TYPE: Final = 6

HEAD: Final = Struct("<BH")
PING: Final = bytes([PING_TYPE])
DISCONNECT: Final = 0
"""The only command there is."""

# Looking a head up is faster than packing it; see bench/mq.py.
_MORE: Final = [bytes([EMPTY]), *(HEAD.pack(MORE, size) for size in range(1, FRAME_BYTES_SENT_MAX + 1))]
_LAST: Final = [bytes([EMPTY_LAST]), *(HEAD.pack(LAST, size) for size in range(1, FRAME_BYTES_SENT_MAX + 1))]


class Reason(IntEnum):
    """Why a side closes the connection, which it says before it does."""

    UNKNOWN = 0
    SERVER_SHUTDOWN = 1
    CLIENT_CLOSING = 2
    SERVER_CLOSING = 3
    APPLICATION_ERROR = 4
    SOCKET_ERROR = 5
    TIME_OUT = 6
    PROTOCOL_ERROR = 7
    INTERNAL_ERROR = 8
    AUTHENTICATION_FAILURE = 9
    AUTHORIZATION_FAILURE = 10
    CONNECTION_REFUSED = 11

    @classmethod
    def _missing_(cls, _value: object) -> "Reason":
        """A number that nobody has given a meaning is UNKNOWN."""
        return cls.UNKNOWN

    @property
    def words(self) -> str:
        """The reason as people say it."""
        return self.name.lower().replace("_", " ")


class FrameTooLong(ValueError):
    """A frame's payload is longer than may be sent to this peer."""

    def __init__(self, size: int, maximum: int) -> None:
        super().__init__(f"a frame of {size} bytes is longer than the {maximum} that may be sent here")
        self.size = size


class EmptyMessage(ValueError):
    """A message has at least one frame."""

    def __init__(self) -> None:
        super().__init__("a message has at least one frame")


def put_message(out: list[bytes], frames: Sequence[bytes], frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> None:
    """Append the pieces of a message, which only need to be joined, to what is to be sent; all of it or nothing."""
    # A hot loop; see bench/mq.py.
    add, before = out.append, len(out)
    try:
        for frame in frames:
            add(_MORE[len(frame)])
            add(frame)
        out[-2] = _LAST[len(frame)]
    except (IndexError, UnboundLocalError):
        del out[before:]
        _put_long(out, frames, frame_bytes_max)


def _put_long(out: list[bytes], frames: Sequence[bytes], frame_bytes_max: int) -> None:
    """The same with frames whose heads are not at hand."""
    if not frames:
        raise EmptyMessage
    longest = max(map(len, frames))
    if longest > frame_bytes_max:
        raise FrameTooLong(longest, frame_bytes_max)
    for frame in frames[:-1]:
        out += (HEAD.pack(MORE, len(frame)) if frame else _MORE[0], frame)
    out += (HEAD.pack(LAST, len(frames[-1])) if frames[-1] else _LAST[0], frames[-1])


def encode(frames: Sequence[bytes], frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> bytes:
    """A message as it goes over the wire."""
    out: list[bytes] = []
    put_message(out, frames, frame_bytes_max)
    return b"".join(out)


def cut(content: bytes, frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> Iterator[bytes]:
    """Content of any length as frames that fit."""
    return (content[start : start + frame_bytes_max] for start in range(0, len(content), frame_bytes_max))


def disconnect(reason: Reason) -> bytes:
    """The command that says why the connection is about to be closed."""
    return HEAD.pack(COMMAND, 2) + bytes([DISCONNECT, reason])
