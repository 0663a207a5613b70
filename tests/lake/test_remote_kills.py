"""A run on a lake elsewhere that is killed at any write: nothing is lost or doubled, and the lake can be restored.

It is fsspec's memory, once as an object store, which copies, and once as another file system, which renames.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from penstock.lake import remote
from penstock.lake.manifests import LOCK, PENDING
from penstock.lake.places import open_lake_place
from penstock.lake.restore import restore_lake
from penstock.lake.verification import read_file
from penstock.store import store_url
from penstock.store.contract import HideStream
from tests.lake.support import archive, compact, erase, fill, manifest_of, numbers, stage, store_rows, verified
from tests.lake.test_kills import Killed, Steps
from tests.lake.test_places import positions

pytestmark = pytest.mark.long
"""`test_kills` does the same on this machine's disk, in every run."""

KEPT = "memory://lakes/kept"
STEPS = ("_write", "_take", "_delete")
"""What changes anything."""


@pytest.fixture(autouse=True, params=["objects", "names"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(remote, "SETTLE_S", 0.0)
    if request.param == "objects":
        monkeypatch.setattr(remote, "_OBJECTS", ("py::fsspec+memory",))
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/", recursive=True)


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    counting = Steps(steps)
    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(remote.RemotePlace, name, counting.before(getattr(remote.RemotePlace, name)))
        yield


def every_kill(run: Callable[[str], object], memory: Any) -> Iterator[str]:
    """Run something again and again on a copy of the same lake, killed one step later each time."""
    for steps in itertools.count():
        assert steps < 100, "it had not come to its end"
        lake = f"memory://lakes/{steps}"
        memory.copy(KEPT.removeprefix("memory://"), lake.removeprefix("memory://"), recursive=True)
        try:
            with killed_after(steps):
                run(lake)
        except Killed:
            # The lease has run out.
            open_place(lake)._delete(LOCK)
            yield lake
        else:
            assert steps > 8
            return


def open_place(lake: str) -> remote.RemotePlace:
    place = open_lake_place(lake)
    assert isinstance(place, remote.RemotePlace)
    return place


def test_an_archive_killed_at_any_step_is_finished_by_the_next(data: Path, memory: Any) -> None:
    archive(fill(data, numbers(1)), KEPT)
    fill(data, numbers(2))
    url = fill(data, numbers(2), days=1)
    for lake in every_kill(lambda lake: archive(url, lake), memory):
        seen = positions(lake)
        assert len(seen) == len(set(seen))
        assert set(range(1, manifest_of(lake).head + 1)) <= set(seen)
        archive(url, lake)
        assert positions(lake) == list(range(1, 51))
        assert verified(url, lake).differences == []
        assert open_place(lake).find(PENDING) is None


def test_an_erasure_killed_at_any_step_leaves_a_lake_that_can_be_restored(
    data: Path, memory: Any, tmp_path: Path
) -> None:
    fill(data, [*numbers(1), ("people", "ann", numbers(1)[0][2])])
    url = fill(data, [("people", "ann", numbers(1)[0][2]), *numbers(1)], days=1)
    archive(url, KEPT)
    before = store_rows(url)
    erase(data, HideStream("people", "ann"))
    for number, lake in enumerate(every_kill(lambda lake: archive(url, lake), memory)):
        restored = f"sqlite:///{tmp_path / str(number)}"
        restore_lake(lake, restored, stage)
        assert store_rows(restored) in (before, store_rows(url))
        archive(url, lake)
        assert verified(url, lake).differences == []
        assert len(positions(lake)) == 20


def test_a_compaction_killed_at_any_step_is_finished_by_the_next(data: Path, memory: Any) -> None:
    url = store_url(data)
    for day in (0, 0, 1, 1):
        archive(fill(data, numbers(1), days=day), KEPT)
    for lake in every_kill(compact, memory):
        # By the manifest it is whole at any time; who reads the folder may see events twice.
        place, manifest = open_place(lake), manifest_of(lake)
        assert sum(read_file(place, file)[0].num_rows for file in manifest.files) == 40
        assert set(positions(lake)) == set(range(1, 41))
        compact(lake)
        assert positions(lake) == list(range(1, 41))
        assert verified(url, lake).differences == []
