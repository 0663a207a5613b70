"""One connection: its counters, its time limits, and how much may wait for it.

A session stops reading from a peer that does not read. It ends a peer for which too much waits, or that takes nothing
for too long. The side that ends a connection sends the reason, and then reads until the peer has had time to get it.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, IPv6Network, ip_address
from struct import Struct
from typing import Any, ClassVar, Final, Protocol, cast

LEAVE_PAUSE_S: Final = 0.05
"""How often a session that is leaving checks whether its peer has taken everything."""
PIECES_MAX: Final = 1024
"""Writes that are joined into one, at the latest at the end of the loop's turn."""
PIECE_BYTES: Final = 4096
"""Pieces that are this long on average, as those of large pages are, are sent without a copy."""
_CREDENTIALS: Final = Struct("3i")
"""Process, user and group at the other end of a local socket."""
IPV6_PREFIX: Final = 64
"""The first bits of an IPv6 address that a network gives to one customer, who chooses the rest at will."""
TLS_HELLO: Final = b"\x16\x03"
"""How a client begins that speaks TLS."""
NO_TLS_ANSWER: Final = b"This port does not speak TLS.\r\n"
"""Makes such a client say that the version is wrong, and not only that the connection has ended."""


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Limits of a connection, and of their number."""

    connections_max: int = 1000
    """Connections at once; the server refuses the next one."""
    connections_per_address_max: int = 250
    """Connections from one IPv4 address, or from the /64 of an IPv6 address; the server refuses the next one."""
    idle_ms_max: int = 60_000
    """How long a peer may be silent."""
    message_ms_max: int = 60_000
    """How long a message may take from its first byte to its last."""
    stall_ms_max: int = 60_000
    """How long a peer may take nothing of what waits for it."""
    unsent_bytes_high: int = 1 << 20
    """When more than this waits for a peer, the server does not read from it until it has taken most of it."""
    unsent_bytes_max: int = 64 << 20
    """When more than this waits for a peer that takes nothing, the server ends it."""
    unread_ms_max: int = 0
    """How long a peer may take nothing while more than `unsent_bytes_max` waits for it."""
    unsent_bytes_total_max: int = 512 << 20
    """When more than this waits for all peers together, the server cuts off the one with the most."""
    pending_bytes_total_max: int = 256 << 20
    """When the unfinished messages of all peers have more than this, the server cuts off the one with the most."""
    handshake_ms_max: int = 10_000
    """How long a TLS handshake may take."""
    linger_ms_max: int = 1000
    """How long an ended connection stays open for the peer to take the rest."""


class ReadHold:
    """Why a session does not read from its connection: the sum of these."""

    # Plain numbers: every answer checks them, and enum flags are slow.
    NOTHING: Final = 0
    UNSENT: Final = 1
    """The peer does not read."""
    BUSY: Final = 2
    """The handler of its messages is busy."""


class CloseReason(StrEnum):
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
    REVOKED = "its principal was revoked or changed, or its credential has expired"
    UNAUTHENTICATED = "it showed too many wrong tokens"
    PLAIN = "it spoke plain text to a port that speaks TLS: it has to use ?tls, or https"
    NO_TLS = "it speaks TLS and this port does not: give the server tls_cert and tls_key, or connect without TLS"
    HANDSHAKE = "the TLS handshake failed"
    HANDSHAKE_SLOW = "the TLS handshake took too long"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A snapshot of a session. Times are in seconds."""

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


class SessionRegistry(Protocol):
    """Knows all sessions of a server, and limits what they take together."""

    def opened(self, session: Any) -> None:
        """A session has begun; the registry may refuse it."""

    def grew(self, pending_bytes: int) -> None:
        """The unfinished message of a session has so many more bytes, or fewer."""

    def filled(self) -> None:
        """A session that has much waiting for its peer got more."""

    def closed(self, session: Any) -> None:
        """A session is gone."""


class TcpSession(asyncio.Protocol):
    """The common part of every connection. Subclasses implement the protocol."""

    may_have_tls: ClassVar[bool] = True
    """Whether its server could speak TLS, so that the log can say how to turn it on when a peer speaks it."""

    def __init__(self, limits: TcpLimits, registry: SessionRegistry | None = None) -> None:
        self.id = ""
        self.peer = ""
        self.network = ""
        """The key by which the registry counts its peer's connections; see `network_of`."""
        self.names: Callable[[], Sequence[str]] = tuple
        """The principals on this connection, as far as its gate knows."""
        self.messages_received = 0
        self.messages_sent = 0
        self.bytes_received = 0
        self.ended: str | None = None
        """Why it ended or is ending; None while it is open."""
        self.failure: ssl.SSLError | None = None
        """The error of TLS, if that ended the connection."""
        self.detail = ""
        """More about its end, for the log."""
        self.is_closed_by_user = False
        """Whether the program itself has closed it; such an ending is not logged."""
        self.pending_bytes = 0
        """Bytes of an unfinished message."""
        self._limits = limits
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        # In several versions of asyncio, `writelines` does not tell of a peer that does not read (CVE-2024-12254).
        self._has_writelines = type(self._loop).__module__.startswith("uvloop")
        self._opened = self._last_seen = self._moved = self._loop.time()
        self._message_since: float | None = None
        self._bytes_written = 0
        self._taken = 0
        self._out: list[bytes] = []
        self._flush_is_due = False
        self._holds: int = ReadHold.NOTHING
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None

    # -- for subclasses

    def opened(self) -> None:
        """The connection has begun."""

    @property
    def is_shaking_hands(self) -> bool:
        """Whether it waits for the end of a TLS handshake."""
        return getattr(self._transport, "is_shaking_hands", False)

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS of the connection, with the peer's certificate; None in plain text."""
        found: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return found

    def received(self, data: bytes) -> int:
        """Handle bytes; how many bytes of an unfinished message there are."""
        raise NotImplementedError

    def farewell(self, why: str) -> bytes:  # noqa: ARG002
        """The last bytes to the peer before the connection closes."""
        return b""

    def has_due(self) -> bool:
        """The peer sends nothing more; whether answers to it are due. The subclass then ends the session afterwards."""
        return False

    def forget(self) -> None:
        """The session has ended: drop the unfinished message."""

    def lost(self) -> None:
        """The connection is gone."""

    # -- sending

    def write(self, piece: bytes) -> None:
        """Send bytes with the others of this turn, unless it has ended."""
        if self.ended is None:
            self._out.append(piece)
            self.flush_soon()

    def flush_soon(self, *, now: bool = False) -> None:
        """Send `_out` at the end of this turn, or now if it is long."""
        if now or len(self._out) >= PIECES_MAX:
            self.flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_is_due = False
        self.flush()

    def flush(self) -> None:
        """Send `_out` now."""
        if not self._out or self._gone.is_set():
            return
        # The transport may call back, and more may be sent then.
        pieces, self._out = self._out, []
        size = sum(map(len, pieces))
        self._bytes_written += size
        if self._has_writelines and size >= PIECE_BYTES * len(pieces):
            self._transport.writelines(pieces)
        else:
            self._transport.write(b"".join(pieces))
        if self._holds & ReadHold.UNSENT and self.ended is None:
            self._weigh()

    def _weigh(self) -> None:
        """More waits for a slow peer: check the limits."""
        self._check_unsent(self._loop.time())
        if self._registry is not None and self.ended is None:
            self._registry.filled()

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was sent, or the connection has ended."""
        self.flush()
        await self._room.wait()

    @property
    def file_number(self) -> int:
        """The descriptor of its socket."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    # -- reading

    @property
    def holds(self) -> int:
        return self._holds

    def hold(self, why: int) -> None:
        """Stop reading until `release`. Bytes that were read before are still handled."""
        if not self._holds and self.ended is None:
            self._transport.pause_reading()
        self._holds |= why

    def release(self, why: int) -> None:
        """Read on, unless there is another reason not to."""
        if not self._holds & why:
            return
        self._holds &= ~why
        if not self._holds and self.ended is None:
            # The peer could send nothing meanwhile.
            self._last_seen = now = self._loop.time()
            self._message_since = self._message_since and now
            self._transport.resume_reading()

    # -- ending

    def end(self, why: str) -> None:
        """Send the reason, give the peer a moment to read it, and close."""
        if self.ended is not None or self._gone.is_set():
            return
        self.ended = why
        self._out.append(self.farewell(why))
        self.flush()
        self.forget()
        self._pend(0)
        if self._holds:
            # If unread bytes are left at the close, the system drops our last bytes.
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            # Plain asyncio raises here if the peer is gone; `connection_lost` follows.
            with suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()
        self._leave_soon()

    def leave(self, why: str) -> None:
        """End once the peer has taken everything, however slow it is. A peer that takes nothing is ended, too."""
        self.flush()
        if self.ended is None and self.unsent_bytes:
            self._linger = self._loop.call_later(LEAVE_PAUSE_S, self.leave, why)
        else:
            self.end(why)

    def _leave_soon(self) -> None:
        """Close the connection in a moment, whatever the peer does."""
        self._linger = self._loop.call_later(self._limits.linger_ms_max / 1000, self._transport.abort)

    def cut(self, why: str) -> None:
        """Close at once and silently."""
        self.ended = self.ended or why
        self._transport.abort()
        # Its bytes count no more: no other session must be cut off because of them.
        self._holds = ReadHold.NOTHING
        self._pend(0)

    async def gone(self) -> None:
        await self._gone.wait()

    # -- periodic checks

    def check(self, now: float) -> None:
        """End it if a time limit has passed."""
        limits = self._limits
        if self.ended is not None:
            return
        if self.is_shaking_hands and now - self._opened > limits.handshake_ms_max / 1000:
            self.cut(CloseReason.HANDSHAKE_SLOW)
            return
        self._check_unsent(now)
        if self._holds or self.ended is not None:
            return
        if now - self._last_seen > limits.idle_ms_max / 1000:
            self.end(CloseReason.IDLE)
        elif self._message_since is not None and now - self._message_since > limits.message_ms_max / 1000:
            self.end(CloseReason.SLOW)

    def _check_unsent(self, now: float) -> None:
        """End it if the peer has taken nothing for too long; the more waits for it, the shorter that is."""
        unsent = self.unsent_bytes
        taken = self._bytes_written - unsent
        # Under TLS what waits is a little longer than what was written, so that less seems taken after each write.
        if taken > self._taken or not unsent:
            self._moved = now
        self._taken = taken
        still_ms = 1000 * (now - self._moved)
        if still_ms > self._limits.stall_ms_max:
            self.end(CloseReason.STALLED)
        elif still_ms >= self._limits.unread_ms_max and unsent > self._limits.unsent_bytes_max:
            self.end(CloseReason.UNREAD)

    def info(self) -> SessionInfo:
        now, unsent = self._loop.time(), self.unsent_bytes
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
        self._transport = cast("asyncio.Transport", transport)
        high = self._limits.unsent_bytes_high
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        self.peer, self.network = peer_of(transport)
        if self._registry is not None:
            self._registry.opened(self)
        if self.ended is None and not self.is_shaking_hands:
            self.opened()

    def secured(self) -> None:
        """The TLS handshake is done."""
        if self.ended is None:
            self._last_seen = self._loop.time()
            self.opened()

    def unsecured(self, why: CloseReason, detail: str = "") -> None:
        """There was no TLS handshake. The connection closes."""
        self.ended, self.detail = self.ended or why, detail

    def data_received(self, data: bytes) -> None:
        """Count bytes and pass them on. Bytes after the end are dropped."""
        if not self.bytes_received and data.startswith(TLS_HELLO) and self._registry is not None and self.may_have_tls:
            self._out.append(NO_TLS_ANSWER)
            self.end(CloseReason.NO_TLS)
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
        if self._registry is not None:
            self._registry.grew(change)

    def eof_received(self) -> bool:
        """The peer sends nothing more. It gets the answers that are due, and then the connection closes."""
        self.flush()
        if self.ended is not None:
            return False
        # The loop's TLS, which clients use, has no half-closed connections.
        if self._transport.can_write_eof():
            if self.has_due():
                return True
            if self.unsent_bytes:
                self.leave(CloseReason.DONE)
                return True
        self.ended = CloseReason.PEER
        self._leave_soon()
        return False

    def pause_writing(self) -> None:
        self._room.clear()
        self.hold(ReadHold.UNSENT)

    def resume_writing(self) -> None:
        self._room.set()
        self.release(ReadHold.UNSENT)

    def connection_lost(self, error: Exception | None) -> None:
        # Other errors have tracebacks that refer to this session, and say nothing that is needed.
        self.failure = error if isinstance(error, ssl.SSLError) else None
        self.ended = self.ended or CloseReason.LOST
        self._gone.set()
        self._room.set()
        self._out.clear()
        if self._linger is not None:
            self._linger.cancel()
        # The session may be part of a reference cycle, and stay in memory for a while.
        self.forget()
        self._pend(0)
        if self._registry is not None:
            self._registry.closed(self)
        self.lost()


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """How the log shows a peer, and the key by which a server counts its connections: its user if it is local."""
    ours, address = transport.get_extra_info("socket"), transport.get_extra_info("peername")
    if ours is None or ours.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return shown_peer(address), network_of(address)
    found = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return f"process {process} of user {user}", f"user {user}"


def shown_peer(address: object) -> str:
    """A peer's address as people write it."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "unknown")


def network_of(address: object) -> str:
    """The key by which a server counts a peer's connections: its IPv4 address, or the /64 of its IPv6 address.

    An IPv4 address that is written as IPv6 (`::ffff:10.0.0.7`) is the same as the IPv4 address.
    """
    if not isinstance(address, tuple) or not address:
        return str(address or "unknown")
    try:
        found = ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((found, IPV6_PREFIX), strict=False))
