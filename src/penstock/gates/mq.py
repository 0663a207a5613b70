"""The MQ gate: Res01 and Res01L in MqFrames over TCP, for every language that has a socket.

Many requests may be under way on a connection; answers come as they are ready, and those of one turn of the loop leave
in one write. Reads that fill pages begin only as fast as the peer takes the answers, so that asking for much costs
nobody memory. A connection with many bytes of requests under way is not read from until some are answered. When a
connection is gone, what only read or waited for it is given up.
"""

from collections import deque
from typing import Final

from penstock.engine import Engine
from penstock.engine.budget import FIELD_BYTES
from penstock.gates.addresses import bound_socket, shown_address
from penstock.gates.carrying import Carrying
from penstock.model import Append, FetchSubscription, ReadAll, ReadRecords, ReadStream
from penstock.mq import Ending, FrameTooLong, Message, MqLimits, MqServer, MqSession, SessionInfo
from penstock.settings import Settings
from penstock.tcp import Hold, Why
from penstock.wire.res01 import Frames
from penstock.wire.res01.messages import Framed, decode_framed

OUTSTANDING_MAX: Final = 1024
"""Messages of one connection that are not answered; when there are more, it is not read from. Long polls do not count:
the engine limits them for all connections together."""
PAGES_MAX: Final = 4
"""Reads of pages that are under way for one connection; the others wait for their turn."""
UNREAD_MS_MAX: Final = 1000
"""How long a peer may take nothing while more waits for it than it should. Long polls of many may end at once: who
takes the answers, if slowly, gets them all."""
PAGES: Final = (FetchSubscription, ReadAll, ReadRecords, ReadStream)


class MqGate:
    """One endpoint."""

    name = "mq"

    def __init__(self, engine: Engine, address: str) -> None:
        self.address = address
        self._engine = engine
        self._metrics = engine.metrics
        self._server = MqServer(
            self._received,
            on_connect=self._connected,
            on_close=self._closed,
            on_room=lambda session: session.data.read_on(),
            has_due=lambda session: session.data.peer_is_done(),
            limits=limits_of(engine.settings),
            name=self.name,
        )
        self._accepting = True

    async def start(self) -> None:
        """Listen."""
        bound = await bound_socket(self.name, self.address, insecure=self._engine.settings.insecure)
        self.address = shown_address(bound)
        await self._server.listen(bound)

    def refuse(self) -> None:
        """Take no more connections and no more messages."""
        self._accepting = False
        self._server.refuse()

    async def stop(self) -> None:
        """Send what is left to send, say that the server is shut down, and close."""
        self.refuse()
        await self._server.stop()

    def sessions(self) -> list[SessionInfo]:
        """All connections."""
        return self._server.sessions()

    def kick(self, session: str) -> bool:
        """Cut a connection off; whether there was one of this id."""
        return self._server.kick(session)

    # -- told by the server of connections

    def _connected(self, session: MqSession) -> None:
        self._metrics.gate_sessions[self.name] += 1
        session.data = _Peer(self._engine, session)

    def _received(self, session: MqSession, message: Message) -> None:
        if self._accepting:
            self._metrics.gate_received[self.name] += 1
            session.data.take(message)

    def _closed(self, session: MqSession, ending: Ending) -> None:
        self._metrics.gate_closed[self.name, ending.reason.words] += 1
        if session.data is not None:
            self._metrics.gate_sessions[self.name] -= 1
            session.data.abandon()


def limits_of(settings: Settings) -> MqLimits:
    """What the settings allow a connection."""
    return MqLimits(
        connections_max=settings.mq_connections_max,
        connections_per_address_max=settings.mq_connections_per_address_max,
        idle_ms_max=settings.mq_idle_ms_max,
        message_ms_max=settings.mq_idle_ms_max,
        stall_ms_max=settings.mq_idle_ms_max,
        message_bytes_max=settings.mq_message_bytes_max,
        unsent_bytes_max=settings.mq_unsent_bytes_max,
        unread_ms_max=UNREAD_MS_MAX,
    )


class _Peer:
    """A connection's messages that are under way."""

    __slots__ = (
        "_engine",
        "_is_done",
        "_is_reading_on",
        "_outstanding",
        "_outstanding_bytes",
        "_pages",
        "_series",
        "_session",
        "_under_way",
        "_waiting",
    )

    def __init__(self, engine: Engine, session: MqSession) -> None:
        self._engine = engine
        self._session = session
        self._outstanding = self._outstanding_bytes = 0
        self._pages = 0
        self._waiting: deque[_Asked] = deque()
        self._under_way: set[_Asked] = set()
        self._series: set[_Asked] = set()
        self._is_done = False
        self._is_reading_on = False

    def take(self, message: Message) -> None:
        """Begin what a message asks for, or remember it until it is its turn."""
        framed = decode_framed(message, self._session.frame_bytes_max)
        asked = _Asked(self, framed, sum(map(len, message)) + FIELD_BYTES * framed.fields)
        self._outstanding_bytes += asked.size
        if not asked.waits:
            self._outstanding += 1
        if not asked.enter(self._engine.budget):
            return
        if asked.fills_pages:
            self._waiting.append(asked)
            self.read_on()
        else:
            self._begin(asked)
        if self._is_crowded:
            self._session.hold(Hold.BUSY)

    @property
    def _is_crowded(self) -> bool:
        return (
            self._outstanding >= OUTSTANDING_MAX or self._outstanding_bytes > self._engine.budget.connection_bytes_max
        )

    def read_on(self) -> None:
        """Begin reads whose turn has come."""
        # One may be answered while it is begun: then we are here already.
        if self._is_reading_on:
            return
        self._is_reading_on = True
        try:
            for series in list(self._series):
                series.go_on()
            while self._waiting and self._pages < PAGES_MAX and self.may_read:
                asked = self._waiting.popleft()
                asked.has_page = True
                self._pages += 1
                self._begin(asked)
        finally:
            self._is_reading_on = False

    def _begin(self, asked: "_Asked") -> None:
        asked.begin(self._engine, asked.framed.present)
        if not asked.done:
            self._under_way.add(asked)
            if asked.fills_pages and len(asked.exchange.requests) > 1:
                self._series.add(asked)

    @property
    def may_read(self) -> bool:
        """Whether the peer takes its answers."""
        return not self._session.holds & Hold.UNSENT

    def send(self, framed: Framed, answers: list[Frames]) -> None:
        """Send answers; one that does not fit is replaced by an error that says so."""
        self._engine.metrics.gate_sent[MqGate.name] += len(answers)
        for answer in answers:
            try:
                self._session.send(framed.wrap(answer))
            except FrameTooLong as error:
                self._session.send(framed.refusal(error.size))

    def finished(self, asked: "_Asked") -> None:
        """A message has all its answers."""
        self._under_way.discard(asked)
        self._series.discard(asked)
        self._outstanding_bytes -= asked.size
        if not asked.waits:
            self._outstanding -= 1
        if asked.has_page:
            self._pages -= 1
            self.read_on()
        if self._session.holds & Hold.BUSY and not self._is_crowded:
            self._session.release(Hold.BUSY)
        if self._is_done and not self._outstanding:
            self._session.leave(Why.DONE)

    def peer_is_done(self) -> bool:
        """The peer sends nothing more; whether it shall still get answers. It does not get what it only waited for."""
        self._is_done = True
        return bool(self._outstanding)

    def abandon(self) -> None:
        """Nobody is there any more."""
        self._series.clear()
        for asked in [*self._waiting, *self._under_way]:
            asked.abandon()
        self._waiting.clear()
        self._under_way.clear()


class _Asked(Carrying):
    """A message that is under way."""

    __slots__ = ("_peer", "fills_pages", "framed", "has_page", "waits")

    def __init__(self, peer: _Peer, framed: Framed, size: int) -> None:
        super().__init__(framed.exchange, size)
        self._peer = peer
        self.framed = framed
        self.has_page = False
        requests = framed.exchange.requests
        if len(requests) == 1 and isinstance(requests[0], Append):
            self.waits = self.fills_pages = False
            return
        # What waits for events must not wait for others, nor they for it.
        self.waits = any(getattr(request, "wait_ms", 0) for request in requests)
        self.fills_pages = not self.waits and any(isinstance(request, PAGES) for request in requests)

    def may_go_on(self, begun: int) -> bool:
        """Pages are read as fast as the peer takes them."""
        return not self.fills_pages or (begun < PAGES_MAX and self._peer.may_read)

    def deliver(self, answers: list[Frames], done: bool) -> None:
        """Send them."""
        self._peer.send(self.framed, answers)
        if done:
            self._peer.finished(self)
