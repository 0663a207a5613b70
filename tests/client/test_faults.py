"""Servers that are killed and started again, and connections that are cut: nothing is lost, nothing doubled."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Client
from penstock.errors import NotAppended, PenstockError
from tests.client.fakes import Proxy
from tests.client.support import as_new, numbers, some
from tests.gates.retries import Mortal, Worker, reached
from tests.gates.serving import Served, until
from tests.seeds import rng

pytestmark = pytest.mark.long

EVENTS = 200
SCHEMES = ("penstock", "zmq+tcp")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    with Mortal(tmp_path / "data") as server:
        yield server


@contextmanager
def patient(url: str) -> Iterator[Client]:
    with penstock.connect(url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(("scheme", "ending"), [("penstock", "kill"), ("penstock", "restart"), ("zmq+tcp", "kill")])
def test_appends_survive_a_server_that_goes(mortal: Mortal, scheme: str, ending: str) -> None:
    """One by one and pipelined, with and without expected versions, while the server goes and comes."""
    done = [0, 0, 0]

    def counting(at: int) -> Callable[..., None]:
        def count(*_: Any) -> None:
            done[at] += 1

        return count

    with patient(mortal.url(scheme)) as client:

        def one_by_one() -> None:
            for number in range(1, EVENTS + 1):
                client.append("shop", "single", some(1, number), expected=number if number % 2 else penstock.ANY)
                done[0] += 1

        def pipelined() -> None:
            commits = (("shop", f"many-{number % 3}", some(1, number)) for number in range(6 * EVENTS))
            client.append_many(commits, in_flight=50, written=counting(1))

        def versioned() -> None:
            commits = (("shop", "versions", some(2, 2 * number + 1), 2 * number + 1) for number in range(EVENTS))
            client.append_many(commits, in_flight=20, written=counting(2))

        workers = [Worker(one_by_one), Worker(pipelined), Worker(versioned)]
        reached(lambda: min(done), EVENTS // 3, *workers)
        getattr(mortal, ending)()
        for worker in workers:
            worker.finish()
        assert numbers(client.read_stream("shop", "single")) == list(range(1, EVENTS + 1))
        for stream in range(3):
            assert numbers(client.read_stream("shop", f"many-{stream}")) == list(range(stream, 6 * EVENTS, 3))
        assert numbers(client.read_stream("shop", "versions")) == list(range(1, 2 * EVENTS + 1))
        assert done == [EVENTS, 6 * EVENTS, EVENTS]


class Shop:
    """A writer, and all kinds of readers: each has seen everything in the end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.written = 0
        self.followed: list[int] = []
        self.subscribed: list[int] = []
        self.consumed: list[int] = []

    def write(self) -> None:
        for number in range(1, EVENTS + 1):
            self._client.append("shop", "in", some(1, number), expected=number)
            self.written = number

    def follow(self) -> None:
        for event in self._client.follow(context="shop", filter="in"):
            self.followed.append(int(event.body))
            if self.followed[-1] == EVENTS:
                return

    def subscribe(self) -> None:
        for event in self._client.subscription("ann", context="shop", filter="in", count=7):
            self.subscribed.append(int(event.body))
            if self.subscribed[-1] == EVENTS:
                return

    def project(self) -> None:
        subscription = self._client.subscription("projection", context="shop", filter="in", count=9)
        for batch in subscription.batches():
            with self._client.transaction() as transaction:
                transaction.append("shop", "projected", as_new(batch))
                transaction.progress(subscription, batch)
            if int(batch[-1].body) == EVENTS:
                return

    def consume(self) -> None:
        with patient(self._client.url) as own:
            queue = own.queue("shop", "work", filter="in", count=5, ttl=600)
            while len(self.consumed) < EVENTS:
                with queue.next(wait=0.5) as batch, own.transaction() as transaction:
                    if batch:
                        transaction.append("shop", "consumed", as_new(batch))
                        transaction.acknowledge(batch)
                self.consumed.extend(numbers(batch))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_readers_and_consumers_survive_a_server_that_is_killed(mortal: Mortal, scheme: str) -> None:
    """A follower, a subscriber, a projection in transactions and two consumers of a queue, while events come."""
    with patient(mortal.url(scheme)) as client:
        shop = Shop(client)
        jobs = (shop.write, shop.follow, shop.subscribe, shop.project, shop.consume, shop.consume)
        workers = [Worker(job) for job in jobs]
        for part in (3, 2):
            reached(lambda: shop.written, EVENTS // part, *workers)
            mortal.kill()
        for worker in workers:
            worker.finish()
        everything = list(range(1, EVENTS + 1))
        assert numbers(client.read_stream("shop", "in")) == everything
        assert shop.followed == everything
        assert shop.subscribed == everything
        assert numbers(client.read_stream("shop", "projected")) == everything
        assert sorted(shop.consumed) == everything
        assert sorted(numbers(client.read_stream("shop", "consumed"))) == everything


@pytest.mark.parametrize("scheme", SCHEMES)
def test_workers_survive_a_server_that_is_killed(mortal: Mortal, scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    """Events of each stream are handled in order, none is left out, and what was acknowledged does not come again."""
    streams, each = 10, 30
    policy = penstock.RetryPolicy(delay=0.02, jitter=1.0)
    dice = rng("failing handlers")
    seen: dict[str, list[int]] = {f"in-{number}": [] for number in range(streams)}
    lock = threading.Lock()
    handled = 0

    def handle(event: penstock.Event) -> None:
        nonlocal handled
        with lock:
            if dice.random() < 0.1:
                raise ValueError("by chance")
            seen[event.stream].append(event.json())
            handled += 1

    with patient(mortal.url(scheme)) as client:
        client.append_many(("shop", stream, some(1, number)) for number in range(1, each + 1) for stream in seen)
        queue = client.queue("shop", "work", ordered="stream", retry=policy, count=7, ttl=2)
        made = [penstock.Worker(queue, handle, concurrency=2) for _ in range(2)]
        running = [Worker(worker.run) for worker in made]
        for part in (6, 3, 2):
            reached(lambda: handled, streams * each // part, *running)
            mortal.kill()
        until(lambda: any(run.failure for run in running) or done(client))
        for worker in made:
            worker.stop()
        for run in running:
            run.finish()
        for numbers_seen in seen.values():
            assert set(numbers_seen) == set(range(1, each + 1))
            # An event may come again as long as none after it was acknowledged; the next one never comes too early.
            assert all(next_ <= max(numbers_seen[: at + 1]) + 1 for at, next_ in enumerate(numbers_seen[1:]))
        lost = sum(worker.counts.lost for worker in made)
        assert sum(worker.counts.acknowledged for worker in made) + lost >= streams * each
        assert handled <= streams * each + lost
        assert client.queue("shop", "work").dead_letters() == []


def done(client: Client) -> bool:
    """Whether the one queue has nothing more to deliver."""
    (info,) = client.queues()
    return (info.behind, info.allocated, info.delayed) == (0, 0, 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_in_hand_when_a_server_is_killed_is_not_handed_out_again(mortal: Mortal, scheme: str) -> None:
    """The bodies of loops and `with`s are at work while the server goes; what they have done counts."""
    with patient(mortal.url(scheme)) as client:
        client.append("shop", "in", some(10))
        plain = client.subscription("plain", context="shop", filter="in", count=4, follow=False)
        together = client.subscription("together", context="shop", filter="in", count=4, follow=False)
        plain_batches, together_batches = plain.batches(), together.batches()
        first, second = next(plain_batches), next(together_batches)
        with client.queue("shop", "work", filter="in", count=4, ttl=600).next() as third:
            mortal.kill()
        with client.transaction() as transaction:
            transaction.append("shop", "out", as_new(second))
            transaction.progress(together, second)
        assert numbers(first) == numbers(second) == numbers(third) == [1, 2, 3, 4]
        assert [numbers(batch) for batch in plain_batches] == [[5, 6, 7, 8], [9, 10]]
        assert [numbers(batch) for batch in together_batches] == [[5, 6, 7, 8], [9, 10]]
        assert numbers(client.queue("shop", "work", filter="in", count=9).take()) == [5, 6, 7, 8, 9, 10]
        assert numbers(client.read_stream("shop", "out")) == [1, 2, 3, 4]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_killed_in_the_middle_of_append_many_is_told_without_retries(mortal: Mortal, scheme: str) -> None:
    told: list[int] = []
    with penstock.connect(mortal.url(scheme), retries=False) as client:

        def work() -> None:
            commits = (("shop", "s", some(1, number)) for number in range(1_000_000))
            client.append_many(commits, in_flight=50, written=lambda number, _: told.append(number))

        worker = Worker(work)
        reached(lambda: len(told), 100, worker)
        mortal.kill()
        with pytest.raises(NotAppended) as caught:
            worker.finish()
    error = caught.value
    assert isinstance(error.__cause__, PenstockError)
    assert error.written >= len(told) >= 100
    with penstock.connect(mortal.url(scheme)) as client:
        found = numbers(client.read_stream("shop", "s"))
    assert found == list(range(len(found)))
    # What was under way may have been written without anybody knowing.
    assert error.written <= len(found) <= error.written + 50


@pytest.mark.parametrize(
    ("scheme", "appends", "bytes_max"), [("penstock", 10_000, 100_000), ("zmq+tcp", 2_000, 30_000)]
)
def test_appends_survive_connections_that_are_cut(
    served: Served, scheme: str, appends: int, bytes_max: int, context: str
) -> None:
    """Ten thousand appends through a proxy that cuts connections at any byte: each is written once, in order."""
    port = int((served.mq if scheme == "penstock" else served.res).rpartition(":")[2])
    streams = 4
    with Proxy(port, rng("cut appends"), bytes_max) as proxy, patient(f"{scheme}://127.0.0.1:{proxy.port}") as client:

        def pipelined() -> None:
            commits = ((context, f"s-{number % streams}", some(1, number)) for number in range(appends - 400))
            client.append_many(commits, in_flight=100)

        def one_by_one() -> None:
            for number in range(400):
                client.append(context, "single", some(1, number))

        workers = [Worker(pipelined), Worker(one_by_one)]
        for worker in workers:
            worker.finish()
        assert proxy.cuts > 10
    with penstock.connect(f"penstock://{served.mq}") as client:
        for stream in range(streams):
            assert numbers(client.read_stream(context, f"s-{stream}")) == list(range(stream, appends - 400, streams))
        assert numbers(client.read_stream(context, "single")) == list(range(400))
        assert Counter(event.stream for event in client.read_all(context=context)).total() == appends


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reads_survive_connections_that_are_cut(served: Served, scheme: str, context: str) -> None:
    port = int((served.mq if scheme == "penstock" else served.res).rpartition(":")[2])
    with penstock.connect(f"penstock://{served.mq}") as client:
        client.append_many((context, f"s-{number % 5}", some(100, 100 * number)) for number in range(20))
    with Proxy(port, rng("cut reads"), 600_000) as proxy, patient(f"{scheme}://127.0.0.1:{proxy.port}") as client:
        for _ in range(20):
            assert numbers(client.read_all(context=context)) == list(range(2000))
            assert len(list(client.read_stream(context, "s-1"))) == 400
        assert proxy.cuts > 2
