"""MqFrames over TCP: a session, and the client and the server that are made of sessions.

Both ends are the same, except that clients send pings and servers answer them.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from penstock.tcp import CloseReason, ReadHold, TcpLimits, TcpServer, TcpSession, shown_peer
from penstock.tcp.session import SessionRegistry
from penstock.wire.mqframe import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    PING,
    Disconnected,
    Message,
    Parser,
    Reason,
    disconnect,
    put_message,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MqLimits(TcpLimits):
    """Limits of a connection, and of its messages."""

    message_frames_max: int = 250_000
    """Frames of one message."""
    message_bytes_max: int = 64 << 20
    """Bytes of one message, with the heads of its frames."""
    ping_ms: int = 15_000
    """How long a client is silent before it sends a ping."""
    inbox_messages_max: int = 1024
    """Received messages that a client's program has not taken; when there are more, the client stops reading."""


class Ending(NamedTuple):
    """How a connection ended: the reason, whether the peer gave it, and what this end knows."""

    reason: Reason
    by_peer: bool
    why: str

    def __str__(self) -> str:
        return f"{self.reason.words} ({'said by the peer' if self.by_peer else self.why})"


REASONS: Final[dict[str, Reason]] = {
    CloseReason.PEER: Reason.SOCKET_ERROR,
    CloseReason.LOST: Reason.SOCKET_ERROR,
    CloseReason.IDLE: Reason.TIME_OUT,
    CloseReason.SLOW: Reason.TIME_OUT,
    CloseReason.STALLED: Reason.TIME_OUT,
    CloseReason.UNREAD: Reason.APPLICATION_ERROR,
    CloseReason.HOARDED: Reason.APPLICATION_ERROR,
    CloseReason.REFUSED: Reason.CONNECTION_REFUSED,
    CloseReason.CROWDED: Reason.CONNECTION_REFUSED,
    CloseReason.FILES: Reason.CONNECTION_REFUSED,
    CloseReason.DONE: Reason.SERVER_CLOSING,
    CloseReason.SHUTDOWN: Reason.SERVER_SHUTDOWN,
    CloseReason.KICKED: Reason.SERVER_CLOSING,
    CloseReason.REVOKED: Reason.AUTHORIZATION_FAILURE,
    CloseReason.UNAUTHENTICATED: Reason.AUTHENTICATION_FAILURE,
    CloseReason.PLAIN: Reason.PROTOCOL_ERROR,
    CloseReason.NO_TLS: Reason.PROTOCOL_ERROR,
    CloseReason.HANDSHAKE: Reason.PROTOCOL_ERROR,
    CloseReason.HANDSHAKE_SLOW: Reason.TIME_OUT,
}
"""The reasons that this end sends for its own endings."""

OnMessage = Callable[["MqSession", Message], object]
OnSession = Callable[["MqSession"], object]
OnClose = Callable[["MqSession", Ending], object]


class Handlers(NamedTuple):
    """Callbacks. They run on the event loop and must not block."""

    message: OnMessage
    connect: OnSession | None = None
    close: OnClose | None = None
    room: OnSession | None = None
    """The peer has taken most of what waited for it."""
    due: Callable[["MqSession"], bool] | None = None
    """The peer sends nothing more. True keeps the connection for answers that are due; the handler closes it."""


class MqSession(TcpSession):
    """A connection. `data` belongs to the handler of its messages."""

    def __init__(
        self,
        limits: MqLimits,
        handlers: Handlers,
        registry: SessionRegistry | None = None,
        *,
        answers_pings: bool = True,
    ) -> None:
        super().__init__(limits, registry)
        self.data: Any = None
        self._handlers = handlers
        self._answers_pings = answers_pings
        self._parser = Parser(limits.message_frames_max, limits.message_bytes_max)
        self._pings = 0
        self._reason: Reason | None = None
        self._peer_reason: Reason | None = None

    # -- sending and closing

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame to send: a peer that sends longer ones itself can receive them too."""
        return FRAME_BYTES_MAX if self._parser.longest > FRAME_BYTES_SENT_MAX else FRAME_BYTES_SENT_MAX

    def send(self, frames: Sequence[bytes], *, now: bool = False) -> bool:
        """Send a message, with others of this turn of the loop or `now`; False if the connection has ended.

        This does not wait. A program that sends much awaits `drain` regularly; the session ends when too much waits for
        a peer that does not read. Raises FrameTooLong or EmptyMessage, and then sends nothing.
        """
        if self.ended is not None:
            return False
        put_message(self._out, frames, self.frame_bytes_max)
        self.messages_sent += 1
        self.flush_soon(now=now)
        return True

    def send_encoded(self, message: bytes) -> bool:
        """Send a message that `penstock.wire.mqframe.encode` made, as `send` does."""
        if self.ended is not None:
            return False
        self.messages_sent += 1
        self._out.append(message)
        self.flush_soon()
        return True

    def ping(self) -> None:
        """Send a ping. A silent client does so automatically."""
        self.write(PING)

    def close(self, reason: Reason = Reason.SERVER_CLOSING) -> None:
        """Send the reason and close. Messages that were sent before still arrive, if the peer reads them."""
        if self.ended is None:
            self._reason = reason
            self.is_closed_by_user = True
            self.end(reason.words)

    @property
    def ending(self) -> Ending | None:
        """How it ended; None while it is open."""
        if self.ended is None:
            return None
        if self._peer_reason is not None:
            return Ending(self._peer_reason, True, self.ended)
        return Ending(self._own_reason(self.ended), False, self.ended)

    # -- called by the connection

    def opened(self) -> None:
        if self._handlers.connect is not None:
            self._guarded(self._handlers.connect, self)

    def received(self, data: bytes) -> int:
        """Pass messages on, answer pings, notice the end."""
        parser = self._parser
        messages = parser.receive(data)
        if messages:
            self.messages_received += len(messages)
            self._guarded(self._handle, messages)
        if parser.pings != self._pings:
            if self._answers_pings:
                self.write(PING * (parser.pings - self._pings))
            self._pings = parser.pings
        if parser.ended is not None and self.ended is None:
            self._peer_ended(parser.ended)
        return parser.pending_bytes

    def _handle(self, messages: list[Message]) -> None:
        handle = self._handlers.message
        for message in messages:
            if self.ended is not None:
                return
            handle(self, message)

    def _peer_ended(self, ended: Any) -> None:
        if isinstance(ended, Disconnected):
            self._peer_reason = ended.reason
            self.end(CloseReason.PEER)
        else:
            self._reason = Reason.PROTOCOL_ERROR
            self.end(f"{Reason.PROTOCOL_ERROR.words}: {ended.what}")

    def farewell(self, why: str) -> bytes:
        """The reason, unless the peer has sent one first."""
        return b"" if self._peer_reason is not None else disconnect(self._own_reason(why))

    def _own_reason(self, why: str) -> Reason:
        return REASONS.get(why, Reason.UNKNOWN) if self._reason is None else self._reason

    def forget(self) -> None:
        self._parser.forget()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._handlers.room is not None and self.ended is None:
            self._guarded(self._handlers.room, self)

    def has_due(self) -> bool:
        return self._handlers.due is not None and self._handlers.due(self)

    def lost(self) -> None:
        ending = self.ending
        if self._handlers.close is not None and ending is not None:
            self._guarded(self._handlers.close, self, ending)

    def _guarded(self, handler: Callable[..., object], *arguments: object) -> None:
        """Call a handler. If it fails, its session ends and the others go on."""
        try:
            handler(*arguments)
        except Exception:
            log.exception("a handler failed; its session %s ends", self.id or self.peer)
            self.close(Reason.APPLICATION_ERROR)


class MqClient(MqSession):
    """One connection to a server; `connect` makes it. Without a handler, use `receive` or `async for`."""

    def __init__(self, limits: MqLimits, on_message: OnMessage | None, on_close: OnClose | None) -> None:
        super().__init__(limits, Handlers(on_message or self._put, None, on_close), answers_pings=False)
        self._mq_limits = limits
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._written_before = 0
        self._alarm: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        on_message: OnMessage | None = None,
        on_close: OnClose | None = None,
        limits: MqLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Connect to a server. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(
            lambda: cls(limits or MqLimits(), on_message, on_close), host, port, ssl=tls
        )
        client._tick_later()
        return client

    async def receive(self) -> Message | None:
        """The next message; None when the connection has ended and there are no more."""
        while not self._inbox:
            if self.ended is not None:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._inbox.popleft()
        if len(self._inbox) <= self._mq_limits.inbox_messages_max // 2:
            self.release(ReadHold.BUSY)
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    def close(self, reason: Reason = Reason.CLIENT_CLOSING) -> None:
        super().close(reason)

    async def closed(self) -> Ending:
        """Wait until the connection is gone; how it ended."""
        await self.gone()
        assert self.ending is not None
        return self.ending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.gone()

    # -- called by the connection

    def _put(self, _session: MqSession, message: Message) -> None:
        self._inbox.append(message)
        self._news.set()
        if len(self._inbox) >= self._mq_limits.inbox_messages_max:
            self.hold(ReadHold.BUSY)

    def _tick(self) -> None:
        """Ping if nothing was sent for a while, and check the time limits."""
        written = self._bytes_written
        if written == self._written_before:
            self.ping()
            # The ping is written later; it must not count as something sent.
            written += len(PING)
        self._written_before = written
        self.check(self._loop.time())
        self._tick_later()

    def _tick_later(self) -> None:
        if self.ended is None:
            self._alarm = self._loop.call_later(self._mq_limits.ping_ms / 1000, self._tick)

    def lost(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._news.set()
        super().lost()


class MqServer(TcpServer[MqSession]):
    """A server. It calls handlers on the event loop, with the session and the message; they must not block.

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
        """Listen; port 0 picks a free one. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        bound = socket.create_server(place[:2], family=family, reuse_port=False)
        self.address = shown_peer(bound.getsockname())
        await self.listen(bound, None if tls is None else lambda: tls)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def new_session(self) -> MqSession:
        return MqSession(self._mq_limits, self._handlers, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
