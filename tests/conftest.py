"""What all tests share: how hard Hypothesis tries, one PostgreSQL for each process of a test run, and which are long.

Hypothesis takes the same examples in every run. To look further: pytest --hypothesis-profile=thorough.
"""

import signal
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import Postgres, Schemas, postgres

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and whatever the tests start would be deaf to Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail.
BUSY = [HealthCheck.too_slow]
settings.register_profile("penstock", deadline=None, suppress_health_check=BUSY, derandomize=True)
settings.register_profile("thorough", deadline=None, suppress_health_check=BUSY, max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")


LONG: Final = (
    "tests/client/test_faults.py",
    "tests/cluster/test_builds.py",
    "tests/cluster/test_commands.py::test_an_archive_whose_worker_is_killed",
    "tests/cluster/test_page.py::test_the_first_commands",
    "tests/cluster/test_pipelines.py",
    "tests/cluster/test_shipping.py",
    "tests/cluster/test_source.py",
    "tests/gates/test_remits_restarts.py",
    "tests/gates/test_res_restarts.py",
    "tests/lake/test_lake_cli.py::test_a_lake_follows",
    "tests/lake/test_spark_kills.py",
    "tests/pipelines/test_follow.py",
    "tests/pipelines/test_kills.py",
    "tests/pipelines/test_shop.py::test_a_lost_checkpoint",
    "tests/pipelines/test_shop.py::test_late_events",
    "tests/pipelines/test_shop.py::test_more_events",
    "tests/spark/test_builds_killed.py",
    "tests/spark/test_example.py",
    "tests/spark/test_sink_cluster.py",
    "tests/spark/test_sink_failures.py",
    "tests/spark/test_streaming.py",
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
