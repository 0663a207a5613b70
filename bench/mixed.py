"""Small appends beside a catch-up read and a bulk load: how much of their idle rate they keep."""

import asyncio
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.engine import Engine
from penstock.model import ANONYMOUS, ReadRecords, RecordPage


def run(report: Report, data: Path, scale: float) -> None:
    """64 x 1 alone, then with company."""
    load.run(_run(report, data, scale))


async def _run(report: Report, data: Path, scale: float) -> None:
    seconds = 4 * scale
    async with load.engine(load.fresh(data)) as engine:
        await load.warm(engine)
        await load.appending(engine, 4, 1000, seconds, "history")
        alone = await load.appending(engine, 64, 1, seconds)
        reader = asyncio.create_task(_catch_up(engine))
        bulk = asyncio.create_task(load.appending(engine, 1, 1000, seconds, "bulk"))
        beside = await load.appending(engine, 64, 1, seconds)
        reader.cancel()
        report.figure("64 x 1 alone", alone, "commits/s")
        report.figure("64 x 1 beside a catch-up read and a bulk load", beside, "commits/s")
        report.figure("  64 x 1 in company, of alone", 100 * beside / alone, "%", goal=50)
        report.figure("  the bulk load meanwhile", await bulk, "events/s")


async def _catch_up(engine: Engine) -> None:
    """Read all stored records, again and again, until cancelled."""
    position = 1
    while True:
        page = await engine.execute(ANONYMOUS, ReadRecords(position))
        assert isinstance(page, RecordPage)
        position = 1 if page.end else page.next
