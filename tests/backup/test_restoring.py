"""Where a store may be restored to, what becomes of what is there, and that a server goes on with it."""

import fcntl
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from penstock.errors import NotAStore, PlaceRefused, StoreError, StoreInUse, StoreTooNew, StoreUnfinished
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.directory import LOCK_NAME, take_lock
from penstock.store.sqlite.replacement import REPLACED, SqliteReplacement
from penstock.testing.harness import ThreadedEngine
from tests.backup.support import back_up_directory, backed_up, files_of, reading, restored, writing
from tests.engine.caller import Caller, bodies
from tests.engine.caller import events as made
from tests.engine.logs import REDUCE, Remits
from tests.store.kit import append, findings, some


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with three events, of which two are in a backup."""
    with writing(tmp_path / "data") as store:
        append(store, "s", some(2))
        backed_up(store, tmp_path / "place")
        append(store, "s", some(1))
    return tmp_path / "data"


def _head(directory: Path) -> int:
    with reading(directory) as store:
        assert findings(store) == []
        return store.head()


# ---------------------------------------------------------------- where to


def test_an_empty_directory_and_one_that_is_not_there_are_restored_into(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "not" / "there"):
        restored(tmp_path / "place", target)
        assert _head(target) == 2
        assert not (target / "restoring").exists()


def test_a_directory_with_other_things_in_it_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    with pytest.raises(PlaceRefused, match=r"letters\.txt"):
        restored(tmp_path / "place", tmp_path / "mine", replace=True)
    assert files_of(tmp_path / "mine") == {"letters.txt": b"dear"}


def test_a_file_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("dear")
    with pytest.raises(PlaceRefused, match="a file, not a directory"):
        restored(tmp_path / "place", tmp_path / "mine")


def test_a_folder_of_that_name_which_a_restore_did_not_make_is_not_removed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "restoring").mkdir(parents=True)
    (tmp_path / "mine" / "restoring" / "letters.txt").write_text("dear")
    with pytest.raises(PlaceRefused, match="not made by a restore"):
        restored(tmp_path / "place", tmp_path / "mine")
    assert (tmp_path / "mine" / "restoring" / "letters.txt").exists()


def test_a_store_is_replaced_only_if_that_is_asked_for(data: Path, tmp_path: Path) -> None:
    before = files_of(data)
    with pytest.raises(PlaceRefused, match="--replace"):
        restored(tmp_path / "place", data)
    assert files_of(data) == before
    restored(tmp_path / "place", data, replace=True)
    assert _head(data) == 2


def test_a_database_of_some_other_program_is_never_replaced(data: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with closing(apsw.Connection(str(tmp_path / "theirs" / "penstock.db"))) as connection:
        connection.execute("CREATE TABLE letters (text)")
    before = files_of(tmp_path / "theirs")
    with pytest.raises(NotAStore, match="other program"):
        restored(tmp_path / "place", tmp_path / "theirs", replace=True)
    assert files_of(tmp_path / "theirs") == before


def test_a_store_of_a_newer_version_is_not_replaced(data: Path, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(data / "penstock.db"))) as connection:
        connection.pragma("user_version", 99)
    with pytest.raises(StoreTooNew):
        restored(tmp_path / "place", data, replace=True)


# ---------------------------------------------------------------- what is open


def test_a_store_that_is_served_is_refused(data: Path, tmp_path: Path) -> None:
    with writing(data) as store:
        with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
            restored(tmp_path / "place", data, replace=True)
        append(store, "s", some(1))
        assert findings(store) == []
    assert _head(data) == 4


_READER = """
import sys
from penstock.store.sqlite import SqliteReader
store = SqliteReader(sys.argv[1])
print(store.head(), flush=True)
sys.stdin.readline()
print(store.head(), flush=True)
"""


def test_a_store_that_somebody_reads_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.sqlite.database.BUSY_MS_MAX", 50)
    command = [sys.executable, "-c", _READER, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "3\n"
        with pytest.raises(StoreInUse, match="reads it"):
            restored(tmp_path / "place", data, replace=True)
        out, _ = reader.communicate("go on\n", timeout=30)
        assert out == "3\n"
    restored(tmp_path / "place", data, replace=True)
    assert _head(data) == 2


def test_a_directory_that_a_restore_owns_cannot_be_served(data: Path) -> None:
    with SqliteReplacement(data, replace=True) as target:
        with pytest.raises(StoreInUse):
            SqliteStore(data)
        assert target.replaced is not None
        # Readers read the old store.
        assert _head(data) == 3
    assert _head(data) == 3


# ---------------------------------------------------------------- what is not finished


def test_nobody_begins_a_store_beside_an_unfinished_restore(data: Path, tmp_path: Path) -> None:
    (tmp_path / "copy" / "restoring").mkdir(parents=True)
    with pytest.raises(StoreUnfinished, match="not finished; run that again"):
        SqliteStore(tmp_path / "copy")
    with pytest.raises(StoreUnfinished):
        SqliteReader(tmp_path / "copy")
    restored(tmp_path / "place", tmp_path / "copy")
    assert _head(tmp_path / "copy") == 2


def test_a_damaged_store_is_replaced_and_that_its_ledger_is_lost_is_told(data: Path, tmp_path: Path) -> None:
    whole = (data / "penstock.db").read_bytes()
    (data / "penstock.db").write_bytes(whole[:100] + b"\xa5" * (len(whole) - 100))
    (data / "penstock.db-wal").write_bytes(b"\xa5" * 5000)
    report = restored(tmp_path / "place", data, replace=True)
    assert report.is_ledger_lost
    assert _head(data) == 2
    assert sorted(files_of(data)) == ["penstock.db", "penstock.db-shm", "penstock.db-wal", "penstock.lock"]


def test_a_damaged_store_that_was_moved_aside_is_put_back_by_the_next_restore(data: Path, tmp_path: Path) -> None:
    with writing(data):
        pass  # Its WAL is in the file then.
    with closing(apsw.Connection(str(data / "penstock.db"))) as connection:
        connection.pragma("journal_mode", "delete")
    (data / "restoring").mkdir()
    (data / "penstock.db").rename(data / "restoring" / REPLACED)
    with pytest.raises(StoreUnfinished):
        SqliteStore(data)
    with pytest.raises(PlaceRefused, match="--replace"):
        restored(tmp_path / "place", data)
    report = restored(tmp_path / "place", data, replace=True)
    assert (report.timeline, report.is_ledger_lost) == (2, False)
    assert _head(data) == 2


def test_a_failed_restore_leaves_the_old_store_as_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(data))

    monkeypatch.setattr("penstock.backup.restore.check_new_store", fail)
    with pytest.raises(StoreError, match="No space left"):
        restored(tmp_path / "place", data, replace=True)
    monkeypatch.undo()
    assert _head(data) == 3
    assert not (data / "restoring").exists()


# ---------------------------------------------------------------- and on it goes


async def test_a_server_goes_on_with_a_restored_store(tmp_path: Path) -> None:
    async with ThreadedEngine(store_url(tmp_path / "data"), Settings(lua_workers=1)) as engine:
        caller, remits = Caller(engine), Remits(engine)
        await caller.append("s", made("1", "2", "3", "4"))
        taken = await caller.subscribe("one", 2)
        reader = await caller.register()
        await remits.create("log", 1, 2, 3)
        await remits.iterator("twice", function="return msg * 2", indexed=True)
        await remits.iterator("sums", REDUCE, "return (acc or 0) + msg", "twice", indexed=True)
        assert await remits.everything("sums") == [2, 6, 12]
    back_up_directory(tmp_path / "data", tmp_path / "place.tar")
    restored(tmp_path / "place.tar", tmp_path / "copy")
    async with ThreadedEngine(store_url(tmp_path / "copy"), Settings(lua_workers=1)) as engine:
        caller, remits = Caller(engine), Remits(engine)
        assert await remits.everything("sums") == [2, 6, 12]
        assert await caller.fetched(reader) == ["1", "2", "3", "4"]
        assert (await caller.subscribe("one", 2)).allocation == taken.allocation
        assert bodies(await caller.acknowledge(taken, 9)) == ["3", "4"]
        assert (await caller.append("s", made("5"), expected=5)).sequence == 5
        await remits.add("log", 4)
        assert await remits.everything("sums") == [2, 6, 12, 20]
    with reading(tmp_path / "copy") as copy:
        assert findings(copy) == []
        assert copy.head() == 9


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
def test_a_restore_that_fails_leaves_nothing_where_there_was_nothing(tmp_path: Path, there: bool) -> None:
    target = tmp_path / "above" / "new"
    if there:
        target.mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    with SqliteReplacement(target, replace=False) as replacement, closing(replacement.filling()):
        assert set(tmp_path.rglob("*")) > before
    assert set(tmp_path.rglob("*")) == before
    with writing(target) as store:
        append(store, "s", some(1))


def test_a_lock_that_its_owner_removes_keeps_nobody_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is gone between the moments when the next one opens it and locks it."""
    locked, taken = fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal taken
        taken += 1
        locked(descriptor, how)
        if taken == 1:
            (tmp_path / LOCK_NAME).unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    owned = take_lock(tmp_path)
    assert taken == 2
    with pytest.raises(StoreInUse):
        take_lock(tmp_path)
    os.close(owned)
