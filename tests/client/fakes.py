"""Servers that misbehave: silent ones, ones that answer as they are told, and a proxy that cuts connections."""

import contextlib
import random
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import zmq

from penstock.client.sync import Portal
from penstock.errors import PenstockError
from penstock.mq import Message, MqLimits, MqServer, MqSession
from penstock.wire.res01.dialects import OWN
from penstock.wire.res01.messages import OWN_LARGE_TAG, join_fields, split_fields

Fields = list[bytes]
Answering = Callable[[Fields], Fields | PenstockError | None]
"""From a request's fields (its command, its id, its payload) to those of its answer, or nothing."""
PATIENT_S = 600.0
"""Longer than a test may take: what fails sooner has not waited."""
COMMITTED = [b"CF", bytes(16), b"1", b"1", b"1", b"0"]


def answering(*answers: Fields | PenstockError | None) -> Answering:
    """One answer after the other, and from then on the last."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


class FakeMq:
    """Takes requests over MqFrames and answers as a function says; an exception in it ends the connection."""

    def __init__(self, answering: Answering, **limits: Any) -> None:
        self.answering = answering
        self.asked: list[Fields] = []
        self.came = threading.Event()
        self._portal = Portal()
        self._server: MqServer = self._portal.run(self._started(MqLimits(linger_ms_max=50, **limits)))
        self.url = f"penstock://127.0.0.1:{self._server.port}"

    async def _started(self, limits: MqLimits) -> MqServer:
        server = MqServer(self._received, limits=limits)
        await server.start("127.0.0.1", 0)
        return server

    def _received(self, session: MqSession, message: Message) -> None:
        tag, *rest = message
        fields = split_fields(rest) if tag == OWN_LARGE_TAG else rest
        if fields[0] == b"HI":
            return
        self.asked.append(fields)
        self.came.set()
        answer = self.answering(fields)
        if isinstance(answer, PenstockError):
            answer = OWN.failed(answer)
        if answer is not None:
            whole = [fields[1], *answer]
            session.send([tag, join_fields(whole)] if tag == OWN_LARGE_TAG else [tag, *whole])

    @property
    def sessions(self) -> int:
        return len(self._server.sessions())

    def drop_all(self) -> None:
        """End all connections, and return when they are gone."""

        async def drop() -> None:
            sessions = [self._server.session(info.id) for info in self._server.sessions()]
            for session in filter(None, sessions):
                session.close()
                await session.gone()

        self._portal.run(drop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._server.stop())
        self._portal.close()


@contextlib.contextmanager
def silent(scheme: str) -> Iterator[str]:
    """The URL of a server that takes everything and answers nothing."""
    if scheme == "penstock":
        with FakeMq(lambda _: None) as fake:
            yield fake.url
        return
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        yield f"zmq+tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"


class Proxy:
    """Between clients and a server: cuts each connection after a number of bytes, in either direction."""

    def __init__(self, port: int, dice: random.Random, bytes_max: int) -> None:
        self._target = port
        self._random = dice
        self._bytes_max = bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._left: dict[socket.socket, int] = {}
        self._peer: dict[socket.socket, socket.socket] = {}
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peer:
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer[one] = other
            self._left[one] = self._random.randrange(1, self._bytes_max)
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        try:
            data = one.recv(65_536)
        except OSError:
            data = b""
        piece = data[: self._left[one]]
        self._left[one] -= len(piece)
        with contextlib.suppress(OSError):
            self._peer[one].sendall(piece)
        if not data or not self._left[one]:
            self.cuts += 1
            self._cut(one)

    def _cut(self, one: socket.socket) -> None:
        for each in (one, self._peer[one]):
            self._selector.unregister(each)
            del self._peer[each], self._left[each]
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wake.send(b"x")
        self._thread.join()
        for each in [*self._peer, self._listener, self._wake, self._woken]:
            each.close()
        self._selector.close()
