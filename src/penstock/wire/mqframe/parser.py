"""From what a socket gave to messages, in one pass and without copies but the payloads.

A frame that is cut in two is put together by itself; what comes behind it is read where it lies. How much an
unfinished message may hold is limited, in frames and in bytes. After a mistake or a Disconnect nothing more is read.
"""

from typing import Final, NamedTuple

from penstock.wire.mqframe.frames import (
    COMMAND,
    DISCONNECT,
    EMPTY,
    EMPTY_LAST,
    FRAME_BYTES_SENT_MAX,
    HEAD,
    LAST,
    MORE,
    PING_TYPE,
    Reason,
)

Message = list[bytes]
"""The payloads of a message's frames, at least one."""

HEAD_BYTES: Final = HEAD.size


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
        """How much has come of a message that is not complete."""
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
            self.ended = Violation(f"there is no frame type {kind}")
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
            self._complete(kind, payload, messages)
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

    def _complete(self, kind: int, payload: bytes, messages: list[Message]) -> None:
        if kind == COMMAND:
            self._obey(payload)
            return
        self._take(payload, HEAD_BYTES + len(payload))
        if kind == LAST:
            self._finish(messages)

    def _obey(self, command: bytes) -> None:
        if command[0] == DISCONNECT:
            self.ended = Disconnected(Reason(command[1] if len(command) > 1 else Reason.UNKNOWN))
        else:
            self.ended = Violation(f"there is no command {command[0]}")

    def _take(self, payload: bytes, size: int) -> None:
        self._frames.append(payload)
        self._size += size

    def _finish(self, messages: list[Message]) -> None:
        """The message is complete."""
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
