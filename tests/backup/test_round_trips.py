"""A restore brings everything back, event by event and row by row."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model import Event
from penstock.store.contract import AddLog, HideEvents, HideStream, StoreState
from penstock.store.sqlite import SqliteStore
from tests.backup.support import (
    Stores,
    backed_up,
    check_same,
    check_state,
    erase_all,
    fill,
    furnish,
    reading,
    restored,
    say,
    seal_all,
    writing,
)
from tests.store.kit import Clock, append, do_one, everything, findings, some

PLACES = ["place", "place.tar"]


@pytest.mark.parametrize(("place", "commits"), [("place", 300), ("place.tar", 5000)])
def test_a_store_with_everything_in_it_comes_back(tmp_path: Path, stores: Stores, place: str, commits: int) -> None:
    clock = Clock()
    with stores.writing("data", clock) as store:
        furnish(store, clock, commits)
        assert (store.sealed() > 1) == (commits > 4096)
        written = backed_up(store, tmp_path / place)
        assert (written.manifest.number, written.new_events) == (1, store.head())
        report = restored(tmp_path / place, stores.url("copy"))
        assert (report.number, report.events, report.timeline) == (1, store.head(), 2)
        with stores.writing("copy", clock) as copy:
            check_same(store, copy)
            assert copy.sealed() == store.sealed()
            assert copy.open_erasures() == 0


def test_an_empty_store_comes_back(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        backed_up(store, tmp_path / "place")
        restored(tmp_path / "place", stores.url("copy"))
        with stores.writing("copy") as copy:
            check_same(store, copy)
            append(copy, "s", some(2))
            assert findings(copy) == []


def test_the_rows_that_find_records_are_those_that_appends_and_seals_write(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        fill(store, 6000)
        seal_all(store)
        fill(store, 200, seed=5)
        backed_up(store, tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "copy")
    assert _rows(tmp_path / "copy") == _rows(tmp_path / "data")


def _rows(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """Of streams and contexts the names, because numbers may be others."""
    name = "(SELECT name FROM contexts WHERE id = context_id)"
    stream = f"SELECT {name} || '/' || name FROM streams WHERE id = stream_id"
    queries = {
        "records": f"SELECT position, count, data, {name}, ({stream}) FROM records",
        "commits": f"SELECT ({stream}), last, position FROM commits",
        "blocks": f"SELECT {name}, block, top_before FROM blocks",
        "contexts": "SELECT name, events, commits, streams, bytes, top, block FROM contexts",
    }
    with reading(directory) as store:
        return {key: sorted(store.db.connection.execute(sql), key=repr) for key, sql in queries.items()}


def test_a_restored_store_can_be_backed_up_and_restored_again(tmp_path: Path, stores: Stores) -> None:
    clock = Clock()
    with stores.writing("data", clock) as store:
        furnish(store, clock)
        backed_up(store, tmp_path / "one")
        restored(tmp_path / "one", stores.url("copy"))
        with stores.reading("copy") as copy:
            backed_up(copy, tmp_path / "two.tar")
        assert restored(tmp_path / "two.tar", stores.url("copy2")).timeline == 3
        with stores.reading("copy") as copy, stores.reading("copy2") as copy2:
            check_same(copy, copy2)
            assert everything(copy2) == everything(store)


class _Moment:
    """A store as it was when a backup was taken."""

    def __init__(self, store: SqliteStore) -> None:
        self.events: list[Event] = everything(store)
        self.state: StoreState = store.state()


steps = st.lists(
    st.sampled_from(["append", "append", "many", "log", "hide", "ranges", "erase", "seal", "backup", "reopen"]),
    min_size=1,
    max_size=15,
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, place=st.sampled_from(PLACES), seed=st.integers(0, 1 << 20))
def test_every_backup_of_a_place_can_be_restored_without_what_was_erased_since(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], place: str, seed: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    moments = _lived(root / "data", [*steps, "backup"], root / place, random.Random(seed))
    newest = moments[-1]
    left = {found.position for found in newest.events}
    erased = {found.position for moment in moments for found in moment.events} - left
    for number, moment in enumerate(moments, start=1):
        target = root / f"copy-{number}"
        restored(root / place, target, number=number)
        with reading(target) as copy:
            assert everything(copy) == [found for found in moment.events if found.position not in erased]
            assert findings(copy) == []
            assert copy.head() == moment.state.head
            assert [row[0] for row in copy.state().tables["erasures"]] == [
                row[0] for row in newest.state.tables["erasures"]
            ]
            if number == len(moments):
                check_state(newest.state, copy.state())


def _lived(data: Path, steps: list[str], place: Path, chance: random.Random) -> list[_Moment]:
    """Carry out steps; the store at each backup."""
    moments: list[_Moment] = []
    store = SqliteStore(data, clock=Clock())
    do_one(store, AddLog("log"))
    for number, step in enumerate(steps):
        if step == "append":
            append(store, f"s{chance.randrange(4)}", some(chance.randrange(1, 4)))
        elif step == "many":
            fill(store, chance.choice([20, 20, 3000]), seed=number)
        elif step == "log":
            say(store, "log", number)
        elif step == "hide":
            do_one(store, HideStream("shop", f"s{chance.randrange(4)}"))
        elif step == "ranges" and store.head() > 1:
            first = chance.randrange(1, store.head())
            do_one(store, HideEvents(((first, first), (first + 1, first + 1)), ()))
        elif step == "erase":
            erase_all(store)
        elif step == "seal":
            seal_all(store)
        elif step == "reopen":
            store.close()
            store = SqliteStore(data, clock=Clock())
        elif step == "backup":
            backed_up(store, place)
            moments.append(_Moment(store))
    store.close()
    return moments
