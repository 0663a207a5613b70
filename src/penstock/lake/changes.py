"""Changing a lake: first a run records its plan, then the files it has written, and the manifest comes last.

A *plan* says what a run does: tasks write temporary files, and readers see nothing of it. A *change* follows: which
files to add and which to remove. From then on any process that locks the lake can carry the change out, and repeat
that. Readers use `read_manifest` and never have to carry out anything.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, TypeVar

from penstock.errors import LakeDamaged, PenstockError, PlaceRefused
from penstock.files import flaw_of, made_of
from penstock.lake import manifests
from penstock.lake.iceberg import update_iceberg
from penstock.lake.manifests import FORMAT_VERSION, MANIFEST, PENDING, LakeFile, Manifest
from penstock.lake.places import LakePlace
from penstock.model import PositionRange
from penstock.spark.parallel import Session, parallel_map

ARCHIVE: Final = "archive"
REWRITE: Final = "rewrite"
COMPACT: Final = "compact"
KINDS: Final = (ARCHIVE, REWRITE, COMPACT)
ROUND_TASKS: Final = 64
"""Tasks of one round. Each round writes the manifest once."""
STRAYS_TOLD_MAX: Final = 3
AWAY_LOOKS_MAX: Final = 25
AWAY_LOOK_S: Final = 0.02
"""How often, and after how long, to look again for a day's folder that is missing for a moment."""

Result = TypeVar("Result")
OnPosition = Callable[[int], None]
"""Called with the position that a run has about reached."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run under way: ranges to archive, to rewrite because of erasures, or to compact."""

    kind: str
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Files to remove and files to add, which make the manifest `number`. `staged` has temporary names by path."""

    kind: str
    number: int
    head: int
    erasures: int
    added: tuple[LakeFile, ...]
    staged: Mapping[str, str]
    removed: tuple[str, ...] = ()


class LakeTask(NamedTuple):
    """The work of one task: positions, and the files that have them already."""

    span: PositionRange
    files: tuple[LakeFile, ...] = ()


class StagedFile(NamedTuple):
    """A file that a task has written, and its temporary name."""

    file: LakeFile
    aside: str


def task_of(*files: LakeFile) -> LakeTask:
    return LakeTask(PositionRange(files[0].first, files[-1].last), files)


def in_rounds(tasks: Sequence[LakeTask]) -> Iterator[Sequence[LakeTask]]:
    return (tasks[number : number + ROUND_TASKS] for number in range(0, len(tasks), ROUND_TASKS))


def run_round(
    spark: Session, tasks: Sequence[LakeTask], function: Callable[[LakeTask], Result], reached: OnPosition
) -> list[Result]:
    """Run a round of tasks, which come by position."""
    done = tasks[0].span.first - 1
    events = tasks[-1].span.last - done
    results = parallel_map(spark, tasks, function, lambda share: reached(done + int(share * events)))
    reached(done + events)
    return results


class LakeWriter:
    """A locked lake, and its manifest after the last change. `lake_writer` makes it."""

    def __init__(self, place: LakePlace, *, iceberg: bool) -> None:
        self._place, self._iceberg = place, iceberg
        self.manifest = recover(place, iceberg=iceberg)

    def rounds(
        self,
        spark: Session,
        kind: str,
        tasks: Sequence[LakeTask],
        function: Callable[[LakeTask], Result],
        reached: OnPosition,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Sequence[LakeTask], list[Result]]]:
        """Run tasks until `is_ending`; yields each round and its results, which the caller commits."""
        for part in in_rounds(tasks):
            if is_ending():
                return
            record(self._place, Plan(kind, tuple(task.span for task in part)))
            yield part, run_round(spark, part, function, reached)
            finish(self._place)

    def commit(
        self, kind: str, staged: Sequence[StagedFile], removed: Sequence[str] = (), *, head: int = 0, erasures: int = 0
    ) -> None:
        """Replace files, and write the next manifest. Its head and its last erasure never go back."""
        known = self.manifest
        added, asides = tuple(each.file for each in staged), {each.file.path: each.aside for each in staged}
        reached = max(head, known.head), max(erasures, known.erasures)
        change = Change(kind, known.number + 1, *reached, added, asides, tuple(removed))
        self._place.replace(PENDING, manifests.sealed({"format": FORMAT_VERSION, "change": asdict(change)}))
        self.manifest = _carry_out(self._place, known, change, iceberg=self._iceberg)


@contextmanager
def lake_writer(place: LakePlace, *, iceberg: bool) -> Iterator[LakeWriter]:
    """Change a locked lake, after finishing an interrupted run. If the block raises, its plan is undone."""
    writer = LakeWriter(place, iceberg=iceberg)
    try:
        yield writer
    except BaseException:
        # This frees disk space. If it fails, the next run does it.
        with suppress(PenstockError):
            if isinstance(pending_of(place), Plan):
                finish(place)
        raise
    if iceberg:
        update_iceberg(place, writer.manifest)


def record(place: LakePlace, plan: Plan) -> None:
    place.replace(PENDING, manifests.sealed({"format": FORMAT_VERSION, "plan": asdict(plan)}))


def finish(place: LakePlace) -> None:
    """Remove temporary files and the record of the change."""
    place.clear()
    place.remove(PENDING)


def _carry_out(place: LakePlace, manifest: Manifest, change: Change, *, iceberg: bool) -> Manifest:
    if manifest.number < change.number:
        if change.kind == COMPACT:
            for day in sorted({manifests.day_in(path) for path in (*change.removed, *change.staged)}):
                staged = {path: aside for path, aside in change.staged.items() if manifests.day_in(path) == day}
                place.swap(day, {path for path in change.removed if manifests.day_in(path) == day}, staged)
        else:
            place.publish(change.staged)
        manifest = _changed(manifest, change)
        place.replace(MANIFEST, manifests.encode(manifest))
    if iceberg:
        # Before files go that the table still names.
        update_iceberg(place, manifest)
    for path in change.removed:
        place.remove(path)
    return manifest


def _changed(manifest: Manifest, change: Change) -> Manifest:
    changed = {"head": change.head, "erasures": change.erasures}
    return manifest.with_files(set(change.removed), list(change.added), **changed)


# -- reading


def find_manifest(place: LakePlace) -> Manifest | None:
    data = place.find(MANIFEST)
    return None if data is None else manifests.decode(place.shown, data)


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


def recover(place: LakePlace, *, iceberg: bool = True) -> Manifest:
    """Finish or undo an interrupted run; returns the manifest after it. The caller holds the lock."""
    manifest, pending = _manifest(place), pending_of(place)
    if isinstance(pending, Change):
        _check_change(place, manifest, pending)
        manifest = _carry_out(place, manifest, pending, iceberg=iceberg)
    finish(place)
    return manifest


def pending_of(place: LakePlace) -> Plan | Change | None:
    """The plan or change of a run under way, or of an interrupted one."""
    data = place.find(PENDING)
    if data is None:
        return None
    document = manifests.opened(place.shown, PENDING, data)
    try:
        found: Plan | Change
        if "plan" in document:
            found = made_of(Plan, document["plan"])
        else:
            found = made_of(Change, document["change"])
            _check_paths(place, found)
        if found.kind not in KINDS:
            raise ValueError(f"it has the kind {found.kind!r}")
        return found
    except (TypeError, KeyError, ValueError) as error:
        raise LakeDamaged(place.shown, PENDING, f"cannot be read: {error}") from error


def _check_paths(place: LakePlace, change: Change) -> None:
    """A change may place temporary files as files of events, and remove files of events: nothing else."""
    manifests.check_entries(place.shown, PENDING, change.added)
    for path in (*change.removed, *change.staged):
        manifests.event_path(place.shown, PENDING, path)
    for aside in change.staged.values():
        if not manifests.is_aside(aside):
            reason = flaw_of(aside) or "is not a file that was written aside"
            raise LakeDamaged(place.shown, PENDING, f"names {aside!r}, which {reason}")
    if {file.path for file in change.added} != set(change.staged):
        raise LakeDamaged(place.shown, PENDING, "is not sound: it places other files than it adds")


def _check_change(place: LakePlace, manifest: Manifest, change: Change) -> None:
    """A change follows its manifest, has no gaps, and removes no file that the next manifest names."""
    if manifest.number < change.number:
        if change.number != manifest.number + 1:
            reason = f"is not sound: it is for manifest {change.number}, and the last one is {manifest.number}"
            raise LakeDamaged(place.shown, PENDING, reason)
        manifest = _changed(manifest, change)
        manifests.check(place.shown, PENDING, manifest)
    for path in sorted({file.path for file in manifest.files}.intersection(change.removed)):
        raise LakeDamaged(place.shown, PENDING, f"is not sound: it removes {path}, which the manifest names")
    place.check_inside((*change.removed, *change.staged, *change.staged.values()))


def check_new(place: LakePlace) -> None:
    """Raise PlaceRefused if a place for a new lake is not empty."""
    foreign = sorted(place.files())
    if foreign:
        raise PlaceRefused(place.shown, f"it holds other things: {_listing(foreign)}; name a new or empty folder")


def check_files(place: LakePlace, manifest: Manifest) -> None:
    """Raise LakeDamaged or PlaceRefused unless exactly the files of the manifest are there."""
    place.check_inside(file.path for file in manifest.files)
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
    return sorted(path for path in paths if path not in known and not manifests.is_passed_over(path))


def _listing(paths: list[str]) -> str:
    more = len(paths) - STRAYS_TOLD_MAX
    return ", ".join(paths[:STRAYS_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
