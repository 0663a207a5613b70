"""Merges adjacent small files of a day into few large ones.

Readers of the folder see either all old files of a day or all new ones: a run builds a new folder and exchanges it with
the old one in one step (see `LakePlace.swap`). Then it writes the manifest, day by day. In between, readers of the
manifest use the recorded change (`read_manifest`).
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from penstock.errors import LakeDamaged
from penstock.lake.archiver import stage_file
from penstock.lake.changes import COMPACT, LakeTask, StagedFile, check_files, lake_writer, read_manifest, task_of
from penstock.lake.manifests import LakeFile
from penstock.lake.parquet import FileContents, in_order
from penstock.lake.places import absolute, open_lake_place, open_seen_place
from penstock.lake.slices import EVENTS_BYTES_MAX, ROW_BYTES
from penstock.lake.verification import read_whole
from penstock.spark.parallel import Session
from penstock.store.contract import Progressed

FILE_BYTES: Final = 128 << 20


class Compacted(NamedTuple):
    """The result: how many files became how many, and how many files the lake has now."""

    replaced: int
    made: int
    files: int


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
    place = open_lake_place(lake)
    read_manifest(place)
    with place.lock("compact", patience_s), lake_writer(place, iceberg=iceberg) as writer:
        before = writer.manifest
        check_files(place, before)
        tasks = [task_of(*group) for group in groups_of(before.files, file_bytes)]
        merge, reached = partial(_merge, absolute(lake)), lambda position: progressed(position, before.head)
        for part, staged in writer.rounds(spark, COMPACT, tasks, merge, reached):
            # Day by day: readers of the folder see each day before or after.
            for _, pairs in groupby(zip(part, staged, strict=True), key=lambda pair: pair[1].file.day):
                merged = list(pairs)
                removed = [file.path for task, _ in merged for file in task.files]
                writer.commit(COMPACT, [each for _, each in merged], removed)
    return Compacted(sum(len(task.files) for task in tasks), len(tasks), len(writer.manifest.files))


def _merge(lake: str, task: LakeTask) -> StagedFile:
    """Write one file with the contents of several, which are checked."""
    place, files = open_seen_place(lake), task.files
    parts = [read_whole(place, file) for file in files]
    # Each file is sorted, and they come by position. A stable sort keeps the order within each stream.
    rows = in_order(rows for rows, _ in parts)
    if rows.num_rows != sum(file.rows for file in files):
        raise LakeDamaged(place.shown, files[0].path, "has other events than the manifest says")
    erased = [each for _, erased in parts for each in erased]
    return stage_file(place, FileContents(files[0].day, *task.span, rows, erased))
