"""One connection that speaks MqFrames: the same at both ends, but that servers answer pings and clients send them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.tcp import TcpLimits, TcpSession, Why
from penstock.tcp.session import Keeper
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
    """What a connection may take; those of TcpLimits, and what a message may have."""

    message_frames_max: int = 250_000
    """Frames of one message."""
    message_bytes_max: int = 64 << 20
    """Bytes of one message, its frames' heads included."""
    ping_ms: int = 15_000
    """How long a client that has nothing to say is silent before it sends a ping."""
    inbox_messages_max: int = 1024
    """Messages that wait to be received from a client; when there are more, it reads no further."""


class Ending(NamedTuple):
    """How a connection ended: the reason, whether the peer gave it, and what this end knows about it."""

    reason: Reason
    by_peer: bool
    why: str

    def __str__(self) -> str:
        return f"{self.reason.words} ({'said by the peer' if self.by_peer else self.why})"


REASONS: Final[dict[str, Reason]] = {
    Why.PEER: Reason.SOCKET_ERROR,
    Why.LOST: Reason.SOCKET_ERROR,
    Why.IDLE: Reason.TIME_OUT,
    Why.SLOW: Reason.TIME_OUT,
    Why.STALLED: Reason.TIME_OUT,
    Why.UNREAD: Reason.APPLICATION_ERROR,
    Why.HOARDED: Reason.APPLICATION_ERROR,
    Why.REFUSED: Reason.CONNECTION_REFUSED,
    Why.CROWDED: Reason.CONNECTION_REFUSED,
    Why.FILES: Reason.CONNECTION_REFUSED,
    Why.DONE: Reason.SERVER_CLOSING,
    Why.SHUTDOWN: Reason.SERVER_SHUTDOWN,
    Why.KICKED: Reason.SERVER_CLOSING,
}
"""What is said of the ways in which a connection ends by itself."""

OnMessage = Callable[["MqSession", Message], object]
OnSession = Callable[["MqSession"], object]
OnClose = Callable[["MqSession", Ending], object]


class Handlers(NamedTuple):
    """Who is told what. They are called on the event loop and must not wait."""

    message: OnMessage
    connect: OnSession | None = None
    close: OnClose | None = None
    room: OnSession | None = None
    """The peer has taken most of what waited for it."""
    due: Callable[["MqSession"], bool] | None = None
    """The peer sends nothing more. True keeps the connection for what it shall still get; the handler closes it."""


class MqSession(TcpSession):
    """A connection. `data` is for whoever handles its messages."""

    def __init__(
        self, limits: MqLimits, handlers: Handlers, keeper: Keeper | None = None, *, answers_pings: bool = True
    ) -> None:
        super().__init__(limits, keeper)
        self.data: Any = None
        self._handlers = handlers
        self._answers_pings = answers_pings
        self._parser = Parser(limits.message_frames_max, limits.message_bytes_max)
        self._pings = 0
        self._reason: Reason | None = None
        self._peer_reason: Reason | None = None

    # -- what its users call

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that may be sent: a peer that sends longer ones itself can take them too."""
        return FRAME_BYTES_MAX if self._parser.longest > FRAME_BYTES_SENT_MAX else FRAME_BYTES_SENT_MAX

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message; False if the connection has ended and nobody will get it.

        Nothing waits here. Whoever sends much awaits `drain` now and then; when far too much waits for a peer that
        does not read, it is cut off. Raises FrameTooLong or EmptyMessage, and sends nothing then.
        """
        if self.ended is not None:
            return False
        put_message(self._out, frames, self.frame_bytes_max)
        self.messages_sent += 1
        self.flush_soon()
        return True

    def ping(self) -> None:
        """Send a ping: a client does this by itself when it is silent."""
        self.write(PING)

    def close(self, reason: Reason = Reason.SERVER_CLOSING) -> None:
        """Say why and close. What was sent before still arrives, if the peer takes it."""
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
        """Tell the handler."""
        if self._handlers.connect is not None:
            self._guarded(self._handlers.connect, self)

    def received(self, data: bytes) -> int:
        """Hand messages on, answer pings, notice the end."""
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
            self.end(Why.PEER)
        else:
            self._reason = Reason.PROTOCOL_ERROR
            self.end(f"{Reason.PROTOCOL_ERROR.words}: {ended.what}")

    def farewell(self, why: str) -> bytes:
        """The reason, unless the peer was first to say one."""
        return b"" if self._peer_reason is not None else disconnect(self._own_reason(why))

    def _own_reason(self, why: str) -> Reason:
        return REASONS.get(why, Reason.UNKNOWN) if self._reason is None else self._reason

    def forget(self) -> None:
        """Let go of an unfinished message."""
        self._parser.forget()

    def resume_writing(self) -> None:
        """The peer has taken most of what waited for it: tell the handler."""
        super().resume_writing()
        if self._handlers.room is not None and self.ended is None:
            self._guarded(self._handlers.room, self)

    def has_due(self) -> bool:
        """The peer sends nothing more: ask the handler."""
        return self._handlers.due is not None and self._handlers.due(self)

    def lost(self) -> None:
        """Tell the handler."""
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
