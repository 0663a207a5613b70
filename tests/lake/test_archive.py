"""Archiving: the lake has exactly the events of the store, in files as they are documented."""

import itertools
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import LakeInUse, NotAllowed
from penstock.history.columns import COLUMNS
from penstock.lake import archiver as lake_archiver
from penstock.lake import changes, slices
from penstock.lake.archiver import plan_ranges
from penstock.lake.places import open_lake_place
from penstock.lake.verification import status
from penstock.model import PositionRange
from penstock.store.contract import (
    AddIterator,
    DeleteIterator,
    HideEvents,
    HideStream,
    IteratorState,
    StoreIdentity,
    WriteOutput,
)
from penstock.store.sqlite import SqliteStore
from penstock.testing import server
from tests.lake.support import (
    archive,
    awkward,
    compact,
    erase,
    fill,
    is_same,
    lake_rows,
    manifest_of,
    numbers,
    quiet,
    store_rows,
    verified,
)
from tests.principals import closed
from tests.store.kit import do_one


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of one block, in rounds of two."""
    monkeypatch.setattr(lake_archiver, "RANGE_BYTES", 1)
    monkeypatch.setattr(changes, "ROUND_TASKS", 2)


def test_awkward_contents_are_the_same_in_the_lake(data: Path, lake: Path) -> None:
    url = fill(data, awkward())
    assert archive(url, lake) == (11, 1, 0, 11)
    assert is_same(url, lake)
    assert {row[2] for row in lake_rows(lake)} == {"007", "a/b", "ü", "shop", "remits"}


def test_a_second_run_adds_only_what_is_new(data: Path, lake: Path) -> None:
    url = fill(data, numbers(3))
    archive(url, lake)
    before = manifest_of(lake)
    assert archive(url, lake) == (0, 0, 0, 30)
    assert manifest_of(lake) == before
    fill(data, numbers(1))
    assert archive(url, lake) == (10, 1, 0, 40)
    assert manifest_of(lake).files[0] == before.files[0]
    assert is_same(url, lake)


@pytest.mark.parametrize("commits", [[], [("shop", "s", numbers(1)[0][2][:1])]])
def test_an_empty_store_and_one_event_are_archived(commits: list[object], data: Path, lake: Path) -> None:
    url = fill(data, commits)  # type: ignore[arg-type]
    archive(url, lake)
    assert manifest_of(lake).head == len(commits)
    assert is_same(url, lake)


def test_days_are_folders_and_ranges_are_cut_between_them(data: Path, lake: Path) -> None:
    url = fill(data, numbers(2))
    for day in (1, 2):
        fill(data, numbers(2), days=day)
    archive(url, lake)
    found = sorted(str(path.relative_to(lake)) for path in lake.glob("*/*.parquet"))
    assert found == [
        f"recorded_day=2026-11-{14 + day}/{1 + 20 * day:020}-{20 + 20 * day:020}.parquet" for day in range(3)
    ]
    assert is_same(url, lake)


def test_rows_are_sorted_and_have_statistics_that_let_engines_skip(data: Path, lake: Path) -> None:
    url = fill(data, [*numbers(20), *numbers(20, context="bank")])
    archive(url, lake)
    (path,) = lake.glob("*/*.parquet")
    file = pq.ParquetFile(path)
    assert file.schema_arrow.names == list(COLUMNS)
    keys = [(row["context"], row["stream"], row["position"]) for row in file.read().to_pylist()]
    assert keys == sorted(keys)
    group = file.metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(len(COLUMNS))}
    assert (columns["context"].statistics.min, columns["context"].statistics.max) == ("bank", "shop")
    assert columns["stream"].compression == "ZSTD"
    assert columns["position"].has_offset_index
    assert columns["position"].has_column_index
    assert [column.column_index for column in group.sorting_columns] == [2, 3, 0]


def test_long_histories_take_several_rounds(data: Path, lake: Path, small_ranges: None) -> None:
    url = fill(data, numbers(2000))
    told: list[tuple[int, int]] = []
    archiver = lake_archiver.Archiver(None, url, str(lake))
    archiver.catch_up(lambda done, total: told.append((done, total)))
    assert told == [(8191, 20000), (16383, 20000), (20000, 20000)]
    assert [file.first for file in manifest_of(lake).files] == [1, 4096, 8192, 12288, 16384]
    assert manifest_of(lake).number == 4
    assert is_same(url, lake)


def test_who_wants_an_end_waits_for_one_round(data: Path, lake: Path, small_ranges: None) -> None:
    url = fill(data, numbers(2000))
    ends = iter([False, True])
    archiver = lake_archiver.Archiver(None, url, str(lake), iceberg=False)
    assert archiver.catch_up(quiet, lambda: next(ends)).head == 8191
    assert archiver.catch_up(quiet).head == 20000
    assert is_same(url, lake)


def test_who_follows_leaves_the_lake_to_others_between_two_rounds(data: Path, lake: Path) -> None:
    url = fill(data, numbers(1))
    archiver = lake_archiver.Archiver(None, url, str(lake), iceberg=False)
    for round_number in range(2, 5):
        archiver.catch_up(quiet)
        archive(fill(data, numbers(1)), lake)
        assert compact(lake).files == 1
        assert not verified(url, lake).differences
        fill(data, numbers(1))
        assert archiver.catch_up(quiet).events == 10, round_number
    with open_lake_place(str(lake)).lock("compact"):
        # Nothing is new: nobody needs the lake for that.
        assert archiver.catch_up(quiet).events == 0
        fill(data, numbers(1))
        with pytest.raises(LakeInUse):
            archiver.catch_up(quiet)
    assert archiver.catch_up(quiet).events == 10
    assert is_same(url, lake)


def test_ranges_are_cut_at_blocks_and_leave_nothing_out() -> None:
    assert plan_ranges(5, 4, 100) == []
    assert plan_ranges(1, 1, 0) == [PositionRange(1, 1)]
    spans = plan_ranges(5000, 1_000_000, 1000)
    assert spans[0].first == 5000
    assert spans[-1].last == 1_000_000
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(spans))
    assert all(span.first % 4096 == 0 for span in spans[1:])


def test_a_range_with_large_bodies_becomes_several_files(
    data: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "EVENTS_BYTES_MAX", 2000)
    url = fill(data, [*numbers(10), *awkward()])
    archive(url, lake)
    files = manifest_of(lake).files
    assert len(files) > 6
    assert all(file.event_bytes < 2000 or file.rows == 1 for file in files)
    assert is_same(url, lake)


def test_a_lake_is_archived_through_a_server(data: Path, lake: Path) -> None:
    fill(data, awkward())
    with server(data) as served:
        assert archive(served.url, lake).events == 11
        served_status = status(str(lake), served.url)
    assert (served_status.behind, served_status.in_use_by) == (0, None)
    assert is_same(f"sqlite:///{data}", lake)


def test_only_who_sees_the_whole_history_archives_it(data: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data, awkward())
    token = closed(data, part="read:shop", unaudited="read", whole="read,audit")
    with server(data) as served:
        for name in ("part", "unaudited"):
            monkeypatch.setenv("PENSTOCK_TOKEN", token(name))
            with pytest.raises(NotAllowed, match=f"{name} .* needs the right read,audit on the whole history"):
                archive(served.url, lake)
            assert not lake.exists()
        monkeypatch.setenv("PENSTOCK_TOKEN", token("whole"))
        archive(served.url, lake)
    assert is_same(f"sqlite:///{data}", lake)


# --- erasures -------------------------------------------------------------------------------------------------


def test_what_is_erased_later_leaves_the_lake(data: Path, lake: Path, small_ranges: None) -> None:
    url = fill(data, [*numbers(1000), ("people", "ann", numbers(1)[0][2])])
    archive(url, lake)
    fill(data, [("people", "ann", numbers(1)[0][2])])
    erase(data, HideStream("people", "ann"), HideEvents(((3, 5), (30, 30)), (("shop", "s-0"),)))
    assert {(each.first, each.last) for each in verified(url, lake).differences} == {(1, 4095), (8192, 10010)}
    assert "run lake archive" in verified(url, lake).differences[0].what
    assert status(str(lake), url).is_erasure_pending
    assert archive(url, lake) == (10, 1, 2, 10020)
    assert is_same(url, lake)
    assert manifest_of(lake).rows == 10_020 - 24
    assert not [row for row in lake_rows(lake) if row[2] == "people"]
    assert archive(url, lake).rewritten == 0


def test_following_what_was_erased_tells_how_far_it_is(data: Path, lake: Path, small_ranges: None) -> None:
    url = fill(data, numbers(1000))
    archive(url, lake)
    fill(data, numbers(1))
    erase(data, HideStream("shop", "s-0"))
    told: list[tuple[int, int]] = []
    archiver = lake_archiver.Archiver(None, url, str(lake), iceberg=False)
    archiver.catch_up(lambda done, total: told.append((done, total)))
    assert told == [(8191, 10010), (10000, 10010), (10010, 10010)]


def test_a_file_whose_events_are_all_erased_stays_without_rows(data: Path, lake: Path) -> None:
    fill(data, [("people", "ann", numbers(1)[0][2])])
    url = fill(data, numbers(1), days=1)
    archive(url, lake)
    erase(data, HideStream("people", "ann"))
    assert archive(url, lake).rewritten == 1
    assert [(file.rows, file.position_min) for file in manifest_of(lake).files] == [(0, None), (10, 11)]
    assert is_same(url, lake)


def test_erased_events_of_a_store_are_never_archived(data: Path, lake: Path) -> None:
    url = fill(data, [("people", "ann", numbers(1)[0][2]), *numbers(2), ("people", "ann", numbers(1)[0][2])])
    erase(data, HideStream("people", "ann"))
    archive(url, lake)
    assert [row[0] for row in lake_rows(lake)] == list(range(11, 31))
    assert store_rows(url) == lake_rows(lake)
    assert (manifest_of(lake).head, manifest_of(lake).rows) == (40, 20)
    assert is_same(url, lake)


def test_only_files_that_may_hold_what_was_erased_are_compared(
    data: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten = numbers(1)[0][2]
    for day, (context, name) in enumerate((("people", "ann"), ("people", "bob"), ("bank", "ann"), ("x" * 200, "y"))):
        fill(data, [(context, name, ten)], days=day)
    url = f"sqlite:///{data}"
    archive(url, lake)
    read: list[int] = []

    def noted(url: str, identity: StoreIdentity, span: PositionRange) -> object:
        read.append(span.first)
        return slices.read_rows(url, identity, span)

    monkeypatch.setattr(lake_archiver, "read_rows", noted)
    erase(data, HideStream("people", "ann"))
    assert archive(url, lake).rewritten == 1
    erase(data, HideEvents(((20, 21),), (("people", "bob"), ("bank", "ann"))))
    assert archive(url, lake).rewritten == 2
    assert read == [1, 11, 21]
    assert is_same(url, lake)


def test_erasures_are_followed_through_a_server(data: Path, lake: Path) -> None:
    fill(data, [("people", "ann", numbers(1)[0][2]), *numbers(1)])
    with server(data) as served:
        archive(served.url, lake)
        with penstock.connect(served.url) as client:
            client.erase_stream("people", "ann")
        assert archive(served.url, lake).rewritten == 1
        assert verified(served.url, lake).differences == []
    assert is_same(f"sqlite:///{data}", lake)


def test_the_output_of_an_iterator_that_is_deleted_is_no_events(data: Path, lake: Path) -> None:
    url = fill(data, numbers(2))
    archive(url, lake)
    with closing(SqliteStore(data)) as store:
        made = do_one(store, AddIterator("it", "shop/s-0", "map", "return msg", True))
        assert isinstance(made, IteratorState)
        do_one(store, WriteOutput(made.id, made.source, made.source + 1, (b"x",), b""))
        do_one(store, DeleteIterator("shop/s-0", "it"))
        assert [(entry.iterator, entry.events) for entry in store.erasures(0, 10)] == [(made.id, 0)]
    with server(data) as served:
        for place in (url, served.url):
            assert not status(str(lake), place).is_erasure_pending
            assert archive(place, lake) == (0, 0, 0, 20)
    assert manifest_of(lake).number == 2
