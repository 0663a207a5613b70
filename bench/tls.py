"""What TLS costs: the same work over plain TCP and over TLS, in turns, at two servers that run side by side.

Only ratios count: the other server and its client take part of the machine. Both ends of a connection are here, so
the client's part of the encryption is in the figures.
"""

import selectors
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import load, mqgate, remits
from bench.report import Report

ROUNDS = 5
HISTORY_EVENTS = 200_000
HTTP_CONNECTIONS = 16
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def run(report: Report, data: Path, scale: float) -> None:
    """Appends, adds, reads and HTTP requests; then connections."""
    seconds = 2 * scale / ROUNDS
    cert, key = _certificate(data)
    tls = load.over_tls(cert)
    with load.server(load.fresh(data)) as plain, _secured(data, cert, key) as secured:
        events = int(HISTORY_EVENTS * scale)
        for gates, connect in ((plain, load.over_tcp), (secured, tls)):
            mqgate.fill(load.port_of(gates["mq"]), events, connect)
        works: dict[str, Callable[[dict[str, str], load.Connect], float]] = {
            "mq, 64 connections x 1 event": lambda gates, connect: mqgate.appending(
                load.port_of(gates["mq"]), 64, 1, 1, seconds, connect
            ),
            "mq, 1 connection x 4 in flight x 1,000 events": lambda gates, connect: mqgate.appending(
                load.port_of(gates["mq"]), 1, 4, 1000, seconds, connect
            ),
            "mq, reading stored records": lambda gates, connect: mqgate.reading(
                load.port_of(gates["mq"]), connect, until=events
            ),
            "remits, 64 connections x 1 message": lambda gates, connect: remits.adding(
                load.port_of(gates["remits"]), 64, 1, seconds, connect
            ),
            "http, 16 connections": lambda gates, connect: _asking(load.port_of(gates["http"]), seconds, connect),
            "mq, new connections": lambda gates, connect: _connecting(load.port_of(gates["mq"]), seconds, connect),
        }
        for name, work in works.items():
            pairs = [(work(plain, load.over_tcp), work(secured, tls)) for _ in range(ROUNDS)]
            report.figure(f"{name}, plain", statistics.median(one for one, _ in pairs), "a second")
            report.figure(f"{name}, TLS", statistics.median(other for _, other in pairs), "a second")
            ratio = statistics.median(other / one for one, other in pairs)
            report.figure(f"{name}, TLS of plain", 100 * ratio, "%")


@contextmanager
def _secured(data: Path, cert: Path, key: Path) -> Iterator[dict[str, str]]:
    with load.server(load.fresh(data), "--tls-cert", str(cert), "--tls-key", str(key)) as gates:
        yield gates


def _certificate(data: Path) -> tuple[Path, Path]:
    """A certificate that has signed itself, with the kind of key that is usual now."""
    cert, key = data / "bench.pem", data / "bench.key"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    return cert, key


def _asking(port: int, seconds: float, connect: load.Connect) -> float:
    """Requests per second of connections that are kept."""
    selector = selectors.DefaultSelector()
    sockets = [connect(port) for _ in range(HTTP_CONNECTIONS)]
    for each in sockets:
        selector.register(each, selectors.EVENT_READ)
        each.sendall(HEALTH)
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            # The body comes behind the head: the answer is whole with its last brace.
            while not key.fileobj.recv(65536).endswith(b"}"):
                pass
            done += 1
            key.fileobj.sendall(HEALTH)
    for each in sockets:
        each.close()
    return done / elapsed


def _connecting(port: int, seconds: float, connect: load.Connect) -> float:
    """Connections per second, one after the other, each with one answer."""
    message = mqgate.statistics_message()
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        with connect(port) as connected:
            connected.sendall(message)
            assert connected.recv(65536)
        done += 1
    return done / elapsed
