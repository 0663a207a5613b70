"""The ZeroMQ gate: Res01 for every peer that speaks ZMTP, on TCP or on a local socket.

It works like a ROUTER socket: answers go to the connection of the request, after the routing frames of the request, so
that brokers may stand between. The connections are TCP sessions like those of the other gates: counted, timed and
listed. The gate stops reading from a connection that has too much in flight or does not read its answers.
"""

import logging
import socket
from pathlib import Path
from typing import NamedTuple

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES
from penstock.errors import CannotListen
from penstock.files import read_secret
from penstock.gates.contract import (
    TCP,
    TcpGate,
    bound_socket,
    check_fixed,
    exposed,
    limits_of,
    remove_file,
    shown_address,
)
from penstock.gates.in_flight import UNREAD_MS_MAX, Pipeline
from penstock.model import CredentialKind
from penstock.tcp import TcpSession
from penstock.wire.curve import Curve, key_of, key_text, public_key
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import Exchange, Unanswerable, decode
from penstock.wire.zmtp import Connection, Limits, Message, Oversize, Ping, Violation

log = logging.getLogger(__name__)

ENCRYPT: str = "--curve-secret-key FILE, a file that penstock access curve-keygen makes"


class Keys(NamedTuple):
    """The key pair of the server."""

    secret: bytes
    public: bytes


class ZeromqGate(TcpGate["ZmtpSession"]):
    """One endpoint. With `legacy`, AC gets the older results."""

    def __init__(self, engine: Engine, endpoint: str, *, legacy: bool = False) -> None:
        unsent_bytes_max = engine.settings.res_unsent_bytes_max
        limits = limits_of(engine.settings, "res", unsent_bytes_max=unsent_bytes_max, unread_ms_max=UNREAD_MS_MAX)
        super().__init__("res-legacy" if legacy else "res", limits, engine, endpoint)
        self.legacy = legacy
        self.keys: Keys | None = None
        """Without them the gate speaks in plain text."""

    async def start(self) -> None:
        check_fixed(self.engine, self.name, self.address)
        if (path := self.engine.settings.curve_secret_key) is not None:
            self.keys = _read_keys(self.name, self.address, path)
        reason = exposed(self.engine, ENCRYPT, is_encrypted=self.keys is not None)
        bound = await bound_socket(self.name, self.address, reason)
        # A peer that lost its power sends nothing; the system finds out. Connections inherit this.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.address = shown_address(bound) if bound.family == socket.AF_UNIX else TCP + shown_address(bound)
        await self.listen(bound)
        if self.keys is not None:
            log.info("the gate %s speaks CURVE; its public key is %s", self.name, key_text(self.keys.public))

    async def stop(self) -> None:
        """Send the last answers, close, and remove the file of a local socket."""
        await super().stop()
        remove_file(self.address)

    def new_session(self) -> "ZmtpSession":
        return ZmtpSession(self)


def _read_keys(gate: str, address: str, path: Path) -> Keys:
    try:
        secret = key_of(read_secret(path).strip())
    except OSError as error:
        raise CannotListen(
            gate, address, f"curve_secret_key: {path}: {(error.strerror or str(error)).lower()}"
        ) from None
    except ValueError as error:
        raise CannotListen(gate, address, f"curve_secret_key: {path} {error}") from None
    return Keys(secret, public_key(secret))


class ZmtpSession(TcpSession):
    """One connection of a REQ, DEALER or ROUTER socket."""

    may_have_tls = False

    def __init__(self, gate: ZeromqGate) -> None:
        super().__init__(gate.limits, gate)
        settings = gate.engine.settings
        self._gate = gate
        self._metrics = gate.engine.metrics
        self._connection = Connection(
            Limits(settings.res_frame_bytes_max, settings.res_message_bytes_max, settings.res_message_frames_max),
            None if gate.keys is None else Curve(gate.keys.secret, gate.keys.public, self._admit),
        )
        self._pipeline = Pipeline(gate.engine, self, gate.traffic, self._answer, settings.res_unread_max)
        self._is_known_only = settings.curve_known_only
        self._handshake_s_max = settings.res_handshake_ms_max / 1000
        self._ttl_s = 0.0
        self._is_pinged = False

    # -- requests

    def opened(self) -> None:
        """Send the first part of the greeting alone."""
        self.write(self._connection.data_to_send())
        self.flush()

    def received(self, data: bytes) -> int:
        """Begin the peer's requests; end the connection if it violates the protocol."""
        events = self._connection.receive(data)
        if answer := self._connection.data_to_send():
            self.write(answer)
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

    def _admit(self, key: bytes) -> bool:
        """The client has shown that a key is its own. One that stands for no principal may still send a token."""
        return self._pipeline.logins.secured([f"{CredentialKind.CURVE}:{key_text(key)}"]) or not self._is_known_only

    def _take(self, frames: Message) -> None:
        if not self._gate.is_accepting:
            return
        self.messages_received += 1
        self._metrics.gate_received[self._gate.name] += 1
        size = sum(map(len, frames))
        try:
            exchange = decode(frames, legacy=self._gate.legacy, size=size)
        except Unanswerable:
            self._metrics.gate_dropped[self._gate.name, "unanswerable"] += 1
            return
        self._pipeline.take(exchange, size + FIELD_BYTES * len(frames), exchange)

    def _refuse(self, oversize: Oversize) -> None:
        """Answer a message that is too large, if its head is readable, and end the connection."""
        try:
            exchange = decode(oversize.head, legacy=self._gate.legacy)
            self._answer(exchange, [exchange.failed(oversize.error)])
        except Unanswerable:
            self._metrics.gate_dropped[self._gate.name, "unanswerable"] += 1
        self.end(f"a message was over res_{oversize.error.limit}, which is {oversize.error.maximum}")

    # -- answers

    def _answer(self, _exchange: Exchange, answers: list[Frames]) -> None:
        if self.ended is not None:
            self._metrics.gate_dropped[self._gate.name, "gone"] += len(answers)
            return
        self._metrics.gate_sent[self._gate.name] += len(answers)
        self.messages_sent += len(answers)
        for answer in answers:
            self._out += self._connection.send(answer)
        self.flush_soon(now=self._pipeline.is_alone)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.ended is None:
            self._pipeline.read_on()

    # -- time, and the end

    def check(self, now: float) -> None:
        """End it if a time limit has passed. Ping a silent peer that knows PING before that."""
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
        """The peer sends nothing more. It still gets its answers."""
        return self._pipeline.peer_is_done()

    def forget(self) -> None:
        self._connection.forget()

    def lost(self) -> None:
        self._pipeline.abandon()
