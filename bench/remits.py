"""Logs and iterators over the Remits gate, a server process and a client process.

The client sends frames that were made before and reads the answers, so that the server is what is measured. Every
message is on disk before its answer.
"""

import selectors
import socket
import struct
import time
from pathlib import Path
from typing import Self

import cbor2

from bench import load
from bench.report import Report
from penstock.wire.remits.frames import DATA, INFO, REQUEST, Parser, pack
from tests.wire.remits_answers import parse_data

LOG_ADD, MESSAGE_ADD, ITERATOR_ADD, ITERATOR_NEXT, TOKEN = 1, 4, 5, 7, 32
MESSAGE_BYTES = 200
HISTORY_MESSAGES = 1_000_000
PAGE = 1000
RECEIVE_BYTES = 1 << 20
OK = struct.pack(">IBB", 5, INFO, 0) + cbor2.dumps("ok")
FRAME_BYTES_MAX = 1 << 30


def run(report: Report, data: Path, scale: float) -> None:
    """Adding, in two ways; then iterators of two kinds over what was added."""
    seconds = 3 * scale
    with load.server(load.fresh(data)) as gates:
        port = load.port_of(gates["remits"])
        for connections, messages, goal in ((64, 1, 20_000), (1, 1000, 300_000)):
            rate = adding(port, connections, messages, seconds)
            report.figure(
                f"{connections} connection(s) x {messages} message(s) a request", rate, "messages/s", goal=goal
            )
    with load.server(load.fresh(data)) as gates, _Client(load.port_of(gates["remits"])) as client:
        total = int(HISTORY_MESSAGES * scale)
        _fill(client, total)
        _filtering(report, client, total)
        _indexed(report, client, total)


class _Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._parser = Parser(FRAME_BYTES_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def ask(self, code: int, **fields: object) -> bytes:
        self._socket.sendall(pack(REQUEST, code, cbor2.dumps(fields)))
        while True:
            for frame in self._parser.receive(self._socket.recv(RECEIVE_BYTES)):
                assert frame.kind in (INFO, DATA), frame
                return frame.payload

    def page(self, iterator: str, ordinal: int) -> list[bytes]:
        return parse_data(self.ask(ITERATOR_NEXT, iterator_name=iterator, message_id=ordinal, count=PAGE))


def _message(number: int) -> bytes:
    """A map of six fields, of about 200 bytes."""
    fields = {"id": number, "amount": number % 20, "customer": f"c-{number % 1000}", "ok": True, "at": 1.5}
    return cbor2.dumps({**fields, "note": "x" * (MESSAGE_BYTES - len(cbor2.dumps(fields)) - 8)})


def over_remits(token: str | None) -> load.Connect:
    """Makes connections that have authenticated, if there is a token."""

    def connect(port: int) -> socket.socket:
        connection = load.over_tcp(port)
        if token is not None:
            connection.sendall(pack(REQUEST, TOKEN, cbor2.dumps({"token": token})))
            assert connection.recv(RECEIVE_BYTES) == OK, "the token was refused"
        return connection

    return connect


def adding(port: int, connections: int, messages: int, seconds: float, connect: load.Connect = load.over_tcp) -> float:
    """Messages per second of connections that each have one request under way."""
    selector = selectors.DefaultSelector()
    sockets = [connect(port) for _ in range(connections)]
    batch = [_message(number) for number in range(messages)]
    for number, each in enumerate(sockets):
        log = f"log-{number}"
        each.sendall(pack(REQUEST, LOG_ADD, cbor2.dumps({"log_name": log})))
        assert each.recv(RECEIVE_BYTES) == OK
        frame = pack(REQUEST, MESSAGE_ADD, cbor2.dumps({"log_name": log, "messages": batch}))
        selector.register(each, selectors.EVENT_READ, frame)
        each.sendall(frame)
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            assert key.fileobj.recv(RECEIVE_BYTES) == OK
            done += messages
            key.fileobj.sendall(key.data)
    for each in sockets:
        each.close()
    return done / elapsed


def _fill(client: _Client, total: int) -> None:
    client.ask(LOG_ADD, log_name="history")
    for first in range(0, total, PAGE):
        client.ask(MESSAGE_ADD, log_name="history", messages=[_message(first + n) for n in range(PAGE)])


def _filtering(report: Report, client: _Client, total: int) -> None:
    """A plain filter that keeps half: pages from the first to the last."""
    client.ask(
        ITERATOR_ADD,
        log_name="history",
        iterator_name="plain",
        iterator_type="filter",
        iterator_func="return msg.amount >= 10",
    )
    ordinal, times = 0, []
    while True:
        began = time.perf_counter()
        page = client.page("plain", ordinal)
        if not page:
            break
        times.append(time.perf_counter() - began)
        ordinal += len(page)
    report.figure("plain filter, count 1,000", total / sum(times), "source messages/s", goal=100_000)
    few = max(1, len(times) // 10)
    first, last = sum(times[1 : few + 1]) / few, sum(times[-few:]) / few
    report.figure(f"  of {len(times)} pages the first tenth", 1e3 * first, "ms/page")
    report.figure("  the last tenth", 1e3 * last, "ms/page")


def _indexed(report: Report, client: _Client, total: int) -> None:
    """An indexed filter, read once it is built."""
    fields = {"log_name": "history", "iterator_name": "kept", "iterator_type": "filter", "indexed": True}
    began = time.perf_counter()
    client.ask(ITERATOR_ADD, iterator_func="return msg.amount >= 10", **fields)
    client.page("kept", -1)
    report.figure("building an index", total / (time.perf_counter() - began), "source messages/s")
    ordinal, began = 0, time.perf_counter()
    while page := client.page("kept", ordinal):
        ordinal += len(page)
    rate = ordinal / (time.perf_counter() - began)
    report.figure("indexed filter, count 1,000", rate, "results/s", goal=300_000)
