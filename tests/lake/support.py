"""What the tests of the lake share: stores with awkward contents over several days, and what a lake holds."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from penstock.history.columns import COLUMNS, TABLE
from penstock.history.options import ReadOptions
from penstock.history.ranges import plan, read_range
from penstock.history.source import open_history
from penstock.lake import compaction
from penstock.lake.archiver import Archived, Archiver
from penstock.lake.changes import read_manifest
from penstock.lake.compaction import Compacted
from penstock.lake.manifests import Manifest
from penstock.lake.places import open_lake_place
from penstock.lake.verification import Verified, verify
from penstock.model import ANY, NewEvent, new_event
from penstock.model.columns import columns_of
from penstock.model.times import TICKS_MAX, stamp_of
from penstock.store import store_url
from penstock.store.contract import AddLog, Commit, Erase, HideEvents, HideStream, Progressed, Transaction
from penstock.store.sqlite import SqliteStore
from tests.spark.support import counted

DAY_NS: Final = 86_400_000_000_000
MORNING_NS: Final = 1_794_700_000_000_000_000
"""A time of 2026-11-14 in nanoseconds since 1970; the next day begins 800 seconds later."""

ERASE_STEPS_MAX: Final = 1000

Written = tuple[str, str, list[NewEvent]]


def quiet(_done: int, _total: int) -> None:
    """Nobody wants to know how far it is."""


@contextmanager
def stage(_what: str) -> Iterator[Progressed]:
    """Nor which part it is."""
    yield quiet


def awkward() -> list[Written]:
    """Commits whose names and contents are hard to get right."""
    text = new_event("Told", "grün ☃".encode(), "{}")
    return [
        ("007", "1e3", [new_event("Nothing", b"")]),
        ("a/b", "c=d/e", [new_event("Bytes", b"\xff\xfe\x00"), text, new_event("Ümläut", b"x" * 70_000)]),
        ("ü", "null", [text._replace(headers=None, id=uuid.uuid4().bytes)]),
        ("shop", "__HIVE_DEFAULT_PARTITION__", [new_event("cbor", b"\xa1\x61\x61\x01"), new_event("cbor", b"\xff")]),
        ("shop", "early", [text._replace(stamp=stamp_of(0), id=uuid.uuid4().bytes)]),
        ("shop", "late", [text._replace(stamp=stamp_of(TICKS_MAX), id=uuid.uuid4().bytes)]),
        ("remits", "log one", [new_event("cbor", b"\x01"), new_event("cbor", b"\x02")]),
    ]


def numbers(commits: int, events: int = 10, streams: int = 7, context: str = "shop") -> list[Written]:
    """Plain commits of several streams in turns."""
    return [(context, f"s-{number % streams}", counted(events)) for number in range(commits)]


def fill(directory: Path, commits: Iterable[Written], *, days: int = 0) -> str:
    """Add commits to a store, recorded so many days after the first; its URL."""
    with closing(SqliteStore(directory, clock=lambda: MORNING_NS + days * DAY_NS)) as store:
        transactions = [Transaction((Commit(context, name, ANY, columns_of(made)),)) for context, name, made in commits]
        for outcome in store.write(transactions):
            assert isinstance(outcome, list), outcome
    return store_url(directory)


def add_log(directory: Path, name: str) -> None:
    """Make a log, which has no messages yet."""
    with closing(SqliteStore(directory)) as store:
        assert isinstance(store.write([Transaction((AddLog(name),))])[0], list)


def erase(directory: Path, *operations: HideStream | HideEvents) -> None:
    """Erase, to the end."""
    with closing(SqliteStore(directory)) as store:
        erase_in(store, *operations)


def erase_in(store: SqliteStore, *operations: HideStream | HideEvents) -> None:
    """Erase in a store that is open, to the end; somebody who reads may hold up the last of it."""
    for outcome in store.write([Transaction((operation,)) for operation in operations]):
        assert isinstance(outcome, list), outcome
    for _ in range(ERASE_STEPS_MAX):
        if store.write([Transaction((Erase(1000),))]) == [[0]]:
            return


def archive(url: str, lake: Path | str, spark: Any = None) -> Archived:
    """Bring a lake up to date. Its Iceberg table has tests of its own."""
    archiver = Archiver(spark, url, str(lake), iceberg=False)
    return archiver.catch_up(quiet)


def compact(lake: Path | str, spark: Any = None) -> Compacted:
    """Compact a lake."""
    return compaction.compact(spark, str(lake), quiet, iceberg=False)


def verified(url: str, lake: Path | str, spark: Any = None) -> Verified:
    """Compare a lake with its store."""
    return verify(spark, url, str(lake), quiet)


def is_same(url: str, lake: Path | str) -> bool:
    """Whether a lake has all events of its store, and none twice, by its manifest and for readers of its folder."""
    found = verified(url, lake)
    assert not found.differences, found
    return found.behind == 0 and (not Path(lake).is_dir() or lake_rows(lake) == store_rows(url))


def manifest_of(lake: Path | str) -> Manifest:
    """The manifest of a lake."""
    return read_manifest(open_lake_place(str(lake)))


def store_table(url: str) -> pa.Table:
    """The rows of a store by position."""
    options = ReadOptions(url)
    with closing(open_history(url)) as history:
        now = history.now()
        ranges = plan(history, now, options, 1, now.head)
    return pa.Table.from_batches([batch for part in ranges for batch in read_range(options, TABLE, part)], TABLE)


def store_rows(url: str) -> list[tuple[Any, ...]]:
    """The rows of a store by position."""
    return rows_of(store_table(url))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as tuples of plain values; times are microseconds, because some are before or after what Python has."""
    plain = [
        table[name].cast(pa.int64()) if pa.types.is_timestamp(table[name].type) else table[name] for name in COLUMNS
    ]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


def lake_table(lake: Path | str) -> pa.Table:
    """What somebody finds who knows nothing of manifests, by position."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        wanted = ", ".join(COLUMNS)
        query = f"SELECT {wanted} FROM read_parquet('{lake}/**/*.parquet') ORDER BY position"
        found: pa.Table = connection.sql(query).to_arrow_table()
        return found.cast(TABLE)


def lake_rows(lake: Path | str) -> list[tuple[Any, ...]]:
    """The rows of a lake's folder by position."""
    return rows_of(lake_table(lake)) if any(Path(lake).glob("*/*.parquet")) else []
