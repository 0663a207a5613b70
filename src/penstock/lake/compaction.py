"""Merges adjacent small files of a day into few large ones.

Readers of the folder see either all old files of a day or all new ones: a run builds a new folder and exchanges it with
the old one in one step (see `LakePlace.swap`). Then it writes the manifest, day by day. In between, readers of the
manifest use the recorded change (`read_manifest`).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from penstock.errors import LakeDamaged
from penstock.lake.archiver import ROUND_RANGES, Written, on_manifest, stage_file
from penstock.lake.changes import (
    COMPACT,
    Change,
    OnManifest,
    Plan,
    abandon,
    check_files,
    commit,
    finish,
    read_manifest,
    record,
    recover,
)
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.parquet import FileContents, in_order
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.slices import EVENTS_BYTES_MAX, ROW_BYTES
from penstock.lake.verification import read_whole
from penstock.model import PositionRange
from penstock.spark.parallel import Session, event_progress, parallel_map
from penstock.store.contract import Progressed

FILE_BYTES: Final = 128 << 20
"""About how large files become by default."""


class Compacted(NamedTuple):
    """The result: how many files became how many, and how many files the lake has now."""

    replaced: int
    made: int
    files: int


class _Task(NamedTuple):
    lake: str
    files: tuple[LakeFile, ...]


def groups_of(files: Sequence[LakeFile], file_bytes: int) -> list[tuple[LakeFile, ...]]:
    """Groups of files to merge: adjacent small ones of the same day that fit into one file."""

    def fit(files: Sequence[LakeFile], times: int = 1) -> bool:
        memory = sum(file.event_bytes + ROW_BYTES * file.rows for file in files)
        size = sum(file.bytes for file in files)
        return times * size <= file_bytes and times * memory <= EVENTS_BYTES_MAX

    groups: list[list[LakeFile]] = []
    for file in files:
        last = groups[-1] if groups else None
        # A file that is more than half full stays as it is, so that no run rewrites it again and again.
        are_small = last is not None and fit(last[:1], 2) and fit([file], 2)
        if last is not None and are_small and last[-1].day == file.day and fit([*last, file]):
            last.append(file)
        else:
            groups.append([file])
    return [tuple(group) for group in groups if len(group) > 1]


def compact(
    spark: Session,
    lake: str,
    progressed: Progressed,
    file_bytes: int = FILE_BYTES,
    *,
    iceberg: bool = True,
    patience_s: float = 0.0,
) -> Compacted:
    """Compact a lake. It waits up to `patience_s` for the lock. Readers need not wait."""
    place, follow = open_lake_place(lake), on_manifest(iceberg=iceberg)
    read_manifest(place)
    with place.lock("compact", patience_s):
        manifest = recover(place, follow)
        check_files(place, manifest)
        groups = groups_of(manifest.files, file_bytes)
        try:
            for number in range(0, len(groups), ROUND_RANGES):
                part = groups[number : number + ROUND_RANGES]
                record(place, Plan(COMPACT, tuple(PositionRange(group[0].first, group[-1].last) for group in part)))
                done = part[0][0].first - 1
                report = event_progress(progressed, done, part[-1][-1].last - done, manifest.head)
                written = parallel_map(spark, [_Task(absolute(lake), group) for group in part], _merge, report)
                manifest = replace_files(place, manifest, part, written, follow)
                finish(place)
        except BaseException:
            abandon(place)
            raise
        follow(place, manifest)
    return Compacted(sum(map(len, groups)), len(groups), len(manifest.files))


def replace_files(
    place: LakePlace,
    manifest: Manifest,
    groups: Sequence[tuple[LakeFile, ...]],
    written: Sequence[Written],
    on_manifest: OnManifest,
) -> Manifest:
    """Replace files by others, day by day; returns the manifest after it."""
    for _, pairs in groupby(zip(groups, written, strict=True), key=lambda pair: pair[1].file.day):
        mine = list(pairs)
        added = tuple(each.file for _, each in mine)
        staged = {each.file.path: each.staged for _, each in mine}
        removed = tuple(file.path for group, _ in mine for file in group)
        number, head, erasures = manifest.number + 1, manifest.head, manifest.erasures
        manifest = commit(place, manifest, Change(COMPACT, number, head, erasures, added, staged, removed), on_manifest)
    return manifest


def _merge(task: _Task) -> Written:
    return merge_files(open_seen_place(task.lake), task.files)


def merge_files(place: LakePlace, files: tuple[LakeFile, ...]) -> Written:
    """Write one file with the contents of several, which are checked."""
    parts = [read_whole(place, file) for file in files]
    # Each file is sorted, and they come by position. A stable sort keeps the order within each stream.
    rows = in_order(rows for rows, _ in parts)
    if rows.num_rows != sum(file.rows for file in files):
        raise LakeDamaged(place.shown, files[0].path, "has other events than the manifest says")
    erased = [each for _, erased in parts for each in erased]
    return stage_file(place, FileContents(files[0].day, files[0].first, files[-1].last, rows, erased))
