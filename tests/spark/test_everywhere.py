"""What the tests beside this one ask of a store on SQLite, asked of PostgreSQL and of a server."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.errors import DamagedRecord
from penstock.testing import server
from tests.postgres import Schemas
from tests.spark.support import counted, fill, history, read, until
from tests.spark.test_batch import OPTIONS, SHOP
from tests.spark.test_streaming import Sink, stream

NAMES = ("007", "a/b", "ü")
ROUNDS = 12


class Place(NamedTuple):
    """A history: how Spark is to read it, and where it is."""

    url: str
    store: str | Path


@pytest.fixture(params=["postgresql", "penstock"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A shop, and contexts of odd names."""
    commits = [*SHOP, *((name, "s", counted(3)) for name in NAMES)]
    if request.param == "postgresql":
        schemas: Schemas = request.getfixturevalue("schemas")
        url = fill(schemas.url(tmp_path), commits)
        yield Place(url, url)
        return
    fill(tmp_path / "data", commits)
    with server(tmp_path / "data") as served:
        yield Place(served.url, tmp_path / "data")


def test_options_let_through_what_they_say(place: Place) -> None:
    events = history(place.store)
    found = {name: read(place.url, **options) for name, (options, _) in OPTIONS.items()}
    assert found == {name: [e.position for e in events if passes(e)] for name, (_, passes) in OPTIONS.items()}


def test_contexts_may_have_any_name(place: Place) -> None:
    events = history(place.store)
    for name in NAMES:
        wanted = [event.position for event in events if event.context == name]
        assert read(place.url, context=name) == wanted
        assert len(wanted) == 3


@pytest.mark.long
def test_a_stream_from_postgresql_takes_what_comes_under_load(
    spark: SparkSession, schemas: Schemas, tmp_path: Path
) -> None:
    url, sink = fill(schemas.url(tmp_path), [("shop", "s", counted(5))]), Sink(tmp_path / "checkpoint")

    def append() -> None:
        for number in range(ROUNDS):
            fill(url, [("shop", f"s-{number % 3}", counted(5)), ("other", "s", counted(5))])

    appending = threading.Thread(target=append)
    appending.start()
    query = sink.start(stream(spark, url, context="shop", maxEventsPerTrigger=40))
    appending.join()
    expected = [event.position for event in history(url) if event.context == "shop"]
    until(lambda: len(sink.positions) >= len(expected), "the last batch")
    query.stop()
    assert len(expected) == 5 + 5 * ROUNDS
    assert sink.positions == expected


def test_a_damaged_record_in_postgresql_fails_the_read_and_names_its_position(schemas: Schemas, tmp_path: Path) -> None:
    url = fill(schemas.url(tmp_path), [("shop", "s", counted(10)) for _ in range(500)])
    with psycopg.connect(url, autocommit=True) as connection:
        flipped = "set_byte(data, 199, get_byte(data, 199) # 255)"
        connection.execute(f"UPDATE records SET data = {flipped} WHERE position = 4001")
    with pytest.raises(DamagedRecord, match="the record at position 4001 is damaged"):
        read(url)
    assert len(read(url, endPosition=4000)) == 4000
