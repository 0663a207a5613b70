"""Seals: what they cost appends, what they give readers and save on disk, and that no cost grows with history."""

import asyncio
import time
from pathlib import Path

from bench import growth, load, reads
from bench.report import Report
from penstock.engine import Engine
from penstock.store.contract import GiveBack, Transaction
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.database import PAGE_BYTES

EVENTS = 5_000_000
QUICK_EVENTS = 50_000
SMALL_EVENTS = 5_000
TURNS = 4
GIVE_BACK_BYTES = 1 << 30
COSTS = ("opening", "append", "fetch", "acknowledge")


def run(report: Report, data: Path, scale: float) -> None:
    """Appends while the sealer works; a store of 1-event commits before and after it; stores of three sizes."""
    load.run(_appends(report, data, 8 * scale))
    events = EVENTS if scale >= 1 else QUICK_EVENTS
    large = load.fresh(data)
    _catch_up(report, large, events)
    _growth(report, data, large, events)


async def _appends(report: Report, data: Path, seconds: float) -> None:
    async with load.engine(load.fresh(data), seal=True) as on, load.engine(load.fresh(data), seal=False) as off:
        await load.warm(on)
        await load.warm(off)
        await _sealed(on)
        warmed = _metric(on, "seals_total")
        rates: dict[Engine, list[float]] = {on: [], off: []}
        lag = 0.0
        # In turns, because the disk's mood changes within seconds, and each as often first as last.
        for turn in range(TURNS):
            for engine in (on, off) if turn % 2 else (off, on):
                rates[engine].append(await load.appending(engine, 64, 1, seconds / TURNS))
                lag = max(lag, _metric(on, "seal_lag_events"))
                # What is left to seal belongs to its own turn, not to that of the other one.
                await _sealed(on)
        made = _metric(on, "seals_total") - warmed
    with_seals, without = (sum(rates[engine]) / TURNS for engine in (on, off))
    report.figure("64 callers x 1 event, sealer on", with_seals, "commits/s")
    report.figure("64 callers x 1 event, sealer off", without, "commits/s")
    report.figure("  on of off", 100 * with_seals / without, "%")
    report.figure("  seals made meanwhile", made, "seals")
    report.figure("  closed events not sealed at the end of a turn, at most", lag, "events")


def _metric(engine: Engine, name: str) -> float:
    return engine.metrics.registry.get_sample_value(f"penstock_{name}") or 0.0


async def _sealed(engine: Engine) -> None:
    while _metric(engine, "seal_lag_events"):  # noqa: ASYNC110 - it rings no bell
        await asyncio.sleep(0.01)


def _catch_up(report: Report, directory: Path, events: int) -> None:
    reads.fill(directory, 1, events)
    before = _figures(directory)
    seconds = _seal(directory)
    after = _figures(directory)
    for name, (unit, goal) in _UNITS.items():
        report.figure(f"{name}, {events:,} 1-event commits", before[name], unit)
        report.figure(f"{name}, the same sealed", after[name], unit, goal=goal)
    report.figure("sealing", events / seconds, "events/s")


_UNITS: dict[str, tuple[str, float | None]] = {
    "as Arrow": ("events/s", 2_000_000),
    "as events": ("events/s", 500_000),
    "on disk": ("bytes/event", None),
}


def _figures(directory: Path) -> dict[str, float]:
    reader = SqliteReader(directory)
    head = reader.head()
    # What is free is used again by the next appends, or given back once it is worth it.
    pages = reader.db.pragma("page_count") - reader.db.pragma("freelist_count")
    reader.close()
    return {
        "as Arrow": reads.arrow_rate(directory),
        "as events": reads.event_rate(directory),
        "on disk": PAGE_BYTES * pages / head,
    }


def _seal(directory: Path) -> float:
    """Seal everything, as fast as it goes, and give back what that frees; the seconds."""
    store = SqliteStore(directory)
    started = time.perf_counter()
    while (seal := next_seal(store)) is not None:
        assert store.write([Transaction((seal,))]) == [[True]]
    seconds = time.perf_counter() - started
    while store.write([Transaction((GiveBack(GIVE_BACK_BYTES),))]) != [[0]]:
        pass
    store.close()
    return seconds


def _growth(report: Report, data: Path, large: Path, events: int) -> None:
    small, larger = load.fresh(data), load.fresh(data)
    for directory, count in ((small, SMALL_EVENTS), (larger, 4 * events)):
        reads.fill(directory, 1, count)
        _seal(directory)
    sizes = {SMALL_EVENTS: small, events: large, 4 * events: larger}
    measured = {count: growth.measure(directory) for count, directory in sizes.items()}
    for name in COSTS:
        for count, figures in measured.items():
            report.figure(f"{name}, {count:,} sealed events", figures[name], "ms")
        report.figure(
            f"  {name}: largest / smallest", measured[4 * events][name] / measured[SMALL_EVENTS][name], "times"
        )
