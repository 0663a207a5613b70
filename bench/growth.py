"""Opening, appends, fetches, acknowledgements and pages at 1, 10 and 50 million events: they should cost the same.

One store grows, in commits of 1,000 events. At each size a process opens it and measures, several times, which also
tells its peak memory. 50 million events need 12 GB of disk.
"""

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.model import (
    ANONYMOUS,
    ANY,
    AcknowledgeQueue,
    Append,
    Delivery,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    GetStats,
    ProgressSubscription,
    ReadAll,
    ReadStream,
    Registered,
    RegisterSubscriptions,
    StoreStats,
    SubscribeQueue,
    SubscriptionStart,
)
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteStore

SIZES = (1_000_000, 10_000_000, 50_000_000)
RUNS = 3
REPEATS = 200
COMMIT_EVENTS = 1000
BATCH_COMMITS = 10
STREAMS = 10_000
PAGE_EVENTS = 1000
MEMORY = "peak memory of the process"


def run(report: Report, data: Path, scale: float) -> None:
    """The figures at each size, and the largest as a multiple of the smallest."""
    directory, events = load.fresh(data), 0
    columns: dict[str, dict[str, list[float]]] = {}
    for size in (int(size * scale) for size in SIZES):
        began = time.perf_counter()
        _fill(directory, events, size)
        report.note(f"{size:,} events after {time.perf_counter() - began:.0f} s, {_gigabytes(directory):.1f} GB")
        runs, events = [measure(directory) for _ in range(RUNS)], size
        columns[f"{size:,} events"] = {
            f"{name}, {'MiB' if name == MEMORY else 'ms'}": [figures[name] for figures in runs] for name in runs[0]
        }
    small, *_, large = columns.values()
    columns["last / first"] = {
        name: [statistics.median(large[name]) / statistics.median(small[name])] for name in small
    }
    report.table(columns, f"Medians of {RUNS} runs; each has {REPEATS} of everything but openings.")


def _gigabytes(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file()) / 1e9


def measure(directory: Path) -> dict[str, float]:
    """The figures of a store by name, in milliseconds, and the memory of the process in MiB."""
    command = [sys.executable, "-m", "bench.growth", str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _fill(directory: Path, before: int, events: int) -> None:
    """Add commits until there are so many events."""
    store = SqliteStore(directory)
    columns = columns_of(load.some_events(COMMIT_EVENTS))
    first, last = before // COMMIT_EVENTS, events // COMMIT_EVENTS
    for start in range(first, last, BATCH_COMMITS):
        numbers = range(start, min(start + BATCH_COMMITS, last))
        store.write([Transaction((Commit("bench", f"stream-{n % STREAMS}", ANY, columns),)) for n in numbers])
    store.close()


async def _timings(directory: Path) -> dict[str, float]:
    started = time.perf_counter()
    engine = load.engine(directory)
    await engine.start()
    opened = time.perf_counter() - started
    now = ANONYMOUS
    starts = (SubscriptionStart("bench", "", 2**61), SubscriptionStart("bench", "", 0))
    registration = RegisterSubscriptions("bench", starts)
    registered = await engine.execute(now, registration)
    assert isinstance(registered, Registered)
    number, from_beginning = registered.ids
    stats = await engine.execute(now, GetStats())
    assert isinstance(stats, StoreStats)
    request = Append("bench", "stream-1", load.some_events(1), ANY)
    figures: dict[str, list[float]] = defaultdict(list)

    async def timed(name: str, work: Awaitable[object]) -> object:
        began = time.perf_counter()
        result = await work
        figures[name].append(1000 * (time.perf_counter() - began))
        return result

    for _ in range(REPEATS):
        await timed("append", engine.execute(now, request))
        batch = await timed("fetch", engine.execute(now, FetchSubscription(number, 10)))
        assert isinstance(batch, FetchedBatch)
        await timed("progress", engine.execute(now, ProgressSubscription(number, batch.events[-1].ticks)))
        subscribe = SubscribeQueue("bench", "queue", "worker", "", 2**61, 10, 60_000)
        delivery = await timed("allocate", engine.execute(now, subscribe))
        assert isinstance(delivery, Delivery)
        if (given := delivery.allocation) is not None:
            receipt = AcknowledgeQueue("bench", "queue", "worker", given.first, given.last, 10, -1)
            await timed("acknowledge", engine.execute(now, receipt))
        await timed("fetch from the beginning", engine.execute(now, FetchSubscription(from_beginning, 10)))
        position = random.randrange(1, stats.head - PAGE_EVENTS)
        page = await timed("page of 1,000 events", engine.execute(now, ReadAll(position, limit=PAGE_EVENTS)))
        assert isinstance(page, EventPage)
        assert page.events
        stream = f"stream-{random.randrange(min(STREAMS, stats.head // COMMIT_EVENTS))}"
        page = await timed("page of a stream", engine.execute(now, ReadStream("bench", stream, limit=PAGE_EVENTS)))
        assert isinstance(page, EventPage)
        assert page.events
    await engine.stop()
    medians = {name: statistics.median(values) for name, values in figures.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"opening": 1000 * opened, **medians, MEMORY: peak}


if __name__ == "__main__":
    print(json.dumps(load.run(_timings(Path(sys.argv[1])))))
