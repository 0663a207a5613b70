"""The Python client over `penstock://`, against a real server: fsync before each answer, everything on one machine."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import penstock
from bench import load
from bench.report import Report
from penstock import Client, NewEvent
from penstock.client.bulk import Commit

EVENTS = 1000
STREAMS = 64
HISTORY_EVENTS = 1_000_000
FOLLOWED = 1000
SINGLE_APPENDS = 5000
TASKS = (64, 1024)
RUNS = 3


def run(report: Report, data: Path, scale: float) -> None:
    """Appends in one process, then the history read back, then how soon a follower has an event."""
    with load.server(load.fresh(data)) as gates, penstock.connect(f"penstock://{gates['mq']}") as client:
        rate = _appending(client, load.some_events(1), 3 * scale)
        report.figure("append_many, 1-event commits", rate, "commits/s", goal=20_000)
        rate = _appending(client, load.some_events(EVENTS), 3 * scale)
        report.figure("append_many, 1,000-event commits", rate * EVENTS, "events/s", goal=200_000)
        events, appends = load.some_events(1), int(SINGLE_APPENDS * scale)
        report.figure("CPU of an append, one by one", _cpu_of_append(client, events, appends), "µs")
        for tasks in TASKS:
            cost = asyncio.run(_cpu_of_append_in_tasks(client.url, events, appends, tasks))
            report.figure(f"CPU of an append, {tasks:,} tasks on an event loop", cost, "µs")
    with load.server(load.fresh(data)) as gates, penstock.connect(f"penstock://{gates['mq']}") as client:
        events, history = load.some_events(EVENTS), int(HISTORY_EVENTS * scale)
        client.append_many(("bench", "history", events) for _ in range(history // EVENTS))
        report.note(f"pyarrow {pa.__version__}, which takes its time to load, is loaded")
        report.figure("read_all as events", _reading(client, arrow=False), "events/s", goal=1_040_000)
        report.figure("read_all as Arrow", _reading(client, arrow=True), "events/s", goal=2_600_000)
        _following(report, gates["mq"], int(FOLLOWED * scale))


def _appending(client: Client, events: list[NewEvent], seconds: float) -> float:
    """Commits per second of one append_many."""
    stop = time.perf_counter() + seconds

    def commits() -> Iterator[Commit]:
        number = 0
        while time.perf_counter() < stop:
            number += 1
            yield "bench", f"stream-{number % STREAMS}", events

    started = time.perf_counter()
    done = client.append_many(commits())
    return done.commits / (time.perf_counter() - started)


def _cpu_of_append(client: Client, events: list[NewEvent], appends: int) -> float:
    """Microseconds of this process's CPU; the least of a few runs, as other programs disturb its caches."""
    costs = []
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(appends):
            client.append("bench", "single", events)
        costs.append(1e6 * (time.process_time() - began) / appends)
    return min(costs)


async def _cpu_of_append_in_tasks(url: str, events: list[NewEvent], appends: int, tasks: int) -> float:
    each = max(1, appends // tasks)
    costs = []

    async with penstock.aconnect(url) as client:

        async def work(number: int) -> None:
            for _ in range(each):
                await client.append("bench", f"task-{number % STREAMS}", events)

        for _ in range(RUNS):
            began = time.process_time()
            await asyncio.gather(*map(work, range(tasks)))
            costs.append(1e6 * (time.process_time() - began) / (each * tasks))
    return min(costs)


def _reading(client: Client, *, arrow: bool) -> float:
    """Events per second of one reader from the beginning to the end."""
    started = time.perf_counter()
    sizes = (batch.num_rows for batch in client.arrow_batches()) if arrow else (1 for _ in client.read_all())
    count: int = sum(sizes)
    return count / (time.perf_counter() - started)


def _following(report: Report, address: str, events: int) -> None:
    """Times from an acknowledged append to the event in the hands of a follower."""
    acknowledged: list[float] = []
    seen: list[float] = []
    arrived = threading.Event()
    url = f"penstock://{address}"
    with penstock.connect(url) as writer, penstock.connect(url) as reader:
        position = writer.stats().head + 1

        def follow() -> None:
            for _ in reader.follow(position, context="followed"):
                seen.append(time.perf_counter())
                arrived.set()
                if len(seen) == events:
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        for _ in range(events):
            arrived.clear()
            writer.append("followed", "stream", load.some_events(1))
            acknowledged.append(time.perf_counter())
            arrived.wait()
        follower.join()
    # A follower may see an event before its writer gets the acknowledgement.
    waits = sorted(max(0.0, 1000 * (came - told)) for came, told in zip(seen, acknowledged, strict=True))
    report.figure("follow, acknowledged append to event in hand, median", waits[len(waits) // 2], "ms")
    report.figure("follow, acknowledged append to event in hand, 99 %", waits[len(waits) * 99 // 100], "ms")
