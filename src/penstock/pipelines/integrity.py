"""Whether checkpoints and tables belong together, before a run adds to them.

Spark does not notice if one of them is gone: it would skip batches that the table seems to have, or write rows again.
A table is whole if its log has every batch that the checkpoint says is done, and none that was never begun.
"""

from collections.abc import Collection
from pathlib import Path

from penstock.errors import InvalidRequest
from penstock.pipelines.checkpoints import FILES_LOG, Checkpoint, checkpoints, last_batch, logged_files
from penstock.pipelines.projects import Project


def check_integrity(project: Project, refreshed: Collection[str] = (), defined: Collection[str] | None = None) -> None:
    """Raise InvalidRequest if a table and its checkpoint do not belong together, but for those that are made anew.

    What is left of tables that are not defined any more does not matter. If nothing is said, all of them are.
    """
    tables, known = project.tables, {each.target: each for each in checkpoints(project.checkpoints)}
    if tables is None or project.checkpoints is None:
        return
    streamed = {path.parent.name for path in tables.glob(f"*/{FILES_LOG}") if last_batch(path) >= 0}
    metastore = project.metastore
    if streamed and metastore is not None and not metastore.is_dir():
        raise InvalidRequest(
            str(metastore),
            f"is gone, but the tables are there: remove {tables} and {project.storage} too, and run again; all of it "
            "is made from the history",
        )
    checked = (streamed | set(known)) - set(refreshed)
    broken = {}
    for name in sorted(checked if defined is None else checked.intersection(defined)):
        what = _mismatch(tables / name, known.get(name)) or _strange(tables, known.get(name))
        if what is not None:
            broken[name] = what
    if broken:
        raise _refusal(project, broken)


def _refusal(project: Project, broken: dict[str, str]) -> InvalidRequest:
    """Names the first that is broken, and what makes all of them anew."""
    first, *others = broken
    needed = list(broken)
    for name in broken:
        rest = [each for each in needed if each != name]
        if name in refreshed_with(project, rest):
            needed = rest
    more = f"; there is something like that with {', '.join(others)} too" if others else ""
    command = " ".join(f"--full-refresh {name}" for name in needed)
    return InvalidRequest(
        f"table {first}", f"{broken[first]}{more}; run with {command} to make {'them' if others else 'it'} anew"
    )


def _mismatch(table: Path, checkpoint: Checkpoint | None) -> str | None:
    written = last_batch(table / FILES_LOG)
    if checkpoint is None or checkpoint.planned < 0:
        return "has rows, but its checkpoint is gone: rows would be lost or come twice" if written >= 0 else None
    if not table.is_dir():
        # Sinks have checkpoints and no table. A table that was never written to has a folder nevertheless.
        return "is gone, but its checkpoint is there" if _is_table(checkpoint) else None
    if written > checkpoint.planned:
        return f"has batch {written}, but its checkpoint only knows {checkpoint.planned}: it is an older one"
    if checkpoint.committed > written:
        return f"has lost rows: its checkpoint says that batch {checkpoint.committed} was written"
    return None


def _strange(tables: Path, checkpoint: Checkpoint | None) -> str | None:
    """Whether a flow has read files that its source does not have any more."""
    for files in checkpoint.files_read().values() if checkpoint is not None else ():
        for source in sorted({file.parent for file in files if file.parent.parent == tables}):
            if not {file for file in files if file.parent == source} <= set(logged_files(source / FILES_LOG)):
                return f"has rows of an older {source.name}, which was made anew since: rows would come twice"
    return None


def _is_table(checkpoint: Checkpoint) -> bool:
    """Checkpoints of tables lie under their catalog and database, those of sinks do not."""
    return checkpoint.path.parents[4].name == "_checkpoints"


def readers_of(project: Project, table: str) -> list[str]:
    """The tables whose flows read a table as a stream: if it is made anew, they must be, too."""
    if project.tables is None:
        return []
    folder = project.tables / table
    found = {
        each.target
        for each in checkpoints(project.checkpoints)
        for files in each.files_read().values()
        if any(file.parent == folder for file in files)
    }
    return sorted(found - {table})


def refreshed_with(project: Project, tables: Collection[str]) -> list[str]:
    """These tables, and all that read them, directly or not."""
    found, left = dict.fromkeys(tables), list(tables)
    while left:
        for name in readers_of(project, left.pop()):
            if name not in found:
                found[name] = None
                left.append(name)
    return list(found)
