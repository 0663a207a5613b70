"""The listening side: takes connections up to a limit, looks after them all, and lets go of them in the end."""

import asyncio
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Generic, TypeVar

from penstock.tcp.session import Hold, SessionInfo, TcpLimits, TcpSession, Why

BACKLOG_MAX: Final = 1024
REFUSED_MAX: Final = 100
"""Refused connections that are told so at once; when there are more, they are closed without a word."""
CHECK_S_MAX: Final = 1.0
"""How often sessions are looked after, or more often if a limit is short."""

S = TypeVar("S", bound=TcpSession)


class TcpServer(ABC, Generic[S]):
    """Everything about connections but what is said on them. `name` begins the ids of its sessions."""

    def __init__(self, name: str, limits: TcpLimits) -> None:
        self.name = name
        self.limits = limits
        self.endings: Counter[str] = Counter()
        """How many sessions have ended, by why."""
        self._numbers = count(1)
        self._sessions: dict[str, S] = {}
        self._refused: set[S] = set()
        self._pending_bytes = 0
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._clock: Callable[[], float] = time.monotonic

    @abstractmethod
    def new_session(self) -> S:
        """A session for a connection that is being made, with this server as its keeper."""

    # -- listening

    async def listen(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take connections from a bound socket, which is closed in the end."""
        loop = asyncio.get_running_loop()
        self._clock = loop.time
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
        if not self._stopping and len(self._sessions) < self.limits.connections_max:
            session.id = f"{self.name}-{next(self._numbers)}"
            self._sessions[session.id] = session
            return
        self._refused.add(session)
        if self._stopping or len(self._refused) > REFUSED_MAX:
            session.cut(Why.REFUSED)
        else:
            session.end(Why.REFUSED)

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
        self.endings[session.ended or Why.LOST] += 1
        self._refused.discard(session)
        self._sessions.pop(session.id, None)

    async def _look_after(self) -> None:
        limits = self.limits
        shortest_s = min(limits.idle_ms_max, limits.message_ms_max, limits.stall_ms_max) / 1000
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CHECK_S_MAX, shortest_s / 4))
            now = loop.time()
            for session in list(self._sessions.values()):
                session.check(now)
