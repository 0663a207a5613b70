"""Appends through 1 to 2,000 connections of the MQ gate, each with one commit of one event in flight.

The load is a process that sends messages that were made before and counts the answers, so that the server is what is
measured. Rounds are interleaved; every append is on disk before its answer.
"""

import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from bench import load
from bench.mqgate import COMMITTED, RECEIVE_BYTES, append_message
from bench.report import Report
from bench.usage import Meter

CONNECTIONS: Final = (1, 10, 100, 500, 1000, 2000)
ROUNDS: Final = 3
SECONDS: Final = 3.0
LOOK_S: Final = 0.5
FILES_MAX: Final = 2 * max(CONNECTIONS) + 200
MIB: Final = 1 << 20


def run(report: Report, data: Path, scale: float) -> None:
    """One server, and all numbers of connections in every round."""
    load.allow_files(FILES_MAX)
    limit = str(max(CONNECTIONS) + 10)
    flags = ("--mq-connections-max", limit, "--mq-connections-per-address-max", limit)
    columns: dict[str, dict[str, list[float]]] = {f"{number:,}": defaultdict(list) for number in CONNECTIONS}
    with load.server(load.fresh(data), *flags) as gates:
        meter = Meter(int(gates["pid"]), look_s=LOOK_S)
        for _ in range(ROUNDS):
            for number in CONNECTIONS:
                before = meter.used().core_s
                done = _load(load.port_of(gates["mq"]), number, SECONDS * scale)
                found = columns[f"{number:,}"]
                found["commits/s"].append(done["commits"] / done["seconds"])
                for name in ("p50", "p99"):
                    found[f"{name} of an append, ms"].append(done[name])
                found["CPU of the server, µs a commit"].append(1e6 * (meter.used().core_s - before) / done["commits"])
                found["CPU of the load, µs a commit"].append(1e6 * done["core_s"] / done["commits"])
                found["memory of the server, MiB"].append(meter.proportional_bytes() / MIB)
        meter.stop()
    report.table(columns, f"Columns are connections; {ROUNDS} rounds of {SECONDS * scale:g} s.")


def _load(port: int, connections: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.connections", str(port), str(connections), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _appending(port: int, connections: int, seconds: float) -> dict[str, float]:
    """What connections that each have one commit under way get done."""
    selector = selectors.DefaultSelector()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    messages = [append_message(number, 1) for number in range(connections)]
    sent, waits = [0.0] * connections, []
    for number, each in enumerate(sockets):
        selector.register(each, selectors.EVENT_READ, number)
    began, used = time.perf_counter(), time.process_time()
    for number, each in enumerate(sockets):
        sent[number] = time.perf_counter()
        each.sendall(messages[number])
    while (now := time.perf_counter()) - began < seconds:
        for key, _ in selector.select(1):
            number, each = key.data, sockets[key.data]
            assert COMMITTED in each.recv(RECEIVE_BYTES), "an append was not answered as committed"
            now = time.perf_counter()
            waits.append(now - sent[number])
            sent[number] = now
            each.sendall(messages[number])
    core_s = time.process_time() - used
    for each in sockets:
        each.close()
    cuts = statistics.quantiles(waits, n=100)
    figures = {"commits": len(waits), "seconds": now - began, "core_s": core_s}
    return {**figures, "p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}


if __name__ == "__main__":
    load.allow_files(FILES_MAX)
    print(json.dumps(_appending(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
