"""Reading what there is, on a real Spark session."""

import threading
from functools import reduce
from pathlib import Path
from typing import Any, Self

import cbor2
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import penstock
from penstock.model import ANY, EventFilter, datetime_of, new_event
from penstock.model.times import TICKS_MAX, stamp_of
from penstock.store.contract import HideStream, Transaction
from penstock.store.sqlite import SqliteStore
from penstock.testing import Server, server
from tests.postgres import Schemas
from tests.spark.support import NOON, counted, fill, history, load, positions, read, until

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
MESSAGES: list[tuple[bytes, str | None]] = [
    (b'{"a": "\xc3\xbc"}', '{"a": "ü"}'),
    (b"", ""),
    (cbor2.dumps({"a": [1, "ü", b"\0\1"]}), '{"a":[1,"ü","AAE"]}'),
    (b"\xff\xfe\xfd", None),
]


SHOP = [
    *(("shop", f"order-{number % 7}", counted(number % 5 + 1, number)) for number in range(40)),
    ("audit", "log", counted(3, type="Seen")),
    ("shop", "invoice-1", counted(2, type="Billed")),
]
"""Two contexts, several streams and types, commits of several sizes."""


def shop(data: Path, *, seal: bool = False) -> str:
    return fill(data, SHOP, seal=seal)


def test_every_column_is_as_the_event_was(spark: SparkSession, data: Path) -> None:
    events = [new_event("Made", body, '{"n":1}' if n % 2 else None) for n, (body, _) in enumerate(MESSAGES)]
    ends = [event._replace(stamp=stamp_of(ticks)) for event, ticks in zip(events, (0, TICKS_MAX, 17, 18), strict=True)]
    url = fill(data, [("shop", "s", ends)])
    rows = spark.read.format("penstock").option("url", url).load()
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [
        *(("position", "bigint"), ("sequence", "bigint"), ("context", "string"), ("stream", "string")),
        *(("type", "string"), ("headers", "string"), ("event_id", "string"), ("timestamp", "timestamp")),
        *(("recorded_at", "timestamp"), ("ticks", "bigint"), ("body", "binary"), ("text", "string")),
    ]
    shown = rows.selectExpr("*", "unix_micros(timestamp) - unix_micros(timestamp'0001-01-01 00:00:00Z') AS micros")
    shown = shown.withColumn("recorded", shown.recorded_at.cast("string")).drop("timestamp", "recorded_at")
    for row, event, (_, text) in zip(shown.orderBy("position").collect(), history(data), MESSAGES, strict=True):
        known = (row.position, row.sequence, row.context, row.stream, row.type, row.headers, row.event_id)
        assert known == (event.position, event.sequence, "shop", "s", "Made", event.headers, str(event.uuid))
        assert (row.ticks, row.micros, bytes(row.body), row.text) == (event.ticks, event.ticks // 10, event.body, text)
        assert row.recorded == f"{datetime_of(event.recorded).replace(tzinfo=None)}".rstrip("0")


COMMITS = [("shop", f"s-{number % 3}", counted(9, number)) for number in range(501)]
"""More than one block of positions, so that there are two partitions."""


def read_in_parts(spark: SparkSession, url: str) -> list[tuple[int, int, bytes]]:
    """A third of these commits."""
    rows = load(spark, url, context="shop", filter="s-1", partitionBytes="10KiB")
    assert rows.rdd.getNumPartitions() > 1
    found = rows.select("position", "sequence", "body").orderBy("position").collect()
    return [(row.position, row.sequence, bytes(row.body)) for row in found]


def as_expected(place: Path | str) -> list[tuple[int, int, bytes]]:
    return [(event.position, event.sequence, event.body) for event in history(place, EventFilter("shop", "s-1"))]


@pytest.mark.parametrize("way", ["sqlite", "penstock", "hosts"])
def test_every_way_gives_the_same_rows(spark: SparkSession, data: Path, way: str) -> None:
    """Of a store that is sealed, and through a server of one that is not; `test_ranges` has the others."""
    url = fill(data, COMMITS, seal=way == "sqlite")
    with server(data, seal=False) as served:
        # No server is at the first host. Each task connects by itself.
        hosts = served.url.replace("://", "://127.0.0.1:1,")
        assert read_in_parts(spark, {"sqlite": url, "penstock": served.url, "hosts": hosts}[way]) == as_expected(data)


def test_a_store_on_postgresql_is_read_like_any_other(spark: SparkSession, schemas: Schemas, tmp_path: Path) -> None:
    url = fill(schemas.url(tmp_path), COMMITS)
    assert read_in_parts(spark, url) == as_expected(url)
    assert len(as_expected(url)) == 1503


OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "context": ({"context": "audit"}, lambda event: event.context == "audit"),
    "filter": ({"filter": "order-1"}, lambda event: event.stream.startswith("order-1")),
    "every stream": ({"filter": "*"}, lambda event: True),
    "context and filter": ({"context": "shop", "filter": "l"}, lambda event: False),
    "type": ({"type": "Seen, Billed"}, lambda event: event.type in ("Seen", "Billed")),
    "startPosition": ({"startPosition": 100}, lambda event: event.position >= 100),
    "endPosition": ({"endPosition": 10}, lambda event: event.position <= 10),
    "one position": ({"startPosition": 7, "endPosition": 7}, lambda event: event.position == 7),
    "no position": ({"startPosition": 8, "endPosition": 7}, lambda event: False),
    "beyond the head": ({"startPosition": 10_000}, lambda event: False),
    "in any case": ({"STARTPOSITION": 100}, lambda event: event.position >= 100),
    "no such context": ({"context": "none"}, lambda event: False),
}


def test_an_option_lets_through_what_it_says(data: Path) -> None:
    url = shop(data, seal=True)
    found = {name: read(url, **options) for name, (options, _) in OPTIONS.items()}
    events = history(data)
    assert found == {name: [e.position for e in events if passes(e)] for name, (_, passes) in OPTIONS.items()}


def test_spark_hands_on_options_in_any_case(spark: SparkSession, data: Path) -> None:
    url = fill(data, [*SHOP, ("ü/007", "s", counted(3))])
    assert positions(load(spark, url, context="shop", TYPE="Counted, Billed", STARTPOSITION=100, endPosition=103)) == [
        *range(100, 104)
    ]
    rows = load(spark, url, context="ü/007").select("context", "sequence").collect()
    assert sorted((row.context, row.sequence) for row in rows) == [("ü/007", 1), ("ü/007", 2), ("ü/007", 3)]


@pytest.mark.parametrize("context", ["shop", None])
def test_times_are_event_times_whatever_their_order(data: Path, context: str | None) -> None:
    minutes = [5, 1, 9, 3, 7, 0, 8]
    events = [new_event("Made", b"%d" % minute, time=NOON.replace(minute=minute)) for minute in minutes]
    url = fill(data, [("other", "s", events[:2]), *(("shop", "s", [event]) for event in events)])
    options = {"startTime": "2024-05-01T12:03:00Z", "endTime": "2024-05-01T14:08:00+02:00"}
    wanted = [event.position for event in history(data, EventFilter(context)) if 3 <= int(event.body) < 8]
    assert read(url, **options, **({} if context is None else {"context": context})) == wanted
    assert read(url, context="shop", startTime="2025-01-01") == []


def test_columns_are_those_that_are_asked_for_in_their_order(spark: SparkSession, data: Path) -> None:
    url = shop(data)
    rows = load(spark, url, columns="type, position", endPosition=1)
    assert rows.columns == ["type", "position"]
    assert [tuple(row) for row in rows.collect()] == [("Counted", 1)]
    assert load(spark, url, columns="text").count() == len(history(data))


def test_a_schema_of_ones_own_chooses_columns_too(spark: SparkSession, data: Path) -> None:
    reader = spark.read.format("penstock").option("url", shop(data)).option("endPosition", 2)
    rows = reader.schema("event_id string, position bigint").load()
    assert [(row.position, row.event_id) for row in rows.orderBy("position").collect()] == [
        (event.position, str(event.uuid)) for event in history(data)[:2]
    ]
    with pytest.raises(PySparkException, match="column position of type string is not in the table"):
        reader.schema("position string").load().collect()


@pytest.mark.parametrize("context", ["007", "a/b", "ü", "1e3", "NULL", "*"])
def test_a_context_may_have_any_name(data: Path, context: str) -> None:
    url = fill(data, [("other", "s", counted(2)), (context, "s", counted(3))])
    assert read(url, context=context) == [3, 4, 5]


def test_an_empty_store_is_an_empty_table(spark: SparkSession, data: Path) -> None:
    url = fill(data, [])
    assert load(spark, url).collect() == []
    assert read(url, context="shop", startTime="2024-05-01") == []
    fill(data, [("shop", "s", counted(1))])
    assert positions(load(spark, url)) == [1]


def test_erased_events_are_left_out(data: Path) -> None:
    url = fill(data, [("shop", "a", counted(2)), ("shop", "b", counted(2)), ("shop", "a", counted(1))])
    with SqliteStoreOf(data) as store:
        (outcome,) = store.write([Transaction((HideStream("shop", "a"),))])
        assert isinstance(outcome, list), outcome
    assert read(url) == [3, 4]


class SqliteStoreOf(SqliteStore):
    """A store for `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_a_damaged_record_fails_the_read_and_names_its_position(spark: SparkSession, data: Path) -> None:
    url = fill(data, [("shop", "s", counted(10)) for _ in range(600)])
    with SqliteStoreOf(data) as store:
        store.db.connection.execute("UPDATE records SET data = zeroblob(999) WHERE position = 5001")
    with pytest.raises(PySparkException, match="the record at position 5001 is damaged"):
        load(spark, url, partitionBytes="20KiB").collect()
    assert len(positions(load(spark, url, endPosition=4000))) == 4000


def test_a_table_has_what_there_was_when_it_was_first_read(spark: SparkSession, data: Path) -> None:
    with server(data) as served, penstock.connect(served.url) as client:
        client.append("shop", "s", counted(3))
        rows = load(spark, f"sqlite:///{data}")
        assert rows.count() == 3
        client.append("shop", "s", counted(3))
        assert rows.where("sequence > 0").count() == 3
        assert load(spark, f"sqlite:///{data}").count() == 6


def test_a_store_under_load_is_read_whole_up_to_its_head(spark: SparkSession, data: Path) -> None:
    with server(data) as served, Load(served) as writers:
        for url in (f"sqlite:///{data}", served.url):
            before = writers.written
            rows = load(spark, url, partitionBytes="64KiB").select("position", "text").collect()
            found = sorted(row.position for row in rows)
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= before > 0
        after = writers.written
        until(lambda: writers.written > after, "another append")


class Load:
    """Somebody who appends all the time."""

    def __init__(self, served: Server) -> None:
        self._client = penstock.connect(served.url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            self.written = self._client.append("shop", "s", counted(20), expected=ANY).position

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.written > 1000, "the first appends")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def test_a_bad_option_fails_when_it_is_loaded(spark: SparkSession, data: Path) -> None:
    with pytest.raises(PySparkException, match="option contxt is unknown; did you mean context"):
        load(spark, shop(data), contxt="shop")


def test_a_directory_without_a_store_is_told(spark: SparkSession, data: Path) -> None:
    with pytest.raises(PySparkException, match="is not a Penstock store"):
        load(spark, f"sqlite:///{data}").collect()


QUERIES = [
    "context = 'shop'",
    "context = 'shop' AND context = 'audit'",
    "stream = 'order-1'",
    "stream LIKE 'order-%' AND type = 'Counted'",
    "stream LIKE 'order-1%' AND stream LIKE 'inv%'",
    "type IN ('Seen', 'Billed')",
    "type = 'Seen' OR position = 1",
    "position > 5 AND position <= 9",
    "position >= 100 AND position < 103",
    "position = 8",
    "position BETWEEN 9 AND 8",
    "NOT position = 8 AND headers IS NULL AND text IS NOT NULL",
    "context IN ('shop', 'audit') AND sequence = 2",
    "stream LIKE '*%'",
    "context = ''",
]


def test_a_query_gives_the_same_with_and_without_filters_pushed(spark: SparkSession, data: Path) -> None:
    url = shop(data, seal=True)
    rows = load(spark, url).selectExpr("position", *(f"({query}) AS q{at}" for at, query in enumerate(QUERIES)))
    seen = rows.orderBy("position").collect()
    expected = [[row.position for row in seen if row[f"q{at}"]] for at in range(len(QUERIES))]
    spark.conf.set(PUSHDOWN, True)
    pushed = (load(spark, url, pushFilters=True).where(query) for query in QUERIES)
    every = reduce(DataFrame.union, (each.select(lit(at).alias("q"), "position") for at, each in enumerate(pushed)))
    found: list[list[int]] = [[] for _ in QUERIES]
    for row in sorted(every.collect()):
        found[row.q].append(row.position)
    assert found == expected
    assert [len(each) for each in found][:2] == [len(history(data, EventFilter("shop"))), 0]


def test_filters_are_pushed_where_session_and_option_say_so(spark: SparkSession, data: Path) -> None:
    url = shop(data)
    query = "context = 'shop' AND type IN ('Counted', 'Billed') AND position < 50"
    assert "Filter (" in plan_of(load(spark, url, pushFilters=True).where(query))
    spark.conf.set(PUSHDOWN, True)
    assert "Filter (" in plan_of(load(spark, url).where(query))
    assert "Filter (" not in plan_of(load(spark, url, pushFilters=True).where(query))
    assert "Filter (" in plan_of(load(spark, url, pushFilters=True).where("stream = 'order-1'"))


def plan_of(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().sparkPlan().toString())


def test_a_table_may_be_used_with_several_filters_in_a_session_that_pushes_them(
    spark: SparkSession, data: Path
) -> None:
    spark.conf.set(PUSHDOWN, True)
    rows = load(spark, shop(data))
    seen, early = rows.where("context = 'audit'"), rows.where("position < 5")
    assert (seen.count(), early.count(), rows.count()) == (3, 4, len(history(data)))
    assert seen.alias("seen").crossJoin(early.alias("early")).count() == 12
