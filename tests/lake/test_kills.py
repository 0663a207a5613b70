"""A run that is killed at any step: whoever reads the folder never sees an event twice, and the next run mends all.

Every call that changes the file system is a step. A kill is an exception from that step on: nothing that is tried
afterwards, to tidy up for example, has any effect either.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.errors import LakeDamaged, StoreError
from penstock.lake import archiver as lake_archiver
from penstock.lake import changes, local
from penstock.lake.changes import Change, pending_of
from penstock.lake.compaction import Compacted
from penstock.lake.manifests import MANIFEST
from penstock.lake.places import open_lake_place
from penstock.store.contract import HideStream
from tests.lake.support import archive, compact, erase, fill, is_same, manifest_of, numbers, quiet, store_rows

STEPS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "fsync", "ftruncate", "pwrite")


class Killed(BaseException):
    """What a process that is killed does not live to see."""


class Steps:
    """Counts steps, and kills at one of them."""

    def __init__(self, last: int | None) -> None:
        self.count, self._last = 0, last

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self._last is not None and self.count > self._last:
                raise Killed
            return call(*given, **named)

        return step


@contextmanager
def killed_after(steps: int | None, *, has_exchange: bool = True) -> Iterator[Steps]:
    counting = Steps(steps)
    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counting.before(getattr(os, name)))
        exchange = local.exchanged if has_exchange else _cannot
        patch.setattr(local, "exchanged", counting.before(exchange))
        yield counting


def _cannot(_one: Path, _other: Path) -> None:
    raise OSError(errno.EINVAL, "no such thing here")


def every_kill(run: Callable[[], object], lake: Path, keep: Path, *, has_exchange: bool = True) -> Iterator[int]:
    """Run something again and again on the same lake, killed one step later each time; afterwards it is whole."""
    shutil.copytree(lake, keep)
    for steps in range(1000):
        shutil.rmtree(lake)
        shutil.copytree(keep, lake)
        try:
            with killed_after(steps, has_exchange=has_exchange):
                run()
        except Killed:
            yield steps
        else:
            assert steps > 20
            return
    raise AssertionError("it had not come to its end")


def positions(lake: Path) -> list[int]:
    """What somebody sees who reads all Parquet that there is."""
    files = [pq.ParquetFile(path).read(["position"]) for path in lake.glob("**/*.parquet")]
    return sorted(position for file in files for position in file["position"].to_pylist())


def named_positions(lake: Path) -> list[int]:
    """What somebody sees who reads by the manifest."""
    files = [pq.ParquetFile(lake / file.path).read(["position"]) for file in manifest_of(lake).files]
    return sorted(position for file in files for position in file["position"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_an_archive_killed_at_any_step_loses_and_doubles_nothing(
    data: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "ROUND_TASKS", 1)
    monkeypatch.setattr(lake_archiver, "RANGE_BYTES", 1)
    archive(fill(data, numbers(1)), lake)
    fill(data, numbers(500), days=1)
    url = fill(data, numbers(2), days=2)
    for _ in every_kill(lambda: archive(url, lake), lake, tmp_path / "keep"):
        seen = positions(lake)
        assert len(seen) == len(set(seen))
        assert set(range(1, manifest_of(lake).head + 1)) <= set(seen)
        archive(url, lake)
        assert positions(lake) == list(range(1, 5031))
        assert [file.last for file in manifest_of(lake).files] == [10, 4095, 5010, 5030]
    assert is_same(url, lake)


def test_the_first_archive_killed_at_any_step_is_mended(data: Path, lake: Path, tmp_path: Path) -> None:
    url = fill(data, numbers(2))
    lake.mkdir()
    for _ in every_kill(lambda: archive(url, lake), lake, tmp_path / "keep"):
        archive(url, lake)
        assert positions(lake) == list(range(1, 21))
    assert is_same(url, lake)


def test_an_erasure_killed_at_any_step_is_followed_by_the_next_run(data: Path, lake: Path, tmp_path: Path) -> None:
    fill(data, [("people", "ann", numbers(1)[0][2]), *numbers(1)])
    url = fill(data, [*numbers(1), ("people", "ann", numbers(1)[0][2])], days=1)
    archive(url, lake)
    erase(data, HideStream("people", "ann"))
    living = [row[0] for row in store_rows(url)]
    for _ in every_kill(lambda: archive(url, lake), lake, tmp_path / "keep"):
        assert set(living) <= set(positions(lake)) <= set(range(1, 41))
        archive(url, lake)
        assert positions(lake) == living
    assert is_same(url, lake)


@pytest.mark.parametrize("has_exchange", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_compaction_killed_at_any_step_is_seen_whole_or_not_at_all(
    has_exchange: bool, data: Path, lake: Path, tmp_path: Path
) -> None:
    url = fill(data, [])
    for number in range(4):
        fill(data, numbers(1), days=number // 2)
        archive(url, lake)
    whole = list(range(1, 41))
    made: list[Compacted] = []
    run = lambda: made.append(compact(lake))  # noqa: E731
    for _ in every_kill(run, lake, tmp_path / "keep", has_exchange=has_exchange):
        # Without an exchange in one step, the folder of a day is away for a moment.
        seen = positions(lake)
        assert seen == whole or (not has_exchange and seen in (whole[:20], whole[20:]))
        # Who reads by the manifest finds what it names, before anybody has mended anything.
        assert seen != whole or named_positions(lake) == whole
        with killed_after(None, has_exchange=has_exchange):
            assert compact(lake).files == 2
        assert positions(lake) == whole
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert [path.name for path in (lake / "_penstock").iterdir() if path.name != "lock"] == ["manifest.json"]
    assert made == [(4, 2, 2)]
    assert is_same(url, lake)


def test_a_compaction_inside_an_interrupted_archive_finishes_that_first(data: Path, lake: Path) -> None:
    archive(fill(data, numbers(1)), lake)
    url = fill(data, numbers(1))
    with pytest.raises(Killed), killed_after(12):
        archive(url, lake)
    compact(lake)
    archive(url, lake)
    assert is_same(url, lake)


def test_a_change_whose_file_is_lost_is_not_taken_for_done(data: Path, lake: Path) -> None:
    archive(fill(data, numbers(1)), lake)
    url = fill(data, numbers(1))
    (aside,) = _asides(url, lake)
    aside.unlink()
    with pytest.raises(LakeDamaged, match=r"aside/.*\.new is not there"):
        archive(url, lake)
    assert manifest_of(lake).head == 10


def test_a_lake_that_is_a_mount_of_its_own_is_compacted_inside(data: Path, lake: Path) -> None:
    url = fill(data, numbers(1))
    archive(url, lake)
    archive(fill(data, numbers(1)), lake)
    compacting = f"from tests.lake.support import compact; print(compact({str(lake)!r}))"
    mounted = f"mount --bind '{lake}' '{lake}' && exec '{sys.executable}' -c \"{compacting}\""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts here")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mounted], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Compacted(replaced=2, made=1, files=1)\n", "")
    assert positions(lake) == list(range(1, 21))
    assert is_same(url, lake)


def test_what_failed_in_the_middle_of_a_change_is_finished_first(
    data: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(data, numbers(1))
    archiver = lake_archiver.Archiver(None, url, str(lake), iceberg=False)
    archiver.catch_up(quiet)
    fill(data, numbers(1))
    with monkeypatch.context() as patch:
        patch.setattr(local.LocalPlace, "replace", _full_for_manifests(local.LocalPlace.replace))
        with pytest.raises(StoreError, match="Nothing is lost"):
            archiver.catch_up(quiet)
    fill(data, numbers(1))
    assert archiver.catch_up(quiet).head == 30
    assert positions(lake) == list(range(1, 31))
    assert is_same(url, lake)


def _full_for_manifests(replace: Callable[..., None]) -> Callable[..., None]:
    def full(place: local.LocalPlace, path: str, written: bytes) -> None:
        with place.translated_errors():
            if path == MANIFEST:
                raise OSError(errno.ENOSPC, "No space left on device")
        replace(place, path, written)

    return full


def _asides(url: str, lake: Path) -> list[Path]:
    """What is aside in an archive that is killed right after its change was recorded."""
    for steps in range(100):
        with suppress(Killed), killed_after(steps):
            archive(url, lake)
        if isinstance(pending_of(open_lake_place(str(lake))), Change):
            return [path for path in (lake / "_penstock" / "aside").iterdir() if path.stat().st_size > 4000]
    raise AssertionError("no change was recorded")
