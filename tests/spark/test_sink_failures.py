"""A sink whose tasks fail, whose driver is killed, whose batches are replayed: each row is added once, or none is."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import StageLost
from penstock.spark.sink import PenstockWriter
from penstock.spark.writing import WriteOptions
from penstock.store import store_url
from penstock.testing import server
from tests.spark.sink_driver import PAUSE
from tests.spark.support import PATIENCE_S, counted, fill, history, load, until

ROOT = Path(__file__).parents[2]


@contextmanager
def driver(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, which is killed at the end."""
    command = [sys.executable, "-m", "tests.spark.sink_driver", *arguments]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_at(tmp_path: Path, place: str, *arguments: str) -> None:
    """Run a driver until its commit has come to a place, and kill it there."""
    reached = tmp_path / "reached"
    with driver(tmp_path, *arguments, **{PAUSE: f"{place}:{reached}"}) as process:
        until(lambda: reached.exists() or process.poll() is not None, "the commit")
        assert process.poll() is None, (tmp_path / "log").read_text()


def copy(source: DataFrame, target: str, checkpoint: Path, **options: Any) -> None:
    """Write a stream until all that there is now is written."""
    writer = source.writeStream.format("penstock").option("url", target).option("orderBy", "position")
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)


def stream(spark: SparkSession, url: str, events: int = 10) -> DataFrame:
    """A history as a stream, some events at a time."""
    return spark.readStream.format("penstock").option("url", url).option("maxEventsPerTrigger", events).load()


def test_a_stream_is_written_once_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", [("shop", "s", counted(35))]), store_url(tmp_path / "target")
    copy(stream(spark, source), target, tmp_path / "checkpoint")
    fill(tmp_path / "source", [("shop", "s", counted(5, 36))])
    copy(stream(spark, source), target, tmp_path / "checkpoint")
    assert [(e.id, e.stamp, e.body) for e in history(tmp_path / "target")] == [
        (e.id, e.stamp, e.body) for e in history(tmp_path / "source")
    ]


def test_a_stream_is_written_through_a_server(spark: SparkSession, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", [("shop", "s", counted(35))])
    with server(tmp_path / "target") as served:
        copy(stream(spark, source), served.url, tmp_path / "checkpoint")
    assert [e.body for e in history(tmp_path / "target")] == [e.body for e in history(tmp_path / "source")]


def test_a_batch_that_is_replayed_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", [("shop", "s", counted(25))]), store_url(tmp_path / "target")
    checkpoint = tmp_path / "checkpoint"
    copy(stream(spark, source), target, checkpoint)
    # As if the driver had died after it published, before Spark noted that the batch is done.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    copy(stream(spark, source), target, checkpoint)
    assert len(history(tmp_path / "target")) == 25
    assert not (tmp_path / "target" / "staging").exists()


def test_a_new_checkpoint_with_the_old_producer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source, target = fill(tmp_path / "source", [("shop", "s", counted(25))]), store_url(tmp_path / "target")
    copy(stream(spark, source), target, tmp_path / "one", producer="copier")
    with pytest.raises(Exception, match="copier"):
        copy(stream(spark, source), target, tmp_path / "two", producer="copier")
    assert len(history(tmp_path / "target")) == 25


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_driver_killed_in_its_commit_is_resumed_without_loss_or_repetition(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    source, target = fill(tmp_path / "source", [("shop", "s", counted(35))]), store_url(tmp_path / "target")
    checkpoint = tmp_path / "checkpoint"
    kill_at(tmp_path, place, "stream", source, target, str(checkpoint))
    assert len(history(tmp_path / "target")) == (10 if place == "before" else 20)
    copy(stream(spark, source), target, checkpoint)
    assert [e.id for e in history(tmp_path / "target")] == [e.id for e in history(tmp_path / "source")]
    assert not (tmp_path / "target" / "staging").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["sqlite", "penstock"])
def test_a_driver_killed_between_stage_and_commit_has_added_nothing(tmp_path: Path, way: str) -> None:
    data = tmp_path / "data"
    url = fill(data, [("shop", "s", counted(1))])
    with server(data) if way == "penstock" else driver_less() as served:
        kill_at(tmp_path, "before", "table", served.url if served else url)
        assert len(history(data)) == 1


@contextmanager
def driver_less() -> Iterator[None]:
    """No server."""
    yield None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["sqlite", "penstock"])
def test_a_table_that_changes_when_it_is_computed_again_is_written_once(tmp_path: Path, way: str) -> None:
    data = tmp_path / "data"
    url = fill(data, [])
    with server(data) if way == "penstock" else driver_less() as served:
        with driver(tmp_path, "retried", served.url if served else url) as process:
            assert process.wait(PATIENCE_S * 3) == 0, (tmp_path / "log").read_text()
        assert "this attempt fails on purpose" in (tmp_path / "log").read_text()
        numbers = [int(e.body.split()[0]) for e in history(data)]
    assert sorted(numbers) == list(range(240))
    assert numbers != sorted(numbers)


def test_of_two_attempts_of_a_task_the_one_that_won_is_published(tmp_path: Path) -> None:
    url = store_url(tmp_path / "data")
    writer = PenstockWriter(WriteOptions(url))
    columns = {"context": ["shop"] * 3, "stream": ["s"] * 3, "type": ["T"] * 3}
    told = []
    for attempt in ("lost", "won"):
        rows = pa.RecordBatch.from_pydict({**columns, "text": [f"{attempt} {number}" for number in range(3)]})
        # Each attempt is in a process of its own.
        told.append(pickle.loads(pickle.dumps(writer)).write(iter([rows])))
    pickle.loads(pickle.dumps(writer)).commit([told[1]])
    assert [e.body for e in history(tmp_path / "data")] == [b"won 0", b"won 1", b"won 2"]
    assert not (tmp_path / "data" / "staging").exists()


def test_files_that_the_driver_does_not_see_fail_the_job(tmp_path: Path) -> None:
    writer = PenstockWriter(WriteOptions(store_url(tmp_path / "data")))
    rows = pa.RecordBatch.from_pydict({"context": ["shop"], "stream": ["s"], "type": ["T"], "text": ["one"]})
    told = writer.write(iter([rows]))
    shutil.rmtree(tmp_path / "data" / "staging")
    with pytest.raises(StageLost):
        writer.commit([told])
    assert history(tmp_path / "data") == []


def test_a_sink_writes_while_its_store_is_read(spark: SparkSession, tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [("shop", "s", counted(10))])
    load(spark, url).drop("event_id").write.format("penstock").mode("append").option("url", url).save()
    assert len(history(tmp_path / "data")) == 20
