"""Redis Streams: the server of the machine, and redis-py with hiredis."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import hiredis  # noqa: F401 -- redis-py takes it if it is there, and is slower without
import redis
import redis.asyncio
import uvloop

from bench.peers.system import (
    QUEUE_BATCH,
    TYPE,
    Commit,
    Done,
    Load,
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

STREAM: Final = "all"
PAGE: Final = 1000
WAIT_MS: Final = 100


class RedisStreams(System):
    """One Redis stream for everything, because only that can be read in order. Replies are parsed by hiredis."""

    name = "Redis Streams"
    main = True
    streams = False
    queue = True
    follows = True
    recovers = True
    policy: ClassVar = "always"

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        with program([*command, "--appendonly", "yes", "--appendfsync", self.policy], port) as started:
            yield Server(f"redis://127.0.0.1:{port}", (started,))

    def append(self, url: str, load: Load) -> Done:
        # A client has no way to share a connection but a pipeline. A commit is a transaction.
        load, atomic = load.bundled(), load.in_flight == 1
        commits = commits_of(load, lambda stream, body: {"stream": stream, "type": TYPE, "body": body})

        def prepared(client: Any, commit: Commit) -> Any:
            pipeline = client.pipeline(transaction=atomic)
            for event in commit.events:
                pipeline.xadd(STREAM, event)
            return pipeline.execute()

        def append(client: Any, commit: Commit) -> Any:
            return client.xadd(STREAM, commit.events[0]) if load.events == 1 else prepared(client, commit)

        if load.callers == 1:
            client = redis.Redis.from_url(url)
            return with_threads(load, commits, lambda _: lambda commit: append(client, commit))

        async def write() -> Done:
            async with redis.asyncio.Redis.from_url(url, max_connections=load.writers) as many:
                return await with_tasks(load, commits, lambda _, commit: append(many, commit))

        return uvloop.run(write())

    def read_all(self, url: str) -> Done:
        client = redis.Redis.from_url(url)
        return touch(lambda: self._rows(client))

    @staticmethod
    def _rows(client: Any) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        last = b""
        while page := client.xrange(STREAM, min=b"(" + last if last else "-", count=PAGE):
            for position, fields in page:
                yield fields[b"stream"], fields[b"type"], position, fields[b"body"]
            last = page[-1][0]

    def consume(self, url: str, consumers: int, seconds: float) -> Done:
        redis.Redis.from_url(url).xgroup_create(STREAM, "bench", id="0")

        def connect(number: int) -> Callable[[], list[Any]]:
            client: Any = redis.Redis.from_url(url)

            def batch() -> list[Any]:
                found = client.xreadgroup("bench", str(number), {STREAM: ">"}, count=QUEUE_BATCH, block=WAIT_MS)
                positions = [position for position, _ in found[0][1]] if found else []
                if positions:
                    client.xack(STREAM, "bench", *positions)
                return positions

            return batch

        return consume_in_threads(consumers, seconds, connect)

    def follow(self, url: str, events: int) -> list[float]:
        writer: Any = redis.Redis.from_url(url)
        reader: Any = redis.Redis.from_url(url)
        last = reader.xrevrange(STREAM, count=1)[0][0]

        def wait() -> None:
            nonlocal last
            found = reader.xread({STREAM: last}, count=1, block=0)
            last = found[0][1][0][0]

        return latencies(events, lambda: writer.xadd(STREAM, {"type": TYPE, "body": b"x"}), wait)

    def count(self, url: str) -> int:
        return int(redis.Redis.from_url(url).xlen(STREAM))


class RedisEverySecond(RedisStreams):
    name = "Redis Streams, fsync each second"
    main = recovers = False
    policy = "everysec"
    durable = False
