"""A server of MqFrames: takes connections, hands their messages to a handler, lists them and lets go of them."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.mq.session import Handlers, MqLimits, MqSession, OnClose, OnMessage, OnSession
from penstock.tcp import TcpServer, shown_peer


class MqServer(TcpServer[MqSession]):
    """Handlers are called on the event loop, with the session and what came; they must not wait.

    A handler that fails ends its own session. `async with` stops the server at the end.
    """

    def __init__(
        self,
        on_message: OnMessage,
        *,
        on_connect: OnSession | None = None,
        on_close: OnClose | None = None,
        on_room: OnSession | None = None,
        has_due: Callable[[MqSession], bool] | None = None,
        limits: MqLimits | None = None,
        name: str = "mq",
    ) -> None:
        self._mq_limits = limits or MqLimits()
        super().__init__(name, self._mq_limits)
        self._handlers = Handlers(on_message, on_connect, on_close, on_room, has_due)
        self.address = ""

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 picks a free one. Raises OSError if that cannot be."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        bound = socket.create_server(place[:2], family=family, reuse_port=False)
        self.address = shown_peer(bound.getsockname())
        await self.listen(bound, tls)

    @property
    def port(self) -> int:
        """The port it really has."""
        return int(self.address.rpartition(":")[2])

    def new_session(self) -> MqSession:
        """A session with this server's handlers."""
        return MqSession(self._mq_limits, self._handlers, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
