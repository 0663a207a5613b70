"""Drivers that are started to be killed, or to have tasks that fail: run as `python -m tests.spark.sink_driver`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.sink import PenstockStreamWriter, PenstockWriter
from penstock.spark.source import PenstockSource

PAUSE = "PENSTOCK_TEST_PAUSE"
"""Where a commit stands still until its process is killed (before or after publishing), and the file that says so."""


def pause(where: str) -> None:
    """Stand still for ever, if this is the place."""
    place, _, reached = os.environ.get(PAUSE, "").partition(":")
    if place == where:
        Path(reached).touch()
        while True:
            time.sleep(1)


class PausingWriter(PenstockWriter):
    """Stands still in its commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pause("before")
        super().commit(messages)
        pause("after")


class PausingStreamWriter(PenstockStreamWriter):
    """Stands still in its commit."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId == 1:
            pause("before")
        super().commit(messages, batchId)
        if batchId == 1:
            pause("after")


class PausingSource(PenstockSource):
    """The sink, but for pauses."""

    @classmethod
    def name(cls) -> str:
        return "pausing"

    def writer(self, schema: StructType, overwrite: bool) -> PenstockWriter:
        return PausingWriter(self._writing(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:  # noqa: N802
        return PausingStreamWriter(self._writing(schema, overwrite))


def session(master: str) -> SparkSession:
    """A session of this process's own."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    return (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )


def stream(source: str, target: str, checkpoint: str) -> None:
    """Copy a history as a stream, ten events at a time."""
    spark = session("local[2]")
    spark.dataSource.register(PausingSource)
    reader = spark.readStream.format("penstock").option("url", source).option("maxEventsPerTrigger", 10)
    writer = reader.load().writeStream.format("pausing").option("url", target).option("orderBy", "position")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def table(target: str) -> None:
    """Write a table."""
    spark = session("local[2]")
    spark.dataSource.register(PausingSource)
    rows = spark.range(0, 100, 1, 4).selectExpr("'shop' context", "'s' stream", "'Counted' type", "string(id) text")
    rows.write.format("pausing").mode("append").option("url", target).save()


def flaky(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows as they are; the first attempts of each odd partition fail when all rows have been handed on."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() % 2 and context.attemptNumber() < 2:
        raise RuntimeError("this attempt fails on purpose")


def retried(target: str) -> None:
    """Write a table that is another one each time it is computed, with tasks that fail after they have staged."""
    spark = session("local[2,3]")
    rows = spark.range(0, 240, 1, 4).select(
        f.lit("shop").alias("context"),
        f.lit("s").alias("stream"),
        f.lit("Counted").alias("type"),
        # About 100 KB each, so that some are staged long before the task fails.
        f.concat(f.col("id").cast("string"), f.lit(" "), f.repeat(f.uuid(), 3000)).alias("text"),
        f.rand().alias("at"),
    )
    flaking = rows.mapInArrow(flaky, rows.schema)
    flaking.write.format("penstock").mode("append").option("url", target).option("orderBy", "at").save()


if __name__ == "__main__":
    what: dict[str, Callable[..., None]] = {"stream": stream, "table": table, "retried": retried}
    what[sys.argv[1]](*sys.argv[2:])
