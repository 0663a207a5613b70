"""What all tests share: how hard Hypothesis tries, and one PostgreSQL for each process of a test run.

The tiers of the tests are in `tests.tiers`, the seed of a run in `tests.seeds`. To have Hypothesis look further:
`make test ARGS=--hypothesis-profile=thorough`.
"""

import signal
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests import tiers
from tests.postgres import Postgres, Schemas, postgres

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and whatever the tests start would be deaf to Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail. `print_blob`: a failure that CI has found can be had here again.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("thorough", settings.get_profile("penstock"), max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers)


LONG: Final = (
    "tests/client/test_faults.py",
    "tests/cluster/test_builds.py",
    "tests/cluster/test_commands.py::test_an_archive_whose_worker_is_killed",
    "tests/cluster/test_commands.py::test_an_option_that_spark_looks_at_later",
    "tests/cluster/test_page.py::test_the_first_commands",
    "tests/cluster/test_pipelines.py",
    "tests/cluster/test_shipping.py",
    "tests/cluster/test_source.py",
    "tests/engine/test_stateful.py",
    "tests/faults/test_backup.py",
    "tests/faults/test_crash.py",
    "tests/gates/test_remits_restarts.py",
    "tests/gates/test_res_restarts.py",
    "tests/lake/test_interrupts.py::test_an_archive_that_is_interrupted_as_spark_starts_ends_with_its_jvm_in_a_line[15-143]",
    "tests/lake/test_interrupts.py::test_an_archive_that_is_interrupted_in_a_job",
    "tests/lake/test_lake_cli.py::test_a_lake_follows",
    "tests/lake/test_spark_kills.py::test_an_archive_whose_driver_and_workers",
    "tests/pipelines/test_follow.py",
    "tests/pipelines/test_kills.py",
    "tests/pipelines/test_runs.py::test_tables_are_made_anew",
    "tests/pipelines/test_runs.py::test_what_is_wrong",
    "tests/pipelines/test_shop.py::test_whatever_happens",
    "tests/shared/test_servers.py",
    "tests/spark/test_builds.py::test_a_message_that_fails_stops_a_filter_and_a_reduce_and_what_came_before_is_installed[postgresql]",
    "tests/spark/test_builds.py::test_a_message_that_fails_stops_a_filter_and_a_reduce_and_what_came_before_is_installed[sqlite]",
    "tests/spark/test_builds.py::test_all_kinds_are_built_as_a_server_builds_them_which_then_goes_on[postgresql]",
    "tests/spark/test_builds.py::test_all_kinds_are_built_as_a_server_builds_them_which_then_goes_on[sqlite]",
    "tests/spark/test_builds.py::test_an_iterator_that_is_deleted_meanwhile_gets_nothing[postgresql]",
    "tests/spark/test_builds.py::test_an_iterator_that_is_deleted_meanwhile_gets_nothing[sqlite]",
    "tests/spark/test_builds.py::test_of_several_attempts_only_the_one_that_is_named_is_installed[postgresql]",
    "tests/spark/test_builds.py::test_of_several_attempts_only_the_one_that_is_named_is_installed[sqlite]",
    "tests/spark/test_builds_killed.py::test_a_build",
    "tests/spark/test_builds_killed.py::test_a_function",
    "tests/spark/test_builds_limits.py::test_a_filter_and_a_reduce_stop_before_it[reduce-memory]",
    "tests/spark/test_builds_limits.py::test_a_filter_and_a_reduce_stop_before_it[reduce-stuck]",
    "tests/spark/test_builds_rounds.py::test_a_task_that_takes_long_is_back_before_its_end_and_another_goes_on[filter]",
    "tests/spark/test_builds_rounds.py::test_more_than_may_be_staged_at_once_is_built_and_installed_in_rounds[filter]",
    "tests/spark/test_everywhere.py::test_a_stream_from_postgresql",
    "tests/spark/test_example.py",
    "tests/spark/test_shop_projection.py::test_a_batch_that_fails_half_way",
    "tests/spark/test_shop_projection.py::test_names_that_postgresql_does_not_take",
    "tests/spark/test_sink_cluster.py",
    "tests/spark/test_sink_failures.py",
    "tests/spark/test_streaming.py::test_a_checkpoint_of_another_store",
    "tests/spark/test_streaming.py::test_a_driver_that_is_killed",
    "tests/spark/test_streaming.py::test_a_query_that_fails_in_a_batch",
    "tests/spark/test_streaming.py::test_a_stream_takes_what_comes",
    "tests/spark/test_streaming.py::test_progress_tells",
    "tests/store/test_sqlite_upkeep.py",
    "tests/store/test_stateful.py",
    "tests/test_operations.py",
)
"""Where processes are killed again and again, or many random steps are taken: for `make test`, not for `make check`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Started when the first test asks for it."""
    with postgres() as started:
        yield started


@pytest.fixture(scope="session")
def all_schemas(postgres_server: Postgres) -> Schemas:
    return Schemas(postgres_server)


@pytest.fixture
def schemas(all_schemas: Schemas) -> Iterator[Schemas]:
    """Stores by place, all of them new."""
    yield all_schemas
    all_schemas.give_back()
