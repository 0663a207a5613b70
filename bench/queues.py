"""Ordered queues: what a taken key costs others, and what the order costs."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import penstock
from bench import load
from bench.peers.system import consume_in_threads
from bench.report import Report
from bench.usage import Meter
from penstock.engine import Engine
from penstock.model import ANONYMOUS, ANY, Append, Delivery, Done, ResetQueue, Run, SettleQueue, SubscribeQueue
from penstock.settings import Settings
from penstock.store import store_url

FEW_KEYS: Final = 1_000
MANY_KEYS: Final = 100_000
TAKES: Final = 1_000
KEYS_AT_ONCE: Final = 1_000
HOUR_MS: Final = 3_600_000
CONSUMERS: Final = 4
DRAINED_EVENTS: Final = 100_000
DRAINED_STREAMS: Final = 1_000
BATCH: Final = 100
WAIT_S: Final = 0.1
DRAIN_S_MAX: Final = 60.0


def run(report: Report, directory: Path, scale: float) -> None:
    """Take single events with few and many keys in flight; drain queues through a server with and without an order."""
    slow = load.run(_takes(directory / "takes", int(MANY_KEYS * scale), int(TAKES * scale)))
    for name, times in slow.items():
        report.figure(f"one event, {name} keys in flight: median", 1000 * statistics.median(times), "ms")
        report.figure(f"one event, {name} keys in flight: p99", 1000 * _p99(times), "ms")
    few, many = map(_p99, slow.values())
    report.figure("p99 with few keys in flight, to that with many", few / many, "", goal=1 / 1.5)
    drained = _drained(directory / "drained", int(DRAINED_EVENTS * scale))
    for name, (rate, server_us, client_us) in drained.items():
        report.figure(f"drained by {CONSUMERS} consumers, {name}", rate, "events/s")
        report.figure(f"the same: CPU of the server's processes, {name}", server_us, "µs an event")
        report.figure(f"the same: CPU of the client, {name}", client_us, "µs an event")
    report.figure("ordered to unordered", drained["ordered"][0] / drained["unordered"][0], "", goal=0.6)


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


async def _take(engine: Engine, queue: str, who: str, count: int, ordered: str = "stream") -> Delivery:
    request = SubscribeQueue("bench", queue, who, "", 0, count, HOUR_MS, ordered=ordered, several=True)
    given = await engine.execute(ANONYMOUS, request)
    assert isinstance(given, Delivery)
    return given


async def _settle(engine: Engine, given: Delivery) -> None:
    runs = tuple(Run(one.first, one.last) for one in given.runs)
    done = await engine.execute(ANONYMOUS, SettleQueue("bench", given.queue, given.subscriber, runs))
    assert isinstance(done, Done)


async def _fill(engine: Engine, streams: range, events: int = 1) -> None:
    for first in range(streams.start, streams.stop, 200):
        numbers = range(first, min(first + 200, streams.stop))
        appends = [Append("bench", f"key-{number}", load.some_events(events), ANY) for number in numbers]
        await asyncio.gather(*(engine.execute(ANONYMOUS, append) for append in appends))


async def _takes(directory: Path, many: int, takes: int) -> dict[str, list[float]]:
    """Both queues have the same history, and take turns."""
    async with Engine(store_url(directory), Settings()) as engine:
        await _fill(engine, range(many + 2 * takes))
        for name, keys in (("few", FEW_KEYS), ("many", many)):
            request = SubscribeQueue("bench", name, "worker", "", 0, 1, -1, ordered="stream")
            await engine.execute(ANONYMOUS, request)
            # Both come to the same place, so that they take the same events.
            await engine.execute(ANONYMOUS, ResetQueue("bench", name, 0, many - keys + 1))
            for number in range(0, keys, KEYS_AT_ONCE):
                held = await _take(engine, name, f"holder {number}", min(KEYS_AT_ONCE, keys - number))
                assert len(held.events) == min(KEYS_AT_ONCE, keys - number)
        times: dict[str, list[float]] = {f"{FEW_KEYS:,}": [], f"{many:,}": []}
        for number in range(takes):
            both = list(zip(times, ("few", "many"), strict=True))
            for shown, name in both if number % 2 else reversed(both):
                began = time.perf_counter()
                given = await _take(engine, name, "worker", 1)
                times[shown].append(time.perf_counter() - began)
                assert len(given.events) == 1
                await _settle(engine, given)
        return times


def _drained(directory: Path, events: int) -> dict[str, tuple[float, float, float]]:
    """Events per second, and the CPU of an event on the server and here, in microseconds, through a real server."""
    drained: dict[str, tuple[float, float, float]] = {}
    with load.server(load.fresh(directory)) as gates, penstock.connect(f"penstock://{gates['mq']}") as client:
        streams = [f"key-{number}" for number in range(DRAINED_STREAMS)]
        for _ in range(max(1, events // DRAINED_STREAMS)):
            client.append_many(("bench", stream, load.some_events(1)) for stream in streams)
        meter = Meter(int(gates["pid"]))
        for name, ordered in (("unordered", None), ("ordered", "stream")):
            before = meter.used()
            done = consume_in_threads(CONSUMERS, DRAIN_S_MAX, partial(_batches, client, name, ordered))
            server_s = meter.used().since(before).core_s
            assert done.events >= events - DRAINED_STREAMS
            drained[name] = done.events / done.seconds, 1e6 * server_s / done.events, 1e6 * done.core_s / done.events
        meter.stop()
    return drained


def _batches(client: penstock.Client, name: str, ordered: str | None, number: int) -> Callable[[], list[int]]:
    queue = client.queue("bench", name, subscriber=f"consumer-{number}", count=BATCH, ordered=ordered)

    def batch() -> list[int]:
        with queue.next(WAIT_S) as events:
            return [event.position for event in events]

    return batch
