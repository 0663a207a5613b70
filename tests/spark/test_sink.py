"""Writing a table: what a sink adds, in which order, and that what fails adds nothing."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.store import open_reader, store_url
from penstock.store.contract import ReadLimits
from penstock.testing import server
from tests.certificates import Authority
from tests.postgres import Schemas
from tests.spark.sink_targets import SQLITE, Target
from tests.spark.support import counted, fill, history, load

SCHEMA = "context string, stream string, type string, text string"


def write(rows: DataFrame, url: str, **options: Any) -> None:
    """Append a table to a history."""
    rows.write.format("penstock").mode("append").option("url", url).options(**options).save()


def numbers(spark: SparkSession, count: int, streams: int = 3, parts: int = 4) -> DataFrame:
    """A table with events whose text is a number, in several streams and partitions."""
    return spark.range(0, count, 1, parts).select(
        f.lit("shop").alias("context"),
        f.concat(f.lit("s-"), (f.col("id") % streams).cast("string")).alias("stream"),
        f.lit("Counted").alias("type"),
        f.col("id").cast("string").alias("text"),
        f.col("id").alias("at"),
    )


def bodies(directory: Path, stream: str) -> list[int]:
    """The numbers that a stream has."""
    return [int(event.body) for event in history(directory) if event.stream == stream]


def why(write_it: Callable[[], None]) -> str:
    """What a write that must fail says."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark wraps errors in several kinds of its own
        write_it()
    return str(caught.value)


def test_a_table_becomes_history(spark: SparkSession, data: Path) -> None:
    rows = [("shop", "a", "Placed", "one"), ("shop", "a", "Paid", "two"), ("other", "b", "Placed", "ü")]
    write(spark.createDataFrame(rows, SCHEMA).coalesce(1), store_url(data))
    found = history(data)
    assert [(e.context, e.stream, e.sequence, e.type, e.body.decode()) for e in found] == [
        ("other", "b", 1, "Placed", "ü"),
        ("shop", "a", 1, "Placed", "one"),
        ("shop", "a", 2, "Paid", "two"),
    ]
    assert all(e.headers is None for e in found)
    assert not (data / "staging").exists()


def test_all_columns_are_kept(spark: SparkSession, data: Path) -> None:
    number, time = UUID(int=7), datetime(2024, 5, 1, 12, 0, 0, 123456, UTC)
    row = ("shop", "a", "Placed", b"\x00\xff", '{"k":1}', str(number), time)
    schema = (
        "context string, stream string, type string, body binary, headers string, event_id string, timestamp timestamp"
    )
    write(spark.createDataFrame([row], schema), store_url(data))
    (event,) = history(data)
    assert (event.body, event.headers, event.uuid, event.timestamp) == (b"\x00\xff", '{"k":1}', number, time)


def test_a_table_that_was_read_can_be_written_elsewhere(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    source = fill(data, [("shop", "a", counted(5)), ("shop", "b", counted(3))])
    target = tmp_path / "copy"
    write(load(spark, source), store_url(target), orderBy="position")
    assert [(e.stream, e.id, e.stamp, e.body) for e in history(target) if e.stream == "a"] == [
        (e.stream, e.id, e.stamp, e.body) for e in history(data) if e.stream == "a"
    ]
    assert len(history(target)) == 8


def test_order_in_a_stream_is_that_of_the_partitions(spark: SparkSession, data: Path) -> None:
    write(numbers(spark, 300).drop("at"), store_url(data))
    for stream in range(3):
        assert bodies(data, f"s-{stream}") == list(range(stream, 300, 3))


def test_a_column_can_give_the_order(spark: SparkSession, data: Path) -> None:
    """A time does; `test_sink_writer` has the other types."""
    rows = numbers(spark, 300).withColumn("at", f.timestamp_micros(f.col("at") - 150))
    write(rows.orderBy(f.hash("text")).repartition(3), store_url(data), orderBy="at")
    for stream in range(3):
        assert bodies(data, f"s-{stream}") == list(range(stream, 300, 3))


def test_an_empty_table_adds_nothing(spark: SparkSession, data: Path) -> None:
    url = fill(data, [("shop", "a", counted(1))])
    write(numbers(spark, 10).drop("at").where("false"), url)
    write(spark.createDataFrame([], SCHEMA), url)
    assert len(history(data)) == 1


def test_a_bad_row_fails_the_job_and_says_where(spark: SparkSession, data: Path) -> None:
    url = fill(data, [("shop", "a", counted(1))])
    rows = numbers(spark, 10, parts=1).withColumn("type", f.when(f.col("at") == 7, None).otherwise(f.col("type")))
    message = why(lambda: write(rows.drop("at"), url))
    assert "row 7 of partition 0: column type is null" in message
    assert len(history(data)) == 1
    assert not (data / "staging").exists()


def test_bad_rows_can_be_diverted(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    aside = tmp_path / "bad"
    rows = numbers(spark, 10, streams=1, parts=2)
    rows = rows.withColumn("type", f.when(f.col("at") % 4 == 1, None).otherwise(f.col("type"))).drop("at")
    write(rows, store_url(data), badRows="divert", badRowsPath=str(aside))
    assert bodies(data, "s-0") == [0, 2, 3, 4, 6, 7, 8]
    lines = [json.loads(line) for path in sorted(aside.iterdir()) for line in path.read_text().splitlines()]
    assert [(one["column"], one["reason"], one["values"]["text"]) for one in lines] == [
        ("type", "is null", "1"),
        ("type", "is null", "5"),
        ("type", "is null", "9"),
    ]


def test_a_job_that_fails_shows_no_diverted_rows(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    aside = tmp_path / "bad"
    rows = numbers(spark, 10, parts=2).withColumn("type", f.when(f.col("at") == 1, None).otherwise(f.col("type")))
    failing = rows.withColumn("text", f.expr("if(at = 9, raise_error('broken'), text)")).drop("at")
    assert "broken" in why(lambda: write(failing, store_url(data), badRows="divert", badRowsPath=str(aside)))
    # A task that is still at work when its job fails may leave something behind, where readers of folders do not look.
    assert not aside.exists() or all(path.name.startswith(".") for path in aside.iterdir())


def test_a_conflict_fails_the_job_and_nothing_is_shown(spark: SparkSession, data: Path) -> None:
    url = fill(data, [("shop", "s-2", counted(2))])
    rows = numbers(spark, 9).drop("at").withColumn("expected_version", f.lit(1))
    message = why(lambda: write(rows, url))
    assert "stream shop/s-2 is at version 2: its next event gets sequence 3, expected 1" in message
    assert len(history(data)) == 2
    assert Target(SQLITE, url, data).staged() == []
    assert not (data / "staging").exists()


def test_a_server_takes_what_is_written(spark: SparkSession, data: Path) -> None:
    with server(data) as served:
        write(numbers(spark, 500), served.url, orderBy="at")
        write(numbers(spark, 10).drop("at"), served.url, producer="p", batch=1)
        write(numbers(spark, 10).drop("at"), served.url, producer="p", batch=1)
        rows = numbers(spark, 9).drop("at").withColumn("expected_version", f.lit(1))
        assert "expected 1; nothing was written" in why(lambda: write(rows, served.url))
    assert len(history(data)) == 510
    assert bodies(data, "s-1")[:167] == list(range(1, 500, 3))


def test_tables_are_written_and_read_over_tls(spark: SparkSession, tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("own", "127.0.0.1")
    with server(tmp_path / "data", tls_cert=str(own.cert), tls_key=str(own.key)) as served:
        assert served.url.endswith(f"?tls&tls_ca={own.cert}")
        write(numbers(spark, 100).drop("at"), served.url)
        assert load(spark, served.url).count() == 100
        plain = served.url.partition("?")[0]
        assert "speaks TLS: add ?tls" in why(lambda: write(numbers(spark, 1).drop("at"), plain))
        assert "speaks TLS: add ?tls" in why(lambda: load(spark, plain).show())


def test_what_is_wrong_with_a_table_or_its_options_is_told_before_anything_is_run(
    spark: SparkSession, data: Path
) -> None:
    rows = numbers(spark, 1).drop("at")
    assert "did you mean orderBy?" in why(lambda: write(rows, store_url(data), ordreBy="at"))
    assert "column stream is missing" in why(lambda: write(rows.drop("stream"), store_url(data)))
    writer = rows.write.format("penstock").mode("overwrite").option("url", store_url(data))
    assert "a history only grows" in why(writer.save)


def test_postgres_takes_what_is_written(spark: SparkSession, schemas: Schemas, tmp_path: Path) -> None:
    url = schemas.url(tmp_path)
    write(numbers(spark, 300), url, orderBy="at")
    for _ in range(2):
        write(numbers(spark, 9).drop("at"), url, producer="p", batch=1)
    rows = numbers(spark, 9).drop("at").withColumn("expected_version", f.lit(1))
    assert "stream shop/s-0 is at version" in why(lambda: write(rows, url))
    with closing(open_reader(url)) as reader:
        assert reader.head() == 309
        page = reader.read_stream("shop", "s-1", 1, None, ReadLimits())
    assert [int(event.body) for event in page.events] == [*range(1, 300, 3), 1, 4, 7]
