"""A TCP socket with deadlines, for calls that block. No wait is so long that an interrupt before it goes unnoticed."""

import errno
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Self

from penstock.errors import ClientClosed
from penstock.interrupts import NOTICE_S_MAX

RECEIVED_BYTES_MAX: Final = 1 << 16
"""Bytes that are read at once."""
RECORD_BYTES_MAX: Final = 1 << 14
"""Plain bytes of one TLS record."""


class Stream:
    """The bytes of a TCP connection. Only `connect` and the two waits take time."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    @classmethod
    def connect(cls, host: str, port: int, until: float, is_cancelled: Callable[[], bool]) -> Self:
        """Connect to the first of the host's addresses that answers. Raises OSError, TimeoutError at a time.

        One that does not answer takes no more than its share of the time.
        """
        return cls(_connected(host, port, until, is_cancelled))

    def send(self, data: bytes | memoryview) -> int:
        """How many bytes the system has taken. Raises OSError."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self) -> bytes | None:
        """Bytes that have come; none at the end; None if there are none now. Raises OSError."""
        try:
            return self._socket.recv(RECEIVED_BYTES_MAX)
        except BlockingIOError:
            return None

    def wait(self, seconds: float, *, also_to_send: bool = False) -> bool:
        """Wait until bytes have come, or can be sent. One thread at a time may do so."""
        if also_to_send:
            return _is_ready(self._socket, select.POLLIN | select.POLLOUT, seconds)
        return bool(self._poll.poll(1000 * seconds))

    def wait_to_send(self, seconds: float) -> bool:
        return _is_ready(self._socket, select.POLLOUT, seconds)

    def drain(self, seconds: float) -> None:
        """Drop what comes, until the server closes the connection too."""
        until = monotonic() + seconds
        with suppress(OSError):
            while (left := until - monotonic()) > 0:
                if _is_ready(self._socket, select.POLLIN, left) and self.receive() == b"":
                    return

    def finish(self) -> None:
        """Say that nothing more is sent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class TlsStream(Stream):
    """The same over TLS."""

    _socket: ssl.SSLSocket

    def __init__(self, secured: ssl.SSLSocket) -> None:
        super().__init__(secured)
        # One thread may read while another one sends, and OpenSSL takes one at a time.
        self._turn = threading.RLock()

    @classmethod
    def secure(
        cls, host: str, port: int, context: ssl.SSLContext, until: float, is_cancelled: Callable[[], bool]
    ) -> Self:
        """Connect as `connect` does, and shake hands. Raises OSError, TimeoutError at a time."""
        connected = _connected(host, port, until, is_cancelled)
        try:
            secured = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        except BaseException:
            connected.close()
            raise
        try:
            while True:
                try:
                    secured.do_handshake()
                except ssl.SSLWantReadError:
                    _is_ready(secured, select.POLLIN, _slice(until, is_cancelled))
                except ssl.SSLWantWriteError:
                    _is_ready(secured, select.POLLOUT, _slice(until, is_cancelled))
                else:
                    return cls(secured)
        except BaseException:
            secured.close()
            raise

    @property
    def certificate(self) -> Any:
        """What Python knows of the server's certificate."""
        return self._socket.getpeercert()

    def send(self, data: bytes | memoryview) -> int:
        sent, size = 0, len(data)
        with self._turn, memoryview(data) as view, suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            # Record by record: what the system does not take must begin the next call, and not be shorter there.
            while sent < size:
                sent += self._socket.send(view[sent : sent + RECORD_BYTES_MAX])
        return sent

    def receive(self) -> bytes | None:
        pieces: list[bytes] = []
        missing = RECEIVED_BYTES_MAX
        with self._turn:
            # OpenSSL reads one record at a time, and not more than it: the next one is still in the socket, where
            # `wait` sees it. After a full one there are more, most likely.
            while missing > 0 and (not pieces or len(pieces[-1]) == RECORD_BYTES_MAX):
                try:
                    pieces.append(self._socket.recv(missing))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    break
                except OSError:
                    # What came before the end counts. The next call finds the end again.
                    if not pieces:
                        raise
                    break
                missing -= len(pieces[-1])
        return b"".join(pieces) if pieces else None

    def finish(self) -> None:
        with self._turn, suppress(OSError):
            with suppress(ssl.SSLError):
                self._socket.unwrap()
            # That of `ssl.SSLSocket` forgets its TLS, and what still comes would be read as plain text.
            socket.socket.shutdown(self._socket, socket.SHUT_WR)


def _is_ready(waited_for: socket.socket, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(waited_for, events)
    return bool(poll.poll(1000 * seconds))


def _slice(until: float, is_cancelled: Callable[[], bool]) -> float:
    """How long to wait before another look at interrupts. Raises TimeoutError at a time, or ClientClosed."""
    if is_cancelled():
        raise ClientClosed
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError
    return min(left, NOTICE_S_MAX)


def _addresses(host: str, port: int, until: float, is_cancelled: Callable[[], bool]) -> list[Any]:
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    # The resolver may take long, and knows neither deadlines nor interrupts.
    found: Future[list[Any]] = Future()

    def resolve() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=resolve, name="penstock-resolver", daemon=True).start()
    while not found.done():
        with suppress(TimeoutError):
            return found.result(_slice(until, is_cancelled))
        _slice(until, is_cancelled)
    return found.result()


def _connected(host: str, port: int, until: float, is_cancelled: Callable[[], bool]) -> socket.socket:
    error: OSError | None = None
    addresses = _addresses(host, port, until, is_cancelled)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        now = monotonic()
        share = (until - now) / (len(addresses) - number)
        candidate: socket.socket | None = None
        try:
            candidate = socket.socket(family, kind, protocol)
            _connect(candidate, address, now + share, is_cancelled)
            return candidate
        except BaseException as failed:
            if candidate is not None:
                candidate.close()
            if not isinstance(failed, OSError):
                raise
            error = failed
    raise error or OSError("its host has no address")


def _connect(candidate: socket.socket, address: Any, until: float, is_cancelled: Callable[[], bool]) -> None:
    candidate.setblocking(False)
    code = candidate.connect_ex(address)
    if code in (errno.EINPROGRESS, errno.EINTR):
        while not _is_ready(candidate, select.POLLOUT, _slice(until, is_cancelled)):
            pass
        code = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
