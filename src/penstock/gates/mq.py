"""The MQ gate: Res01 and Res01L in MqFrames over TCP, for every language that has a socket.

Many requests may be in flight on a connection (`penstock.gates.in_flight.Pipeline`). The gate sends each answer when it
is ready, and all answers of one turn of the loop in one write.
"""

from functools import partial

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES
from penstock.gates.contract import bound_socket, shown_address
from penstock.gates.in_flight import UNREAD_MS_MAX, Pipeline
from penstock.mq import Ending, FrameTooLong, Message, MqLimits, MqServer, MqSession, SessionInfo
from penstock.settings import Settings
from penstock.wire.res01 import Frames
from penstock.wire.res01.messages import Framed, decode_framed


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
        session.data = Pipeline(self._engine, session)

    def _received(self, session: MqSession, message: Message) -> None:
        if self._accepting:
            self._metrics.gate_received[self.name] += 1
            size = sum(map(len, message))
            framed = decode_framed(message, session.frame_bytes_max, size)
            size += FIELD_BYTES * framed.fields
            session.data.take(framed.exchange, size, framed.present, partial(self._send, session, framed))

    def _send(self, session: MqSession, framed: Framed, answers: list[Frames]) -> None:
        """Send answers; DoesNotFit instead of one that does not fit."""
        self._metrics.gate_sent[self.name] += len(answers)
        for answer in answers:
            try:
                session.send(framed.wrap(answer))
            except FrameTooLong as error:
                session.send(framed.refusal(error.size))

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
