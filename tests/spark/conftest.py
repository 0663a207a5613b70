"""One Spark session for all tests that need one; `tests.scheduling` has them run in one process."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import JAVA, QUICK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # What Spark's own Python code warns of is nobody's concern here.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in QUICK.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.driver.extraJavaOptions", JAVA)
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """The session; what a test has set in it or left running is undone."""
    yield shared_spark
    for query in shared_spark.streams.active:
        query.stop()
    shared_spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where a store of the test's own goes."""
    return tmp_path / "data"
