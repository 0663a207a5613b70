"""A project's flows as they are defined by its files, and a run of them.

This is what `spark-pipelines` does with a specification, through the same functions of PySpark's; but what is defined
is remembered, and what a run says comes back as it is said.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest, PenstockError
from penstock.pipelines.projects import Project
from penstock.pipelines.telling import reason, short

_IN_SQL: Final = re.compile(
    r"\bCREATE\s+(?:OR\s+REFRESH\s+)?(STREAMING\s+TABLE|MATERIALIZED\s+VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    r"((?:`[^`]+`|[\w.])+)",
    re.IGNORECASE,
)
"""What a file in SQL defines. Spark reads it in the server, and does not tell."""

_NO_CODE: Final = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`)|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Comments; and what is in quotes, in which nothing is one."""


@dataclass
class Defined:
    """The outputs and flows of a project: kinds by name, and targets by name."""

    spark: Any
    graph: str
    storage: str
    outputs: dict[str, str] = field(default_factory=dict)
    flows: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, kind: str) -> None:
        """Note an output. Raises InvalidRequest if there is one of that name; Spark would say so much later."""
        if any(name.lower() == other.lower() for other in self.outputs):
            raise InvalidRequest(f"table {name}", "is defined twice")
        self.outputs[name] = kind

    def add_flow(self, name: str, target: str) -> None:
        """Note a flow. Raises InvalidRequest if its table has one, as a table of files would lose rows. Sinks may."""
        kind = self.outputs.get(target)
        if kind == "TemporaryView":
            return
        if kind not in (None, "Sink") and target in self.flows.values():
            raise InvalidRequest(f"table {target}", "has two flows, and would lose rows of one: use one with a union")
        self.flows[name] = target

    def run(self, refreshed: Collection[str], *, dry: bool) -> Iterator[str]:
        """Run them, or only check them; what is said meanwhile. The exception of a run that failed comes at its end."""
        from pyspark.pipelines.spark_connect_pipeline import start_run  # noqa: PLC0415

        others = [name for name, kind in self.outputs.items() if name not in refreshed and kind != "TemporaryView"]
        results = start_run(
            self.spark,
            self.graph,
            full_refresh=list(refreshed),
            full_refresh_all=False,
            # To name those that are made anew means to leave the others out, unless they are named as well.
            refresh=others if refreshed else [],
            dry=dry,
            storage=self.storage,
        )
        for result in results:
            if "pipeline_event_result" in result:
                yield result["pipeline_event_result"].event.message


def defined(project: Project, spark: Any, conf: Mapping[str, str]) -> Defined:
    """Load a project's files; settings that are given go before those in them. Raises whatever they raise."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions  # noqa: PLC0415
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph  # noqa: PLC0415

    spec = load_pipeline_spec(project.spec)
    settings = {name: conf.get(name, value) for name, value in spec.configuration.items()}
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, settings)
    found = Defined(spark, graph, spec.storage)
    with _no_bytecode():
        register_definitions(project.spec, _registry(found), spec, spark, graph)
    return found


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Bytecode goes by the second a file was changed in: what is edited between two rounds might not be seen."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = kept


@contextmanager
def named(file: Path) -> Iterator[None]:
    """Name the file in SQL in which something is wrong: Spark does not, and no line of it is among the calls."""
    try:
        yield
    except Exception as error:
        what = str(error) if isinstance(error, PenstockError) else reason(str(error))
        raise InvalidRequest(f"{file}:", what) from error


def in_sql(text: str) -> list[tuple[str, str]]:
    """The names and kinds of what a file in SQL defines."""
    code = _NO_CODE.sub(lambda each: each[1] or " ", text)
    return [(short(name), kind) for kind, name in _IN_SQL.findall(code)]


def _registry(found: Defined) -> Any:
    """PySpark's registry of what a file defines, which tells us as well."""
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
            with named(file_path):
                for name, kind in in_sql(sql_text):
                    found.add(name, kind)
                    found.add_flow(name, name)
                super().register_sql(sql_text, file_path)

    return Registry(found.spark, found.graph)
