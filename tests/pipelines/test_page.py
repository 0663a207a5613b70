"""docs/pipelines.md: its examples run, in the Spark session that all tests share; and what fits, as Spark sees it."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.model import new_event
from penstock.spark.pipelines import fitting, misfits
from tests.spark.support import fill, load, positions
from tests.test_readme import PIPELINES, blocks

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}") as client:
        for number in range(1, 7):
            client.append("shop", "orders", [penstock.event("OrderPlaced", {"customer": "Ada", "amount": 10 * number})])
    names: dict[str, Any] = {"data_dir": str(tmp_path)}
    (code,) = blocks(PIPELINES)
    exec(compile(code, str(PIPELINES), "exec"), names)


def test_every_event_is_in_its_table_or_in_the_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [
        b'{"position": 7, "price": 1.25, "at": "2024-05-01T12:00:00+02:00", "any": {"x": [1]}, "tags": {"a": "b"}}',
        b'{"price": 1.255}',
        # Python takes these for ISO 8601, and Spark does not.
        b'{"at": "2024-W18-3"}',
        b'{"at": "20240501T120000Z"}',
        b'{"price": 1} {"price": 2}',
        b'[{"price": 1}]',
        b"{'price': 1}",
        b'{"lines": [{"sku": "a"}, {"sku": 1}]}',
        b'{"price": 1, "price": 2}',
        b'{"nested": ' + b"[" * 1100 + b"]" * 1100 + b"}",
        b"\xff",
        b"",
    ]
    events = [new_event("Odd", body) for body in bodies]
    url = fill(tmp_path / "data", [("shop", "odd", [*events, new_event("Other", b"{}"), new_event("Blob", b"")])])
    columns = (
        "position INT, price DECIMAL(5,2), at TIMESTAMP, any VARIANT, tags MAP<STRING, STRING>, "
        "lines ARRAY<STRUCT<sku: STRING>>"
    )
    history = load(spark, url)
    table, quarantine = fitting(history, "Odd", columns), misfits(history, {"Odd": columns}, ["Blob"])
    fit, unfit = positions(table), positions(quarantine)
    assert sorted(fit + unfit) == list(range(1, 14))
    assert {2, 5, 6, 7, 8, 11, 12, 13} <= set(unfit)
    first = table.where("position = 1").selectExpr("body_position", "price", "unix_seconds(at) AS at", "tags").first()
    assert first is not None
    assert (first.body_position, str(first.price), first.at, first.tags) == (7, "1.25", 1714557600, {"a": "b"})
    assert all(row.reason for row in quarantine.collect())
