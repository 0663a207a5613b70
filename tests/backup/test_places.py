"""Folders and files that backups go to: what is refused, what others can do with them, one at a time."""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from penstock.backup import open_place
from penstock.errors import PlaceRefused, StoreError
from tests.backup.support import back_up_directory, files_of, restored, writing
from tests.store.kit import append, some

PLACES = ["place", "place.tar"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
    return tmp_path / "data"


@pytest.mark.parametrize("place", PLACES)
def test_two_backups_at_once_are_refused_and_a_restore_keeps_backups_away(
    data: Path, tmp_path: Path, place: str
) -> None:
    at = tmp_path / place
    with open_place(at, write=True), pytest.raises(PlaceRefused, match="another backup or restore is using it"):
        back_up_directory(data, at)
    with open_place(at, write=True), pytest.raises(PlaceRefused, match="another backup is being written"):
        restored(at, tmp_path / "copy")
    back_up_directory(data, at)
    with open_place(at, write=False):
        restored(at, tmp_path / "copy")
        with pytest.raises(PlaceRefused, match="is using it"):
            back_up_directory(data, at)


def test_a_folder_with_other_things_in_it_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    for at in (tmp_path / "mine", data):
        before = files_of(at)
        with pytest.raises(PlaceRefused, match="other things than backups"):
            back_up_directory(data, at)
        assert files_of(at).keys() == before.keys()


def test_a_file_that_is_something_else_is_refused_and_left_as_it_is(data: Path, tmp_path: Path) -> None:
    for name in ("letter.txt", "letter.tar"):
        (tmp_path / name).write_text("dear")
        with pytest.raises(PlaceRefused, match=r"it is a file|not a file of backups"):
            back_up_directory(data, tmp_path / name)
        assert (tmp_path / name).read_text() == "dear"
    with tarfile.open(tmp_path / "theirs.tar", "w") as theirs:
        theirs.addfile(tarfile.TarInfo("letter"), io.BytesIO())
    before = (tmp_path / "theirs.tar").read_bytes()
    with pytest.raises(PlaceRefused, match="not a file of backups"):
        back_up_directory(data, tmp_path / "theirs.tar")
    assert (tmp_path / "theirs.tar").read_bytes() == before
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(PlaceRefused, match="it is a folder"):
        back_up_directory(data, tmp_path / "folder.tar")


def test_where_there_are_no_backups_nothing_can_be_restored(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.tar").touch()
    for name in ("nowhere", "nowhere.tar", "empty", "empty.tar"):
        with pytest.raises(PlaceRefused):
            restored(tmp_path / name, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    back_up_directory(data, tmp_path / "place")
    with pytest.raises(PlaceRefused, match="no backup 2"):
        restored(tmp_path / "place", tmp_path / "copy", number=2)


def test_a_place_that_cannot_be_written_is_told_in_a_sentence(data: Path) -> None:
    with pytest.raises(StoreError, match="/proc/nowhere"):
        back_up_directory(data, Path("/proc/nowhere/place"))


def test_other_programs_can_check_and_unpack_backups(data: Path, tmp_path: Path) -> None:
    for place in PLACES:
        back_up_directory(data, tmp_path / place)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "xf", str(tmp_path / "place.tar"), "-C", str(tmp_path / "unpacked")], check=True)
    for folder in (tmp_path / "place", tmp_path / "unpacked"):
        manifest = json.loads((folder / "backups" / "00000001.json").read_text())
        lines = "".join(f"{member['sha256']}  {member['path']}\n" for member in manifest["files"])
        checked = subprocess.run(["sha256sum", "-c"], input=lines, cwd=folder, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout.count(": OK\n")) == (0, 2)
    assert restored(tmp_path / "unpacked", tmp_path / "copy").events == 3
