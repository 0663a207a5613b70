"""Brings a lake up to its store's head, exactly once even if processes are killed.

The manifest is the checkpoint. A streaming query would have another one, which could disagree, and its rows would pass
through the JVM. Here a round plans ranges of positions and records them. Each task reads a range and writes temporary
files; the driver gives them their names and writes the manifest. A long history takes several rounds, to keep what is
done. A process that follows a store locks the lake only while it catches up, so that others get their turn.
"""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from penstock.history.source import SERVED
from penstock.lake import changes
from penstock.lake.changes import ARCHIVE, REWRITE, LakeTask, LakeWriter, StagedFile
from penstock.lake.manifests import MANIFEST, Manifest, encode
from penstock.lake.parquet import FileContents, encode_file
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.slices import read_rows, read_slices
from penstock.lake.sources import ErasedEvents, LakeSource, check_source, erased_since, look, timelines
from penstock.model import PositionRange
from penstock.model.address import addressed
from penstock.model.times import now_text
from penstock.spark.parallel import Session
from penstock.store import open_reader
from penstock.store.contract import Progressed, StoreIdentity
from penstock.store.seals import SEALED_EVENTS
from penstock.store.urls import absolute_url
from penstock.store.watermarks import LAKE

RANGE_BYTES: Final = 64 << 20
"""About how many bytes of events one task archives. It needs about seven times that in memory."""

NOTE_S: Final = 10.0
"""How often a process that follows a store leaves a note in it."""


class Archived(NamedTuple):
    """The result of a run: new events, new files, and files rewritten because of erasures."""

    events: int
    files: int
    rewritten: int
    head: int


def plan_ranges(first: int, head: int, event_bytes: float) -> list[PositionRange]:
    """Ranges of about the same number of bytes that begin at blocks of the store."""
    size = SEALED_EVENTS * max(1, round(RANGE_BYTES / (max(event_bytes, 1.0) * SEALED_EVENTS)))
    ranges = []
    while first <= head:
        end = first - first % SEALED_EVENTS + size
        ranges.append(PositionRange(first, min(end - 1, head)))
        first = end
    return ranges


class Archiver:
    """Brings a lake up to date, and its Iceberg table too. It locks the lake during each `catch_up`."""

    def __init__(self, spark: Session, url: str, lake: str, *, iceberg: bool = True) -> None:
        self._spark, self._url, self._lake = spark, addressed(absolute_url(url)), absolute(lake)
        self._place, self._iceberg = open_lake_place(lake), iceberg
        self.manifest: Manifest | None = None
        """The manifest after the last `catch_up`."""
        self._note_at = 0.0
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
            self._leave_watermark(self.manifest)
            return Archived(0, 0, 0, self.manifest.head)
        place = self._place
        with place.lock("archive"):
            if changes.find_manifest(place) is None:
                source = look(self._url)
                known = timelines(self._url, source.identity)
                new = Manifest(*source.identity, known, 1, now_text(), erasures=source.erasures)
                place.replace(MANIFEST, encode(new))
            with changes.lake_writer(place, iceberg=self._iceberg) as lake:
                before = lake.manifest
                # Other processes may have changed the lake.
                if before != self.manifest:
                    changes.check_files(place, before)
                source = look(self._url)
                check_source(place.shown, before, source)
                rewritten = self._follow(lake, source, progressed, is_ending)
            self.manifest = now = lake.manifest
        self._leave_watermark(now)
        return Archived(now.head - before.head, len(now.files) - len(before.files), rewritten, now.head)

    def _leave_watermark(self, now: Manifest) -> None:
        """Tell the store's server how far the lake is. Through a server there is nothing to leave a note in."""
        if self._url.startswith(SERVED) or time.monotonic() < self._note_at:
            return
        self._note_at = time.monotonic() + NOTE_S
        with closing(open_reader(self._url)) as store:
            store.leave_watermark(LAKE, now.identity, now.head)

    def _is_current(self, known: Manifest) -> bool:
        """Whether there is nothing to do. This needs no lock."""
        if changes.find_manifest(self._place) != known or changes.pending_of(self._place) is not None:
            return False
        source = look(self._url)
        is_same = (source.identity, source.head) == (known.identity, known.head)
        return is_same and source.erasures <= known.erasures

    def _follow(
        self, lake: LakeWriter, source: LakeSource, progressed: Progressed, is_ending: Callable[[], bool]
    ) -> int:
        """Rewrite files whose events were erased, and archive new events; returns how many files were rewritten."""
        known = lake.manifest
        is_behind = source.erasures > known.erasures
        # After an erasure, progress counts all files first, and then the new events.
        start = 0 if is_behind else known.head

        def reached(position: int) -> None:
            progressed(position - start, source.head - start)

        done = rewritten = 0
        if is_behind:
            erased = erased_since(self._url, known.erasures)
            rewrite = partial(_rewrite, self._lake, self._url, source.identity, erased)
            tasks = [changes.task_of(file) for file in known.files]
            for part, results in lake.rounds(self._spark, REWRITE, tasks, rewrite, reached, is_ending):
                staged = [each for each in results if each is not None]
                if staged:
                    lake.commit(REWRITE, staged)
                done, rewritten = done + len(part), rewritten + len(staged)
            if done == len(tasks):
                lake.commit(REWRITE, [], erasures=source.erasures)
                changes.finish(self._place)
        archive = partial(_archive, self._lake, self._url, source.identity)
        ranges = plan_ranges(known.head + 1, source.head, source.bytes / max(source.head, 1))
        tasks = [LakeTask(each) for each in ranges]
        for part, found in lake.rounds(self._spark, ARCHIVE, tasks, archive, reached, is_ending):
            lake.commit(ARCHIVE, [each for staged in found for each in staged], head=part[-1].span.last)
        return rewritten


# -- in tasks


def _archive(lake: str, url: str, identity: StoreIdentity, task: LakeTask) -> list[StagedFile]:
    place = open_seen_place(lake)
    return [stage_file(place, each) for each in read_slices(url, identity, task.span)]


def stage_file(place: LakePlace, contents: FileContents) -> StagedFile:
    file, data = encode_file(contents)
    return StagedFile(file, place.stage(data))


def _rewrite(
    lake: str, url: str, identity: StoreIdentity, suspects: ErasedEvents | None, task: LakeTask
) -> StagedFile | None:
    """Rewrite a file if the store has fewer of its events. `suspects` are events that were erased; None means any."""
    place, (file,) = open_seen_place(lake), task.files
    if suspects is not None and not suspects.may_be_in(place, file):
        return None
    rows, erased = read_rows(url, identity, task.span)
    if rows.num_rows == file.rows:
        return None
    return stage_file(place, FileContents(file.day, *task.span, rows, erased))
