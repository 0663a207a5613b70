"""Iceberg metadata beside the lake: read back, it is the store, after archives, compactions, erasures and kills."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from penstock.history.columns import TABLE
from penstock.lake import iceberg, iceberg_tables, remote
from penstock.lake.archiver import Archiver
from penstock.lake.changes import LakeWriter
from penstock.lake.compaction import compact
from penstock.lake.iceberg import HINT, METADATA, TABLE_FOLDER, location, update
from penstock.lake.local import LocalPlace
from penstock.lake.places import open_lake_place
from penstock.store import store_url
from penstock.store.contract import HideStream
from tests.lake.support import archive, awkward, erase, fill, manifest_of, numbers, quiet, rows_of, store_rows
from tests.lake.test_places import quick, s3  # noqa: F401 - they are fixtures


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A name that is hard to get right in addresses."""
    return tmp_path / "the lake of 100%"


def table(lake: Path) -> StaticTable:
    """The table, as anybody opens it."""
    return StaticTable.from_metadata(str(lake / TABLE_FOLDER))


def iceberg_rows(lake: Path, **scan: Any) -> list[tuple[Any, ...]]:
    found: pa.Table = table(lake).scan(**scan).to_arrow()
    return rows_of(found.cast(TABLE).sort_by("position"))


def follow(lake: Path) -> bool:
    return update(open_lake_place(str(lake)), manifest_of(lake))


def metadata_files(lake: Path) -> set[str]:
    return {path.name for path in (lake / METADATA).iterdir()}


def test_the_table_has_all_rows_of_the_store(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", awkward())
    archive(url, lake)
    follow(lake)
    assert iceberg_rows(lake) == store_rows(url)
    schema = table(lake).schema()
    assert [field.name for field in schema.fields] == TABLE.names
    assert {field.name for field in schema.fields if field.optional} == {"headers", "text"}


def test_each_round_is_a_snapshot_and_nothing_new_is_none(tmp_path: Path, lake: Path) -> None:
    heads = []
    for day in range(3):
        url = fill(tmp_path / "data", numbers(5), days=day)
        archive(url, lake)
        follow(lake)
        assert not follow(lake)
        heads.append(len(store_rows(url)))
        assert iceberg_rows(lake) == store_rows(url)
    snapshots = table(lake).snapshots()
    seen = [table(lake).scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows for snapshot in snapshots]
    assert seen == heads
    assert [snapshot.summary and snapshot.summary["penstock.head"] for snapshot in snapshots] == list(map(str, heads))


def test_days_and_positions_are_skipped_without_a_look_at_the_files(tmp_path: Path, lake: Path) -> None:
    for day in range(3):
        archive(fill(tmp_path / "data", numbers(5), days=day), lake)
    url = store_url(tmp_path / "data")
    follow(lake)
    scan = table(lake).scan(row_filter="position > 120")
    assert len(list(scan.plan_files())) == 1
    assert iceberg_rows(lake, row_filter="position > 120") == store_rows(url)[120:]
    later = "recorded_at >= '2026-11-16T00:00:00+00:00'"
    assert len(list(table(lake).scan(row_filter=later).plan_files())) == 1
    assert len(iceberg_rows(lake, row_filter=later)) == 50


def test_a_compaction_is_one_snapshot_with_the_same_rows(tmp_path: Path, lake: Path) -> None:
    url = store_url(tmp_path / "data")
    for _ in range(4):
        archive(fill(tmp_path / "data", numbers(3)), lake)
        follow(lake)
    compact(None, str(lake), quiet, iceberg=False)
    assert follow(lake)
    assert len(list(table(lake).scan().plan_files())) == 1
    assert iceberg_rows(lake) == store_rows(url)
    assert len(table(lake).snapshots()) == 5


def test_archives_and_compactions_bring_the_table_along(tmp_path: Path, lake: Path) -> None:
    for _ in range(2):
        archiver = Archiver(None, fill(tmp_path / "data", numbers(3)), str(lake))
        archiver.catch_up(quiet)
        assert not follow(lake)
    compact(None, str(lake), quiet)
    assert not follow(lake)
    assert iceberg_rows(lake) == store_rows(store_url(tmp_path / "data"))


def test_the_table_follows_a_compaction_day_by_day(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_url(tmp_path / "data")
    for day in (0, 0, 1, 1):
        archive(fill(tmp_path / "data", numbers(2), days=day), lake)
    follow(lake)
    seen: list[list[tuple[Any, ...]]] = []

    commit = LakeWriter.commit

    def committed(writer: LakeWriter, *given: Any) -> None:
        commit(writer, *given)
        seen.append(iceberg_rows(lake))

    monkeypatch.setattr(LakeWriter, "commit", committed)
    compact(None, str(lake), quiet)
    assert seen == [store_rows(url)] * 2


@pytest.mark.usefixtures("quick")
def test_elsewhere_files_are_removed_after_the_table_has_forgotten_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "memory://lakes/forgotten"
    for day in (0, 0, 1, 1):
        archive(fill(tmp_path / "data", numbers(2), days=day), place)
    update(open_lake_place(place), manifest_of(place))
    remove, removed = remote.RemotePlace.remove, []

    def check(self: remote.RemotePlace, path: str) -> None:
        if path.endswith(".parquet"):
            table = iceberg_tables.IcebergTable(self, iceberg._version(self))
            assert location(self, path) not in {file.file_path for file in table.files()}
            removed.append(path)
        remove(self, path)

    monkeypatch.setattr(remote.RemotePlace, "remove", check)
    compact(None, place, quiet)
    assert len(removed) == 4


def test_erased_events_leave_the_table_with_the_files(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", [*numbers(5), *awkward()])
    archive(url, lake)
    follow(lake)
    erase(tmp_path / "data", HideStream("shop", "s-1"))
    archive(url, lake)
    assert follow(lake)
    assert iceberg_rows(lake) == store_rows(url)
    assert len(iceberg_rows(lake)) < manifest_of(lake).head


@pytest.mark.parametrize("died_at", range(1, 6))
def test_a_kill_at_any_write_is_repaired_by_the_next_call(
    tmp_path: Path, lake: Path, died_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)
    follow(lake)
    before = iceberg_rows(lake)
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)

    class Died(BaseException):
        pass

    writes = 0
    replace = LocalPlace.replace

    def dying(self: Any, path: str, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == died_at:
            raise Died
        replace(self, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "replace", dying)
        try:
            follow(lake)
        except Died:
            # Who reads it now sees it as it was, or as it was to be.
            assert iceberg_rows(lake) in (before, store_rows(url))
    follow(lake)
    assert iceberg_rows(lake) == store_rows(url)
    assert not follow(lake)


@pytest.mark.parametrize("name", ["v1.metadata.json", "version-hint.text", "*.avro"])
def test_metadata_that_is_damaged_or_lost_is_made_anew(tmp_path: Path, lake: Path, name: str) -> None:
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)
    follow(lake)
    for path in (lake / METADATA).glob(name):
        path.write_bytes(b"no")
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)
    assert follow(lake)
    assert iceberg_rows(lake) == store_rows(url)


def test_a_lake_that_was_moved_gets_a_new_table(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)
    follow(lake)
    moved = tmp_path / "moved"
    shutil.move(lake, moved)
    assert follow(moved)
    assert iceberg_rows(moved) == store_rows(url)


def test_old_snapshots_and_versions_are_forgotten(tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_tables, "SNAPSHOTS_MAX", 2)
    monkeypatch.setattr(iceberg_tables, "VERSIONS_MAX", 2)
    url = store_url(tmp_path / "data")
    for _ in range(5):
        archive(fill(tmp_path / "data", numbers(1)), lake)
        follow(lake)
    compact(None, str(lake), quiet, iceberg=False)
    follow(lake)
    assert iceberg_rows(lake) == store_rows(url)
    assert len(table(lake).snapshots()) == 2
    names = metadata_files(lake)
    assert {name for name in names if name.endswith(".json")} == {"v5.metadata.json", "v6.metadata.json"}
    assert HINT.rpartition("/")[2] in names
    reachable = {
        Path(path).name
        for snapshot in table(lake).snapshots()
        for path in (snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table(lake).io)))
    }
    assert {name for name in names if name.endswith(".avro")} == reachable


def test_a_lake_without_events_is_an_empty_table(tmp_path: Path, lake: Path) -> None:
    archive(fill(tmp_path / "data", []), lake)
    follow(lake)
    assert iceberg_rows(lake) == []


@pytest.mark.usefixtures("quick")
def test_a_table_in_an_object_store_is_read_from_there(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options: str = request.getfixturevalue("s3")
    place = f"s3://lakes/iceberg?{options}"
    for _ in range(2):
        url = fill(tmp_path / "data", numbers(3))
        archive(url, place)
        update(open_lake_place(place), manifest_of(place))
    address = options.partition("endpoint_override=")[2].partition("&")[0]
    properties = {"s3.endpoint": f"http://{address}", "s3.region": "us-east-1"}
    found = StaticTable.from_metadata(f"s3://lakes/iceberg/{TABLE_FOLDER}", properties).scan().to_arrow()
    assert rows_of(found.cast(TABLE).sort_by("position")) == store_rows(store_url(tmp_path / "data"))
