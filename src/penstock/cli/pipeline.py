"""`penstock pipeline`: the history as tables, with Spark Declarative Pipelines."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import (
    AGAIN,
    AsJson,
    Conf,
    Master,
    OfContext,
    Types,
    argument,
    directory,
    hide_py4j_log,
    option,
    options_of,
)
from penstock.cli.output import counted, fail, print_document, print_line, print_table, refuse, remark
from penstock.cli.signals import interruptible
from penstock.history.source import open_history
from penstock.pipelines.integrity import JUDGED, added_types, check_changes, refreshed_with, with_judged
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.runs import RoundOutcome, Runner, open_runner
from penstock.pipelines.scaffold import make_example, make_project
from penstock.pipelines.status import RowCounts, status
from penstock.settings.sources import without_password
from penstock.spark.sessions import MASTER
from penstock.store.urls import absolute_url
from penstock.terminal import print_error

INTERVAL_S: Final = 10.0
RESTART: Final = "interrupted: run again without --full-refresh to continue, or with it to rebuild those tables"
PRINTED_STATES: Final = ("RUNNING", "COMPLETED", "FAILED")

pipeline_app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, argument("DIR", "the project's folder", parser=directory)]


@pipeline_app.command("init")
def init_command(
    folder: Folder,
    url: Annotated[str, option("--url", "the store: sqlite:///DIR, postgresql://… or penstock://HOST:PORT", "URL")],
    context: OfContext = None,
    types: Types = None,
    name: Annotated[str | None, option("--name", "the pipeline's name (default: the folder's)", "N")] = None,
    sample: Annotated[int, option("--sample", "events of each type to sample for columns", "N", min=1)] = 1000,
    example: Annotated[str | None, option("--example", "a worked example instead: shop", "NAME")] = None,
) -> None:
    """Write a project: bronze events, a table for each type, a quarantine, and sums. Needs no Spark."""
    # A project can be run from any directory.
    source = absolute_url(url)
    if example is not None:
        if context is not None or types:
            refuse("--example has its own source: leave out --context and --type")
        made = make_example(folder, source, example, name)
    else:
        made = make_project(folder, source, context, types, name, sample)
    for note in made.notes:
        print_error(note)
    print_line(f"{made.folder}: bronze, {counted(len(made.tables), 'table')} of types, quarantine and sums")
    for type, table in made.tables.items():
        print_line(f"  {table}  ({type})")


@pipeline_app.command("run")
def run_command(
    folder: Folder,
    follow: Annotated[bool, option("--follow", "continue until Ctrl-C or SIGTERM")] = False,
    interval: Annotated[
        float | None,
        option("--interval", f"seconds between two rounds of --follow (default: {INTERVAL_S:.0f})", "S", min=0.1),
    ] = None,
    full_refresh: Annotated[
        list[str] | None, option("--full-refresh", "rebuild this table; can be repeated", "TABLE")
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run a project once, over the whole history. If this is killed, run it again: no row is written twice."""
    if interval is not None and not follow:
        refuse("--interval is the time between rounds of --follow: use both or none")
    wanted = full_refresh or []
    project = _ready(folder, wanted)
    if not follow:
        with interruptible(RESTART if wanted else AGAIN), _running(project, master, conf, "run") as runner:
            _round(RowCounts(project), runner, wanted)
        return
    with interruptible(AGAIN, interrupt_at=2) as stop, _running(project, master, conf, "run --follow") as runner:
        head, counts = _head(project), RowCounts(project)
        _round(counts, runner, wanted)
        while stop.wait(INTERVAL_S if interval is None else interval):
            if (now := _head(project)) != head:
                head = now
                _round(counts, runner, [])
    print_error("stopped; the last round is complete")


def _ready(folder: Path, full_refresh: Sequence[str] = ()) -> Project:
    """Read a project; mistakes that can be found before Spark starts end the command."""
    project = read_project(folder)
    refreshed = with_judged(project, refreshed_with(project, full_refresh))
    check_changes(project, refreshed)
    for type in added_types(project) if JUDGED not in refreshed else ():
        print_error(f"older events of type {type} are not in its new table: --full-refresh {JUDGED} adds them")
    return project


def _running(project: Project, master: str | None, conf: list[str] | None, what: str) -> AbstractContextManager[Runner]:
    hide_py4j_log()
    if sys.stderr.isatty():
        remark("starting Spark")
    return open_runner(project, MASTER, options_of(conf, master), what)


def _head(project: Project) -> int:
    with closing(open_history(project.declared.source["url"])) as history:
        return history.now().head


def _round(counts: RowCounts, runner: Runner, full_refresh: Sequence[str]) -> None:
    before = counts.all()
    outcome = runner.round(full_refresh, on_state=_say)
    for table in outcome.refreshed:
        if table not in full_refresh:
            print_error(f"{table} was rebuilt as well: it would not match the others")
    for flow, target in sorted(outcome.flows.items()):
        state, after = outcome.states.get(flow, "").lower() or "not run", counts.of(target)
        new = (after or 0) - (before.get(target) or 0)
        rows = "" if after is None else f", {counted(after, 'row')}" + (f" ({new:,} new)" if new > 0 else "")
        print_line(f"{flow}: {state}{rows}")
    # With --follow into a pipe, each round is printed when it is done.
    sys.stdout.flush()
    _conclude(outcome)


def _say(flow: str, state: str) -> None:
    if sys.stderr.isatty() and state in PRINTED_STATES:
        remark(f"{flow}: {state.lower()}")


def _conclude(outcome: RoundOutcome) -> None:
    if outcome.failures:
        for failure in outcome.failures[:-1]:
            print_error(str(without_password(str(failure))))
        fail(str(without_password(str(outcome.failures[-1]))))


@pipeline_app.command("dry-run")
def dry_run_command(folder: Folder, master: Master = None, conf: Conf = None) -> None:
    """Check a project without running it: its files, its flows and their columns."""
    project = _ready(folder)
    with interruptible("interrupted"), _running(project, master, conf, "dry-run") as runner:
        outcome = runner.round(dry=True)
    _conclude(outcome)
    print_line(f"{counted(len(outcome.flows), 'flow')}, nothing wrong: {', '.join(sorted(outcome.flows))}")


@pipeline_app.command("status")
def status_command(folder: Folder, as_json: AsJson = False) -> None:
    """Show each flow's rows, position, lag, last run and error. Needs no Spark, and can be used during a run."""
    found = status(read_project(folder))
    if as_json:
        print_document({**found._asdict(), "flows": [flow._asdict() for flow in found.flows]})
        return
    if found.unreachable:
        print_error(f"the lag is unknown: {without_password(found.unreachable)}")
    if found.in_use_by:
        print_error(f"in use by {found.in_use_by}")
    is_running = (found.in_use_by or "").startswith("run")
    without = "has nothing to show yet: its first run is in progress" if is_running else "has not been run yet"
    columns = ("flow", "table", "source", "rows", "position", "lag", "last run", "error")
    print_table(columns, found.flows, empty=f"{found.folder} {without}")
