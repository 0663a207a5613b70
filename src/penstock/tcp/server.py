"""The listening side: accepts connections up to a limit, checks them all, and ends them when the server stops."""

import asyncio
import logging
import os
import socket
import ssl
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Generic, TypeVar

from penstock.tcp.session import CloseReason, ReadHold, SessionInfo, TcpLimits, TcpSession
from penstock.tcp.tls import TlsLayer

log = logging.getLogger(__name__)
# A program that uses the library and sets up no logging does not find these lines on its standard error.
log.addHandler(logging.NullHandler())

LINES_MAX: Final = 100
"""Lines about all peers in one window."""
LINES_PER_ADDRESS_MAX: Final = 10
"""Lines about the peers of one address in one window."""
WINDOW_S: Final = 60.0
BACKLOG_MAX: Final = 1024
REFUSED_MAX: Final = 100
"""Refused connections that get the reason at once; when there are more, the server closes them silently."""
SPARE_FILES_MIN: Final = 64
"""Files that connections leave to the rest of the process: the store, its workers, health and metrics."""
CHECK_S_MAX: Final = 1.0
"""How often the server checks sessions, or more often if a limit is short."""

QUIET: Final = frozenset({CloseReason.PEER, CloseReason.LOST, CloseReason.DONE, CloseReason.SHUTDOWN})
"""Endings that are not logged: the peer's own, and those of a shutdown."""
LIMITS: Final[dict[str, str]] = {
    CloseReason.IDLE: "idle_ms_max",
    CloseReason.SLOW: "message_ms_max",
    CloseReason.STALLED: "stall_ms_max",
    CloseReason.HOARDED: "pending_bytes_total_max",
    CloseReason.REFUSED: "connections_max",
    CloseReason.CROWDED: "connections_per_address_max",
    CloseReason.HANDSHAKE_SLOW: "handshake_ms_max",
}
"""The limit that caused an ending, for the log."""
MILD: Final = frozenset({CloseReason.IDLE, CloseReason.KICKED, CloseReason.REVOKED})
"""Endings of a healthy system: logged without a warning."""


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop, which is much faster, if it is installed; Python's otherwise.

    uvloop aborts the process when it closes a file that has the number of a standard one. So a process whose standard
    input or output is closed gets Python's loop.
    """
    try:
        for number in range(3):
            os.fstat(number)
        from uvloop import new_event_loop  # noqa: PLC0415
    except (OSError, ImportError):
        return asyncio.new_event_loop()
    return new_event_loop()


def open_files_max() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class PeerLog:
    """Logs lines about peers up to a limit a minute, then their number: a peer must not be able to fill the log."""

    def __init__(
        self,
        log: logging.Logger,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        left_out: str = "%s ended %s more connections",
    ) -> None:
        """`left_out` begins the line with the number of lines that were left out."""
        self._log = log
        self._name = name
        self._about_left_out = left_out
        self._clock = clock
        self._since = clock()
        self._lines: Counter[str] = Counter()
        self._left_out = 0
        self._last_left_out = ""

    def write(
        self, level: int, network: str, message: str, *arguments: object, fields: dict[str, object] | None = None
    ) -> None:
        """Log a line about a peer of this network, or count it. Formatters show `fields` by their names."""
        self.tick()
        if not self._log.isEnabledFor(level):
            return
        if self._lines[network] < LINES_PER_ADDRESS_MAX and self._lines.total() < LINES_MAX:
            self._lines[network] += 1
            self._log.log(level, message, *arguments, extra={"fields": fields or {}})
        else:
            self._left_out += 1
            self._last_left_out = network

    def tick(self) -> None:
        """Begin another minute if one is over. Servers call this periodically."""
        if self._clock() - self._since >= WINDOW_S:
            self.flush()

    def flush(self) -> None:
        """Log how many lines were left out, and begin another minute."""
        if self._left_out:
            self._log.warning(
                f"{self._about_left_out}, the last one from %s; the log names %d a minute, and %d of one address",
                self._name,
                f"{self._left_out:,}",
                self._last_left_out,
                LINES_MAX,
                LINES_PER_ADDRESS_MAX,
            )
        self._since = self._clock()
        self._lines.clear()
        self._left_out = 0


S = TypeVar("S", bound=TcpSession)


class TcpServer(ABC, Generic[S]):
    """Everything about connections except their protocol. `name` begins the ids of its sessions."""

    def __init__(self, name: str, limits: TcpLimits) -> None:
        self.name = name
        self.limits = limits
        self.endings: Counter[str] = Counter()
        """How many sessions have ended, by reason."""
        self._numbers = count(1)
        self._sessions: dict[str, S] = {}
        self._addresses: Counter[str] = Counter()
        self._refused: set[S] = set()
        self._peer_log = PeerLog(log, name)
        self._pending_bytes = 0
        self._server: asyncio.Server | None = None
        self.is_accepting = True
        """Whether the server still accepts connections and messages."""

    @abstractmethod
    def new_session(self) -> S:
        """A session for a new connection, with this server as its registry."""

    # -- listening

    async def listen(self, bound: socket.socket, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Accept connections from a bound socket. `stop` closes it. `tls` gives the context of each new connection."""
        loop = asyncio.get_running_loop()
        self._tls = tls
        new: Callable[[], asyncio.Protocol] = self.new_session
        if tls is not None:

            def new() -> TlsLayer:
                return TlsLayer(self.new_session(), tls())

        if bound.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(new, sock=bound, backlog=BACKLOG_MAX)
        else:
            self._server = await loop.create_server(new, sock=bound, backlog=BACKLOG_MAX)
        self._watch = loop.create_task(self._check_sessions())

    def refuse(self) -> None:
        """Accept no more connections. Open ones stay."""
        self.is_accepting = False
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Accept no more connections, and cut the open ones, as when a process is killed."""
        self.refuse()
        for session in list(self._sessions.values()):
            session.cut(CloseReason.SHUTDOWN)

    async def stop(self) -> None:
        """Accept no more connections, end the open ones, and wait until they are gone."""
        self.refuse()
        for session in self._sessions.values():
            session.end(CloseReason.SHUTDOWN)
        for session in [*self._sessions.values(), *self._refused]:
            await session.gone()
        if self._server is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        self._peer_log.flush()

    # -- sessions

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the oldest first."""
        return [session.info() for session in self._sessions.values()]

    def session(self, number: str) -> S | None:
        return self._sessions.get(number)

    def kick(self, number: str) -> bool:
        """End a session; whether there was one of this id."""
        session = self._sessions.get(number)
        if session is None:
            return False
        session.end(CloseReason.KICKED)
        return True

    # -- called by sessions

    def opened(self, session: S) -> None:
        refusal = self._refusal(session)
        if refusal is None:
            session.id = f"{self.name}-{next(self._numbers)}"
            self._sessions[session.id] = session
            self._addresses[session.network] += 1
            return
        self._refused.add(session)
        if not self.is_accepting or refusal is CloseReason.FILES or len(self._refused) > REFUSED_MAX:
            session.cut(refusal)
        else:
            session.end(refusal)

    def _refusal(self, session: S) -> CloseReason | None:
        if not self.is_accepting:
            return CloseReason.SHUTDOWN
        if len(self._sessions) >= self.limits.connections_max:
            return CloseReason.REFUSED
        if self._addresses[session.network] >= self.limits.connections_per_address_max:
            return CloseReason.CROWDED
        # The system gives out the lowest free number, so the number of a new file tells how many are open.
        return CloseReason.FILES if session.file_number >= open_files_max() - SPARE_FILES_MIN else None

    def grew(self, pending_bytes: int) -> None:
        """Cut off the session with the most unfinished bytes when all together have too many."""
        self._pending_bytes += pending_bytes
        if self._pending_bytes > self.limits.pending_bytes_total_max:
            self._open_one(lambda each: each.pending_bytes).cut(CloseReason.HOARDED)

    def filled(self) -> None:
        """Cut off the session with the most unsent bytes when too much waits for peers that do not read."""
        slow = [session.unsent_bytes for session in self._sessions.values() if session.holds & ReadHold.UNSENT]
        if sum(slow) > self.limits.unsent_bytes_total_max:
            self._open_one(lambda each: each.unsent_bytes).cut(CloseReason.UNREAD)

    def _open_one(self, weight: Callable[[S], int]) -> S:
        """The heaviest session of those that have not ended."""
        return max(self._sessions.values(), key=lambda each: weight(each) if each.ended is None else -1)

    def closed(self, session: S) -> None:
        why = session.ended or CloseReason.LOST
        self.endings[why] += 1
        self._refused.discard(session)
        if self._sessions.pop(session.id, None) is not None:
            self._addresses[session.network] -= 1
            if not self._addresses[session.network]:
                # A counter keeps its zeros, and there are many addresses.
                del self._addresses[session.network]
        if why in QUIET or session.is_closed_by_user:
            return
        limit = LIMITS.get(why)
        about = f"{why} ({limit} is {getattr(self.limits, limit)})" if limit else why
        if session.detail:
            about = f"{about}: {session.detail}"
        who = f"{session.id} of {session.peer} was ended" if session.id else f"{self.name} refused {session.peer}"
        if why == CloseReason.KICKED:
            # No peer can cause this one.
            log.info("%s: %s", who, about)
        else:
            level = logging.INFO if why in MILD else logging.WARNING
            self._peer_log.write(level, session.network, "%s: %s", who, about)

    async def _check_sessions(self) -> None:
        limits = self.limits
        shortest_s = min(limits.idle_ms_max, limits.message_ms_max, limits.stall_ms_max, limits.handshake_ms_max) / 1000
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CHECK_S_MAX, shortest_s / 4))
            now = loop.time()
            self._peer_log.tick()
            if self._tls is not None:
                # A certificate that has changed is read without waiting for a connection.
                self._tls()
            for session in list(self._sessions.values()):
                session.check(now)
