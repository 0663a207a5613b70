"""The sealer beside everyone else: it keeps up, changes nothing that is read, and goes on after whatever happens."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, background
from penstock.engine.background import block_end
from penstock.engine.context import EngineContext
from penstock.errors import WriterBusy
from penstock.model import ANONYMOUS, ANY, Append, Event, EventPage, GetStats, ReadAll, StoreStats, new_event
from penstock.model.columns import columns_of
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.contract import Commit, Seal, Transaction
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.engine.caller import Caller, events
from tests.engine.logs import until
from tests.test_cli import penstock

BLOCK = 4096
STREAMS = 97


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return store_url(tmp_path / "store")


def fill(url: str, commits: int) -> None:
    """Commits of one event each, written as fast as they go."""
    store = SqliteStore(url.removeprefix("sqlite:///"))
    for first in range(0, commits, 1024):
        numbers = range(first, min(first + 1024, commits))
        store.write([Transaction((commit(number),)) for number in numbers])
    store.close()


def commit(number: int) -> Commit:
    return Commit("shop", f"s{number % STREAMS}", ANY, columns_of([new_event("Tested", b"%d" % number)]))


async def history(engine: Engine) -> list[Event]:
    """Everything there is, page by page."""
    found: list[Event] = []
    position, end = 1, False
    while not end:
        page = await engine.execute(ANONYMOUS, ReadAll(position))
        assert isinstance(page, EventPage)
        found += page.events
        position, end = page.next, page.end
    return found


def metric(engine: Engine, name: str) -> float:
    return engine.metrics.registry.get_sample_value(f"penstock_{name}") or 0.0


def records(url: str) -> int:
    """How many records the store has."""
    reader = SqliteReader(url.removeprefix("sqlite:///"))
    count = reader.db.connection.execute("SELECT count(*) FROM records").get
    reader.close()
    return int(count)


async def sealed(engine: Engine) -> None:
    await until(lambda: metric(engine, "seal_lag_events") == 0)


def test_a_block_closes_with_the_position_before_the_next() -> None:
    assert [block_end(1), block_end(4095), block_end(4096), block_end(8191), block_end(8192)] == [
        4095,
        4095,
        8191,
        8191,
        12287,
    ]


async def test_a_store_that_was_left_unsealed_is_sealed_and_reads_the_same(url: str, settings: Settings) -> None:
    fill(url, 3 * BLOCK + 100)
    async with Engine(url, Settings(workers=1, seal=False)) as engine:
        before = await history(engine)
        assert metric(engine, "seal_lag_events") == 3 * BLOCK - 1
    assert records(url) == 3 * BLOCK + 100
    async with Engine(url, settings) as engine:
        await sealed(engine)
        assert await history(engine) == before
        assert metric(engine, "seals_total") == 3
        assert metric(engine, "sealed_events_total") == 3 * BLOCK - 1
        stats = await engine.execute(ANONYMOUS, GetStats())
        assert isinstance(stats, StoreStats)
        assert (stats.head, stats.sealed) == (3 * BLOCK + 100, 3 * BLOCK - 1)
        for stream in ("s0", "s96"):
            mine = [event for event in before if event.stream == stream]
            assert await Caller(engine).stream(stream) == [event.body.decode() for event in mine]
    assert records(url) == 3 + 101
    assert "12,287 of 12,388 events" in penstock("stats", "--store", url)[1]


async def test_appends_ring_the_sealer_and_readers_see_the_same_all_along(engine: Engine) -> None:
    done = asyncio.Event()
    seen: list[list[Event]] = []

    async def read() -> None:
        while not done.is_set():
            seen.append(await history(engine))

    async def append(stream: int) -> None:
        for number in range(160):
            request = Append("shop", f"s{stream}", [new_event("Tested", b"%d" % number)], number + 1)
            await engine.execute(ANONYMOUS, request)

    reading = asyncio.ensure_future(read())
    await asyncio.gather(*(append(stream) for stream in range(64)))
    await sealed(engine)
    assert metric(engine, "seals_total") >= 2
    done.set()
    await reading
    final = await history(engine)
    assert len(final) == 64 * 160
    assert [event.position for event in final] == list(range(1, len(final) + 1))
    assert len({event.commit for event in final}) == len(final)
    assert all(page == final[: len(page)] for page in seen)


async def test_a_seal_that_came_too_late_is_made_again(
    url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url, BLOCK)
    write = SqliteStore.write
    late: list[Seal] = []

    def writing(store: SqliteStore, transactions: Any) -> Any:
        (operation,) = transactions[0].operations[:1] or (None,)
        if isinstance(operation, Seal) and len(late) < 3:
            late.append(operation)
            return [[False]]
        return write(store, transactions)

    monkeypatch.setattr(SqliteStore, "write", writing)
    async with Engine(url, settings) as engine:
        await sealed(engine)
        assert (len(late), metric(engine, "seals_total")) == (3, 1)


async def test_failures_are_told_once_and_tried_again(
    url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(url, BLOCK)
    monkeypatch.setattr(background, "SEAL_RETRY_S_MIN", 0.001)
    monkeypatch.setattr(background, "SEAL_RETRY_S_MAX", 0.002)
    failures: list[Transaction] = []
    write = EngineContext.write

    async def failing(context: EngineContext, transaction: Transaction, size: int = 0) -> list[Any]:
        if isinstance(transaction.operations[0], Seal) and len(failures) < 5:
            failures.append(transaction)
            raise WriterBusy(1)
        return await write(context, transaction, size)

    # Before the engine starts: the sealer may be done before the test goes on.
    monkeypatch.setattr(EngineContext, "write", failing)
    async with Engine(url, settings) as engine:
        await sealed(engine)
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.engine.background"]
    assert len(failures) == 5
    assert [text.split(";")[0] for text in told] == ["records could not be sealed now", "records are sealed again"]


async def test_a_killed_process_is_replaced_and_nobody_notices(
    url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url, 6 * BLOCK)
    monkeypatch.setattr(background, "SEAL_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(background, "SEAL_REST_S_MIN", 0.05)
    async with Engine(url, settings) as engine:
        before = await history(engine)
        await until(lambda: metric(engine, "seals_total") >= 1)
        for pid in engine._sealer_pool.pids:
            os.kill(pid, signal.SIGKILL)
        await Caller(engine).append("s0", events("more"))
        await sealed(engine)
        assert (await history(engine))[:-1] == before


async def test_a_stop_in_the_middle_waits_for_nothing_and_the_next_start_goes_on(
    url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url, 4 * BLOCK)
    with monkeypatch.context() as slow:
        slow.setattr(background, "SEAL_REST_S_MIN", 3600)
        async with Engine(url, settings) as engine:
            await until(lambda: metric(engine, "seals_total") == 1)
            before = await history(engine)
            async with asyncio.timeout(30):
                await engine.stop()
    async with Engine(url, settings) as engine:
        assert 0 < metric(engine, "seal_lag_events") < 4 * BLOCK
        await sealed(engine)
        assert metric(engine, "seals_total") == 3
        assert await history(engine) == before


async def test_a_stop_does_not_wait_for_a_seal_that_is_being_made(url: str, settings: Settings) -> None:
    fill(url, BLOCK)
    async with Engine(url, settings) as engine:
        # It never comes to its end.
        await until(lambda: bool(engine._sealer_pool.pids))
        os.kill(engine._sealer_pool.pids[0], signal.SIGSTOP)
        await Caller(engine).append("s0", events("more"))
        async with asyncio.timeout(30):
            await engine.stop()
    async with Engine(url, settings) as engine:
        await sealed(engine)
        assert len(await history(engine)) == BLOCK + 1


async def test_without_a_closed_block_no_process_is_started(engine: Engine) -> None:
    await Caller(engine).append("s", events(*map(str, range(BLOCK - 2))))
    await until(lambda: engine.metrics.commits == 1)
    assert engine._sealer_pool.pids == []
    assert metric(engine, "seal_lag_events") == 0


async def test_on_a_full_disk_nothing_is_sealed(url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url, BLOCK)
    monkeypatch.setattr("penstock.engine.disk_watch.LOOK_S", 0.005)
    monkeypatch.setattr(background, "SEAL_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(background, "SEAL_RETRY_S_MAX", 0.01)
    with monkeypatch.context() as full:
        full.setattr(SqliteStore, "free_bytes", lambda _store: 0)
        engine = Engine(url, settings)
        await engine.start()
        await until(lambda: engine._sealer._again_s > 0 and engine.metrics.disk_refusing)
    try:
        await sealed(engine)
    finally:
        await engine.stop()


@pytest.fixture
async def engine(url: str, settings: Settings) -> AsyncIterator[Engine]:
    async with Engine(url, settings) as running:
        yield running
