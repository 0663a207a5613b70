"""The lake: archiving, verifying, asking and compacting one of 200-byte events; catching up from a cold start.

One process is the driver and both executors, on two cores, as `penstock lake archive` starts them. What is caught up
with takes all that a command takes: Python's and Spark's start, and the end.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from bench import load
from bench.report import Report
from bench.spark import COMMIT_EVENTS, seal, session
from penstock.lake import archiver as lake_archiver
from penstock.lake.changes import read_manifest
from penstock.lake.compaction import compact
from penstock.lake.places import open_lake_place
from penstock.lake.query import query_lake
from penstock.lake.restore import restore_lake
from penstock.lake.verification import verify
from penstock.model import ANY, NewEvent, new_event
from penstock.model.columns import columns_of
from penstock.store import store_url
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.lake.support import quiet, stage

EVENTS = 5_000_000
QUICK_EVENTS = 500_000
NEW_EVENTS = 100_000
GOAL_EVENTS_S = 150_000
GOAL_CATCH_UP_S = 15
PAGE_BYTES = 4096
SMALL_BYTES = 4 << 20
ASKED = 3
QUESTIONS = {
    "events of each type": "SELECT type, count(*) FROM events GROUP BY 1",
    "a field of JSON of each event": "SELECT sum((text ->> 'amount')::BIGINT) FROM events",
}


def run(report: Report, data: Path, scale: float) -> None:
    """One store, archived, verified, compacted, restored; then more events, and the command."""
    events = EVENTS if scale >= 1 else QUICK_EVENTS
    directory, lake = load.fresh(data), data / "lake"
    add(directory, events)
    seal(directory)
    url = store_url(directory)
    with session(data) as spark:
        # A first task in each worker loads what later ones find loaded.
        spark.range(2).count()
        archived = timed(lambda: archive(spark, url, lake))
        report.figure("archive", events / archived, "events/s", goal=GOAL_EVENTS_S)
        sizes(report, directory, lake, events)
        questions(report, lake)
        report.figure("verify", events / timed(lambda: verify(spark, url, str(lake), quiet)), "events/s")
        small = data / "small"
        with small_ranges():
            archive(spark, url, small)
        report.figure("  files of a lake with small ones", files_of(small), "files")
        report.figure("compact that", events / timed(lambda: compact(spark, str(small), quiet)), "events/s")
        report.figure("  files after it", files_of(small), "files")
    restored = timed(lambda: restore_lake(str(lake), store_url(data / "restored"), stage))
    report.figure("restore, with its checks", events / restored, "events/s")
    add(directory, NEW_EVENTS)
    caught_up = timed(lambda: command(url, lake))
    report.figure("catching up 100,000 new events, all in all", caught_up, "s")
    report.note(f"goal: under {GOAL_CATCH_UP_S} s")


@contextmanager
def small_ranges() -> Iterator[None]:
    """Files as they come to be where a lake follows its store."""
    kept = lake_archiver.RANGE_BYTES
    lake_archiver.RANGE_BYTES = SMALL_BYTES  # type: ignore[misc]
    try:
        yield
    finally:
        lake_archiver.RANGE_BYTES = kept  # type: ignore[misc]


def files_of(lake: Path) -> int:
    """How many files a lake has."""
    return len(read_manifest(open_lake_place(str(lake))).files)


def archive(spark: object, url: str, lake: Path) -> None:
    """Bring a lake up to date."""
    archiver = lake_archiver.Archiver(spark, url, str(lake))  # type: ignore[arg-type]
    archiver.catch_up(quiet)


def timed(work: Callable[[], object]) -> float:
    """The seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def sizes(report: Report, directory: Path, lake: Path, events: int) -> None:
    """Bytes per event in the store, without free pages, and in the lake, and what the largest columns take of them."""
    with closing(SqliteReader(directory)) as reader:
        store = PAGE_BYTES * (reader.db.pragma("page_count") - reader.db.pragma("freelist_count"))
    files = read_manifest(open_lake_place(str(lake))).files
    report.figure("bytes per event in the store", store / events, "bytes")
    report.figure("bytes per event in the lake", sum(file.bytes for file in files) / events, "bytes")
    metadata = [pq.read_metadata(lake / file.path) for file in files]
    groups = [each.row_group(number) for each in metadata for number in range(each.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    for name in ("event_id", "body", "text"):
        size = sum(column.total_compressed_size for column in columns if column.path_in_schema == name)
        report.figure(f"  of them {name}", size / events, "bytes")


def questions(report: Report, lake: Path) -> None:
    """Compare `lake query` with DuckDB alone over the same files, both from opening to the last row."""
    paths = [str(lake / file.path) for file in read_manifest(open_lake_place(str(lake))).files]
    for what, question in QUESTIONS.items():
        pairs = [
            (timed(partial(ask, lake, question)), timed(partial(ask_duckdb, paths, question))) for _ in range(ASKED)
        ]
        ours, plain = map(min, zip(*pairs, strict=True))
        report.figure(f"lake query, {what}", ours, "s")
        report.figure("  of what DuckDB takes over the same files", ours / plain, "times")


def ask(lake: Path, question: str) -> None:
    """A question as `penstock lake query` asks it."""
    query_lake(str(lake), None, question, lambda answer: deque(answer.batches(), 0).clear())


def ask_duckdb(paths: list[str], question: str) -> None:
    """The same question with nothing of ours."""
    with closing(duckdb.connect()) as database:
        database.read_parquet(paths).create_view("events")
        database.execute(question).fetchall()


def add(directory: Path, events: int) -> None:
    """Events in small commits, each of them another: ids and half of each body are random, as they are in life."""
    store = SqliteStore(directory)
    commits = events // COMMIT_EVENTS
    for first in range(0, commits, 400):
        store.write([a_commit(number) for number in range(first, min(first + 400, commits))])
    store.close()


def a_commit(number: int) -> Transaction:
    """One of these commits."""
    made = [an_event(COMMIT_EVENTS * number + each) for each in range(COMMIT_EVENTS)]
    return Transaction((Commit("shop", f"order-{number % 5000}", ANY, columns_of(made)),))


def an_event(number: int) -> NewEvent:
    """An event with a body of 200 bytes of JSON."""
    body = f'{{"order":{number},"customer":"c-{number % 9973}","amount":{number * 7919 % 100_003},"token":"'
    token = os.urandom(50).hex()
    filling = "x" * (load.BODY_BYTES - len(body) - len(token) - len('","note":""}'))
    return new_event("OrderPlaced", f'{body}{token}","note":"{filling}"}}'.encode())


def command(url: str, lake: Path) -> None:
    """The command, as a user types it."""
    arguments = ["lake", "archive", "--url", url, "--lake", str(lake)]
    subprocess.run([sys.executable, "-m", "penstock", *arguments], check=True, stdout=subprocess.DEVNULL)
