"""Power cuts: what was answered is there, what was being written is there wholly or not at all."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError, StorageFailure
from penstock.model import ANY, EventFilter, new_event
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, ReadLimits, Transaction
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.database import SqliteDatabase
from tests.faults.powercut import Disk
from tests.faults.support import findings
from tests.seeds import rng
from tests.soak.power import power_cut

CUTS = 40
REACHING_CUTS_MAX = 400
CAUGHT = 5


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_a_power_cut_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    for seed in rng("power cuts").sample(range(1 << 32), CUTS):
        (tmp_path / str(seed)).mkdir()
        assert power_cut(seed, tmp_path / str(seed)).violations == [], f"seed {seed}"


def test_the_cuts_reach_checkpoints_failed_syncs_and_batches_in_flight(tmp_path: Path) -> None:
    cuts = []
    reached: dict[str, bool] = {}
    # How far checkpoints and erasures come before a cut depends on the machine: a busy one needs more cuts.
    for seed in range(100, 100 + REACHING_CUTS_MAX):
        (tmp_path / str(seed)).mkdir()
        cuts.append(power_cut(seed, tmp_path / str(seed)))
        assert cuts[-1].violations == [], f"seed {seed}"
        reached = {
            "survived": any(cut.survived for cut in cuts),
            "batches": any(cut.batches > 20 for cut in cuts),
            "failed syncs": any(cut.failed_syncs > 1 for cut in cuts),
            "seals": any(cut.seals > 3 for cut in cuts),
            "erased": any(cut.erased > 20 for cut in cuts),
        }
        if len(cuts) >= CUTS and all(reached.values()):
            return
    pytest.fail(f"the cuts reached only {reached}")


def test_a_store_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    caught = 0
    # How much a cut takes from such a store depends on the machine: a quick disk needs more cuts.
    for seed in range(REACHING_CUTS_MAX):
        (tmp_path / str(seed)).mkdir()
        caught += bool(power_cut(seed, tmp_path / str(seed), synchronous="off").violations)
        if caught == CAUGHT:
            return
    pytest.fail(f"only {caught} of {REACHING_CUTS_MAX} cuts were noticed")


# --- three particular histories -------------------------------------------------------------------------------


def _write(store: SqliteStore, events: int = 20) -> None:
    columns = columns_of([new_event("made", bytes([n % 256]) * 500) for n in range(events)])
    (outcome,) = store.write([Transaction((Commit("c", "s", ANY, columns),))])
    assert isinstance(outcome, list)


def _check_left(disk: Disk, directory: Path, head: int) -> list[str]:
    """Cut the power, and say what is wrong with what is left. More than was shown may be there, never less."""
    disk.cut()
    disk.leave(directory)
    try:
        store = SqliteStore(directory)
        found = store.head()
        store.close()
        return [f"the head is {found}, not {head}"] if found < head else findings(directory)
    except PenstockError as error:
        return [str(error)]


def test_what_a_killed_server_left_unsynced_is_durable_before_the_next_one_shows_it(tmp_path: Path) -> None:
    shown = []
    for seed in range(12):
        with Disk(seed) as disk:
            store = SqliteStore(tmp_path / f"{seed}", vfs=disk.vfs)
            _write(store)
            # The server dies when it has written a commit and not synced it. The page cache lives on.
            disk.die_at_sync()
            with pytest.raises(StorageFailure):
                _write(store)
            store.close()
            disk.live_again()
            store = SqliteStore(tmp_path / f"{seed}", vfs=disk.vfs)
            shown.append(store.head())
            disk.cut()
            store.close()
            assert _check_left(disk, tmp_path / f"{seed}-left", shown[-1]) == []
    assert 40 in shown


def _failed_checkpoint(seed: int, directory: Path) -> list[str]:
    """Pages are copied but not synced, the sync that would do it fails, and the WAL is used again."""
    with Disk(seed) as disk:
        store = SqliteStore(directory / "store", vfs=disk.vfs)
        checkpoint = store._checkpointer.copy
        for _ in range(5):
            _write(store)
        reader = SqliteReader(directory / "store")
        with reader.db.snapshot():
            reader.head()
            _write(store)
            # The reader keeps this from being complete, so SQLite does not sync the file after it.
            checkpoint(store.db)
        reader.close()
        _write(store)
        disk.failing_syncs = frozenset({disk.syncs + 2})
        with pytest.raises(StorageFailure):
            checkpoint(store.db)
        checkpoint(store.db)
        # All of the WAL counts as copied: this begins it anew.
        _write(store)
        wrong = _check_left(disk, directory / "left", 8 * 20)
        store.close()
        return wrong


def test_a_failed_sync_of_the_file_loses_no_page_that_was_copied_before(tmp_path: Path) -> None:
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        assert _failed_checkpoint(seed, tmp_path / str(seed)) == []


def test_without_copying_again_a_failed_sync_of_the_file_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteDatabase, "copy_again", lambda self: None)
    wrong = []
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        wrong += _failed_checkpoint(seed, tmp_path / str(seed))
    assert wrong


def test_what_the_store_shows_after_recovering_from_a_failed_sync_is_durable(tmp_path: Path) -> None:
    for seed in range(12):
        with Disk(seed) as disk:
            store = SqliteStore(tmp_path / f"{seed}", vfs=disk.vfs)
            _write(store)
            disk.failing_syncs = frozenset({disk.syncs + 1})
            with pytest.raises(StorageFailure):
                _write(store)
            store.recover()
            head = store.head()
            assert len(store.read_all(1, EventFilter(), ReadLimits()).events) == head
            wrong = _check_left(disk, tmp_path / f"{seed}-left", head)
            store.close()
            assert wrong == []
