"""A server killed under load through every gate: its clients retry, and nothing is lost and nothing is there twice."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock import Client, NewEvent
from tests.gates.res_frames import an_event
from tests.gates.retries import Mortal, Steady, SteadyMq, SteadyRemits, Worker
from tests.gates.serving import until
from tests.seeds import rng

TOTAL = "return (acc or 0) + msg"
TIMEOUT_S = 60.0


class Load:
    """Writers through every gate and a consumer, at it until `end`; `written` is what each has been told is written."""

    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal
        self._done = threading.Event()
        self.written = dict.fromkeys(("zeromq", "mq", "remits", "penstock", "zmq+tcp"), 0)
        self.consumed: list[int] = []
        writers = (
            lambda: self._append("zeromq", Steady(mortal.res)),
            lambda: self._append("mq", SteadyMq(mortal.mq)),
            self._add,
            lambda: self._append_many("penstock"),
            lambda: self._append_many("zmq+tcp"),
        )
        self._writers = [Worker(writer) for writer in writers]
        self._consumer = Worker(self._consume)

    def more(self, count: int) -> None:
        """Wait until each has written so many more, and one of them was consumed."""
        wanted = {name: written + count for name, written in self.written.items()}
        consumed = len(self.consumed) + 1
        workers = (*self._writers, self._consumer)
        until(
            lambda: (
                any(worker.failure for worker in workers)
                or (all(self.written[name] >= wanted[name] for name in wanted) and len(self.consumed) >= consumed)
            )
        )

    def end(self) -> None:
        """Let all come to an end, the consumer after it has seen everything."""
        self._done.set()
        for worker in (*self._writers, self._consumer):
            worker.finish()

    def _numbers(self) -> Iterator[int]:
        return itertools.takewhile(lambda _: not self._done.is_set(), itertools.count(1))

    def _append(self, name: str, client: Steady | SteadyMq) -> None:
        """One by one, each at its version, so that the server knows a repeat."""
        with client:
            for number in self._numbers():
                client.append("shop", name, number, an_event(b"%d" % number))
                self.written[name] = number

    def _append_many(self, scheme: str) -> None:
        """Many ahead of their answers, with no versions: the client marks them so that the server knows a repeat."""

        def written(*_: object) -> None:
            self.written[scheme] += 1

        with patient(self._mortal.url(scheme)) as client:
            commits = (("shop", scheme, [numbered(number)]) for number in self._numbers())
            client.append_many(commits, in_flight=20, written=written)

    def _add(self) -> None:
        with closing(SteadyRemits(self._mortal.remits, "log")) as remits:
            for number in self._numbers():
                remits.add(number)
                self.written["remits"] = number

    def _consume(self) -> None:
        """What one of the writers writes, once each: a copy and the acknowledgement are one transaction."""
        with patient(self._mortal.url("penstock")) as client:
            queue = client.queue("shop", "work", filter="mq", count=10, ttl=600)
            while not self._done.is_set() or len(self.consumed) < self.written["mq"]:
                with queue.next(wait=0.1) as batch, client.transaction() as transaction:
                    if batch:
                        transaction.append("shop", "consumed", [numbered(int(event.body)) for event in batch])
                        transaction.acknowledge(batch)
                self.consumed += [int(event.body) for event in batch]


def patient(url: str) -> Client:
    return penstock.connect(url, timeout=TIMEOUT_S)


def numbered(number: int) -> NewEvent:
    return penstock.event("Counted", number)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_what_was_acknowledged_before_a_kill_is_there_and_nothing_is_there_twice(tmp_path: Path, kills: int) -> None:
    dice = rng("when a server is killed")
    with Mortal(tmp_path / "data") as mortal:
        with patient(mortal.url("penstock")) as client:
            client.log("log").create()
            client.iterator("total").create("log", "reduce", TOTAL, indexed=True)
        load = Load(mortal)
        try:
            for _ in range(kills):
                load.more(dice.randrange(1, 50))
                mortal.kill()
            load.more(10)
        finally:
            load.end()
        with patient(mortal.url("penstock")) as client:
            for stream, written in load.written.items():
                if stream != "remits":
                    assert bodies(client, stream) == list(range(1, written + 1))
            assert load.consumed == bodies(client, "consumed") == list(range(1, load.written["mq"] + 1))
            added = load.written["remits"]
            assert client.log("log").show().messages == added
            assert client.iterator("total").next(-1) == [added * (added + 1) // 2]
        assert mortal.served.stop() == 0
        assert "Traceback" not in mortal.served.said()


def bodies(client: Client, stream: str) -> list[int]:
    return [int(event.body) for event in client.read_stream("shop", stream)]
