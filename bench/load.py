"""Shared by the benchmarks: an engine on a fresh store, events, and callers that append for a while."""

import asyncio
import itertools
import os
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from penstock.engine import Engine
from penstock.model import ANONYMOUS, ANY, Append, NewEvent, new_event
from penstock.settings import Settings
from penstock.store import store_url

BODY_BYTES = 200
HTTP_CONNECTIONS = 16
Connect = Callable[[int], socket.socket]
"""Makes a connection to a port."""
T = TypeVar("T")

_numbers = itertools.count()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, as the server does."""
    return uvloop.run(work)


def fresh(data: Path) -> Path:
    """A directory that is not there yet."""
    return data / f"store-{next(_numbers)}"


@contextmanager
def server(directory: Path, *flags: str) -> Iterator[dict[str, str]]:
    """A server process on free ports; the addresses of its gates by name, and its pid."""
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory), "--res", "tcp://127.0.0.1:0"]
    command += ["--mq", "127.0.0.1:0", "--remits", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            gates = dict(pair.split("=", 1) for pair in process.stdout.readline().split()[2:])
            yield {**gates, "pid": str(process.pid)}
        finally:
            process.terminate()


def over_tcp(port: int) -> socket.socket:
    """A connection to a gate."""
    connected = socket.create_connection(("127.0.0.1", port))
    # As all clients do. Without it the first request over TLS waits 40 ms for the ACK of the end of the handshake.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def over_tls(cert: Path) -> Connect:
    """Makes connections to gates with this certificate."""
    context = ssl.create_default_context(cafile=str(cert))
    return lambda port: context.wrap_socket(over_tcp(port), server_hostname="127.0.0.1")


def allow_files(wanted: int) -> int:
    """Raise this process's limit of open files, and so that of those it starts; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def port_of(address: str) -> int:
    """The port of an address."""
    return int(address.rpartition(":")[2])


def asking(port: int, seconds: float, connect: Connect = over_tcp, token: str | None = None) -> float:
    """HTTP requests per second of connections that are kept."""
    shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
    message = f"GET /health HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n".encode()
    selector = selectors.DefaultSelector()
    sockets = [connect(port) for _ in range(HTTP_CONNECTIONS)]
    for each in sockets:
        selector.register(each, selectors.EVENT_READ)
        each.sendall(message)
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            answer = b""
            # The body comes behind the head: the answer is whole with its last brace.
            while not answer.endswith(b"}"):
                answer += key.fileobj.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            done += 1
            key.fileobj.sendall(message)
    for each in sockets:
        each.close()
    return done / elapsed


def engine(directory: Path, **settings: Any) -> Engine:
    """An engine with the default settings, but for those that are given."""
    return Engine(store_url(directory), Settings(**settings))


def some_events(count: int) -> list[NewEvent]:
    """Events with random bodies."""
    return [new_event("OrderPlaced", os.urandom(BODY_BYTES)) for _ in range(count)]


async def appending(target: Engine, callers: int, events: int, seconds: float, context: str = "bench") -> float:
    """Events per second of callers that each append one commit after the other."""
    stop = time.perf_counter() + seconds
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        request = Append(context, f"stream-{number}", some_events(events), ANY)
        while time.perf_counter() < stop:
            await target.execute(ANONYMOUS, request)
            done += events

    started = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return done / (time.perf_counter() - started)


async def warm(target: Engine) -> None:
    """Grow the WAL to its full size once, as a server in use has long done."""
    limit = target.settings.wal_bytes_max * 3 // 2
    request = Append("warm", "up", some_events(1000), ANY)
    for _ in range(limit // (1000 * BODY_BYTES) + 1):
        await target.execute(ANONYMOUS, request)
