"""What TLS costs: the same work over plain TCP and over TLS.

Both ends of a connection are here, so the client's part of the encryption is in the figures.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import load, mqgate, pairs, remits
from bench.report import Report

ROUNDS = 5
HISTORY_EVENTS = 200_000
Side = tuple[dict[str, str], load.Connect]


def run(report: Report, data: Path, scale: float) -> None:
    """Appends, adds, reads and HTTP requests; then connections."""
    seconds = max(0.4, 2 * scale / ROUNDS)
    cert, key = _certificate(data)
    tls = load.over_tls(cert)
    with load.server(load.fresh(data)) as plain, _secured(data, cert, key) as secured:
        events = int(HISTORY_EVENTS * scale)
        for gates, connect in ((plain, load.over_tcp), (secured, tls)):
            mqgate.fill(load.port_of(gates["mq"]), events, connect)
        works: dict[str, Callable[[Side], float]] = {
            "mq, 64 connections x 1 event": lambda side: mqgate.appending(
                _port(side, "mq"), 64, 1, 1, seconds, side[1]
            ),
            "mq, 1 connection x 4 in flight x 1,000 events": lambda side: mqgate.appending(
                _port(side, "mq"), 1, 4, 1000, seconds, side[1]
            ),
            "mq, reading stored records": lambda side: mqgate.reading(_port(side, "mq"), side[1], until=events),
            "remits, 64 connections x 1 message": lambda side: remits.adding(
                _port(side, "remits"), 64, 1, seconds, side[1]
            ),
            "http, 16 connections": lambda side: load.asking(_port(side, "http"), seconds, side[1]),
            "mq, new connections": lambda side: _connecting(_port(side, "mq"), seconds, side[1]),
        }
        sides = {
            "plain": (int(plain["pid"]), (plain, load.over_tcp)),
            "TLS": (int(secured["pid"]), (secured, tls)),
        }
        pairs.compare(report, sides, works, ROUNDS)


def _port(side: Side, gate: str) -> int:
    return load.port_of(side[0][gate])


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
