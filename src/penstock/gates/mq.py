"""The MQ gate: Res01 and Res01L in MqFrames over TCP, for every language that has a socket.

Many requests may be in flight on a connection. The gate sends each answer when it is ready, and all answers of one turn
of the loop in one write. Reads of pages begin only as fast as the peer takes the answers, so that large reads do not
fill the memory. The gate stops reading from a connection with too many bytes of requests in flight. When a connection
is gone, it gives up the requests that only read or waited.
"""

from collections import deque
from typing import Final

from penstock.engine import Engine
from penstock.engine.budget import FIELD_BYTES
from penstock.gates.contract import bound_socket, shown_address
from penstock.gates.in_flight import InFlightMessage
from penstock.model import Append, FetchSubscription, ReadAll, ReadRecords, ReadStream
from penstock.mq import Ending, FrameTooLong, Message, MqLimits, MqServer, MqSession, SessionInfo
from penstock.settings import Settings
from penstock.tcp import Hold, Why
from penstock.wire.res01 import Frames
from penstock.wire.res01.messages import Framed, decode_framed

OUTSTANDING_MAX: Final = 1024
"""Unanswered messages of one connection; when there are more, the gate stops reading from it. Long polls do not count:
the engine limits them for all connections together."""
PAGES_MAX: Final = 4
"""Reads of pages in flight for one connection; others wait for their turn."""
UNREAD_MS_MAX: Final = 1000
"""How long a peer may take nothing while too much waits for it. Many long polls may end at once: a peer that reads
slowly still gets all answers."""
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
        bound = await bound_socket(self.name, self.address, insecure=self._engine.settings.insecure)
        self.address = shown_address(bound)
        await self._server.listen(bound)

    def refuse(self) -> None:
        """Accept no more connections and no more messages."""
        self._accepting = False
        self._server.refuse()

    async def stop(self) -> None:
        """Send the last answers and the reason of the shutdown, and close."""
        self.refuse()
        await self._server.stop()

    def sessions(self) -> list[SessionInfo]:
        return self._server.sessions()

    def kick(self, session: str) -> bool:
        return self._server.kick(session)

    # -- called by the server of connections

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
    """The limits of a connection, from the settings."""
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
    """A connection and its messages in flight."""

    __slots__ = (
        "_engine",
        "_in_flight",
        "_is_done",
        "_is_reading_on",
        "_outstanding",
        "_outstanding_bytes",
        "_pages",
        "_series",
        "_session",
        "_waiting",
    )

    def __init__(self, engine: Engine, session: MqSession) -> None:
        self._engine = engine
        self._session = session
        self._outstanding = self._outstanding_bytes = 0
        self._pages = 0
        self._waiting: deque[_MqMessage] = deque()
        self._in_flight: set[_MqMessage] = set()
        self._series: set[_MqMessage] = set()
        self._is_done = False
        self._is_reading_on = False

    def take(self, frames: Message) -> None:
        """Begin a message, or queue it until its turn."""
        size = sum(map(len, frames))
        framed = decode_framed(frames, self._session.frame_bytes_max, size)
        message = _MqMessage(self, framed, size + FIELD_BYTES * framed.fields)
        self._outstanding_bytes += message.size
        if not message.waits:
            self._outstanding += 1
        if not message.enter(self._engine.budget):
            return
        if message.fills_pages:
            self._waiting.append(message)
            self.read_on()
        else:
            self._begin(message)
        if self._is_crowded:
            self._session.hold(Hold.BUSY)

    @property
    def _is_crowded(self) -> bool:
        return (
            self._outstanding >= OUTSTANDING_MAX or self._outstanding_bytes > self._engine.budget.connection_bytes_max
        )

    def read_on(self) -> None:
        """Begin reads whose turn has come."""
        # One may be answered while it begins: then this runs already.
        if self._is_reading_on:
            return
        self._is_reading_on = True
        try:
            for series in list(self._series):
                series.go_on()
            while self._waiting and self._pages < PAGES_MAX and self.may_read:
                message = self._waiting.popleft()
                message.has_page = True
                self._pages += 1
                self._begin(message)
        finally:
            self._is_reading_on = False

    def _begin(self, message: "_MqMessage") -> None:
        message.begin(self._engine, message.framed.present)
        if not message.done:
            self._in_flight.add(message)
            if message.fills_pages and len(message.exchange.requests) > 1:
                self._series.add(message)

    @property
    def may_read(self) -> bool:
        """Whether the peer reads its answers."""
        return not self._session.holds & Hold.UNSENT

    def send(self, framed: Framed, answers: list[Frames]) -> None:
        """Send answers; DoesNotFit instead of one that does not fit."""
        self._engine.metrics.gate_sent[MqGate.name] += len(answers)
        for answer in answers:
            try:
                self._session.send(framed.wrap(answer))
            except FrameTooLong as error:
                self._session.send(framed.refusal(error.size))

    def finished(self, message: "_MqMessage") -> None:
        """A message has all its answers."""
        self._in_flight.discard(message)
        self._series.discard(message)
        self._outstanding_bytes -= message.size
        if not message.waits:
            self._outstanding -= 1
        if message.has_page:
            self._pages -= 1
            self.read_on()
        if self._session.holds & Hold.BUSY and not self._is_crowded:
            self._session.release(Hold.BUSY)
        if self._is_done and not self._outstanding:
            self._session.leave(Why.DONE)

    def peer_is_done(self) -> bool:
        """The peer sends nothing more; whether answers are due. Those of long polls are not."""
        self._is_done = True
        return bool(self._outstanding)

    def abandon(self) -> None:
        """The connection is gone."""
        self._series.clear()
        for message in [*self._waiting, *self._in_flight]:
            message.abandon()
        self._waiting.clear()
        self._in_flight.clear()


class _MqMessage(InFlightMessage):
    """A message of a connection."""

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
        # A long poll must not wait for other messages, nor they for it.
        self.waits = any(getattr(request, "wait_ms", 0) for request in requests)
        self.fills_pages = not self.waits and any(isinstance(request, PAGES) for request in requests)

    def may_go_on(self, begun: int) -> bool:
        """Reads pages as fast as the peer takes them."""
        return not self.fills_pages or (begun < PAGES_MAX and self._peer.may_read)

    def deliver(self, answers: list[Frames], done: bool) -> None:
        self._peer.send(self.framed, answers)
        if done:
            self._peer.finished(self)
