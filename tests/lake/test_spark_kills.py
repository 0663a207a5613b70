"""Driver and Python workers killed with SIGKILL while appends go on; hundreds of them are in `tests.soak.lake`."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.store import store_url
from tests.lake.killing import appending, kill_driver
from tests.lake.support import archive, is_same, manifest_of, verified


@pytest.mark.timeout(300)
def test_an_archive_that_is_killed_once_is_finished_by_the_next(data: Path, tmp_path: Path) -> None:
    """In the middle of a round, while appends go on. Which process finishes it does not matter: this one does."""
    url, lake, chance = store_url(data), tmp_path / "lake", random.Random(10)
    with appending(data, pause_s=0.2) as appended:
        killed = kill_driver(url, lake, 0, chance)
        assert (killed["ended"], killed["to"] > killed["from"]) == (None, True)
        archive(url, lake)
        assert verified(url, lake).differences == []
    assert archive(url, lake).head == appended()
    assert is_same(url, lake)


@pytest.mark.timeout(900)
@pytest.mark.long
def test_an_archive_whose_driver_and_workers_are_killed_is_exact(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    url, lake, chance = store_url(data), tmp_path / "lake", random.Random(10)
    with appending(data, pause_s=0.2) as appended:
        rounds = [kill_driver(url, lake, workers, chance) for workers in (3, 2)]
        assert sum(each["workers"] for each in rounds) >= 3
        assert manifest_of(lake).head > 0
        archive(url, lake, spark)
        assert verified(url, lake, spark).differences == []
    assert archive(url, lake, spark).head == appended()
    assert verified(url, lake, spark) == (len(manifest_of(lake).files), appended(), appended(), 0, [])
    assert is_same(url, lake)
