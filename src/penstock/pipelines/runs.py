"""Runs of a pipeline: rounds over all new events, in one Spark with a Connect server.

A round loads the project's files, defines its flows and runs each of them once, up to the present. Flows have their
own checkpoints: a flow that fails stops only those that read its table, and the next round continues where each was.

This does what `spark-pipelines` does, through the same functions of PySpark. But it remembers the definitions, passes
on the messages of a run, and listens on a free port of loopback for clients that know a token.

Spark reports a failure with the query's plan and a stack trace. The reason is in there: the message of a PenstockError,
or else the last message with a name in brackets.
"""

import os
import re
import sys
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidRequest, PenstockError
from penstock.files import is_shared, make_folder
from penstock.model.times import now_text
from penstock.pipelines import integrity
from penstock.pipelines.integrity import BRONZE, JUDGED, QUARANTINE
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.state import lock_project, read_state, write_state
from penstock.spark.sessions import OWNER_ALONE, UMASK, late_session, run_in_thread

LINE_CHARS_MAX: Final = 500
"""The longest reason: Spark lists columns and plans."""
_OURS: Final = re.compile(r"penstock\.errors\.\w+: (.+)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)", re.MULTILINE)
_NAMED: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{5,})\] *((?:(?!\[[A-Z][A-Z0-9_.]{5,}\]).)+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+;?")
_QUERY: Final = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception:\s*")
_WRAPPERS: Final = ("STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR")
_FLOW: Final = re.compile(r"^Flow '?(?P<flow>[^'\s]+)'? (?:is |has )?(?P<state>[A-Z]{4,})\b(?P<rest>.*)", re.DOTALL)
_UNRESOLVED: Final = re.compile(r"^Failed to resolve flow: '(?P<flow>[^']+)'\.\s*(?P<rest>.*)", re.DOTALL)


class FlowEvent(NamedTuple):
    """The state of a flow in an event of a run, and the reason if it failed."""

    flow: str
    state: str
    error: str | None


def flow_event(message: str) -> FlowEvent | None:
    """The state of a flow that a message of a run reports, if it reports one."""
    if found := _UNRESOLVED.match(message):
        return FlowEvent(short_name(found["flow"]), "FAILED", reason(found["rest"].removeprefix("Error:")))
    if (found := _FLOW.match(message)) is None:
        return None
    error = reason(found["rest"].partition("Error:")[2]) if "Error:" in found["rest"] else None
    return FlowEvent(short_name(found["flow"]), found["state"], error)


def short_name(name: str) -> str:
    """A flow's name without catalog and database."""
    return name.replace("`", "").rpartition(".")[2]


def reason(text: str) -> str:
    return _STATE.sub("", next(_candidates(text))).strip().rstrip(";")[:LINE_CHARS_MAX]


def _candidates(text: str) -> Iterator[str]:
    head = _QUERY.sub("", text.partition("JVM stacktrace:")[0])
    yield from _OURS.findall(text)[-1:]
    yield from (f"{name}: {message}" for name, message in _RAISED.findall(head)[-1:])
    yield from (message for name, message in _NAMED.findall(head) if name not in _WRAPPERS)
    yield next((line for line in head.splitlines() if line.strip()), "Spark does not say why")


def describe_error(error: BaseException, folder: Path) -> str:
    """The error in a project's files, with its file and line."""
    if isinstance(error, PenstockError):
        what = str(error)
    elif type(error).__module__.startswith("pyspark"):
        what = reason(str(error))
    else:
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    if isinstance(error, SyntaxError):
        return f"{_within(error.filename or '', folder)}, line {error.lineno}: {error.msg}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_relative_to(folder)]
    return f"{_within(frames[-1].filename, folder)}, line {frames[-1].lineno}: {what}" if frames else what


def _within(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
IS_CONNECTED: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's functions make columns for Connect if this variable is set."""
SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"
SERVER: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    # We report failed flows, in one line.
    "spark.log.level": "OFF",
}
JAVA: Final = "spark.driver.extraJavaOptions"
GROUP_TOO: Final = "007"


@contextmanager
def _session(address: str) -> Iterator[Any]:
    """A session. The server keeps all definitions of a session until it is released."""
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    spark = run_in_thread(SparkSession.builder.remote(address).create)
    # The server is ours: if it does not answer it is gone, and a retry would only delay our end.
    spark.client.set_retry_policies([])
    is_interrupted = False
    try:
        yield spark
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        # After Ctrl-C the server is about to end: do not wait for it.
        if not is_interrupted:
            with suppress(Exception):
                run_in_thread(spark.stop)


@contextmanager
def _variables() -> Iterator[None]:
    """Set the variables of PySpark's Connect, and restore them afterwards."""
    kept = {name: os.environ.pop(name, None) for name in (TOKEN, IS_CONNECTED)}
    os.environ[TOKEN] = str(uuid.uuid4())
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_IN_SQL: Final = re.compile(
    r"\bCREATE\s+(?:OR\s+REFRESH\s+)?(STREAMING\s+TABLE|MATERIALIZED\s+VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    r"((?:`[^`]+`|[\w.])+)",
    re.IGNORECASE,
)
"""The definitions in a file of SQL. Spark parses it in the server, and does not return them."""

_NO_CODE: Final = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`)|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Comments, and quoted texts, which may look like comments."""


@dataclass
class Definitions:
    """The outputs (kinds by name) and flows (targets by name) of a project."""

    spark: Any
    graph: str
    storage: str
    outputs: dict[str, str] = field(default_factory=dict)
    flows: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, kind: str) -> None:
        """Add an output. Raises InvalidRequest if the name is taken; Spark would notice much later."""
        if any(name.lower() == other.lower() for other in self.outputs):
            raise InvalidRequest(f"table {name}", "is defined twice")
        self.outputs[name] = kind

    def add_flow(self, name: str, target: str) -> None:
        """Add a flow. Raises InvalidRequest for a second flow of a table: it would lose rows. Sinks may have more."""
        kind = self.outputs.get(target)
        if kind == "TemporaryView":
            return
        if kind not in (None, "Sink") and target in self.flows.values():
            raise InvalidRequest(f"table {target}", "has two flows, and would lose rows of one: use one with a union")
        self.flows[name] = target

    def run(self, refreshed: Collection[str], *, dry: bool) -> Iterator[str]:
        """Run the flows, or only check them; yields the run's messages, and raises at the end if it failed."""
        from pyspark.pipelines.spark_connect_pipeline import start_run  # noqa: PLC0415

        others = [name for name, kind in self.outputs.items() if name not in refreshed and kind != "TemporaryView"]
        results = start_run(
            self.spark,
            self.graph,
            full_refresh=list(refreshed),
            full_refresh_all=False,
            # Spark runs only the named tables as soon as one is named, so name all.
            refresh=others if refreshed else [],
            dry=dry,
            storage=self.storage,
        )
        for result in results:
            if "pipeline_event_result" in result:
                yield result["pipeline_event_result"].event.message


def load_definitions(project: Project, spark: Any, conf: Mapping[str, str]) -> Definitions:
    """Load a project's files. Settings in `conf` override those in the files. Raises whatever the files raise."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions  # noqa: PLC0415
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph  # noqa: PLC0415

    spec = load_pipeline_spec(project.spec)
    settings = {name: conf.get(name, value) for name, value in spec.configuration.items()}
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, settings)
    found = Definitions(spark, graph, spec.storage)
    # Bytecode has the time of a file in seconds, so Python might miss an edit between two rounds.
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        register_definitions(project.spec, _registry(found), spec, spark, graph)
    finally:
        sys.dont_write_bytecode = kept
    return found


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Add the name of a file of SQL to an error: Spark does not name it."""
    try:
        yield
    except Exception as error:
        what = str(error) if isinstance(error, PenstockError) else reason(str(error))
        raise InvalidRequest(f"{file}:", what) from error


def in_sql(text: str) -> list[tuple[str, str]]:
    """The names and kinds of the definitions in a file of SQL."""
    code = _NO_CODE.sub(lambda each: each[1] or " ", text)
    return [(short_name(name), kind) for kind, name in _IN_SQL.findall(code)]


def _registry(found: Definitions) -> Any:
    """PySpark's registry of definitions, which also adds them to ours."""
    from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
        SparkConnectGraphElementRegistry,
    )

    class Registry(SparkConnectGraphElementRegistry):
        def register_output(self, output: Any) -> None:
            found.add(output.name, type(output).__name__)
            super().register_output(output)

        def register_flow(self, flow: Any) -> None:
            found.add_flow(flow.name, flow.target)
            super().register_flow(flow)

        def register_auto_cdc_flow(self, flow: Any) -> None:
            found.add_flow(flow.name, flow.target)
            super().register_auto_cdc_flow(flow)

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            with naming_file(file_path):
                for name, kind in in_sql(sql_text):
                    found.add(name, kind)
                    found.add_flow(name, name)
                super().register_sql(sql_text, file_path)

    return Registry(found.spark, found.graph)


OnState = Callable[[str, str], None]
"""Called with a flow and its state whenever that changes."""

COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
FORMER: Final = (
    "is of an earlier version, which had no table judged: make a new project with penstock pipeline init, take its "
    f"transformations/silver.py, and run once with --full-refresh {BRONZE}"
)
_NOT_RUN: Final = ("SKIPPED", "EXCLUDED")


class RoundOutcome(NamedTuple):
    """The result of a round: flows and their targets, their last states, why flows failed, and refreshed tables."""

    flows: Mapping[str, str]
    states: Mapping[str, str]
    reasons: Mapping[str | None, str]
    refreshed: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """The reasons in words. A reason whose flow is unknown is that of the whole round."""
        return [f"flow {flow}: {reason}" if flow else reason for flow, reason in self.reasons.items()]


class Runner:
    """Runs rounds of a project in one Spark, each in a new session."""

    def __init__(self, project: Project, address: str, conf: Mapping[str, str]) -> None:
        self._project = project
        self._address = address
        self._conf = conf

    def round(
        self, full_refresh: Collection[str] = (), *, on_state: OnState | None = None, dry: bool = False
    ) -> RoundOutcome:
        """Run all flows once, or only check whether they can run. Raises InvalidRequest if the project has an error."""
        self._project = project = read_project(self._project.folder)
        refreshed = integrity.with_judged(project, integrity.refreshed_with(project, full_refresh))
        integrity.check_changes(project, refreshed)
        states: dict[str, str] = {}
        with _session(self._address) as spark:
            found = run_in_thread(lambda: self._define(spark, full_refresh))
            refreshed = [table for table in refreshed if table in found.outputs]
            integrity.check_integrity(project, refreshed, found.outputs)
            if not dry:
                # Before the run: if it is interrupted, tables have rows of it nevertheless.
                write_state(project, {**read_state(project), "made": integrity.before_run(project)})
            reasons = run_in_thread(lambda: _run_flows(found, refreshed, states, on_state, dry=dry))
            if not dry:
                # In this thread: after Ctrl-C there is no result to save.
                _note(project, found, states, reasons, refreshed)
        return RoundOutcome(found.flows, states, reasons, tuple(refreshed))

    def _define(self, spark: Any, full_refresh: Collection[str]) -> Definitions:
        try:
            with redirect_stdout(StringIO()):
                found = load_definitions(self._project, spark, self._conf)
        except Exception as error:
            # The files are users' programs, and raise anything.
            what = describe_error(error, self._project.folder)
            raise InvalidRequest(self._project.name, f"cannot be loaded: {what}") from error
        for table in full_refresh:
            if table not in found.outputs:
                raise InvalidRequest(f"table {table}", f"is not there; there are {', '.join(sorted(found.outputs))}")
        if QUARANTINE in found.outputs and JUDGED not in found.outputs:
            raise InvalidRequest(self._project.name, FORMER)
        return found


def _run_flows(
    found: Definitions, refreshed: Collection[str], states: dict[str, str], on_state: OnState | None, *, dry: bool
) -> dict[str | None, str]:
    """Run the flows, and keep their states; returns why flows failed."""
    reasons: dict[str | None, str] = {}
    try:
        for message in found.run(refreshed, dry=dry):
            event = flow_event(message)
            if event is None or (event.state == COMPLETED and states.get(event.flow) == FAILED):
                continue
            states[event.flow] = event.state
            if on_state is not None:
                on_state(event.flow, event.state)
            if event.state == FAILED:
                reasons[event.flow] = event.error or reasons.get(event.flow, "failed")
    except Exception as error:  # noqa: BLE001 - see below
        # Spark's exceptions do not name the flow; its events did.
        if not reasons:
            return {None: reason(str(error))}
    return reasons


def _note(
    project: Project,
    found: Definitions,
    states: Mapping[str, str],
    reasons: Mapping[str | None, str],
    refreshed: Collection[str],
) -> None:
    """Save the result for `status` and for the next run."""
    state, at = read_state(project), now_text()
    known = state.get("flows", {})
    flows = {}
    for flow, target in found.flows.items():
        did_run = states.get(flow, _NOT_RUN[0]) not in _NOT_RUN
        kept = known.get(flow, {})
        flows[flow] = {
            "target": target,
            "ran": at if did_run else kept.get("ran"),
            "error": reasons.get(flow) if did_run else kept.get("error"),
        }
    # Spark empties refreshed tables before it queues the first flow, unless it cannot resolve them.
    has_begun = any(state != FAILED for state in states.values())
    made = integrity.after_run(project, refreshed if has_begun else ())
    write_state(project, {"at": at, "error": reasons.get(None), "flows": flows, "made": made})


@contextmanager
def open_runner(project: Project, master: str, conf: Mapping[str, str], what: str) -> Iterator[Runner]:
    """Lock a project, and start a Connect server for it. Raises InvalidRequest if that fails."""
    # In a group's project, the group may use the files of runs.
    umask = GROUP_TOO if is_shared(project.folder) else OWNER_ALONE
    settings = {**SERVER, UMASK: umask, **project.conf, **conf}
    # By default Derby, the metastore, writes its log into the working directory.
    derby = f"-Dderby.stream.error.file={project.own / 'derby.log'}"
    settings[JAVA] = f"{derby} {settings.get(JAVA, '')}".strip()
    with lock_project(project, what):
        if project.tables is not None and settings[UMASK] in (OWNER_ALONE, GROUP_TOO):
            # Hive creates the folders of tables with permissions for everyone, whatever the umask.
            make_folder(project.tables, shared=is_shared(project.folder))
        with late_session(f"penstock pipeline {project.name}", master, settings) as start, _variables():
            gateway = start()._jvm
            service = getattr(getattr(gateway, SERVICE), "MODULE$")
            os.environ[IS_CONNECTED] = "1"
            yield Runner(project, f"sc://localhost:{service.localPort()}", conf)
