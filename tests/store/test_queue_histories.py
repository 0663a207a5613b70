"""Random histories of queues on SQLite; see `queue_histories`."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.store.sqlite import SqliteStore
from tests.seeds import rng
from tests.store.kit import Clock, findings
from tests.store.queue_histories import STEPS, play

HISTORIES = 300
MANY_HISTORIES = 10_000


def seeds(number: int) -> Iterator[int]:
    random = rng("histories of queues")
    for _ in range(number):
        yield random.getrandbits(32)


def check(directory: Path, seed: int) -> None:
    clock = Clock()
    with closing(SqliteStore(directory, clock=clock)) as store:
        play(store, clock, seed, STEPS)
        assert findings(store) == []


def test_in_random_histories_no_event_is_lost_or_with_two_consumers_or_out_of_order(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds(HISTORIES)):
        check(tmp_path / f"{number}", seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nor_in_ten_thousand_histories(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds(MANY_HISTORIES)):
        check(tmp_path / f"{number}", seed)
