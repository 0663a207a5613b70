"""Columns that were changed since the last run: what can go on, and what must be made anew.

A column more, or one less, is no matter: older rows have null there. A column of another type cannot be read with the
older rows. And a batch that is judged half by the old columns and half by the new ones could be in neither table.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.pipelines.checkpoints import Checkpoint, checkpoints
from penstock.pipelines.declaring import EventTable
from penstock.pipelines.projects import Project
from penstock.pipelines.state import read_state
from penstock.spark.ddl import schema_of

QUARANTINE: Final = "quarantine"


def changed(project: Project, refreshed: Collection[str]) -> Iterator[tuple[EventTable, str]]:
    """The tables whose columns are not those of the last run, and what they were; but for those that are made anew."""
    former = read_state(project).get("columns", {})
    for table in project.declared.tables:
        was = former.get(table.type)
        if was is not None and was.split() != table.columns.split() and table.name not in refreshed:
            yield table, was


def mixed(project: Project) -> list[str]:
    """The types whose rows, in their tables and in the quarantine, were judged by several columns over time."""
    known = {table.type for table in project.declared.tables}
    former = [type for type in read_state(project).get("mixed", []) if type in known]
    return sorted({*former, *(table.type for table, _ in changed(project, ()))})


def together(project: Project, refreshed: Collection[str]) -> list[str]:
    """These tables, and those that must be made anew with them so that each event is judged by the same columns.

    If the quarantine alone were, an event that did not fit at the time and does now would be in no table.
    """
    names = {table.type: table.name for table in project.declared.tables}
    affected = [names[type] for type in mixed(project)]
    if QUARANTINE in refreshed or any(name in refreshed for name in affected):
        return list(dict.fromkeys([*refreshed, QUARANTINE, *affected]))
    return list(refreshed)


def check_halves(project: Project, refreshed: Collection[str]) -> None:
    """Raise InvalidRequest if columns have changed while a table and the quarantine had not come equally far."""
    known = {each.target: each for each in checkpoints(project.checkpoints)}
    for table, _ in changed(project, refreshed):
        if QUARANTINE not in refreshed and _read(known.get(table.name)) != _read(known.get(QUARANTINE)):
            raise InvalidRequest(
                f"table {table.name}",
                "and the quarantine were left half-way by the last run, and its columns were changed since; run with "
                f"--full-refresh {table.name} --full-refresh {QUARANTINE}, or with the former columns once more",
            )


def _read(checkpoint: Checkpoint | None) -> Any:
    return checkpoint.files_read() if checkpoint is not None else {}


def check_changes(project: Project, refreshed: Collection[str]) -> None:
    """Raise InvalidRequest if a column has another type than in the last run."""
    for table, was in changed(project, refreshed):
        former = {field["name"].lower(): field["type"] for field in schema_of(was)["fields"]}
        for field in schema_of(table.columns)["fields"]:
            if former.get(field["name"].lower(), field["type"]) != field["type"]:
                raise InvalidRequest(
                    f"table {table.name}",
                    f"has rows in which the type of {field['name']} was another one; run with --full-refresh "
                    f"{table.name} --full-refresh {QUARANTINE}",
                )
