"""What can be wrong with a lake: each is told clearly, and nothing is lost or doubled by it."""

import errno
import json
import os
import resource
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import LakeDamaged, LakeInUse, PlaceRefused, StoreError
from penstock.lake import changes, compaction, verification
from penstock.lake.changes import Plan, finish, pending_of, record
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import Manifest, encode, sealed
from penstock.lake.places import open_lake_place
from penstock.lake.sources import look
from penstock.lake.verification import status, verify
from penstock.store.contract import HideStream
from tests.lake.support import archive, compact, erase, fill, is_same, lake_rows, manifest_of, numbers, quiet, verified


@pytest.fixture
def url(data: Path) -> str:
    return fill(data, numbers(3))


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Path:
    """A lake with two files."""
    lake = tmp_path / "lake"
    archive(url, lake)
    fill(tmp_path / "data", numbers(2))
    archive(url, lake)
    return lake


def the_file(lake: Path) -> Path:
    return min(lake.glob("*/*.parquet"))


def test_a_lake_of_another_store_is_refused_and_both_are_named(url: str, lake: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", numbers(1))
    archive(other, tmp_path / "second")
    ours, theirs = manifest_of(lake).store, manifest_of(tmp_path / "second").store
    for attempt in (archive, verified):
        with pytest.raises(PlaceRefused, match=f"of store {ours}, and this is store {theirs}"):
            attempt(other, lake)
    assert is_same(url, lake)


def test_an_older_copy_of_the_store_is_refused(url: str, lake: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "older")
    fill(data, numbers(1))
    archive(url, lake)
    with pytest.raises(PlaceRefused, match="it has 60 events, and the store has 50: it is an older copy"):
        archive(f"sqlite:///{tmp_path / 'older'}", lake)


def test_a_folder_that_holds_something_else_is_left_alone(url: str, lake: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "2024").mkdir(parents=True)
    (photos / "2024" / "sea.jpg").write_bytes(b"blue")
    with pytest.raises(PlaceRefused, match=r"it holds other things: 2024/sea.jpg"):
        archive(url, photos)
    assert [path.name for path in photos.rglob("*")] == ["2024", "sea.jpg"]
    with pytest.raises(PlaceRefused, match="it is a file"):
        archive(url, photos / "2024" / "sea.jpg")
    shutil.copy(the_file(lake), lake / "copy.parquet")
    with pytest.raises(PlaceRefused, match=r"files that are in no manifest: copy.parquet"):
        archive(url, lake)
    assert [each.path for each in verified(url, lake).differences] == ["copy.parquet"]
    (lake / "copy.parquet").rename(lake / "_copy.parquet")
    assert archive(url, lake).events == 0


def test_a_manifest_that_lost_a_file_is_told(url: str, lake: Path) -> None:
    the_file(lake).rename(lake.parent / "gone")
    with pytest.raises(LakeDamaged, match=r"0001-0+30.parquet is not there"):
        archive(url, lake)
    (found,) = verified(url, lake).differences
    assert (found.first, found.last, found.what) == (1, 30, "is not there")
    with pytest.raises(LakeDamaged, match="is not there"):
        compact(lake)


def test_a_flipped_bit_is_found_by_verify_and_by_compact(url: str, lake: Path) -> None:
    content = bytearray(the_file(lake).read_bytes())
    content[len(content) // 2] ^= 4
    the_file(lake).write_bytes(content)
    (found,) = verified(url, lake).differences
    assert (found.first, found.last, found.what) == (1, 30, "does not have the checksum that the manifest says")
    with pytest.raises(LakeDamaged, match="checksum"):
        compact(lake)
    assert manifest_of(lake).number == 3


def test_other_events_in_the_store_are_found(url: str, lake: Path) -> None:
    first = manifest_of(lake).files[0]
    lies = manifest_of(lake).with_files(set(), [replace(first, digest="0" * 32)])
    (lake / "_penstock" / "manifest.json").write_bytes(encode(lies))
    assert [each.what for each in verified(url, lake).differences] == [
        "the store has other events than the manifest says",
        "the file has other events than the manifest says",
    ]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"format":1}', b'{"format":1,"checksum":"00"}\n'])
def test_a_damaged_manifest_is_told(damage: bytes, url: str, lake: Path) -> None:
    path = lake / "_penstock" / "manifest.json"
    path.write_bytes(damage)
    for attempt in (lambda: archive(url, lake), lambda: verified(url, lake), lambda: status(str(lake))):
        with pytest.raises(LakeDamaged, match=r"manifest.json"):
            attempt()
    assert path.read_bytes() == damage


def test_not_a_byte_of_a_manifest_changes_unnoticed(url: str, lake: Path) -> None:
    path = lake / "_penstock" / "manifest.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"rows": 30', b'"rows": 31'))
    with pytest.raises(LakeDamaged, match="does not have the checksum that it says"):
        archive(url, lake)
    document = json.loads(good)
    del document["checksum"]
    document["files"].pop(0)
    path.write_bytes(sealed(document))
    with pytest.raises(LakeDamaged, match="does not begin at 1"):
        archive(url, lake)


def test_a_lake_of_a_newer_format_is_refused(url: str, lake: Path) -> None:
    path = lake / "_penstock" / "manifest.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "format": 9}))
    with pytest.raises(PlaceRefused, match="it has format 9, and this Penstock knows 1; use a newer Penstock"):
        archive(url, lake)


def test_a_second_archive_stops_at_once_and_says_who_is_at_work(url: str, lake: Path) -> None:
    with open_lake_place(str(lake)).lock("archive"):
        with pytest.raises(LakeInUse, match=f"in use by archive of process {os.getpid()} on .*, since 20"):
            archive(url, lake)
        with pytest.raises(LakeInUse):
            compact(lake)
        assert status(str(lake), url).in_use_by is not None
        # Who only reads need not wait.
        assert not verified(url, lake).differences
    assert archive(url, lake).events == 0


def test_who_asks_whether_a_lake_is_in_use_keeps_nobody_out(lake: Path) -> None:
    place, over = open_lake_place(str(lake)), threading.Event()

    def ask() -> None:
        while not over.is_set():
            place.holder()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask)
        try:
            for _ in range(200):
                with open_lake_place(str(lake)).lock("archive"):
                    pass
        finally:
            over.set()


def test_a_compaction_waits_for_its_turn_if_it_is_told_to(
    url: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, refused = LocalPlace.locked, []

    def noting(self: LocalPlace, what: str) -> object:
        refused.append(what)
        if len(refused) > 2:
            holding.close()
        return locked(self, what)

    holding = ExitStack()
    holding.enter_context(open_lake_place(str(lake)).lock("archive"))
    monkeypatch.setattr(LocalPlace, "locked", noting)
    assert compaction.compact(None, str(lake), quiet, iceberg=False, patience_s=60) == (2, 1, 1)
    assert refused == ["compact"] * 3
    assert is_same(url, lake)


# --- verify beside others -------------------------------------------------------------------------------------


def test_a_lake_is_verified_while_others_archive_compact_and_erase(
    url: str, lake: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erasing() -> object:
        erase(data, HideStream("shop", "s-1"))
        return archive(url, lake)

    work = iter([lambda: compact(lake), lambda: archive(fill(data, numbers(1)), lake), erasing])

    def others(_done: int, _total: int) -> None:
        next(work, lambda: None)()

    monkeypatch.setattr(changes, "ROUND_TASKS", 1)
    for _ in range(3):
        assert not verify(None, url, str(lake), others).differences
    assert next(work, None) is None
    assert (manifest_of(lake).head, manifest_of(lake).rows) == (60, 40)


def test_what_is_archived_between_two_looks_is_no_older_store(
    url: str, lake: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(where: str) -> object:
        found = look(where)
        archive(fill(data, numbers(1)), lake)
        return found

    monkeypatch.setattr(verification, "look", after)
    assert verified(url, lake).differences == []


def test_a_lake_that_may_only_be_read_is_verified(url: str, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(open_lake_place(str(lake)), Plan("archive"))

    def locked(self: LocalPlace, _what: str) -> None:
        raise self.refused(PermissionError(errno.EACCES, "Permission denied"))

    monkeypatch.setattr(LocalPlace, "locked", locked)
    assert verified(url, lake) == (2, 50, 50, 0, [])
    assert pending_of(open_lake_place(str(lake))) is not None


def test_what_was_interrupted_is_told_and_what_has_just_ended_is_not(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_lake_place(str(lake))
    record(place, Plan("archive"))
    assert status(str(lake)).interrupted == "archive"
    monkeypatch.setattr(LocalPlace, "holder", finish)
    assert status(str(lake)).interrupted is None


def test_what_the_system_keeps_at_the_top_of_a_file_system_is_passed_over(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted" / "lost+found").mkdir(parents=True)
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert archive(url, tmp_path / "mounted").events == 30
    assert not verified(url, tmp_path / "mounted").differences


def test_a_full_disk_is_told_and_costs_nothing(url: str, lake: Path, data: Path) -> None:
    fill(data, [("shop", "large", [each._replace(body=os.urandom(50_000)) for each in numbers(1)[0][2]])])
    before, kept = manifest_of(lake), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, kept[1]))
    try:
        with pytest.raises(StoreError, match="Nothing is lost; make room, and run this again"):
            archive(url, lake)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert manifest_of(lake) == before
    assert len(lake_rows(lake)) == 50
    assert not (lake / "_penstock" / "aside").exists()
    archive(url, lake)
    assert is_same(url, lake)


def test_there_is_no_lake_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(PlaceRefused, match="there is no lake"):
        status(str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(PlaceRefused, match=r"it holds no lake: there is no _penstock/manifest.json"):
        status(str(tmp_path))
    for place in ("", "s3://", "gopher://hole/lake"):
        with pytest.raises(PlaceRefused):
            status(place)
    with pytest.raises(PlaceRefused, match="on another machine"):
        status("file://elsewhere/lake")


@pytest.mark.parametrize(
    "place",
    [
        "s3://u:secret@[x",
        "ftp://u:secret@127.0.0.1:1/b",
        "file://[x",
        "file:///tmp/%00",
        "github://a/b",
        "reference://x",
        "jupyter://x",
        "data://x",
    ],
)
def test_a_place_that_is_none_is_told_in_a_line(place: str) -> None:
    with pytest.raises((PlaceRefused, StoreError)) as caught:
        status(place)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_manifest_without_files_is_that_of_an_empty_store() -> None:
    assert (Manifest("s", 1).rows, Manifest("s", 1).bytes) == (0, 0)
