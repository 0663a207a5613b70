"""Res01 over ZeroMQ, a server process and a client process, compared with a bare ROUTER that echoes the same frames.

The clients speak raw frames. Every append is on disk before its answer; the echo keeps nothing.
"""

import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import zmq

from bench import appends, load
from bench.report import Report

Options = dict[int, bytes]
"""Of a socket."""
BODY = os.urandom(load.BODY_BYTES)
TICKS = b"5250989155635817646"
EVENT = [uuid.uuid4().bytes_le, TICKS, b"OrderPlaced", b"", BODY]
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
print(socket.bind("tcp://127.0.0.1:*"), socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
give = {}
while True:
    frames = socket.recv_multipart()
    if frames[3] == b"GIVE":
        count = int(frames[5])
        event = [b"x" * 16, b"stream", b"bench", b"1", b"5250989155635817646", b"T", b"", b"b" * 200]
        answer = give.setdefault(count, event * count)
        socket.send_multipart(frames[:5] + answer)
    elif len(frames) > 5:
        socket.send_multipart(frames)
"""


def run(report: Report, data: Path, scale: float) -> None:
    """Appends of several sizes, catch-up and queue drain, each compared with the echo."""
    seconds = 3 * scale
    with load.server(load.fresh(data)) as gates, _echo() as echo:
        address = gates["res"]
        for clients, events in ((64, 1), (1, 100), (1, 1000)):
            ours = appending(address, clients, events, seconds)
            bare = appending(echo, clients, events, seconds)
            what = f"{clients} client(s) x {events} event(s)"
            report.figure(f"{what}", ours, "events/s")
            report.figure(f"{what}, echo", bare, "events/s")
            report.figure(f"  {what}, of the echo", 100 * ours / bare, "%", goal=70)
        _latencies(report, data, address, seconds)
        _catching_up(report, address, echo, seconds)


# --- processes ------------------------------------------------------------------------------------------------


@contextmanager
def _echo() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        try:
            yield echo.stdout.readline().split()[-1]
        finally:
            echo.kill()


# --- clients --------------------------------------------------------------------------------------------------


@contextmanager
def _dealers(address: str, count: int, options: Options | None = None) -> Iterator[list[zmq.Socket[bytes]]]:
    context = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(count)]
    for socket in sockets:
        socket.setsockopt(zmq.LINGER, 0)
        for option, value in (options or {}).items():
            socket.setsockopt(option, value)
        socket.connect(address)
    try:
        yield sockets
    finally:
        for socket in sockets:
            socket.close()
        context.term()


def _ask(socket: zmq.Socket[bytes], *frames: bytes) -> list[bytes]:
    socket.send_multipart([b"", b"Res01", *frames])
    return socket.recv_multipart()


def appending(
    address: str,
    clients: int,
    events: int,
    seconds: float,
    options: Options | None = None,
    token: str | None = None,
    streams: int = 1,
) -> float:
    """Events per second of clients that each have one commit under way, in turn to so many streams."""
    tail = [b"-1", b"%d" % events, *EVENT * events]
    poller = zmq.Poller()
    with _dealers(address, clients, options) as sockets:
        messages = {}
        for number, socket in enumerate(sockets):
            if token is not None:
                assert b"IA" in _ask(socket, b"AU", b"r", token.encode()), "the token was refused"
            names = [b"stream-%d" % (streams * number + stream) for stream in range(streams)]
            messages[socket] = cycle([[b"", b"Res01", b"AC", b"r", b"bench", name, *tail] for name in names])
            poller.register(socket, zmq.POLLIN)
            socket.send_multipart(next(messages[socket]))
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            for socket, _ in poller.poll(1000):
                answer = socket.recv_multipart()
                assert answer[3] != b"ER", answer
                done += events
                socket.send_multipart(next(messages[socket]))
        rate = done / (time.perf_counter() - started)
        for socket in sockets:
            socket.recv_multipart()
    return rate


def _latencies(report: Report, data: Path, address: str, seconds: float) -> None:
    """One commit at a time."""
    taken = []
    with _dealers(address, 1) as (socket,):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            _ask(socket, b"AC", b"r", b"bench", b"one", b"-1", b"1", *EVENT)
            taken.append(1e6 * (time.perf_counter() - began))
    cuts = statistics.quantiles(taken, n=1000)
    for name, value in (("p50", cuts[499]), ("p99", cuts[989]), ("p999", cuts[998])):
        report.figure(f"one commit, {name}", value, "us")
    report.figure("  the machine's own write+fdatasync", 1e6 / appends.overwriting(data / "overwrite", 1), "us")


def _catching_up(report: Report, address: str, echo: str, seconds: float) -> None:
    """A subscription and a queue from the beginning of what was appended above, in batches of 1,000."""
    for name, rate in (("subscription catch-up", _subscription), ("queue drain", _queue)):
        ours = rate(address, seconds)
        bare = _given(echo, seconds)
        report.figure(f"{name}, batches of 1,000", ours, "events/s")
        report.figure(f"{name}, echo", bare, "events/s")
        report.figure(f"  {name}, of the echo", 100 * ours / bare, "%", goal=70)


def _subscription(address: str, seconds: float) -> float:
    with _dealers(address, 1) as (socket,):
        number = _ask(socket, b"RS", b"r", b"bench", b"1", b"bench", b"", b"0")[5]
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            answer = _ask(socket, b"FE", b"r", b"1", number, b"1000")
            count = int(answer[5])
            if not count:
                break
            done += count
            _ask(socket, b"PS", b"r", b"1", number, answer[-4])
        return done / (time.perf_counter() - started)


def _queue(address: str, seconds: float) -> float:
    with _dealers(address, 1) as (socket,):
        asked: Any = (b"SQ", b"r", b"queue", b"me", b"bench", b"", b"0", b"1000", b"60000")
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            answer = _ask(socket, *asked)
            first, last, count = answer[7:10]
            if count == b"0":
                break
            done += int(count)
            asked = (b"AQ", b"r", b"queue", b"me", first, last, b"1000", b"60000")
        return done / (time.perf_counter() - started)


def _given(echo: str, seconds: float) -> float:
    """Events per second of a bare ROUTER in answers of 1,000 events."""
    with _dealers(echo, 1) as (socket,):
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            _ask(socket, b"GIVE", b"r", b"1000")
            done += 1000
        return done / (time.perf_counter() - started)
