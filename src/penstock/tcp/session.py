"""One connection: what it has sent and received, how long it may be silent, how much may wait for it.

A peer that does not read is not read from either; if more waits for it than a limit allows, or it takes nothing for
too long, it is cut off. Whoever ends a connection says why, and then listens until the peer has had time to read it.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, cast

from penstock.tcp.peers import peer_of

LEAVE_PAUSE_S: Final = 0.05
"""How often a connection is looked at that ends when its peer has taken all that waits for it."""
PIECES_MAX: Final = 256
"""Pieces that are gathered before they are written, at the latest at the end of the loop's turn."""


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """What a connection may take, and how many there may be."""

    connections_max: int = 1000
    """Connections at once; the next one is refused."""
    connections_per_address_max: int = 250
    """Connections from one IPv4 address, or from the /64 of an IPv6 address; the next one is refused."""
    idle_ms_max: int = 60_000
    """How long a peer may be silent."""
    message_ms_max: int = 60_000
    """How long a message may take from its first byte to its last."""
    stall_ms_max: int = 60_000
    """How long a peer may take nothing of what waits for it."""
    unsent_bytes_high: int = 1 << 20
    """When more than this waits for a peer, it is not read from until it has taken most of it."""
    unsent_bytes_max: int = 64 << 20
    """When more than this waits for a peer that takes nothing of it, it is cut off."""
    unread_ms_max: int = 0
    """How long a peer may take nothing while so much waits for it, before it is cut off."""
    unsent_bytes_total_max: int = 512 << 20
    """When more than this waits for all peers together, the one with the most is cut off."""
    pending_bytes_total_max: int = 256 << 20
    """When the unfinished messages of all peers have more than this, the peer with the most is cut off."""
    linger_ms_max: int = 1000
    """How long a connection that is ended stays for the peer to take the rest."""


class Hold:
    """Why a connection is not read from at present: the sum of these."""

    # Plain numbers: it is asked with every answer, and flags would be slow.
    NOTHING: Final = 0
    UNSENT: Final = 1
    """The peer does not read."""
    BUSY: Final = 2
    """Whoever handles its messages has enough."""


class Why(StrEnum):
    """Why a connection ended, as far as the connection itself knows."""

    PEER = "the peer closed the connection"
    LOST = "the connection was lost"
    IDLE = "no byte came for too long"
    SLOW = "a message took too long"
    STALLED = "the peer took nothing of what waited for it for too long"
    UNREAD = "too much waited for a peer that does not read"
    HOARDED = "all unfinished messages together had too many bytes, and this peer's had the most"
    REFUSED = "there were too many connections"
    CROWDED = "there were too many connections from its address"
    FILES = "the process has too few open files left"
    DONE = "the peer had sent all that it wanted, and got all that was due to it"
    SHUTDOWN = "the server was shut down"
    KICKED = "an operator cut it off"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session at one moment. Times are in seconds."""

    id: str
    peer: str
    opened: float
    age: float
    last_seen: float
    bytes_received: int
    bytes_sent: int
    messages_received: int
    messages_sent: int
    unsent_bytes: int


class Keeper(Protocol):
    """Who keeps many sessions, and limits what they take together."""

    def opened(self, session: Any) -> None:
        """A session is there; it may be refused."""

    def grew(self, session: Any, pending_bytes: int) -> None:
        """A session holds so much more of an unfinished message, or less."""

    def filled(self) -> None:
        """A session that has much waiting for its peer got more."""

    def closed(self, session: Any) -> None:
        """A session is gone."""


class TcpSession(asyncio.Protocol):
    """The common part of every connection. What it says is written by whoever derives from it."""

    def __init__(self, limits: TcpLimits, keeper: Keeper | None = None) -> None:
        self.id = ""
        self.peer = ""
        self.network = ""
        """The key by which the keeper counts its peer's connections; see `network_of`."""
        self.messages_received = 0
        self.messages_sent = 0
        self.bytes_received = 0
        self.ended: str | None = None
        """Why it ended or is ending; None while it is open."""
        self.is_closed_by_user = False
        """Whether the program that uses the connection has closed it, and so knows of it."""
        self.pending_bytes = 0
        """How much has come of a message that is not complete."""
        self._limits = limits
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._opened = self._last_seen = self._moved = self._loop.time()
        self._message_since: float | None = None
        self._bytes_written = 0
        self._taken = 0
        self._out: list[bytes] = []
        self._flush_is_due = False
        self._holds: int = Hold.NOTHING
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None

    # -- for those who derive

    def opened(self) -> None:
        """The connection is there."""

    def received(self, data: bytes) -> int:
        """Bytes have come; how much there is of a message that is not complete."""
        raise NotImplementedError

    def farewell(self, why: str) -> bytes:  # noqa: ARG002
        """What is said to the peer before the connection is closed."""
        return b""

    def has_due(self) -> bool:
        """The peer sends nothing more; whether it shall still get something. Then it must be ended when it has."""
        return False

    def forget(self) -> None:
        """It has ended: what there is of an unfinished message is not needed any more."""

    def lost(self) -> None:
        """The connection is gone."""

    # -- sending

    def write(self, piece: bytes) -> None:
        """Send bytes with the others of this turn; nothing is sent once it has ended."""
        if self.ended is None:
            self._out.append(piece)
            self.flush_soon()

    def flush_soon(self) -> None:
        """Have what was gathered in `_out` sent at the end of this turn, or now if it is much."""
        if len(self._out) >= PIECES_MAX:
            self._flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_is_due = False
        self._flush()

    def _flush(self) -> None:
        if not self._out or self._gone.is_set():
            return
        data = b"".join(self._out)
        self._out.clear()
        self._bytes_written += len(data)
        self._transport.write(data)
        if self._holds & Hold.UNSENT and self.ended is None:
            self._weigh()

    def _weigh(self) -> None:
        """More waits for a peer that does not read, or reads slowly."""
        self._check_unsent(self._loop.time())
        if self._keeper is not None and self.ended is None:
            self._keeper.filled()

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was sent, or the connection has ended."""
        self._flush()
        await self._room.wait()

    @property
    def file_number(self) -> int:
        """The descriptor of its socket."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    @property
    def unsent_bytes(self) -> int:
        """How much waits for the peer."""
        return self._transport.get_write_buffer_size()

    # -- reading

    @property
    def holds(self) -> int:
        """Why it is not read from."""
        return self._holds

    def hold(self, why: int) -> None:
        """Read nothing until this is released. What one read gave before that is still handled."""
        if not self._holds and self.ended is None:
            self._transport.pause_reading()
        self._holds |= why

    def release(self, why: int) -> None:
        """Read on, unless there is another reason not to."""
        if not self._holds & why:
            return
        self._holds &= ~why
        if not self._holds and self.ended is None:
            # It could not be heard meanwhile, nor finish a message.
            self._last_seen = now = self._loop.time()
            self._message_since = self._message_since and now
            self._transport.resume_reading()

    # -- ending

    def end(self, why: str) -> None:
        """Say why, let the peer take what waits for it for a moment, and close."""
        if self.ended is not None or self._gone.is_set():
            return
        self.ended = why
        self._out.append(self.farewell(why))
        self._flush()
        self.forget()
        self._pend(0)
        if self._holds:
            # To close with bytes unread would make the system throw away what we have said last.
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            # The peer may be gone already, which plain asyncio says here; then the connection is about to be lost.
            with suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()
        self._leave_soon()

    def leave(self, why: str) -> None:
        """End once the peer has taken what waits for it, however slow it is. If it takes nothing, it is ended too."""
        self._flush()
        if self.ended is None and self.unsent_bytes:
            self._linger = self._loop.call_later(LEAVE_PAUSE_S, self.leave, why)
        else:
            self.end(why)

    def _leave_soon(self) -> None:
        """Whatever the peer does, the connection is closed in a moment."""
        self._linger = self._loop.call_later(self._limits.linger_ms_max / 1000, self._transport.abort)

    def cut(self, why: str) -> None:
        """Close at once, without a word."""
        self.ended = self.ended or why
        self._transport.abort()
        # What it held is as good as gone, and nobody else shall be cut off because of it.
        self._holds = Hold.NOTHING
        self._pend(0)

    async def gone(self) -> None:
        """Wait until the connection is closed."""
        await self._gone.wait()

    # -- looked after, from time to time

    def check(self, now: float) -> None:
        """End it if something takes too long."""
        limits = self._limits
        if self.ended is not None:
            return
        self._check_unsent(now)
        if self._holds or self.ended is not None:
            return
        if now - self._last_seen > limits.idle_ms_max / 1000:
            self.end(Why.IDLE)
        elif self._message_since is not None and now - self._message_since > limits.message_ms_max / 1000:
            self.end(Why.SLOW)

    def _check_unsent(self, now: float) -> None:
        """End it if it takes nothing of what waits for it for too long; the more waits, the shorter that is."""
        unsent = self.unsent_bytes
        taken = self._bytes_written - unsent
        # Under TLS what waits is a little longer than what was written, so that less seems taken after each write.
        if taken > self._taken or not unsent:
            self._moved = now
        self._taken = taken
        still_ms = 1000 * (now - self._moved)
        if still_ms > self._limits.stall_ms_max:
            self.end(Why.STALLED)
        elif still_ms >= self._limits.unread_ms_max and unsent > self._limits.unsent_bytes_max:
            self.end(Why.UNREAD)

    def info(self, now: float | None = None) -> SessionInfo:
        """What is known of it now, by the loop's clock."""
        now, unsent = self._loop.time() if now is None else now, self.unsent_bytes
        return SessionInfo(
            id=self.id,
            peer=self.peer,
            opened=time.time() - (now - self._opened),
            age=now - self._opened,
            last_seen=now - self._last_seen,
            bytes_received=self.bytes_received,
            bytes_sent=self._bytes_written - unsent,
            messages_received=self.messages_received,
            messages_sent=self.messages_sent,
            unsent_bytes=unsent,
        )

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        high = self._limits.unsent_bytes_high
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        self.peer, self.network = peer_of(transport)
        if self._keeper is not None:
            self._keeper.opened(self)
        if self.ended is None:
            self.opened()

    def data_received(self, data: bytes) -> None:
        """Count what came and hand it on. What comes after the end is thrown away."""
        self.bytes_received += len(data)
        if self.ended is not None:
            return
        self._last_seen = now = self._loop.time()
        before = self.messages_received
        pending = self.received(data)
        if pending != self.pending_bytes:
            self._pend(pending)
        if not pending:
            self._message_since = None
        elif self._message_since is None or self.messages_received != before:
            self._message_since = now

    def _pend(self, pending: int) -> None:
        change, self.pending_bytes = pending - self.pending_bytes, pending
        if self._keeper is not None:
            self._keeper.grew(self, change)

    def eof_received(self) -> bool:
        """The peer sends nothing more, which may be all that it means: it gets what is due, and then it is closed."""
        self._flush()
        if self.ended is not None:
            return False
        # A connection under TLS has no half.
        if self._transport.can_write_eof():
            if self.has_due():
                return True
            if self.unsent_bytes:
                self.leave(Why.DONE)
                return True
        self.ended = Why.PEER
        self._leave_soon()
        return False

    def pause_writing(self) -> None:
        """Much waits for the peer."""
        self._room.clear()
        self.hold(Hold.UNSENT)

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        self._room.set()
        self.release(Hold.UNSENT)

    def connection_lost(self, _error: Exception | None) -> None:
        """End."""
        self.ended = self.ended or Why.LOST
        self._gone.set()
        self._room.set()
        self._out.clear()
        if self._linger is not None:
            self._linger.cancel()
        # The session may be part of a cycle, and stay for a while.
        self.forget()
        self._pend(0)
        if self._keeper is not None:
            self._keeper.closed(self)
        self.lost()
