"""The ZeroMQ gate and the MQ gate of the same server, and the MQ gate while ZeroMQ peers misbehave.

The clients send messages that were made before and count the answers, so that the server is what is measured. Rates
depend on what else the machine does; processor time per commit does so less.
"""

import os
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench import load, mqgate
from bench.report import Report
from penstock.wire import zmtp
from penstock.wire.mqframe import encode

CONNECTIONS: Final = 64
ROUNDS: Final = 8
RECEIVE_BYTES: Final = 256 * 1024
TICK: Final = os.sysconf("SC_CLK_TCK")


class Way(NamedTuple):
    """How to append one event over a gate."""

    connect: Callable[[], socket.socket]
    message: Callable[[int], bytes]
    committed: bytes
    """Bytes that only answers to appends have, before the commit id."""


def run(report: Report, data: Path, scale: float) -> None:
    """The codec alone, both gates, and the MQ gate next to hostile peers."""
    _codec(report)
    with load.server(load.fresh(data)) as gates:
        pid, res, mq = int(gates["pid"]), load.port_of(gates["res"]), load.port_of(gates["mq"])
        ways = {
            "ZeroMQ": Way(lambda: greeted(res), lambda stream: wire([b"", *_append(stream)]), b"\x01\x02CR\x00\x10"),
            "MQ": Way(lambda: _connected(mq), lambda stream: encode(_append(stream)), mqgate.COMMITTED),
        }
        _beside_each_other(report, pid, ways, scale)
        for name, attack in ATTACKS.items():
            with attack(res):
                _latencies(report, f"MQ commit next to {name}", ways["MQ"], 3 * scale)
        report.figure("memory of the server after that", _memory_mib(pid), "MiB")


def _append(stream: int) -> list[bytes]:
    return [b"Res01", b"AC", b"r", b"bench", b"stream-%d" % stream, b"-1", b"1", *mqgate.EVENT]


def wire(frames: list[bytes]) -> bytes:
    """A message as it goes over the wire."""
    return b"".join(zmtp.Connection().send(frames))


def _connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))


def greeted(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection to the ZeroMQ gate that is ready for messages."""
    connection = _connected(port, source)
    ready = zmtp.Null().ready({b"Socket-Type": b"DEALER"})
    connection.sendall(zmtp.SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32) + ready)
    connection.recv(zmtp.GREETING_3_BYTES + len(ready) + 13, socket.MSG_WAITALL)
    return connection


# --- the codec ------------------------------------------------------------------------------------------------


def _codec(report: Report) -> None:
    """Appends of one event read, and their answers written, in one process."""
    ready = zmtp.Null().ready({b"Socket-Type": b"DEALER"})
    connection = zmtp.Connection()
    connection.receive(zmtp.SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32) + ready)
    chunk, count = wire([b"", *_append(1)]) * 200, 0
    began = time.process_time()
    while (taken := time.process_time() - began) < 1:
        count += len(connection.receive(chunk))
    report.figure("appends of one event read by the codec", count / taken, "messages/s")
    answer, count, began = [b"", b"Res01", b"r", b"CR", bytes(16)], 0, time.process_time()
    while (taken := time.process_time() - began) < 1:
        for _ in range(1000):
            connection.send(answer)
        count += 1000
    report.figure("answers to them written by the codec", count / taken, "messages/s")


# --- both gates -----------------------------------------------------------------------------------------------


def _beside_each_other(report: Report, pid: int, ways: dict[str, Way], seconds: float) -> None:
    """In turns, so that what else the machine does meets both."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            before = _core_s(pid)
            commits = _appending(way, seconds)
            rates[name].append(commits / seconds)
            costs[name].append(1e6 * (_core_s(pid) - before) / commits)
    for name in ways:
        report.figure(f"{CONNECTIONS} x 1 commits, {name} gate", statistics.mean(rates[name]), "commits/s")
        report.figure("  processor time of the server for each", statistics.mean(costs[name]), "us")
    part = 100 * statistics.mean(rates["ZeroMQ"]) / statistics.mean(rates["MQ"])
    report.figure("  ZeroMQ gate, of the MQ gate", part, "%", goal=80)
    part = 100 * statistics.mean(costs["MQ"]) / statistics.mean(costs["ZeroMQ"])
    report.figure("  the same by processor time", part, "%", goal=80)


def _appending(way: Way, seconds: float) -> int:
    """Commits of connections that each have one in flight."""
    selector = selectors.DefaultSelector()
    sockets = [way.connect() for _ in range(CONNECTIONS)]
    for stream, each in enumerate(sockets):
        message = way.message(stream)
        selector.register(each, selectors.EVENT_READ, message)
        each.sendall(message)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            assert way.committed in key.fileobj.recv(RECEIVE_BYTES), "an append was not answered as committed"
            done += 1
            key.fileobj.sendall(key.data)
    for each in sockets:
        each.close()
    return done


def _core_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# --- hostile peers --------------------------------------------------------------------------------------------


def _latencies(report: Report, name: str, way: Way, seconds: float) -> None:
    """One commit at a time."""
    taken, message = [], way.message(0)
    with way.connect() as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            connection.sendall(message)
            connection.recv(RECEIVE_BYTES)
            taken.append(1e6 * (time.perf_counter() - began))
    cuts = statistics.quantiles(taken, n=100)
    report.figure(f"{name}, p50", cuts[49], "us")
    report.figure(f"{name}, p99", cuts[98], "us")


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in a thread."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(OSError):
                act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _idle(port: int) -> Iterator[None]:
    """As many connections as the gate takes, which say nothing."""
    kept = [greeted(port, f"127.0.0.{2 + number // 240}") for number in range(720)]
    yield
    for each in kept:
        each.close()


def _endless(port: int) -> AbstractContextManager[None]:
    """Frames of a megabyte that never end, from a peer that comes back whenever it is cut off."""
    frame = zmtp.frame(bytes(1 << 20), zmtp.MORE)

    def act() -> None:
        with greeted(port) as connection:
            for _ in range(100):
                connection.sendall(frame)
                time.sleep(0.002)

    return _repeated(act)


def _storm(port: int) -> AbstractContextManager[None]:
    """A thousand connections a second, opened and closed."""

    def act() -> None:
        _connected(port).close()
        time.sleep(0.0005)

    return _repeated(act)


ATTACKS: Final[dict[str, Callable[[int], AbstractContextManager[None]]]] = {
    "no attack": lambda _port: nullcontext(),
    "720 idle peers": _idle,
    "frames without an end": _endless,
    "1,000 connections a second": _storm,
}
