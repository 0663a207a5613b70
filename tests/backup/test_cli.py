"""The commands: what they print, and how they end."""

import json
import re
import shutil
from pathlib import Path

import pytest

from penstock import connect
from penstock.backup import open_place
from penstock.testing import server
from tests.backup.support import reading
from tests.cli.support import called as penstock
from tests.store.kit import everything
from tests.test_server import fill

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_DATA", "PENSTOCK_STORE", "PENSTOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store of six events."""
    fill(tmp_path / "data")
    return tmp_path / "data"


def test_a_backup_and_a_restore_by_command(data: Path, tmp_path: Path) -> None:
    code, out, err = penstock("backup", tmp_path / "place", "--data", data)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"backup 1: 6 new of 6 events, \S+ \w+ written\n", out)
    code, out, err = penstock("restore", tmp_path / "place", "--data", tmp_path / "copy")
    assert (code, err) == (0, "")
    assert out == "restored backup 1: 6 events, now on timeline 2, 0 erasures replayed\n"
    assert penstock("verify", "--data", tmp_path / "copy") == (0, "6 events, nothing wrong\n", "")
    with reading(data) as store, reading(tmp_path / "copy") as copy:
        assert everything(copy) == everything(store)


def test_the_drill_on_a_store_that_is_lost(data: Path, tmp_path: Path) -> None:
    with server(data):
        assert penstock("backup", tmp_path / "place.tar", "--data", data)[0] == 0
        code, _, err = penstock("restore", tmp_path / "place.tar", "--data", data, "--replace")
        assert (code, err.count("\n")) == (1, 1)
        assert "is in use by process" in err
    shutil.rmtree(data)
    assert penstock("restore", tmp_path / "place.tar", "--data", data)[0] == 0
    with server(data) as own, connect(own.url) as client:
        assert len(list(client.read_all())) == 6


def test_reports_for_programs(data: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        code, out, _ = penstock("backup", tmp_path / "place", "--store", f"sqlite:///{data}", "--json")
        report = json.loads(out)
        assert code == 0
        assert (report["number"], report["head"], report["new_events"]) == (number, 6, 6 if number == 1 else 0)
        assert report["bytes"] > 0
        assert report["new_bytes"] > 0
    code, out, _ = penstock("backups", tmp_path / "place", "--verify", "--json")
    assert [(each["number"], each["head"], each["timeline"]) for each in json.loads(out)] == [(1, 6, 1), (2, 6, 1)]
    code, out, _ = penstock("restore", tmp_path / "place", "--data", tmp_path / "copy", "--number", 1, "--json")
    report = json.loads(out)
    assert (code, report["number"], report["events"], report["timeline"]) == (0, 1, 6, 2)


def test_backups_are_listed(data: Path, tmp_path: Path) -> None:
    penstock("backup", tmp_path / "place.tar", "--data", data)
    code, out, err = penstock("backups", tmp_path / "place.tar")
    assert (code, err) == (0, "")
    assert re.search(r"1 +\d{4}-\d\d-\d\dT\S+ +1 +6 +\S+", out)


def test_a_damaged_backup_is_told_in_a_line(data: Path, tmp_path: Path) -> None:
    penstock("backup", tmp_path / "place", "--data", data)
    (history,) = (tmp_path / "place" / "history").iterdir()
    history.write_bytes(history.read_bytes()[:-1] + b"\0")
    for arguments in (
        ("backups", tmp_path / "place", "--verify"),
        ("restore", tmp_path / "place", "--data", tmp_path / "c"),
    ):
        code, out, err = penstock(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "is damaged: history/" in err
    assert not (tmp_path / "c").exists()


def test_what_cannot_be_is_told_in_a_line(data: Path, tmp_path: Path) -> None:
    penstock("backup", tmp_path / "place", "--data", data)
    with open_place(tmp_path / "busy", write=True):
        cases = {
            ("backup", tmp_path / "busy", "--data", data): "another backup",
            ("backup", tmp_path / "new", "--data", tmp_path / "nowhere"): "nowhere",
            ("backup", data, "--data", data): "other things than backups",
            ("backups", tmp_path / "nowhere"): "there is nothing",
            ("restore", tmp_path / "nowhere", "--data", tmp_path / "copy"): "there is nothing",
            ("restore", tmp_path / "place", "--data", data): "--replace",
            ("restore", tmp_path / "place", "--data", tmp_path / "copy", "--number", 7): "no backup 7",
        }
        for arguments, reason in cases.items():
            code, out, err = penstock(*arguments)
            assert (code, out, err.count("\n")) == (1, "", 1), arguments
            assert reason in err
    for arguments in (("restore", tmp_path / "place"), ("backup", tmp_path / "new"), ("backup",)):
        assert penstock(*arguments)[0] == 2
    assert not (tmp_path / "new").exists()
