"""Lakes elsewhere: file URLs, an S3 on loopback, and what fsspec has."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from penstock.errors import LakeDamaged, LakeInUse, StoreError
from penstock.lake import places, remote
from penstock.lake.manifests import LOCK, MANIFEST, PENDING
from penstock.lake.places import open_lake_place
from penstock.lake.restore import restore_lake
from penstock.lake.verification import status
from penstock.store.contract import HideStream
from tests.lake.conftest import s3 as s3  # noqa: PLC0414 - others look for it here
from tests.lake.killing import until as wait_until
from tests.lake.support import archive, awkward, compact, erase, fill, manifest_of, numbers, stage, store_rows, verified


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SETTLE_S", 0.01)


@pytest.fixture(params=["s3", "memory"])
def lake(request: pytest.FixtureRequest, s3: str, quick: None, tmp_path: Path) -> str:
    """An empty place of the test's own."""
    name = tmp_path.name.replace("[", "-").replace("]", "-")
    return f"s3://lakes/{name}?{s3}" if request.param == "s3" else f"memory://lakes/{name}"


def positions(lake: str) -> list[int]:
    """What somebody sees who reads the folder."""
    place = open_lake_place(lake)
    assert isinstance(place, remote.RemotePlace)
    table = ds.dataset(place._root, filesystem=place._fs, partitioning="hive").to_table(columns=["position"])
    return sorted(table["position"].to_pylist())


def test_a_lake_elsewhere_is_archived_compacted_verified_and_restored(lake: str, data: Path, tmp_path: Path) -> None:
    url = fill(data, awkward())
    archive(url, lake)
    url = fill(data, numbers(2))
    assert archive(url, lake) == (20, 1, 0, 31)
    assert verified(url, lake).differences == []
    assert compact(lake) == (2, 1, 1)
    assert verified(url, lake).differences == []
    assert positions(lake) == list(range(1, 32))
    restore_lake(lake, f"sqlite:///{tmp_path / 'restored'}", stage)
    assert store_rows(f"sqlite:///{tmp_path / 'restored'}") == store_rows(url)
    erase(data, HideStream("shop", "s-0"))
    assert archive(url, lake).rewritten == 1
    assert verified(url, lake).differences == []
    assert status(lake, url).rows == 21


def test_a_lease_is_taken_by_one_renewed_and_lost(lake: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(data, numbers(1))
    archive(url, lake)
    monkeypatch.setattr(remote, "RENEWAL_S", 0.02)
    one, other = open_lake_place(lake), open_lake_place(lake)
    with one.lock("archive"):
        with pytest.raises(LakeInUse, match="in use by archive of process"):
            archive(url, lake)
        assert other.holder() is not None
        assert isinstance(other, remote.RemotePlace)
        assert isinstance(one, remote.RemotePlace)
        # It may be renewed in the very moment that it is stolen.
        while one._until > 0:
            other._renew({"what": "theft", "pid": 1, "host": "h", "since": "now", "token": "t"})
        with pytest.raises(LakeInUse, match="theft"):
            one.replace(MANIFEST, b"")
        with pytest.raises(LakeInUse, match="theft"):
            one.publish({"a": "b"})
        with pytest.raises(LakeInUse, match="theft"):
            one.remove(MANIFEST)
    other._delete(LOCK)
    assert archive(url, lake).events == 0


def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RENEWAL_S", 0.01)
    monkeypatch.setattr(remote, "SETTLE_S", 0.01)
    place = open_lake_place("memory://lakes/renewals")
    assert isinstance(place, remote.RemotePlace)
    failures = iter([OSError(errno.EIO, "hiccup")] * 3)
    over = threading.Event()

    def failing(path: str, data: bytes, put: Callable[[str, bytes], None] = place._write) -> None:
        failure = OSError(errno.EIO, "gone") if over.is_set() else next(failures, None)
        if failure is not None:
            raise failure
        put(path, data)

    with place.lock("archive"):
        until = place._until
        monkeypatch.setattr(place, "_write", failing)
        wait_until(lambda: place._until > until, "a renewal after three that failed")
        place.replace(PENDING, b"{}")
        monkeypatch.setattr(remote, "LEASE_S", 0.1)
        wait_until(lambda: place._until < until, "a lease that is short")
        over.set()
        wait_until(lambda: time.monotonic() > place._until, "the end of the lease")
        with pytest.raises((StoreError, LakeInUse), match=r"the lease on it could not be renewed|is in use by"):
            place.replace(PENDING, b"{}")


def test_a_file_that_is_half_written_is_seen_by_nobody(
    data: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = "memory://lakes/halves"
    url = fill(data, numbers(1))
    archive(url, lake)
    fill(data, numbers(1))
    put, seen = remote.RemotePlace._write, []

    def halves(self: remote.RemotePlace, path: str, written: Any) -> None:
        put(self, path, bytes(written)[: len(written) // 2])
        seen.append((manifest_of(lake).head, len(positions(lake))))
        put(self, path, written)

    monkeypatch.setattr(remote.RemotePlace, "_write", halves)
    archive(url, lake)
    assert set(seen) <= {(10, 10), (10, 20)}
    assert (manifest_of(lake).head, len(positions(lake))) == (20, 20)


class NoOverwriting(fs.FSSpecHandler):  # type: ignore[misc]
    """A file system that renames as HDFS does."""

    def move(self, src: str, dest: str) -> None:
        if self.fs.exists(dest):
            raise FileExistsError(errno.EEXIST, "File exists", dest)
        super().move(src, dest)


def test_a_file_system_that_gives_no_name_twice_is_used_too(monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_lake_place("memory://lakes/names")
    assert isinstance(place, remote.RemotePlace)
    monkeypatch.setattr(place, "_fs", fs.PyFileSystem(NoOverwriting(place._fs.handler.fs)))
    for content in (b"one", b"other"):
        place.replace(MANIFEST, content)
        assert place.find(MANIFEST) == content
    place.clear()
    assert place.files() == {}


def test_a_lease_of_somebody_who_died_runs_out(lake: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_lake_place(lake)
    assert isinstance(place, remote.RemotePlace)
    with monkeypatch.context() as patch:
        patch.setattr(remote, "LEASE_S", -1.0)
        place._renew({"what": "archive", "pid": 1, "host": "h", "since": "now", "token": "t"})
    assert archive(fill(data, numbers(1)), lake).events == 10


def test_only_the_ends_of_files_are_read_to_see_whether_they_may_hold_what_was_erased(
    lake: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(fill(data, numbers(1)), lake)
    url = fill(data, [("people", "ann", numbers(1)[0][2])], days=1)
    archive(url, lake)
    erase(data, HideStream("people", "ann"))
    monkeypatch.delattr(places.LakePlace, "read")
    assert archive(url, lake).rewritten == 1


def test_a_file_that_is_missing_elsewhere_is_told(lake: str, data: Path) -> None:
    url = fill(data, numbers(1))
    archive(url, lake)
    open_lake_place(lake).remove(manifest_of(lake).files[0].path)
    with pytest.raises(LakeDamaged, match="is not there"):
        archive(url, lake)


def test_a_file_url_is_a_folder(data: Path, tmp_path: Path) -> None:
    url = fill(data, numbers(1))
    place = tmp_path / "a lake"
    archive(url, f"file://{str(place).replace(' ', '%20')}")
    assert verified(url, place).differences == []
