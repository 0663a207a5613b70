"""Crafted backups: whatever their manifests name, Penstock reads, removes and writes nothing outside."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.backup import open_place
from penstock.backup.manifest import decode_state, encode_state
from penstock.backup.places import END, Tar, _member
from penstock.backup.reader import check_all
from penstock.errors import BackupDamaged, PlaceRefused
from penstock.store.contract import STATE_TABLES
from tests.backup.support import back_up_directory, backed_up, files_of, restored, work_by_key, writing
from tests.store.kit import Clock, append, some

MANIFEST = "backups/00000002.json"
ELSEWHERE = [
    "../outside/copy",
    "history/../../outside/copy",
    "{outside}/copy",
    "history//00000000000000000001-00000000000000000003.records",
    "./history/00000000000000000001-00000000000000000003.records",
    "a\0b",
    "\ud800",
    "backups/00000001.json",
    "penstock-backup.txt",
    "history/٠0000000000000000001-00000000000000000003.records",
    7,
    None,
    ["../x"],
]


@pytest.fixture(params=["folder", "place.tar"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two backups of a store."""
    with writing(tmp_path / "data") as store:
        for _ in range(2):
            append(store, "s", some(3))
            backed_up(store, tmp_path / request.param)
    return tmp_path / str(request.param)


def crafted(document: dict[str, Any]) -> bytes:
    """A manifest with the checksum that belongs to it."""
    del document["checksum"]
    text = (json.dumps(document, indent=1) + "\n").encode()
    return (json.dumps({**document, "checksum": sha256(text).hexdigest()}, indent=1) + "\n").encode()


def put(place: Path, manifest: bytes) -> None:
    """Put a manifest in the place of the second one."""
    if place.is_dir():
        (place / MANIFEST).write_bytes(manifest)
        return
    whole = place.read_bytes()
    start = whole.rindex(MANIFEST.encode()) // 512 * 512
    place.write_bytes(whole[:start] + _member(MANIFEST, manifest, 0) + END)


def read(place: Path) -> dict[str, Any]:
    with open_place(place, write=False) as opened:
        return dict(json.loads(opened.read(MANIFEST)))


@pytest.mark.parametrize("index", [1, -1], ids=["records", "state"])
@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_manifest_names_nothing_outside(place: Path, tmp_path: Path, path: object, index: int) -> None:
    document = read(place)
    path = path.format(outside=tmp_path / "outside") if isinstance(path, str) else path
    document["files"][index] = pointed_at(place, document["files"][index], path)
    put(place, crafted(document))
    before = {name: data for name, data in files_of(tmp_path).items() if not name.endswith(("-shm", "-wal"))}
    for attempt in (
        lambda: restored(place, tmp_path / "new"),
        lambda: restored(place, tmp_path / "data", replace=True),
        lambda: restored(place, tmp_path / "new", number=1),
        lambda: back_up_directory(tmp_path / "data", place),
        lambda: check(place),
    ):
        with pytest.raises(BackupDamaged, match=rf"{MANIFEST} names ") as caught:
            attempt()
        assert repr(path) in str(caught.value)
    after = files_of(tmp_path)
    assert {name: data for name, data in after.items() if not name.endswith(("-shm", "-wal"))} == before


def pointed_at(place: Path, entry: dict[str, Any], path: object) -> dict[str, Any]:
    """An entry that names something else, with the size and the checksum of what is there.

    Outside is a copy of the file itself, so that a reader of it finds nothing wrong.
    """
    with open_place(place, write=False) as opened:
        original = opened.read(entry["path"])
    (place.parent / "outside").mkdir()
    (place.parent / "outside" / "copy").write_bytes(original)
    known = isinstance(path, str) and path.isprintable() and place.is_dir() and (place / path).is_file()
    data = (place / str(path)).read_bytes() if known else original
    return {**entry, "path": path, "bytes": len(data), "sha256": sha256(data).hexdigest()}


def check(place: Path) -> None:
    with open_place(place, write=False) as opened:
        check_all(opened, lambda done, total: None)


def test_a_backup_has_the_state_of_its_own_number(place: Path, tmp_path: Path) -> None:
    document = read(place)
    document["files"][-1]["path"] = "states/00000001.cbor"
    put(place, crafted(document))
    with pytest.raises(BackupDamaged, match="is not the state of this backup"):
        restored(place, tmp_path / "new")


@pytest.mark.parametrize("number", ["2", 2.0, None])
def test_the_number_of_a_backup_is_a_number(place: Path, tmp_path: Path, number: object) -> None:
    put(place, crafted({**read(place), "number": number}))
    with pytest.raises(BackupDamaged, match=MANIFEST):
        restored(place, tmp_path / "new")


def test_members_of_a_tar_are_never_files_of_this_machine(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
        backed_up(store, tmp_path / "place.tar")
    whole = (tmp_path / "place.tar").read_bytes()
    planted = _member("../planted", b"planted", 0)
    (tmp_path / "place.tar").write_bytes(whole[: -len(END)] + planted + END)
    restored(tmp_path / "place.tar", tmp_path / "new")
    with open_place(tmp_path / "place.tar", write=False) as place:
        assert isinstance(place, Tar)
        with pytest.raises(BackupDamaged, match="is not there"):
            place.read("../data/penstock.db")
    back_up_directory(tmp_path / "data", tmp_path / "place.tar")
    assert not (tmp_path / "planted").exists()
    assert b"../planted" not in (tmp_path / "place.tar").read_bytes()


# --- links in a folder ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two backups in a folder, and a store that has grown since."""
    with writing(tmp_path / "data") as store:
        for _ in range(2):
            append(store, "s", some(3))
            backed_up(store, tmp_path / "folder")
        append(store, "s", some(3))
    return tmp_path / "folder"


@pytest.mark.parametrize("name", ["history", "states", "backups"])
def test_a_folder_that_is_a_link_out_of_the_place_is_neither_emptied_nor_filled(
    folder: Path, tmp_path: Path, name: str
) -> None:
    shutil.move(folder / name, tmp_path / "moved")
    (tmp_path / "moved" / "precious").write_bytes(b"precious")
    (folder / name).symlink_to(tmp_path / "moved")
    before = files_of(tmp_path / "moved")
    for attempt in (lambda: back_up_directory(tmp_path / "data", folder), lambda: restored(folder, tmp_path / "new")):
        with pytest.raises(BackupDamaged, match=f"{name} is a link that leads out of the folder"):
            attempt()
    assert files_of(tmp_path / "moved") == before


def test_a_file_that_is_a_link_out_of_the_place_is_not_read(folder: Path, tmp_path: Path) -> None:
    records = min((folder / "history").iterdir())
    shutil.move(records, tmp_path / "moved")
    records.symlink_to(tmp_path / "moved")
    with pytest.raises(BackupDamaged, match="is a link that leads out of the folder"):
        restored(folder, tmp_path / "new")
    with pytest.raises(BackupDamaged, match="is a link that leads out of the folder"):
        back_up_directory(tmp_path / "data", folder)


def test_the_sign_is_not_written_through_a_link(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
    (tmp_path / "folder").mkdir()
    (tmp_path / "precious").touch()
    (tmp_path / "folder" / "penstock-backup.txt").symlink_to(tmp_path / "precious")
    with pytest.raises(BackupDamaged, match="is a link that leads out of the folder"):
        back_up_directory(tmp_path / "data", tmp_path / "folder")
    assert (tmp_path / "precious").read_bytes() == b""


def test_a_place_behind_a_link_is_a_place(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    back_up_directory(tmp_path / "data", tmp_path / "link")
    assert restored(tmp_path / "link", tmp_path / "new").events == 9
    with pytest.raises(PlaceRefused):
        restored(tmp_path / "link" / "history", tmp_path / "other")


# --- consumers that no store has written ------------------------------------------------------------------------


BAD_CELLS = [
    ("queues", "ordered", "prefix:"),
    ("queues", "ordered", "sideways"),
    ("queues", "selection", "{"),
    ("queues", "selection", '{"types":[7]}'),
    ("queues", "selection", '{"types":[]}'),
    ("queues", "retry", '{"delay":-1}'),
    ("queues", "paused", "yes"),
    ("subscriptions", "selection", "[]"),
    ("allocations", "key", 7),
    ("allocations", "due", None),
    ("dead_letters", "reason", b"bytes"),
    ("dead_letters", "position", "1"),
]


@pytest.mark.parametrize(("table", "column", "value"), BAD_CELLS)
def test_a_state_with_consumers_that_cannot_be_is_refused(
    tmp_path: Path, table: str, column: str, value: object
) -> None:
    with writing(tmp_path / "data", clock := Clock()) as store:
        append(store, "order-1", some(9))
        work_by_key(store, clock)
        state = encode_state(store.state())
        assert decode_state("place", "state", state) == store.state()
    document = cbor2.loads(state)
    document["tables"][table]["rows"][0][STATE_TABLES[table].index(column)] = value
    with pytest.raises(BackupDamaged):
        decode_state("place", "state", cbor2.dumps(document))
