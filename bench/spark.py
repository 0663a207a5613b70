"""The Spark table: scans of a store before and after it is sealed, compared with Parquet, PostgreSQL and a server.

Also scans for rare events, latency, and appends meanwhile.

One process is the driver and both executors, on two cores. The store is open elsewhere meanwhile, as it is beside a
server. A scan is of all columns, into a sink that does nothing; each is the best of several, the first of which warms
Spark up.
"""

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock
from bench import load
from bench.report import Report
from penstock.backup import copy_store
from penstock.cli.screen import progress_bar
from penstock.model import ANY, NewEvent, new_event
from penstock.model.columns import Columns, columns_of
from penstock.store import store_url
from penstock.store.contract import Commit, GiveBack, Transaction
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.postgres import postgres

EVENTS = 5_000_000
QUICK_EVENTS = 50_000
COMMIT_EVENTS = 10
SCANS = 4
LATENCIES = 30
APPEND_S = 6.0
GOAL_TIMES = 10
"""One percent of the events should take less than a tenth of the time."""
PARTS = {
    "one context, spread evenly": {"context": "rare"},
    "one stream prefix, spread evenly": {"filter": "vip-"},
    "one context, written together": {"context": "late"},
    "one stream prefix of a context, written together": {"context": "late", "filter": "late-"},
}


def run(report: Report, data: Path, scale: float) -> None:
    """One store, before and after it is sealed; then a server on it."""
    events = EVENTS if scale >= 1 else QUICK_EVENTS
    directory = load.fresh(data)
    fill(directory, events)
    with session(data) as spark:
        rates(report, spark, directory, events, "not sealed")
        seal(directory)
        full = rates(report, spark, directory, events, "sealed", goal=500_000)
        parquet(report, spark, directory, data / "parquet", events, full)
        shared(report, spark, directory, events)
        with load.server(directory) as gates:
            url = f"penstock://{gates['mq']}"
            report.figure("scan through a server, sealed", events / best(table(spark, url)), "events/s")
            appends(report, spark, url, directory, max(1.0, APPEND_S * scale))
            latency(report, spark, url, data / "checkpoint")


@contextmanager
def session(data: Path) -> Iterator[SparkSession]:
    """A session on two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    builder = builder.config("spark.ui.showConsoleProgress", False)
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    spark = builder.config("spark.sql.warehouse.dir", str(data / "warehouse")).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


# -- stores


def fill(directory: Path, events: int) -> None:
    """A store of small commits of 200-byte bodies. One in a hundred is of a rare context, one of a rare kind of stream.

    Both lie among the others evenly, which is the worst case: nearly every sealed record has some of each. The last
    hundredth is in another context.
    """
    store = SqliteStore(directory)
    kinds = [columns_of([an_event(10 * kind + number) for number in range(COMMIT_EVENTS)]) for kind in range(100)]
    commits = events // COMMIT_EVENTS
    for first in range(0, commits, 400):
        numbers = range(first, min(first + 400, commits))
        store.write([commit(n, kinds[n % 100], is_late=n >= commits - commits // 100) for n in numbers])
    store.close()


def an_event(number: int) -> NewEvent:
    """An event with a body of 200 bytes of JSON."""
    body = json.dumps({"order": number, "amount": 7 * number, "note": ""}, separators=(",", ":"))
    return new_event("OrderPlaced", body.replace('""', '"' + "x" * (load.BODY_BYTES - len(body)) + '"').encode())


def commit(number: int, columns: Columns, *, is_late: bool) -> Transaction:
    """One of these commits."""
    if is_late:
        return Transaction((Commit("late", f"late-{number % 50}", ANY, columns),))
    context = "rare" if number % 100 == 30 else "shop"
    stream = f"vip-{number % 500}" if number % 100 == 70 else f"order-{number % 5000}"
    return Transaction((Commit(context, stream, ANY, columns),))


def seal(directory: Path) -> None:
    store = SqliteStore(directory)
    while (step := next_seal(store)) is not None:
        store.write([Transaction((step,))])
    while store.write([Transaction((GiveBack(1 << 30),))]) != [[0]]:
        pass
    store.close()


# -- scans


def table(spark: SparkSession, url: str, **options: str) -> Callable[[], DataFrame]:
    """Loads a table again each time."""
    return lambda: spark.read.format("penstock").option("url", url).options(**options).load()


def best(loading: Callable[[], DataFrame]) -> float:
    """The seconds of the fastest of several scans."""
    seconds = []
    for _ in range(SCANS):
        rows, started = loading(), time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def rates(
    report: Report, spark: SparkSession, directory: Path, events: int, state: str, goal: float | None = None
) -> float:
    """The full scan and those of one percent; the seconds of the full one."""
    url = store_url(directory)
    with closing(SqliteReader(directory)):
        full = best(table(spark, url))
        report.figure(f"scan of SQLite, {state}", events / full, "events/s", goal=goal)
        for name, options in PARTS.items():
            assert 0.009 * events < table(spark, url, **options)().count() <= 0.01 * events
            times = full / best(table(spark, url, **options))
            report.figure(f"  1 %: {name}, {state}", times, "times as fast", goal=GOAL_TIMES)
    return full


def parquet(report: Report, spark: SparkSession, directory: Path, folder: Path, events: int, full: float) -> None:
    table(spark, store_url(directory))().write.parquet(str(folder))
    seconds = best(lambda: spark.read.parquet(str(folder)))
    report.figure("scan of the same rows in Parquet", events / seconds, "events/s")
    report.figure("  SQLite, sealed, of Parquet", 100 * seconds / full, "%")


def shared(report: Report, spark: SparkSession, directory: Path, events: int) -> None:
    """The same store on PostgreSQL."""
    with postgres() as server:
        copy_store(store_url(directory), server.url(), progress_bar)
        seconds = best(table(spark, server.url()))
        report.figure("scan of PostgreSQL, sealed", events / seconds, "events/s")


# -- with a server


def appends(report: Report, spark: SparkSession, url: str, directory: Path, seconds: float) -> None:
    """Appends with and without concurrent scans, in turns."""
    stop = threading.Event()

    def scans() -> None:
        while not stop.is_set():
            table(spark, store_url(directory))().write.format("noop").mode("overwrite").save()

    with penstock.connect(url) as client:
        append_rate(client, seconds)
        alone = append_rate(client, seconds)
        scanner = threading.Thread(target=scans)
        scanner.start()
        beside = append_rate(client, seconds)
        stop.set()
        scanner.join()
    report.figure("appends of 10 events, alone", alone, "events/s")
    report.figure("appends of 10 events, during scans", beside, "events/s")
    report.figure("  beside scans, of alone", 100 * beside / alone, "%", goal=50)


def append_rate(client: penstock.Client, seconds: float) -> float:
    events = [an_event(number) for number in range(COMMIT_EVENTS)]
    until = time.perf_counter() + seconds
    started, done = time.perf_counter(), 0

    def commits() -> Iterator[Any]:
        nonlocal done
        while time.perf_counter() < until:
            done += COMMIT_EVENTS
            yield "live", f"order-{done % 5000}", events

    client.append_many(commits())
    return done / (time.perf_counter() - started)


def latency(report: Report, spark: SparkSession, url: str, checkpoint: Path) -> None:
    """From an acknowledged append to its row in the hands of `foreachBatch`."""
    seen, arrived = threading.Event(), 0

    def take(batch: DataFrame, _number: int) -> None:
        nonlocal arrived
        arrived = max([arrived, *(row.position for row in batch.select("position").collect())])
        seen.set()

    with penstock.connect(url) as client:
        head = client.stats().head
        options = {"url": url, "context": "live", "startPosition": str(head + 1)}
        rows = spark.readStream.format("penstock").options(**options).load()
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
        times = []
        for number in range(LATENCIES + 3):
            position = client.append("live", "one", [an_event(number)]).position
            started = time.perf_counter()
            while arrived < position:
                seen.wait(1.0)
                seen.clear()
            times.append(1000 * (time.perf_counter() - started))
        query.stop()
    usual = times[3:]
    report.figure("from an acknowledged append to its row in the sink, median", statistics.median(usual), "ms")
    report.figure("  the slowest in ten", statistics.quantiles(usual, n=10)[-1], "ms")
