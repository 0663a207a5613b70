"""A store from a lake alone: the same events at the same places, as a store that works."""

from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.errors import LakeDamaged, LogNotFound, PenstockError, PlaceRefused
from penstock.lake import archiver as lake_archiver
from penstock.lake import restore
from penstock.lake.restore import restore_lake
from penstock.store import open_reader
from penstock.store.contract import HideEvents, HideStream
from tests.lake.support import (
    archive,
    awkward,
    erase,
    fill,
    is_same,
    manifest_of,
    numbers,
    quiet,
    stage,
    store_rows,
)
from tests.postgres import Schemas


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_a_restored_store_equals_the_one_that_was_archived(
    data: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_archiver, "RANGE_BYTES", 1)
    monkeypatch.setattr(restore, "SEALED_BYTES_MAX", 100_000)
    fill(data, [*awkward(), *numbers(300), *numbers(1, 9000)])
    fill(data, [("same", "same", numbers(1)[0][2])], days=1)
    url = fill(data, awkward(), days=2)
    archive(url, lake)
    restored = f"sqlite:///{tmp_path / 'restored'}"
    head = manifest_of(lake).head
    assert restore_lake(str(lake), restored, stage)[:4] == (head, 0, len(manifest_of(lake).files), 2)
    assert store_rows(restored) == store_rows(url)
    with closing(open_reader(restored)) as new, closing(open_reader(url)) as old:
        assert not list(new.verify(quiet))
        assert new.identity() == (old.identity().id, 2)
        tables = [each.state().tables["contexts"] for each in (new, old)]
        assert [(row[0], row[1], row[3], row[5]) for row in tables[0]] == [
            (row[0], row[1], row[3], row[5]) for row in tables[1]
        ]
        assert new.state().tables["timelines"][0] == old.state().tables["timelines"][0]


def test_a_restored_store_counts_as_the_one_that_was_archived(data: Path, lake: Path, tmp_path: Path) -> None:
    url = fill(data, [*numbers(20), *awkward()])
    archive(url, lake)
    restored = f"sqlite:///{tmp_path / 'restored'}"
    restore_lake(str(lake), restored, stage)
    with closing(open_reader(restored)) as new, closing(open_reader(url)) as old:
        assert new.state().tables["contexts"] == old.state().tables["contexts"]
        assert new.stats().body_bytes == old.stats().body_bytes


def test_erased_events_keep_their_places_in_a_restored_store(data: Path, lake: Path, tmp_path: Path) -> None:
    ten = numbers(1)[0][2]
    url = fill(data, [("people", "ann", ten), *numbers(2), ("people", "ann", ten), ("people", "bob", ten)])
    archive(url, lake)
    erase(data, HideStream("people", "ann"), HideEvents(((12, 13), (44, 44)), (("shop", "s-0"), ("people", "bob"))))
    url = fill(data, [("people", "ann", ten)])
    archive(url, lake)
    restored = tmp_path / "restored"
    assert restore_lake(str(lake), f"sqlite:///{restored}", stage)[:2] == (37, 23)
    assert store_rows(f"sqlite:///{restored}") == store_rows(url)
    with penstock.connect(f"sqlite:///{restored}") as client:
        assert client.append("people", "ann", [penstock.event("Again", {})]).sequence == 31
        assert [event.sequence for event in client.read_stream("people", "bob")] == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_logs_are_there_again_and_can_be_used(data: Path, lake: Path, tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{data}") as client:
        for name in ("sensors", "empty"):
            client.log(name).create()
        client.log("sensors").append([{"n": 1}, {"n": 2}])
        before = client.log("sensors").show()
    archive(f"sqlite:///{data}", lake)
    restore_lake(str(lake), f"sqlite:///{tmp_path / 'restored'}", stage)
    with penstock.connect(f"sqlite:///{tmp_path / 'restored'}") as client:
        with pytest.raises(LogNotFound):
            client.log("empty").show()
        assert client.log("sensors").show().messages == before.messages
        client.log("sensors").append([{"n": 3}])
        numbers_seen = client.iterator("all")
        numbers_seen.create("sensors", "map", "return msg.n")
        assert list(numbers_seen) == [1, 2, 3]


def test_an_empty_lake_becomes_an_empty_store(data: Path, lake: Path, tmp_path: Path) -> None:
    archive(fill(data, []), lake)
    assert restore_lake(str(lake), f"sqlite:///{tmp_path / 'restored'}", stage).events == 0
    assert store_rows(f"sqlite:///{tmp_path / 'restored'}") == []


def test_a_lake_is_restored_into_postgresql_and_made_again_from_it(
    data: Path, lake: Path, tmp_path: Path, schemas: Schemas
) -> None:
    url = fill(data, [("people", "ann", numbers(1)[0][2]), *awkward()])
    erase(data, HideStream("people", "ann"))
    archive(url, lake)
    restored = schemas.url(data)
    restore_lake(str(lake), restored, stage)
    assert store_rows(restored) == store_rows(url)
    archive(restored, tmp_path / "second")
    assert is_same(restored, tmp_path / "second")
    digests = [[(file.rows, file.digest) for file in manifest_of(each).files] for each in (lake, tmp_path / "second")]
    assert digests[0] == digests[1]


def test_a_restored_store_has_a_lake_of_its_own(data: Path, lake: Path, tmp_path: Path) -> None:
    archive(fill(data, numbers(2)), lake)
    restored = f"sqlite:///{tmp_path / 'restored'}"
    restore_lake(str(lake), restored, stage)
    with pytest.raises(PlaceRefused, match=r"timeline 1 of store .*, and the store is on timeline 2"):
        archive(restored, lake)
    archive(restored, tmp_path / "second")
    assert is_same(restored, tmp_path / "second")
    assert manifest_of(tmp_path / "second").timelines[0] == manifest_of(lake).timelines[0]


def test_nothing_is_restored_over_a_store_or_from_a_damaged_lake(data: Path, lake: Path, tmp_path: Path) -> None:
    url = fill(data, numbers(2))
    archive(url, lake)
    with pytest.raises(PlaceRefused, match="it holds a store"):
        restore_lake(str(lake), url, stage)
    (file,) = lake.glob("*/*.parquet")
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(LakeDamaged, match="does not have the checksum"):
        restore_lake(str(lake), f"sqlite:///{tmp_path / 'restored'}", stage)
    with pytest.raises(PenstockError):
        store_rows(f"sqlite:///{tmp_path / 'restored'}")
    with pytest.raises(PlaceRefused, match="there is no lake"):
        restore_lake(str(tmp_path / "nowhere"), f"sqlite:///{tmp_path / 'restored'}", stage)
