"""A sink on a cluster, over all kinds of URL: attempts that fail or lose, and a driver that is killed in its commits.

One driver does all of it, and is killed before the first test looks at what it has left.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model import Event
from penstock.store import store_url
from penstock.testing import server
from tests.postgres import Schemas
from tests.spark.sink_driver import FAILING, HANGING, PARTS, ROWS, Plan, copied
from tests.spark.sink_targets import PENSTOCK, POSTGRESQL, SQLITE, WAYS, Target
from tests.spark.support import PATIENCE_S, counted, fill, history

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


class Killed:
    """What a driver has left that was killed, and how to look at it."""

    def __init__(self, folder: Path, postgres_url: str, served_url: str) -> None:
        self.folder = folder
        source = fill(folder / "source", [("shop", "s", counted(35))])
        fill(folder / "stores" / "table", [])
        targets = {SQLITE: store_url(folder / "stores"), PENSTOCK: served_url, POSTGRESQL: postgres_url}
        self.plan = Plan(str(folder), source, targets)

    def target(self, way: str, job: str) -> Target:
        """Where a job has written to."""
        own = {SQLITE: self.folder / "stores" / job, PENSTOCK: self.folder / "served"}
        return Target(way, self.plan.target(way, job), own.get(way))

    def history(self, way: str, job: str) -> list[Event]:
        """The events that a job has written."""
        return self.target(way, job).history(job)

    def run(self) -> None:
        """Start the driver, have its attempts fail when they have staged something, and kill it in its commits."""
        command = [sys.executable, "-m", "tests.spark.sink_driver", str(self.plan.save())]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.folder / "log").open("wb") as log:
            driver = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True
            )
        try:
            self._see(driver)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def _see(self, driver: subprocess.Popen[bytes]) -> None:
        for way in WAYS:
            self._until(driver, partial(self._have_staged, way))
            self.plan.file("go", way).touch()
            self._until(driver, self.plan.file("computed", way).exists)
        reached = [self.plan.file(job, way) for way in WAYS for job in ("table", "before")]
        reached.append(self.plan.file("after", POSTGRESQL))
        self._until(driver, lambda: all(path.exists() for path in reached))

    def _have_staged(self, way: str) -> bool:
        return {HANGING, FAILING} <= {*self.target(way, "computed").staged()}

    def _until(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 3 * PATIENCE_S
        while not condition():
            assert driver.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, all_schemas: Schemas) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("sink")
    with ExitStack() as stack:
        stack.callback(all_schemas.give_back)
        served = stack.enter_context(server(folder / "served"))
        killed = Killed(folder, fill(all_schemas.url(folder), []), served.url)
        killed.run()
        yield killed


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_of_attempts_that_fail_or_lose_to_a_speculative_one_nothing_is_written(killed: Killed, way: str) -> None:
    """Each attempt makes other rows, and those that come to nothing have staged some."""
    found = [[int(word) for word in event.body.split()[:2]] for event in killed.history(way, "computed")]
    assert sorted(number for number, _ in found) == list(range(ROWS))
    attempts = [{attempt for number, attempt in found if number * PARTS // ROWS == part} for part in range(PARTS)]
    assert all(len(won) == 1 for won in attempts)
    assert min(attempts[HANGING]) >= 1
    assert min(attempts[FAILING]) >= 1
    assert {HANGING, FAILING}.isdisjoint(killed.target(way, "computed").staged())


@pytest.mark.parametrize("way", WAYS)
def test_a_driver_killed_between_stage_and_commit_has_added_nothing(killed: Killed, way: str) -> None:
    assert killed.history(way, "table") == []


@pytest.mark.parametrize(("way", "place"), [*((way, "before") for way in WAYS), (POSTGRESQL, "after")])
def test_a_driver_killed_in_its_commit_is_resumed_without_loss_or_repetition(
    spark: SparkSession, killed: Killed, way: str, place: str
) -> None:
    assert len(killed.history(way, place)) == (10 if place == "before" else 20)
    writer = copied(spark, killed.plan.source, place).writeStream.format("penstock").option("orderBy", "position")
    writer = writer.option("url", killed.plan.target(way, place))
    writer = writer.option("checkpointLocation", str(killed.plan.file("checkpoint", f"{place}-{way}")))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
    assert [e.id for e in killed.history(way, place)] == [e.id for e in history(killed.plan.source)]
