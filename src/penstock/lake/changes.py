"""Changing a lake: what is planned is recorded first, what was written is recorded next, the manifest comes last.

A *plan* says what is under way. It is followed by a *change*: which files come and which go. From then on the change
is carried out by whoever finds it, as often as that takes; before that, nothing has happened that anybody could see.
Only where files cannot be written aside, a plan that was interrupted may have left some: then the next archive makes
the very same ranges again, over what is there.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Final

from penstock.errors import LakeDamaged, PlaceRefused
from penstock.lake.layout import MANIFEST, OWN, PENDING, is_passed_over, named
from penstock.lake.manifests import FORMAT_VERSION, LakeFile, Manifest, decode, encode, opened, sealed
from penstock.lake.places import LakePlace
from penstock.lake.reading import Span

ARCHIVE: Final = "archive"
REWRITE: Final = "rewrite"
COMPACT: Final = "compact"
STRAYS_TOLD_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is under way: ranges that are archived, or rewritten because of erasures, or files that are made anew."""

    kind: str
    spans: tuple[Span, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Files that go and files that come, which make the manifest of this number. `staged` is by path."""

    kind: str
    number: int
    head: int
    erasures: int
    added: tuple[LakeFile, ...]
    staged: Mapping[str, str]
    removed: tuple[str, ...] = field(default=())


def record(place: LakePlace, plan: Plan) -> None:
    """Say what is going to be done."""
    place.replace(PENDING, sealed({"format": FORMAT_VERSION, "plan": asdict(plan)}))


def commit(place: LakePlace, manifest: Manifest, change: Change) -> Manifest:
    """Carry out a change; the manifest after it."""
    place.replace(PENDING, sealed({"format": FORMAT_VERSION, "change": asdict(change)}))
    return _carry_out(place, manifest, change)


def abandon(place: LakePlace) -> None:
    """Take a plan back that came to nothing, so that a full disk has its room again."""
    if place.stages_aside and (pending := place.find(PENDING)) is not None and _is_plan(pending):
        place.remove(PENDING)
        place.clear()


def _is_plan(pending: bytes) -> bool:
    return "plan" in json.loads(pending)


def finish(place: LakePlace) -> None:
    """Everything is done that was begun."""
    place.clear()
    place.remove(PENDING)


def _carry_out(place: LakePlace, manifest: Manifest, change: Change) -> Manifest:
    if manifest.number < change.number:
        _place(place, change)
        changed = {"head": change.head, "erasures": change.erasures}
        manifest = manifest.with_files(set(change.removed), list(change.added), **changed)
        place.replace(MANIFEST, encode(manifest))
    for path in change.removed:
        place.remove(path)
    return manifest


def _place(place: LakePlace, change: Change) -> None:
    if change.kind != COMPACT:
        place.publish(change.staged)
        return
    days = [(_day(path), path) for path in (*change.removed, *change.staged)]
    for day, _ in groupby(sorted(days), key=lambda each: each[0]):
        staged = {path: aside for path, aside in change.staged.items() if _day(path) == day}
        place.swap(day, {path for path in change.removed if _day(path) == day}, staged)


def _day(path: str) -> str:
    found = named(path)
    assert found is not None
    return found.day


# -- what is found


def find_manifest(place: LakePlace) -> Manifest | None:
    """The manifest of a lake, if there is one."""
    data = place.find(MANIFEST)
    return None if data is None else decode(place.shown, data)


def read_manifest(place: LakePlace) -> Manifest:
    """The manifest of a lake; raises PlaceRefused if there is no lake."""
    found = find_manifest(place)
    if found is None:
        reason = "there is no lake" if not place.files() else f"it holds no lake: there is no {MANIFEST}"
        raise PlaceRefused(place.shown, reason)
    return found


def recover(place: LakePlace, manifest: Manifest) -> tuple[Manifest, Plan | None]:
    """Finish what was interrupted, or take it back. Who calls this has the lake alone.

    A plan is left where it may have left files that are not in the manifest; an archive begins with it.
    """
    pending = pending_of(place)
    if isinstance(pending, Change):
        manifest = _carry_out(place, manifest, pending)
    elif pending is not None and not place.stages_aside:
        if pending.kind != COMPACT:
            return manifest, pending
        for path in set(pending.paths) - {file.path for file in manifest.files}:
            place.remove(path)
    finish(place)
    return manifest, None


def pending_of(place: LakePlace) -> Plan | Change | None:
    """What is under way, or was interrupted."""
    data = place.find(PENDING)
    if data is None:
        return None
    document = opened(place.shown, PENDING, data)
    try:
        if "plan" in document:
            return _plan(document["plan"])
        change = document["change"]
        added = tuple(LakeFile(**file) for file in change.pop("added"))
        return Change(**{**change, "removed": tuple(change["removed"])}, added=added)
    except (TypeError, KeyError, ValueError) as error:
        raise LakeDamaged(place.shown, PENDING, f"cannot be read: {error}") from error


def _plan(found: Mapping[str, Any]) -> Plan:
    return Plan(found["kind"], tuple(Span(*span) for span in found["spans"]), tuple(found["paths"]))


def check_new(place: LakePlace) -> None:
    """Refuse a place for a new lake that holds anything."""
    foreign = sorted(path for path in place.files() if not path.startswith(f"{OWN}/"))
    if foreign:
        raise PlaceRefused(place.shown, f"it holds other things: {_told(foreign)}; name an empty folder, or a new one")


def check_files(place: LakePlace, manifest: Manifest, plan: Plan | None) -> None:
    """Whether all files are there, and no others; raises LakeDamaged or PlaceRefused."""
    sizes = place.files()
    for file in manifest.files:
        if file.path not in sizes:
            raise place.missing(file.path)
        if sizes[file.path] != file.bytes and (plan is None or plan.kind != REWRITE):
            reason = f"has {sizes[file.path]} bytes, and had {file.bytes}"
            raise LakeDamaged(place.shown, file.path, reason)
    foreign = strays(sizes, manifest, plan)
    if foreign:
        reason = f"it holds files that are in no manifest: {_told(foreign)}; move them elsewhere"
        raise PlaceRefused(place.shown, reason)


def strays(paths: Collection[str], manifest: Manifest, plan: Plan | None) -> list[str]:
    """Files that readers of the folder would see, and that are not in the manifest."""
    known = {file.path for file in manifest.files}
    unknown = sorted(path for path in paths if path not in known and not is_passed_over(path))
    if plan is None or plan.kind != ARCHIVE:
        return unknown
    return [path for path in unknown if not is_of(path, plan)]


def is_of(path: str, plan: Plan) -> bool:
    """Whether a file may be one that was written for a plan of an archive."""
    found = named(path)
    return found is not None and any(span.first <= found.first <= found.last <= span.last for span in plan.spans)


def _told(paths: list[str]) -> str:
    more = len(paths) - STRAYS_TOLD_MAX
    return ", ".join(paths[:STRAYS_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
