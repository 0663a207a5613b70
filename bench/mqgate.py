"""Res01 over the MQ gate, a server process and a client process. Every append is on disk before its answer.

The client is as light as can be: it sends messages that were made before and counts the answers, so that the server
is what is measured.
"""

import os
import selectors
import socket
import time
import uuid
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.store.record import Record
from penstock.wire.mqframe import Parser, encode, split_frames
from penstock.wire.res01.messages import join_fields, split_fields

EVENT = [uuid.uuid4().bytes_le, b"5250989155635817646", b"OrderPlaced", b"", os.urandom(load.BODY_BYTES)]
COMMITTED = b"\x02\x02\x00CR\x03\x10\x00"
"""The bytes before the commit id in every answer to an append, and nowhere else."""
RECEIVE_BYTES = 256 * 1024
HISTORY_EVENTS = 1_000_000


def run(report: Report, data: Path, scale: float) -> None:
    """Appends in the ways of the issue, then the whole history read back."""
    seconds = 3 * scale
    with load.server(load.fresh(data)) as gates:
        port = load.port_of(gates["mq"])
        for connections, flight, events, goal in ((64, 1, 1, 15_000), (64, 16, 1, 30_000), (1, 4, 1000, 250_000)):
            rate = appending(port, connections, flight, events, seconds)
            what = f"{connections} connection(s) x {flight} in flight x {events} event(s)"
            report.figure(what, rate, "events/s", goal=goal)
    with load.server(load.fresh(data)) as gates:
        port = load.port_of(gates["mq"])
        fill(port, int(HISTORY_EVENTS * scale))
        report.figure("reading everything, stored records", reading(port), "events/s", goal=1_000_000)


def append_message(stream: int, events: int) -> bytes:
    """A message that appends."""
    fields = [b"AC", b"r", b"bench", b"stream-%d" % stream, b"-1", b"%d" % events, *EVENT * events]
    return encode([b"Res01", *fields])


def over_mq(token: str | None) -> load.Connect:
    """Makes connections that have authenticated, if there is a token."""

    def connect(port: int) -> socket.socket:
        connection = load.over_tcp(port)
        if token is not None:
            connection.sendall(encode([b"Res01", b"AU", b"r", token.encode()]))
            assert b"IA" in connection.recv(RECEIVE_BYTES), "the token was refused"
        return connection

    return connect


def statistics_message() -> bytes:
    """A message that costs the server little."""
    return encode([b"Res01", b"GS", b"r"])


def appending(
    port: int,
    connections: int,
    flight: int,
    events: int,
    seconds: float,
    connect: load.Connect = load.over_tcp,
    streams: int = 1,
) -> float:
    """Events per second of connections that each have so many commits under way, in turn to so many streams."""
    selector = selectors.DefaultSelector()
    sockets = [connect(port) for _ in range(connections)]
    for number, each in enumerate(sockets):
        messages = cycle([append_message(streams * number + stream, events) for stream in range(streams)])
        selector.register(each, selectors.EVENT_READ, messages)
        each.sendall(b"".join(islice(messages, flight)))
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            came = key.fileobj.recv(RECEIVE_BYTES).count(COMMITTED)
            assert came, "an append was not answered as committed"
            done += came
            key.fileobj.sendall(b"".join(islice(key.data, came)))
    for each in sockets:
        each.close()
    return done * events / elapsed


def fill(port: int, events: int, connect: load.Connect = load.over_tcp) -> None:
    """A history of commits of 1,000 events."""
    with connect(port) as connection:
        message, left = append_message(0, 1000), events // 1000
        for _ in range(left):
            connection.sendall(message)
            assert COMMITTED in connection.recv(RECEIVE_BYTES)


def reading(port: int, connect: load.Connect = load.over_tcp, until: int | None = None) -> float:
    """Events per second on the wire: received, put together, checksums checked."""
    parser = Parser(1 << 20, 1 << 30)
    with connect(port) as connection:
        position, started = 1, time.perf_counter()
        while True:
            answer = _ask(connection, parser, [b"RA", b"r", b"%d" % position, b"", b"", b"0"])
            for record in answer[7:]:
                # What the reader may not see is missing between records.
                position = Record.stored(record).last + 1
            if answer[5] == b"1" or (until is not None and position > until):
                return (position - 1) / (time.perf_counter() - started)


def _ask(connection: socket.socket, parser: Parser, fields: Sequence[bytes]) -> list[bytes]:
    """One request and its answer, as Res01L."""
    connection.sendall(encode([b"Res01L", *split_frames(join_fields(fields))]))
    while True:
        for message in parser.receive(connection.recv(RECEIVE_BYTES)):
            return split_fields(message[1:])
