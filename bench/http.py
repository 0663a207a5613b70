"""HTTP: appends over it, and how much ten followers slow appends down.

Two servers run side by side, and the second one has followers of everything, in a process of their own that reads what
comes and throws it away. The followers take part of the machine too: on few cores the ratio says more about those.
"""

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import load, mqgate, pairs
from bench.report import Report

ROUNDS: Final = 15
FOLLOWERS: Final = 10
GOAL: Final = 95
EVENT: Final = {"type": "OrderPlaced", "body": {"order": "x" * 80, "amount": 42}}
OPENING: Final = b"GET /v1/events?from=end HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
CHUNK_BYTES: Final = 1 << 20


def run(report: Report, data: Path, scale: float) -> None:
    seconds = max(0.4, scale)
    with ExitStack() as stack:
        alone, followed = (stack.enter_context(load.server(load.fresh(data))) for _ in range(2))
        with following(load.port_of(followed["http"]), FOLLOWERS):
            sides = {"alone": (int(alone["pid"]), alone), f"{FOLLOWERS} followers": (int(followed["pid"]), followed)}
            works: dict[str, Callable[[dict[str, str]], float]] = {
                "http, 1 connection x 1 event": lambda side: appending(side, 1, 1, seconds),
                "http, 16 connections x 1 event": lambda side: appending(side, 16, 1, seconds),
                "http, 4 connections x 100 events": lambda side: appending(side, 4, 100, seconds),
                "mq, 16 connections x 1 event": lambda side: mqgate.appending(
                    load.port_of(side["mq"]), 16, 1, 1, seconds
                ),
            }
            pairs.compare(report, sides, works, ROUNDS if scale >= 1 else 3, "events a second", goal=GOAL)


def appending(side: dict[str, str], connections: int, events: int, seconds: float) -> float:
    """Events per second of connections that are kept, each with one request in flight."""
    body = json.dumps([EVENT] * events).encode()
    selector = selectors.DefaultSelector()
    sockets = [load.over_tcp(load.port_of(side["http"])) for _ in range(connections)]
    messages = {}
    for number, each in enumerate(sockets):
        head = (
            f"POST /v1/streams/bench/stream-{number} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        messages[each] = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        selector.register(each, selectors.EVENT_READ, each)
        each.sendall(messages[each])
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            answer = b""
            # The body comes behind the head: the answer is whole with its last line.
            while not answer.endswith(b"}\n"):
                answer += key.data.recv(65536)
            assert answer.startswith(b"HTTP/1.1 201 "), answer
            done += events
            key.data.sendall(messages[key.data])
    for each in sockets:
        each.close()
    return done / elapsed


@contextmanager
def following(port: int, count: int) -> Iterator[None]:
    """Followers in a process of their own."""
    command = [sys.executable, "-m", "bench.http", str(port), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "following\n"
        try:
            yield
        finally:
            process.terminate()


def follow(port: int, count: int) -> None:
    """Follow until the process is ended."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        each = load.over_tcp(port)
        each.sendall(OPENING)
        assert each.recv(CHUNK_BYTES).startswith(b"HTTP/1.1 200 ")
        selector.register(each, selectors.EVENT_READ, each)
    print("following", flush=True)
    buffer = bytearray(CHUNK_BYTES)
    while True:
        for key, _ in selector.select():
            assert key.data.recv_into(buffer), "a follower was ended"


if __name__ == "__main__":
    follow(*map(int, sys.argv[1:]))
