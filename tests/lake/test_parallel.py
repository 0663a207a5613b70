"""Tasks that Spark spreads: results in order, errors of ours as they are, others in a line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LakeDamaged, StoreError
from penstock.lake import changes, remote
from penstock.lake.verification import status
from penstock.model import PositionRange
from penstock.spark.parallel import parallel_map
from tests.lake.support import archive, awkward, fill, verified


def square(number: int) -> int:
    return number * number


def damaged(number: int) -> int:
    if number == 2:
        raise LakeDamaged("lake", "file", "is not there")
    return number


def broken(number: int) -> int:
    raise ZeroDivisionError(f"task {number} is broken")


def test_results_come_in_the_order_of_their_tasks(spark: SparkSession) -> None:
    told: list[float] = []
    assert parallel_map(spark, range(10), square, told.append) == [number * number for number in range(10)]
    assert parallel_map(lambda: spark, [3], square, told.append) == [9]
    assert parallel_map(None, [3], square, told.append) == [9]
    assert parallel_map(spark, [], square, told.append) == []
    assert all(0 <= share <= 1 for share in told)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_an_error_of_ours_comes_back_as_it_is(spark: SparkSession) -> None:
    with pytest.raises(LakeDamaged, match="the lake in lake is damaged: file is not there"):
        parallel_map(spark, [1, 2, 3], damaged, lambda _: None)


def test_any_other_error_is_told_in_a_line(spark: SparkSession) -> None:
    with pytest.raises(StoreError, match=r"Spark gave up: ZeroDivisionError: task 1 is broken") as caught:
        parallel_map(spark, [1], broken, lambda _: None)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(300)
def test_spark_archives_to_an_object_store(
    spark: SparkSession, s3: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SETTLE_S", 0.01)
    # Workers have the environment of the session, which was there first.
    lake = f"s3a://test:test@lakes/by-spark?{s3}"
    url = fill(data, awkward())
    assert archive(url, lake, spark).events == 11
    assert verified(url, lake, spark).differences == []
    assert status(lake).lake == "s3a://lakes/by-spark"


def test_shares_of_a_round_are_told_as_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(_spark: object, tasks: list[changes.LakeTask], function: Any, on_progress: Callable[[float], None]) -> Any:
        on_progress(0.5)
        return list(map(function, tasks))

    monkeypatch.setattr(changes, "parallel_map", half)
    tasks = [changes.LakeTask(PositionRange(101, 120)), changes.LakeTask(PositionRange(121, 150))]
    told: list[int] = []
    assert changes.run_round(None, tasks, lambda task: task.span.last, told.append) == [120, 150]
    assert told == [125, 150]
