"""Bringing a lake up to its store's head, exactly once through kills.

The manifest is the checkpoint. A streaming query would keep another one, and the two could disagree; and its rows
would pass through the JVM. Here a round plans ranges of positions and records them, tasks read a range each and write
its files aside, and the driver puts them in place and writes the manifest. Long histories take several rounds, so that
what is done is kept. Who follows a store has the lake alone only while it catches up, so that others get their turn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.lake.changes import (
    ARCHIVE,
    REWRITE,
    Change,
    Followed,
    Plan,
    abandon,
    check_files,
    check_new,
    commit,
    find_manifest,
    finish,
    pending_of,
    record,
    recover,
)
from penstock.lake.erasures import Gone, gone_since
from penstock.lake.iceberg import update_iceberg
from penstock.lake.layout import MANIFEST
from penstock.lake.manifests import LakeFile, Manifest, encode
from penstock.lake.parquet import Piece
from penstock.lake.parquet import encode as encode_piece
from penstock.lake.places import LakePlace, absolute, open_lake_place, open_seen_place
from penstock.lake.reading import read_pieces, read_rows
from penstock.lake.sources import Source, check_source, look, timelines
from penstock.model import PositionRange
from penstock.model.times import now_text
from penstock.spark.parallel import Session, event_progress, parallel_map
from penstock.store.contract import Progressed, StoreIdentity
from penstock.store.seals import SEALED_EVENTS

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
    span: PositionRange
    file: LakeFile | None = None
    gone: Gone | None = None


def plan_spans(first: int, head: int, event_bytes: float) -> list[PositionRange]:
    """The positions from one to another in ranges of about even bytes, cut where blocks of the store begin."""
    blocks = max(1, round(RANGE_BYTES / (max(event_bytes, 1.0) * SEALED_EVENTS)))
    size = blocks * SEALED_EVENTS
    spans = []
    while first <= head:
        end = first - first % SEALED_EVENTS + size
        spans.append(PositionRange(first, min(end - 1, head)))
        first = end
    return spans


@contextmanager
def archiving(spark: Session, url: str, lake: str, *, iceberg: bool = True) -> Iterator["Archiving"]:
    """Bring a lake up to date, once or again and again; the Iceberg table beside it too."""
    yield Archiving(spark, absolute(url), absolute(lake), open_lake_place(lake), following(iceberg=iceberg))


def following(*, iceberg: bool) -> Followed:
    """What follows each manifest: the Iceberg table, or nothing."""
    return update_iceberg if iceberg else lambda _place, _manifest: None


class Archiving:
    """Brings a lake up to date, and has it alone each time that it does."""

    def __init__(self, spark: Session, url: str, lake: str, place: LakePlace, followed: Followed) -> None:
        self._spark, self._url, self._lake, self._place, self._followed = spark, url, lake, place, followed
        self.manifest: Manifest | None = None
        """The lake as this has left it."""
        manifest, source = find_manifest(place), look(url)
        if manifest is None:
            check_new(place)
        else:
            check_source(place.shown, manifest, source)

    def catch_up(self, progressed: Progressed, is_ending: Callable[[], bool] = lambda: False) -> Archived:
        """Bring the lake up to the store's head as it is now, or less if there is an end to it between two rounds.

        Raises LakeInUse if somebody else is at work on the lake.
        """
        if self.manifest is not None and self._is_current(self.manifest):
            return Archived(0, 0, 0, self.manifest.head)
        with self._place.lock("archive"):
            turn = self._entered()
            before = turn.manifest
            try:
                turn.run(progressed, is_ending)
            except BaseException:
                abandon(self._place)
                raise
            self._followed(self._place, turn.manifest)
            self.manifest = turn.manifest
        new = len(self.manifest.files) - len(before.files)
        return Archived(self.manifest.head - before.head, new, turn.rewritten, self.manifest.head)

    def _is_current(self, known: Manifest) -> bool:
        """Whether nothing is to be done, which needs no lock to find out."""
        if find_manifest(self._place) != known or pending_of(self._place) is not None:
            return False
        source = look(self._url)
        is_same = (source.identity, source.head) == (known.identity, known.head)
        return is_same and source.erasures <= known.erasures

    def _entered(self) -> "_Turn":
        """The lake as it is, after what was interrupted is finished. Others may have been at work since."""
        if find_manifest(self._place) is None:
            self._begin()
        manifest = recover(self._place, self._followed)
        if manifest != self.manifest:
            check_files(self._place, manifest)
        source = look(self._url)
        check_source(self._place.shown, manifest, source)
        return _Turn(self._spark, self._url, self._lake, self._place, self._followed, source, manifest)

    def _begin(self) -> None:
        source = look(self._url)
        known = timelines(self._url, source.identity)
        self._place.replace(
            MANIFEST, encode(Manifest(*source.identity, known, 1, now_text(), erasures=source.erasures))
        )


@dataclass(slots=True)
class _Turn:
    """A lake that this process has alone, and a store as it was when that began."""

    spark: Session
    url: str
    lake: str
    place: LakePlace
    followed: Followed
    source: Source
    manifest: Manifest
    rewritten: int = 0

    def run(self, progressed: Progressed, is_ending: Callable[[], bool]) -> None:
        """Follow what was erased, and archive what is new."""
        # If something was erased, all files come first, and then what is new.
        is_behind = self.source.erasures > self.manifest.erasures
        start = 0 if is_behind else self.manifest.head
        told = lambda done, _: progressed(done - start, self.source.head - start)  # noqa: E731
        if is_behind:
            self._follow(told, is_ending)
        self._archive(told, is_ending)

    # -- what is new

    def _archive(self, progressed: Progressed, is_ending: Callable[[], bool]) -> None:
        source = self.source
        spans = plan_spans(self.manifest.head + 1, source.head, source.bytes / max(source.head, 1))
        for number in range(0, len(spans), ROUND_RANGES):
            if is_ending():
                return
            self._round(spans[number : number + ROUND_RANGES], progressed)

    def _round(self, spans: list[PositionRange], progressed: Progressed) -> None:
        record(self.place, Plan(ARCHIVE, tuple(spans)))
        tasks = [_Task(self.lake, self.url, self.source.identity, span) for span in spans]
        events = spans[-1].last - self.manifest.head
        told = event_progress(progressed, self.manifest.head, events, self.source.head)
        written = [each for result in parallel_map(self.spark, tasks, _write, told) for each in result]
        self._commit(ARCHIVE, written, spans[-1].last, self.manifest.erasures)
        progressed(self.manifest.head, self.source.head)

    def _commit(self, kind: str, written: list[Written], head: int, erasures: int) -> None:
        staged = {each.file.path: each.staged for each in written}
        files = tuple(each.file for each in written)
        if written or erasures != self.manifest.erasures:
            change = Change(kind, self.manifest.number + 1, head, erasures, files, staged)
            self.manifest = commit(self.place, self.manifest, change, self.followed)
        finish(self.place)

    # -- what is gone

    def _follow(self, progressed: Progressed, is_ending: Callable[[], bool]) -> None:
        """Rewrite files whose events were erased since."""
        files, gone = self.manifest.files, gone_since(self.url, self.manifest.erasures)
        for number in range(0, len(files), ROUND_RANGES):
            if is_ending():
                return
            self._rewrite(files[number : number + ROUND_RANGES], gone, progressed)
        self._commit(REWRITE, [], self.manifest.head, self.source.erasures)

    def _rewrite(self, files: tuple[LakeFile, ...], gone: Gone | None, progressed: Progressed) -> None:
        spans = [PositionRange(file.first, file.last) for file in files]
        record(self.place, Plan(REWRITE, tuple(spans)))
        pairs = zip(files, spans, strict=True)
        tasks = [_Task(self.lake, self.url, self.source.identity, span, file, gone) for file, span in pairs]
        first, last = files[0].first, files[-1].last
        told = event_progress(progressed, first - 1, last - first + 1, self.source.head)
        written = [each for each in parallel_map(self.spark, tasks, _rewrite, told) if each is not None]
        self.rewritten += len(written)
        self._commit(REWRITE, written, self.manifest.head, self.manifest.erasures)
        progressed(last, self.source.head)


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
