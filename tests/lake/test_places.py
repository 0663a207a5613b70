"""Lakes elsewhere: file URLs, an S3 on loopback, and what fsspec has."""

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from penstock.errors import LakeDamaged, LakeInUse, PlaceRefused
from penstock.lake import archiving, remote
from penstock.lake.changes import pending_of
from penstock.lake.layout import PENDING
from penstock.lake.places import open_lake_place
from penstock.lake.reporting import status
from penstock.lake.restoring import restore_lake
from penstock.store.contract import HideStream
from tests.lake.conftest import s3 as s3  # noqa: PLC0414 - others look for it here
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


def test_what_an_interrupted_archive_left_elsewhere_is_made_again(
    lake: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(fill(data, numbers(1)), lake)
    url = fill(data, numbers(2), days=1)
    with monkeypatch.context() as patch:
        patch.setattr(archiving, "commit", _fail)
        with pytest.raises(KeyboardInterrupt):
            archive(url, lake)
    assert positions(lake) == list(range(1, 31))
    assert manifest_of(lake).head == 10
    assert pending_of(open_lake_place(lake)) is not None
    for attempt in (lambda: verified(url, lake), lambda: compact(lake)):
        with pytest.raises(PlaceRefused, match="run penstock lake archive first"):
            attempt()
    # What was erased meanwhile changes where files are cut, and nothing of the old ones is left.
    fill(data, numbers(1), days=2)
    assert archive(url, lake).events == 30
    assert positions(lake) == list(range(1, 41))
    assert verified(url, lake).differences == []
    assert open_lake_place(lake).find(PENDING) is None


def _fail(*_given: object) -> None:
    raise KeyboardInterrupt


def test_a_compaction_that_was_interrupted_elsewhere_leaves_no_event_twice(
    lake: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(data, numbers(1))
    for _ in range(2):
        archive(url, lake)
        fill(data, numbers(1))
    archive(url, lake)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.lake.compacting.commit", _fail)
        with pytest.raises(KeyboardInterrupt):
            compact(lake)
    assert archive(url, lake).events == 0
    assert positions(lake) == list(range(1, 31))
    assert verified(url, lake).differences == []


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
        while not one._is_lost.wait(0.01):
            other._renew({"what": "theft", "pid": 1, "host": "h", "since": "now", "token": "t"})
        with pytest.raises(LakeInUse, match="theft"):
            one.replace("_penstock/manifest.json", b"")
    other.remove("_penstock/lock")
    assert archive(url, lake).events == 0


def test_a_lease_of_somebody_who_died_runs_out(lake: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LEASE_S", -1.0)
    place = open_lake_place(lake)
    assert isinstance(place, remote.RemotePlace)
    place._renew({"what": "archive", "pid": 1, "host": "h", "since": "now", "token": "t"})
    assert archive(fill(data, numbers(1)), lake).events == 10


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
