"""A disk that is full or broken: everybody is told, nothing half is written, and all goes on when it works again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.errors import PenstockError, StorageFailure, StorageFull
from penstock.model import ANY, Append, Appended, ProducerMark, Transact, Transacted, new_event
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteStore
from tests.faults.support import (
    FailingDisk,
    append,
    append_or_error,
    ask,
    engine_on,
    findings,
    read_everything,
    run,
    until,
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingDisk]:
    """A disk under the engine's store; workers read past it."""
    with FailingDisk() as failing:

        def open_store(
            url: str, *, stream_cache_max: int, wal_bytes_max: int, group_access: bool | None
        ) -> SqliteStore:
            return SqliteStore(
                url.removeprefix("sqlite:///"),
                vfs=failing.vfs,
                stream_cache_max=stream_cache_max,
                wal_bytes_max=wal_bytes_max,
                group_access=group_access,
            )

        monkeypatch.setattr("penstock.engine.engine.open_store", open_store)
        yield failing


def _store_up(engine: Engine) -> float | None:
    return engine.metrics.registry.get_sample_value("penstock_store_up")


async def _comes_back(engine: Engine) -> None:
    await until(lambda: engine.trouble is None)
    assert _store_up(engine) == 1


def _check_whole(directory: Path, answers: list[Appended], events: int) -> None:
    assert findings(directory) == []
    positions = [answer.position for answer in answers]
    assert len(set(positions)) == len(positions)
    assert max(positions) <= events


@pytest.mark.parametrize("fault", [FailingDisk.FULL, FailingDisk.WRITE, FailingDisk.SYNC])
def test_while_the_disk_fails_everyone_is_told_and_when_it_works_again_appends_succeed(
    disk: FailingDisk, tmp_path: Path, fault: str
) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            before = [await append(engine, f"s{n}") for n in range(3)]
            disk.fails_with = fault
            failed = await asyncio.gather(*(append_or_error(engine, f"s{n % 7}") for n in range(50)))
            await until(lambda: engine.trouble is not None)
            assert _store_up(engine) == 0
            reason = "no space left" if fault == FailingDisk.FULL else "the disk is broken"
            assert str(engine.trouble).startswith("the store cannot be written to at present: ")
            assert reason in str(engine.trouble)
            failed += await asyncio.gather(*(append_or_error(engine, f"s{n % 7}") for n in range(50)))
            expected = StorageFull if fault == FailingDisk.FULL else StorageFailure
            assert {type(error) for error in failed} == {expected}
            assert [event.position for event in await read_everything(engine)] == [1, 2, 3]
            disk.fails_with = None
            await _comes_back(engine)
            after = [await append(engine, f"s{n}") for n in range(3)]
            events = await read_everything(engine)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        _check_whole(tmp_path, before + after, len(events))
        # Nothing of what failed is there: the WAL was started anew before anybody could read it.
        assert len(events) == 6

    run(scenario())


@pytest.mark.parametrize("fault", [FailingDisk.FULL, FailingDisk.WRITE, FailingDisk.SYNC])
def test_a_short_failure_is_answered_and_gone(disk: FailingDisk, tmp_path: Path, fault: str) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            for n in range(10):
                await append(engine)
                disk.fails_with = fault
                assert isinstance(await append_or_error(engine), StorageFull | StorageFailure)
                disk.fails_with = None
                await _comes_back(engine)
                assert (await append(engine)).sequence == 2 * n + 2
        assert findings(tmp_path) == []

    run(scenario())


def test_a_failed_sync_shows_nobody_events_that_are_not_durable(disk: FailingDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            # No worker has opened the store yet: the writer's connection is the only one there is.
            disk.fails_with = FailingDisk.SYNC
            assert isinstance(await append_or_error(engine), StorageFailure)
            await until(lambda: engine.trouble is not None)
            assert await read_everything(engine) == []
            disk.fails_with = None
            await _comes_back(engine)
            await append(engine)
            events = await read_everything(engine)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert findings(tmp_path) == []

    run(scenario())


def test_a_store_that_was_killed_after_a_failed_sync_does_not_open_before_all_is_durable(tmp_path: Path) -> None:
    with FailingDisk() as disk:
        store = SqliteStore(tmp_path, vfs=disk.vfs)
        store.close()
        disk.fails_with = FailingDisk.SYNC
        with pytest.raises(StorageFailure):
            store = SqliteStore(tmp_path, vfs=disk.vfs)
        disk.fails_with = None
        SqliteStore(tmp_path, vfs=disk.vfs).close()


def test_a_failing_checkpoint_loses_nothing_and_is_made_up_for(disk: FailingDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        wal = tmp_path / "penstock.db-wal"
        async with engine_on(tmp_path, wal_bytes_max=64 * 4096) as engine:
            disk.files = (".db",)
            for fault in (FailingDisk.SYNC, FailingDisk.WRITE, FailingDisk.FULL):
                disk.failures = 0
                disk.fails_with = fault
                while disk.failures < 2:
                    await append(engine, body=os.urandom(5000))
                disk.fails_with = None
            size = wal.stat().st_size
            # A checkpoint that succeeds lets the WAL be used again from its beginning: it grows no more.
            for _ in range(3 * size // 5000):
                await append(engine, body=os.urandom(5000))
            assert wal.stat().st_size < 2 * size
            events = await read_everything(engine)
        assert [event.position for event in events] == list(range(1, len(events) + 1))
        assert findings(tmp_path) == []

    run(scenario())


def test_a_transaction_that_failed_can_be_sent_again_with_its_mark(disk: FailingDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        commits = tuple(Append("c", f"s{n}", [new_event("made", b"x" * 100)] * 1, ANY) for n in range(3))
        request = Transact(commits, mark=ProducerMark("p", 1))
        async with engine_on(tmp_path) as engine:
            for fault in (FailingDisk.SYNC, FailingDisk.FULL):
                disk.fails_with = fault
                with pytest.raises((StorageFailure, StorageFull)):
                    await ask(engine, request)
                disk.fails_with = None
                await _comes_back(engine)
            first = await ask(engine, request)
            again = await ask(engine, request)
            assert isinstance(first, Transacted)
            assert isinstance(again, Transacted)
            assert [c.position for c in first.commits] == [c.position for c in again.commits] == [1, 2, 3]
        assert findings(tmp_path) == []

    run(scenario())


def test_a_stop_while_the_disk_fails_ends_and_answers_everyone(disk: FailingDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = engine_on(tmp_path)
        await engine.start()
        await append(engine)
        disk.fails_with = FailingDisk.WRITE
        waiting = [asyncio.ensure_future(append_or_error(engine)) for _ in range(20)]
        await until(lambda: engine.trouble is not None)
        waiting += [asyncio.ensure_future(append_or_error(engine)) for _ in range(20)]
        await asyncio.sleep(0)
        await engine.stop()
        assert all(isinstance(answer, PenstockError) for answer in await asyncio.gather(*waiting))

    run(scenario())
    assert findings(tmp_path) == []


# --- real disks -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB of its own."""
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", point], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(
            f"mounting is not permitted here ({mounted.stderr.strip()}); a limit on file sizes is tested instead"
        )
    yield point
    subprocess.run(["umount", point], check=True)


async def _fill(engine: Engine) -> PenstockError:
    while True:
        answer = await append_or_error(engine, body=os.urandom(50_000))
        if isinstance(answer, PenstockError):
            return answer


def test_a_full_file_system_is_told_survived_and_left_again(small_disk: Path) -> None:
    async def scenario() -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        async with engine_on(small_disk / "store", wal_bytes_max=64 * 4096, disk_refuse_bytes=0) as engine:
            assert isinstance(await _fill(engine), StorageFull)
            await until(lambda: engine.trouble is not None)
            full = await read_everything(engine)
            assert full
            ballast.unlink()
            await _comes_back(engine)
            await append(engine)
            events = await read_everything(engine)
        assert events[: len(full)] == full
        assert [event.position for event in events] == list(range(1, len(full) + 2))
        assert findings(small_disk / "store") == []

    run(scenario())


_LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from penstock.errors import StorageFailure, StorageFull
from tests.faults.support import append, engine_on, read_everything, run, until
from tests.faults.test_disk import _fill

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def scenario():
    async with engine_on(Path(sys.argv[1]), wal_bytes_max=64 * 4096) as engine:
        limit(2 << 20)
        error = await _fill(engine)
        assert isinstance(error, StorageFailure | StorageFull), error
        await until(lambda: engine.trouble is not None)
        full = await read_everything(engine)
        limit(resource.RLIM_INFINITY)
        await until(lambda: engine.trouble is None)
        await append(engine)
        assert [event.position for event in await read_everything(engine)] == list(range(1, len(full) + 2))

run(scenario())
"""


def test_a_file_that_may_not_grow_is_told_survived_and_left_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert findings(tmp_path) == []


def test_a_disk_that_gets_full_in_the_middle_of_a_transaction_is_called_full(tmp_path: Path) -> None:
    known, large = columns_of([new_event("made")]), columns_of([new_event("made", os.urandom(5000)) for _ in range(99)])
    with FailingDisk() as disk:
        store = SqliteStore(tmp_path, vfs=disk.vfs)
        store.write([Transaction((Commit("c", "s", 1, known),))])
        # With so small a cache SQLite writes pages to the WAL long before the commit.
        store.db.connection.pragma("cache_size", 10)
        disk.fails_with = FailingDisk.FULL
        with pytest.raises(StorageFull):
            store.write([Transaction((Commit("c", "t", ANY, large), Commit("c", "s", 1, known)))])
        disk.fails_with = None
        store.recover()
        assert store.head() == 1
        store.close()
