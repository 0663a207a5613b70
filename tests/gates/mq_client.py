"""Res01 in MqFrames over a plain blocking socket, written from the protocol's description alone.

`Connection` knows frames and nothing of Res01; `MqClient` and `MqBinary` are the clients of the ZeroMQ tests on such a
connection, so that the same tests run over both. `MqLarge` speaks `Res01L`.
"""

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from tests.gates.res_client import PATIENCE_S, Answer, Client, Rc01
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import Text

EMPTY, MORE, LAST, EMPTY_LAST, COMMAND, PING = range(1, 7)
"""Types of frames."""
SERVER_SHUTDOWN, CLIENT_CLOSING, SERVER_CLOSING, APPLICATION_ERROR = range(1, 5)
SOCKET_ERROR, TIME_OUT, PROTOCOL_ERROR = range(5, 8)
CONNECTION_REFUSED: Final = 11
"""Reasons of a disconnect."""
FRAME_BYTES_MAX: Final = 65_535
FRAME_BYTES_SENT_MAX: Final = 16_381
"""What a frame may have towards a peer that has not sent longer ones itself."""
LARGE_TAG: Final = b"Res01L"
PING_S: Final = 0.5
"""How long a client waits for an answer before it sends a ping, so that a server that takes long does not miss it."""


# --- bytes ----------------------------------------------------------------------------------------------------


def frame(payload: bytes, *, last: bool = False) -> bytes:
    """One frame: a type, and if it is not empty its length and itself."""
    if not payload:
        return bytes([EMPTY_LAST if last else EMPTY])
    return struct.pack("<BH", LAST if last else MORE, len(payload)) + payload


def message(frames: Sequence[bytes]) -> bytes:
    """All frames of a message."""
    return b"".join(frame(payload) for payload in frames[:-1]) + frame(frames[-1], last=True)


def disconnect(reason: int) -> bytes:
    """The command that says why."""
    return struct.pack("<BHBB", COMMAND, 2, 0, reason)


def joined(fields: Sequence[bytes]) -> bytes:
    """Fields of any length as one byte string: their number, their lengths, themselves."""
    return struct.pack(f"<{len(fields) + 1}I", len(fields), *map(len, fields)) + b"".join(fields)


def parted(content: bytes) -> list[bytes]:
    """The fields of such a byte string, with nothing behind them."""
    (count,) = struct.unpack_from("<I", content)
    lengths = struct.unpack_from(f"<{count}I", content, 4)
    ends = list(itertools.accumulate(lengths, initial=4 * (count + 1)))
    assert ends[-1] == len(content), f"{len(content)} bytes where {ends[-1]} were announced"
    return [content[start:end] for start, end in itertools.pairwise(ends)]


def pieces(content: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """Content cut into pieces of these sizes, over and over."""
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(content):
            return
        yield content[at : at + size]
        at += size


# --- connections ----------------------------------------------------------------------------------------------


class Disconnected(ConnectionError):
    """The server has closed the connection; the reason is None if it said none."""

    def __init__(self, reason: int | None) -> None:
        super().__init__(f"the server has closed the connection with the reason {reason}")
        self.reason = reason


class Connection:
    """A socket, and the messages that come out of it. `receive_bytes` makes a peer that takes little ahead."""

    def __init__(self, address: str, receive_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pings = 0
        self.longest = 0
        """The longest frame that came."""
        self.is_pinging = False
        """Whether it sends pings while it waits."""
        self._data = b""
        self._at = 0
        self._frames: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.settimeout(PATIENCE_S)
        self.socket.sendall(data)

    def message(self, patience_s: float = PATIENCE_S) -> list[bytes]:
        """The next message; raises Disconnected or TimeoutError if there is none. What came of it is kept."""
        self.socket.settimeout(patience_s)
        while True:
            kind, payload = self._frame()
            if kind == COMMAND:
                assert payload[0] == 0, f"command {payload!r}"
                raise Disconnected(payload[1])
            if kind == PING:
                self.pings += 1
                continue
            self.longest = max(self.longest, len(payload))
            self._frames.append(payload)
            if kind in (LAST, EMPTY_LAST):
                frames, self._frames = self._frames, []
                return frames

    def reason(self, patience_s: float = PATIENCE_S) -> int | None:
        """Why the server closes the connection, which must be the next thing it says, and that it does."""
        try:
            answer = self.message(patience_s)
        except Disconnected as told:
            if told.reason is not None:
                assert self._is_closed(), "it goes on after saying that it closes"
            return told.reason
        except ConnectionResetError:
            return None
        raise AssertionError(f"a message instead of the end: {answer}")

    def _is_closed(self) -> bool:
        if self._at < len(self._data):
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _frame(self) -> tuple[int, bytes]:
        self._need(1)
        kind = self._data[self._at]
        assert EMPTY <= kind <= PING, f"a frame of type {kind}"
        if kind in (EMPTY, EMPTY_LAST, PING):
            self._at += 1
            return kind, b""
        self._need(3)
        (size,) = struct.unpack_from("<H", self._data, self._at + 1)
        assert size, f"a frame of type {kind} and length 0"
        self._need(3 + size)
        start = self._at + 3
        self._at = start + size
        return kind, self._data[start : self._at]

    def _need(self, count: int) -> None:
        """Have so many bytes at hand."""
        while len(self._data) - self._at < count:
            if self.is_pinging:
                self._ping()
            more = self.socket.recv(1 << 18)
            if not more:
                assert self._at == len(self._data), "it closed within a frame"
                raise Disconnected(None)
            self._data = self._data[self._at :] + more
            self._at = 0

    def _ping(self) -> None:
        """Send pings until something comes, or nothing has come for longer than anything takes."""
        until = time.monotonic() + (self.socket.gettimeout() or PATIENCE_S)
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        while time.monotonic() < until and not waiting.poll(PING_S * 1000):
            # Where nothing can be sent any more, something may still come.
            with contextlib.suppress(ConnectionError):
                self.socket.sendall(bytes([PING]))


# --- Res01 on them --------------------------------------------------------------------------------------------


class OverMq(Client):
    """What makes a client of Res01 go over MqFrames. `bare`: without the leading empty frame."""

    bare = True
    sizes: Sequence[int] = (1, 2, 1000, FRAME_BYTES_SENT_MAX)
    """How the rest of a Res01L message is cut into frames."""

    def __init__(self, address: str, *, receive_bytes: int | None = None) -> None:
        # There is no ZeroMQ here: nothing of the base's own is made.
        self.connection = Connection(address, receive_bytes)
        self.connection.is_pinging = True
        self.routing = ()

    def close(self) -> None:
        self.connection.close()

    def encoded(self, command: str, *fields: bytes, request_id: bytes) -> bytes:
        """A request as bytes, to be sent with others."""
        return self._encoded([b"", self.dialect.tag, command.encode(), request_id, *fields][self.bare :])

    def _encoded(self, frames: list[bytes]) -> bytes:
        tag = 1 if frames[0] == b"" else 0
        if frames[tag : tag + 1] == [LARGE_TAG]:
            rest = joined(frames[tag + 1 :])
            frames = [*frames[: tag + 1], *pieces(rest, self.sizes)]
        return message(frames)

    def send(self, command: str, *fields: bytes, request_id: bytes | None = None) -> bytes:
        """Send a request; its id."""
        number = self.new_request_id() if request_id is None else request_id
        self.connection.send(self.encoded(command, *fields, request_id=number))
        return number

    def send_frames(self, frames: Iterable[bytes]) -> None:
        """Send a message as it is, but that what is behind Res01L is joined and cut."""
        self.connection.send(self._encoded(list(frames)))

    def receive(self, patience_s: float = PATIENCE_S) -> Answer:
        """The next answer, whatever it answers."""
        frames = self.connection.message(patience_s)
        if frames[0] == b"":
            del frames[0]
        if frames[0] == LARGE_TAG:
            frames[1:] = parted(b"".join(frames[1:]))
        protocol, request_id, command, *details = frames
        return Answer((), protocol, request_id, command, details)


class MqClient(OverMq, Extended):
    """The text dialect, a field in each frame."""


class MqBinary(OverMq, Rc01):
    """The binary dialect."""


class LargeText(Text):
    """The text dialect for fields of any length."""

    tag = LARGE_TAG


class MqLarge(MqClient):
    """The text dialect in frames that have nothing to do with its fields, behind the leading empty frame."""

    dialect = LargeText()
    bare = False
