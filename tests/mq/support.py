"""A server whose handlers write down what they are told, and a peer that sends and reads bytes as it likes."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.mq import Ending, Message, MqClient, MqLimits, MqServer, MqSession, Reason
from penstock.tcp import SessionInfo

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 30.0
"""How long a test waits for a condition before it gives up. Nothing is ever expected to take this long."""
PING: Final = b"\x06"


def disconnect(reason: Reason) -> bytes:
    """The last that a peer hears, byte by byte."""
    return bytes([5, 2, 0, 0, reason])


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - of things that ring no bell
            await asyncio.sleep(0.002)


def memory_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096


def echo(session: MqSession, frames: Message) -> None:
    session.send(frames)


class Serving:
    """A server and what its handlers were told."""

    def __init__(self, limits: MqLimits, on_message: Callable[[MqSession, Message], object]) -> None:
        self.connected: list[MqSession] = []
        self.messages: list[Message] = []
        self.endings: list[Ending] = []
        self.rooms = 0
        self.raws: list[Raw] = []
        self._on_message = on_message
        self.server = MqServer(
            self._message, on_connect=self.connected.append, on_close=self._close, on_room=self._room, limits=limits
        )

    def _message(self, session: MqSession, frames: Message) -> None:
        self.messages.append(frames)
        self._on_message(session, frames)

    def _close(self, session: MqSession, ending: Ending) -> None:
        assert session.ending == ending
        self.endings.append(ending)

    def _room(self, session: MqSession) -> None:
        self.rooms += 1

    async def client(self, limits: MqLimits | None = None, **options: Any) -> MqClient:
        """A new client of it."""
        return await MqClient.connect(HOST, self.server.port, limits=limits, **options)

    async def raw(self, receive_buffer: int | None = None) -> "Raw":
        """A new peer that is no MqClient."""
        self.raws.append(await Raw.connect(self.server.port, receive_buffer))
        return self.raws[-1]

    async def session(self) -> MqSession:
        """The session that was opened last, once there are as many as were asked for."""
        await until(lambda: self.connected)
        return self.connected[-1]

    def info(self) -> SessionInfo:
        """What is known of its one session."""
        (info,) = self.server.sessions()
        return info

    async def ending(self) -> Ending:
        """How its one session ended, once it has."""
        await until(lambda: self.endings)
        (ending,) = self.endings
        return ending


@asynccontextmanager
async def serving(
    on_message: Callable[[MqSession, Message], object] = echo, /, *, tls: Any = None, **limits: int
) -> AsyncIterator[Serving]:
    """A server on a free port, with these limits; in the end all peers hang up first."""
    serving = Serving(MqLimits(**limits), on_message)
    async with serving.server:
        await serving.server.start(HOST, 0, tls=tls)
        try:
            yield serving
        finally:
            for raw in serving.raws:
                raw.socket.close()


class Raw:
    """One end of a TCP connection; reads and writes nothing by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int, receive_buffer: int | None = None) -> Self:
        connection = socket.socket()
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
        return cls(connection)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.loop.sock_sendall(self.socket, data)

    def try_to_send(self, data: bytes) -> int:
        """How many bytes the system takes at once."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def receive(self, count: int) -> bytes:
        """Exactly so many bytes, or what there is before the end."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while (left := count - len(data)) and (piece := await self.loop.sock_recv(self.socket, min(left, 1 << 18))):
                data += piece
        return bytes(data)

    async def rest(self) -> bytes:
        """All that comes until the other side closes."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while piece := await self.loop.sock_recv(self.socket, 1 << 18):
                data += piece
        return bytes(data)

    def has_ended(self) -> bool:
        """Whether the other side has closed; what came before is thrown away."""
        try:
            return self.socket.recv(1 << 16) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def shut(self) -> None:
        """Say that nothing more is sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close without any manners."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


@asynccontextmanager
async def raw_server() -> AsyncIterator[tuple[int, asyncio.Queue[Raw]]]:
    """A port where connections are taken, and nothing else is done with them."""
    taken: asyncio.Queue[Raw] = asyncio.Queue()
    raws: list[Raw] = []
    with socket.create_server((HOST, 0)) as listening:
        listening.setblocking(False)

        async def take() -> None:
            loop = asyncio.get_running_loop()
            while True:
                connection, _ = await loop.sock_accept(listening)
                raws.append(Raw(connection))
                taken.put_nowait(raws[-1])

        task = asyncio.create_task(take())
        try:
            yield listening.getsockname()[1], taken
        finally:
            task.cancel()
            await asyncio.wait([task])
            for raw in raws:
                raw.socket.close()
