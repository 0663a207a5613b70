"""The ZeroMQ gate: Res01 for every peer that speaks ZMTP, on TCP or on a local socket.

It does what a ROUTER socket would do: answers go to the connection that asked, behind the routing frames that the
request came with, so that brokers may stand between. The connections are TCP sessions like those of the other gates:
counted, timed, listed, and not read from while they have too much in flight or do not take their answers.
"""

import socket

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES
from penstock.gates.contract import TCP, bound_socket, remove_file, shown_address
from penstock.gates.in_flight import UNREAD_MS_MAX, Pipeline
from penstock.settings import Settings
from penstock.tcp import TcpLimits, TcpServer, TcpSession, Why
from penstock.wire.res01 import Frames, Unanswerable, decode
from penstock.wire.zmtp import Connection, Limits, Message, Oversize, Ping, Violation


class ZeromqGate(TcpServer["ZmtpSession"]):
    """One endpoint. With `legacy`, AC is answered with the older results."""

    def __init__(self, engine: Engine, endpoint: str, *, legacy: bool = False) -> None:
        super().__init__("res-legacy" if legacy else "res", limits_of(engine.settings))
        self.address = endpoint
        self.engine = engine
        self.legacy = legacy

    async def start(self) -> None:
        """Listen."""
        bound = await bound_socket(self.name, self.address, insecure=self.engine.settings.insecure)
        # A peer that lost its power says nothing; the system finds out. Connections inherit this.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.address = shown_address(bound) if bound.family == socket.AF_UNIX else TCP + shown_address(bound)
        await self.listen(bound)

    async def stop(self) -> None:
        """Send what is left to send, close, and remove the file of a local socket."""
        await super().stop()
        remove_file(self.address)

    def new_session(self) -> "ZmtpSession":
        """A session on the engine."""
        return ZmtpSession(self)

    def opened(self, session: "ZmtpSession") -> None:
        """Keep it, or refuse it."""
        super().opened(session)
        self.engine.metrics.gate_sessions[self.name] = len(self._sessions)

    def closed(self, session: "ZmtpSession") -> None:
        """Forget it."""
        super().closed(session)
        self.engine.metrics.gate_sessions[self.name] = len(self._sessions)
        self.engine.metrics.gate_closed[self.name, session.ended or Why.LOST] += 1


def limits_of(settings: Settings) -> TcpLimits:
    """The limits of a connection, from the settings."""
    usual, idle_ms_max = TcpLimits(), settings.res_idle_ms_max
    return TcpLimits(
        connections_max=settings.res_connections_max,
        connections_per_address_max=settings.res_connections_per_address_max,
        idle_ms_max=idle_ms_max,
        # A client may be silent for long between requests, but not within one, nor while answers wait for it.
        message_ms_max=min(idle_ms_max, usual.message_ms_max),
        stall_ms_max=min(idle_ms_max, usual.stall_ms_max),
        unsent_bytes_max=settings.res_unsent_bytes_max,
        unread_ms_max=UNREAD_MS_MAX,
    )


class ZmtpSession(TcpSession):
    """One connection of a REQ, DEALER or ROUTER socket."""

    def __init__(self, gate: ZeromqGate) -> None:
        super().__init__(gate.limits, gate)
        settings = gate.engine.settings
        self._gate = gate
        self._metrics = gate.engine.metrics
        self._connection = Connection(
            Limits(settings.res_frame_bytes_max, settings.res_message_bytes_max, settings.res_message_frames_max)
        )
        self._pipeline = Pipeline(gate.engine, self, settings.res_unread_max)
        self._handshake_s_max = settings.res_handshake_ms_max / 1000
        self._ttl_s = 0.0
        self._is_pinged = False

    # -- requests

    def opened(self) -> None:
        """Say the first part of the greeting, and nothing with it."""
        self.write(self._connection.data_to_send())
        self._flush()

    def received(self, data: bytes) -> int:
        """Begin what the peer asks for; end the connection if it breaks a rule."""
        events = self._connection.receive(data)
        if said := self._connection.data_to_send():
            self.write(said)
        self._is_pinged = False
        for event in events:
            if isinstance(event, list):
                self._take(event)
            elif isinstance(event, Ping):
                self._ttl_s = event.ttl_ms / 1000
            elif isinstance(event, Oversize):
                self._refuse(event)
            elif isinstance(event, Violation):
                self.end(f"protocol error: {event.what}")
        return self._connection.pending_bytes

    def _take(self, frames: Message) -> None:
        if not self._gate.is_accepting:
            return
        self.messages_received += 1
        self._metrics.gate_received[self._gate.name] += 1
        try:
            exchange = decode(frames, legacy=self._gate.legacy)
        except Unanswerable:
            self._metrics.gate_dropped[self._gate.name, "unanswerable"] += 1
            return
        size = sum(map(len, frames)) + FIELD_BYTES * len(frames)
        self._pipeline.take(exchange, size, exchange.present, self._send)

    def _refuse(self, oversize: Oversize) -> None:
        """Answer a message that is too large, as far as its head tells to what, and end the connection."""
        try:
            self._send([decode(oversize.head, legacy=self._gate.legacy).failed(oversize.error)])
        except Unanswerable:
            self._metrics.gate_dropped[self._gate.name, "unanswerable"] += 1
        self.end(f"a message was over res_{oversize.error.limit}, which is {oversize.error.maximum}")

    # -- answers

    def _send(self, answers: list[Frames]) -> None:
        if self.ended is not None:
            self._metrics.gate_dropped[self._gate.name, "gone"] += len(answers)
            return
        self._metrics.gate_sent[self._gate.name] += len(answers)
        self.messages_sent += len(answers)
        for answer in answers:
            self._out += self._connection.send(answer)
        self.flush_soon()

    def resume_writing(self) -> None:
        """The peer has taken most of what waited for it."""
        super().resume_writing()
        if self.ended is None:
            self._pipeline.read_on()

    # -- time, and the end

    def check(self, now: float) -> None:
        """End it if something takes too long. A peer that is silent and knows PING gets one in time."""
        super().check(now)
        if self.ended is not None or self.holds:
            return
        silent_s = now - self._last_seen
        if not self._connection.is_ready:
            if now - self._opened > self._handshake_s_max:
                self.end(f"the handshake took more than res_handshake_ms_max, {1000 * self._handshake_s_max:.0f} ms")
        elif self._ttl_s and silent_s > self._ttl_s:
            self.end("no byte came within the time that the peer's PING named")
        elif silent_s > self._limits.idle_ms_max / 2000 and not self._is_pinged:
            self._is_pinged = True
            self.write(self._connection.ping())

    def has_due(self) -> bool:
        """The peer sends nothing more. It gets the answers that it has asked for."""
        return self._pipeline.peer_is_done()

    def forget(self) -> None:
        """Drop an unfinished request."""
        self._connection.forget()

    def lost(self) -> None:
        """Give up what only reads or waits."""
        self._pipeline.abandon()
