"""Running a pipeline: rounds of everything that is there, in one Spark.

A round defines the project's flows anew and runs each of them once, to the end of what there is. Flows keep their own
checkpoints, so one that fails stops only those that read its table, and the next round goes on where each of them was.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.model.times import now_text
from penstock.pipelines.changing import BRONZE, JUDGED, QUARANTINE, after_run, before_run, check_changes, with_judged
from penstock.pipelines.connecting import Connect, connect_server
from penstock.pipelines.integrity import check_integrity, refreshed_with
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.registering import Defined, defined
from penstock.pipelines.state import alone, read_state, write_state
from penstock.pipelines.telling import Failure, mistake, reason, told
from penstock.spark.sessions import run_in_thread

Say = Callable[[str, str], None]
"""Is told a flow and its state whenever that changes."""

COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
FORMER: Final = (
    "is of an earlier version, which had no table judged: make a new project with penstock pipeline init, take its "
    f"transformations/silver.py, and run once with --full-refresh {BRONZE}"
)
_NOT_RUN: Final = ("SKIPPED", "EXCLUDED")


class Outcome(NamedTuple):
    """How a round ended: the flows that there are, their last states, and what went wrong."""

    flows: Mapping[str, str]
    states: Mapping[str, str]
    failures: tuple[Failure, ...]
    refreshed: tuple[str, ...]


class Runner:
    """Runs rounds of a project in one Spark, each in a session of its own."""

    def __init__(self, project: Project, connect: Connect, conf: Mapping[str, str]) -> None:
        self._project = project
        self._connect = connect
        self._conf = conf

    def round(self, full_refresh: Collection[str] = (), *, say: Say | None = None) -> Outcome:
        """Run everything once. Raises InvalidRequest if nothing was run: something is wrong with the project."""
        self._project = project = read_project(self._project.folder)
        refreshed = with_judged(project, refreshed_with(project, full_refresh))
        check_changes(project, refreshed)
        with self._connect() as spark:
            found = run_in_thread(lambda: self._define(spark, full_refresh))
            refreshed = [table for table in refreshed if table in found.outputs]
            check_integrity(project, refreshed, found.outputs)
            # Before it begins: if it is cut off, tables have rows of it all the same.
            write_state(project, {**read_state(project), "made": before_run(project)})
            states: dict[str, str] = {}
            failures = run_in_thread(lambda: self._follow(found, refreshed, states, say or _ignore, dry=False))
            # Here, and not in the other thread: if this one is interrupted, nothing is to be said of how it went.
            _note(project, found, states, failures, refreshed)
        return Outcome(found.flows, states, failures, tuple(refreshed))

    def check(self) -> Outcome:
        """Look whether everything can be run, and run nothing."""
        self._project = read_project(self._project.folder)
        check_changes(self._project, ())
        with self._connect() as spark:
            found = run_in_thread(lambda: self._define(spark, ()))
            check_integrity(self._project, (), found.outputs)
            states: dict[str, str] = {}
            failures = run_in_thread(lambda: self._follow(found, (), states, _ignore, dry=True))
        return Outcome(found.flows, states, failures, ())

    def _define(self, spark: Any, full_refresh: Collection[str]) -> Defined:
        try:
            with redirect_stdout(StringIO()):
                found = defined(self._project, spark, self._conf)
        except Exception as error:
            # The files are somebody's programs, and fail with whatever they like.
            raise InvalidRequest(
                self._project.name, f"cannot be loaded: {mistake(error, self._project.folder)}"
            ) from error
        for table in full_refresh:
            if table not in found.outputs:
                raise InvalidRequest(f"table {table}", f"is not there; there are {', '.join(sorted(found.outputs))}")
        if QUARANTINE in found.outputs and JUDGED not in found.outputs:
            raise InvalidRequest(self._project.name, FORMER)
        return found

    def _follow(
        self, found: Defined, refreshed: Collection[str], states: dict[str, str], say: Say, *, dry: bool
    ) -> tuple[Failure, ...]:
        failures: dict[str, Failure] = {}
        try:
            for message in found.run(refreshed, dry=dry):
                event = told(message)
                if event is None or (event.state == COMPLETED and states.get(event.flow) == FAILED):
                    continue
                states[event.flow] = event.state
                say(event.flow, event.state)
                if event.state == FAILED:
                    failures[event.flow] = Failure(event.flow, event.error or str(failures.get(event.flow, "failed")))
        except Exception as error:  # noqa: BLE001 - see below
            # Spark's exceptions have no common ancestor that says which flow it was; its events have said it before.
            if not failures:
                return (Failure(None, reason(str(error))),)
        return tuple(failures.values())


def _ignore(flow: str, state: str) -> None:
    pass


def _note(
    project: Project,
    found: Defined,
    states: Mapping[str, str],
    failures: Collection[Failure],
    refreshed: Collection[str],
) -> None:
    """Leave how it went for `status`, and for the next run."""
    state, at = read_state(project), now_text()
    known = state.get("flows", {})
    errors = {failure.flow: failure.reason for failure in failures}
    flows = {}
    for flow, target in found.flows.items():
        did_run = states.get(flow, _NOT_RUN[0]) not in _NOT_RUN
        kept = known.get(flow, {})
        flows[flow] = {
            "target": target,
            "ran": at if did_run else kept.get("ran"),
            "error": errors.get(flow) if did_run else kept.get("error"),
        }
    # Spark empties what is made anew before the first flow is queued, unless it cannot resolve them.
    has_begun = any(state != FAILED for state in states.values())
    made = after_run(project, refreshed if has_begun else ())
    write_state(project, {"at": at, "error": errors.get(None), "flows": flows, "made": made})


@contextmanager
def running(project: Project, master: str, conf: Mapping[str, str], what: str) -> Iterator[Runner]:
    """Have a project alone, with a Spark to run it."""
    with alone(project, what), connect_server(project, master, conf) as connect:
        yield Runner(project, connect, conf)
