"""Brings a lake up to its store's head, exactly once even if processes are killed.

The manifest is the checkpoint. A streaming query would have another one, which could disagree, and its rows would pass
through the JVM. Here a round plans ranges of positions and records them. Each task reads a range and writes temporary
files; the driver gives them their names and writes the manifest. A long history takes several rounds, to keep what is
done. A process that follows a store locks the lake only while it catches up, so that others get their turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.lake import changes
from penstock.lake.changes import ARCHIVE, REWRITE, Change, OnManifest, Plan
from penstock.lake.iceberg import update_iceberg
from penstock.lake.manifests import MANIFEST, LakeFile, Manifest, encode
from penstock.lake.parquet import FileContents, encode_file
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.slices import read_rows, read_slices
from penstock.lake.sources import ErasedEvents, Source, check_source, erased_since, look, timelines
from penstock.model import PositionRange
from penstock.model.times import now_text
from penstock.spark.parallel import Session, event_progress, parallel_map
from penstock.store.contract import Progressed, StoreIdentity
from penstock.store.seals import SEALED_EVENTS

RANGE_BYTES: Final = 64 << 20
"""About how many bytes of events one task archives. It needs about seven times that in memory."""
ROUND_RANGES: Final = 64
"""Ranges of one round. Each round writes the manifest once."""


class Archived(NamedTuple):
    """The result of a run: new events, new files, and files rewritten because of erasures."""

    events: int
    files: int
    rewritten: int
    head: int


class Written(NamedTuple):
    file: LakeFile
    staged: str


class _Task(NamedTuple):
    """A range to archive, or a file to rewrite and its range."""

    lake: str
    url: str
    identity: StoreIdentity
    range: PositionRange
    file: LakeFile | None = None
    erased: ErasedEvents | None = None


def plan_ranges(first: int, head: int, event_bytes: float) -> list[PositionRange]:
    """Ranges of about the same number of bytes that begin at blocks of the store."""
    size = SEALED_EVENTS * max(1, round(RANGE_BYTES / (max(event_bytes, 1.0) * SEALED_EVENTS)))
    ranges = []
    while first <= head:
        end = first - first % SEALED_EVENTS + size
        ranges.append(PositionRange(first, min(end - 1, head)))
        first = end
    return ranges


def on_manifest(*, iceberg: bool) -> OnManifest:
    """A function to call after each manifest, which updates the Iceberg table if wanted."""
    return update_iceberg if iceberg else lambda _place, _manifest: None


class Archiver:
    """Brings a lake up to date, and its Iceberg table too. It locks the lake during each `catch_up`."""

    def __init__(self, spark: Session, url: str, lake: str, *, iceberg: bool = True) -> None:
        self._spark, self._url, self._lake = spark, absolute(url), absolute(lake)
        self._place, self._on_manifest = open_lake_place(lake), on_manifest(iceberg=iceberg)
        self.manifest: Manifest | None = None
        """The manifest after the last `catch_up`."""
        manifest, source = changes.find_manifest(self._place), look(self._url)
        if manifest is None:
            changes.check_new(self._place)
        else:
            check_source(self._place.shown, manifest, source)

    def catch_up(self, progressed: Progressed, is_ending: Callable[[], bool] = lambda: False) -> Archived:
        """Bring the lake up to the store's present head, or stop between two rounds if `is_ending` says so.

        Raises LakeInUse if another process works on the lake.
        """
        if self.manifest is not None and self._is_current(self.manifest):
            return Archived(0, 0, 0, self.manifest.head)
        place = self._place
        with place.lock("archive"):
            if changes.find_manifest(place) is None:
                source = look(self._url)
                known = timelines(self._url, source.identity)
                new = Manifest(*source.identity, known, 1, now_text(), erasures=source.erasures)
                place.replace(MANIFEST, encode(new))
            # Finish an interrupted run, and read the lake again: other processes may have changed it.
            before = changes.recover(place, self._on_manifest)
            if before != self.manifest:
                changes.check_files(place, before)
            source = look(self._url)
            check_source(place.shown, before, source)
            run = _Run(self._spark, self._url, self._lake, place, self._on_manifest, source, before)
            try:
                run.run(progressed, is_ending)
            except BaseException:
                changes.abandon(place)
                raise
            self._on_manifest(place, run.manifest)
            self.manifest = run.manifest
        files = len(self.manifest.files) - len(before.files)
        return Archived(self.manifest.head - before.head, files, run.rewritten, self.manifest.head)

    def _is_current(self, known: Manifest) -> bool:
        """Whether there is nothing to do. This needs no lock."""
        if changes.find_manifest(self._place) != known or changes.pending_of(self._place) is not None:
            return False
        source = look(self._url)
        is_same = (source.identity, source.head) == (known.identity, known.head)
        return is_same and source.erasures <= known.erasures


@dataclass(slots=True)
class _Run:
    """A locked lake, and the store as it was when the lock was taken."""

    spark: Session
    url: str
    lake: str
    place: LakePlace
    on_manifest: OnManifest
    source: Source
    manifest: Manifest
    rewritten: int = 0

    def run(self, progressed: Progressed, is_ending: Callable[[], bool]) -> None:
        """Rewrite files whose events were erased, and archive new events."""
        # After an erasure, progress counts all files first, and then the new events.
        source, is_behind = self.source, self.source.erasures > self.manifest.erasures
        start = 0 if is_behind else self.manifest.head

        def report(done: int, _: int) -> None:
            progressed(done - start, source.head - start)

        if is_behind:
            files, erased = self.manifest.files, erased_since(self.url, self.manifest.erasures)
            for number in range(0, len(files), ROUND_RANGES):
                if is_ending():
                    break
                self._rewrite(files[number : number + ROUND_RANGES], erased, report)
            else:
                self._commit(REWRITE, [], self.manifest.head, source.erasures)
        ranges = plan_ranges(self.manifest.head + 1, source.head, source.bytes / max(source.head, 1))
        for number in range(0, len(ranges), ROUND_RANGES):
            if is_ending():
                break
            self._archive(ranges[number : number + ROUND_RANGES], report)

    def _archive(self, ranges: Sequence[PositionRange], progressed: Progressed) -> None:
        changes.record(self.place, Plan(ARCHIVE, tuple(ranges)))
        tasks = [_Task(self.lake, self.url, self.source.identity, each) for each in ranges]
        head = self.manifest.head
        report = event_progress(progressed, head, ranges[-1].last - head, self.source.head)
        written = [each for result in parallel_map(self.spark, tasks, _write, report) for each in result]
        self._commit(ARCHIVE, written, ranges[-1].last, self.manifest.erasures)
        progressed(self.manifest.head, self.source.head)

    def _rewrite(self, files: Sequence[LakeFile], erased: ErasedEvents | None, progressed: Progressed) -> None:
        ranges = [PositionRange(file.first, file.last) for file in files]
        changes.record(self.place, Plan(REWRITE, tuple(ranges)))
        pairs = zip(files, ranges, strict=True)
        tasks = [_Task(self.lake, self.url, self.source.identity, each, file, erased) for file, each in pairs]
        first, last = files[0].first, files[-1].last
        report = event_progress(progressed, first - 1, last - first + 1, self.source.head)
        written = [each for each in parallel_map(self.spark, tasks, _rewrite, report) if each is not None]
        self.rewritten += len(written)
        self._commit(REWRITE, written, self.manifest.head, self.manifest.erasures)
        progressed(last, self.source.head)

    def _commit(self, kind: str, written: list[Written], head: int, erasures: int) -> None:
        staged = {each.file.path: each.staged for each in written}
        files = tuple(each.file for each in written)
        if written or erasures != self.manifest.erasures:
            change = Change(kind, self.manifest.number + 1, head, erasures, files, staged)
            self.manifest = changes.commit(self.place, self.manifest, change, self.on_manifest)
        changes.finish(self.place)


# -- in tasks


def _write(task: _Task) -> list[Written]:
    place = open_seen_place(task.lake)
    return [stage_file(place, each) for each in read_slices(task.url, task.identity, task.range)]


def stage_file(place: LakePlace, contents: FileContents) -> Written:
    file, data = encode_file(contents)
    return Written(file, place.stage(file.path, data))


def _rewrite(task: _Task) -> Written | None:
    """Rewrite a file if the store has fewer of its events."""
    assert task.file is not None
    place = open_seen_place(task.lake)
    if task.erased is not None and not task.erased.may_be_in(place, task.file):
        return None
    rows, erased = read_rows(task.url, task.identity, task.range)
    if rows.num_rows == task.file.rows:
        return None
    return stage_file(place, FileContents(task.file.day, *task.range, rows, erased))
