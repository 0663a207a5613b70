"""The tiers of the tests, and which tests share a process of a parallel run.

- unit: starts no process and no JVM. The default; a unit test that starts a process fails.
- integration: real servers, worker processes, PostgreSQL or Spark, shared by as many tests as possible.
- system: servers, workers, databases and clusters that are killed, cut off or fail.

A test of any tier can be long (`@pytest.mark.long`): many kills, many random steps, much data, whole stories, or the
same as another test on one more backend. `make test` runs all tiers without the long tests, `make test-all` runs
everything, `make test TIER=unit` one tier. The tables name tests by the beginning of their node ids; the longest that
fits counts.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from tests.seeds import run_seed

ORDER: Final = ("system", "integration", "unit")

INTEGRATION: Final = (
    *(
        f"tests/{name}/"
        for name in ("backup", "cli", "client", "console", "engine", "gates", "history", "integrations", "lake")
    ),
    *(f"tests/{name}/" for name in ("hostile", "pipelines", "shared", "spark", "sql")),
    "tests/bench/test_peers.py",
    "tests/interchange/test_replay",
    "tests/lua/test_isolation.py",
    "tests/lua/test_repeats.py",
    "tests/lua/test_watchdog.py",
    "tests/mq/test_examples.py",
    "tests/mq/test_mq_docs.py",
    "tests/saved/test_copies.py",
    "tests/saved/test_postgres.py",
    "tests/store/test_postgres",
    "tests/store/test_sqlite.py::test_an_opener_in_another_process",
    "tests/test_",
    "tests/test_cloudevents.py::test_the_cloudevents_package_is_not_needed",
    "tests/wire/test_remits_cbor.py::test_bombs_are_judged_by_a_process",
)

SYSTEM: Final = (
    "tests/client/test_faults.py",
    "tests/cluster/",
    "tests/console/test_browser.py",
    "tests/console/test_live.py",
    "tests/console/test_pictures.py",
    "tests/engine/test_seals_killed.py",
    "tests/faults/",
    "tests/gates/test_api_followers.py::test_a_follower_through_a_kill",
    "tests/gates/test_kills.py",
    "tests/gates/test_mq_restarts.py",
    "tests/gates/test_queues_killed.py",
    "tests/gates/test_remits_hostile.py",
    "tests/gates/test_remits_restarts.py",
    "tests/gates/test_res_hostile.py",
    "tests/gates/test_res_restarts.py",
    "tests/history/test_restarts.py",
    "tests/lake/test_interrupts.py",
    "tests/lake/test_kills.py",
    "tests/lake/test_remote_kills.py",
    "tests/lake/test_spark_kills.py",
    "tests/mq/test_vanished.py",
    "tests/pipelines/test_kills.py",
    "tests/shared/test_servers.py",
    "tests/spark/test_builds_killed.py",
    "tests/spark/test_sink_cluster.py",
    "tests/spark/test_sink_failures.py",
    "tests/store/test_postgres_faults.py",
    "tests/store/test_sqlite_builds.py::test_one_that_dies_while_it_installs",
)

UNIT: Final = (
    "tests/backup/test_damage.py",
    "tests/backup/test_importing.py",
    "tests/backup/test_incremental.py",
    "tests/backup/test_ledger.py",
    "tests/cli/test_json.py",
    "tests/client/test_names.py",
    "tests/console/test_bodies.py",
    "tests/console/test_sessions.py",
    "tests/gates/test_in_flight.py",
    "tests/gates/test_remits_budget.py",
    "tests/history/test_texts.py",
    "tests/lake/test_digests.py",
    "tests/pipelines/test_bodies.py",
    "tests/pipelines/test_changes.py",
    "tests/pipelines/test_init.py",
    "tests/pipelines/test_projects.py",
    "tests/spark/test_columns.py",
    "tests/spark/test_options.py",
    "tests/spark/test_pushing.py",
    "tests/sql/test_pushing.py",
    "tests/test_cloudevents.py",
    "tests/test_settings.py",
)
"""Parts of packages above, and everything that no table names."""

TOGETHER: Final[dict[str, tuple[str, ...]]] = {
    "spark": (
        "tests/spark/",
        "tests/lake/test_page.py",
        "tests/lake/test_readers.py",
        "tests/lake/test_spark_kills.py",
        "tests/lake/test_parallel.py",
        "tests/pipelines/test_page.py",
    ),
    "cluster": ("tests/cluster/",),
}
"""Files that share a JVM or a cluster, and so a process of a parallel run."""

TIERS: Final = {
    **dict.fromkeys(INTEGRATION, "integration"),
    **dict.fromkeys(SYSTEM, "system"),
    **dict.fromkeys(UNIT, "unit"),
}
STARTS: Final = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})
"""Audit events of Python that tell of a new process."""


def tier_of(nodeid: str) -> str:
    """The tier of a test."""
    fitting = [beginning for beginning in TIERS if nodeid.startswith(beginning)]
    return TIERS[max(fitting, key=len)] if fitting else "unit"


def group_of(nodeid: str) -> str:
    """What a test shares a process with: a group of files, or its own file."""
    return next((name for name, places in TOGETHER.items() if nodeid.startswith(places)), nodeid.partition("::")[0])


# ---------------------------------------------------------------- marks and order


def pytest_configure(config: pytest.Config) -> None:
    for tier in ORDER:
        config.addinivalue_line("markers", f"{tier}: a tier of tests/tiers.py")
    config.addinivalue_line("markers", "long: `make test-all` runs it, `make test` does not")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(run_seed())
    config.pluginmanager.register(RunSummary(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(tier_of(item.nodeid))
    # Groups and slow tiers first: a parallel run should end with small files.
    groups = list(TOGETHER)
    items.sort(
        key=lambda item: (*(group_of(item.nodeid) != group for group in groups), ORDER.index(tier_of(item.nodeid)))
    )


# ---------------------------------------------------------------- unit tests start no process

_unit_test: str | None = None
"""The unit test that is running."""


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    # Other threads belong to servers that earlier tests share.
    if _unit_test is not None and event in STARTS and threading.current_thread() is threading.main_thread():
        raise RuntimeError(f"{_unit_test} starts a process: list it as integration or system in tests/tiers.py")


sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    global _unit_test  # noqa: PLW0603 -- an audit hook cannot be taken away, so it asks what runs
    _unit_test = item.nodeid if tier_of(item.nodeid) == "unit" else None
    try:
        return (yield)
    finally:
        _unit_test = None


# ---------------------------------------------------------------- what a run says of itself


class RunSummary:
    """What is shown of a run at its ends: its seed, and which tests did not run and why."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._long_left_out = 0

    def pytest_report_header(self) -> str:
        return f"seed {run_seed()}: `make test SEED={run_seed()}` takes the same examples again"

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self._long_left_out += sum(item.get_closest_marker("long") is not None for item in items)

    def pytest_sessionfinish(self) -> None:
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["long_left_out"] = self._long_left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        # Every process of a parallel run has collected all tests.
        self._long_left_out = getattr(node, "workeroutput", {}).get("long_left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
            terminalreporter.write_line(self.pytest_report_header())
        reports: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
        why = Counter(_reason(report) for report in reports)
        shown = [f"{count} × {reason}" for reason, count in why.most_common()]
        if self._long_left_out:
            shown.append(f"{self._long_left_out} × long (`make test-all` runs them)")
        terminalreporter.write_line(f"not run: {'; '.join(shown) or 'nothing'}")


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


# ---------------------------------------------------------------- parallel runs


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import all tests beforehand, each process from another file on.

    pytest rewrites the assertions of a module when it is first imported, and keeps them on the disk. In a new checkout
    every process would rewrite all of them; so each finds there what the others have just written.
    """
    place: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not place or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted((session.config.rootpath / "tests").rglob("test_*.py"))
    first = len(files) * int(place["workerid"].removeprefix("gw")) // place["workercount"] % len(files)
    for file in files[first:] + files[:first]:
        # Some need marks of a conftest that is not there yet. What cannot be imported is told where pytest imports it.
        with suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests run in one process, so that they share a server; groups of files do where they share more."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Asked by pytest-xdist."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)
