"""Appends through the engine, an fsync before every answer."""

from pathlib import Path

from bench import disk, load
from bench.report import Report


def run(report: Report, data: Path, scale: float) -> None:
    """Commits of several sizes from one and from many callers."""
    load.run(_run(report, data, scale))


async def _run(report: Report, data: Path, scale: float) -> None:
    seconds = 3 * scale
    async with load.engine(load.fresh(data)) as engine:
        await load.warm(engine)
        single, syncs, growing = 0.0, 0.0, 0.0
        # In turns, because the disk's mood changes within seconds.
        for _ in range(3):
            syncs = max(syncs, disk.overwriting(data / "overwrite", seconds / 3))
            growing = max(growing, disk.appending(data / "append", seconds / 3))
            single = max(single, await load.appending(engine, 1, 1, seconds / 3))
        report.figure("1 caller x 1 event", single, "commits/s")
        report.figure("  1 x 1 of write+fdatasync, appending", 100 * single / growing, "%", goal=50)
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
