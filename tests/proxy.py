"""A TCP proxy that cuts the conversation at a chosen byte, as a network would."""

import socket
import threading
from types import TracebackType
from typing import Final, Self

CHUNK_BYTES: Final = 65_536
ASKED: Final = "asked"
"""What the client sends."""
ANSWERED: Final = "answered"
"""What the server sends."""


class Proxy:
    """Carries connections to a port of loopback. Once armed, it cuts all of them after so many more bytes one way."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._way: str | None = None
        self._left = 0
        self.is_refusing = False
        """Whether new connections are cut at once."""
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: object, *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def arm(self, way: str, offset: int) -> None:
        """Cut after so many more bytes that go one way."""
        with self._lock:
            self._way, self._left = way, offset

    def disarm(self) -> bool:
        """Cut no more; whether it has not cut yet."""
        with self._lock:
            was_armed, self._way = self._way is not None, None
            return was_armed

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.is_refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            self._start(self._carry, client, server, ASKED)
            self._start(self._carry, server, client, ANSWERED)

    def _carry(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                with self._lock:
                    kept, is_cut = self._judge(way, data)
                target.sendall(kept)
                if is_cut:
                    self.cut()
                    return
        except OSError:
            pass
        # One end has gone: so does the other.
        for each in (source, target):
            _end(each)

    def _judge(self, way: str, data: bytes) -> tuple[bytes, bool]:
        if self._way != way:
            return data, False
        if len(data) < self._left:
            self._left -= len(data)
            return data, False
        self._way = None
        return data[: self._left], True

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _end(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._listening)
        self.cut()
        for thread in self._threads:
            thread.join()


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        one.close()
