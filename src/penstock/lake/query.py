"""SQL over a lake, and over what its store has had since.

The table `events` is the files that the manifest names, and then the history from the lake's head on. What is read is
one state of both. If a compaction takes files away in the middle of a question, it is asked again of what there is
then; so an answer is only handed out when nothing of it was handed out before.

DuckDB reads files of this machine by itself. It has no reader for other file systems unless somebody installs one, so
those are read by Arrow, through the lake's own place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.errors import InvalidRequest, LakeDamaged
from penstock.history.columns import COLUMNS, TABLE
from penstock.history.histories import Now, open_history
from penstock.lake.changes import read_manifest
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.places import LakePlace, open_lake_place
from penstock.lake.sources import check_source, look
from penstock.sql import Answer, Limits, Session
from penstock.sql.dataset import Failures
from penstock.sql.pushdown import Constraints, Filter, parse_filter
from penstock.sql.session import EVENTS, quoted

ATTEMPTS_MAX: Final = 7
"""How often a question is asked whose files went in the middle of it."""
PAUSE_S: Final = 0.1
"""How long it is waited before it is asked again: twice as long each time, because days go one after the other."""
_TAIL: Final = "penstock_tail"
_FILES: Final = "penstock_files"


class Asked(NamedTuple):
    """What an answer is of: a lake as it was, and its store, if that was named."""

    manifest: Manifest
    now: Now | None

    @property
    def head(self) -> int:
        """The last position of it."""
        return self.manifest.head if self.now is None else self.now.head


def look_at(place: LakePlace, url: str | None) -> Asked:
    """A lake as it is now, and its store if that is named. Raises PlaceRefused if it is another store's."""
    # The manifest first: what is archived after that is still in the store.
    manifest = read_manifest(place)
    if url is None:
        return Asked(manifest, None)
    check_source(place.shown, manifest, look(url))
    with closing(open_history(url)) as history:
        return Asked(manifest, history.now())


@contextmanager
def lake_session(place: LakePlace, url: str | None, asked: Asked, limits: Limits) -> Iterator[Session]:
    """A session in which `events` is a lake, and what its store has had since."""
    with Session(replace(limits, directories=(*limits.directories, *_directories(place)))) as session:
        _add_files(session, place, asked.manifest)
        if asked.now is None or url is None:
            session.add(_TAIL, TABLE.empty_table())
        else:
            session.add_history(_TAIL, url, asked.now, asked.manifest.head + 1)
        tables = [_FILES, _TAIL] if asked.manifest.files else [_TAIL]
        session.add_view(EVENTS, " UNION ALL ".join(f"FROM {table}" for table in tables))
        yield session


def _add_files(session: Session, place: LakePlace, manifest: Manifest) -> None:
    if not manifest.files:
        return
    # A link out of the lake, or a pipe, would be opened by DuckDB.
    place.check_inside(file.path for file in manifest.files)
    if isinstance(place, LocalPlace):
        paths = ", ".join(quoted(_plain(str(place.at(file.path)))) for file in manifest.files)
        view = f"FROM read_parquet([{paths}], hive_partitioning = false) SELECT {', '.join(COLUMNS)}"
        try:
            session.add_view(_FILES, view)
        except UnicodeDecodeError:
            reason = "has a column whose name is not UTF-8; penstock lake verify says in which file"
            raise LakeDamaged(place.shown, "one of its files", reason) from None
    else:
        session.add(_FILES, FilesDataset(place, manifest.files, session.failures))


def _directories(place: LakePlace) -> tuple[str, ...]:
    """What DuckDB may read by itself: the lake's own directory, in both ways that its name is written."""
    return (str(place.path), _plain(str(place.path))) if isinstance(place, LocalPlace) else ()


def _plain(text: str) -> str:
    """A path that DuckDB takes for one file: a star would stand for many."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def query_lake(
    lake: str,
    url: str | None,
    statement: str,
    write: Callable[[Answer], None],
    limits: Limits = Limits(),  # noqa: B008 - it cannot be changed
    *,
    is_repeatable: bool = False,
) -> Asked:
    """Ask a lake, and have the answer written; what it was of.

    If files went meanwhile, the question is asked again: as long as nothing was written, or if `write` can be called
    again as if it had not been.
    """
    place = open_lake_place(lake)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        asked, answer = look_at(place, url), None
        try:
            with lake_session(place, url, asked, limits) as session:
                answer = session.query(statement)
                write(answer)
        except (InvalidRequest, LakeDamaged):
            if not _is_outdated(place, asked):
                raise
            if attempt == ATTEMPTS_MAX or (answer is not None and answer.is_begun and not is_repeatable):
                raise InvalidRequest("lake", "was compacted in the middle of the answer; ask again") from None
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        else:
            return asked
    raise AssertionError("the last attempt returns or raises")


def _is_outdated(place: LakePlace, asked: Asked) -> bool:
    """Whether files are gone that there were when a question was asked; raises LakeDamaged if they should be there."""
    # In this order: what takes files away is recorded before it does.
    there, now = place.files(), read_manifest(place)
    if not set(asked.manifest.files) <= set(now.files):
        return True
    for file in asked.manifest.files:
        if file.path not in there:
            place.check_inside([file.path])
            raise place.missing(file.path)
    return False


# -- files that DuckDB cannot reach


class FilesDataset(ds.Dataset):  # type: ignore[misc]
    """Files of a lake in another file system, as DuckDB scans them."""

    def __init__(self, place: LakePlace, files: Sequence[LakeFile], failures: Failures) -> None:
        # Nothing of the class above is set up: all that DuckDB asks for is here.
        self._place, self._files, self._failures = place, files, failures

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return TABLE

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Any:
        """One scan of some columns, of the rows that pass a filter."""
        return _FileScan(self._place, self._files, self._failures, list(columns or TABLE.names), filter)


class _FileScan:
    def __init__(
        self,
        place: LakePlace,
        files: Sequence[LakeFile],
        failures: Failures,
        names: list[str],
        passing: pc.Expression | None,
    ) -> None:
        self._place, self._failures, self._names, self._passing = place, failures, names, passing
        parsed = Filter(frozenset()) if passing is None else parse_filter(passing, TABLE)
        self._files = [file for file in files if _may_hold(file, parsed.constraints)]
        read = parsed.columns
        self._needed = [name for name in TABLE.names if read is None or name in names or name in read]

    def to_reader(self) -> pa.RecordBatchReader:
        schema = pa.schema([TABLE.field(name) for name in self._names])
        return pa.RecordBatchReader.from_batches(schema, self._failures.watched(self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            data = self._place.read(file.path)
            try:
                for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(columns=self._needed):
                    passed = batch if self._passing is None else batch.filter(self._passing)
                    if passed.num_rows:
                        yield passed.select(self._names)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise LakeDamaged(self._place.shown, file.path, f"cannot be read: {error}") from error


def _may_hold(file: LakeFile, constraints: Constraints) -> bool:
    """Whether a file can have rows within constraints, by its entry in the manifest."""
    known = (
        ("position", file.position_min, file.position_max),
        ("recorded_at", file.recorded_min, file.recorded_max),
    )
    for column, least, greatest in known:
        low, high = constraints.range(column)
        if least is None or greatest is None or (low is not None and low > greatest):
            return False
        if high is not None and high < least:
            return False
    return True
