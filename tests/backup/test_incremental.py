"""The next backup writes what is new, whatever became of the old records meanwhile."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import PlaceRefused
from penstock.model import EventFilter
from penstock.store.contract import AddLog, DeleteLog, HideStream, ReadLimits, StoreState
from penstock.store.sqlite import SqliteReader
from tests.backup.support import (
    back_up_directory,
    backed_up,
    check_same,
    check_state,
    erase_all,
    files_of,
    fill,
    ones,
    reading,
    restored,
    say,
    seal_all,
    writing,
)
from tests.store.kit import append, do_one, everything, some

PLACES = ["place", "place.tar"]


@pytest.mark.parametrize("place", PLACES)
def test_a_second_backup_writes_only_what_is_new(tmp_path: Path, place: str) -> None:
    with writing(tmp_path / "data") as store:
        fill(store, 2000)
        before = store.head()
        first = backed_up(store, tmp_path / place)
        files = files_of(tmp_path / place)
        append(store, "s", some(3))
        second = backed_up(store, tmp_path / place)
        assert (second.new_events, second.manifest.head) == (3, before + 3)
        assert second.new_bytes < first.new_bytes / 10
        for name, data in files.items():
            written = files_of(tmp_path / place)[name]
            assert written == data if place == "place" else written.startswith(data.rstrip(b"\0"))
        restored(tmp_path / place, tmp_path / "copy")
        with reading(tmp_path / "copy") as copy:
            check_same(store, copy)


def test_a_backup_of_nothing_new_keeps_what_else_has_changed(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
        backed_up(store, tmp_path / "place")
        do_one(store, AddLog("log"))
        written = backed_up(store, tmp_path / "place")
        assert (written.manifest.number, written.new_events) == (2, 0)
        restored(tmp_path / "place", tmp_path / "copy")
        with reading(tmp_path / "copy") as copy:
            assert copy.log("log") is not None


@pytest.mark.parametrize("place", PLACES)
def test_records_that_were_merged_across_the_last_head_are_cut_there(tmp_path: Path, place: str) -> None:
    with writing(tmp_path / "data") as store:
        ones(store, 2000)
        backed_up(store, tmp_path / place)
        first, head = everything(store), store.head()
        ones(store, 3000)
        seal_all(store)
        (record,) = store.read_records(head, EventFilter(), ReadLimits(events_max=1)).records
        assert record.position < head < record.last
        written = backed_up(store, tmp_path / place)
        assert written.new_events == store.head() - head
        places = [tuple(map(int, re.findall(r"\d+", member.path))) for member in written.manifest.history]
        assert places == [(1, head), (head + 1, store.head())]
        restored(tmp_path / place, tmp_path / "copy")
        restored(tmp_path / place, tmp_path / "older", number=1)
        with reading(tmp_path / "copy") as copy, reading(tmp_path / "older") as older:
            check_same(store, copy)
            # Those of the first backup were not sealed then.
            assert (store.sealed(), copy.sealed()) == (4096, 1)
            assert everything(older) == first


# ---------------------------------------------------------------- while it is written


class Interrupted(SqliteReader):
    """A store in which something happens between the state and the records that a backup reads, once."""

    happens: Callable[[], None] | None = None

    def state(self) -> StoreState:
        state = super().state()
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return state


def test_events_and_seals_during_a_backup_are_not_in_it(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        ones(store, 300)
        before, state = everything(store), store.state()

        def more() -> None:
            ones(store, 4500)
            seal_all(store)

        reader = Interrupted(tmp_path / "data")
        reader.happens = more
        backed_up(reader, tmp_path / "place")
        reader.close()
        restored(tmp_path / "place", tmp_path / "copy")
        with reading(tmp_path / "copy") as copy:
            assert everything(copy) == before
            check_state(state, copy.state())
        back_up_directory(tmp_path / "data", tmp_path / "place")
        restored(tmp_path / "place", tmp_path / "whole")
        with reading(tmp_path / "whole") as whole:
            check_same(store, whole)


def test_what_is_erased_during_a_backup_is_in_its_ledger(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        do_one(store, AddLog("log"))
        say(store, "log", 1, 2)
        append(store, "s", some(3))

        def erase() -> None:
            do_one(store, DeleteLog("log"))
            do_one(store, HideStream("shop", "s"))
            append(store, "t", some(1))

        reader = Interrupted(tmp_path / "data")
        reader.happens = erase
        backed_up(reader, tmp_path / "place")
        reader.close()
        restored(tmp_path / "place", tmp_path / "copy")
        with reading(tmp_path / "copy") as copy:
            check_same(store, copy)
            assert copy.logs("", 10) == []


# ---------------------------------------------------------------- of something else


@pytest.mark.parametrize("place", PLACES)
def test_a_place_with_backups_of_another_store_is_refused_and_left_as_it_is(tmp_path: Path, place: str) -> None:
    for name in ("data", "other"):
        with writing(tmp_path / name) as store:
            append(store, "s", some(3))
    back_up_directory(tmp_path / "data", tmp_path / place)
    files = files_of(tmp_path / place)
    with pytest.raises(PlaceRefused, match=r"of another store.*back up to another place"):
        back_up_directory(tmp_path / "other", tmp_path / place)
    assert files_of(tmp_path / place) == files
    restored(tmp_path / place, tmp_path / "copy")


def test_a_place_with_backups_of_another_timeline_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
    back_up_directory(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "copy")
    with pytest.raises(PlaceRefused, match="timeline 1, and the store is on timeline 2; back up to another place"):
        back_up_directory(tmp_path / "copy", tmp_path / "place")


def test_a_store_that_was_put_back_by_hand_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
    older = files_of(tmp_path / "data")
    with writing(tmp_path / "data") as store:
        append(store, "s", some(1))
        backed_up(store, tmp_path / "place")
    for name, data in older.items():
        (tmp_path / "data" / name).write_bytes(data)
    with pytest.raises(PlaceRefused, match="has 4 events, and the store has 3"):
        back_up_directory(tmp_path / "data", tmp_path / "place")


def test_a_record_that_was_cut_has_nothing_left_of_what_is_erased_in_its_other_part(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "erased", some(10, type="SecretHappened"))
        backed_up(store, tmp_path / "place")
        ones(store, 5000)
        seal_all(store)
        backed_up(store, tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "copy")
    with writing(tmp_path / "copy") as copy:
        do_one(copy, HideStream("shop", "erased"))
        erase_all(copy)
    assert [name for name, data in files_of(tmp_path / "copy").items() if b"SecretHappened" in data] == []
