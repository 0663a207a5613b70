"""A disk that runs low: a warning, then refusals, while everything but appends goes on; and back again."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import cbor2
import httpx
import pytest

from penstock.engine import Engine, disk_watch
from penstock.errors import StorageFull
from penstock.gates import HttpGate
from penstock.model import (
    ANONYMOUS,
    ANY,
    AddMessages,
    Append,
    Appended,
    CreateLog,
    Erased,
    EraseStream,
    GetStats,
    PutPrincipal,
    QueueReceipt,
    Request,
    ResetQueue,
    SetSubscription,
    StoreStats,
    Transact,
    Transacted,
    new_event,
)
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.sqlite import SqliteStore
from tests.engine.caller import Caller, bodies, events
from tests.engine.logs import until

MIB = 1 << 20


class Free:
    """How much space the store says there is."""

    bytes: int | None = 100 * MIB
    fails = False

    def __call__(self) -> int | None:
        if self.fails:
            raise OSError("gone")
        return self.bytes


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Free:
    space, real = Free(), SqliteStore.free_bytes
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.005)

    def free_bytes(store: SqliteStore) -> int | None:
        # Servers that other tests share may run in this process too.
        return space() if store.directory.is_relative_to(tmp_path) else real(store)

    monkeypatch.setattr(SqliteStore, "free_bytes", free_bytes)
    return space


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1, disk_warn_bytes=20 * MIB, disk_refuse_bytes=10 * MIB, http="127.0.0.1:0")


@pytest.fixture
async def engine(tmp_path: Path, settings: Settings, free: Free) -> AsyncIterator[Engine]:
    async with Engine(store_url(tmp_path / "store"), settings) as running:
        yield running


async def refuses(engine: Engine) -> None:
    await until(lambda: engine.metrics.disk_refusing)


async def test_below_the_limit_appends_are_refused_and_all_else_goes_on(engine: Engine, free: Free) -> None:
    caller = Caller(engine)
    await caller.append("s", events("a", "b"))
    await engine.execute(ANONYMOUS, CreateLog("log"))
    subscription = await caller.register()
    given = await caller.subscribe("worker")
    free.bytes = 5 * MIB
    await refuses(engine)

    append = Append("shop", "s", [new_event("Tested", b"c")], ANY)
    refused: list[Request] = [append, Transact((append,), (), ()), AddMessages("log", (cbor2.dumps(1),))]
    for request in refused:
        with pytest.raises(StorageFull, match=r"5 MiB are free on its disk, and disk_refuse_bytes is 10MiB"):
            await engine.execute(ANONYMOUS, request)
    assert await caller.stream("s") == ["a", "b"]
    batch = await caller.fetch(subscription)
    await caller.progress(subscription, batch.events[-1].ticks)
    assert await caller.fetched(subscription) == []
    assert given.allocation is not None
    receipt = QueueReceipt("shop", "q", "worker", given.allocation.first, given.allocation.last)
    assert await caller.ask(Transacted, Transact((), (receipt,), ())) == Transacted(())
    assert bodies(await caller.subscribe("worker")) == ["b"]
    assert await caller.ask(Erased, EraseStream("shop", "s")) == Erased(2, 0, True)

    free.bytes = 15 * MIB
    await until(lambda: not engine.metrics.disk_refusing)
    assert (await caller.ask(Appended, append)).sequence == 3


async def test_each_change_is_told_once(engine: Engine, free: Free, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.engine.disk_watch"):
        for mib in (15, 14, 5, 4, 15, 100):
            free.bytes = mib * MIB
            await until(lambda: engine.metrics.disk_free_bytes == free.bytes)
    assert [record.getMessage() for record in caplog.records] == [
        "free space of the disk: 15 MiB, which is little (disk_warn_bytes)",
        "free space of the disk: 5 MiB; appends are refused (disk_refuse_bytes)",
        "free space of the disk: 15 MiB, which is little (disk_warn_bytes); appends are taken again",
        "free space of the disk: 100 MiB, which is enough again",
    ]


async def test_a_disk_that_stays_around_a_mark_does_not_change_its_mind(
    engine: Engine, free: Free, caplog: pytest.LogCaptureFixture
) -> None:
    append = Append("shop", "s", [new_event("Tested", b"c")], ANY)
    with caplog.at_level(logging.WARNING, "penstock.engine.disk_watch"):
        for mib in (19, 20, 19, 22, 9, 10, 9, 11):
            free.bytes = mib * MIB
            await until(lambda: engine.metrics.disk_free_bytes == free.bytes)
        with pytest.raises(StorageFull, match=r"11 MiB are free .* is 10MiB; 12 MiB must be free again"):
            await engine.execute(ANONYMOUS, append)
        free.bytes = 12 * MIB
        await until(lambda: not engine.metrics.disk_refusing)
    assert [record.getMessage().partition(",")[0].partition(";")[0] for record in caplog.records] == [
        "free space of the disk: 19 MiB",
        "free space of the disk: 9 MiB",
        "free space of the disk: 12 MiB",
    ]


async def test_health_and_metrics_say_so(engine: Engine, free: Free) -> None:
    gate = HttpGate(engine)
    await gate.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{gate.address}") as client:
            free.bytes = 15 * MIB
            await until(lambda: engine.metrics.disk_free_bytes == 15 * MIB)
            assert (await client.get("/health")).status_code == 200
            free.bytes = 5 * MIB
            await refuses(engine)
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "unavailable")
            assert health.json()["reason"].startswith("appends are refused: 5 MiB are free on its disk")
            metrics = (await client.get("/metrics")).text
            assert "penstock_disk_free_bytes 5.24288e+06\n" in metrics
            assert "penstock_disk_refusing 1.0\n" in metrics
            free.bytes = 100 * MIB
            await until(lambda: engine.trouble is None)
            assert (await client.get("/health")).status_code == 200
    finally:
        await gate.stop()


@pytest.mark.parametrize("unknown", ["none", "error"])
async def test_what_is_not_known_refuses_nothing(engine: Engine, free: Free, unknown: str) -> None:
    free.bytes = 5 * MIB
    await refuses(engine)
    free.bytes, free.fails = None, unknown == "error"
    await until(lambda: engine.trouble is None)
    assert engine.metrics.registry.get_sample_value("penstock_disk_free_bytes") is None
    await Caller(engine).append("s", events("a"))


async def test_below_the_limit_nobody_makes_entries_of_the_audit_without_end(engine: Engine, free: Free) -> None:
    caller = Caller(engine)
    await caller.append("s", events("a", "b"))
    await caller.register("worker")
    await caller.subscribe("worker")
    await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
    root = engine.access.principal("root")
    assert root is not None
    before = await engine.execute(root, GetStats())
    free.bytes = 5 * MIB
    await refuses(engine)
    for request in (ResetQueue("shop", "q", 0), SetSubscription("worker", "shop", "", 0)):
        with pytest.raises(StorageFull):
            await engine.execute(root, request)
    assert await engine.execute(root, GetStats()) == before
    await engine.execute(root, EraseStream("shop", "s"))


class TestSwitchedOff:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(workers=1, disk_warn_bytes=0, disk_refuse_bytes=0)

    async def test_limits_of_0_are_none(self, engine: Engine, free: Free, caplog: pytest.LogCaptureFixture) -> None:
        free.bytes = 0
        await until(lambda: engine.metrics.disk_free_bytes == 0)
        await Caller(engine).append("s", events("a"))
        assert engine.trouble is None
        assert "free space" not in caplog.text


async def test_a_full_disk_refuses_from_the_start_on(tmp_path: Path, settings: Settings, free: Free) -> None:
    free.bytes = 5 * MIB
    async with Engine(store_url(tmp_path / "store"), settings) as engine:
        with pytest.raises(StorageFull):
            await Caller(engine).append("s", events("a"))
        stats = await engine.execute(ANONYMOUS, GetStats())
        assert isinstance(stats, StoreStats)
        assert stats.head == 0


async def test_the_real_disk_has_a_known_space(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path / "store"), Settings(workers=1)) as engine:
        found = engine.metrics.registry.get_sample_value("penstock_disk_free_bytes")
        assert found is not None
        assert found > 0
