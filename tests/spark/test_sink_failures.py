"""A sink whose tasks fail, whose queries are restarted, whose batches come again: each row comes once, or none does."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.store import store_url
from penstock.testing import Server, server
from tests.postgres import Schemas
from tests.spark.sink_driver import copied
from tests.spark.sink_targets import PENSTOCK, SQLITE, WAYS, Target
from tests.spark.support import PATIENCE_S, counted, fill, history, load, until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all; each test writes to a context of its own."""
    with server(tmp_path_factory.mktemp("served")) as started:
        yield started


@pytest.fixture(params=WAYS)
def target(request: pytest.FixtureRequest, tmp_path: Path, served: Server, schemas: Schemas) -> Target:
    """A history of each kind."""
    if request.param == SQLITE:
        return Target(SQLITE, fill(tmp_path / "target", []), tmp_path / "target")
    if request.param == PENSTOCK:
        return Target(PENSTOCK, served.url, served.data)
    return Target(request.param, fill(schemas.url(tmp_path), []))


def copy(rows: DataFrame, target: str, checkpoint: Path, **options: Any) -> None:
    """Write a stream until all that there is now is written."""
    writer = rows.writeStream.format("penstock").option("url", target).option("orderBy", "position")
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)


def test_a_stream_goes_on_when_it_is_restarted_and_a_replayed_batch_adds_nothing(
    spark: SparkSession, tmp_path: Path, target: Target
) -> None:
    source, checkpoint = fill(tmp_path / "source", [("shop", "s", counted(15))]), tmp_path / "checkpoint"
    copy(copied(spark, source, "copy"), target.url, checkpoint)
    fill(tmp_path / "source", [("shop", "s", counted(5, 16))])
    copy(copied(spark, source, "copy"), target.url, checkpoint)
    once = target.history("copy")
    assert [(e.id, e.stamp, e.body) for e in once] == [(e.id, e.stamp, e.body) for e in history(source)]
    # As if the driver had died after it published, before Spark noted that the batch is done.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    copy(copied(spark, source, "copy"), target.url, checkpoint)
    assert target.history("copy") == once
    assert target.staged() == []


def test_a_job_with_a_task_that_fails_adds_nothing_and_leaves_nothing_staged(
    spark: SparkSession, tmp_path: Path, target: Target
) -> None:
    """The task that fails does so when the other one has staged all it has."""
    go = tmp_path / "go"

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.column("text")[0].as_py() == "10":
                while not go.exists():
                    time.sleep(0.01)
                raise RuntimeError("fails on purpose")

    columns = ("'failed' context", "'s' stream", "'T' type", "string(id) text")
    rows = spark.range(0, 20, 1, 2).selectExpr(*columns)
    rows = rows.mapInArrow(failing, rows.schema)
    writer = rows.write.format("penstock").mode("append").option("url", target.url)

    def let_it_fail() -> None:
        try:
            until(lambda: target.staged() == [0], "staging")
        finally:
            go.touch()

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(let_it_fail)
        with pytest.raises(Exception, match="fails on purpose"):
            writer.save()
        seen.result()
    assert target.history("failed") == []
    assert target.staged() == []


def test_a_new_checkpoint_with_the_old_producer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", [("shop", "s", counted(5))]), store_url(tmp_path / "target")
    copy(copied(spark, source, "shop"), target, tmp_path / "one", producer="copier")
    fill(tmp_path / "source", [("shop", "s", counted(5, 6))])
    # The first batch of the new query has the number of the last one of the old query, and other rows.
    with pytest.raises(Exception, match="producer copier has published number 0 from another origin"):
        copy(copied(spark, source, "shop"), target, tmp_path / "two", producer="copier")
    copy(copied(spark, source, "shop"), target, tmp_path / "one", producer="copier")
    assert len(history(tmp_path / "target")) == 10


def test_a_sink_writes_while_its_store_is_read(spark: SparkSession, tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [("shop", "s", counted(10))])
    load(spark, url).drop("event_id").write.format("penstock").mode("append").option("url", url).save()
    assert len(history(tmp_path / "data")) == 20
