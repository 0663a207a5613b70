"""Saved backups, lakes and pipeline projects, read and continued by today's code from the stores they belong to."""

from pathlib import Path
from typing import Any

import pytest

from penstock.backup import check_all, open_place
from penstock.lake.archiver import Archiver
from penstock.lake.query import query_lake
from penstock.lake.restore import restore_lake
from penstock.pipelines.projects import read_project
from penstock.pipelines.status import status
from penstock.store import store_url
from tests.backup.support import back_up_directory, check_same, reading, restored
from tests.lake.support import fill, is_same, manifest_of, numbers, quiet, stage, store_rows, verified
from tests.lake.test_iceberg import iceberg_rows
from tests.pipelines.support import order, positions, rounds, rows
from tests.saved.kit import (
    HERE,
    SAVED,
    expected_of,
    having,
    members_of,
    move_metastore,
    unpack,
    unpack_migrated,
    unpack_project,
    unpacked,
)
from tests.spark.support import history
from tests.sql.support import plain_rows
from tests.test_repository import MACHINE_PATHS

BYTES_MAX = 1 << 20


@pytest.fixture(params=having("copies.json"))
def name(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def expected(name: str) -> dict[str, Any]:
    """How far they were."""
    return expected_of(name, "copies.json")


@pytest.fixture
def data(name: str, tmp_path: Path) -> Path:
    """The store."""
    return unpack_migrated(name, tmp_path / "data")


def test_what_is_saved_is_small_and_names_no_path_of_a_developers_machine() -> None:
    assert sum(path.stat().st_size for path in HERE.glob("*/*")) < BYTES_MAX
    packed = [(path.parent.name, path.name) for path in HERE.glob("*/*.xz")]
    assert len(packed) >= len(SAVED)
    found = [
        (name, file, path)
        for name, file in packed
        for path, content in (members_of(name, file) if ".tar." in file else [(file, unpacked(name, file))])
        if MACHINE_PATHS.search(content.decode(errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize("place", ["backup", "backup.tar"])
def test_a_saved_backup_is_whole_and_is_restored_and_goes_on(
    name: str, expected: dict[str, Any], data: Path, place: str, tmp_path: Path
) -> None:
    path = unpack(name, "backup.tar.xz", tmp_path) / place
    with open_place(path, write=False) as opened:
        assert [manifest.head for manifest in check_all(opened, quiet)] == expected["backup"]["heads"]
    restored(path, tmp_path / "restored")
    with reading(data) as original, reading(tmp_path / "restored") as copy:
        check_same(original, copy)
    restored(path, tmp_path / "first", number=1)
    with reading(tmp_path / "first") as first:
        assert first.head() == expected["backup"]["heads"][0]
    fill(data, numbers(1))
    written = back_up_directory(data, path)
    assert (written.manifest.number, written.new_events) == (3, 10)


def test_a_saved_lake_is_whole_and_is_queried_caught_up_and_restored(
    name: str, expected: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    lake, url = unpack(name, "lake.tar.xz", tmp_path) / "lake", store_url(data)
    everything, head = store_rows(url), expected["lake"]["head"]
    manifest = manifest_of(lake)
    assert [[file.path, file.rows] for file in manifest.files] == expected["lake"]["files"]
    behind = verified(url, lake)
    assert (behind.head, behind.behind, behind.differences) == (head, everything[-1][0] - head, [])
    assert asked(lake, None) == [row for row in everything if row[0] <= head]
    assert asked(lake, url) == everything
    archiver = Archiver(None, url, str(lake))
    assert archiver.catch_up(quiet)[:3] == (behind.behind, 1, 0)
    assert is_same(url, lake)
    assert iceberg_rows(lake) == everything
    restore_lake(str(lake), store_url(tmp_path / "restored"), stage)
    assert store_rows(store_url(tmp_path / "restored")) == everything


def asked(lake: Path, url: str | None) -> list[tuple[object, ...]]:
    """All rows of a lake, and of its store's tail."""
    found: list[tuple[object, ...]] = []
    query_lake(str(lake), url, "FROM events ORDER BY position", lambda answer: found.extend(plain_rows(answer)))
    return found


def test_a_saved_project_says_how_far_it_is(name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = status(read_project(unpack_project(name, tmp_path)))
    flows = [[flow.flow, flow.target, flow.source, flow.rows, flow.position] for flow in found.flows]
    assert flows == expected["project"]["flows"]
    (bronze,) = (flow for flow in found.flows if flow.flow == "bronze")
    head = expected["backup"]["heads"][-1]
    assert bronze.position is not None
    assert (found.head, bronze.lag, bronze.error) == (head, head - bronze.position, None)
    assert len(positions(tmp_path / "project", "bronze")) == bronze.rows


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_saved_project_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    project = unpack_project(name, tmp_path)
    move_metastore(project)
    before = rows(project, "bronze")
    fill(tmp_path / "data", [("shop", "order-99", [order(99)])])
    with rounds(project) as spark:
        assert spark.do()["failures"] == []
    shop = [event for event in history(tmp_path / "data") if event.context == "shop"]
    orders = [event for event in shop if event.type == "OrderPlaced"]
    assert positions(project, "bronze") == [event.position for event in shop]
    assert positions(project, "order_placed") == [event.position for event in orders if event.body.startswith(b"{")]
    unfit = [event for event in shop if event.type == "happened" or event.body.startswith(b"no JSON")]
    assert positions(project, "quarantine") == [event.position for event in unfit]
    assert [row for row in rows(project, "bronze") if row in before] == before
    (bronze, *_) = status(read_project(project)).flows
    assert (bronze.flow, bronze.lag) == ("bronze", 0)
