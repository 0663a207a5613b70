"""Reading everything, as Arrow and as events, for commits of several sizes."""

import gc
import time
from collections.abc import Callable
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.model import ANY, EventFilter
from penstock.store.arrow import record_batch
from penstock.store.contract import Commit, ReadLimits, RecordSpan, Transaction
from penstock.store.record import columns_of
from penstock.store.sqlite import SqliteReader, SqliteStore

LIMITS = ReadLimits(events_max=16_384, bytes_max=8 << 20)


def run(report: Report, data: Path, scale: float) -> None:
    """One store per commit size; the readers are what a worker, a client or a Spark executor uses."""
    for events, total in ((1, 300_000), (10, 1_000_000), (1000, 3_000_000)):
        directory = load.fresh(data)
        _fill(directory, events, int(total * scale))
        arrow = _rate(directory, lambda span: record_batch(span.records).num_rows)
        as_events = _rate(directory, lambda span: sum(len(record.events()) for record in span.records))
        report.figure(
            f"as Arrow, {events}-event commits", arrow, "events/s", goal=2_000_000 if events == 1000 else None
        )
        report.figure(
            f"as events, {events}-event commits", as_events, "events/s", goal=500_000 if events == 1000 else None
        )


def _fill(directory: Path, events: int, total: int) -> None:
    store = SqliteStore(directory)
    columns = columns_of(load.some_events(events))
    batch = max(1, 4096 // events)
    for first in range(0, total // events, batch):
        store.write([Transaction((Commit("bench", f"s-{(first + n) % 1000}", ANY, columns),)) for n in range(batch)])
    store.close()


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
