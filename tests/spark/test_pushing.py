"""Filters that become options: what is taken, and what is left to Spark."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from penstock.history.options import ReadOptions
from penstock.spark.source import push_filters

OPTIONS = ReadOptions("sqlite:///data")
NOTHING = {"last": 0}


def col(name: str) -> tuple[str]:
    return (name,)


TAKEN: list[tuple[Filter, dict[str, Any]]] = [
    (EqualTo(col("context"), "shop"), {"context": "shop"}),
    (EqualNullSafe(col("context"), "shop"), {"context": "shop"}),
    (In(col("context"), ("shop",)), {"context": "shop"}),
    (EqualTo(col("context"), ""), NOTHING),
    (EqualTo(col("type"), "Made"), {"types": ("Made",)}),
    (In(col("type"), ("Made", None, "Sold")), {"types": ("Made", "Sold")}),
    (StringStartsWith(col("stream"), "order-"), {"filter": "order-"}),
    (StringStartsWith(col("stream"), ""), {}),
    (StringStartsWith(col("stream"), "a\0"), NOTHING),
    (EqualTo(col("position"), 5), {"first": 5, "last": 5}),
    (GreaterThan(col("position"), 5), {"first": 6}),
    (GreaterThanOrEqual(col("position"), 5), {"first": 5}),
    (LessThan(col("position"), 5), {"last": 4}),
    (LessThanOrEqual(col("position"), 5), {"last": 5}),
    (IsNotNull(col("context")), {}),
]


@pytest.mark.parametrize(("given", "fields"), TAKEN)
def test_a_filter_is_taken_whole(given: Filter, fields: dict[str, Any]) -> None:
    assert push_filters(OPTIONS, [given]) == (replace(OPTIONS, **fields), [])


LEFT: list[tuple[Filter, dict[str, Any]]] = [
    (EqualTo(col("stream"), "order-1"), {"filter": "order-1"}),
    (EqualTo(col("stream"), "*"), {}),
    (StringStartsWith(col("stream"), "*"), {}),
    (In(col("context"), ("shop", "audit")), {}),
    (In(col("position"), (1, 2)), {}),
    (StringStartsWith(col("context"), "s"), {}),
    (StringContains(col("stream"), "order"), {}),
    (Not(EqualTo(col("context"), "shop")), {}),
    (IsNotNull(col("headers")), {}),
    (IsNotNull(col("text")), {}),
    (IsNull(col("headers")), {}),
    (GreaterThan(col("sequence"), 5), {}),
]


@pytest.mark.parametrize(("given", "fields"), LEFT)
def test_a_filter_is_left_to_spark(given: Filter, fields: dict[str, Any]) -> None:
    assert push_filters(OPTIONS, [given]) == (replace(OPTIONS, **fields), [given])


def test_filters_come_on_top_of_options_and_of_one_another() -> None:
    options = ReadOptions("sqlite:///data", "shop", "order-", ("Made", "Sold"), first=10, last=20)
    given: list[Filter] = [
        EqualTo(col("context"), "shop"),
        StringStartsWith(col("stream"), "order-1"),
        StringStartsWith(col("stream"), "ord"),
        In(col("type"), ("Sold", "Lost")),
        GreaterThan(col("position"), 5),
        LessThan(col("position"), 15),
    ]
    assert push_filters(options, given) == (replace(options, filter="order-1", types=("Sold",), last=14), [])


@pytest.mark.parametrize("given", [EqualTo(col("context"), "audit"), StringStartsWith(col("stream"), "invoice-")])
def test_a_filter_against_the_options_lets_nothing_through(given: Filter) -> None:
    options = ReadOptions("sqlite:///data", "shop", "order-")
    assert push_filters(options, [given]) == (replace(options, last=0), [])
