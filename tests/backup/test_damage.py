"""A backup that is not what was written is found out before anything is touched."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.backup import check_all, open_place
from penstock.errors import BackupDamaged, DamagedRecord, PlaceRefused
from penstock.store.contract import AddLog
from tests.backup.support import back_up_directory, backed_up, files_of, reading, restored, writing
from tests.store.kit import append, do_one, everything, some

PLACES = ["place", "place.tar"]
STRIDE = 5
"""Of the bytes of a place, every so many are changed, one at a time."""


@pytest.fixture(params=PLACES)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A place with two small backups."""
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3, headers="{}"))
        do_one(store, AddLog("log"))
        backed_up(store, tmp_path / request.param)
        append(store, "t", some(2))
        backed_up(store, tmp_path / request.param)
    return tmp_path / str(request.param)


def _flips(place: Path) -> Iterator[tuple[str, int]]:
    """Change one byte after the other, and restore it after each look."""
    for path in [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file()):
        whole = path.read_bytes()
        for at in range(len(whole) % STRIDE, len(whole), STRIDE):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            yield path.name, at
        path.write_bytes(whole)


def test_a_changed_byte_is_found_wherever_it_is(place: Path) -> None:
    changes = 0
    for name, at in _flips(place):
        assert _is_damaged(place), f"the change at {at} of {name} was not found"
        changes += 1
    assert changes > 500
    _look(place)


def _is_damaged(place: Path) -> bool:
    try:
        _look(place)
    except (BackupDamaged, PlaceRefused):
        return True
    return False


def _look(place: Path) -> None:
    with open_place(place, write=False) as opened:
        check_all(opened, lambda done, total: None)


def _flip(place: Path, part: str) -> None:
    """Change a byte in the middle of the last file of a kind."""
    path = place if place.is_file() else max((place / part).iterdir())
    data = bytearray(path.read_bytes())
    start = bytes(data).rindex(f"{part}/0".encode()) + 512 if place.is_file() else 0
    data[start + 100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["history", "states", "backups"])
def test_nothing_is_touched_if_a_backup_is_damaged(place: Path, tmp_path: Path, part: str) -> None:
    if place.is_file() and part != "backups":
        part = "states"  # Its path stands in the manifest too, behind the file itself.
    _flip(place, part)
    before = files_of(tmp_path / "data")
    with pytest.raises((BackupDamaged, PlaceRefused)):
        restored(place, tmp_path / "data", replace=True)
    with pytest.raises((BackupDamaged, PlaceRefused)):
        restored(place, tmp_path / "new")
    assert files_of(tmp_path / "data") == before
    assert not (tmp_path / "new").exists()


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        for _ in range(2):
            append(store, "s", some(3))
            backed_up(store, tmp_path / "place")
    for path in sorted((tmp_path / "place").rglob("*.*")):
        if path.name == "00000002.json":
            continue  # Then there never was a second backup.
        data = path.read_bytes()
        path.unlink()
        with pytest.raises((BackupDamaged, PlaceRefused)):
            _look(tmp_path / "place")
        path.write_bytes(data)
    (tmp_path / "place" / "history" / f"{1:020}-{3:020}.records").unlink()
    with pytest.raises(BackupDamaged, match="begin again in another place"):
        back_up_directory(tmp_path / "data", tmp_path / "place")


def test_backups_of_a_newer_format_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        backed_up(store, tmp_path / "place")
    manifest = tmp_path / "place" / "backups" / "00000001.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(PlaceRefused, match="format 2, and this Penstock knows 1; use a newer Penstock"):
        restored(tmp_path / "place", tmp_path / "copy")


# ---------------------------------------------------------------- one file that was cut off


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    """Two backups in one file."""
    with writing(tmp_path / "data") as store:
        for _ in range(2):
            append(store, "s", some(3))
            backed_up(store, tmp_path / "place.tar")
    return tmp_path / "place.tar"


def test_a_cut_off_file_is_not_taken_for_an_older_backup_unless_that_is_asked_for(tar: Path, tmp_path: Path) -> None:
    whole = tar.read_bytes()
    first = whole.index(b"backups/00000001.json") // 512 * 512
    second = whole.rindex(b"backups/00000002.json") // 512 * 512
    for length in range(first, len(whole), 257):
        tar.write_bytes(whole[:length])
        with pytest.raises(PlaceRefused, match=r"restore that with --number|no whole backup"):
            restored(tar, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    tar.write_bytes(whole[: second + 100])
    assert restored(tar, tmp_path / "copy", number=1).events == 3
    with pytest.raises(PlaceRefused, match="no backup 2"):
        restored(tar, tmp_path / "other", number=2)


def test_the_next_backup_mends_a_file_that_was_cut_off(tar: Path, tmp_path: Path) -> None:
    whole = tar.read_bytes()
    for length in range(0, len(whole), 509):
        tar.write_bytes(whole[:length])
        back_up_directory(tmp_path / "data", tar)
        with open_place(tar, write=False) as place:
            assert check_all(place, lambda done, total: None)[-1].head == 6
    restored(tar, tmp_path / "copy")
    with reading(tmp_path / "copy") as copy, reading(tmp_path / "data") as store:
        assert everything(copy) == everything(store)


def test_a_damaged_file_with_good_backups_behind_the_damage_is_not_cut_off(tar: Path, tmp_path: Path) -> None:
    data = bytearray(tar.read_bytes())
    data[data.index(b"states/00000001.cbor")] ^= 1
    tar.write_bytes(data)
    with pytest.raises(BackupDamaged, match="use another file"):
        back_up_directory(tmp_path / "data", tar)
    assert tar.read_bytes() == data


def test_a_damaged_store_cannot_be_backed_up_and_the_place_stays_good(tar: Path, tmp_path: Path) -> None:
    before = tar.read_bytes()
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
        store.db.connection.execute("UPDATE records SET data = zeroblob(length(data)) WHERE position = 7")
    with pytest.raises(DamagedRecord):
        back_up_directory(tmp_path / "data", tar)
    assert tar.read_bytes() == before
