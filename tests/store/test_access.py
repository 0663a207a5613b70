"""Who may use a store's files: their owner, and a group if that is wanted. Others neither read nor lock them."""

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.store import open_store, store_url
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.directory import exposed
from penstock.store.sqlite.replacement import SqliteImport
from tests.store import kit

FILES = {"penstock.db", "penstock.db-wal", "penstock.db-shm", "penstock.lock"}
PRIVATE = dict.fromkeys(FILES, 0o600)
SHARED = dict.fromkeys(FILES, 0o660)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock.store")
    return caplog


def append(store: SqliteStore) -> None:
    kit.append(store, "order-1", kit.some(1))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def modes(directory: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in directory.iterdir()}


def opened(directory: Path, group_access: bool | None = None) -> "closing[SqliteStore]":
    return closing(SqliteStore(directory, group_access=group_access))


def widened(directory: Path) -> None:
    """As an older version has left it."""
    for path in directory.iterdir():
        path.chmod(0o644)
    directory.chmod(0o755)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_store_is_its_owners_alone_whatever_the_umask(
    umask: int, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    os.umask(umask)
    with opened(tmp_path / "a" / "b") as store:
        append(store)
        assert modes(tmp_path / "a" / "b") == PRIVATE
        assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)
    assert said.messages == []


def test_the_file_is_private_before_anything_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    connect = SqliteStore._open

    def looked(store: SqliteStore) -> object:
        seen.append(modes(tmp_path))
        return connect(store)

    monkeypatch.setattr(SqliteStore, "_open", looked)
    with opened(tmp_path):
        pass
    assert seen == [{"penstock.lock": 0o600}]


def test_a_store_that_was_open_to_others_is_narrowed_once(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    with opened(data) as store:
        append(store)
    widened(data)
    assert {place.name for place in exposed(data, shared=False)} == FILES
    with opened(data):
        assert (mode(data), modes(data)) == (0o700, PRIVATE)
    (message,) = said.messages
    assert message == (
        f"the store in {data} is now for its owner alone: changed {data} from 0755 to 0700, "
        "penstock.db from 0644 to 0600, penstock.db-wal from 0644 to 0600, penstock.db-shm from 0644 to 0600, "
        "penstock.lock from 0644 to 0600"
    )
    with opened(data):
        assert said.messages == [message]
    assert exposed(data, shared=False) == []


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "data"):
        pass
    widened(tmp_path / "data")
    with closing(SqliteReader(tmp_path / "data")) as reader:
        assert reader.head() == 0
    assert mode(tmp_path / "data" / "penstock.db") == 0o644


def test_an_import_leaves_a_private_store(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with closing(SqliteImport(tmp_path / "data")):
        assert mode(tmp_path / "data") == 0o700
        assert set(modes(tmp_path / "data").values()) == {0o600}


def test_a_directory_with_other_things_in_it_is_not_ours_to_close(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "notes.txt").touch()
    with opened(data):
        assert modes(data) == {**PRIVATE, "notes.txt": 0o644}
        assert mode(data) == 0o755
    assert said.messages == []
    assert exposed(data, shared=False) == []
    data.chmod(0o777)
    assert [place.name for place in exposed(data, shared=False)] == [str(data)]


def test_a_store_in_a_closed_directory_is_not_exposed(tmp_path: Path) -> None:
    with opened(tmp_path / "data"):
        pass
    (tmp_path / "data" / "penstock.db").chmod(0o644)
    assert exposed(tmp_path / "data", shared=False) == []
    (tmp_path / "data").chmod(0o710)
    assert [place.name for place in exposed(tmp_path / "data", shared=False)] == ["penstock.db"]
    assert exposed(tmp_path / "data", shared=True) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever can put a link into the directory could have any file of ours changed."""
    (tmp_path / "elsewhere").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "staging").symlink_to(tmp_path / "elsewhere")
    with opened(tmp_path / "data"):
        assert mode(tmp_path / "elsewhere") == 0o644


# ---------------------------------------------------------------- what cannot be narrowed


def test_the_log_names_what_belongs_to_somebody_else(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "data"):
        pass
    widened(tmp_path / "data")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with opened(tmp_path / "data"):
        assert mode(tmp_path / "data") == 0o755
    (message,) = said.messages
    assert message.startswith(f"other users can use the store in {tmp_path / 'data'}: penstock.db is 0644, ")
    assert message.endswith(f"; it belongs to user {owner}: run the server as that user, or chmod -R go= it")


def test_the_log_tells_of_a_file_system_without_permissions(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "data"):
        pass
    widened(tmp_path / "data")
    monkeypatch.setattr(Path, "chmod", lambda _path, _mode: None)
    with opened(tmp_path / "data"):
        pass
    (message,) = said.messages
    assert message.endswith(
        "; its file system keeps no permissions: mount it so that only the server's user can read it"
    )


# ---------------------------------------------------------------- a group


def test_a_group_may_be_let_in_and_out_again(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    with opened(data, group_access=True) as store:
        append(store)
        assert (mode(data), modes(data)) == (0o2770, SHARED)
    assert exposed(data, shared=True) == []
    said.clear()
    # Whoever has no setting leaves it so.
    with closing(open_store(store_url(data), stream_cache_max=10, wal_bytes_max=1 << 20)):
        assert (mode(data), modes(data)) == (0o2770, SHARED)
    assert said.messages == []
    with opened(data, group_access=False):
        assert (mode(data) & 0o777, modes(data)) == (0o700, PRIVATE)
    (message,) = said.messages
    assert message.startswith(f"the store in {data} is now for its owner alone: changed {data} from 0770 to 0700, ")


def test_a_group_gets_what_an_older_version_gave_to_everybody(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    with opened(data):
        pass
    widened(data)
    with opened(data, group_access=True):
        assert (mode(data), modes(data)) == (0o2770, SHARED)
    (message,) = said.messages
    assert message.startswith(
        f"the store in {data} is now for its owner and its group: changed {data} from 0755 to 0770, "
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to any group")
def test_files_get_the_group_of_the_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, -1, 65534)
    with opened(data, group_access=True) as store:
        append(store)
        assert {path.stat().st_gid for path in data.iterdir()} == {65534}
