"""The MQ gate: Res01 and Res01L in MqFrames over TCP, for every language that has a socket.

Many requests may be in flight on a connection (`penstock.gates.in_flight.Pipeline`). The gate sends each answer when it
is ready, and all answers of one turn of the loop in one write.
"""

from functools import partial

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES
from penstock.gates.contract import TcpGate
from penstock.gates.in_flight import UNREAD_MS_MAX, Pipeline
from penstock.gates.tls import ServerTls, certificate_ids
from penstock.mq import Ending, FrameTooLong, Message, MqLimits, MqSession
from penstock.mq.session import Handlers
from penstock.settings import Settings
from penstock.tcp import CloseReason
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import Framed, decode_framed


class MqGate(TcpGate[MqSession]):
    def __init__(self, engine: Engine, address: str, tls: ServerTls | None = None) -> None:
        self._mq_limits = limits_of(engine.settings)
        super().__init__("mq", self._mq_limits, engine, address, tls)
        self._handlers = Handlers(
            self._received,
            connect=self._connected,
            close=self._abandon,
            room=lambda session: session.data.read_on(),
            due=lambda session: session.data.peer_is_done(),
        )

    def new_session(self) -> MqSession:
        return MqSession(self._mq_limits, self._handlers, self)

    def _connected(self, session: MqSession) -> None:
        session.data = Pipeline(self.engine, session, self.traffic, partial(self._send, session))
        session.data.logins.secured(certificate_ids(session.tls))

    def _received(self, session: MqSession, message: Message) -> None:
        if self.is_accepting:
            self.engine.metrics.gate_received[self.name] += 1
            size = sum(map(len, message))
            framed = decode_framed(message, session.frame_bytes_max, size)
            session.data.take(framed.exchange, size + FIELD_BYTES * framed.fields, framed)

    def _send(self, session: MqSession, framed: Framed, answers: list[Frames]) -> None:
        """Send answers; DoesNotFit instead of one that does not fit."""
        self.engine.metrics.gate_sent[self.name] += len(answers)
        now = session.data.is_alone
        for answer in answers:
            try:
                session.send(framed.wrap(answer), now=now)
            except FrameTooLong as error:
                session.send(framed.refusal(error.size), now=now)

    def _abandon(self, session: MqSession, _ending: Ending) -> None:
        if session.data is not None:
            session.data.abandon()

    def reason_of(self, session: MqSession) -> str:
        ending = session.ending
        return CloseReason.LOST if ending is None else ending.reason.words


def limits_of(settings: Settings) -> MqLimits:
    return MqLimits(
        connections_max=settings.mq_connections_max,
        connections_per_address_max=settings.mq_connections_per_address_max,
        idle_ms_max=settings.mq_idle_ms_max,
        message_ms_max=settings.mq_idle_ms_max,
        stall_ms_max=settings.mq_idle_ms_max,
        handshake_ms_max=settings.tls_handshake_ms_max,
        message_bytes_max=settings.mq_message_bytes_max,
        unsent_bytes_max=settings.mq_unsent_bytes_max,
        unread_ms_max=UNREAD_MS_MAX,
    )
