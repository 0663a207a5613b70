"""Random logs and functions: an index that Spark has built and one that a server has built are the same everywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.testing import server
from tests.engine.test_iterator_properties import FUNCTIONS
from tests.spark.build_kit import Held, Place, answers, built
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, Target
from tests.spark.test_builds import numbers

EXAMPLES = 8
_numbers = count(1)
values = st.lists(st.integers(0, 100), max_size=30)


@dataclass(frozen=True)
class Case:
    """Messages that are there when an index is built, whose they are, and messages that come later."""

    kind: Any
    function: str
    #: Over a log, over another iterator that fails now and then, or over a stream of which something is erased.
    over: str
    before: list[int]
    after: list[int]
    erased: set[int]
    #: Messages that the server had built when the build on Spark began.
    head_start: int
    size: int


cases = st.builds(
    lambda function, *rest: Case(function[0], function[1], *rest),
    st.sampled_from(FUNCTIONS),
    st.sampled_from(["log", "iterator", "stream"]),
    values,
    values,
    st.sets(st.integers(0, 29)),
    st.integers(0, 10),
    st.integers(1, 12),
)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with server() as started:
        yield Place(Target(PENSTOCK, started.url, started.data))


@given(case=cases)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_spark_and_a_server_build_the_same_index(spark: SparkSession, place: Place, held: Held, case: Case) -> None:
    log, made, other = f"log{next(_numbers)}", f"spark{next(_numbers)}", f"server{next(_numbers)}"
    function = case.function if case.over != "stream" else f"local msg = msg.body.n {case.function}"
    with place.client() as client:

        def add(messages: list[int], start: int) -> None:
            for number, value in enumerate(messages, start):
                if case.over == "stream":
                    client.append("shop", log, numbers([value], f"{log}-{number}"))
                else:
                    client.log(log).append([value])

        client.log(log).create()
        read = {"log": log, "iterator": f"{log}-above", "stream": f"shop/{log}"}[case.over]
        client.iterator(f"{log}-above").create(
            log, "map", "if msg % 7 == 6 then error('six') end return msg", indexed=True
        )
        add(case.before[: case.head_start], 0)
        for name in (made, other):
            client.iterator(name).create(read, case.kind, function, indexed=True)
        answers(client, made, 0)
        held(made)
        add(case.before[case.head_start :], min(case.head_start, len(case.before)))
        if case.over == "stream":
            for number in case.erased:
                client.erase_subject(f"{log}-{number}")
        expected = answers(client, other, len(case.before) + 1)
        built(spark, place, made, case.size)
        assert place.output(made) == place.output(other)
        assert place.state(made).state == place.state(other).state
        held.release()
        assert answers(client, made, len(case.before) + 1) == expected
        add(case.after, len(case.before))
        both = [answers(client, name, len(case.before) + len(case.after) + 1) for name in (made, other)]
        assert both[0] == both[1]
