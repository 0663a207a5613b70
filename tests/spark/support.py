"""What the tests of the Spark table share: stores that are filled quickly, and rows that can be compared."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from penstock.history.options import ReadOptions
from penstock.model import ANY, Event, EventFilter, NewEvent, new_event
from penstock.model.columns import columns_of
from penstock.spark.source import TABLE, PenstockReader, arrow_schema
from penstock.store import open_reader, open_store, store_url
from penstock.store.contract import Commit, ReadLimits, Transaction
from penstock.store.seals import next_seal
from penstock.store.sqlite.store import STREAM_CACHE_MAX, WAL_BYTES_MAX

PATIENCE_S: Final = 60
"""How long a test waits for a condition before it gives up. Nothing is ever expected to take this long."""
NOON: Final = datetime(2024, 5, 1, 12, tzinfo=UTC)

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:-UsePerfData"
"""A JVM of a test runs for seconds: it compiles little, and has one thread to collect garbage."""
QUICK: Final = {
    # Compiling a query takes longer than a few rows do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings of Spark for few rows and few cores."""

Written = tuple[str, str, Sequence[NewEvent]]
"""A commit: context, stream, events."""


def counted(count: int, start: int = 1, type: str = "Counted") -> list[NewEvent]:
    """Events whose bodies are numbers."""
    return [new_event(type, b'{"number":%d}' % number) for number in range(start, start + count)]


def fill(place: Path | str, commits: Iterable[Written], *, seal: bool = False) -> str:
    """A store with these commits, added to what it has, in a directory or at a URL; its URL."""
    url = store_url(place) if isinstance(place, Path) else place
    with closing(open_store(url, stream_cache_max=STREAM_CACHE_MAX, wal_bytes_max=WAL_BYTES_MAX)) as store:
        transactions = [
            Transaction((Commit(context, stream, ANY, columns_of(events)),)) for context, stream, events in commits
        ]
        for start in range(0, len(transactions), 1000):
            for outcome in store.write(transactions[start : start + 1000]):
                assert isinstance(outcome, list), outcome
        while seal and (step := next_seal(store)) is not None:
            store.write([Transaction((step,))])
    return url


def history(place: Path | str, wanted: EventFilter | None = None) -> list[Event]:
    """The events of a store, read without Spark."""
    url, events, position = store_url(place) if isinstance(place, Path) else place, [], 1
    with closing(open_reader(url)) as reader:
        while True:
            page = reader.read_all(position, wanted or EventFilter(), ReadLimits())
            events += page.events
            position = page.next
            if page.end:
                return events


def read(url: str, **options: Any) -> list[int]:
    """The positions of the rows that tasks of Spark give, read without Spark."""
    given = {"url": url, **{name: str(value) for name, value in options.items()}}
    reader = PenstockReader(ReadOptions.of(given), arrow_schema(TABLE))
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [position for batch in batches for position in batch["position"].to_pylist()]


def load(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """The table of a history."""
    return spark.read.format("penstock").option("url", url).options(**options).load()


def positions(rows: DataFrame) -> list[int]:
    """The positions of rows, in order."""
    return sorted(row.position for row in rows.select("position").collect())


def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)
