"""To a server's ZeroMQ gate: `zmq+tcp://host:port`.

ZeroMQ connects and connects anew by itself, and says nothing when it cannot: a request to nobody is answered by
nobody, until its time is up.
"""

import asyncio
from typing import Final

import zmq

from penstock.client.transport import Answer, Transport
from penstock.client.waiting import Waiting
from penstock.errors import CannotConnect, ClientClosed, ConnectionLost
from penstock.model import Request
from penstock.wire.res01.asking import message_of

MESSAGES_PER_TURN_MAX: Final = 256
"""Answers taken before others on the event loop have their turn."""
UNSENT_MAX: Final = 10_000
"""Requests that ZeroMQ keeps while there is no server."""
LOOK_S: Final = 0.01


class ZeromqTransport(Transport):
    """A DEALER socket."""

    is_silent = True

    def __init__(self, url: str, endpoint: str) -> None:
        self.url = url
        self._endpoint = endpoint
        self._waiting = Waiting(url)
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, UNSENT_MAX)
        self._socket.setsockopt(zmq.RCVHWM, UNSENT_MAX)
        # While nobody is there, requests are refused instead of kept for whoever comes.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._descriptor: int = self._socket.FD
        self._turn_is_due = False
        self._connected = False
        self._closed = False
        self._loop.add_reader(self._descriptor, self._take_turn)

    async def ready(self, seconds: float) -> None:
        """Wait until requests can be sent."""
        if self._closed:
            raise ClientClosed
        if not self._connected:
            self._socket.connect(self._endpoint)
            self._connected = True
        until = self._loop.time() + seconds
        while not self._can_send():
            if self._loop.time() > until:
                raise CannotConnect(self.url, "nobody answers")
            await asyncio.sleep(LOOK_S)
        self._soon()

    def _can_send(self) -> bool:
        return bool(self._socket.poll(0, zmq.POLLOUT))

    def start(self, request: Request) -> Answer:
        """Send a request with those that are under way."""
        if self._closed:
            raise ClientClosed
        number, answer = self._waiting.add(request)
        try:
            self._socket.send_multipart([b"", *message_of(request, number)], zmq.NOBLOCK)
        except zmq.Again:
            self._waiting.forget(number)
            raise ConnectionLost(self.url, "there is no connection") from None
        self._soon()
        return answer

    async def close(self) -> None:
        """Close the socket."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)
        self._context.term()
        self._waiting.lost("the client was closed")

    # -- answers

    def _soon(self) -> None:
        """Look again in the next turn: sending may have taken the descriptor's signal that something arrived."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        if self._closed:
            return
        try:
            for _ in range(MESSAGES_PER_TURN_MAX):
                _, _, number, *payload = self._socket.recv_multipart(zmq.NOBLOCK)
                self._waiting.answered(number, payload)
        except zmq.Again:
            return
        self._soon()
