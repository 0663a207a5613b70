"""Frames of Remits: a length, a kind, a code and a payload. The same for servers and for clients.

`Parser` takes bytes in chunks of any size and returns whole frames. It holds at most one unfinished frame, and copies
only payloads.
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.wire.codes import RemitsCode

REQUEST: Final = 0
INFO: Final = 1
DATA: Final = 2
ERROR: Final = 3

LENGTH_MIN: Final = 2
"""The length counts the kind and the code."""
LENGTH_MAX: Final = (1 << 32) - 1

_LENGTH: Final = Struct(">I")
_HEAD: Final = Struct(">IBB")


class Rejected(Exception):
    """A request that is wrong on its face: the reason for the log, and the code for the client."""

    def __init__(self, reason: str, code: RemitsCode = RemitsCode.CouldNotReadPayload) -> None:
        super().__init__(reason, code)
        self.code = code
        self.reason = reason


class Frame(NamedTuple):
    kind: int
    code: int
    payload: bytes


def pack(kind: int, code: int, payload: bytes) -> bytes:
    """A frame as bytes. Its payload must fit: at most `LENGTH_MAX` bytes with the kind and the code."""
    return _HEAD.pack(LENGTH_MIN + len(payload), kind, code) + payload


class Parser:
    """Bytes to frames.

    `frame_bytes_max` is the largest length of a frame. After a length that is too large or too small, the start of the
    next frame is unknown: `lost` has the reason, and the parser reads no more. A server answers with `lost.code` and
    closes the connection.
    """

    __slots__ = ("_frame_bytes_max", "_rest", "lost")

    def __init__(self, frame_bytes_max: int) -> None:
        self.lost: Rejected | None = None
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()

    def receive(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete, in order."""
        frames: list[Frame] = []
        if self.lost is not None:
            return frames
        source: bytes | bytearray = data
        if self._rest:
            self._rest += data
            source = self._rest
        at, size = 0, len(source)
        # A wrong length is rejected as soon as it is known: the rest of the head may never come.
        while size - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(source, at)
            end = at + _LENGTH.size + length
            if not LENGTH_MIN <= length <= self._frame_bytes_max:
                self._reject(length)
                return frames
            if end > size:
                break
            start = at + _HEAD.size
            frames.append(Frame(source[start - 2], source[start - 1], bytes(memoryview(source)[start:end])))
            at = end
        if source is data:
            self._rest += data[at:]
        else:
            del self._rest[:at]
        return frames

    @property
    def pending_bytes(self) -> int:
        return len(self._rest)

    def forget(self) -> None:
        self._rest = bytearray()

    def _reject(self, length: int) -> None:
        self.forget()
        if length < LENGTH_MIN:
            reason = f"a frame's length is {length}; it counts kind and code, {LENGTH_MIN} bytes"
            self.lost = Rejected(reason, RemitsCode.FailedToReadBytes)
        else:
            reason = f"a frame has {length} bytes; at most {self._frame_bytes_max} are allowed"
            self.lost = Rejected(reason, RemitsCode.LimitExceeded)
