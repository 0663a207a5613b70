"""The console: how much ten watchers slow down appends at half of the full load.

Two servers run side by side. The second one is watched: five browsers have the overview open and ask for its samples
and parts as often as its scripts do, and five follow the live tail. They are threads of one process, which throws away
what comes, and take part of the machine too.
"""

import itertools
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from bench import load, mqgate, pairs
from bench.report import Report

ROUNDS: Final = 15
WATCHERS: Final = 10
GOAL: Final = 95
CONNECTIONS: Final = 16
SAMPLES: Final = "/console/samples?since="
PARTS: Final = {SAMPLES: 1.0, "/console?part=store": 2.0, "/console?part=troubles": 5.0, "/console?part=gates": 5.0}
"""What an open overview asks for, and how often in seconds."""
TAIL: Final = b"GET /console/tail/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


def run(report: Report, data: Path, scale: float) -> None:
    seconds = max(1.0, 2 * scale)
    with ExitStack() as stack:
        alone, watched = (stack.enter_context(load.server(load.fresh(data))) for _ in range(2))
        full = mqgate.appending(load.port_of(alone["mq"]), CONNECTIONS, 1, 1, seconds)
        report.figure("full load", full, "events a second")
        with watching(load.port_of(watched["http"]), WATCHERS):
            sides = {"alone": (int(alone["pid"]), alone), f"{WATCHERS} watchers": (int(watched["pid"]), watched)}
            rounds = ROUNDS if scale >= 1 else 3
            half = {"appends at half load": lambda side: at_pace(side, full / 2, seconds)[0]}
            pairs.compare(report, sides, half, rounds, "events a second", goal=GOAL)
            # Of so many, half are quicker: the clients and the watchers have a part in that.
            one = {"appends one after another at half load": lambda side: at_pace(side, full / 2, seconds)[1]}
            pairs.compare(report, sides, one, rounds, "events a second")


def at_pace(side: dict[str, str], pace: float, seconds: float) -> tuple[float, float]:
    """Appends per second over Res01 on TCP, not faster than a pace, and 1 by the median time of one."""
    selector, due_s = selectors.DefaultSelector(), CONNECTIONS / pace
    started = time.perf_counter()
    waiting: list[tuple[float, socket.socket]] = []
    messages, sent, delays = {}, {}, []
    for number in range(CONNECTIONS):
        each = load.over_tcp(load.port_of(side["mq"]))
        selector.register(each, selectors.EVENT_READ, each)
        messages[each] = itertools.cycle([mqgate.append_message(number, 1)])
        waiting.append((started + number / pace, each))
    while (now := time.perf_counter()) < started + seconds:
        while waiting and waiting[0][0] <= now:
            _, each = waiting.pop(0)
            sent[each] = now
            each.sendall(next(messages[each]))
        timeout = max(0.0, waiting[0][0] - now) if waiting else seconds
        for key, _ in selector.select(timeout):
            each = key.data
            assert mqgate.COMMITTED in each.recv(mqgate.RECEIVE_BYTES), "an append was not answered as committed"
            now = time.perf_counter()
            delays.append(now - sent[each])
            waiting.append((max(now, sent[each] + due_s), each))
        waiting.sort(key=lambda one: one[0])
    elapsed = time.perf_counter() - started
    for each in messages:
        each.close()
    return len(delays) / elapsed, 1 / statistics.median(delays)


@contextmanager
def watching(port: int, count: int) -> Iterator[None]:
    """Watchers in a process of their own."""
    command = [sys.executable, "-m", "bench.console", str(port), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        try:
            yield
            assert process.poll() is None, "a watcher has failed"
        finally:
            process.terminate()


def watch(port: int, count: int) -> None:
    """Watch until the process is ended, or the first watcher fails."""
    failed, open_tails = threading.Event(), threading.Barrier(count // 2 + 1)

    def look(work: partial[None]) -> None:
        try:
            work()
        finally:
            failed.set()

    for number in range(count):
        work = partial(follow_tail, port, open_tails) if number % 2 else partial(look_at_overview, port)
        threading.Thread(target=look, args=(work,), daemon=True).start()
    open_tails.wait()
    print("watching", flush=True)
    failed.wait()


def look_at_overview(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    next_at = dict.fromkeys(PARTS, 0.0)
    while True:
        path = min(next_at, key=next_at.__getitem__)
        time.sleep(max(0.0, next_at[path] - time.monotonic()))
        next_at[path] = time.monotonic() + PARTS[path]
        since = str(time.time() - 1) if path == SAMPLES else ""
        connection.request("GET", path + since, headers={"hx-request": "true"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status


def follow_tail(port: int, is_open: threading.Barrier) -> None:
    with load.over_tcp(port) as connection:
        connection.sendall(TAIL)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        is_open.wait()
        while connection.recv(1 << 20):
            pass


if __name__ == "__main__":
    watch(*map(int, sys.argv[1:]))
