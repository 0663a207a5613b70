"""A server's ZeroMQ gate: `zmq+tcp://host:port`.

ZeroMQ reconnects on its own and then loses requests silently. So each socket here connects once, and a monitor socket
reports the end of its connection.
"""

import asyncio
import socket
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.client.curve import CurveOptions, handshake_error
from penstock.client.hosts import Host, Hosts
from penstock.client.tokens import TokenRequest
from penstock.client.transport import Link, NetworkTransport, encoded_fields
from penstock.errors import CannotConnect, ConnectionLost, LimitExceeded, PenstockError, TlsFailed
from penstock.model import Request
from penstock.wire.res01.dialects import OWN_TAG

MESSAGES_PER_TURN_MAX: Final = 256
"""Answers read before other tasks of the event loop run."""
UNSENT_MAX: Final = 10_000
"""Requests, or answers, that ZeroMQ may queue."""
FRAME_BYTES_MAX: Final = 16 << 20
"""Bytes of one frame of a request: what a server accepts by default."""
HEARTBEAT_MS: Final = 15_000
SILENCE_MS_MAX: Final = 60_000
"""How long a server may be silent before its connection counts as lost."""
LOOK_S: Final = 0.01

_ENDS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.SNDHWM: UNSENT_MAX,
    zmq.RCVHWM: UNSENT_MAX,
    # Longer than a socket lives without its connection. Not "never", and not with IMMEDIATE: then ZeroMQ drops what
    # has arrived between two frames of a message, and aborts the process when the client reads the second one.
    zmq.RECONNECT_IVL: 3_600_000,
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
    zmq.HEARTBEAT_TIMEOUT: SILENCE_MS_MAX,
    zmq.IPV6: 1,
}


class ZeromqTransport(NetworkTransport):
    """A DEALER socket for each connection."""

    _context: "zmq.Context[zmq.Socket[bytes]] | None" = None

    def __init__(self, hosts: Hosts, token: TokenRequest | None = None, curve: CurveOptions | None = None) -> None:
        super().__init__(hosts, token)
        self.curve = curve

    async def connect(self, host: Host) -> Link:
        """Connect to the first of the host's addresses that answers."""
        loop = asyncio.get_running_loop()
        if self._context is None:
            self._context = zmq.Context()
        found = await loop.getaddrinfo(host.name, host.port, type=socket.SOCK_STREAM)
        keys = {} if self.curve is None else self.curve.keys(host.url)
        error: CannotConnect | None = None
        for place in dict.fromkeys(str(address[0]) for *_, address in found):
            link = ZeromqLink(self, host, self._context, keys)
            try:
                await link.connect(f"tcp://{host._replace(name=place)}")
            except CannotConnect as failed:
                error = failed
            else:
                return link
        raise error or CannotConnect(host.url, "its host has no address")

    async def close(self) -> None:
        await super().close()
        if self._context is not None:
            self._context.term()
            self._context = None


class ZeromqLink(Link):
    """One socket, which connects once."""

    def __init__(
        self,
        transport: ZeromqTransport,
        host: Host,
        context: "zmq.Context[zmq.Socket[bytes]]",
        keys: dict[int, bytes],
    ) -> None:
        super().__init__(host)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        for key_option, key in keys.items():
            self._socket.setsockopt(key_option, key)
        self._monitor = self._socket.get_monitor_socket(_ENDS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._watched: list[int] = [self._socket.FD, self._monitor.FD]
        self._connected: asyncio.Future[CannotConnect | TlsFailed | None] = self._loop.create_future()
        """None, or the error."""
        self._turn_is_due = False
        self._open = False
        self._closed = False
        for descriptor, turn in zip(self._watched, (self._take_turn, self._look), strict=True):
            self._loop.add_reader(descriptor, turn)

    @property
    def is_open(self) -> bool:
        return self._open

    async def connect(self, endpoint: str) -> None:
        try:
            self._socket.connect(endpoint)
            self._look()
            if (failed := await self._connected) is not None:
                raise failed
        except zmq.ZMQError as error:
            self._release()
            raise CannotConnect(self.url, str(error).lower()) from None
        except BaseException:
            self._release()
            raise

    async def room(self) -> None:
        while self._open and not self._socket.poll(0, zmq.POLLOUT):  # noqa: ASYNC110
            # ZeroMQ has no better way to report that there is room again.
            await asyncio.sleep(LOOK_S)
        # The poll may have consumed the descriptor's signal that something arrived.
        self._soon()

    def send(self, request: Request, number: bytes) -> None:
        command, *payload = encoded_fields(request)
        fields = [command, number, *payload]
        longest = max(map(len, fields))
        if longest > FRAME_BYTES_MAX:
            raise LimitExceeded("res_frame_bytes_max", longest, FRAME_BYTES_MAX)
        try:
            self._socket.send_multipart([b"", OWN_TAG, *fields], zmq.NOBLOCK)
        except zmq.Again:
            raise CannotConnect(self.url, "there is no connection") from None
        self._soon()

    def end(self) -> None:
        self._release()
        self._transport.gone(self)

    async def close(self) -> None:
        self._release()

    def ended(self) -> PenstockError:
        return super().ended() if self._closed else ConnectionLost(self.url, "the server closed it, or is gone")

    def _release(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._open = False
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

    # -- what the connection does

    def _look(self) -> None:
        """Read all reports: the descriptor signals only once."""
        try:
            while not self._closed:
                report = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                event = report["event"]
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._open = True
                    if not self._connected.done():
                        self._connected.set_result(None)
                elif event & _ENDS:
                    self._end(int(event), int(report["value"]))
        except zmq.Again:
            return

    def _end(self, event: int, value: int) -> None:
        if not self._connected.done():
            failed = handshake_error(self.url, event, value, has_curve=self._transport.curve is not None)
            self._connected.set_result(failed or CannotConnect(self.url, "no server listens there"))
        if self._open:
            # Answers that arrived before the end still count.
            self._take_turn()
            self._open = False
            self._transport.gone(self)
            self._release()

    # -- answers

    def _soon(self) -> None:
        """Read in the next turn: sending may have consumed the descriptor's signal that something arrived."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        if self._closed:
            return
        try:
            for _ in range(MESSAGES_PER_TURN_MAX):
                message = self._socket.recv_multipart(zmq.NOBLOCK)
                if len(message) > 2:
                    self.pending.receive(message[2], message[3:])
        except zmq.Again:
            return
        self._soon()
