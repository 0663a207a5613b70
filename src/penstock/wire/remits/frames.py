"""Frames of Remits: a length, a kind, a code and a payload. The same for servers and for clients.

`Parser` takes bytes in chunks of any size and returns whole frames. It holds at most one unfinished frame, and copies
only payloads.
"""

from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import Unexpected
from penstock.wire.codes import RemitsCode

REQUEST: Final = 0
INFO: Final = 1
DATA: Final = 2
ERROR: Final = 3

LENGTH_MIN: Final = 2
"""The length counts the kind and the code."""
LENGTH_MAX: Final = (1 << 32) - 1
_PIECE_BYTES: Final = 4096
"""Shorter chunks of a frame are joined; a list of them would take far more memory."""

_LENGTH: Final = Struct(">I")
_HEAD: Final = Struct(">IBB")


class Rejected(Exception):
    """A request that is wrong on its face: the code for the client, and the reason for the log."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Frame(NamedTuple):
    """One frame, in either direction."""

    kind: int
    code: int
    payload: bytes


def pack(kind: int, code: int, payload: bytes) -> bytes:
    """A frame as bytes. Its payload must fit: at most `LENGTH_MAX` bytes with the kind and the code."""
    return _HEAD.pack(LENGTH_MIN + len(payload), kind, code) + payload


def parse_data(payload: bytes) -> list[bytes]:
    """The items of a Data frame, each as CBOR."""
    items: list[bytes] = []
    at = 0
    while at < len(payload):
        start = at + _LENGTH.size
        if start > len(payload):
            raise Unexpected(f"an answer is cut short in the length of item {len(items)}")
        at = start + _LENGTH.unpack_from(payload, at)[0]
        if at > len(payload):
            raise Unexpected(f"an answer is cut short in item {len(items)}")
        items.append(payload[start:at])
    return items


class Parser:
    """Bytes to frames.

    `frame_bytes_max` is the largest length of a frame. After a length that is too large or too small, the start of the
    next frame is unknown: `lost` has the reason, and the parser reads no more. A server answers with `lost.code` and
    closes the connection.
    """

    __slots__ = ("_begun", "_frame_bytes_max", "_head", "_kept", "_missing", "_pieces", "lost")

    def __init__(self, frame_bytes_max: int) -> None:
        self.lost: Rejected | None = None
        self._frame_bytes_max = frame_bytes_max
        # At most one of these is set: the first bytes of a head, or a head with chunks of its payload.
        self._head = b""
        self._begun: tuple[int, int] | None = None
        self._missing = self._kept = 0
        self._pieces: list[bytes | bytearray] = []

    def receive(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete, in order."""
        frames: list[Frame] = []
        at = 0
        if self._head:
            at = self._finish_head(data)
        if self._begun:
            at = self._fill(self._begun, data, at, frames)
        if not self._begun and not self._head and self.lost is None:
            self._split(data, at, frames)
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame."""
        return len(self._head) if self._begun is None else _HEAD.size + self._kept

    def forget(self) -> None:
        self._head, self._begun, self._missing, self._kept, self._pieces = b"", None, 0, 0, []

    def _finish_head(self, data: bytes) -> int:
        at = _HEAD.size - len(self._head)
        self._head += data[:at]
        self._check_length()
        if len(self._head) == _HEAD.size:
            length, kind, code = _HEAD.unpack(self._head)
            self._begun, self._missing, self._head = (kind, code), length - LENGTH_MIN, b""
        return at

    def _fill(self, begun: tuple[int, int], data: bytes, at: int, frames: list[Frame]) -> int:
        """Read the rest of the unfinished frame; where the next one begins."""
        end = at + self._missing
        if end > len(data):
            self._keep(data[at:])
            return len(data)
        self._pieces.append(data[at:end])
        frames.append(Frame(*begun, b"".join(self._pieces)))
        self._begun, self._missing, self._kept, self._pieces = None, 0, 0, []
        return end

    def _split(self, data: bytes, at: int, frames: list[Frame]) -> None:
        """Read frames up to one that is unfinished or has a wrong length."""
        size = len(data)
        while size - at >= _HEAD.size:
            length, kind, code = _HEAD.unpack_from(data, at)
            if not LENGTH_MIN <= length <= self._frame_bytes_max:
                break
            end = at + _LENGTH.size + length
            if end > size:
                self._begun, self._missing = (kind, code), length - LENGTH_MIN
                self._keep(data[at + _HEAD.size :])
                return
            frames.append(Frame(kind, code, data[at + _HEAD.size : end]))
            at = end
        self._head = data[at : at + _HEAD.size]
        self._check_length()

    def _keep(self, piece: bytes) -> None:
        self._missing -= len(piece)
        self._kept += len(piece)
        if len(piece) >= _PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _check_length(self) -> None:
        """Reject a wrong length as soon as it is known: the rest of the head may never come."""
        if len(self._head) < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(self._head)
        if length < LENGTH_MIN:
            self._lose(
                RemitsCode.FailedToReadBytes,
                f"a frame's length is {length}; it counts kind and code, {LENGTH_MIN} bytes",
            )
        elif length > self._frame_bytes_max:
            self._lose(
                RemitsCode.LimitExceeded, f"a frame has {length} bytes; at most {self._frame_bytes_max} are allowed"
            )

    def _lose(self, code: int, reason: str) -> None:
        self.lost = Rejected(code, reason)
        self._head = b""
