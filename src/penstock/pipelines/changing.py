"""What was changed in `penstock.yml` since the last run: what can go on, and what must be made anew.

A column more, or one less, is no matter: older rows have null there. A column of another type cannot be read with the
older rows, a table of another type of event would have rows of both, and another source has events that were passed by.

What tables are made of is noted before a run and not only after it: one that is cut off has left rows, too. As nobody
knows then which, everything counts that may be in a table, until the table is made anew.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.pipelines.declaring import FILE, EventTable
from penstock.pipelines.projects import Project
from penstock.pipelines.state import read_state
from penstock.spark.body_schema import schema_of

BRONZE: Final = "bronze"
JUDGED: Final = "judged"
QUARANTINE: Final = "quarantine"

Noted = dict[str, Any]
"""Values by what they are of: everything that may be in a table. Under `source`, what bronze was read by; under
`tables`, for each of them its types of event and the types of its columns."""


def with_judged(project: Project, tables: Collection[str]) -> list[str]:
    """These tables; if events are read or judged anew, all that have them as well, also those that have no rows yet."""
    is_all = BRONZE in tables or JUDGED in tables
    others = [JUDGED, QUARANTINE, *(table.name for table in project.declared.tables)] if is_all else []
    return list(dict.fromkeys([*tables, *others]))


def check_changes(project: Project, refreshed: Collection[str]) -> None:
    """Raise InvalidRequest if what tables are made of is not what `penstock.yml` says, unless they are made anew."""
    noted = read_state(project).get("made", {})
    if BRONZE not in refreshed and any(each != project.declared.chosen for each in noted.get("source", ())):
        raise _other_source(project, noted["source"])
    for table in project.declared.tables if JUDGED not in refreshed else ():
        _check_table(table, noted.get("tables", {}))


def _other_source(project: Project, former: list[dict[str, str]]) -> InvalidRequest:
    chosen = project.declared.chosen
    names = sorted({name for each in former for name in {*each, *chosen} if each.get(name) != chosen.get(name)})
    return InvalidRequest(
        str(project.folder / FILE),
        f"has another {' and '.join(names)} in source than bronze was made with, which would lack older events; "
        f"run with --full-refresh {BRONZE}, or with what was there before",
    )


def _check_table(table: EventTable, noted: Mapping[str, Mapping[str, Any]]) -> None:
    others = [type for type in noted.get(table.name, {"type": ()})["type"] if type != table.type]
    if others:
        raise _refusal(table, f"has events of type {others[0]}, not {table.type}")
    # The events of a type that has another table now were judged by the columns of the former one.
    known = [each["columns"] for name, each in noted.items() if name == table.name or table.type in each["type"]]
    for field in schema_of(table.columns)["fields"]:
        name = field["name"].lower()
        if any(kind != field["type"] for columns in known for kind in columns.get(name, ())):
            raise _refusal(table, f"has rows in which the type of {field['name']} was another one")


def _refusal(table: EventTable, what: str) -> InvalidRequest:
    return InvalidRequest(f"table {table.name}", f"{what}; run with --full-refresh {JUDGED} to judge all events anew")


def added_types(project: Project) -> list[str]:
    """The types that have a table since the last run: what there was of them before was judged without it."""
    made = read_state(project).get("made")
    known = {type for each in (made or {}).get("tables", {}).values() for type in each["type"]}
    return [table.type for table in project.declared.tables if made is not None and table.type not in known]


def before_run(project: Project) -> Noted:
    """What tables may be made of if a run begins now: what they were made of, and what it adds."""
    noted = read_state(project).get("made", {})
    tables = dict(noted.get("tables", {}))
    for table in project.declared.tables:
        known, new = tables.get(table.name, {"type": [], "columns": {}}), _made_of(table)
        columns = {**known["columns"]}
        for name, types in new["columns"].items():
            columns[name] = _united(columns.get(name, []), types)
        tables[table.name] = {"type": _united(known["type"], new["type"]), "columns": columns}
    return {"source": _united(noted.get("source", []), [project.declared.chosen]), "tables": tables}


def after_run(project: Project, refreshed: Collection[str]) -> Noted:
    """What they are made of after a run: if they were made anew, of what is said now, and of that alone."""
    noted = before_run(project)
    if BRONZE in refreshed:
        noted["source"] = [project.declared.chosen]
    if JUDGED in refreshed:
        noted["tables"] = {table.name: _made_of(table) for table in project.declared.tables}
    return noted


def _made_of(table: EventTable) -> Noted:
    fields = schema_of(table.columns)["fields"]
    return {"type": [table.type], "columns": {field["name"].lower(): [field["type"]] for field in fields}}


def _united(known: list[Any], new: list[Any]) -> list[Any]:
    return [*known, *(each for each in new if each not in known)]
