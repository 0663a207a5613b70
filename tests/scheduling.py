"""Which process of a parallel test run gets which test: those of Spark go to one, because they share a session.

A plugin for `pytest -n 2 -p tests.scheduling`. Groups, which pytest-xdist has for this, do nothing under pytest 9.2.
"""

from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

SPARK: Final = (
    "tests/spark/",
    "tests/lake/test_page.py",
    "tests/lake/test_readers.py",
    "tests/lake/test_spark_kills.py",
    "tests/lake/test_spreading.py",
    "tests/pipelines/test_page.py",
)
"""Where tests begin that use Spark's session."""

SHARED: Final = ("tests/cluster/",)
"""Where tests are that share a cluster."""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A test goes with its parameters to whichever process is free; those that share something go together."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK):
            return SPARK[0]
        return next((place for place in SHARED if nodeid.startswith(place)), nodeid.partition("[")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Asked by pytest-xdist."""
    return Scheduling(config, log)
