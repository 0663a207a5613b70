"""Opening, an append, a fetch and an acknowledgement on a small and on a large store: they should cost the same.

Each size runs in its own process, to measure its peak memory.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
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
    FetchedBatch,
    FetchSubscription,
    ProgressSubscription,
    Registered,
    RegisterSubscriptions,
    SubscribeQueue,
    SubscriptionStart,
)
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteStore

SIZES = (5_000, 5_000_000)
REPEATS = 200


def run(report: Report, data: Path, scale: float) -> None:
    """The figures of each size, and the large as a multiple of the small."""
    small, large = (_filled(load.fresh(data), int(size * scale)) for size in SIZES)
    for name, value in large.items():
        unit = "MiB" if name == "peak memory" else "ms"
        report.figure(f"{name}, {int(SIZES[0] * scale):,} events", small[name], unit)
        report.figure(f"{name}, {int(SIZES[1] * scale):,} events", value, unit)
        report.figure(f"  {name}: large / small", value / small[name], "times")


def _filled(directory: Path, events: int) -> dict[str, float]:
    _fill(directory, events)
    return measure(directory)


def measure(directory: Path) -> dict[str, float]:
    """The figures of a store, by name: milliseconds, and MiB of memory."""
    command = [sys.executable, "-m", "bench.growth", str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _fill(directory: Path, events: int) -> None:
    store = SqliteStore(directory)
    columns = columns_of(load.some_events(100))
    for first in range(0, events // 100, 50):
        streams = range(first, min(first + 50, events // 100))
        store.write([Transaction((Commit("bench", f"stream-{n % 10_000}", ANY, columns),)) for n in streams])
    store.close()


async def _timings(directory: Path) -> dict[str, float]:
    started = time.perf_counter()
    engine = load.engine(directory)
    await engine.start()
    opened = time.perf_counter() - started
    now = ANONYMOUS
    registration = RegisterSubscriptions("bench", (SubscriptionStart("bench", "", 2**61),))
    registered = await engine.execute(now, registration)
    assert isinstance(registered, Registered)
    (number,) = registered.ids
    request = Append("bench", "stream-1", load.some_events(1), ANY)
    figures: dict[str, list[float]] = {"append": [], "fetch": [], "progress": [], "allocate": [], "acknowledge": []}

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
    await engine.stop()
    medians = {name: statistics.median(values) for name, values in figures.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"opening": 1000 * opened, **medians, "peak memory": peak}


if __name__ == "__main__":
    print(json.dumps(load.run(_timings(Path(sys.argv[1])))))
