"""What notebooks need: events as a DataFrame, and bodies as columns."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import InvalidRequest
from penstock.model import event
from penstock.spark import VARIANT, events, typed
from tests.spark.support import NOON, fill

ORDERS = [
    event("OrderPlaced", {"customer": "Ada", "amount": 42}, time=NOON),
    event("OrderPlaced", {"customer": "Bob", "amount": 7, "lines": [{"sku": "x"}]}, time=NOON + timedelta(hours=1)),
    event("OrderPaid", {"customer": "Ada", "type": "card"}, time=NOON + timedelta(hours=2)),
    event("Broken", b"{not json"),
]


@pytest.fixture
def url(data: Path) -> str:
    return fill(data, [("shop", "order-1", ORDERS), ("other", "x", ORDERS)])


def test_events_are_those_of_the_options(spark: SparkSession, url: str) -> None:
    assert events(spark, url).count() == 8
    assert events(spark, url, context="shop").count() == 4
    rows = events(spark, url, context="shop", type=["OrderPlaced", "OrderPaid"], columns=["position", "type"])
    assert rows.columns == ["position", "type"]
    assert rows.count() == 3
    late = events(spark, url, context="shop", startTime=NOON + timedelta(hours=1), endTime=NOON + timedelta(hours=3))
    assert sorted(row.position for row in late.collect()) == [2, 3]
    with pytest.raises(InvalidRequest, match="startTime 2024-05-01T12:00:00 has no time zone"):
        events(spark, url, startTime=NOON.replace(tzinfo=None))


SCHEMA = StructType([StructField("customer", StringType()), StructField("amount", LongType())])


@pytest.mark.parametrize("schema", [SCHEMA, "customer string, amount bigint"])
def test_bodies_become_the_columns_of_a_schema(spark: SparkSession, url: str, schema: Any) -> None:
    rows = typed(events(spark, url, context="shop"), "OrderPlaced", schema)
    assert rows.columns[-3:] == ["ticks", "customer", "amount"]
    assert not {"body", "text"} & set(rows.columns)
    found = rows.orderBy("position").select("position", "stream", "customer", "amount").collect()
    assert [tuple(row) for row in found] == [(1, "order-1", "Ada", 42), (2, "order-1", "Bob", 7)]


def test_without_a_schema_the_events_tell_it(spark: SparkSession, url: str) -> None:
    rows = typed(events(spark, url, context="shop"), "OrderPlaced")
    fields = [(field.name, field.dataType.simpleString()) for field in rows.schema][-3:]
    assert fields == [("amount", "bigint"), ("customer", "string"), ("lines", "array<struct<sku:string>>")]
    assert rows.selectExpr("sum(amount)", "max(lines[0].sku)").collect()[0][:] == (49, "x")
    one = typed(events(spark, url, context="shop"), "OrderPlaced", 1)
    assert one.columns[-2:] == ["amount", "customer"]


def test_bodies_may_be_variants(spark: SparkSession, url: str) -> None:
    rows = typed(events(spark, url, context="shop", columns=["position", "type", "body"]), "OrderPlaced", VARIANT)
    assert rows.columns == ["position", "type", "data"]
    assert rows.selectExpr("sum(data:amount::int)", "max(data:lines[0].sku::string)").collect()[0][:] == (49, "x")


def test_a_field_that_is_named_like_a_column_gets_another_name(spark: SparkSession, url: str) -> None:
    rows = typed(events(spark, url, context="shop"), "OrderPaid")
    assert rows.columns[-2:] == ["customer", "body_type"]
    assert [(row.type, row.body_type) for row in rows.collect()] == [("OrderPaid", "card")]


@pytest.mark.parametrize("how", ["a bigint", VARIANT])
def test_a_body_that_is_not_json_fails_the_query(spark: SparkSession, url: str, how: Any) -> None:
    with pytest.raises(Py4JJavaError, match="Malformed records are detected"):
        typed(events(spark, url, context="shop"), "Broken", how).collect()


def test_a_sample_of_nothing_is_told(spark: SparkSession, url: str) -> None:
    with pytest.raises(InvalidRequest, match="there are no events of type Lost"):
        typed(events(spark, url), "Lost")


@pytest.mark.parametrize("sample", [0, True, 1.5, None])
def test_what_is_no_schema_and_no_sample_is_refused(spark: SparkSession, url: str, sample: Any) -> None:
    with pytest.raises(InvalidRequest, match="schema_or_sample is"):
        typed(events(spark, url), "OrderPlaced", sample)


def test_a_stream_needs_a_schema(spark: SparkSession, url: str) -> None:
    rows = spark.readStream.format("penstock").option("url", url).load()
    with pytest.raises(InvalidRequest, match="a stream has no sample"):
        typed(rows, "OrderPlaced")
    assert typed(rows, "OrderPlaced", "customer string").isStreaming
