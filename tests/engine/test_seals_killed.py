"""Servers killed while they seal, under a load of 1-event commits: nothing that was acknowledged is lost or changed."""

import random
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import penstock
from penstock import Appended, Event
from penstock.client.bulk import Commit
from penstock.errors import PenstockError
from penstock.store.sqlite import SqliteReader
from tests.faults.support import findings
from tests.gates.serving import Served
from tests.seeds import rng
from tests.test_server import until

CYCLES = 2
STREAMS = 50


class Load(threading.Thread):
    """Appends one event after the other, without end; knows what was acknowledged."""

    def __init__(self, url: str, cycle: int) -> None:
        super().__init__()
        self._url = url
        self._cycle = cycle
        self.acknowledged: dict[bytes, Appended] = {}

    def run(self) -> None:
        bodies: list[bytes] = []

        def commits() -> Iterator[Commit]:
            for number in count():
                bodies.append(b"%d/%d" % (self._cycle, number))
                yield "load", f"s-{number % STREAMS}", [penstock.event("Loaded", bodies[-1])]

        def written(number: int, appended: Appended) -> None:
            self.acknowledged[bodies[number]] = appended

        try:
            with penstock.connect(self._url, retries=False) as client:
                client.append_many(commits(), in_flight=128, written=written)
        except PenstockError:
            return


def killed_while_sealing(data: Path, cycle: int, dice: random.Random) -> dict[bytes, Appended]:
    """Load a server until it has sealed some, then kill it; what it had acknowledged."""
    with Served(data) as server:
        load = Load(f"penstock://{server.mq}", cycle)
        load.start()
        until(lambda: server.metric("penstock_seals_total") >= 2)
        more = len(load.acknowledged) + dice.randrange(6000)
        until(lambda: len(load.acknowledged) >= more)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        load.join()
        assert "Traceback" not in server.said()
    return load.acknowledged


def history(url: str) -> dict[bytes, Event]:
    with penstock.connect(url) as client:
        return {event.body: event for event in client.read_all()}


@pytest.mark.long
def test_a_server_that_is_killed_while_it_seals_loses_nothing(tmp_path: Path) -> None:
    data, dice = tmp_path / "data", rng("seals killed")
    acknowledged: dict[bytes, Appended] = {}
    for cycle in range(CYCLES):
        acknowledged |= killed_while_sealing(data, cycle, dice)
        assert findings(data) == []
    with Served(data) as server:
        until(lambda: server.metric("penstock_seal_lag_events") == 0)
        found = history(f"penstock://{server.mq}")
        assert server.stop() == 0
    for body, appended in acknowledged.items():
        event = found[body]
        assert (event.position, event.sequence, event.commit) == (appended.position, appended.sequence, appended.commit)
    positions = sorted(event.position for event in found.values())
    assert positions == list(range(1, len(found) + 1))
    reader = SqliteReader(data)
    records = int(reader.db.connection.execute("SELECT count(*) FROM records").get)
    assert reader.sealed() > reader.head() - 4096
    # One for each block that is closed, and those of the last one.
    assert records <= reader.head() // 4096 + 1 + 4096
    reader.close()
    assert findings(data) == []
