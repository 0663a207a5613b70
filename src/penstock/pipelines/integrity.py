"""Whether a run may add to a project's tables: what changed in `penstock.yml`, and whether checkpoints fit tables.

An added or removed column is fine: older rows have null there. A column of another type cannot be read together with
older rows, a table of another type of event would mix both, and another source has events that bronze skipped.

The state records what tables are made of before a run, not only after it, because an interrupted run leaves rows too.
Until a table is refreshed, everything counts that may be in it.

Spark does not notice a lost table or checkpoint: it would skip batches that the table seems to have, or write rows
twice. A table is complete if its log has every batch that the checkpoint says is done, and no batch that never began.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.pipelines.checkpoints import FILES_LOG, Checkpoint, checkpoints, last_batch, logged_files
from penstock.pipelines.projects import FILE, EventTable, Project
from penstock.pipelines.state import read_state
from penstock.spark.body_schema import schema_of

BRONZE: Final = "bronze"
JUDGED: Final = "judged"
QUARANTINE: Final = "quarantine"

Contents = dict[str, Any]
"""Everything that may be in tables. `source` lists what bronze was read by; `tables` has for each table its types of
event and the types of its columns."""


# -- changes of penstock.yml


def with_judged(project: Project, tables: Collection[str]) -> list[str]:
    """These tables; if bronze or judged is one of them, also all tables that read judged, even without rows yet."""
    is_all = BRONZE in tables or JUDGED in tables
    others = [JUDGED, QUARANTINE, *(table.name for table in project.declared.tables)] if is_all else []
    return list(dict.fromkeys([*tables, *others]))


def check_changes(project: Project, refreshed: Collection[str]) -> None:
    """Raise InvalidRequest if a table that the run does not refresh has other contents than `penstock.yml` says."""
    known, chosen = read_state(project).get("made", {}), project.declared.chosen
    sources = known.get("source", ())
    if BRONZE not in refreshed and any(each != chosen for each in sources):
        names = sorted({name for each in sources for name in {*each, *chosen} if each.get(name) != chosen.get(name)})
        raise InvalidRequest(
            str(project.folder / FILE),
            f"has another {' and '.join(names)} in source than bronze was made with, which would lack older events; "
            f"run with --full-refresh {BRONZE}, or restore the old source",
        )
    for table in project.declared.tables if JUDGED not in refreshed else ():
        _check_table(table, known.get("tables", {}))


def _check_table(table: EventTable, tables: Mapping[str, Mapping[str, Any]]) -> None:
    advice = f"run with --full-refresh {JUDGED} to check all events again"
    others = [type for type in tables.get(table.name, {"type": ()})["type"] if type != table.type]
    if others:
        raise InvalidRequest(f"table {table.name}", f"has events of type {others[0]}, not {table.type}; {advice}")
    # If a type moved to another table, its events were checked against the columns of the old one.
    known = [each["columns"] for name, each in tables.items() if name == table.name or table.type in each["type"]]
    for field in schema_of(table.columns)["fields"]:
        name = field["name"].lower()
        if any(kind != field["type"] for columns in known for kind in columns.get(name, ())):
            what = f"has rows in which the type of {field['name']} was another one"
            raise InvalidRequest(f"table {table.name}", f"{what}; {advice}")


def added_types(project: Project) -> list[str]:
    """The types that have got a table since the last run. Their older events are in the quarantine."""
    made = read_state(project).get("made")
    known = {type for each in (made or {}).get("tables", {}).values() for type in each["type"]}
    return [table.type for table in project.declared.tables if made is not None and table.type not in known]


def before_run(project: Project) -> Contents:
    """The contents of tables, from the beginning of a run: the old contents, and what the run adds."""
    known = read_state(project).get("made", {})
    tables = dict(known.get("tables", {}))
    for table in project.declared.tables:
        old, new = tables.get(table.name, {"type": [], "columns": {}}), _contents(table)
        columns = {**old["columns"]}
        for name, types in new["columns"].items():
            columns[name] = _union(columns.get(name, []), types)
        tables[table.name] = {"type": _union(old["type"], new["type"]), "columns": columns}
    return {"source": _union(known.get("source", []), [project.declared.chosen]), "tables": tables}


def after_run(project: Project, refreshed: Collection[str]) -> Contents:
    """What is in tables after a run: refreshed tables have only what `penstock.yml` says now."""
    contents = before_run(project)
    if BRONZE in refreshed:
        contents["source"] = [project.declared.chosen]
    if JUDGED in refreshed:
        contents["tables"] = {table.name: _contents(table) for table in project.declared.tables}
    return contents


def _contents(table: EventTable) -> Contents:
    fields = schema_of(table.columns)["fields"]
    return {"type": [table.type], "columns": {field["name"].lower(): [field["type"]] for field in fields}}


def _union(known: list[Any], new: list[Any]) -> list[Any]:
    return [*known, *(each for each in new if each not in known)]


# -- checkpoints and tables


def check_integrity(project: Project, refreshed: Collection[str] = (), defined: Collection[str] | None = None) -> None:
    """Raise InvalidRequest if a table and its checkpoint do not fit, unless the run refreshes the table.

    `defined` are the tables that the project has now; others do not matter. By default all tables count.
    """
    tables, known = project.tables, {each.target: each for each in checkpoints(project.checkpoints)}
    if tables is None or project.checkpoints is None:
        return
    streamed = {path.parent.name for path in tables.glob(f"*/{FILES_LOG}") if last_batch(path) >= 0}
    metastore = project.metastore
    if streamed and metastore is not None and not metastore.is_dir():
        raise InvalidRequest(
            str(metastore),
            f"is gone, but the tables are there; remove {tables} and {project.storage} too, and run again: all of it "
            "comes from the history",
        )
    checked = (streamed | set(known)) - set(refreshed)
    broken = {}
    for name in sorted(checked if defined is None else checked.intersection(defined)):
        problem = _mismatch(tables / name, known.get(name)) or _read_old_source(tables, known.get(name))
        if problem is not None:
            broken[name] = problem
    if broken:
        first, *others = broken
        needed = list(broken)
        for name in broken:
            rest = [each for each in needed if each != name]
            if name in refreshed_with(project, rest):
                needed = rest
        more = f"; {', '.join(others)} {'have' if len(others) > 1 else 'has'} problems too" if others else ""
        command = " ".join(f"--full-refresh {name}" for name in needed)
        raise InvalidRequest(f"table {first}", f"{broken[first]}{more}; run with {command}")


def _mismatch(table: Path, checkpoint: Checkpoint | None) -> str | None:
    written = last_batch(table / FILES_LOG)
    if checkpoint is None or checkpoint.planned < 0:
        return "has rows, but its checkpoint is gone: rows would be lost or come twice" if written >= 0 else None
    if not table.is_dir():
        # Sinks have checkpoints and no table. A table without rows has a folder nevertheless. Checkpoints of tables are
        # in a folder of their catalog and database, those of sinks are not.
        is_table = checkpoint.path.parents[4].name == "_checkpoints"
        return "is gone, but its checkpoint is there" if is_table else None
    if written > checkpoint.planned:
        return f"has batch {written}, but its checkpoint only knows {checkpoint.planned}: it is an older one"
    if checkpoint.committed > written:
        return f"has lost rows: its checkpoint says that batch {checkpoint.committed} was written"
    return None


def _read_old_source(tables: Path, checkpoint: Checkpoint | None) -> str | None:
    """Whether a flow has read files that its source table no longer has."""
    for files in checkpoint.files_read().values() if checkpoint is not None else ():
        for source in sorted({file.parent for file in files if file.parent.parent == tables}):
            if not {file for file in files if file.parent == source} <= set(logged_files(source / FILES_LOG)):
                return f"has rows of an older {source.name}, which was refreshed since: rows would come twice"
    return None


def refreshed_with(project: Project, tables: Collection[str]) -> list[str]:
    """These tables, and all whose flows read them as streams, directly or not: a refresh must include them."""
    readers: dict[str, set[str]] = {}
    for each in checkpoints(project.checkpoints):
        for folder in {file.parent for files in each.files_read().values() for file in files}:
            if folder.parent == project.tables:
                readers.setdefault(folder.name, set()).add(each.target)
    found, left = dict.fromkeys(tables), list(tables)
    while left:
        for name in sorted(readers.get(left.pop(), ())):
            if name not in found:
                found[name] = None
                left.append(name)
    return list(found)
