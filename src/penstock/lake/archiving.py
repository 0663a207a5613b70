"""Bringing a lake up to its store's head, exactly once through kills.

The manifest is the checkpoint. A streaming query would keep another one, and the two could disagree; and its rows
would pass through the JVM. Here a round plans ranges of positions and records them, tasks read a range each and write
its files aside, and the driver puts them in place and writes the manifest. Long histories take several rounds, so that
what is done is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock.lake.changes import (
    ARCHIVE,
    REWRITE,
    Change,
    Plan,
    abandon,
    check_files,
    check_new,
    commit,
    find_manifest,
    finish,
    is_of,
    record,
    recover,
)
from penstock.lake.erasures import Gone, gone_since
from penstock.lake.iceberg import update
from penstock.lake.layout import MANIFEST
from penstock.lake.manifests import LakeFile, Manifest, encode, now
from penstock.lake.parquet import Piece
from penstock.lake.parquet import encode as encode_piece
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.reading import Span, read_pieces, read_rows
from penstock.lake.sources import Source, check_source, look, timelines
from penstock.spark.spreading import Done, Session, shares, spread
from penstock.store.contract import Progressed, StoreIdentity
from penstock.store.sealing import SEALED_EVENTS

RANGE_BYTES: Final = 64 << 20
"""About how many bytes of events one task archives. It takes about seven times that in memory."""
ROUND_RANGES: Final = 64
"""Ranges of one round, after which the manifest is written."""


class Archived(NamedTuple):
    """What a run did: how many events and files are new, how many files were rewritten because of erasures."""

    events: int
    files: int
    rewritten: int
    head: int


class Written(NamedTuple):
    """A file that a task has written."""

    file: LakeFile
    staged: str


class _Task(NamedTuple):
    """What a task gets: a range, or a file whose range it is."""

    lake: str
    url: str
    identity: StoreIdentity
    span: Span
    file: LakeFile | None = None
    gone: Gone | None = None


def plan_spans(first: int, head: int, event_bytes: float) -> list[Span]:
    """The positions from one to another in ranges of about even bytes, cut where blocks of the store begin."""
    blocks = max(1, round(RANGE_BYTES / (max(event_bytes, 1.0) * SEALED_EVENTS)))
    size = blocks * SEALED_EVENTS
    spans = []
    while first <= head:
        end = first - first % SEALED_EVENTS + size
        spans.append(Span(first, min(end - 1, head)))
        first = end
    return spans


@contextmanager
def archiving(spark: Session, url: str, lake: str, *, iceberg: bool = True) -> Iterator["Archiving"]:
    """Have a lake alone, and bring it up to date, once or again and again; the Iceberg table beside it too."""
    place = open_lake_place(lake)
    source = look(url)
    manifest = find_manifest(place)
    if manifest is None:
        check_new(place)
    with place.lock("archive"):
        yield Archiving(spark, url, lake, place, source, iceberg=iceberg)


class Archiving:
    """A lake that is being brought up to date by this process alone."""

    def __init__(self, spark: Session, url: str, lake: str, place: LakePlace, source: Source, *, iceberg: bool) -> None:
        self._iceberg = iceberg
        self._spark, self._url, self._lake, self._place = spark, absolute(url), absolute(lake), place
        manifest = find_manifest(place) or self._begin(source)
        self.manifest, self._plan = recover(place, manifest)
        check_source(place.shown, self.manifest, source)
        check_files(place, self.manifest, self._plan)

    def _begin(self, source: Source) -> Manifest:
        known = timelines(self._url, source.identity)
        manifest = Manifest(*source.identity, known, 1, now(), erasures=source.erasures)
        self._place.replace(MANIFEST, encode(manifest))
        return manifest

    def catch_up(self, progressed: Progressed) -> Archived:
        """Bring the lake up to the store's head as it is now."""
        source = look(self._url)
        check_source(self._place.shown, self.manifest, source)
        before = self.manifest
        try:
            rewritten = self._follow(source)
            self._archive(source, progressed)
        except BaseException:
            abandon(self._place)
            raise
        if self._iceberg:
            update_iceberg(self._place, self.manifest)
        new = len(self.manifest.files) - len(before.files)
        return Archived(self.manifest.head - before.head, new, rewritten, self.manifest.head)

    # -- what is new

    def _archive(self, source: Source, progressed: Progressed) -> None:
        start = self.manifest.head
        if self._plan is not None and self._plan.kind == ARCHIVE:
            # What was interrupted may have left files: the same ranges again make the same files.
            spans = [span for span in self._plan.spans if span.last > start]
            self._round(spans, source, lambda _: None)
        self._plan = None
        spans = plan_spans(self.manifest.head + 1, source.head, source.bytes / max(source.head, 1))
        for number in range(0, len(spans), ROUND_RANGES):
            part = spans[number : number + ROUND_RANGES]
            done, total = self.manifest.head - start, source.head - start
            events = part[-1].last - part[0].first + 1
            self._round(part, source, shares(progressed, done, events, total))
            progressed(self.manifest.head - start, total)

    def _round(self, spans: list[Span], source: Source, done: Done) -> None:
        if not spans:
            return
        plan = Plan(ARCHIVE, tuple(spans))
        record(self._place, plan)
        tasks = [_Task(self._lake, self._url, source.identity, span) for span in spans]
        written = [each for result in spread(self._spark, tasks, _write, done) for each in result]
        self._drop_others(plan, written)
        self._commit(ARCHIVE, written, spans[-1].last, self.manifest.erasures)

    def _drop_others(self, plan: Plan, written: list[Written]) -> None:
        """Where files are written to their names: what another attempt cut otherwise, because of an erasure."""
        if self._place.stages_aside:
            return
        known = {each.file.path for each in written} | {file.path for file in self.manifest.files}
        for path in self._place.files():
            if path not in known and is_of(path, plan):
                self._place.remove(path)

    def _commit(self, kind: str, written: list[Written], head: int, erasures: int) -> None:
        staged = {each.file.path: each.staged for each in written}
        files = tuple(each.file for each in written)
        change = Change(kind, self.manifest.number + 1, head, erasures, files, staged)
        self.manifest = commit(self._place, self.manifest, change)
        finish(self._place)

    # -- what is gone

    def _follow(self, source: Source) -> int:
        """Rewrite files whose events were erased since; how many."""
        if source.erasures <= self.manifest.erasures:
            return 0
        count, files = 0, self.manifest.files
        gone = gone_since(self._url, self.manifest.erasures)
        for number in range(0, len(files), ROUND_RANGES):
            part = files[number : number + ROUND_RANGES]
            record(self._place, Plan(REWRITE, tuple(Span(file.first, file.last) for file in part)))
            tasks = [_Task(self._lake, self._url, source.identity, Span(f.first, f.last), f, gone) for f in part]
            written = [each for each in spread(self._spark, tasks, _rewrite, lambda _: None) if each is not None]
            count += len(written)
            is_last = number + ROUND_RANGES >= len(files)
            erasures = source.erasures if is_last else self.manifest.erasures
            self._commit(REWRITE, written, self.manifest.head, erasures)
        if not files:
            self._commit(REWRITE, [], self.manifest.head, source.erasures)
        return count


def update_iceberg(place: LakePlace, manifest: Manifest) -> None:
    """Bring the Iceberg table beside a lake up to date. Where there is no pyiceberg, there is no table."""
    try:
        update(place, manifest)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyiceberg"):
            raise


# -- in tasks


def _write(task: _Task) -> list[Written]:
    """Write the files of a range."""
    place = open_seen_place(task.lake)
    return [stage_piece(place, piece) for piece in read_pieces(task.url, task.identity, task.span)]


def stage_piece(place: LakePlace, piece: Piece) -> Written:
    """Write a file aside."""
    file, data = encode_piece(piece)
    return Written(file, place.stage(file.path, data))


def _rewrite(task: _Task) -> Written | None:
    """Write a file anew if the store has fewer of its events."""
    assert task.file is not None
    place = open_seen_place(task.lake)
    if task.gone is not None and not task.gone.may_be_in(place, task.file):
        return None
    rows, erased = read_rows(task.url, task.identity, task.span)
    if rows.num_rows == task.file.rows:
        return None
    piece = Piece(task.file.day, *task.span, rows, erased)
    return stage_piece(place, piece)
