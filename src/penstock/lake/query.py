"""SQL over a lake, and over the newer events of its store.

The table `events` is the files of the manifest, and then the history after the lake's head: one consistent state of
both. If a compaction removes files during a query, the query runs again, unless some of its result was returned.

DuckDB reads files of this machine itself. It has no reader for other file systems unless one is installed, so Arrow
reads those, through the lake's place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvalidRequest, LakeDamaged
from penstock.history.columns import COLUMNS, TABLE
from penstock.history.source import Now
from penstock.lake.changes import read_manifest
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.places import LakePlace, open_lake_place
from penstock.lake.sources import check_source, look
from penstock.sql import Limits, QueryResult, Session
from penstock.sql.pushdown import Constraints
from penstock.sql.session import EVENTS, quoted

ATTEMPTS_MAX: Final = 7
PAUSE_S: Final = 0.1
"""The pause before the second attempt. It doubles each time, because a compaction changes day by day."""
_TAIL: Final = "penstock_tail"
_FILES: Final = "penstock_files"


class Asked(NamedTuple):
    """The state that a result is from: a lake, and its store, if one was named."""

    manifest: Manifest
    now: Now | None

    @property
    def head(self) -> int:
        return self.manifest.head if self.now is None else self.now.head


def _add_events(session: Session, place: LakePlace, url: str | None, asked: Asked) -> None:
    """Add the table `events`: the files of a lake, and the newer events of its store."""
    tables = []
    if asked.manifest.files:
        _add_files(session, place, asked.manifest)
        tables.append(_FILES)
    if asked.now is None or url is None:
        session.add(_TAIL, TABLE.empty_table())
    else:
        session.add_history(_TAIL, url, asked.now, asked.manifest.head + 1)
    session.add_view(EVENTS, " UNION ALL ".join(f"FROM {table}" for table in (*tables, _TAIL)))


def _add_files(session: Session, place: LakePlace, manifest: Manifest) -> None:
    # DuckDB would open a link out of the lake, or a pipe.
    place.check_inside(file.path for file in manifest.files)
    if isinstance(place, LocalPlace):
        paths = ", ".join(quoted(_escaped(str(place.at(file.path)))) for file in manifest.files)
        view = f"FROM read_parquet([{paths}], hive_partitioning = false) SELECT {', '.join(COLUMNS)}"
        try:
            session.add_view(_FILES, view)
        except UnicodeDecodeError:
            reason = "has a column whose name is not UTF-8; penstock lake verify says in which file"
            raise LakeDamaged(place.shown, "one of its files", reason) from None
    else:
        session.add_table(_FILES, partial(_read_files, place, manifest.files))


def _escaped(text: str) -> str:
    """A path with its wildcards escaped for DuckDB."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def query_lake(
    lake: str,
    url: str | None,
    statement: str,
    write: Callable[[QueryResult], None],
    limits: Limits = Limits(),  # noqa: B008 - it cannot be changed
    *,
    is_repeatable: bool = False,
) -> Asked:
    """Query a lake, and pass the result to `write`; returns the state that it is from.

    If files are removed meanwhile, the query runs again, if `write` has written nothing yet or is repeatable.
    """
    place = open_lake_place(lake)
    # DuckDB may read the lake's directory, plain and escaped.
    own = (str(place.path), _escaped(str(place.path))) if isinstance(place, LocalPlace) else ()
    limits = replace(limits, directories=(*limits.directories, *own))
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # The manifest first: events archived after that are still in the store.
        asked, answer = Asked(read_manifest(place), None), None
        if url is not None:
            source = look(url)
            check_source(place.shown, asked.manifest, source)
            asked = Asked(asked.manifest, Now(source.identity, source.head))
        try:
            with Session(limits) as session:
                _add_events(session, place, url, asked)
                answer = session.query(statement)
                write(answer)
        except (InvalidRequest, LakeDamaged):
            if not _is_outdated(place, asked):
                raise
            if attempt == ATTEMPTS_MAX or (answer is not None and answer.rows_read and not is_repeatable):
                raise InvalidRequest("lake", "was compacted in the middle of the answer; ask again") from None
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        else:
            return asked
    raise AssertionError("the last attempt returns or raises")


def _is_outdated(place: LakePlace, asked: Asked) -> bool:
    """Whether files of a query are gone. Raises LakeDamaged if they should be there."""
    # In this order: a run records its change before it removes files.
    there, now = place.files(), read_manifest(place)
    if not set(asked.manifest.files) <= set(now.files):
        return True
    for file in asked.manifest.files:
        if file.path not in there:
            place.check_inside([file.path])
            raise place.missing(file.path)
    return False


# -- files that DuckDB cannot reach


def _read_files(
    place: LakePlace, files: Sequence[LakeFile], names: list[str], constraints: Constraints
) -> Iterator[pa.RecordBatch]:
    for file in files:
        if _may_hold(file, constraints):
            data = place.read(file.path)
            try:
                yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(columns=names)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise LakeDamaged(place.shown, file.path, f"cannot be read: {error}") from error


def _may_hold(file: LakeFile, constraints: Constraints) -> bool:
    """Whether a file can have rows within constraints, by its entry in the manifest."""
    known = (("position", file.position_min, file.position_max), ("recorded_at", file.recorded_min, file.recorded_max))
    for column, least, greatest in known:
        low, high = constraints.range(column)
        if least is None or greatest is None or (low is not None and low > greatest):
            return False
        if high is not None and high < least:
            return False
    return True
