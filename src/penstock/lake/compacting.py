"""Making few large files of many small ones: those of one day that lie next to each other.

Whoever reads the folder sees a day as it was or as it is, never both or neither: the folder is built anew, and takes
the old one's place in one step (see `LakePlace.swap`). The manifest is written right after it, day by day; until then
those who read by the manifest go by the change that is recorded (`read_manifest`).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from penstock.errors import LakeDamaged
from penstock.lake.archiving import ROUND_RANGES, Written, following, stage_piece
from penstock.lake.changes import (
    COMPACT,
    Change,
    Followed,
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
from penstock.lake.parquet import Erased, Piece, in_order
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.reading import PIECE_BYTES_MAX, ROW_BYTES
from penstock.lake.verifying import read_whole
from penstock.model import PositionRange
from penstock.spark.parallel import Session, parallel_map
from penstock.store.contract import Progressed

FILE_BYTES: Final = 128 << 20
"""About how large files become, unless that is told otherwise."""
FULL_PART: Final = 2
"""A file that has this part of what it may have is left as it is, so that nothing is written again and again."""


class Compacted(NamedTuple):
    """What a compaction did: how many files became how many, and how many files the lake has now."""

    replaced: int
    made: int
    files: int


class _Task(NamedTuple):
    lake: str
    files: tuple[LakeFile, ...]


def groups_of(files: Sequence[LakeFile], file_bytes: int) -> list[tuple[LakeFile, ...]]:
    """Files that become one: small ones of the same day in a row, which go into one file together."""
    groups: list[list[LakeFile]] = []
    for file in files:
        last = groups[-1] if groups else None
        if last and last[-1].day == file.day and not _is_full([file], file_bytes) and _fits([*last, file], file_bytes):
            last.append(file)
        else:
            groups.append([file])
    return [tuple(group) for group in groups if len(group) > 1]


def _fits(files: Sequence[LakeFile], file_bytes: int) -> bool:
    is_first_full = _is_full(files[:1], file_bytes)
    return not is_first_full and sum(file.bytes for file in files) <= file_bytes and _raw(files) <= PIECE_BYTES_MAX


def _is_full(files: Sequence[LakeFile], file_bytes: int) -> bool:
    size, raw = sum(file.bytes for file in files), _raw(files)
    return FULL_PART * size > file_bytes or FULL_PART * raw > PIECE_BYTES_MAX


def _raw(files: Sequence[LakeFile]) -> int:
    """What files take in memory, text and the like aside."""
    return sum(file.event_bytes + ROW_BYTES * file.rows for file in files)


def compact(
    spark: Session,
    lake: str,
    progressed: Progressed,
    file_bytes: int = FILE_BYTES,
    *,
    iceberg: bool = True,
    patience_s: float = 0.0,
) -> Compacted:
    """Compact a lake. Nobody may archive to it meanwhile, and it is waited so long for who does; everybody may read."""
    place, followed = open_lake_place(lake), following(iceberg=iceberg)
    read_manifest(place)
    with place.lock("compact", patience_s):
        manifest = recover(place, followed)
        check_files(place, manifest)
        groups = groups_of(manifest.files, file_bytes)
        try:
            for part in _rounds(groups):
                manifest = _round(spark, lake, place, manifest, part, progressed, followed)
        except BaseException:
            abandon(place)
            raise
        followed(place, manifest)
    return Compacted(sum(map(len, groups)), len(groups), len(manifest.files))


def _rounds(groups: list[tuple[LakeFile, ...]]) -> Iterator[list[tuple[LakeFile, ...]]]:
    for number in range(0, len(groups), ROUND_RANGES):
        yield groups[number : number + ROUND_RANGES]


def _round(
    spark: Session,
    lake: str,
    place: LakePlace,
    manifest: Manifest,
    groups: list[tuple[LakeFile, ...]],
    progressed: Progressed,
    followed: Followed,
) -> Manifest:
    record(place, Plan(COMPACT, tuple(PositionRange(group[0].first, group[-1].last) for group in groups)))
    done, total = groups[0][0].first - 1, manifest.head
    events = groups[-1][-1].last - done
    tasks = [_Task(absolute(lake), group) for group in groups]
    written = parallel_map(spark, tasks, _merge, lambda share: progressed(done + int(share * events), total))
    manifest = replace_files(place, manifest, groups, written, followed)
    finish(place)
    return manifest


def replace_files(
    place: LakePlace,
    manifest: Manifest,
    groups: Sequence[tuple[LakeFile, ...]],
    written: Sequence[Written],
    followed: Followed,
) -> Manifest:
    """Put files in the place of others, day by day; the manifest after it."""
    for _, pairs in groupby(zip(groups, written, strict=True), key=lambda pair: pair[1].file.day):
        mine = list(pairs)
        added = tuple(each.file for _, each in mine)
        staged = {each.file.path: each.staged for _, each in mine}
        removed = tuple(file.path for group, _ in mine for file in group)
        number, head, erasures = manifest.number + 1, manifest.head, manifest.erasures
        manifest = commit(place, manifest, Change(COMPACT, number, head, erasures, added, staged, removed), followed)
    return manifest


def _merge(task: _Task) -> Written:
    """Write the file that is made of others, which are checked as they are read."""
    return merged(open_seen_place(task.lake), task.files)


def merged(place: LakePlace, files: tuple[LakeFile, ...]) -> Written:
    """Write a file that has all that others have."""
    parts = [read_whole(place, file) for file in files]
    # Each is sorted, and they come by position: the sort is stable, so that it stays so in each stream.
    rows = in_order(rows for rows, _ in parts)
    if rows.num_rows != sum(file.rows for file in files):
        raise LakeDamaged(place.shown, files[0].path, "has other events than the manifest says")
    erased: list[Erased] = [each for _, gone in parts for each in gone]
    return stage_piece(place, Piece(files[0].day, files[0].first, files[-1].last, rows, erased))
