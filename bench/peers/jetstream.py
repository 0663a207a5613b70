"""JetStream: nats-server, and nats-py."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final
from zlib import crc32

import nats
import uvloop
from nats.errors import TimeoutError as NothingLeft
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

from bench.peers.system import (
    QUEUE_BATCH,
    TYPE,
    Clock,
    Commit,
    Done,
    Load,
    Server,
    System,
    commits_of,
    free_port,
    program,
    with_tasks,
)

STREAM: Final = "all"
WAIT_S: Final = 0.1


class JetStream(System):
    """Publishers share a connection. A commit of 1,000 events is an atomic batch, which is also the quickest way."""

    name = "JetStream"
    main = True
    queue = True
    follows = True
    recovers = True
    sync: ClassVar = "always"
    confirmed: ClassVar = True
    """Whether consumers wait for the answers to their acknowledgements."""

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        port = free_port()
        configuration = directory / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}", sync_interval: {self.sync} }}\n'
        )
        with program([str(Path(sys.executable).parent / "nats-server"), "-c", str(configuration)], port) as started:
            yield Server(f"nats://127.0.0.1:{port}", (started,))

    def append(self, url: str, load: Load) -> Done:
        commits = commits_of(load, lambda _stream, body: body)
        batches = count(time.time_ns())

        async def write() -> Done:
            async with self._connected(url) as stream:

                async def single(_: int, commit: Commit) -> None:
                    await stream.publish(_subject(commit.stream), commit.events[0], headers={"type": TYPE})

                async def batch(_: int, commit: Commit) -> None:
                    subject, last = _subject(commit.stream), len(commit.events)
                    headers = {"type": TYPE, "Nats-Batch-Id": str(next(batches))}
                    for number, body in enumerate(commit.events[:-1], 1):
                        headers["Nats-Batch-Sequence"] = str(number)
                        await stream._nc.publish(subject, body, headers=headers)
                    headers |= {"Nats-Batch-Sequence": str(last), "Nats-Batch-Commit": "1"}
                    answer = await stream.publish(subject, commit.events[-1], headers=headers)
                    if answer.batch_size != last:
                        raise RuntimeError(f"a batch of {last} events was stored as {answer}")

                return await with_tasks(load, commits, single if load.events == 1 else batch)

        return uvloop.run(write())

    @asynccontextmanager
    async def _connected(self, url: str) -> AsyncIterator[Any]:
        connection = await nats.connect(url)
        stream = connection.jetstream(timeout=60)
        with suppress(BadRequestError):  # It is there.
            await stream.add_stream(StreamConfig(name=STREAM, subjects=["order.>"], allow_atomic=True))
        try:
            yield stream
        finally:
            await connection.close()

    def read_all(self, url: str) -> Done:
        return uvloop.run(self._read(url, "order.>"))

    def read_stream(self, url: str, stream: str) -> Done:
        return uvloop.run(self._read(url, _subject(stream)))

    async def _read(self, url: str, subject: str) -> Done:
        async with self._connected(url) as stream:
            clock = Clock()
            subscription = await stream.subscribe(subject, stream=STREAM, ordered_consumer=True)
            information = await subscription.consumer_info()
            left = information.num_pending + information.delivered.consumer_seq
            number = check = 0
            async for message in subscription.messages:
                _touched = message.subject, message.headers["type"], message.metadata.sequence.stream
                number += 1
                check += crc32(message.data)
                if number == left:
                    break
            return clock.done(number, number, check)

    def consume(self, url: str, consumers: int, seconds: float) -> Done:
        async def consume() -> Done:
            async with self._connected(url) as stream:
                subscription = await stream.pull_subscribe("order.>", durable="bench", stream=STREAM)
                taken: set[int] = set()
                clock = Clock()

                async def work() -> None:
                    while time.perf_counter() < clock.began + seconds:
                        try:
                            batch = await subscription.fetch(QUEUE_BATCH, timeout=WAIT_S)
                        except NothingLeft:
                            return
                        await asyncio.gather(*(one.ack_sync() if self.confirmed else one.ack() for one in batch))
                        taken.update(one.metadata.sequence.stream for one in batch)

                await asyncio.gather(*(work() for _ in range(consumers)))
                return clock.done(len(taken))

        return uvloop.run(consume())

    def follow(self, url: str, events: int) -> list[float]:
        async def follow() -> list[float]:
            async with self._connected(url) as stream:
                subscription = await stream.subscribe("order.followed", stream=STREAM, ordered_consumer=True)
                waits = []
                for _ in range(events):
                    begun = time.perf_counter()
                    publishing = asyncio.ensure_future(stream.publish("order.followed", b"x"))
                    await subscription.next_msg()
                    waits.append(time.perf_counter() - begun)
                    await publishing
                return waits

        return uvloop.run(follow())

    def count(self, url: str) -> int:
        async def count_all() -> int:
            async with self._connected(url) as stream:
                return int((await stream.stream_info(STREAM)).state.messages)

        return uvloop.run(count_all())


def _subject(stream: str) -> str:
    return stream.replace("-", ".")


class JetStreamDefault(JetStream):
    name = "JetStream, sync every 2 minutes"
    main = recovers = False
    sync = "2m"
    confirmed = False
    durable = False
