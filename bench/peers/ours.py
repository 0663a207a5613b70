"""Penstock through each of its gates, inside the caller's process, and on PostgreSQL."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit
from zlib import crc32

import cbor2
import pyarrow.compute as pc
import uvloop

import penstock
import penstock.store.arrow  # As for the others, nothing is imported while the clock runs.
from bench.peers.system import (
    POSTGRES,
    QUEUE_BATCH,
    STREAMS,
    TYPE,
    Clock,
    Commit,
    Done,
    Load,
    Program,
    Server,
    System,
    commits_of,
    consume_in_threads,
    free_port,
    latencies,
    program,
    touch,
    with_tasks,
    with_threads,
)
from bench.remits import LOG_ADD, MESSAGE_ADD, OK
from penstock.wire.remits.frames import REQUEST, pack
from tests.postgres import postgres

CONTEXT: Final = "bench"
WAIT_S: Final = 0.1
CONNECTIONS_MAX: Final = 2000
REQUESTS_MAX: Final = 20_000
"""1,024 writers with 16 in flight have more than the server lets wait by default, which then answers busy."""


class Penstock(System):
    """Over its MqFrames gate, with the client it comes with."""

    name = "Penstock"
    main = True
    queue = True
    arrow = True
    follows = True
    recovers = True
    gate: ClassVar = "mq"

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        with self._serve("--data", str(directory / "data")) as (url, started):
            yield Server(url, (started,))

    @contextmanager
    def _serve(self, *store: str) -> Iterator[tuple[str, Program]]:
        ports = {gate: free_port() for gate in ("res", "mq", "remits", "http")}
        command = [sys.executable, "-m", "penstock", "serve", *store]
        for gate, port in ports.items():
            command += [f"--{gate}", f"tcp://127.0.0.1:{port}" if gate == "res" else f"127.0.0.1:{port}"]
        for name in ("remits-connections-max", "remits-connections-per-address-max"):
            command += [f"--{name}", str(CONNECTIONS_MAX)]
        command += ["--writer-queue-max", str(REQUESTS_MAX)]
        with program(command, ports[self.gate]) as started:
            yield self.url(ports), started

    def url(self, ports: dict[str, int]) -> str:
        return f"penstock://127.0.0.1:{ports['mq']}"

    def append(self, url: str, load: Load) -> Done:
        commits = commits_of(load, lambda _stream, body: penstock.event(TYPE, body))
        if load.callers == 1:
            with penstock.connect(url) as client:
                return with_threads(
                    load, commits, lambda _: lambda commit: client.append(CONTEXT, commit.stream, commit.events)
                )

        async def write() -> Done:
            async with penstock.aconnect(url) as client:
                return await with_tasks(
                    load, commits, lambda _, commit: client.append(CONTEXT, commit.stream, commit.events)
                )

        return uvloop.run(write())

    def read_all(self, url: str) -> Done:
        with penstock.connect(url) as client:
            return touch(lambda: _rows(client.read_all()))

    def read_stream(self, url: str, stream: str) -> Done:
        with penstock.connect(url) as client:
            return touch(lambda: _rows(client.read_stream(CONTEXT, stream)))

    def read_arrow(self, url: str) -> Done:
        with penstock.connect(url) as client:
            clock = Clock()
            number = size = 0
            for batch in client.arrow_batches():
                number += batch.num_rows
                size += pc.sum(pc.binary_length(batch.column("body"))).as_py()
            return clock.done(number, number, size)

    def consume(self, url: str, consumers: int, seconds: float) -> Done:
        with penstock.connect(url) as client:

            def connect(number: int) -> Callable[[], list[Any]]:
                queue = client.queue(CONTEXT, "bench", subscriber=f"consumer-{number}", count=QUEUE_BATCH)

                def batch() -> list[Any]:
                    with queue.next(WAIT_S) as events:
                        return [event.position for event in events]

                return batch

            return consume_in_threads(consumers, seconds, connect)

    def follow(self, url: str, events: int) -> list[float]:
        with penstock.connect(url) as writer, ExitStack() as other:
            # A store without a server has one user.
            reader = writer if url.startswith("sqlite:") else other.enter_context(penstock.connect(url))
            source = reader.follow(writer.stats().head + 1, context=CONTEXT)
            event = [penstock.event(TYPE, b"x")]
            return latencies(events, lambda: writer.append(CONTEXT, "followed", event), lambda: next(source))

    def count(self, url: str) -> int:
        with penstock.connect(url) as client:
            return int(client.stats().head)


def _rows(events: Iterable[penstock.Event]) -> Iterator[tuple[str, str, int, bytes]]:
    return ((event.stream, event.type, event.position, event.body) for event in events)


class PenstockZeroMq(Penstock):
    name = "Penstock, ZeroMQ"
    main = False
    recovers = False
    gate = "res"

    def url(self, ports: dict[str, int]) -> str:
        return f"zmq+tcp://127.0.0.1:{ports['res']}"


class PenstockRemits(Penstock):
    """Logs of CBOR messages over plain sockets; what was added is read back over the MqFrames gate."""

    name = "Penstock, Remits"
    main = False
    queue = arrow = follows = recovers = streams = False

    def url(self, ports: dict[str, int]) -> str:
        return f"{super().url(ports)}#{ports['remits']}"

    def append(self, url: str, load: Load) -> Done:
        load, each = load.bundled(), load.events
        answers = load.events // each * OK

        def framed(commit: Commit) -> Commit:
            """One request for each commit, one behind the other if several are in flight."""
            messages = [cbor2.dumps(body) for body in commit.events]
            parts = (messages[first : first + each] for first in range(0, len(messages), each))
            frames = [
                pack(REQUEST, MESSAGE_ADD, cbor2.dumps({"log_name": commit.stream, "messages": part})) for part in parts
            ]
            return Commit(commit.stream, [b"".join(frames)], sum(map(crc32, messages)))

        commits = commits_of(load, lambda _stream, body: body, framed)

        async def write() -> Done:
            host, port = urlsplit(url).hostname, int(url.rpartition("#")[2])
            connections = [await asyncio.open_connection(host, port) for _ in range(load.writers)]
            reader, writer = connections[0]
            for number in range(STREAMS):
                writer.write(pack(REQUEST, LOG_ADD, cbor2.dumps({"log_name": f"order-{number}"})))
                await reader.readexactly(len(OK))

            async def append(number: int, commit: Commit) -> None:
                reader, writer = connections[number]
                writer.write(commit.events[0])
                if await reader.readexactly(len(answers)) != answers:
                    raise RuntimeError("a message was refused")

            return await with_tasks(load, commits, append)

        return uvloop.run(write())

    def read_all(self, url: str) -> Done:
        return super().read_all(url.partition("#")[0])

    def count(self, url: str) -> int:
        return super().count(url.partition("#")[0])


class PenstockEmbedded(Penstock):
    """Without a server: the client opens the store itself."""

    name = "Penstock, embedded"
    main = recovers = False

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        yield Server(f"sqlite:///{directory / 'data'}")


class PenstockPostgres(Penstock):
    name = "Penstock on PostgreSQL"
    main = False

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        with ExitStack() as stack:
            database = stack.enter_context(postgres(*POSTGRES, place=directory))
            url, started = stack.enter_context(self._serve("--store", database.url("penstock")))
            yield Server(url, (database, started))
