"""A clock that jumps: what the log and the metric say of it, and that the order stays."""

import logging
from contextlib import closing
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.engine.metrics import Metrics
from penstock.engine.writer import ClockWatch
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.contract import BatchTimes
from penstock.store.sqlite import SqliteStore
from tests.engine.caller import Caller, events
from tests.store.kit import Clock, append, everything, some

SECOND = 10_000_000
LOGGER = "penstock.engine.writer"


class Machine:
    """A clock that can be set, and the time that really passes."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.elapsed_s = 100.0
        self.clock_s = 1_000_000.0
        self._recorded = 0
        self._watch = ClockWatch(self.metrics, lambda: self.elapsed_s, lambda: int(self.clock_s * SECOND))

    def batch(self, after_s: float, jump_s: float = 0, *, database_s: float = 0) -> None:
        """`database_s` is how far the clock of the store is ahead of this machine's."""
        self.idle(after_s, jump_s)
        now = int((self.clock_s + database_s) * SECOND)
        self._recorded = max(self._recorded, now)
        self._watch.look(BatchTimes(now, self._recorded))

    def idle(self, after_s: float, jump_s: float = 0) -> None:
        self.elapsed_s += after_s
        self.clock_s += after_s + jump_s


def test_a_jump_and_its_end_are_logged_once_and_shown_all_the_while(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING, LOGGER):
        machine.batch(0)
        machine.batch(5000)
        machine.batch(1, jump_s=3600)
        machine.batch(1)
        assert machine.metrics.recorded_ahead_s() == 0, "the clock itself is ahead"
        machine.batch(1, jump_s=-3600)
        machine.batch(1000)
        assert machine.metrics.recorded_ahead_s() == pytest.approx(2599)
        machine.batch(3000)
    assert machine.metrics.recorded_ahead_s() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "the clock jumped by +3600 s; see 'The clock' in docs/operations.md",
        "the clock jumped by -3600 s; see 'The clock' in docs/operations.md",
        "events are recorded 3599 s ahead of the clock until it has caught up",
        "the clock has caught up with recorded times",
    ]


@pytest.mark.parametrize("database_s", [0, 7200])
def test_the_metric_follows_the_clock_while_nothing_is_written(database_s: float) -> None:
    machine = Machine()
    assert machine.metrics.recorded_ahead_s() == 0
    machine.batch(0, database_s=database_s)
    machine.batch(1, jump_s=3600, database_s=database_s)
    machine.batch(1, jump_s=-3600, database_s=database_s)
    assert machine.metrics.recorded_ahead_s() == pytest.approx(3599)
    machine.idle(599)
    assert machine.metrics.recorded_ahead_s() == pytest.approx(3000)
    machine.idle(1, jump_s=-10)
    assert machine.metrics.recorded_ahead_s() == pytest.approx(3009)
    machine.idle(10_000)
    assert machine.metrics.recorded_ahead_s() == 0


def test_a_clock_that_is_adjusted_slowly_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(100):
            machine.batch(1, jump_s=0.5)
    assert caplog.records == []


def ahead_of(engine: Engine) -> float:
    ahead = engine.metrics.registry.get_sample_value("penstock_recorded_ahead_seconds")
    assert ahead is not None
    return ahead


async def test_a_store_from_the_future_is_reported_and_keeps_its_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    future = Clock()
    future.ns = 4_000_000_000_000_000_000
    with closing(SqliteStore(tmp_path, clock=future)) as store:
        append(store, "order-1", some(1))
    with caplog.at_level(logging.WARNING, LOGGER):
        async with Engine(store_url(tmp_path), Settings(workers=1)) as engine:
            assert ahead_of(engine) > 1e9, "it is known from the beginning"
            await Caller(engine).append("order-1", events("two"))
            await Caller(engine).append("order-1", events("three"))
            assert ahead_of(engine) > 1e9
    assert sum("ahead of the clock" in record.getMessage() for record in caplog.records) == 1
    with closing(SqliteStore(tmp_path)) as store:
        assert [event.recorded for event in everything(store)] == [future.ticks] * 3
