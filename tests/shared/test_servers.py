"""Two real servers on one PostgreSQL that both may be killed at any time."""

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock import Client
from penstock.client.aio import AsyncClient
from penstock.errors import PenstockError
from penstock.store import open_reader
from penstock.store.contract import ReadLimits
from tests.client.conftest import MAKERS, end
from tests.client.support import calls_of
from tests.engine.logs import until
from tests.postgres import Postgres, Schemas, postgres
from tests.shared.serving import SharedServer
from tests.test_server import PATIENCE_S
from tests.test_server import until as wait_until

PASSWORD = "correct-horse"
EVENTS = 60
"""That each writer appends."""
TTL_S = 2.0


@pytest.fixture
def servers(tmp_path: Path, schemas: Schemas) -> Iterator[tuple[SharedServer, SharedServer]]:
    # A password that nobody asks for must not be shown by anybody all the same.
    url = schemas.url().replace("postgres@", f"postgres:{PASSWORD}@")
    with SharedServer(tmp_path / "one.log", url) as one, SharedServer(tmp_path / "two.log", url) as two:
        yield one, two


@pytest.fixture(scope="module")
def fragile() -> Iterator[Postgres]:
    """One that a test may kill."""
    with postgres() as started:
        yield started


@pytest.mark.long
def test_two_servers_serve_one_history_and_show_no_password(servers: tuple[SharedServer, SharedServer]) -> None:
    one, two = servers
    with penstock.connect(one.url) as first, penstock.connect(two.url) as second:
        for number, client in enumerate((first, second, first)):
            client.append("shop", "order-1", [penstock.event("Placed", number)], expected=number + 1)
        assert [event.json() for event in second.read_all()] == [0, 1, 2]
        assert first.stats().store_id == second.stats().store_id
    shown = [server.get(path).text for server in servers for path in ("/", "/health", "/metrics")]
    shown += [server.said() for server in servers]
    shown += [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for server in servers for pid in server.processes()]
    assert not [text for text in shown if PASSWORD in text]
    assert all(server.get("/health").status_code == 200 for server in servers)


@pytest.mark.long
def test_an_iterator_is_taken_over_from_a_server_that_was_killed(servers: tuple[SharedServer, SharedServer]) -> None:
    with penstock.connect(servers[0].url) as client:
        client.log("log").create()
        client.log("log").append(list(range(200)))
        client.iterator("kept").create("log", "filter", "return msg % 2 == 0", indexed=True)
        assert client.iterator("kept").next(-1) == [198]
    # Either of them may have taken the lease, and the other has run nothing.
    (holder,) = (server for server in servers if server.metric("penstock_lua_messages_total"))
    (other,) = (server for server in servers if server is not holder)
    holder.kill()
    with penstock.connect(other.url) as client:
        client.log("log").append([200])
        # The first one holds the lease still.
        assert client.iterator("kept").next(-1) == [200]
        assert client.iterator("kept").next() == list(range(0, 201, 2))
    assert other.metric("penstock_lua_messages_total") == 1


# --- clients that go on at the other server ------------------------------------------------------------------


def both(servers: tuple[SharedServer, SharedServer]) -> str:
    """One URL with both servers."""
    return f"penstock://{servers[0].addresses['mq']},{servers[1].addresses['mq']}"


@pytest.mark.parametrize("connect", MAKERS.values(), ids=MAKERS.keys())
def test_a_client_whose_server_is_killed_goes_on_at_the_other_one_and_writes_nothing_twice(
    servers: tuple[SharedServer, SharedServer], connect: Callable[..., Client]
) -> None:
    sent = [penstock.event("Made", number) for number in range(300)]
    client = connect(both(servers), timeout=PATIENCE_S)
    try:
        with ThreadPoolExecutor(1) as killers:
            for number, event in enumerate(sent):
                # In the middle of a call, or between two.
                if number == 100:
                    killers.submit(servers[0].kill)
                elif number == 150:
                    killers.submit(servers[0].start).result()
                elif number == 200:
                    killers.submit(servers[1].kill)
                expected = penstock.ANY if number % 2 else number + 1
                client.append("shop", "s", [event], expected=expected)
        client.append_many([("shop", "t", [event]) for event in sent])
        for stream in ("s", "t"):
            assert [event.id for event in client.read_stream("shop", stream)] == [event.id for event in sent]
        assert client.stats().head == 600
    finally:
        end(client)


def test_an_append_that_reaches_a_paused_server_too_is_written_once(
    servers: tuple[SharedServer, SharedServer],
) -> None:
    """The first server reads it when the second one has carried out the repeat."""
    one = servers[0]
    with penstock.connect(both(servers), timeout=PATIENCE_S) as client, ThreadPoolExecutor(1) as threads:
        for sequence, expected in ((1, penstock.ANY), (2, 2), (3, penstock.ANY)):
            link = calls_of(client).transport._link
            assert str(link.host) == one.addresses["mq"]
            one.process.send_signal(signal.SIGSTOP)
            try:
                append = partial(client.append, "shop", "s", [penstock.event("Made", sequence)], expected=expected)
                appended = threads.submit(append)
                wait_until(lambda link=link: bool(link.pending) and not link._out)  # type: ignore[misc]
                link._stream._socket.shutdown(socket.SHUT_RDWR)
                assert appended.result(PATIENCE_S).sequence == sequence
            finally:
                one.process.send_signal(signal.SIGCONT)
            received = partial(one.metric, 'penstock_commands_total{command="AB"}')
            wait_until(lambda received=received, sequence=sequence: received() == 2 * sequence - 1)  # type: ignore[misc]
            with penstock.connect(one.url) as direct:
                # It is written after what the server had received before.
                direct.append("shop", "t", [penstock.event("Made")])
            assert [event.json() for event in client.read_stream("shop", "s")] == list(range(1, sequence + 1))
            # Back to the first server.
            calls_of(client).transport._link._stream._socket.shutdown(socket.SHUT_RDWR)
            client.stats()


# --- everything at once ---------------------------------------------------------------------------------------


class Mixed:
    """Writers, consumers and followers of two servers, and what they were told."""

    def __init__(self, clients: tuple[AsyncClient, AsyncClient]) -> None:
        self.clients = clients
        self.acknowledged: dict[tuple[str, int], bytes] = {}
        self.taken: set[int] = set()
        self.done: set[int] = set()
        self.seen: tuple[list[int], list[int]] = ([], [])
        self.total = 2 * len(clients) * EVENTS

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(self.clients):
                for name in ("a", "b"):
                    group.create_task(self.write(client, f"w/{number}{name}"))
                group.create_task(self.consume(client, f"consumer-{number}"))
                group.create_task(self.follow(client, self.seen[number]))

    async def write(self, client: AsyncClient, stream: str) -> None:
        for sequence in range(1, EVENTS + 1):
            event = penstock.event("Made", sequence)
            while (stream, sequence) not in self.acknowledged:
                try:
                    await client.append("mixed", stream, [event], expected=sequence)
                except (PenstockError, OSError):
                    continue
                self.acknowledged[stream, sequence] = event.id

    async def consume(self, client: AsyncClient, name: str) -> None:
        while len(self.taken) < self.total:
            await self.consume_one(client, name, 0.2)

    async def consume_one(self, client: AsyncClient, name: str, wait: float) -> bool:
        """Take a batch and acknowledge it; whether there may be another."""
        queue = client.queue("mixed", "work", subscriber=name, filter="w/", count=5, ttl=TTL_S)
        try:
            batch = await queue.take(wait)
            positions = {event.position for event in batch}
            assert not positions & self.done, "it was acknowledged before"
            self.taken |= positions
            if positions:
                await queue.acknowledge(batch)
        except (PenstockError, OSError):
            return True
        self.done |= positions
        return bool(positions)

    async def follow(self, client: AsyncClient, seen: list[int]) -> None:
        position = 1
        while len(seen) < self.total:
            try:
                page = await client.read_page(position, context="mixed", wait=5.0)
            except (PenstockError, OSError):
                continue
            seen += [event.position for event in page.events]
            position = page.next


@pytest.fixture
async def shared(tmp_path: Path, fragile: Postgres) -> AsyncIterator[tuple[str, list[SharedServer], Mixed]]:
    url = fragile.url("shared")
    async with AsyncExitStack() as stack:
        pair = [stack.enter_context(SharedServer(tmp_path / f"{number}.log", url)) for number in range(2)]
        one, two = [await stack.enter_async_context(penstock.aconnect(server.url, timeout=10)) for server in pair]
        yield url, pair, Mixed((one, two))


async def test_nothing_is_lost_or_doubled_when_a_server_and_the_database_are_killed_under_load(
    shared: tuple[str, list[SharedServer], Mixed], fragile: Postgres
) -> None:
    url, servers, mixed = shared
    running = asyncio.create_task(mixed.run())
    steps = itertools.count(1)

    async def part_done() -> None:
        part = next(steps) * mixed.total // 5
        await until(lambda: len(mixed.acknowledged) >= part or running.done())

    await part_done()
    servers[0].kill()
    await part_done()
    await asyncio.to_thread(servers[0].start)
    await part_done()
    fragile.kill()
    await asyncio.to_thread(fragile.start)
    await part_done()
    servers[1].kill()
    await asyncio.to_thread(servers[1].start)
    await running
    # What was taken and not acknowledged comes again.
    while await mixed.consume_one(mixed.clients[0], "last", 2 * TTL_S):
        pass

    assert mixed.seen[0] == mixed.seen[1] == list(range(1, mixed.total + 1))
    assert mixed.taken == set(mixed.seen[0])
    with closing(open_reader(url)) as store:
        assert store.head() == mixed.total
        (queue,) = store.find_queues("work")
        assert store.allocations(queue.id, 0, 10) == []
        for stream in {stream for stream, _ in mixed.acknowledged}:
            found = store.read_stream("mixed", stream, 1, None, ReadLimits()).events
            assert [(event.sequence, event.id) for event in found] == [
                (sequence, mixed.acknowledged[stream, sequence]) for sequence in range(1, EVENTS + 1)
            ]
        assert list(store.verify(lambda done, total: None)) == []
    assert all(server.get("/health").status_code == 200 for server in servers)
    assert not [line for server in servers for line in server.said().splitlines() if "Traceback" in line]
