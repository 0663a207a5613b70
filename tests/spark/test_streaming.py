"""Reading as a stream: nothing is lost nor doubled, whoever stops or dies in between."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.errors import StoreChanged
from penstock.history.options import ReadOptions
from penstock.model import new_event
from penstock.spark.source import TABLE, PenstockStreamReader, arrow_schema
from penstock.store import store_url
from penstock.testing import server
from tests.spark.support import NOON, PATIENCE_S, counted, fill, history, until

SCRIPT = """
import sys
from pyspark.sql import SparkSession
url, out, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
rows = spark.readStream.format("penstock").option("url", url).option("maxEventsPerTrigger", 7).load()
rows.select("position", "text").writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out)
spark.streams.awaitAnyTermination()
"""


def stream(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.readStream.format("penstock").option("url", url).options(**options).load()


class Sink:
    """Batches as they came; a batch that comes again takes the place of the first."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}
        self.fails_at = -1

    def take(self, rows: DataFrame, number: int) -> None:
        found = sorted(row.position for row in rows.select("position").collect())
        if number == self.fails_at:
            raise RuntimeError("this sink has failed")
        self.batches[number] = found

    def start(self, rows: DataFrame, *, available_now: bool = False) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, rows: DataFrame) -> None:
        """Everything that is there now."""
        query = self.start(rows, available_now=True)
        assert query.awaitTermination(PATIENCE_S)

    @property
    def positions(self) -> list[int]:
        return [position for number in sorted(self.batches) for position in self.batches[number]]

    def offsets(self) -> list[int]:
        """The positions that the checkpoint says batches end at."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(file.read_text().splitlines()[-1])["position"] for file in files]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "checkpoint")


def test_what_is_available_now_comes_in_batches_of_at_most_so_many(spark: SparkSession, data: Path, sink: Sink) -> None:
    url = fill(data, [("shop", "s", counted(25))])
    rows = stream(spark, url, maxEventsPerTrigger=10)
    sink.run(rows)
    assert [len(batch) for batch in sink.batches.values()] == [10, 10, 5]
    assert sink.positions == list(range(1, 26))
    sink.run(rows)
    assert len(sink.batches) == 3
    fill(data, [("shop", "s", counted(3))])
    sink.run(rows)
    assert sink.batches[3] == [26, 27, 28]
    assert sink.offsets() == [10, 20, 25, 28]


@pytest.mark.long
def test_a_stream_takes_what_comes_from_a_server_under_load(spark: SparkSession, data: Path, sink: Sink) -> None:
    with server(data) as served, penstock.connect(served.url) as client:
        query = sink.start(stream(spark, served.url, context="shop"))
        for number in range(20):
            client.append("shop", f"s-{number % 3}", counted(5))
            client.append("other", "s", counted(5))
        expected = [event.position for event in history(data) if event.context == "shop"]
        until(lambda: len(sink.positions) >= len(expected), "the last batch")
        query.stop()
    assert sink.positions == expected


@pytest.mark.long
def test_a_query_that_fails_in_a_batch_reads_the_same_batch_again(spark: SparkSession, data: Path, sink: Sink) -> None:
    url = fill(data, [("shop", "s", counted(30))])
    sink.fails_at = 1
    with pytest.raises(StreamingQueryException, match="this sink has failed"):
        sink.start(stream(spark, url, maxEventsPerTrigger=10), available_now=True).awaitTermination(PATIENCE_S)
    assert (sink.positions, sink.offsets()) == (list(range(1, 11)), [10, 20])
    sink.fails_at = -1
    # The batch that was begun is what it was, whatever is there now, and whatever is asked for now.
    fill(data, [("shop", "s", counted(5))], seal=True)
    sink.run(stream(spark, url, maxEventsPerTrigger=100))
    assert {number: len(batch) for number, batch in sink.batches.items()} == {0: 10, 1: 10, 2: 15}
    assert sink.positions == list(range(1, 36))


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_driver_that_is_killed_is_resumed_without_loss_or_repetition(spark: SparkSession, tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [("shop", "s", counted(7 * 40))])
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    command = [sys.executable, "-c", SCRIPT, url, str(out), str(checkpoint)]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: committed(checkpoint) >= 3 or driver.poll() is not None, "the third batch")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    done = committed(checkpoint)
    assert 3 <= done < 40, (tmp_path / "log").read_text()
    writer = stream(spark, url, maxEventsPerTrigger=200).select("position", "text").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(PATIENCE_S)
    found = spark.read.parquet(str(out)).orderBy("position").collect()
    assert [row.position for row in found] == list(range(1, 281))
    assert [json.loads(row.text)["number"] for row in found] == list(range(1, 281))


def committed(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))


@pytest.mark.long
def test_a_checkpoint_of_another_store_is_refused(spark: SparkSession, tmp_path: Path, sink: Sink) -> None:
    one, other = (fill(tmp_path / name, [("shop", "s", counted(5))]) for name in ("one", "other"))
    sink.run(stream(spark, one))
    names = [reader(url).initialOffset()["store"] for url in (one, other)]
    said = f"it was timeline 1 of store {names[0]}, as the checkpoint says, and is timeline 1 of store {names[1]}"
    with pytest.raises(StreamingQueryException, match=said):
        sink.run(stream(spark, other))
    assert sink.positions == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_progress_tells_how_many_events_it_is_behind(spark: SparkSession, data: Path, sink: Sink) -> None:
    url = fill(data, [("shop", "s", counted(25))])
    query = sink.start(stream(spark, url, maxEventsPerTrigger=10), available_now=True)
    assert query.awaitTermination(PATIENCE_S)
    reports = [source["latestOffset"] for report in query.recentProgress for source in report["sources"]]
    latest = [json.loads(report) if isinstance(report, str) else report for report in reports]
    assert [report["behind"] for report in latest if report][:3] == [15, 5, 0]
    assert {report["position"] for report in latest if report} == {25}


# -- offsets, without Spark


def reader(url: str, **options: str) -> PenstockStreamReader:
    return PenstockStreamReader(ReadOptions.of({"url": url, **options}), arrow_schema(TABLE))


OPTIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "startPosition": ({"startPosition": 4}, [4, 5, 6]),
    "endPosition": ({"endPosition": 2}, [1, 2]),
    "startTime": ({"startTime": "2024-05-01T12:04:00Z", "context": "shop"}, [2, 4, 5]),
    "times of all contexts": ({"startTime": "2024-05-01T12:04:00Z", "endTime": "2024-05-01T12:05:00Z"}, [4]),
    "nothing yet": ({"startTime": "2025-01-01", "context": "shop"}, []),
    "filter": ({"filter": "a", "type": "Made"}, [1, 3, 5]),
    "columns": ({"columns": "position"}, [1, 2, 3, 4, 5, 6]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_a_stream_lets_through_what_it_says(data: Path, name: str) -> None:
    options, expected = OPTIONS[name]
    minutes = (1, 5, 2, 4, 6)
    commits = [
        ("shop", "ab"[number % 2], [new_event("Made", b"{}", time=NOON.replace(minute=minute))])
        for number, minute in enumerate(minutes)
    ]
    url = fill(data, [*commits, ("other", "s", [new_event("Late", b"{}", time=NOON)])])
    stream = reader(url, partitionBytes="1", **{key: str(value) for key, value in options.items()})
    start = stream.initialOffset()
    parts = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    found = [at for part in parts for batch in stream.read(part) for at in batch["position"].to_pylist()]
    stream.stop()
    assert found == expected


def test_an_offset_never_goes_back_nor_beyond_what_is_wanted(data: Path) -> None:
    url = fill(data, [("shop", "s", counted(10))])
    stream = reader(url, startPosition="20", endPosition="30")
    start = stream.initialOffset()
    assert start["position"] == 19
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    stream.stop()
    fill(data, [("shop", "s", counted(50))])
    latest = stream.latestOffset(start, ReadMaxRows(5))
    assert latest["position"] == 24
    assert stream.latestOffset(latest, ReadAllAvailable())["position"] == 30
    assert stream.reportLatestOffset() == {**start, "position": 30, "behind": 0}
    stream.stop()


def test_what_comes_after_available_now_began_is_for_the_next_run(data: Path) -> None:
    url = fill(data, [("shop", "s", counted(10))])
    stream = reader(url)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    stream.stop()
    fill(data, [("shop", "s", counted(10))])
    assert stream.latestOffset(start, ReadAllAvailable())["position"] == 10
    assert stream.reportLatestOffset()["behind"] == 10
    stream.stop()


def test_an_offset_of_another_timeline_is_refused(data: Path) -> None:
    stream = reader(fill(data, [("shop", "s", counted(10))]))
    now = stream.initialOffset()
    before = {**now, "timeline": 7}
    with pytest.raises(StoreChanged, match=r"it was timeline 7 of .* and is timeline 1 of"):
        stream.latestOffset(before, ReadAllAvailable())
    for start, end in ((before, now), (now, before)):
        with pytest.raises(StoreChanged):
            stream.partitions(start, end)
    assert stream.partitions(now, now) == []
    stream.stop()


def test_the_limit_of_a_batch_is_the_option(data: Path) -> None:
    url = store_url(data)
    assert reader(url).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(url, maxEventsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
