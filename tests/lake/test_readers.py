"""Anybody reads a lake: Spark, DuckDB, pandas and polars give the rows of the store, before and after a compaction."""

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from penstock.history.columns import COLUMNS, TABLE
from tests.lake.support import (
    archive,
    awkward,
    compact,
    fill,
    is_same,
    manifest_of,
    numbers,
    rows_of,
    store_rows,
    verified,
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    data = tmp_path_factory.mktemp("readers") / "data"
    fill(data, [*numbers(20), *awkward()])
    return fill(data, numbers(5), days=1)


@pytest.fixture(scope="module", params=["archived", "compacted"])
def lake(request: pytest.FixtureRequest, url: str, shared_spark: SparkSession) -> Path:
    """A lake that Spark has archived, in two rounds; then the same compacted."""
    data = Path(url.removeprefix("sqlite:///"))
    lake = data.parent / "lake"
    if request.param == "archived":
        archive(url, lake, shared_spark)
        fill(data, numbers(3), days=1)
        assert archive(url, lake, shared_spark).events == 30
        assert len(manifest_of(lake).files) == 3
    else:
        assert compact(lake, shared_spark) == (2, 1, 2)
    assert is_same(url, lake)
    return lake


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return rows_of(table.select(COLUMNS).cast(TABLE).sort_by("position"))


def test_spark_reads_the_folder(lake: Path, url: str, spark: SparkSession) -> None:
    rows = spark.read.parquet(str(lake))
    assert {str(row.recorded_day) for row in rows.select("recorded_day").distinct().collect()} == {
        "2026-11-14",
        "2026-11-15",
    }
    times = ["timestamp", "recorded_at"]
    plain = rows.selectExpr(*(f"unix_micros({name}) {name}" if name in times else name for name in COLUMNS))
    assert [tuple(row) for row in plain.orderBy("position").collect()] == [
        tuple(bytearray(value) if isinstance(value, bytes) else value for value in row) for row in store_rows(url)
    ]
    assert verified(url, lake, spark).differences == []


def test_duckdb_reads_the_folder(lake: Path, url: str) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for source in (f"'{lake}/**/*.parquet'", f"read_parquet('{lake}/*/*.parquet', hive_partitioning = true)"):
            found = connection.sql(f"SELECT {', '.join(COLUMNS)} FROM {source}").to_arrow_table()
            assert sorted_rows(found) == store_rows(url)
        query = f"SELECT count(*) FROM read_parquet('{lake}/*/*.parquet', hive_partitioning = true)"
        assert connection.sql(f"{query} WHERE recorded_day = '2026-11-15'").fetchall() == [(80,)]


def test_pandas_reads_the_folder(lake: Path, url: str) -> None:
    found = pd.read_parquet(lake)
    assert sorted_rows(pa.Table.from_pandas(found[list(COLUMNS)], preserve_index=False)) == store_rows(url)


def test_polars_reads_the_folder(lake: Path, url: str) -> None:
    for pattern in ("**/*.parquet", "*/*.parquet"):
        found = pl.scan_parquet(lake / pattern, hive_partitioning=True).select(COLUMNS).collect()
        assert sorted_rows(found.to_arrow()) == store_rows(url)


def test_arrow_reads_the_folder(lake: Path, url: str) -> None:
    assert sorted_rows(ds.dataset(lake, partitioning="hive").to_table()) == store_rows(url)
