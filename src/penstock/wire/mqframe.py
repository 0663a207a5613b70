"""MqFrames: messages of frames on a stream of bytes, with pings between them and a reason at the end.

Sans-IO: `Parser` takes what a socket gave and yields messages; `put_message` and `disconnect` make what a socket
sends. The protocol's page is docs/protocols/mqframe.md.

The parser reads in one pass and copies only payloads. It joins a frame that arrives in pieces, and reads what follows
in place. An unfinished message has a limit in frames and in bytes. After a mistake or a Disconnect it reads no more.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

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

# The heads of frames by their size. Looking one up is faster than packing it; see bench/mq.py.
MORE_HEADS: Final = [bytes([EMPTY]), *(HEAD.pack(MORE, size) for size in range(1, FRAME_BYTES_SENT_MAX + 1))]
LAST_HEADS: Final = [bytes([EMPTY_LAST]), *(HEAD.pack(LAST, size) for size in range(1, FRAME_BYTES_SENT_MAX + 1))]


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
        """An undefined number is UNKNOWN."""
        return cls.UNKNOWN

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


class FrameTooLong(ValueError):
    def __init__(self, size: int, maximum: int) -> None:
        super().__init__(f"a frame of {size} bytes is longer than the {maximum} that may be sent here")
        self.size = size


class EmptyMessage(ValueError):
    def __init__(self) -> None:
        super().__init__("a message has at least one frame")


def put_message(out: list[bytes], frames: Sequence[bytes], frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> None:
    """Append the pieces of a message, which only need to be joined, to what is to be sent; all of it or nothing."""
    # A hot loop; see bench/mq.py.
    add, before = out.append, len(out)
    try:
        for frame in frames:
            add(MORE_HEADS[len(frame)])
            add(frame)
        out[-2] = LAST_HEADS[len(frame)]
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
        out += (HEAD.pack(MORE, len(frame)) if frame else MORE_HEADS[0], frame)
    out += (HEAD.pack(LAST, len(frames[-1])) if frames[-1] else LAST_HEADS[0], frames[-1])


def encode(frames: Sequence[bytes], frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> bytes:
    out: list[bytes] = []
    put_message(out, frames, frame_bytes_max)
    return b"".join(out)


def split_frames(content: bytes, frame_bytes_max: int = FRAME_BYTES_SENT_MAX) -> Iterator[bytes]:
    """Content of any length as frames that fit."""
    return (content[start : start + frame_bytes_max] for start in range(0, len(content), frame_bytes_max))


def disconnect(reason: Reason) -> bytes:
    """The command that says why the connection is about to be closed."""
    return HEAD.pack(COMMAND, 2) + bytes([DISCONNECT, reason])


Message = list[bytes]
"""The payloads of a message's frames, at least one."""

HEAD_BYTES: Final = HEAD.size


TLS_ALERT: Final = 0x15
"""The first byte of what a server of TLS answers to plain text."""
SPEAKS_TLS: Final = "there is no frame type 21, which is how a server of TLS refuses plain text"


class Disconnected(NamedTuple):
    """The peer has said that it closes the connection, and why."""

    reason: Reason


class Violation(NamedTuple):
    """The peer has sent what the protocol does not allow."""

    what: str


class Parser:
    """One direction of a connection."""

    def __init__(self, message_frames_max: int, message_bytes_max: int) -> None:
        self.ended: Disconnected | Violation | None = None
        """Why nothing more is read."""
        self.pings = 0
        """Pings that have come so far."""
        self.longest = 0
        """The longest frame of messages so long that it matters: over FRAME_BYTES_SENT_MAX or not."""
        self._frames_max = message_frames_max
        self._bytes_max = message_bytes_max
        # Messages up to this size are within all limits, whatever frames they are made of.
        self._small = min(message_frames_max, message_bytes_max, FRAME_BYTES_SENT_MAX)
        self._frames: Message = []
        self._size = 0
        self._part = bytearray()

    @property
    def pending_bytes(self) -> int:
        return self._size + len(self._part)

    def forget(self) -> None:
        """Let go of what there is of a message that is not complete."""
        self._frames, self._size = [], 0
        self._part = bytearray()

    def receive(self, data: bytes) -> list[Message]:
        """Take the next bytes; the messages that they complete."""
        messages: list[Message] = []
        at = 0
        while at < len(data) and self.ended is None:
            at = self._join(data, at, messages) if self._part else self._read(data, at, messages)
        if self.pending_bytes > self._small:
            self._check(self._frames, self.pending_bytes)
        return messages

    def _read(self, data: bytes, at: int, messages: list[Message]) -> int:
        """Read whole frames; where it stopped, because of the end or of a frame that is not so simple."""
        # The hot loop of this project; see bench/mq.py.
        head, end, small = HEAD.unpack_from, len(data), self._small
        last_head = end - HEAD_BYTES
        frames = self._frames
        began = at - self._size
        while at <= last_head:
            kind, size = head(data, at)
            if kind == MORE and size:
                start = at + HEAD_BYTES
                stop = start + size
                if stop > end:
                    break
                frames.append(data[start:stop])
                at = stop
                continue
            if kind == LAST and size:
                start = at + HEAD_BYTES
                stop = start + size
                if stop > end:
                    break
                frames.append(data[start:stop])
                at = stop
            elif kind == EMPTY:
                frames.append(b"")
                at += 1
                continue
            elif kind == EMPTY_LAST:
                frames.append(b"")
                at += 1
            else:
                break
            if at - began > small and not self._accept_large(frames, at - began):
                return end
            messages.append(frames)
            frames = []
            began = at
        self._frames = frames
        self._size = at - began
        return self._read_one(data, at, messages) if at < end else at

    def _read_one(self, data: bytes, at: int, messages: list[Message]) -> int:
        """Read one frame of any type, or the beginning of one; where the next begins."""
        kind = data[at]
        if kind == PING_TYPE:
            self.pings += 1
        elif kind == EMPTY:
            self._take(b"", 1)
        elif kind == EMPTY_LAST:
            self._take(b"", 1)
            self._finish(messages)
        elif MORE <= kind <= COMMAND:
            # It has a length: a command, a mistake, or the end of the data has cut it in two.
            self._part.append(kind)
        else:
            self.ended = Violation(SPEAKS_TLS if kind == TLS_ALERT else f"there is no frame type {kind}")
        return at + 1

    def _join(self, data: bytes, at: int, messages: list[Message]) -> int:
        """Add to a frame of which a part has come; where the rest of the data begins."""
        part = self._part
        while True:
            missing = self._missing()
            if not missing:
                break
            part += data[at : at + missing]
            at += missing
            if at > len(data):
                return len(data)
        if self.ended is None:
            kind, payload = part[0], bytes(part[HEAD_BYTES:])
            part.clear()
            if kind != COMMAND:
                self._take(payload, HEAD_BYTES + len(payload))
                if kind == LAST:
                    self._finish(messages)
            elif payload[0] == DISCONNECT:
                self.ended = Disconnected(Reason(payload[1] if len(payload) > 1 else Reason.UNKNOWN))
            else:
                self.ended = Violation(f"there is no command {payload[0]}")
        return at

    def _missing(self) -> int:
        """How many bytes the part needs to be a head, or with a head to be a frame."""
        part = self._part
        if len(part) < HEAD_BYTES:
            return HEAD_BYTES - len(part)
        _, size = HEAD.unpack_from(part)
        if not size:
            self.ended = Violation(f"a frame of type {part[0]} has the length 0")
            return 0
        return HEAD_BYTES + int(size) - len(part)

    def _take(self, payload: bytes, size: int) -> None:
        self._frames.append(payload)
        self._size += size

    def _finish(self, messages: list[Message]) -> None:
        if self._size <= self._small or self._accept_large(self._frames, self._size):
            messages.append(self._frames)
        self._frames = []
        self._size = 0

    def _accept_large(self, frames: Message, size: int) -> bool:
        """Whether a message that is not small is within the limits; looks at how long its frames are."""
        self._check(frames, size)
        self.longest = max(self.longest, *map(len, frames))
        return self.ended is None

    def _check(self, frames: Message, size: int) -> None:
        """Refuse a message, complete or not, that is over a limit."""
        if len(frames) > self._frames_max:
            self.ended = Violation(f"a message has more than {self._frames_max} frames")
        elif size > self._bytes_max:
            self.ended = Violation(f"a message has more than {self._bytes_max} bytes")
