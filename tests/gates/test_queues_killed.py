"""Ordered queues on servers that are killed: nothing is lost, acknowledged twice or out of order."""

import threading
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

import penstock
from penstock import Client
from penstock.client.consumers import QueueBatch
from tests.gates.retries import Mortal, Worker
from tests.gates.serving import until
from tests.seeds import rng

HISTORIES: Final = 4
MANY_HISTORIES: Final = 200
CONSUMERS: Final = 3
COMMITS: Final = 24
STREAMS: Final = 5
TIMEOUT_S: Final = 60.0
LEASE_S: Final = 600.0
SHORT_LEASE_S: Final = 0.3
"""Of a consumer that dies with what it holds."""
WAIT_S: Final = 0.2


class Record:
    """What consumers were given, and what they have said of it, event by event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: dict[int, object] = {}
        self._of_key: dict[str, set[int]] = {}
        self.acknowledged: Counter[int] = Counter()

    def appended(self, stream: str, positions: Iterable[int]) -> None:
        """Told before or after they are delivered, as it happens."""
        with self._lock:
            for position in positions:
                self._of_key.setdefault(stream, set()).add(position)
                self._state.setdefault(position, "open")

    def given(self, batch: QueueBatch) -> None:
        own = {event.position for event in batch}
        with self._lock:
            for event in batch:
                assert self._state.get(event.position) != "done", f"{event.position} came after it was acknowledged"
                for earlier in self._of_key.get(event.stream, ()):
                    is_over = self._state[earlier] in ("done", "ending")
                    assert earlier >= event.position or earlier in own or is_over, f"{event.position} before {earlier}"
            for event in batch:
                self._state[event.position] = batch

    def ending(self, batch: QueueBatch, again: set[int]) -> None:
        """The consumer is about to say that all but these are done."""
        with self._lock:
            for event in batch:
                self._state[event.position] = "open" if event.position in again else "ending"

    def ended(self, batch: QueueBatch, again: set[int]) -> None:
        with self._lock:
            for event in batch:
                if event.position not in again:
                    self._state[event.position] = "done"
                    self.acknowledged[event.position] += 1


class History:
    """One queue in a context of its own, its writer and its consumers."""

    def __init__(self, client: Client, number: int, random: Random) -> None:
        self._client = client
        self._context = f"history {number}"
        self._random = random
        self._record = Record()
        self._done = threading.Event()
        self._appended: set[int] | None = None
        self._declare(LEASE_S).declare()
        self._writer = Worker(self._write)
        self._consumers = [Worker(partial(self._consume, seed)) for seed in self._seeds(CONSUMERS)]

    def _seeds(self, number: int) -> list[int]:
        return [self._random.getrandbits(32) for _ in range(number)]

    def _declare(self, lease_s: float) -> penstock.Queue:
        return self._client.queue(self._context, "work", ordered="stream", count=8, ttl=lease_s)

    def _write(self) -> None:
        random = Random(self._seeds(1)[0])
        positions: set[int] = set()
        for number in range(COMMITS):
            stream = f"s{random.randrange(STREAMS)}"
            events = [self._event(random, number) for _ in range(random.randint(1, 4))]
            made = self._client.append(self._context, stream, events)
            own = range(made.position, made.position + made.count)
            self._record.appended(stream, own)
            positions.update(own)
        self._appended = positions

    @staticmethod
    def _event(random: Random, number: int) -> penstock.NewEvent:
        later = random.choice((None, None, None, 0.1, 0.4))
        due = None if later is None else datetime.now(UTC) + timedelta(seconds=later)
        return penstock.event("Counted", number, due=due)

    def _consume(self, seed: int) -> None:
        random = Random(seed)
        queue = self._declare(LEASE_S)
        while not self._done.is_set():
            if random.random() < 0.05:
                # Another consumer dies with what it holds.
                self._record.given(self._declare(SHORT_LEASE_S).take())
            batch = queue.take(WAIT_S)
            self._record.given(batch)
            if not batch:
                continue
            again = self._judge(batch, random)
            self._record.ending(batch, again)
            if len(again) == len(batch) and not batch.outcomes:
                queue.release(batch, counts=random.random() < 0.5)
            else:
                queue.acknowledge(batch)
            self._record.ended(batch, again)

    @staticmethod
    def _judge(batch: QueueBatch, random: Random) -> set[int]:
        """Some events fail, and those of their key behind them come again as well."""
        if random.random() < 0.1:
            return {event.position for event in batch}
        failed: set[str] = set()
        again: set[int] = set()
        for event in batch:
            if event.stream in failed:
                again.add(event.position)
            elif random.random() < 0.1:
                batch.retry(event, delay=random.choice((0.0, 0.05)), reason="dice")
                failed.add(event.stream)
                again.add(event.position)
        return again

    @property
    def workers(self) -> list[Worker]:
        return [self._writer, *self._consumers]

    def reached(self, part: float) -> bool:
        """Whether so much is acknowledged, or somebody has failed."""
        wanted = self._appended
        has_failed = any(worker.failure for worker in self.workers)
        return has_failed or (wanted is not None and len(self._record.acknowledged) >= part * len(wanted))

    def end(self) -> None:
        self._done.set()
        for worker in self.workers:
            worker.finish()
        assert self._appended is not None
        assert self._record.acknowledged == Counter(self._appended)
        assert list(self._declare(LEASE_S).take()) == []


def play(data: Path, histories: int) -> None:
    random = rng("when queues are killed")
    with Mortal(data) as mortal, penstock.connect(mortal.url("penstock"), timeout=TIMEOUT_S) as client:
        for number in range(histories):
            history = History(client, number, random)
            try:
                for part in sorted(random.random() for _ in range(random.choice((1, 1, 2)))):
                    until(partial(history.reached, part))
                    mortal.kill()
                until(partial(history.reached, 1.0))
            finally:
                history.end()
        assert mortal.served.stop() == 0
        assert "Traceback" not in mortal.served.said()


def test_nothing_is_lost_acknowledged_twice_or_out_of_order(tmp_path: Path) -> None:
    play(tmp_path / "data", HISTORIES)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nor_in_many_histories(tmp_path: Path) -> None:
    play(tmp_path / "data", MANY_HISTORIES)
