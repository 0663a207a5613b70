"""Changing a lake: first a run records its plan, then the files it has written, and the manifest comes last.

A *plan* says what a run does: tasks write temporary files, and readers see nothing of it. A *change* follows: which
files to add and which to remove. From then on any process that locks the lake can carry the change out, and repeat
that. Readers use `read_manifest` and never have to carry out anything.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from penstock.errors import LakeDamaged, PenstockError, PlaceRefused
from penstock.files import flaw_of, made_of
from penstock.lake.iceberg import update_iceberg
from penstock.lake.manifests import (
    FORMAT_VERSION,
    MANIFEST,
    PENDING,
    LakeFile,
    Manifest,
    check,
    check_entries,
    decode,
    encode,
    event_path,
    is_aside,
    is_passed_over,
    named,
    opened,
    sealed,
)
from penstock.lake.places import LakePlace
from penstock.model import PositionRange

ARCHIVE: Final = "archive"
REWRITE: Final = "rewrite"
COMPACT: Final = "compact"
KINDS: Final = (ARCHIVE, REWRITE, COMPACT)
STRAYS_TOLD_MAX: Final = 3
AWAY_LOOKS_MAX: Final = 25
AWAY_LOOK_S: Final = 0.02
"""How often, and after how long, to look again for a day's folder that is missing for a moment."""

OnManifest = Callable[[LakePlace, Manifest], None]
"""Called with each manifest, before the files go that it no longer names."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run under way: ranges to archive, to rewrite because of erasures, or to compact."""

    kind: str
    spans: tuple[PositionRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Files to remove and files to add, which make the manifest `number`. `staged` has temporary names by path."""

    kind: str
    number: int
    head: int
    erasures: int
    added: tuple[LakeFile, ...]
    staged: Mapping[str, str]
    removed: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Spans:
    """The fields of a plan in its document."""

    kind: str
    spans: tuple[tuple[int, int], ...]


def record(place: LakePlace, plan: Plan) -> None:
    """Record a plan."""
    place.replace(PENDING, sealed({"format": FORMAT_VERSION, "plan": asdict(plan)}))


def commit(place: LakePlace, manifest: Manifest, change: Change, on_manifest: OnManifest) -> Manifest:
    """Carry out a change; returns the manifest after it."""
    place.replace(PENDING, sealed({"format": FORMAT_VERSION, "change": asdict(change)}))
    return _carry_out(place, manifest, change, on_manifest)


def abandon(place: LakePlace) -> None:
    """Undo a plan that failed, to free its disk space. If that fails, the next run does it."""
    with suppress(PenstockError):
        if isinstance(pending_of(place), Plan):
            finish(place)


def finish(place: LakePlace) -> None:
    """Remove temporary files and the record of the change."""
    place.clear()
    place.remove(PENDING)


def _carry_out(place: LakePlace, manifest: Manifest, change: Change, on_manifest: OnManifest) -> Manifest:
    if manifest.number < change.number:
        if change.kind == COMPACT:
            for day in sorted({_day(path) for path in (*change.removed, *change.staged)}):
                staged = {path: aside for path, aside in change.staged.items() if _day(path) == day}
                place.swap(day, {path for path in change.removed if _day(path) == day}, staged)
        else:
            place.publish(change.staged)
        manifest = _changed(manifest, change)
        place.replace(MANIFEST, encode(manifest))
    on_manifest(place, manifest)
    for path in change.removed:
        place.remove(path)
    return manifest


def _changed(manifest: Manifest, change: Change) -> Manifest:
    changed = {"head": change.head, "erasures": change.erasures}
    return manifest.with_files(set(change.removed), list(change.added), **changed)


def _day(path: str) -> str:
    found = named(path)
    assert found is not None
    return found.day


# -- reading


def find_manifest(place: LakePlace) -> Manifest | None:
    data = place.find(MANIFEST)
    return None if data is None else decode(place.shown, data)


def read_manifest(place: LakePlace) -> Manifest:
    """The manifest that fits the files now, even during a change. Raises PlaceRefused if there is no lake.

    If a compaction has exchanged a day's folder, its new files count, even before the manifest names them.
    """
    # In this order: a run removes the change only after it has written the manifest.
    pending, manifest = pending_of(place), _manifest(place)
    if isinstance(pending, Change) and pending.kind == COMPACT and pending.number > manifest.number:
        return _changed(manifest, pending) if _is_placed(place, pending) else manifest
    return manifest


def _is_placed(place: LakePlace, change: Change) -> bool:
    """Whether the new files of a compaction are there. If folders are not exchanged in one step, neither may be."""
    for _ in range(AWAY_LOOKS_MAX):
        there = place.files()
        if all(path in there for path in change.staged):
            return True
        if all(path in there for path in change.removed):
            return False
        time.sleep(AWAY_LOOK_S)
    return False


def _manifest(place: LakePlace) -> Manifest:
    found = find_manifest(place)
    if found is None:
        reason = "there is no lake" if not place.files() else f"it holds no lake: there is no {MANIFEST}"
        raise PlaceRefused(place.shown, reason)
    return found


def recover(place: LakePlace, on_manifest: OnManifest = update_iceberg) -> Manifest:
    """Finish or undo an interrupted run; returns the manifest after it. The caller holds the lock."""
    manifest, pending = _manifest(place), pending_of(place)
    if isinstance(pending, Change):
        _check_change(place, manifest, pending)
        manifest = _carry_out(place, manifest, pending, on_manifest)
    finish(place)
    return manifest


def pending_of(place: LakePlace) -> Plan | Change | None:
    """The plan or change of a run under way, or of an interrupted one."""
    data = place.find(PENDING)
    if data is None:
        return None
    document = opened(place.shown, PENDING, data)
    try:
        found: Plan | Change
        if "plan" in document:
            plan = made_of(_Spans, document["plan"])
            found = Plan(plan.kind, tuple(PositionRange(*span) for span in plan.spans))
        else:
            change = document["change"]
            check_entries(place.shown, PENDING, change["added"])
            _check_paths(place, change["added"], change["removed"], change["staged"])
            found = made_of(Change, change)
        if found.kind not in KINDS:
            raise ValueError(f"it has the kind {found.kind!r}")
        return found
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise LakeDamaged(place.shown, PENDING, f"cannot be read: {error}") from error


def _check_paths(
    place: LakePlace, added: Sequence[dict[str, Any]], removed: Sequence[object], staged: Mapping[str, object]
) -> None:
    """A change may place temporary files as files of events, and remove files of events: nothing else."""
    for path in (*removed, *staged):
        event_path(place.shown, PENDING, path)
    for aside in staged.values():
        reason = flaw_of(aside) or (None if is_aside(str(aside)) else "is not a file that was written aside")
        if reason is not None:
            raise LakeDamaged(place.shown, PENDING, f"names {aside!r}, which {reason}")
    if {file["path"] for file in added} != set(staged):
        raise LakeDamaged(place.shown, PENDING, "is not sound: it places other files than it adds")


def _check_change(place: LakePlace, manifest: Manifest, change: Change) -> None:
    """A change follows its manifest, has no gaps, and removes no file that the next manifest names."""
    if manifest.number < change.number:
        if change.number != manifest.number + 1:
            reason = f"is not sound: it is for manifest {change.number}, and the last one is {manifest.number}"
            raise LakeDamaged(place.shown, PENDING, reason)
        manifest = _changed(manifest, change)
        check(place.shown, PENDING, manifest)
    for path in sorted({file.path for file in manifest.files}.intersection(change.removed)):
        raise LakeDamaged(place.shown, PENDING, f"is not sound: it removes {path}, which the manifest names")
    place.check_inside((*change.removed, *change.staged, *change.staged.values()))


def check_new(place: LakePlace) -> None:
    """Raise PlaceRefused if a place for a new lake is not empty."""
    foreign = sorted(place.files())
    if foreign:
        raise PlaceRefused(place.shown, f"it holds other things: {_listing(foreign)}; name a new or empty folder")


def check_links(place: LakePlace, manifest: Manifest) -> None:
    """Raise LakeDamaged if a file, or its folder, is a link out of the lake."""
    place.check_inside(file.path for file in manifest.files)


def check_files(place: LakePlace, manifest: Manifest) -> None:
    """Raise LakeDamaged or PlaceRefused unless exactly the files of the manifest are there."""
    check_links(place, manifest)
    sizes = place.files()
    for file in manifest.files:
        if file.path not in sizes:
            raise place.missing(file.path)
        if sizes[file.path] != file.bytes:
            reason = f"has {sizes[file.path]} bytes, and had {file.bytes}"
            raise LakeDamaged(place.shown, file.path, reason)
    foreign = strays(sizes, manifest)
    if foreign:
        reason = f"it holds files that are in no manifest: {_listing(foreign)}; move them elsewhere"
        raise PlaceRefused(place.shown, reason)


def strays(paths: Collection[str], manifest: Manifest) -> list[str]:
    """Files that readers of the folder would see, and that are not in the manifest."""
    known = {file.path for file in manifest.files}
    return sorted(path for path in paths if path not in known and not is_passed_over(path))


def _listing(paths: list[str]) -> str:
    more = len(paths) - STRAYS_TOLD_MAX
    return ", ".join(paths[:STRAYS_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
