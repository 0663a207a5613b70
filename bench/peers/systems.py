"""The systems under test: how each is started, and its own best way to do the same work from Python.

Every system acknowledges an append only after an fsync; modes that do not are separate systems whose name says so.
A system imports its client library when it is used, so that one that is not installed costs only itself.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from uuid import uuid4

import uvloop

from tests.postgres import postgres

CONTEXT: Final = "bench"
TYPE: Final = "OrderPlaced"
POOL: Final = 256
"""Commits that are built before the clock starts, then sent in turn."""
START_S_MAX: Final = 30.0
QUEUE_BATCH: Final = 100
REDIS_PAGE: Final = 1000


class Read(NamedTuple):
    """What a reader saw: enough to check, and enough to force every field to be built."""

    events: int
    body_bytes: int
    last_position: Any


class Load(NamedTuple):
    """Writers that each append commits of a number of events, with so many commits in flight, for some seconds."""

    writers: int
    events: int
    body_bytes: int
    seconds: float
    in_flight: int = 1


class System:
    """One system. `name` appears in tables; `missing()` says why it cannot run here."""

    name: ClassVar[str]
    durable: ClassVar = True
    reads: ClassVar = True
    streams: ClassVar = True
    queue: ClassVar = False
    writers_max: ClassVar = 1024

    @classmethod
    def missing(cls) -> str | None:
        """What has to be installed first; None if nothing."""
        return None

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        """A running server on an empty directory, or on one that it has used before: its address and its pid."""
        raise NotImplementedError

    def append(self, url: str, load: Load) -> int:
        """The number of events that were acknowledged."""
        raise NotImplementedError

    def read_all(self, url: str) -> Read:
        """Everything, as events."""
        raise NotImplementedError

    def read_stream(self, url: str, stream: str) -> Read:
        """One stream, as events."""
        raise NotImplementedError

    def consume(self, url: str, consumers: int, events: int) -> int:
        """Take and acknowledge so many events with a number of consumers; how many were acknowledged."""
        raise NotImplementedError

    def follow(self, url: str, events: int) -> list[float]:
        """Seconds from the call of an append to the event in a follower's hands, one by one."""
        raise NotImplementedError

    def count(self, url: str) -> int:
        """The number of events that the system says it has stored."""
        return self.read_all(url).events


# --- what most systems share ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, **options: Any) -> Iterator[int]:
    """A server process, once its port accepts connections."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options
    ) as server:
        try:
            deadline = time.monotonic() + START_S_MAX
            while socket.socket().connect_ex(("127.0.0.1", port)):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start")
                time.sleep(0.02)
            yield server.pid
        finally:
            server.terminate()


def stream_of(number: int) -> str:
    return f"order-{number % 64}"


def in_threads(number: int, work: Callable[[int], None]) -> None:
    """Call a function in so many threads at once, each with its number."""
    threads = [threading.Thread(target=work, args=(one,)) for one in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_threads(load: Load, connect: Callable[[int], Callable[[], object]]) -> int:
    """Blocking writers, a thread each. `connect(writer)` returns the function that appends the next commit."""
    appends = [connect(number) for number in range(load.writers)]
    done = [0] * load.writers
    stop = time.perf_counter() + load.seconds

    def write(number: int) -> None:
        append = appends[number]
        while time.perf_counter() < stop:
            append()
            done[number] += load.events

    if load.writers == 1:
        write(0)
    else:
        in_threads(load.writers, write)
    return sum(done)


async def with_tasks(load: Load, append: Callable[[int], Awaitable[object]]) -> int:
    """Writers that are tasks of one event loop. `append(writer)` appends the next commit."""
    done = 0
    stop = time.perf_counter() + load.seconds

    async def write(number: int) -> None:
        nonlocal done
        while time.perf_counter() < stop:
            await append(number)
            done += load.events

    await asyncio.gather(*(write(number) for number in range(load.writers * load.in_flight)))
    return done


def pool(load: Load, make: Callable[[bytes], Any]) -> Iterator[list[Any]]:
    """Commits, built beforehand; each is a list of what the system calls an event."""
    size = POOL if load.events == 1 else 16
    return cycle([[make(os.urandom(load.body_bytes)) for _ in range(load.events)] for _ in range(size)])


# --- Penstock ---------------------------------------------------------------------------------------------------


class Penstock(System):
    """Over its MqFrames gate, with the client it comes with."""

    name = "Penstock"
    queue = True

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        command = [sys.executable, "-m", "penstock", "serve", *self.store(directory), "--res", "tcp://127.0.0.1:0"]
        command += ["--mq", "127.0.0.1:0", "--remits", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
            try:
                assert server.stdout is not None
                gates = dict(pair.split("=", 1) for pair in server.stdout.readline().split()[2:])
                yield self.url(gates), server.pid
            finally:
                server.terminate()

    def store(self, _directory: Path) -> list[str]:
        return ["--data", str(_directory / "data")]

    def url(self, gates: dict[str, str]) -> str:
        return f"penstock://{gates['mq']}"

    def append(self, url: str, load: Load) -> int:
        import penstock

        commits = pool(load, lambda body: penstock.event(TYPE, body))
        if load.writers == 1:
            with penstock.connect(url) as client:
                return with_threads(
                    load, lambda number: lambda: client.append(CONTEXT, stream_of(number), next(commits))
                )

        async def write() -> int:
            async with penstock.aconnect(url) as client:
                return await with_tasks(load, lambda number: client.append(CONTEXT, f"writer-{number}", next(commits)))

        return uvloop.run(write())

    def read_all(self, url: str) -> Read:
        import penstock

        with penstock.connect(url) as client:
            return _touch(client.read_all())

    def read_stream(self, url: str, stream: str) -> Read:
        import penstock

        with penstock.connect(url) as client:
            return _touch(client.read_stream(CONTEXT, stream))

    def consume(self, url: str, consumers: int, events: int) -> int:
        import penstock

        with penstock.connect(url) as client:
            done = 0
            lock = threading.Lock()

            def work(number: int) -> None:
                nonlocal done
                queue = client.queue(CONTEXT, "bench", subscriber=f"consumer-{number}", count=QUEUE_BATCH)
                while done < events:
                    with queue.next(0.1) as batch:
                        size = len(batch)
                    with lock:
                        done += size

            in_threads(consumers, work)
            return done

    def follow(self, url: str, events: int) -> list[float]:
        import penstock

        with penstock.connect(url) as writer, ExitStack() as other:
            # A store without a server has one user.
            reader = writer if url.startswith("sqlite:") else other.enter_context(penstock.connect(url))
            source = reader.follow(writer.stats().head + 1, context=CONTEXT)
            return _latencies(
                events, lambda: writer.append(CONTEXT, "followed", [penstock.event(TYPE, b"x")]), lambda: next(source)
            )

    def count(self, url: str) -> int:
        import penstock

        with penstock.connect(url) as client:
            return int(client.stats().head)


def _touch(events: Iterable[Any]) -> Read:
    number, size, position, stream, kind = 0, 0, 0, "", ""
    for event in events:
        number += 1
        stream, kind, position = event.stream, event.type, event.position
        size += len(event.body)
    return Read(number, size, (position, stream, kind)[0])


def _latencies(events: int, append: Callable[[], object], wait: Callable[[], object]) -> list[float]:
    """Appends one event at a time and waits until another thread, which follows, has it."""
    seen: list[float] = []
    arrived = threading.Semaphore(0)

    def run() -> None:
        for _ in range(events):
            wait()
            seen.append(time.perf_counter())
            arrived.release()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.2)
    begun = []
    for _ in range(events):
        begun.append(time.perf_counter())
        append()
        arrived.acquire()
    thread.join()
    return [came - start for came, start in zip(seen, begun, strict=True)]


class PenstockZeroMq(Penstock):
    name = "Penstock, ZeroMQ"

    def url(self, gates: dict[str, str]) -> str:
        return f"zmq+{gates['res']}"


class PenstockEmbedded(Penstock):
    """Without a server: the client opens the store itself."""

    name = "Penstock, embedded"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        yield f"sqlite:///{directory / 'data'}", None


class PenstockPostgres(Penstock):
    name = "Penstock on PostgreSQL"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        with postgres(place=directory) as database:
            self._store = database.url("penstock")
            with super().server(directory) as running:
                yield running

    def store(self, _directory: Path) -> list[str]:
        return ["--store", self._store]


# --- peers ------------------------------------------------------------------------------------------------------


class UmaDb(System):
    name = "UmaDB"
    writers_max = 64

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("umadb", path=str(Path(sys.executable).parent)) else "umadb (make bench-peers)"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        port = free_port()
        command = [str(Path(sys.executable).parent / "umadb"), "--listen", f"127.0.0.1:{port}"]
        with process([*command, "--db-path", str(directory / "uma.db")], port) as pid:
            yield f"http://127.0.0.1:{port}", pid

    def append(self, url: str, load: Load) -> int:
        import umadb

        client = umadb.Client(url)
        commits = {
            number: pool(load, lambda body, n=number: umadb.Event(TYPE, body, [stream_of(n)], uuid4()))  # type: ignore[misc]
            for number in range(load.writers)
        }
        return with_threads(load, lambda number: lambda: client.append(next(commits[number])))

    def read_all(self, url: str) -> Read:
        import umadb

        # A client that is not kept cancels its reads.
        client = umadb.Client(url)
        return self._touch(client.read())

    def read_stream(self, url: str, stream: str) -> Read:
        import umadb

        client = umadb.Client(url)
        return self._touch(client.read(umadb.Query([umadb.QueryItem(tags=[stream])])))

    def _touch(self, events: Iterable[Any]) -> Read:
        number, size, position, stream, kind = 0, 0, 0, "", ""
        for one in events:
            number += 1
            event = one.event
            stream, kind, position = event.tags[0], event.event_type, one.position
            size += len(event.data)
        return Read(number, size, (position, stream, kind)[0])

    def follow(self, url: str, events: int) -> list[float]:
        import umadb

        writer, reader = umadb.Client(url), umadb.Client(url)
        source = reader.subscribe(after=writer.head())
        return _latencies(events, lambda: writer.append([umadb.Event(TYPE, b"x", ["followed"])]), lambda: next(source))

    def count(self, url: str) -> int:
        import umadb

        return umadb.Client(url).head() or 0


class RedisStreams(System):
    """One Redis stream per stream, and one of everything for reading in order."""

    name = "Redis Streams"
    queue = True
    policy: ClassVar = "always"

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("redis-server") else "redis-server (apt install redis-server)"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        with process([*command, "--appendonly", "yes", "--appendfsync", self.policy], port) as pid:
            yield f"redis://127.0.0.1:{port}", pid

    def append(self, url: str, load: Load) -> int:
        import redis
        import redis.asyncio

        commits = pool(load, lambda body: {"stream": "order-0", "type": TYPE, "body": body})

        def pipelined(client: Any) -> Any:
            pipeline = client.pipeline(transaction=True)
            for event in next(commits):
                pipeline.xadd("all", event)
            return pipeline.execute()

        if load.writers == 1:
            client: Any = redis.Redis.from_url(url)
            one = load.events == 1
            return with_threads(
                load, lambda _: (lambda: client.xadd("all", next(commits)[0])) if one else (lambda: pipelined(client))
            )

        async def write() -> int:
            async with redis.asyncio.Redis.from_url(url, max_connections=load.writers * load.in_flight) as many:
                return await with_tasks(load, lambda _: many.xadd("all", next(commits)[0]))

        return uvloop.run(write())

    def read_all(self, url: str) -> Read:
        import redis

        client: Any = redis.Redis.from_url(url)
        number, size, last, stream, kind = 0, 0, b"", b"", b""
        while page := client.xrange("all", min=b"(" + last if last else "-", count=REDIS_PAGE):
            for position, fields in page:
                last, stream, kind = position, fields[b"stream"], fields[b"type"]
                size += len(fields[b"body"])
            number += len(page)
        return Read(number, size, (last, stream, kind)[0])

    streams = False

    def consume(self, url: str, consumers: int, events: int) -> int:
        import redis

        client: Any = redis.Redis.from_url(url)
        client.xgroup_create("all", "bench", id="0")
        done = 0
        lock = threading.Lock()

        def work(number: int) -> None:
            nonlocal done
            mine: Any = redis.Redis.from_url(url)
            while done < events:
                for _, batch in mine.xreadgroup("bench", str(number), {"all": ">"}, count=QUEUE_BATCH, block=100) or ():
                    mine.xack("all", "bench", *(position for position, _ in batch))
                    with lock:
                        done += len(batch)

        in_threads(consumers, work)
        return done

    def follow(self, url: str, events: int) -> list[float]:
        import redis

        writer: Any = redis.Redis.from_url(url)
        reader: Any = redis.Redis.from_url(url)
        last = [reader.xrevrange("all", count=1)[0][0]]

        def wait() -> None:
            while not (found := reader.xread({"all": last[0]}, count=1, block=0)):
                pass
            last[0] = found[0][1][0][0]

        return _latencies(events, lambda: writer.xadd("all", {"type": TYPE, "body": b"x"}), wait)

    def count(self, url: str) -> int:
        import redis

        return int(redis.Redis.from_url(url).xlen("all"))


class RedisEverySecond(RedisStreams):
    name = "Redis Streams, fsync each second"
    policy = "everysec"
    durable = False


class JetStream(System):
    name = "JetStream"
    queue = True
    sync: ClassVar = "always"

    @classmethod
    def missing(cls) -> str | None:
        found = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        return None if found else "nats-server (make bench-peers)"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        port = free_port()
        configuration = directory / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}", sync_interval: {self.sync} }}\n'
        )
        command = [str(Path(sys.executable).parent / "nats-server"), "-c", str(configuration)]
        with process(command, port) as pid:
            yield f"nats://127.0.0.1:{port}", pid

    def _run(self, url: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        import nats
        from nats.js.errors import BadRequestError

        async def run() -> Any:
            connection = await nats.connect(url)
            stream = connection.jetstream(publish_async_max_pending=100_000, timeout=60)
            with suppress(BadRequestError):  # It is there.
                await stream.add_stream(name="all", subjects=["order.>"])
            try:
                return await work(stream)
            finally:
                await connection.close()

        return uvloop.run(run())

    def append(self, url: str, load: Load) -> int:
        commits = pool(load, bytes)
        headers = {"type": TYPE}

        async def write(stream: Any) -> int:
            async def append(number: int) -> None:
                futures = [
                    await stream.publish_async(f"order.{number}", body, headers=headers) for body in next(commits)
                ]
                await asyncio.gather(*futures)

            if load.events == 1:
                return await with_tasks(
                    load, lambda number: stream.publish(f"order.{number}", next(commits)[0], headers=headers)
                )
            return await with_tasks(load, append)

        return int(self._run(url, write))

    def read_all(self, url: str) -> Read:
        return self._read(url, "order.>")

    def read_stream(self, url: str, stream: str) -> Read:
        return self._read(url, stream.replace("-", "."))

    def _read(self, url: str, subject: str) -> Read:
        async def read(stream: Any) -> Read:
            subscription = await stream.subscribe(subject, stream="all", ordered_consumer=True)
            total = (await subscription.consumer_info()).num_pending
            number, size, position, name, kind = 0, 0, 0, "", ""
            async for message in subscription.messages:
                number += 1
                position, name, kind = message.metadata.sequence.stream, message.subject, message.headers["type"]
                size += len(message.data)
                if not message.metadata.num_pending:
                    break
            assert number >= total
            return Read(number, size, (position, name, kind)[0])

        result: Read = self._run(url, read)
        return result

    def consume(self, url: str, consumers: int, events: int) -> int:
        async def consume(stream: Any) -> int:
            import nats.errors

            subscription = await stream.pull_subscribe("order.>", durable="bench", stream="all")
            done = 0

            async def work() -> None:
                nonlocal done
                while done < events:
                    try:
                        batch = await subscription.fetch(QUEUE_BATCH, timeout=1)
                    except nats.errors.TimeoutError:
                        continue
                    for message in batch:
                        await message.ack()
                    done += len(batch)

            await asyncio.gather(*(work() for _ in range(consumers)))
            return done

        return int(self._run(url, consume))

    def follow(self, url: str, events: int) -> list[float]:
        async def follow(stream: Any) -> list[float]:
            subscription = await stream.subscribe("order.followed", stream="all", ordered_consumer=True)
            waits = []
            for _ in range(events):
                begun = time.perf_counter()
                await asyncio.gather(stream.publish("order.followed", b"x"), subscription.next_msg())
                waits.append(time.perf_counter() - begun)
            return waits

        result: list[float] = self._run(url, follow)
        return result

    def count(self, url: str) -> int:
        async def count_all(stream: Any) -> int:
            return int((await stream.stream_info("all")).state.messages)

        return int(self._run(url, count_all))


class JetStreamDefault(JetStream):
    name = "JetStream, default sync (2 minutes)"
    sync = "2m"
    durable = False


class Eventsourcing(System):
    """The recorder of the `eventsourcing` library on SQLite, in the process of its caller."""

    name = "eventsourcing on SQLite"
    writers_max = 1

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        yield str(directory / "events.db"), None

    def _recorder(self, url: str) -> Any:
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        recorder = SQLiteApplicationRecorder(SQLiteDatastore(url))
        recorder.create_table()
        return recorder

    def append(self, url: str, load: Load) -> int:
        from eventsourcing.persistence import StoredEvent

        recorder = self._recorder(url)
        versions = count(1)
        ids = [uuid4() for _ in range(64)]
        commits = pool(load, bytes)

        def append() -> None:
            events = [StoredEvent(ids[0], next(versions), TYPE, body) for body in next(commits)]
            recorder.insert_events(events)

        return with_threads(load, lambda _: append)

    def read_all(self, url: str) -> Read:
        recorder = self._recorder(url)
        number, size, position, stream, kind = 0, 0, 0, "", ""
        while page := recorder.select_notifications(position + 1, 1000):
            for one in page:
                stream, kind, position = one.originator_id, one.topic, one.id
                size += len(one.state)
            number += len(page)
        return Read(number, size, (position, stream, kind)[0])

    streams = False


class EventsourcingPostgres(Eventsourcing):
    name = "eventsourcing on PostgreSQL"

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        with postgres(place=directory) as database:
            yield database.url(port=database.port), None

    def _recorder(self, url: str) -> Any:
        from urllib.parse import urlsplit

        from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

        parts = urlsplit(url)
        store = PostgresDatastore(
            parts.path.lstrip("/"),
            parts.hostname or "",
            str(parts.port or 5432),
            parts.username or "",
            parts.password or "",
        )
        recorder = PostgresApplicationRecorder(store, events_table_name="events")
        recorder.create_table()
        return recorder


class PlainPostgres(System):
    """A table with a bigserial, one INSERT per event or one executemany per commit."""

    name = "PostgreSQL table"
    writers_max = 64
    streams = True

    @contextmanager
    def server(self, directory: Path) -> Iterator[tuple[str, int | None]]:
        with postgres(place=directory) as database:
            yield database.url(port=database.port), None

    def _connect(self, url: str) -> Any:
        import psycopg

        connection = psycopg.connect(url, autocommit=True)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS events (position bigserial PRIMARY KEY, stream text NOT NULL,"
            " type text NOT NULL, body bytea NOT NULL)"
        )
        return connection

    def append(self, url: str, load: Load) -> int:
        commits = pool(load, lambda body: ("order-0", TYPE, body))

        def connect(_: int) -> Callable[[], object]:
            connection = self._connect(url)
            statement = "INSERT INTO events (stream, type, body) VALUES (%s, %s, %s)"

            def append() -> None:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany(statement, next(commits))

            return append

        return with_threads(load, connect)

    def read_all(self, url: str) -> Read:
        return self._read(url, "SELECT position, stream, type, body FROM events ORDER BY position", ())

    def read_stream(self, url: str, stream: str) -> Read:
        statement = "SELECT position, stream, type, body FROM events WHERE stream = %s ORDER BY position"
        return self._read(url, statement, (stream,))

    def _read(self, url: str, statement: str, values: tuple[str, ...]) -> Read:
        number, size, last = 0, 0, 0
        with self._connect(url) as connection, connection.transaction(), connection.cursor("all") as cursor:
            cursor.itersize = 10_000
            cursor.execute(statement, values)
            for position, _stream, _type, body in cursor:
                number += 1
                size += len(body)
                last = position
        return Read(number, size, last)


SYSTEMS: Final = {
    system.name: system
    for system in (
        Penstock,
        UmaDb,
        RedisStreams,
        JetStream,
        PenstockZeroMq,
        PenstockEmbedded,
        PenstockPostgres,
        Eventsourcing,
        EventsourcingPostgres,
        PlainPostgres,
        RedisEverySecond,
        JetStreamDefault,
    )
}


def call(connection: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # What takes long to import is imported before the clock starts.
    for name in ("penstock", "umadb", "redis.asyncio", "nats", "psycopg"):
        with suppress(ImportError):
            import_module(name)
    used, begun = time.process_time(), time.perf_counter()
    result = work(*arguments)
    connection.send((result, time.perf_counter() - begun, time.process_time() - used))
