"""The state of a lake, without Spark and without reading its files."""

from datetime import UTC, datetime
from typing import NamedTuple

from penstock.lake.changes import Change, pending_of, read_manifest
from penstock.lake.places import open_lake_place
from penstock.lake.sources import check_source, look


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
    """The state of a lake, and its lag if a store is named."""
    place = open_lake_place(lake)
    manifest, pending, holder = read_manifest(place), pending_of(place), place.holder()
    # A run that has just ended was not interrupted.
    is_left = holder is None and pending is not None and pending_of(place) == pending
    behind, erased = None, None
    if url is not None:
        source = look(url)
        check_source(place.shown, manifest, source)
        behind, erased = source.head - manifest.head, source.erasures > manifest.erasures
    times = [time for file in manifest.files for time in (file.recorded_min, file.recorded_max) if time is not None]
    first, last = (_iso(min(times)), _iso(max(times))) if times else (None, None)
    what = f"{pending.kind}{' (to be finished)' * isinstance(pending, Change)}" if pending and is_left else None
    return LakeStatus(
        *(place.shown, manifest.store, manifest.timeline, manifest.head, manifest.rows, len(manifest.files)),
        *(manifest.bytes, first, last, manifest.written),
        *(holder, what, behind, erased),
    )


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="seconds")
