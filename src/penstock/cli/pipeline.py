"""`penstock pipeline`: the history as tables, with Spark Declarative Pipelines."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.options import Types, directory
from penstock.cli.output import AsJson, complain, counted, fail, print_document, print_line, print_table, refuse, remark
from penstock.cli.sparks import AGAIN, Conf, Master, ending, interruptible, options_of
from penstock.settings.loading import without_password

if TYPE_CHECKING:
    from penstock.pipelines.projects import Project
    from penstock.pipelines.runs import Outcome, Runner
    from penstock.pipelines.status import RowCounts, Status

__all__ = ["pipeline_app"]

INTERVAL_S: Final = 10.0
ANEW: Final = "interrupted: run again without --full-refresh to go on, or with it to begin with those tables anew"
SAID: Final = ("RUNNING", "COMPLETED", "FAILED")
"""What is told of a flow while a round is under way."""

pipeline_app = typer.Typer(help="Turn the history into tables with Spark Declarative Pipelines.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="the project's folder", metavar="DIR", parser=directory)]


@pipeline_app.command("init")
def init_command(
    folder: Folder,
    url: Annotated[
        str,
        typer.Option("--url", help="the store: sqlite:///DIR, postgresql://… or penstock://HOST:PORT", metavar="URL"),
    ],
    context: Annotated[str | None, typer.Option("--context", help="only this context", metavar="C")] = None,
    types: Types = None,
    name: Annotated[
        str | None, typer.Option("--name", help="the pipeline's name (default: the folder's)", metavar="N")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", help="events of each type to look at for columns", metavar="N", min=1)
    ] = 1000,
    example: Annotated[
        str | None, typer.Option("--example", help="a worked example instead: shop", metavar="NAME")
    ] = None,
) -> None:
    """Write a project: bronze events, a table for each type, a quarantine, and sums. Needs no Spark."""
    from penstock.pipelines.scaffold import make_example, make_project  # noqa: PLC0415

    if example is not None:
        if context is not None or types:
            refuse("--example has a source of its own: leave out --context and --type")
        made = make_example(folder, _absolute(url), example, name)
    else:
        made = make_project(folder, _absolute(url), context, types, name, sample)
    for note in made.notes:
        complain(note, 0)
    print_line(f"{made.folder}: bronze, {counted(len(made.tables), 'table')} of types, quarantine and sums")
    for type, table in made.tables.items():
        print_line(f"  {table}  ({type})")


def _absolute(url: str) -> str:
    """A project is run from anywhere, so that a folder that is named from here would be another one."""
    from penstock.store.urls import absolute_url  # noqa: PLC0415

    return absolute_url(url)


@pipeline_app.command("run")
def run_command(
    folder: Folder,
    follow: Annotated[bool, typer.Option("--follow", help="go on until Ctrl-C or SIGTERM")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            help=f"seconds between two rounds that follow (default: {INTERVAL_S:.0f})",
            metavar="S",
            min=0.1,
        ),
    ] = None,
    full_refresh: Annotated[
        list[str] | None,
        typer.Option("--full-refresh", help="make this table anew; may be given often", metavar="TABLE"),
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run a project once, over everything that is there. If this is killed, run it again: no row comes twice."""
    if interval is not None and not follow:
        refuse("--interval is the time between rounds of --follow, which is not given")
    from penstock.pipelines.status import RowCounts  # noqa: PLC0415

    wanted = full_refresh or []
    project = _ready(folder, wanted)
    if not follow:
        with interruptible(ANEW if wanted else AGAIN), _running(project, master, conf, "run") as runner:
            _round(RowCounts(project), runner, wanted)
        return
    with ending() as is_ending, _running(project, master, conf, "run --follow") as runner:
        head, counts = _head(project), RowCounts(project)
        _round(counts, runner, wanted)
        while not is_ending(INTERVAL_S if interval is None else interval):
            if (now := _head(project)) != head:
                head = now
                _round(counts, runner, [])
    complain("stopped; all that was begun is done", 0)


def _ready(folder: Path, full_refresh: Sequence[str] = ()) -> "Project":
    """The project; what is wrong with it and can be told before Spark has started ends the command."""
    from penstock.pipelines.integrity import (  # noqa: PLC0415
        JUDGED,
        added_types,
        check_changes,
        refreshed_with,
        with_judged,
    )
    from penstock.pipelines.projects import read_project  # noqa: PLC0415

    project = read_project(folder)
    refreshed = with_judged(project, refreshed_with(project, full_refresh))
    check_changes(project, refreshed)
    for type in added_types(project) if JUDGED not in refreshed else ():
        complain(
            f"older events of type {type} are not in its table, which is new: --full-refresh {JUDGED} takes them in", 0
        )
    return project


def _running(
    project: "Project", master: str | None, conf: list[str] | None, what: str
) -> AbstractContextManager["Runner"]:
    from penstock.pipelines.runs import open_runner  # noqa: PLC0415
    from penstock.spark.sessions import MASTER  # noqa: PLC0415

    if sys.stderr.isatty():
        remark("starting Spark")
    return open_runner(project, MASTER, options_of(conf, master), what)


def _head(project: "Project") -> int:
    from penstock.history.histories import open_history  # noqa: PLC0415

    with closing(open_history(project.declared.source["url"])) as history:
        return history.now().head


def _round(counts: "RowCounts", runner: "Runner", full_refresh: Sequence[str]) -> None:
    before = counts.all()
    outcome = runner.round(full_refresh, on_state=_say)
    for table in outcome.refreshed:
        if table not in full_refresh:
            complain(f"{table} was made anew as well: it would not go with the others", 0)
    for flow, target in sorted(outcome.flows.items()):
        print_line(_line(flow, outcome, before.get(target), counts.of(target)))
    # Whoever follows a project reads in a pipe what is done, when it is done.
    sys.stdout.flush()
    _conclude(outcome)


def _say(flow: str, state: str) -> None:
    """Tell somebody who looks on what is under way: a round can take long."""
    if sys.stderr.isatty() and state in SAID:
        remark(f"{flow}: {state.lower()}")


def _line(flow: str, outcome: "Outcome", before: int | None, after: int | None) -> str:
    state = outcome.states.get(flow, "").lower() or "not run"
    new = (after or 0) - (before or 0)
    rows = "" if after is None else f", {counted(after, 'row')}" + (f" ({new:,} new)" if new > 0 else "")
    return f"{flow}: {state}{rows}"


def _conclude(outcome: "Outcome") -> None:
    if outcome.failures:
        for failure in outcome.failures[:-1]:
            complain(str(without_password(str(failure))), 1)
        fail(str(without_password(str(outcome.failures[-1]))))


@pipeline_app.command("dry-run")
def dry_run_command(folder: Folder, master: Master = None, conf: Conf = None) -> None:
    """Check a project without running it: its files, the flows, and that all columns are there."""
    project = _ready(folder)
    with interruptible("interrupted"), _running(project, master, conf, "dry-run") as runner:
        outcome = runner.check()
    _conclude(outcome)
    print_line(f"{counted(len(outcome.flows), 'flow')}, nothing is wrong: {', '.join(sorted(outcome.flows))}")


@pipeline_app.command("status")
def status_command(folder: Folder, as_json: AsJson = False) -> None:
    """Show each flow's rows, position, lag, last run and error. Needs no Spark, and disturbs no run."""
    from penstock.pipelines.projects import read_project  # noqa: PLC0415
    from penstock.pipelines.status import status  # noqa: PLC0415

    found = status(read_project(folder))
    if as_json:
        print_document({**found._asdict(), "flows": [flow._asdict() for flow in found.flows]})
        return
    _show(found)


def _show(found: "Status") -> None:
    if found.unreachable:
        complain(f"how far behind it is cannot be told: {without_password(found.unreachable)}", 0)
    if found.in_use_by:
        complain(f"in use by {found.in_use_by}", 0)
    columns = ("flow", "table", "source", "rows", "position", "lag", "last run", "error")
    rows = [[_cell(value) for value in flow] for flow in found.flows]
    print_table(columns, rows, empty=f"{found.folder} {_without_flows(found)}")


def _without_flows(found: "Status") -> str:
    is_running = (found.in_use_by or "").startswith("run")
    return "has nothing to show yet: its first run is under way" if is_running else "has not been run yet"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
