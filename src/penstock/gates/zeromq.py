"""The ZeroMQ gate: Res01 on a ROUTER socket, driven by the event loop.

ZeroMQ's own descriptor says only that something may have changed, so the socket is drained whenever it does, and
looked at again after every send. At most so many messages are taken per turn: the other gates have turns too. Nothing
here waits: an answer that cannot be sent now, to a client that is gone or does not read, is dropped and counted.

ZeroMQ reads some messages ahead from every client, whatever their size, and a client cannot be held by itself. So
messages are always taken, and a client that has too many bytes under way is answered busy.
"""

import asyncio
import logging
import socket
from collections import deque
from pathlib import Path
from typing import Final

import zmq

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES
from penstock.errors import CannotListen, LimitExceeded
from penstock.gates.addresses import check_loopback
from penstock.gates.carrying import Carrying
from penstock.wire.res01 import Exchange, Frames, Unanswerable, decode

log = logging.getLogger(__name__)

AHEAD_MAX: Final = 64
"""Messages that ZeroMQ reads ahead from one client. It counts no bytes; a larger number is not faster."""
MESSAGES_PER_TURN_MAX: Final = 256
"""Messages taken before the other gates get their turn."""
FRAMES_PER_TURN_MAX: Final = 10_000
"""Frames of one message taken before the other gates get their turn."""
MESSAGE_FRAMES_MAX: Final = 250_000
"""Frames of one message. Of a longer one only the head is kept, to answer it."""
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one message; the gate refuses a longer one."""
HEAD_FRAMES: Final = 1000
DONT_WAIT: Final = int(zmq.NOBLOCK)
DONT_WAIT_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: putting flags together takes longer than sending a frame."""
LARGE_BYTES_MIN: Final = 64 * 1024
"""Answers from this size on are followed until ZeroMQ has let go of them; of smaller ones only the number counts."""
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of large answers that ZeroMQ may hold for one client; while there are more, the next ones are dropped."""
UNREAD_BYTES_TOTAL_MAX: Final = 512 * 1024 * 1024
"""Bytes of large answers that ZeroMQ may hold for all clients. Above this it holds one of them for each client."""
LINGER_MS: Final = 1000
"""How long a close waits for clients to take their last answers."""


class ZeromqGate:
    """One endpoint. With `legacy`, AC is answered with the older results."""

    def __init__(self, engine: Engine, endpoint: str, *, legacy: bool = False) -> None:
        self.name = "res-legacy" if legacy else "res"
        self.address = endpoint
        self._engine = engine
        self._metrics = engine.metrics
        self._legacy = legacy
        self._outbox: deque[list[bytes]] = deque()
        self._held = _Held()
        self._under_way: dict[bytes, int] = {}
        self._part: list[bytes] = []
        self._cut = 0
        self._accepting = False
        self._turn_is_due = False

    # -- starting and stopping

    async def start(self) -> None:
        """Bind and listen."""
        scheme, _, place = self.address.partition("://")
        if scheme == "tcp":
            await check_loopback(self.name, place, insecure=self._engine.settings.insecure)
        elif _is_taken(place):
            # ZeroMQ would take the path from whoever listens there.
            raise CannotListen(self.name, self.address, "address already in use")
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._bound(place)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._accepting = True
        self._descriptor: int = self._socket.FD
        self._loop.add_reader(self._descriptor, self._take_turn)
        self._soon()

    def _bound(self, place: str) -> zmq.Socket[bytes]:
        settings = self._engine.settings
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.MAXMSGSIZE, settings.res_frame_bytes_max)
        router.setsockopt(zmq.SNDHWM, settings.res_unread_max)
        router.setsockopt(zmq.RCVHWM, AHEAD_MAX)
        router.setsockopt(zmq.LINGER, LINGER_MS)
        # A peer that lost its power says nothing; the system finds out.
        router.setsockopt(zmq.TCP_KEEPALIVE, 1)
        router.setsockopt(zmq.IPV6, int(place.startswith("[")))
        try:
            router.bind(self.address)
        except zmq.ZMQError as error:
            router.close(0)
            self._context.term()
            raise CannotListen(self.name, self.address, zmq.strerror(error.errno or 0).lower()) from error
        return router

    def refuse(self) -> None:
        """Take no more messages."""
        self._accepting = False

    async def stop(self) -> None:
        """Send what is left to send, and close."""
        self.refuse()
        self._loop.remove_reader(self._descriptor)
        self._send_all()
        self._socket.close(LINGER_MS)
        # Waits for the last answers to be taken, at most as long as the socket lingers.
        await self._loop.run_in_executor(None, self._context.term)
        self._remove_file()

    def _remove_file(self) -> None:
        """ZeroMQ leaves the file of a local socket behind."""
        scheme, _, place = self.address.partition("://")
        if scheme == "ipc":
            Path(place).unlink(missing_ok=True)

    # -- turns

    def _soon(self) -> None:
        """Have another turn once everyone else had theirs."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        self._send_all()
        # Always look after sending: that may have taken the descriptor's signal that something arrived.
        if not self._accepting or not self._receive():
            return
        self._soon()

    def _receive(self) -> bool:
        """Take what is there, at most one turn's worth; whether there may be more."""
        taken = 0
        try:
            while taken < MESSAGES_PER_TURN_MAX:
                frames = self._message()
                if frames is None:
                    return True
                taken += 1
                if self._cut:
                    self._refuse_length(frames)
                elif (size := sum(map(len, frames))) > MESSAGE_BYTES_MAX:
                    self._refuse(frames, LimitExceeded("message_bytes_max", size, MESSAGE_BYTES_MAX))
                else:
                    self._begin(frames, size + FIELD_BYTES * len(frames))
        except zmq.Again:
            return False
        finally:
            self._metrics.gate_received[self.name] += taken
        return True

    def _message(self) -> list[bytes] | None:
        """The next message; None if it is so long that others come first. Raises Again when there is none."""
        # Asking a frame whether more follow is cheaper than asking the socket; see bench/res01.py.
        receive, part = self._socket.recv, self._part
        for _ in range(FRAMES_PER_TURN_MAX):
            frame = receive(DONT_WAIT, copy=False)
            part.append(frame.bytes)
            if not frame.more:
                self._part = []
                return part
        if self._cut or len(part) > MESSAGE_FRAMES_MAX:
            self._cut += len(part) - HEAD_FRAMES
            del part[HEAD_FRAMES:]
        return None

    def _refuse_length(self, head: list[bytes]) -> None:
        length, self._cut = self._cut + len(head), 0
        self._refuse(head, LimitExceeded("message_frames_max", length, MESSAGE_FRAMES_MAX))

    def _refuse(self, head: list[bytes], error: LimitExceeded) -> None:
        """Answer a message that is too long, given at least its head."""
        try:
            exchange = decode(head[:HEAD_FRAMES], legacy=self._legacy)
        except Unanswerable:
            self._metrics.gate_dropped[self.name, "unanswerable"] += 1
            return
        self._outbox.append(exchange.failed(error))
        self._soon()

    def _begin(self, frames: list[bytes], size: int) -> None:
        try:
            exchange = decode(frames, legacy=self._legacy)
        except Unanswerable:
            self._metrics.gate_dropped[self.name, "unanswerable"] += 1
            return
        except Exception:
            # The codec promises that there is no other. If it is wrong, the turn goes on all the same.
            log.exception("a message could not be decoded")
            self._metrics.gate_dropped[self.name, "undecoded"] += 1
            return
        client, budget = frames[0], self._engine.budget
        message = _Message(self, exchange, size, client)
        before = self._under_way.get(client, 0)
        self._under_way[client] = before + size
        if message.enter(budget, has_room=not before or before + size <= budget.client_bytes_max):
            message.begin(self._engine, exchange.present)

    # -- answers

    def deliver(self, answers: list[Frames]) -> None:
        """Send answers, with the others of this turn."""
        self._outbox += answers
        self._soon()

    def finished(self, client: bytes, size: int) -> None:
        """A message of a client has all its answers."""
        left = self._under_way[client] - size
        if left:
            self._under_way[client] = left
        else:
            del self._under_way[client]

    def _send_all(self) -> None:
        outbox = self._outbox
        sent = 0
        while outbox:
            try:
                self._send(outbox.popleft())
                sent += 1
            except zmq.Again:
                self._metrics.gate_dropped[self.name, "unread"] += 1
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    log.warning("an answer could not be sent: %s", error)
                self._metrics.gate_dropped[self.name, "gone"] += 1
        self._metrics.gate_sent[self.name] += sent

    def _send(self, frames: list[bytes]) -> None:
        """Hand an answer to ZeroMQ; raises Again if its client has too much waiting."""
        size = sum(map(len, frames))
        if size < LARGE_BYTES_MIN:
            send = self._socket.send
            for frame in frames[:-1]:
                send(frame, DONT_WAIT_MORE)
            send(frames[-1], DONT_WAIT)
            return
        client = frames[0]
        held = self._held.bytes_for(client)
        if held and (held + size > UNREAD_BYTES_MAX or self._held.total + size > UNREAD_BYTES_TOTAL_MAX):
            raise zmq.Again
        # Frames leave in order: when the last one is gone, all are.
        last = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
        self._socket.send_multipart([*frames[:-1], last], zmq.NOBLOCK)
        self._held.add(client, last.tracker, size)


class _Message(Carrying):
    """A message that is under way."""

    __slots__ = ("_client", "_gate")

    def __init__(self, gate: ZeromqGate, exchange: Exchange, size: int, client: bytes) -> None:
        super().__init__(exchange, size)
        self._gate = gate
        self._client = client

    def deliver(self, answers: list[Frames], done: bool) -> None:
        """Hand them to the gate."""
        self._gate.deliver(answers)
        if done:
            self._gate.finished(self._client, self.size)


def _is_taken(path: str) -> bool:
    """Whether somebody listens on a local socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class _Held:
    """Large answers that ZeroMQ has not let go of yet, by client. Its own high-water mark counts messages only."""

    def __init__(self) -> None:
        self.total = 0
        self._by_client: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}

    def bytes_for(self, client: bytes) -> int:
        """How much a client has waiting."""
        self._forget_what_is_gone()
        return sum(size for _, size in self._by_client.get(client, ()))

    def add(self, client: bytes, tracker: zmq.MessageTracker, size: int) -> None:
        """Follow an answer."""
        self.total += size
        self._by_client.setdefault(client, deque()).append((tracker, size))

    def _forget_what_is_gone(self) -> None:
        for client, answers in list(self._by_client.items()):
            while answers and answers[0][0].done:
                self.total -= answers.popleft()[1]
            if not answers:
                del self._by_client[client]
