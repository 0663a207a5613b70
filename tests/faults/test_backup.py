"""Backups under full load, and backups and restores that are killed."""

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

import penstock
from penstock.backup import check_all, open_place
from penstock.errors import StoreUnfinished
from penstock.model import Appended, Event
from tests.backup.support import back_up_directory, check_same, ones, reading, restored, seal_all, writing
from tests.faults.backup_child import CRASHED
from tests.seeds import rng
from tests.store.kit import append, everything, findings, some
from tests.test_server import PATIENCE_S, PENSTOCK, Served, environment, until

LONG = pytest.mark.long


# ---------------------------------------------------------------- under load


class Load:
    """Clients in threads that append as fast as they can, and others that consume; what was acknowledged is kept."""

    def __init__(self, url: str, writers: int = 4) -> None:
        self.acknowledged: list[tuple[Appended, str, bytes]] = []
        self.consumed = 0
        self.errors: list[BaseException] = []
        self._url = url
        self._over = threading.Event()
        jobs: list[Callable[[], None]] = [self._consume, self._follow, *[self._write] * writers]
        self._threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
        self._numbers = iter(range(1 << 30))

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails
            self.errors.append(error)

    def _write(self) -> None:
        chance = rng(f"load {next(self._numbers)}")
        with penstock.connect(self._url) as client:
            while not self._over.is_set():
                stream, body = f"s{chance.randrange(50)}", b"%d" % chance.randrange(1 << 60)
                events = [penstock.event("Happened", body) for _ in range(chance.choice([1, 1, 1, 5]))]
                self.acknowledged.append((client.append("load", stream, events), stream, body))

    def _consume(self) -> None:
        with penstock.connect(self._url) as client:
            queue = client.queue("load", "work", subscriber="one", count=20)
            while not self._over.is_set():
                with queue.next(wait=0.05) as batch:
                    self.consumed += len(batch)

    def _follow(self) -> None:
        with penstock.connect(self._url) as client:
            while not self._over.is_set():
                self.consumed += len(list(client.subscription("ann", context="load", count=50, follow=False)))

    def wait_for(self, commits: int) -> None:
        """Until so many are acknowledged, and consumers are at it as well."""
        until(lambda: bool(self.errors) or (len(self.acknowledged) > commits and self.consumed > 100))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert self.errors == []


def _command(*arguments: object) -> str:
    done = subprocess.run(
        [*PENSTOCK, *map(str, arguments)], capture_output=True, text=True, env=environment(), timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("place", "sizes"),
    [
        ("place", (200,)),
        pytest.param("place", (200, 600, 1000), marks=LONG),
        pytest.param("place.tar", (200, 600, 1000), marks=LONG),
    ],
)
@pytest.mark.long
def test_a_backup_under_full_load_has_all_that_was_acknowledged_before_it_began(
    tmp_path: Path, place: str, sizes: tuple[int, ...]
) -> None:
    data, at = tmp_path / "data", tmp_path / place
    with Served(data) as server:
        address = re.search(r" mq=(\S+)", server.ready)
        assert address
        with Load(f"penstock://{address[1]}") as load:
            known: list[list[tuple[Appended, str, bytes]]] = []
            for size in sizes:
                load.wait_for(size)
                known.append(list(load.acknowledged))
                _command("backup", at, "--data", data)
        server.stop()
    with reading(data) as store:
        whole = everything(store)
    for number, acknowledged in enumerate(known, start=1):
        target = tmp_path / f"copy-{number}"
        _command("restore", at, "--data", target, "--number", number)
        with reading(target) as copy:
            events = everything(copy)
            assert events == whole[: copy.head()]
            assert findings(copy) == []
            assert all(queue.position <= copy.head() + 1 for queue in copy.queues(0, 9))
            _check_acknowledged(events, acknowledged)


def _check_acknowledged(events: list[Event], acknowledged: list[tuple[Appended, str, bytes]]) -> None:
    for commit, stream, body in acknowledged:
        for number in range(commit.count):
            found = events[commit.position - 1 + number]
            assert (found.position, found.sequence) == (commit.position + number, commit.sequence + number)
            assert (found.stream, found.body, found.commit) == (stream, body, commit.commit)


# ---------------------------------------------------------------- killed


@contextmanager
def _child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun its work."""
    command = [sys.executable, "-m", "tests.faults.backup_child", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begins\n"
            yield child
        finally:
            child.kill()


def _killed(number: int, after_s: float, *arguments: object) -> bool:
    """Kill a process some time after it has begun; whether it had not ended by itself. The first one surely has not."""
    with _child(*(() if number else ("wait",)), *arguments) as child:
        if number:
            time.sleep(after_s)
        else:
            assert child.stdout is not None
            assert child.stdout.readline() == "waits\n"
        child.kill()
        return child.wait(PATIENCE_S) != 0


def _seconds(*arguments: object) -> float:
    """How long the work takes that is to be killed in the middle."""
    with _child(*arguments) as child:
        start = time.monotonic()
        assert child.wait(PATIENCE_S) == 0
        return time.monotonic() - start


@pytest.mark.parametrize(
    ("place", "kills_max"),
    [("place", 3), ("place.tar", 3), *(pytest.param(place, 6, marks=LONG) for place in ("place", "place.tar"))],
)
def test_a_killed_backup_does_no_harm_and_the_next_one_is_good(tmp_path: Path, place: str, kills_max: int) -> None:
    data, at, chance = tmp_path / "data", tmp_path / place, rng(f"killed backups in {place}")
    with writing(data) as store:
        ones(store, 8000)
    usual = _seconds("backup", data, tmp_path / f"trial-{place}")
    kills = 0
    for number in range(kills_max):
        kills += _killed(number, chance.uniform(0, usual), "backup", data, at)
        if number % 3 == 2:
            back_up_directory(data, at)
            with open_place(at, write=False) as opened:
                made = check_all(opened, lambda done, total: None)
            assert made[-1].head == 8000 + 2000 * (number // 3)
            with writing(data) as store:
                ones(store, 2000)
                seal_all(store)
    assert kills > 0
    back_up_directory(data, at)
    restored(at, tmp_path / "copy")
    with reading(tmp_path / "copy") as copy, reading(data) as store:
        check_same(store, copy)


@pytest.mark.parametrize(
    ("old", "kills_max"),
    [("no store", 2), ("a store", 2), *(pytest.param(old, 6, marks=LONG) for old in ("no store", "a store"))],
)
def test_a_killed_restore_leaves_the_old_store_or_says_that_it_is_not_finished(
    tmp_path: Path, old: str, kills_max: int
) -> None:
    data, at, target = tmp_path / "data", tmp_path / "place", tmp_path / "target"
    chance = rng(f"killed restores over {old}")
    with writing(data) as store:
        ones(store, 3000)
    back_up_directory(data, at)
    with writing(data) as store:
        append(store, "s", some(3))
    usual = _seconds("restore", at, tmp_path / "trial")
    kills = 0
    for number in range(kills_max):
        shutil.rmtree(target, ignore_errors=True)
        if old == "a store":
            shutil.copytree(data, target)
        kills += _killed(number, chance.uniform(0, usual), "restore", at, target)
        _check_left(target, {3000, 3003} if old == "a store" else {3000})
        restored(at, target, replace=True)
        assert _head(target) == 3000
    assert kills > 0


@pytest.mark.parametrize(
    "old", ["a store", pytest.param("no store", marks=LONG), pytest.param("a damaged store", marks=LONG)]
)
def test_a_crash_at_any_step_of_the_swap_leaves_one_store_or_says_so(tmp_path: Path, old: str) -> None:
    data, at, target = tmp_path / "data", tmp_path / "place", tmp_path / "target"
    with writing(data) as store:
        ones(store, 30)
    back_up_directory(data, at)
    with writing(data) as store:
        append(store, "s", some(3))
    crashes = 0
    for step in range(1, 20):
        shutil.rmtree(target, ignore_errors=True)
        if old != "no store":
            shutil.copytree(data, target)
        if old == "a damaged store":
            whole = (target / "penstock.db").read_bytes()
            (target / "penstock.db").write_bytes(whole[:100] + bytes(len(whole) - 100))
        with _child("crash", step, at, target) as child:
            code = child.wait(PATIENCE_S)
        if code == 0:
            break
        assert code == CRASHED
        crashes += 1
        if old != "a damaged store":
            _check_left(target, {30, 33} if old == "a store" else {30})
        restored(at, target, replace=True)
        assert _head(target) == 30
    assert crashes >= 3


def _head(directory: Path) -> int:
    with reading(directory) as store:
        assert findings(store) == []
        return store.head()


def _check_left(target: Path, heads: set[int]) -> None:
    """What is there after a crash: the old store, or the new one; or else a directory that says what to do."""
    if (target / "penstock.db").exists():
        assert _head(target) in heads
        return
    assert len(heads) == 1, "the old store is gone"
    if (target / "restoring").exists():
        with pytest.raises(StoreUnfinished, match="run that again"), writing(target):
            pass
