"""Reading everything, as Arrow and as events, for commits of several sizes, before and after they are sealed."""

import gc
import time
from collections.abc import Callable
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.model import ANY, EventFilter
from penstock.model.columns import columns_of
from penstock.store.arrow import record_batch
from penstock.store.contract import Commit, Page, ReadLimits, RecordSpan, Transaction
from penstock.store.seals import LARGE_EVENTS, next_seal
from penstock.store.sqlite import SqliteReader, SqliteStore

LIMITS = ReadLimits(events_max=16_384, bytes_max=8 << 20)
READS = 2000
STREAMS = 1000


def run(report: Report, data: Path, scale: float) -> None:
    """One store per commit size; the readers are what a worker, a client or a Spark executor uses."""
    for events, total in ((1, 300_000), (10, 1_000_000), (1000, 3_000_000)):
        directory = load.fresh(data)
        fill(directory, events, int(total * scale))
        arrow, as_events = arrow_rate(directory), event_rate(directory)
        report.figure(
            f"as Arrow, {events}-event commits", arrow, "events/s", goal=2_000_000 if events == 1000 else None
        )
        report.figure(
            f"as events, {events}-event commits", as_events, "events/s", goal=500_000 if events == 1000 else None
        )
        if events < LARGE_EVENTS:
            _sealed(report, directory, events)


def _sealed(report: Report, directory: Path, events: int) -> None:
    """The same store once its small records are merged, and single events and short pages out of large records."""
    report.figure(f"sealing, {events}-event commits", _seal(directory), "events/s")
    arrow, as_events = arrow_rate(directory), event_rate(directory)
    report.figure(
        f"as Arrow, {events}-event commits, sealed", arrow, "events/s", goal=2_500_000 if events == 1 else None
    )
    report.figure(
        f"as events, {events}-event commits, sealed", as_events, "events/s", goal=700_000 if events == 1 else None
    )
    reader = SqliteReader(directory)
    head = reader.head()
    streams = min(STREAMS, head // events)
    one = _each(lambda n: reader.read_stream("bench", f"s-{n % streams}", 1, 1, LIMITS))
    ten = _each(lambda n: reader.read_all(1 + n * 7 % head, EventFilter(), ReadLimits(events_max=10)))
    reader.close()
    report.figure(f"one event of a stream, {events}-event commits, sealed", one, "reads/s")
    report.figure(f"ten events by position, {events}-event commits, sealed", ten, "reads/s")


def _seal(directory: Path) -> float:
    store = SqliteStore(directory)
    started = time.perf_counter()
    while (seal := next_seal(store)) is not None:
        store.write([Transaction((seal,))])
    seconds = time.perf_counter() - started
    sealed = store.sealed() - 1
    store.close()
    return sealed / seconds


def _each(read: Callable[[int], Page]) -> float:
    started = time.perf_counter()
    for n in range(READS):
        assert read(n).events
    return READS / (time.perf_counter() - started)


def fill(directory: Path, events: int, total: int) -> None:
    """Fill a store with commits of so many events each."""
    store = SqliteStore(directory)
    columns = columns_of(load.some_events(events))
    batch = max(1, 4096 // events)
    for first in range(0, total // events, batch):
        store.write([Transaction((Commit("bench", f"s-{(first + n) % STREAMS}", ANY, columns),)) for n in range(batch)])
    store.close()


def arrow_rate(directory: Path) -> float:
    """Events per second of reading everything as Arrow."""
    return _rate(directory, lambda span: record_batch(span.records).num_rows)


def event_rate(directory: Path) -> float:
    """Events per second of reading everything as events."""
    return _rate(directory, lambda span: sum(len(record.events()) for record in span.records))


def _rate(directory: Path, consume: Callable[[RecordSpan], int]) -> float:
    reader = SqliteReader(directory)
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    position, total, end, started = 1, 0, False, time.perf_counter()
    while not end:
        span = reader.read_records(position, EventFilter(), LIMITS)
        if span.records:
            total += consume(span)
        position, end = span.next, span.end
    seconds = time.perf_counter() - started
    assert total == reader.head()
    reader.close()
    return total / seconds
