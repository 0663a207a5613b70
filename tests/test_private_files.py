"""What commands leave behind is for its owner alone, also while they work and when they are interrupted.

A finished export, or an answer in a file, is somebody's own output: it gets the permissions that the umask says.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import files
from penstock.files import release
from penstock.interchange.exporter import Selection, export_events
from penstock.interchange.formats import Format
from penstock.interchange.replay import NoteFile
from penstock.lake import compaction
from penstock.lake.archiver import Archiver
from penstock.lake.local import LocalPlace
from penstock.model import StagedUnit
from penstock.spark.stages import FileStages
from penstock.store import store_url
from penstock.testing import server
from tests.cli.support import called
from tests.lake.support import fill, numbers, quiet
from tests.test_server import environment

NOBODY = 65534
EVENT = penstock.event("Placed", {"name": "Ann Lee"})


@pytest.fixture(autouse=True)
def usual_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", numbers(20))
    return tmp_path / "data"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_to_others(place: Path) -> dict[str, str]:
    """What others than its owner may do anything with, of a place and all that is in it."""
    found = [place, *place.rglob("*")]
    return {str(path.relative_to(place.parent)): oct(mode(path)) for path in found if mode(path) & 0o077}


def run(*arguments: object) -> None:
    done = called(*arguments)
    assert done.code == 0, done.err


class Interrupted(Exception):
    """Somebody has had enough."""


def interrupted(_done: int, _total: int, _events: int) -> None:
    raise Interrupted


# ---------------------------------------------------------------- what is left behind


def test_a_served_store_is_private(tmp_path: Path) -> None:
    with server(tmp_path / "data") as own, penstock.connect(own.url) as client:
        client.append("shop", "order-1", [EVENT])
        assert {path.name for path in (tmp_path / "data").iterdir()} > {"penstock.db-wal", "penstock.db-shm"}
        assert open_to_others(tmp_path / "data") == {}
    assert open_to_others(tmp_path / "data") == {}


def test_a_store_that_a_program_opens_is_private(tmp_path: Path) -> None:
    with penstock.connect(store_url(tmp_path / "data")) as client:
        client.append("shop", "order-1", [EVENT])
        assert open_to_others(tmp_path / "data") == {}


def test_backups_and_what_is_restored_are_private(data: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    for place in ("made", "given", "file.tar"):
        run("backup", tmp_path / place, "--data", data)
        run("backup", tmp_path / place, "--data", data)
        assert open_to_others(tmp_path / place) == {}
        run("restore", tmp_path / place, "--data", tmp_path / f"of-{place}")
        assert open_to_others(tmp_path / f"of-{place}") == {}
    run("restore", tmp_path / "made", "--data", data, "--replace")
    run("migrate-store", data, tmp_path / "moved")
    assert open_to_others(data) == open_to_others(tmp_path / "moved") == {}


def test_a_place_of_older_backups_is_closed_by_the_next_one(data: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "folder", tmp_path / "file.tar"):
        run("backup", place, "--data", data)
        place.chmod(0o755)
        run("backup", place, "--data", data)
        assert open_to_others(place) == {}


def test_a_file_that_is_no_place_of_backups_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    (tmp_path / "other.tar").write_bytes(b"something else")
    assert called("backup", tmp_path / "other.tar", "--data", data).code == 1
    assert mode(tmp_path / "other.tar") == 0o644


@pytest.mark.parametrize("kind", [Format.JSONL, Format.PARQUET])
def test_an_export_is_private_until_it_is_finished(kind: Format, data: Path, tmp_path: Path) -> None:
    place = tmp_path / "exports"
    place.mkdir(0o700)
    path = place / "events"
    with pytest.raises(Interrupted):
        export_events(store_url(data), str(path), kind, Selection(), interrupted)
    assert {each.name for each in place.iterdir()} == {"events.partial", "events.partial.json"}
    assert open_to_others(place) == {}
    export_events(store_url(data), str(path), kind, Selection(), lambda *_: None)
    assert {each.name: mode(each) for each in place.iterdir()} == {"events": 0o644}
    path.chmod(0o640)
    export_events(store_url(data), str(path), kind, Selection(), lambda *_: None)
    assert mode(path) == 0o640


def test_what_an_older_export_has_left_is_narrowed(data: Path, tmp_path: Path) -> None:
    path, partial = tmp_path / "events.jsonl", tmp_path / "events.jsonl.partial"
    partial.touch(0o644)
    with pytest.raises(Interrupted):
        export_events(store_url(data), str(path), Format.JSONL, Selection(), interrupted)
    assert mode(partial) == 0o600


def test_an_answer_in_a_file_is_private_until_it_is_whole(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def released(file: int, path: Path) -> None:
        seen.append(os.fstat(file).st_mode & 0o777)
        release(file, path)

    monkeypatch.setattr(files, "release", released)
    run("sql", "SELECT count(*) FROM events", "--url", store_url(data), "--file", tmp_path / "answer.csv")
    assert seen == [0o600]
    assert mode(tmp_path / "answer.csv") == 0o644


def test_the_note_of_a_replay_is_private(tmp_path: Path) -> None:
    with NoteFile(tmp_path / "state" / "replay.json"):
        assert open_to_others(tmp_path / "state") == {}


def test_what_spark_stages_beside_a_store_is_private(tmp_path: Path) -> None:
    stages = FileStages(store_url(tmp_path / "data"), "job")
    stages.stage(0, "attempt", 0, [StagedUnit("shop", "order-1", 0, b"", b"")])
    assert len(list((tmp_path / "data").rglob("*"))) == 3
    assert open_to_others(tmp_path / "data") == {}


# ---------------------------------------------------------------- lakes


def archive_and_compact(url: str, lake: Path, data: Path) -> None:
    archiver = Archiver(None, url, str(lake))
    archiver.catch_up(quiet)
    fill(data, numbers(20))
    archiver = Archiver(None, url, str(lake))
    archiver.catch_up(quiet)
    assert compaction.compact(None, str(lake), quiet).made == 1


def test_a_lake_is_private_also_while_it_is_compacted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    swap, publish = LocalPlace.swap, LocalPlace.publish
    beside = tmp_path / ".lake.penstock-aside"

    def swapped(place: LocalPlace, *given: object) -> None:
        swap(place, *given)  # type: ignore[arg-type]
        assert beside.exists()
        seen.append(open_to_others(place.path) | open_to_others(beside))

    def published(place: LocalPlace, *given: object) -> None:
        seen.append(open_to_others(place.path))
        publish(place, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalPlace, "swap", swapped)
    monkeypatch.setattr(LocalPlace, "publish", published)
    archive_and_compact(store_url(data), tmp_path / "lake", data)
    assert seen == [{}] * len(seen)
    assert len(seen) == 3
    assert open_to_others(tmp_path / "lake") == {}


def test_the_folder_of_a_lake_says_who_may_read_it(data: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir(0o755)
    archive_and_compact(store_url(data), lake, data)
    others = {path: mode(path) for path in lake.rglob("*")}
    assert others.pop(lake / "_penstock" / "lock") == 0o600
    assert {mode for path, mode in others.items() if path.is_dir()} == {0o755}
    assert {mode for path, mode in others.items() if path.is_file()} == {0o644}
    place = LocalPlace(str(lake))
    place.stage(b"")
    assert mode(lake / "_penstock" / "aside") == 0o700


# ---------------------------------------------------------------- a group


def shared_modes(place: Path) -> set[int]:
    """The permissions of a place and all that is in it."""
    return {path.stat().st_mode & 0o7777 for path in (place, *place.rglob("*"))}


def test_a_program_leaves_a_store_to_the_group_that_its_server_let_in(tmp_path: Path) -> None:
    with server(tmp_path / "data", group_access=True):
        pass
    with penstock.connect(store_url(tmp_path / "data")) as client:
        client.append("shop", "order-1", [EVENT])
    assert shared_modes(tmp_path / "data") == {0o2770, 0o660}


def test_backups_and_restores_in_a_folder_of_a_group_are_for_the_group(data: Path, tmp_path: Path) -> None:
    for name in ("backups", "restored"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o2770)
    run("backup", tmp_path / "backups", "--data", data)
    run("restore", tmp_path / "backups", "--data", tmp_path / "restored")
    assert shared_modes(tmp_path / "backups") == shared_modes(tmp_path / "restored") == {0o2770, 0o660}


def test_a_lake_in_a_folder_of_a_group_is_for_the_group(data: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    lake.chmod(0o2770)
    archiver = Archiver(None, store_url(data), str(lake), iceberg=False)
    archiver.catch_up(quiet)
    LocalPlace(str(lake)).stage(b"")
    assert shared_modes(lake) == {0o2770, 0o660}


# ---------------------------------------------------------------- another user


def can_open(path: Path, how: str) -> bool:
    """Whether nobody, who is a user, can open a file; whoever cannot open it cannot lock it."""
    command = ["/bin/sh", "-c", f': {how} "$1"', "sh", str(path)]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], stderr=subprocess.DEVNULL)
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_read_nor_lock_a_store_once_it_is_served() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        data = Path(folder) / "data"
        fill(data, numbers(1))
        files = [data / name for name in ("penstock.db", "penstock.db-wal", "penstock.db-shm", "penstock.lock")]
        # As an older version has left it.
        data.chmod(0o755)
        for file in files:
            file.chmod(0o644)
        assert all(can_open(file, "<") for file in files)
        with server(data):
            assert not any(can_open(file, how) for file in files for how in ("<", ">>", "<>"))
            data.chmod(0o755)
            assert not any(can_open(file, how) for file in files for how in ("<", ">>", "<>"))
