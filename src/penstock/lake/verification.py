"""The state of a lake, and its comparison with its store: file by file, rows, digests and every byte."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from penstock.errors import LakeDamaged, LakeInUse, StoreError
from penstock.lake import changes
from penstock.lake.changes import LakeTask
from penstock.lake.manifests import LakeFile, Manifest, named
from penstock.lake.parquet import Erased, check_positions, decode, digest
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.slices import read_rows
from penstock.lake.sources import check_source, look
from penstock.model.address import addressed
from penstock.spark.parallel import Session
from penstock.store.contract import Progressed, StoreIdentity
from penstock.store.urls import absolute_url

LOOKS_MAX: Final = 3
"""How often to compare again because another process changes the lake."""


class LakeStatus(NamedTuple):
    """A lake at one moment. `behind` counts events not archived yet; `is_erasure_pending`: some were erased since.

    Both are None if no store was named. `interrupted` is the kind of run that was killed. Times are ISO 8601, in UTC.
    """

    lake: str
    store_id: str
    timeline: int
    head: int
    rows: int
    files: int
    bytes: int
    first_recorded: str | None
    last_recorded: str | None
    last_run: str
    in_use_by: str | None
    interrupted: str | None
    behind: int | None
    is_erasure_pending: bool | None


def status(lake: str, url: str | None = None) -> LakeStatus:
    """The state of a lake, and its lag if a store is named. This needs no Spark and reads no file of events."""
    place = open_lake_place(lake)
    manifest, pending, holder = changes.read_manifest(place), changes.pending_of(place), place.holder()
    # A run that has just ended was not interrupted.
    is_left = holder is None and pending is not None and changes.pending_of(place) == pending
    behind, erased = None, None
    if url is not None:
        source = look(url)
        check_source(place.shown, manifest, source)
        behind, erased = source.head - manifest.head, source.erasures > manifest.erasures
    times = [time for file in manifest.files for time in (file.recorded_min, file.recorded_max) if time is not None]
    first, last = (_iso(min(times)), _iso(max(times))) if times else (None, None)
    what = f"{pending.kind}{' (to be finished)' * isinstance(pending, changes.Change)}" if pending and is_left else None
    return LakeStatus(
        *(place.shown, manifest.store, manifest.timeline, manifest.head, manifest.rows, len(manifest.files)),
        *(manifest.bytes, first, last, manifest.written),
        *(holder, what, behind, erased),
    )


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="seconds")


# -- comparison


class Difference(NamedTuple):
    first: int
    last: int
    path: str
    what: str


class Verified(NamedTuple):
    """The result of a comparison. `behind` counts events of the store that are not archived yet."""

    files: int
    rows: int
    head: int
    behind: int
    differences: list[Difference]


def verify(spark: Session, url: str, lake: str, progressed: Progressed) -> Verified:
    """Compare a lake with its store. Other processes may work on both meanwhile."""
    place = open_lake_place(lake)
    _finish(place)
    good: set[LakeFile] = set()
    looks = 0
    while True:
        looks += 1
        # The manifest first: events archived after that are in the store.
        manifest = changes.read_manifest(place)
        source = look(url)
        check_source(place.shown, manifest, source)
        found = list(_compared(spark, url, lake, manifest, good, progressed))
        # A difference may be a change under way.
        if not found or looks == LOOKS_MAX or _is_unmoved(place, manifest):
            break
    found += _listed(place)
    if found and look(url).erasures > manifest.erasures:
        found = [each._replace(what=f"{each.what}; events were erased since: run lake archive") for each in found]
    return Verified(len(manifest.files), manifest.rows, manifest.head, source.head - manifest.head, found)


def _finish(place: LakePlace) -> None:
    """Finish an interrupted run, unless another process has the lock or the lake is read-only."""
    if changes.pending_of(place) is None:
        return
    with ExitStack() as held:
        try:
            held.enter_context(place.lock("verify"))
        except (LakeInUse, StoreError):
            return
        changes.recover(place)


def _is_unmoved(place: LakePlace, manifest: Manifest) -> bool:
    """Whether no process changes the lake, or has changed it since the manifest was read."""
    # In this order: a run removes the change only after it has written the manifest.
    return changes.pending_of(place) is None and changes.read_manifest(place).number == manifest.number


def _listed(place: LakePlace) -> Iterator[Difference]:
    """Files that no manifest names, unless a process is changing the lake now."""
    manifest = changes.read_manifest(place)
    paths = changes.strays(place.files(), manifest)
    if not _is_unmoved(place, manifest):
        return
    for path in paths:
        found = named(path)
        first, last = (found.first, found.last) if found else (0, 0)
        yield Difference(first, last, path, "is in no manifest")


def _compared(
    spark: Session, url: str, lake: str, manifest: Manifest, good: set[LakeFile], progressed: Progressed
) -> Iterator[Difference]:
    """Differences in files that are not in `good`; adds equal files to it."""
    tasks = [changes.task_of(file) for file in manifest.files if file not in good]
    check = partial(_check, absolute(lake), addressed(absolute_url(url)), manifest.identity)
    for part in changes.in_rounds(tasks):
        results = changes.run_round(spark, part, check, lambda position: progressed(position, manifest.head))
        for task, found in zip(part, results, strict=True):
            (file,) = task.files
            yield from (Difference(file.first, file.last, file.path, what) for what in found)
            if not found:
                good.add(file)


# -- in tasks


def _check(lake: str, url: str, identity: StoreIdentity, task: LakeTask) -> list[str]:
    """The differences of a file from the store and from the manifest."""
    (file,) = task.files
    rows, _ = read_rows(url, identity, task.span)
    found = list(_disagreements(file, "the store", rows))
    try:
        kept, _ = read_file(open_seen_place(lake), file)
    except LakeDamaged as error:
        return [*found, error.reason]
    return [*found, *_disagreements(file, "the file", kept)]


def _disagreements(file: LakeFile, who: str, rows: pa.Table) -> Iterator[str]:
    if rows.num_rows != file.rows:
        yield f"{who} has {rows.num_rows} events, and the manifest says {file.rows}"
    elif digest(rows) != file.digest:
        yield f"{who} has other events than the manifest says"


def read_whole(place: LakePlace, file: LakeFile) -> tuple[pa.Table, list[Erased]]:
    """The rows and the erased events of a file: together all of its positions. Raises LakeDamaged."""
    rows, erased = read_file(place, file)
    try:
        check_positions(file.first, file.last, rows, erased)
    except ValueError as error:
        raise LakeDamaged(place.shown, file.path, f"is not sound: {error}") from error
    return rows, erased


def read_file(place: LakePlace, file: LakeFile) -> tuple[pa.Table, list[Erased]]:
    """The rows and the erased events of a file. Raises LakeDamaged if the file was changed."""
    data = place.read(file.path)
    if data.size != file.bytes or xxh3_128_hexdigest(data) != file.checksum:
        raise LakeDamaged(place.shown, file.path, "does not have the checksum that the manifest says")
    try:
        return decode(data)
    except ValueError as error:
        raise LakeDamaged(place.shown, file.path, f"cannot be read: {error}") from error
