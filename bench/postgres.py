"""The shared store: one and two servers on a PostgreSQL, compared with a plain loop of INSERT and COMMIT and with COPY.

A server is a process with its own engine and callers. The database is one that the section starts; it keeps its
files where temporary files go (TMPDIR), with all its settings as they come.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import load
from bench.report import Report
from penstock.engine import Engine
from penstock.model import ANONYMOUS, AcknowledgeQueue, Delivery, EventFilter, SubscribeQueue
from penstock.settings import Settings
from penstock.store import open_reader
from penstock.store.contract import ReadLimits
from tests.postgres import Postgres, postgres

TURNS: Final = 3
ROWS: Final = 1000
CALLERS: Final = 64
CONSUMERS: Final = 4
BATCH: Final = 100
TTL_MS: Final = 60_000
FEW: Final = ReadLimits(events_max=16_384, bytes_max=8 << 20)
TABLE: Final = """
CREATE TABLE plain (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, context text, stream text, sequence bigint, id bytea,
    type text, body bytea, recorded timestamptz DEFAULT clock_timestamp(), UNIQUE (context, stream, sequence)
)"""
INSERT: Final = "INSERT INTO plain (context, stream, sequence, id, type, body) VALUES (%s, %s, %s, %s, %s, %s)"
COPY: Final = "COPY plain (context, stream, sequence, id, type, body) FROM STDIN (FORMAT BINARY)"
TYPES: Final = ("text", "text", "int8", "bytea", "text", "bytea")


def run(report: Report, _data: Path, scale: float) -> None:
    """Everything on one database, in turns, because the disk's mood changes within seconds."""
    with postgres() as server:
        server.execute(TABLE)
        _appends(report, server, 3 * scale)
        _reads(report, server, 3 * scale)


# --- appends --------------------------------------------------------------------------------------------------


def _appends(report: Report, server: Postgres, seconds: float) -> None:
    one, two, large = server.url("one"), server.url("two"), server.url("large")
    measured: dict[str, Callable[[], float]] = {
        "plain": lambda: _inserting(server.url(), seconds / TURNS),
        "one": lambda: _serving(one, 1, CALLERS, 1, seconds / TURNS),
        "two": lambda: _serving(two, 2, CALLERS, 1, seconds / TURNS),
        "copy": lambda: _copying(server.url(), seconds / TURNS),
        "large": lambda: _serving(large, 1, 1, ROWS, seconds / TURNS),
    }
    rates = dict.fromkeys(measured, 0.0)
    for _ in range(TURNS):
        for name, measure in measured.items():
            rates[name] += measure() / TURNS
    report.figure("plain loop, one INSERT and COMMIT per event", rates["plain"], "events/s")
    report.figure(f"{CALLERS} callers x 1 event, one server", rates["one"], "events/s")
    report.figure("  of the plain loop", rates["one"] / rates["plain"], "times", goal=5)
    report.figure(f"{CALLERS} callers x 1 event, two servers", rates["two"], "events/s")
    report.figure("  of the plain loop, two servers", rates["two"] / rates["plain"], "times")
    report.figure(f"COPY and COMMIT, {ROWS:,} rows each", rates["copy"], "events/s")
    report.figure(f"1 caller x {ROWS:,} events, one server", rates["large"], "events/s")
    report.figure("  of COPY", rates["large"] / rates["copy"], "times", goal=1)


def _rows(first: int, count: int) -> list[tuple[Any, ...]]:
    events = load.some_events(count)
    return [("bench", "stream", first + n, event.id, event.type, event.body) for n, event in enumerate(events)]


def _inserting(url: str, seconds: float) -> float:
    with psycopg.connect(url) as connection:
        first = _next(connection)
        connection.commit()
        done, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            connection.execute(INSERT, _rows(first + done, 1)[0])
            connection.commit()
            done += 1
        return done / (time.perf_counter() - started)


def _copying(url: str, seconds: float) -> float:
    with psycopg.connect(url) as connection:
        first = _next(connection)
        connection.commit()
        rows = _rows(0, ROWS)
        done, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            with connection.cursor().copy(COPY) as copy:
                copy.set_types(TYPES)
                for number, (context, stream, _, *rest) in enumerate(rows):
                    copy.write_row((context, stream, first + done + number, *rest))
            connection.commit()
            done += ROWS
        return done / (time.perf_counter() - started)


def _next(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM plain").fetchone()
    assert row is not None
    return int(row[0])


def _serving(url: str, servers: int, callers: int, events: int, seconds: float) -> float:
    """Events per second of all callers, which are shared out among servers."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(servers), context.Queue()
    asked = (url, callers // servers, events, seconds, barrier, rates)
    processes = [context.Process(target=_serve, args=(number, *asked)) for number in range(servers)]
    for process in processes:
        process.start()
    total: float = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def _serve(
    number: int, url: str, callers: int, events: int, seconds: float, barrier: Barrier, rates: "Queue[float]"
) -> None:
    async def go() -> float:
        async with Engine(url, Settings(workers=1)) as engine:
            await load.appending(engine, callers, events, seconds / 4, f"bench-{number}")
            await asyncio.to_thread(barrier.wait)
            return await load.appending(engine, callers, events, seconds, f"bench-{number}")

    rates.put(load.run(go()))


# --- reads ----------------------------------------------------------------------------------------------------


def _reads(report: Report, server: Postgres, seconds: float) -> None:
    report.figure("catch-up read as events, 1-event commits", _catch_up(server.url("one")), "events/s")
    report.figure("catch-up read as events, 1,000-event commits", _catch_up(server.url("large")), "events/s")
    taken = load.run(_drained(server.url("one"), seconds))
    report.figure(f"queue drained by {CONSUMERS} consumers, {BATCH} events each", taken, "events/s")


def _catch_up(url: str) -> float:
    reader = open_reader(url)
    position, total, end, started = 1, 0, False, time.perf_counter()
    while not end:
        span = reader.read_records(position, EventFilter(), FEW)
        total += sum(len(record.events()) for record in span.records)
        position, end = span.next, span.end
    took = time.perf_counter() - started
    assert total == reader.head()
    reader.close()
    return total / took


async def _drained(url: str, seconds: float) -> float:
    """Events per second that consumers take and acknowledge, until there are none or the time is up."""
    async with Engine(url, Settings(seal=False)) as engine:
        await engine.execute(ANONYMOUS, SubscribeQueue("bench-0", "q", "first", "", 0, BATCH, TTL_MS))
        taken = 0
        started = time.perf_counter()

        async def consume(name: str) -> None:
            nonlocal taken
            given = await engine.execute(ANONYMOUS, SubscribeQueue("bench-0", "q", name, "", 0, BATCH, TTL_MS))
            while isinstance(given, Delivery) and given.allocation and time.perf_counter() < started + seconds:
                taken += given.allocation.count
                marks = (given.allocation.first, given.allocation.last)
                given = await engine.execute(ANONYMOUS, AcknowledgeQueue("bench-0", "q", name, *marks, BATCH, TTL_MS))

        await asyncio.gather(*(consume(f"c{n}") for n in range(CONSUMERS)))
        return taken / (time.perf_counter() - started)
