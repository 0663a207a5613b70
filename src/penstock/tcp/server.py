"""The listening side: takes connections up to a limit, looks after them all, and lets go of them in the end."""

import asyncio
import logging
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

from penstock.tcp.peers import PeerLog
from penstock.tcp.session import Hold, SessionInfo, TcpLimits, TcpSession, Why

log = logging.getLogger(__name__)
# A program that uses the library and sets up no logging does not find these lines on its standard error.
log.addHandler(logging.NullHandler())

BACKLOG_MAX: Final = 1024
REFUSED_MAX: Final = 100
"""Refused connections that are told so at once; when there are more, they are closed without a word."""
SPARE_FILES_MIN: Final = 64
"""Files that connections leave to the rest of the process: the store, its workers, health and metrics."""
CHECK_S_MAX: Final = 1.0
"""How often sessions are looked after, or more often if a limit is short."""

QUIET: Final = frozenset({Why.PEER, Why.LOST, Why.DONE, Why.SHUTDOWN})
"""Endings that the log says nothing of: the peer's own, and those of everybody."""
LIMITS: Final[dict[str, str]] = {
    Why.IDLE: "idle_ms_max",
    Why.SLOW: "message_ms_max",
    Why.STALLED: "stall_ms_max",
    Why.HOARDED: "pending_bytes_total_max",
    Why.REFUSED: "connections_max",
    Why.CROWDED: "connections_per_address_max",
}
"""The limit behind an ending, for the log."""
MILD: Final = frozenset({Why.IDLE, Why.KICKED})
"""Endings that a healthy system has too: the log has them without a warning."""

S = TypeVar("S", bound=TcpSession)


def open_files_max() -> int:
    """How many files this process may have open."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class TcpServer(ABC, Generic[S]):
    """Everything about connections but what is said on them. `name` begins the ids of its sessions."""

    def __init__(self, name: str, limits: TcpLimits) -> None:
        self.name = name
        self.limits = limits
        self.endings: Counter[str] = Counter()
        """How many sessions have ended, by why."""
        self._numbers = count(1)
        self._sessions: dict[str, S] = {}
        self._addresses: Counter[str] = Counter()
        self._refused: set[S] = set()
        self._peer_log = PeerLog(log, name)
        self._pending_bytes = 0
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._clock: Callable[[], float] = time.monotonic

    @abstractmethod
    def new_session(self) -> S:
        """A session for a connection that is being made, with this server as its keeper."""

    @property
    def is_accepting(self) -> bool:
        """Whether connections and messages are still taken."""
        return not self._stopping

    # -- listening

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take connections from a bound socket, which is closed in the end."""
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        if bound.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(self.new_session, sock=bound, backlog=BACKLOG_MAX)
        else:
            patience_s = self.limits.idle_ms_max / 1000 if tls else None
            self._server = await loop.create_server(
                self.new_session, sock=bound, backlog=BACKLOG_MAX, ssl=tls, ssl_handshake_timeout=patience_s
            )
        self._watch = loop.create_task(self._look_after())

    def refuse(self) -> None:
        """Take no more connections. Those that are there go on."""
        self._stopping = True
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Take no more connections, end those that are there, and wait until they are gone."""
        self.refuse()
        for session in self._sessions.values():
            session.end(Why.SHUTDOWN)
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
        now = self._clock()
        return [session.info(now) for session in self._sessions.values()]

    def session(self, number: str) -> S | None:
        """A session by its id."""
        return self._sessions.get(number)

    def kick(self, number: str) -> bool:
        """Cut a session off; whether there was one of this id."""
        session = self._sessions.get(number)
        if session is None:
            return False
        session.end(Why.KICKED)
        return True

    # -- told by sessions

    def opened(self, session: S) -> None:
        """Keep it, or refuse it."""
        refusal = self._refusal(session)
        if refusal is None:
            session.id = f"{self.name}-{next(self._numbers)}"
            self._sessions[session.id] = session
            self._addresses[session.network] += 1
            return
        self._refused.add(session)
        if self._stopping or refusal is Why.FILES or len(self._refused) > REFUSED_MAX:
            session.cut(refusal)
        else:
            session.end(refusal)

    def _refusal(self, session: S) -> Why | None:
        if self._stopping:
            return Why.SHUTDOWN
        if len(self._sessions) >= self.limits.connections_max:
            return Why.REFUSED
        if self._addresses[session.network] >= self.limits.connections_per_address_max:
            return Why.CROWDED
        # The system gives out the lowest free number, so the number of a new file tells how many are open.
        return Why.FILES if session.file_number >= open_files_max() - SPARE_FILES_MIN else None

    def grew(self, _session: S, pending_bytes: int) -> None:
        """Cut off who holds the most when unfinished messages have become too many."""
        self._pending_bytes += pending_bytes
        if self._pending_bytes > self.limits.pending_bytes_total_max:
            self._open_one(lambda each: each.pending_bytes).cut(Why.HOARDED)

    def filled(self) -> None:
        """Cut off who reads the least when too much waits for those who do not."""
        slow = [session.unsent_bytes for session in self._sessions.values() if session.holds & Hold.UNSENT]
        if sum(slow) > self.limits.unsent_bytes_total_max:
            self._open_one(lambda each: each.unsent_bytes).cut(Why.UNREAD)

    def _open_one(self, weight: Callable[[S], int]) -> S:
        """The heaviest session of those that have not ended."""
        return max(self._sessions.values(), key=lambda each: weight(each) if each.ended is None else -1)

    def closed(self, session: S) -> None:
        """Forget it."""
        why = session.ended or Why.LOST
        self.endings[why] += 1
        self._refused.discard(session)
        if self._sessions.pop(session.id, None) is not None:
            self._addresses[session.network] -= 1
            if not self._addresses[session.network]:
                # A counter keeps its zeros, and there are many addresses.
                del self._addresses[session.network]
        if why not in QUIET and not session.is_closed_by_user:
            self._tell(session, why)

    def _tell(self, session: S, why: str) -> None:
        """Say in the log whom the server has cut off, and why."""
        limit = LIMITS.get(why)
        about = f"{why} ({limit} is {getattr(self.limits, limit)})" if limit else why
        who = f"{session.id} of {session.peer} was ended" if session.id else f"{self.name} refused {session.peer}"
        if why == Why.KICKED:
            # No peer can cause this one.
            log.info("%s: %s", who, about)
        else:
            level = logging.INFO if why in MILD else logging.WARNING
            self._peer_log.write(level, session.network, "%s: %s", who, about)

    async def _look_after(self) -> None:
        limits = self.limits
        shortest_s = min(limits.idle_ms_max, limits.message_ms_max, limits.stall_ms_max) / 1000
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CHECK_S_MAX, shortest_s / 4))
            now = loop.time()
            self._peer_log.tick()
            for session in list(self._sessions.values()):
                session.check(now)
