"""Links, pipes and devices in place of a file: refused in a line, and nothing behind them changes."""

import os
from pathlib import Path

import pytest

from penstock.store import store_url
from tests.backup.support import writing
from tests.hostile.support import ended
from tests.lake.support import archive
from tests.store.kit import append, some

OURS = b"precious"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a few events."""
    path = tmp_path / "store"
    with writing(path) as opened:
        append(opened, "order-1", some(3))
    return path


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that must stay as it is."""
    path = tmp_path / "precious"
    path.write_bytes(OURS)
    return path


def test_the_lock_of_a_store_that_is_a_link_is_refused(store: Path, precious: Path) -> None:
    (store / "penstock.lock").unlink(missing_ok=True)
    (store / "penstock.lock").symlink_to(precious)
    done = ended("append", "shop", "order-1", "Placed", "{}", "--data", store)
    assert done.code == 1
    assert "penstock.lock: it is a link" in done.err.lower()
    assert precious.read_bytes() == OURS


@pytest.mark.parametrize("command", ["verify", "append"])
def test_the_lock_of_a_store_that_is_a_pipe_holds_nobody_up(store: Path, command: str) -> None:
    (store / "penstock.lock").unlink(missing_ok=True)
    os.mkfifo(store / "penstock.lock")
    arguments = ("shop", "order-1", "Placed", "{}") if command == "append" else ()
    done = ended(command, *arguments, "--data", store)
    assert done.code == 1
    assert "penstock.lock: it is not a file" in done.err.lower()


def test_the_unfinished_file_of_an_export_that_is_a_link_is_refused(store: Path, precious: Path) -> None:
    target = precious.with_name("events.jsonl")
    Path(f"{target}.partial").symlink_to(precious)
    done = ended("export", target, "--data", store)
    assert done.code == 1
    assert "events.jsonl.partial: it is a link" in done.err
    assert precious.read_bytes() == OURS
    assert not target.exists()


@pytest.mark.parametrize("name", ["penstock-backup.txt", "1.json"])
def test_a_pipe_in_a_backup_holds_nobody_up(store: Path, tmp_path: Path, name: str) -> None:
    backups = tmp_path / "backups"
    assert ended("backup", backups, "--data", store).code == 0
    found = next(path for path in backups.rglob("*") if path.is_file() and (path.name == name or name == "1.json"))
    found.unlink()
    os.mkfifo(found)
    done = ended("backups", backups)
    assert done.code == 1
    assert "It is not a file" in done.err


@pytest.fixture
def lake(store: Path, tmp_path: Path) -> Path:
    """A lake with the events of the store."""
    archive(store_url(store), tmp_path / "lake")
    return tmp_path / "lake"


@pytest.mark.parametrize("what", ["manifest.json", ".parquet"])
def test_a_pipe_in_a_lake_holds_nobody_up(lake: Path, what: str) -> None:
    found = next(path for path in sorted(lake.rglob("*")) if path.name.endswith(what))
    found.unlink()
    os.mkfifo(found)
    done = ended("lake", "query", "select count(*) from events", "--lake", lake)
    assert done.code == 1
    assert "not a file" in done.err


def test_a_column_name_of_a_lakes_file_that_is_not_utf_8_is_told(lake: Path) -> None:
    (file,) = lake.rglob("*.parquet")
    data = file.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    at = data.index(b"headers", footer)
    file.write_bytes(data[:at] + b"\xe9" + data[at + 1 :])
    done = ended("lake", "query", "select 1", "--lake", lake)
    assert done.code == 1
    assert "is damaged" in done.err


def test_settings_without_an_end_are_refused() -> None:
    done = ended("settings", "--config", "/dev/zero")
    assert done.code == 2
    assert "is longer than 1048576 bytes" in done.err
