"""SQLite stores of every schema, opened by today's code."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StorageFailure, StorageFull, StoreError, StoreTooNew
from penstock.model import LOG_CONTEXT
from penstock.store.contract import AddLog, Hid, HideStream
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.schema import INCREMENTAL, SCHEMA_VERSION
from tests.faults.support import FailingDisk
from tests.saved.kit import (
    FILE,
    SAVED,
    check_contents,
    check_goes_on,
    check_staged,
    contents,
    expected_of,
    schema_of,
    unpack_store,
)
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import append_singly, close_block, seal_all
from tests.store.kit import append, do_one, everything, findings, some, stream_of

OLDER = [name for name in SAVED if schema_of(name) < SCHEMA_VERSION]
STAGED = [name for name in SAVED if "staged" in expected_of(name)]


@pytest.fixture(params=SAVED)
def name(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def directory(name: str, tmp_path: Path) -> Path:
    """The store of a version, unpacked."""
    return unpack_store(name, tmp_path / "store")


@pytest.fixture
def expected(name: str) -> dict[str, Any]:
    """What was in it."""
    return expected_of(name)


def test_every_schema_has_a_store_here() -> None:
    assert {schema_of(name) for name in SAVED} == set(range(1, SCHEMA_VERSION + 1)), "run python -m tests.saved.make"


def test_a_saved_store_has_all_that_it_had(directory: Path, expected: dict[str, Any]) -> None:
    with closing(SqliteStore(directory)) as store:
        check_contents(store, expected)
        assert store.stats().schema == SCHEMA_VERSION
        assert store.db.pragma("auto_vacuum") == INCREMENTAL
        check_goes_on(store, expected)
    with closing(SqliteReader(directory)) as reader:
        assert contents(reader)["events"][:-1] == expected["events"]
        assert findings(reader) == []


def test_what_was_being_erased_is_erased(directory: Path, expected: dict[str, Any]) -> None:
    with closing(SqliteStore(directory)) as store:
        opened = [one for one in store.erasures(0, 9) if one.finished is None]
        assert len(opened) == expected["open_erasures"] < len(store.erasures(0, 9))
        (iterator,) = [one.iterator for one in opened if one.iterator is not None]
        assert store.db.value("output_to_erase", {"id": iterator, "ordinal": 0}) is not None
        erase_all(store)
        assert store.open_erasures() == 0
        assert store.db.value("output_to_erase", {"id": iterator, "ordinal": 0}) is None
        assert findings(store) == []
    assert [path.name for path in directory.iterdir() if b"secret of half erased" in path.read_bytes()] == []
    assert any(b"secret of kept" in path.read_bytes() for path in directory.iterdir())


def test_a_saved_store_can_be_sealed_and_erased(directory: Path, expected: dict[str, Any]) -> None:
    with closing(SqliteStore(directory)) as store:
        append_singly(store, ["order-1", "order-9"], 500, body=b"new")
        close_block(store)
        before = everything(store)
        assert seal_all(store) > 0
        assert everything(store) == before
        hid = do_one(store, HideStream("shop", "order-1"))
        assert isinstance(hid, Hid)
        assert [one.name for one in hid.rebuilt] == ["over orders", "below"]
        erase_all(store)
        left = [one for one in before if (one.context, one.stream) != ("shop", "order-1")]
        assert everything(store) == left
        assert len(left) > len(expected["events"])
        assert do_one(store, AddLog("erased")) is True
        append(store, "erased", some(1), context=LOG_CONTEXT)
        assert [one.sequence for one in stream_of(store, "erased", LOG_CONTEXT)] == [13]
        assert findings(store) == []


def test_that_a_file_is_written_anew_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = unpack_store("0001", tmp_path / "store")
    for _ in range(2):
        with closing(SqliteStore(directory)):
            pass
    # The copy that is unpacked here is open to others, as older versions left it.
    narrowed, line = caplog.messages
    assert narrowed.startswith(f"the store in {directory} is now for its owner alone: ")
    assert f"the store in {directory} is from an older version: rewriting its 0.2 MiB once" in line


@pytest.mark.parametrize("name", STAGED)
def test_what_was_staged_is_published_and_installed(directory: Path, expected: dict[str, Any]) -> None:
    with closing(SqliteStore(directory)) as store:
        check_staged(store, expected)
        assert findings(store) == []


@pytest.mark.parametrize("name", OLDER)
@pytest.mark.parametrize("kind", [FailingDisk.FULL, FailingDisk.WRITE, FailingDisk.SYNC])
def test_a_migration_that_fails_leaves_a_store_that_opens_again(
    name: str, tmp_path: Path, expected: dict[str, Any], kind: str
) -> None:
    """The disk fails at each sync of the migration in turn, and at every fifteenth write."""
    failed: list[StoreError] = []
    for number in range(10_000):
        directory = unpack_store(name, tmp_path / f"{number}")
        with FailingDisk() as disk:
            disk.fails_after(number * (1 if kind == FailingDisk.SYNC else 15), kind)
            try:
                SqliteStore(directory, vfs=disk.vfs).close()
            except StoreError as error:
                failed.append(error)
            passed = not disk.failures
        with closing(SqliteStore(directory)) as store:
            check_contents(store, expected)
            assert findings(store) == []
        shutil.rmtree(directory)
        if passed:
            break
    assert len(failed) >= 3
    if kind == FailingDisk.FULL:
        assert {type(error) for error in failed} == {StorageFull}


def test_a_newer_store_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        store.db.connection.pragma("user_version", SCHEMA_VERSION + 1)
    before = (tmp_path / FILE).read_bytes()
    for kind in (SqliteStore, SqliteReader):
        with pytest.raises(StoreTooNew) as caught:
            kind(tmp_path)
        assert str(caught.value) == (
            f"the store in {tmp_path} has schema version {SCHEMA_VERSION + 1}, and this Penstock knows versions up to "
            f"{SCHEMA_VERSION}; use a newer Penstock"
        )
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("name", OLDER)
def test_a_reader_does_not_read_an_older_store(directory: Path) -> None:
    before = (directory / FILE).read_bytes()
    with pytest.raises(StorageFailure, match="has an older schema; start a server on it once"):
        SqliteReader(directory)
    assert (directory / FILE).read_bytes() == before


def test_a_new_store_gives_space_back_in_steps(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        assert store.db.pragma("auto_vacuum") == INCREMENTAL
