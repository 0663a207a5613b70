"""A driver on a cluster, with tasks that fail and hang, which ends in commits that stand still until it is killed.

Run as `python -m tests.spark.sink_driver PLAN`, where the plan is a file; see `Plan`. It first writes one table after
the other, then several tables and streams at once. What it has come to, it says with files in its folder.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.sink import PenstockStreamWriter, PenstockWriter, WriteOptions
from penstock.spark.source import PenstockSource

ROWS: Final = 48
PARTS: Final = 4
HANGING: Final = 1
"""The part whose first attempt hangs, so that another one is started beside it."""
FAILING: Final = 3
"""The part whose first attempt fails."""
LARGE: Final = 600_000
"""Characters of a row in these parts: some of their rows are staged before others are made."""
PAUSED_BATCH: Final = 1
NEVER: Final = Path("/never")
"""Nothing is there: who waits for it stands still until its process is killed."""
ROW: Final = "context string, stream string, type string, text string, at double"

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # The code runs for a second: it is not worth compiling well.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    # Otherwise a task's rows reach the sink only when it has made all of them.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class Plan:
    """What a driver does: where its files go, the history it copies, and where it writes, by the kind of URL."""

    folder: str
    source: str
    targets: dict[str, str]

    def target(self, way: str, job: str) -> str:
        """The URL that a job writes to. An embedded store has one owner at a time, so each job has one of its own."""
        return f"{self.targets[way]}/{job}" if way == "sqlite" else self.targets[way]

    def file(self, what: str, way: str) -> Path:
        """The file by which something is said."""
        return Path(self.folder) / f"{what}-{way}"

    def save(self) -> Path:
        """Write it to a file of its folder."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path


# -- commits that stand still


def pause(where: str, given: str) -> None:
    """Stand still for ever, if this is the place."""
    place, _, reached = given.partition(":")
    if place == where:
        Path(reached).touch()
        wait_for(NEVER)


class PausingWriter(PenstockWriter):
    """Stands still in its commit."""

    def __init__(self, options: WriteOptions, paused: str) -> None:
        super().__init__(options)
        self._paused = paused

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pause("before", self._paused)
        super().commit(messages)


class PausingStreamWriter(PenstockStreamWriter):
    """Stands still in the commit of a batch."""

    def __init__(self, options: WriteOptions, paused: str) -> None:
        super().__init__(options)
        self._paused = paused

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        paused = self._paused if batchId == PAUSED_BATCH else ""
        pause("before", paused)
        super().commit(messages, batchId)
        pause("after", paused)


class PausingSource(PenstockSource):
    """The sink, but for pauses."""

    @classmethod
    def name(cls) -> str:
        return "pausing"

    def writer(self, schema: StructType, overwrite: bool) -> PenstockWriter:
        paused = self.options.pop("pause")
        return PausingWriter(self._write_options(schema, overwrite), paused)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:  # noqa: N802
        paused = self.options.pop("pause")
        return PausingStreamWriter(self._write_options(schema, overwrite), paused)


# -- a cluster


def cluster(folder: str) -> SparkSession:
    """A session on a standalone cluster with two workers; its master and its workers are in this driver's own JVM.

    Each worker has an address of its own: Spark never runs two attempts of a task on one host at the same time.
    """
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    conf = SparkConf().setAll(list(SETTINGS.items()))
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    java = jvm.org.apache.spark.SparkConf()
    master = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, java)
    url = f"spark://{master._1().address().hostPort()}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = url
    starting, nothing = jvm.org.apache.spark.deploy.worker.Worker, jvm.scala.Option.empty()
    for number in (2, 3):
        place = (f"127.0.0.{number}", 0, 0, 1, 512, masters, f"{folder}/work", jvm.scala.Option.apply(number))
        starting.startRpcEnvAndEndpoint(*place, java, nothing)
    return SparkSession(SparkContext(conf=conf.setMaster(url).setAppName("sink"), gateway=gateway))


def wait_for(path: Path, is_going_on: Callable[[], bool] = lambda: True) -> None:
    """Return when a file is there, which somebody makes who must not end before."""
    while not path.exists():
        assert is_going_on(), f"nobody makes {path}"
        time.sleep(0.02)


# -- tables


def computed(batches: Iterator[pa.RecordBatch], go: str) -> Iterator[pa.RecordBatch]:
    """Rows that say which attempt made them, and are others each time. Attempts that come to nothing have one more."""
    context = TaskContext.get()
    assert context is not None
    part, attempt = context.partitionId(), context.attemptNumber()
    is_hanging, is_failing = attempt == 0 and part == HANGING, attempt == 0 and part == FAILING
    for batch in batches:
        yield _rows(batch.column(0).to_pylist(), attempt, LARGE if part in (HANGING, FAILING) else 1)
    if is_hanging or is_failing:
        yield _rows([ROWS + part], attempt, 1)
        wait_for(NEVER if is_hanging else Path(go))
        raise RuntimeError("this attempt fails on purpose")


def _rows(numbers: list[int], attempt: int, size: int) -> pa.RecordBatch:
    some = {"context": "computed", "stream": "s", "type": "Counted"}
    columns: dict[str, list[Any]] = {name: [value] * len(numbers) for name, value in some.items()}
    texts = [f"{number} {attempt} {uuid4()} {'x' * size}" for number in numbers]
    return pa.RecordBatch.from_pydict({**columns, "text": texts, "at": [uuid4().int / 2**128 for _ in numbers]})


def write_computed(spark: SparkSession, plan: Plan, way: str) -> None:
    """Write a table that is another one each time it is computed, with tasks that fail and hang."""
    made = partial(computed, go=str(plan.file("go", way)))
    rows = spark.range(0, ROWS, 1, PARTS).mapInArrow(made, ROW)
    writer = rows.write.format("penstock").mode("append").option("url", plan.target(way, "computed"))
    writer.option("orderBy", "at").save()
    plan.file("computed", way).touch()


def start_table(spark: SparkSession, plan: Plan, way: str) -> None:
    """Write a table, up to its commit."""
    rows = spark.range(0, 100, 1, 1).selectExpr("'table' context", "'s' stream", "'Counted' type", "string(id) text")
    writer = rows.write.format("pausing").mode("append").option("url", plan.target(way, "table"))
    writer = writer.option("pause", f"before:{plan.file('table', way)}")

    def save() -> None:
        # A thread looks for sources in its own session, and has none at first.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
        writer.save()

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    wait_for(plan.file("table", way), thread.is_alive)


# -- streams


def copied(spark: SparkSession, source: str, context: str) -> DataFrame:
    """A history as a stream, ten events at a time, in another context."""
    events = spark.readStream.format("penstock").option("url", source).option("maxEventsPerTrigger", 10).load()
    return events.drop("context", "sequence", "recorded_at").selectExpr(f"'{context}' AS context", "*")


def start_stream(spark: SparkSession, plan: Plan, way: str, place: str) -> None:
    """Copy a history as a stream, up to a place in the commit of its second batch."""
    writer = copied(spark, plan.source, place).writeStream.format("pausing").option("orderBy", "position")
    writer = writer.option("url", plan.target(way, place)).option("pause", f"{place}:{plan.file(place, way)}")
    query = writer.option("checkpointLocation", str(plan.file("checkpoint", f"{place}-{way}"))).start()
    wait_for(plan.file(place, way), lambda: query.isActive)


def main(path: str) -> None:
    """Do what the plan says, and wait to be killed."""
    plan = Plan(**json.loads(Path(path).read_text()))
    spark = cluster(plan.folder)
    spark.dataSource.register(PausingSource)
    for way in plan.targets:
        write_computed(spark, plan, way)
    # One by one: each has processes of its own, which must not all be started at the same time.
    for way in plan.targets:
        start_table(spark, plan, way)
        start_stream(spark, plan, way, "before")
    start_stream(spark, plan, "postgresql", "after")
    wait_for(NEVER)


if __name__ == "__main__":
    main(sys.argv[1])
