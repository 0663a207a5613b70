"""The state of a pipeline, flow by flow, from checkpoints, the tables' files and the last run's state; without Spark.

It works during a run. Values that are unknown, or on other machines, are None.
"""

from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import PenstockError
from penstock.history.source import open_history
from penstock.pipelines.checkpoints import FILES_LOG, Checkpoint, checkpoints, logged_files, number_of
from penstock.pipelines.projects import Project
from penstock.pipelines.state import holder, read_state

FOOTERS_MAX: Final = 100_000
"""Files of tables whose metadata is cached."""
POSITION: Final = "position"
STORE: Final = "store"
"""The source of a flow that reads the history itself."""


class FlowStatus(NamedTuple):
    """A flow at one moment.

    `position` is how far into the history its rows go; `lag` is how many positions it is behind its source, which is
    the store or another table. Times are ISO 8601, in UTC. `error` is why its last run failed, if it did.
    """

    flow: str
    target: str
    source: str | None
    rows: int | None
    position: int | None
    lag: int | None
    last_run: str | None
    error: str | None


class PipelineStatus(NamedTuple):
    """A pipeline at one moment. `head` is the store's last position, and `unreachable` why it is unknown."""

    project: str
    folder: str
    head: int | None
    unreachable: str | None
    in_use_by: str | None
    flows: list[FlowStatus]


def status(project: Project) -> PipelineStatus:
    """The state of every flow that ever ran."""
    head, why = None, None
    try:
        with closing(open_history(project.declared.source["url"])) as history:
            head = history.now().head
    except (PenstockError, OSError) as error:
        why = str(error)
    known = read_state(project).get("flows", {})
    found = {each.flow: each for each in checkpoints(project.checkpoints)}
    reached, counts, flows = _Reached(project, found), RowCounts(project), []
    for name in {**found, **known}:
        checkpoint, noted = found.get(name), known.get(name, {})
        target = checkpoint.target if checkpoint else noted.get("target", name)
        source, position, end = reached.by(name, head) if checkpoint else (None, None, None)
        lag = None if position is None or end is None else max(0, end - position)
        # Spark's own command runs projects too, and leaves no state.
        times = [time for time in (noted.get("ran"), _time(checkpoint) if checkpoint else None) if time]
        last_run = max(times, default=None)
        flows.append(FlowStatus(name, target, source, counts.of(target), position, lag, last_run, noted.get("error")))
    # Flows that read the store, then those that read tables, then all others.
    flows.sort(key=lambda flow: (flow.source is None, flow.source != STORE, flow.source or "", flow.flow))
    return PipelineStatus(project.name, str(project.folder), head, why, holder(project), flows)


def _time(checkpoint: Checkpoint) -> str | None:
    """When the last batch was done."""
    with suppress(OSError):
        at = (checkpoint.path / "commits" / str(checkpoint.committed)).stat().st_mtime
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return None


class _Reached:
    """How far flows are. A flow that reads a table is as far as the table, except for the files it has not read."""

    def __init__(self, project: Project, known: dict[str, Checkpoint]) -> None:
        self._project = project
        self._known = known
        self._targets = {each.target: each for each in known.values()}

    def by(
        self, flow: str, head: int | None, readers: tuple[str, ...] = ()
    ) -> tuple[str | None, int | None, int | None]:
        """The source of a flow, its position there, and the end of the source. `readers` read its table."""
        if flow in readers:
            # Tables do not read one another in a circle, but damaged files may say so.
            return None, None, None
        offsets = self._known[flow].offsets()
        direct = [number_of(self._known[flow].path, offset, POSITION) for offset in offsets if POSITION in offset]
        if direct:
            return STORE, min(direct), head
        files = [files for files in self._known[flow].files_read().values() if files]
        read = [self._of_table(each, head, (*readers, flow)) for each in files]
        tables = [each for each in read if each is not None]
        if not tables or len(tables) != len(read):
            return None, None, None
        names = ", ".join(sorted({name for name, _, _ in tables}))
        known = [(position, end) for _, position, end in tables if position is not None and end is not None]
        if len(known) != len(tables):
            return names, None, None
        # Of several sources, the least position and the largest lag count.
        least = min(position for position, _ in known)
        return names, least, least + max(end - position for position, end in known)

    def _of_table(
        self, files: set[Path], head: int | None, readers: tuple[str, ...]
    ) -> tuple[str, int | None, int | None] | None:
        folder = next(iter(files)).parent
        if folder.parent != self._project.tables or folder.name not in self._targets:
            return None
        _, end, _ = self.by(self._targets[folder.name].flow, head, readers)
        unread = set(logged_files(folder / FILES_LOG)) - files
        try:
            firsts = [first for file in unread if (first := _footer(file)[1]) is not None]
        except OSError:
            return folder.name, None, end
        return folder.name, min(firsts) - 1 if firsts else end, end


class RowCounts:
    """Counts rows of tables repeatedly, and reads only new files."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._known: dict[str, tuple[set[Path], int]] = {}

    def all(self) -> dict[str, int | None]:
        tables = self._project.tables
        return {path.name: self.of(path.name) for path in (tables.iterdir() if tables and tables.is_dir() else ())}

    def of(self, table: str) -> int | None:
        """How many rows a table has; None if it is not on this machine."""
        folder = self._project.tables / table if self._project.tables is not None else None
        if folder is None or not folder.is_dir():
            return None
        try:
            is_streamed = (folder / FILES_LOG).is_dir()
            files = set(logged_files(folder / FILES_LOG) if is_streamed else folder.glob("*.parquet"))
            known, rows = self._known.get(table, (set(), 0))
            if not known <= files:
                known, rows = set(), 0
            rows += sum(_footer(file)[0] for file in files - known)
        except OSError:
            # A run refreshes it now, or one of its files is damaged.
            return None
        self._known[table] = files, rows
        return rows


@lru_cache(FOOTERS_MAX)
def _footer(file: Path) -> tuple[int, int | None]:
    """The rows of a file, and its first position. Files never change. Raises OSError."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        metadata = pq.read_metadata(file)
        columns = [index for index in range(metadata.num_columns) if metadata.schema.column(index).path == POSITION]
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        found = [group.column(column).statistics for group in groups for column in columns]
        firsts = [int(each.min) for each in found if each is not None and each.has_min_max]
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise OSError(f"{file} is damaged: {error}") from error
    return metadata.num_rows, min(firsts, default=None)
