"""Servers that are killed, stopped and started again under their clients, and where they can listen."""

import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.store.record import HEADER, Record
from tests.gates.res_client import PATIENCE_S, Answer
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, NewEvent, StoredEvent, an_event
from tests.gates.retries import Steady, free_port
from tests.gates.serving import ANY_PORT, Served, environment, until

pytestmark = pytest.mark.long

EVENTS = 300


class Worker(threading.Thread):
    """A client at work in a thread; `finish` waits for it and tells what went wrong."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Steady(self.endpoint) as client:
                self.work(client)
        except BaseException as error:  # noqa: BLE001 - told by finish
            self.failure = error

    def work(self, client: Steady) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.join()
        if self.failure is not None:
            raise self.failure


class Writer(Worker):
    """Appends one event after the other, each at its version, so that a repeat is known."""

    written = 0

    def work(self, client: Steady) -> None:
        for number in range(1, EVENTS + 1):
            client.append("shop", "s", number, an_event(str(number).encode()))
            self.written = number

    def wait_for(self, number: int) -> None:
        """Wait until this event is written."""
        until(lambda: self.written >= number or self.failure is not None)


class Subscriber(Worker):
    """Fetches and progresses until it has seen everything."""

    def work(self, client: Steady) -> None:
        self.seen: list[int] = []
        (number,) = client.register("ann", ("shop", "*", LONG_AGO))
        while not self.seen or self.seen[-1] < EVENTS:
            self.seen += [int(event.body) for event in self._fetched(client, number)]

    def _fetched(self, client: Steady, number: int) -> list[StoredEvent]:
        answer = client.ask("FW", b"200", b"1", str(number).encode(), b"7")
        batch = client.batch(answer, number)
        if batch:
            client.progress((number, batch[-1].time))
        return batch


class Consumer(Worker):
    """Takes from a queue and acknowledges until it has seen everything."""

    def work(self, client: Steady) -> None:
        self.seen: list[int] = []
        queued = client.subscribe("shop", "work", "ann", count=7, ttl_ms=2000)
        while not self.seen or self.seen[-1] < EVENTS:
            self.seen += [int(body) for body in queued.bodies]
            fields = client.acknowledge_fields("work", "ann", queued.markers, 7, 2000)
            queued = client.queued(client.ask("AW", b"200", b"shop", *fields))


def history(client: Extended) -> list[tuple[int, str, int, UUID]]:
    """Position, stream, sequence and id of everything."""
    found: list[tuple[int, str, int, UUID]] = []
    following, end = 1, False
    while not end:
        page = client.read_all(following)
        for data in page.records:
            record = Record(data, HEADER.unpack_from(data)[5])
            found += [(event.position, event.stream, event.sequence, event.uuid) for event in record.events()]
        following, end = page.next, page.end
    return found


def deliveries_are_in_order(seen: list[int]) -> bool:
    """Whether everything came, in order, but for batches that came again."""
    highest = 0
    for number in seen:
        if number > highest + 1:
            return False
        highest = max(highest, number)
    return highest == EVENTS


# ---------------------------------------------------------------- killed and started again


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_clients_of_a_killed_server_come_back_and_lose_nothing(tmp_path: Path, place: Path, scheme: str) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"ipc://{place}/res"
    writer, subscriber, consumer = Writer(endpoint), Subscriber(endpoint), Consumer(endpoint)
    for worker in (writer, subscriber, consumer):
        worker.start()
    for _ in range(2):
        with Served(tmp_path / "data", res=endpoint) as server:
            assert server.res == endpoint
            writer.wait_for(writer.written + EVENTS // 5)
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with Served(tmp_path / "data", res=endpoint) as server, Extended(endpoint) as client:
        for worker in (writer, subscriber, consumer):
            worker.finish()
        found = history(client)
        assert server.stop() == 0
    assert [(position, sequence) for position, _, sequence, _ in found] == [(n, n) for n in range(1, EVENTS + 1)]
    assert len({uuid for *_, uuid in found}) == EVENTS
    assert deliveries_are_in_order(subscriber.seen)
    assert deliveries_are_in_order(consumer.seen)
    # Nothing came again but what was under way when a server was killed.
    assert len(subscriber.seen) <= EVENTS + 2 * 8
    assert len(consumer.seen) <= EVENTS + 2 * 7


def test_subscriptions_and_queues_are_where_they_were(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, Extended(server.res) as client:
        client.append("shop", "s", 1, *(an_event(str(number).encode()) for number in range(6)))
        (number,) = client.register("ann", ("shop", "*", LONG_AGO))
        client.progress((number, client.fetch(number, 1)[-1].time))
        batch = client.fetch(number, 2)
        done = client.subscribe("shop", "work", "ann", count=1)
        held = client.acknowledge("work", "ann", done.markers, count=2)
        server.stop(signal.SIGKILL)
    with Served(tmp_path / "data") as server, Extended(server.res) as client:
        assert client.register("ann", ("shop", "", 0)) == [number]
        # The batch that was under way may be forgotten: then progress does nothing, and it comes again.
        client.progress((number, batch[-1].time))
        assert client.fetch(number, 2) == batch
        assert client.subscribe("shop", "work", "ann").markers == held.markers
        assert client.subscribe("shop", "work", "bob").bodies == [b"3", b"4", b"5"]
        assert server.stop() == 0


# ---------------------------------------------------------------- stopped


def test_a_stop_answers_every_append_that_was_written(tmp_path: Path) -> None:
    """Requests keep coming while the server stops: what is answered is written, what is written is answered."""
    with Served(tmp_path / "data") as server, Extended(server.res) as first, Extended(server.res) as second:
        sent: dict[bytes, NewEvent] = {}
        answers: dict[bytes, Answer] = {}

        def read(client: Extended, patience_ms: int = 0) -> None:
            # Answers that nobody reads would be dropped at some point, and rightly so.
            while client.socket.poll(patience_ms):
                answer = client.receive()
                answers[answer.request_id] = answer

        for number in range(4000):
            client = (first, second)[number % 2]
            event = an_event(str(number).encode())
            sent[client.send("AC", *client.commit_fields("shop", f"s-{number % 7}", -1, [event]))] = event
            if number != 1500:
                read(client)
            else:
                until(lambda: bool(first.socket.poll(0)))
                server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        with Served(tmp_path / "data") as again, Extended(again.res) as reader:
            written = {uuid for *_, uuid in history(reader)}
        for client in (first, second):
            if written - {sent[number].id for number in answers}:
                read(client, 1000)
            read(client)
        confirmed = {sent[number].id for number, answer in answers.items() if answer.command == b"CR"}
        assert confirmed == written
        assert 0 < len(written) < len(sent)


def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, Extended(server.res) as client:
        (number,) = client.register("ann", ("shop", "*", LONG_AGO))
        request = client.send_fetch_waiting(60_000, (number, 1))
        until(lambda: server.metric("penstock_waiting_polls") == 1)
        assert server.stop() == 0
        assert client.batch(client.answer_to(request), number) == []


def test_a_client_that_never_reads_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, Extended(server.res) as client:
        client.append("shop", "s", 1, *(an_event(bytes(100_000)) for _ in range(30)))
        with Extended(server.res, unread_max=1) as greedy:
            for _ in range(30):
                greedy.send("QS", b"shop", b"s", b"1", b"")
            until(lambda: server.metric('penstock_gate_received_total{gate="res"}') >= 31)
            assert server.stop() == 0


# ---------------------------------------------------------------- addresses


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: that of a socket in it has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        yield Path(name)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_server_may_listen_on_ipv6_and_on_a_path(tmp_path: Path, place: Path) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with Served(tmp_path / "data", res="tcp://[::1]:0", legacy=f"ipc://{place}/older") as server:
        assert server.res.startswith("tcp://[::1]:")
        assert not server.res.endswith(":0")
        assert server.res_legacy == f"ipc://{place}/older"
        with Extended(server.res) as client, Extended(server.res_legacy) as local:
            client.append("shop", "s", 1, an_event(b"over IPv6"))
            assert local.read("shop", "s") == client.read("shop", "s")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("flag", "endpoint", "reason"),
    [
        ("--res", "tcp://0.0.0.0:0", "would listen beyond loopback"),
        ("--res-legacy", "tcp://[::]:0", "would listen beyond loopback"),
        ("--res", "ipc:///no/such/directory/res", "cannot listen on --res"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_in_a_line(
    tmp_path: Path, flag: str, endpoint: str, reason: str
) -> None:
    code, said = refused(tmp_path, flag, endpoint)
    assert (code, said.count("\n")) == (1, 1)
    assert reason in said


def test_an_address_in_use_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(tmp_path, "--res", endpoint)
    assert code == 1
    assert f"penstock: cannot listen on --res {endpoint}: address already in use\n" == said


def refused(tmp_path: Path, flag: str, endpoint: str) -> tuple[int, str]:
    """Start a server that must not start; its exit code and what it says."""
    flags = [flag, endpoint] if flag == "--res" else ["--res", ANY_PORT, flag, endpoint]
    result = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert result.stdout == ""
    return result.returncode, result.stderr
