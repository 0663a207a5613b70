"""The disk's own speed, appends through the engine with an fsync before every answer, and appends during other work."""

import asyncio
import os
import time
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.engine import Engine
from penstock.model import ANONYMOUS, ReadRecords, RecordPage

PAGE_BYTES = 4096
COMMIT_BYTES = 3 * (PAGE_BYTES + 24)
"""A commit of one event writes three pages with their headers."""
FILE_BYTES = 16 << 20


def overwriting(path: Path, seconds: float, size: int = COMMIT_BYTES) -> float:
    """Write+fdatasync per second inside a file that has its size already, as a reused WAL has."""
    with path.open("wb", buffering=0) as file:
        os.write(file.fileno(), bytes(FILE_BYTES))
        os.fsync(file.fileno())
        block, done, started = os.urandom(size), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), block, done * size % (FILE_BYTES - size))
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - started)


def growing(path: Path, seconds: float, size: int = COMMIT_BYTES) -> float:
    """Write+fdatasync per second at the end of a file that grows."""
    with path.open("wb", buffering=0) as file:
        block, done, started = os.urandom(size), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - started)


def run_disk(report: Report, data: Path, scale: float) -> None:
    """Both, for the bytes of a one-event commit."""
    seconds = 2 * scale
    report.figure("write+fdatasync, overwriting", overwriting(data / "overwrite", seconds), "/s")
    report.figure("write+fdatasync, appending", growing(data / "append", seconds), "/s")


def run(report: Report, data: Path, scale: float) -> None:
    """Commits of several sizes from one and from many callers."""
    load.run(_run(report, data, scale))


async def _run(report: Report, data: Path, scale: float) -> None:
    seconds = 3 * scale
    async with load.engine(load.fresh(data)) as engine:
        await load.warm(engine)
        single, syncs, extending = 0.0, 0.0, 0.0
        # In turns, because the speed of a disk changes within seconds.
        for _ in range(3):
            syncs = max(syncs, overwriting(data / "overwrite", seconds / 3))
            extending = max(extending, growing(data / "append", seconds / 3))
            single = max(single, await load.appending(engine, 1, 1, seconds / 3))
        report.figure("1 caller x 1 event", single, "commits/s")
        report.figure("  1 x 1 of write+fdatasync, appending", 100 * single / extending, "%", goal=50)
        report.figure("  1 x 1 of write+fdatasync, overwriting", 100 * single / syncs, "%", goal=50)
        many = await load.appending(engine, 64, 1, seconds)
        report.figure("64 callers x 1 event", many, "commits/s", goal=20_000)
        for callers in (1, 16):
            ten = await load.appending(engine, callers, 10, seconds)
            report.figure(f"{callers} caller(s) x 10 events", ten, "events/s", goal=150_000 if callers == 16 else None)
        for callers in (1, 4):
            thousand = await load.appending(engine, callers, 1000, seconds)
            report.figure(
                f"{callers} caller(s) x 1,000 events", thousand, "events/s", goal=300_000 if callers == 1 else None
            )


def run_mixed(report: Report, data: Path, scale: float) -> None:
    """64 x 1 alone, then together with a catch-up read and a bulk load."""
    load.run(_run_mixed(report, data, scale))


async def _run_mixed(report: Report, data: Path, scale: float) -> None:
    seconds = 4 * scale
    async with load.engine(load.fresh(data)) as engine:
        await load.warm(engine)
        await load.appending(engine, 4, 1000, seconds, "history")
        alone = await load.appending(engine, 64, 1, seconds)
        reader = asyncio.create_task(_catch_up(engine))
        bulk = asyncio.create_task(load.appending(engine, 1, 1000, seconds, "bulk"))
        together = await load.appending(engine, 64, 1, seconds)
        reader.cancel()
        report.figure("64 x 1 alone", alone, "commits/s")
        report.figure("64 x 1 during a catch-up read and a bulk load", together, "commits/s")
        report.figure("  64 x 1 during both, of alone", 100 * together / alone, "%", goal=50)
        report.figure("  the bulk load at the same time", await bulk, "events/s")


async def _catch_up(engine: Engine) -> None:
    """Read all stored records, again and again, until cancelled."""
    position = 1
    while True:
        page = await engine.execute(ANONYMOUS, ReadRecords(position))
        assert isinstance(page, RecordPage)
        position = 1 if page.end else page.next
