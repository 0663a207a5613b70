"""Executors whose Python does not have Penstock: it is brought along, as docs/cluster.md says; and what is not there.

The executors of each test are new ones, with another Python.
"""

import signal
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from penstock.spark.sessions import EXECUTORS_S, WAITING
from penstock.store import store_url
from penstock.testing import server
from tests.cluster import shipping
from tests.cluster.commands import PENSTOCK, ended, options, run, started
from tests.cluster.standalone import Cluster
from tests.lake.support import fill, is_same, numbers

pytestmark = pytest.mark.long

PYTHON: Final = "spark.pyspark.python"
ARCHIVED: Final = "30 new of 30 events archived, 1 new file\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of Penstock."""
    return shipping.wheel(tmp_path_factory.mktemp("wheel"))


def archived(cluster: Cluster, folder: Path, conf: Mapping[str, str], lake: str = "lake") -> tuple[int, str, str]:
    """Archive a small store through a server."""
    fill(folder / "data", numbers(3))
    with server(folder / "data") as served:
        where = ("--url", served.url, "--lake", lake)
        return run(*PENSTOCK, "lake", "archive", *where, *options(cluster, conf), cwd=folder)


@pytest.mark.timeout(900)
def test_an_archive_of_an_environment_brings_python_and_penstock(cluster: Cluster, tmp_path: Path, made: Path) -> None:
    packed = shipping.archive(tmp_path / "environment", made)
    conf = {PYTHON: "./environment/bin/python", "spark.archives": f"{packed}#environment"}
    assert archived(cluster, tmp_path, conf) == (0, ARCHIVED, "")
    assert is_same(store_url(tmp_path / "data"), tmp_path / "lake")


@pytest.mark.timeout(900)
def test_penstock_works_from_a_zip_where_what_it_needs_is_installed(
    cluster: Cluster, tmp_path: Path, made: Path
) -> None:
    python = str(shipping.bare(tmp_path / "bare"))
    code, out, err = archived(cluster, tmp_path, {PYTHON: python})
    assert (code, out) == (1, "")
    assert err.endswith("penstock: Spark gave up: ModuleNotFoundError: No module named 'penstock'\n")
    zipped = tmp_path / "penstock.zip"
    zipped.write_bytes(made.read_bytes())
    conf = {PYTHON: python, "spark.submit.pyFiles": str(zipped)}
    assert archived(cluster, tmp_path, conf) == (0, ARCHIVED.replace("30", "60"), "")
    assert is_same(store_url(tmp_path / "data"), tmp_path / "lake")


@pytest.mark.timeout(900)
def test_an_executor_that_does_not_see_the_lake_is_told_of_in_a_line(cluster: Cluster, tmp_path: Path) -> None:
    """The same path is another folder in each process, as on machines that share no disk."""
    code, out, err = archived(cluster, tmp_path, {}, "/proc/self/cwd/lake")
    assert (code, out) == (1, "")
    host = socket.gethostname()
    told = f"on {host}, where Spark runs tasks, there is no such lake; its folder must be shared by all machines"
    assert err == f"penstock: /proc/self/cwd/lake cannot be used: {told}\n"
    assert [lake for number in (2, 3) for lake in cluster.work(number).glob("*/*/lake")] == []


@pytest.mark.timeout(900)
def test_that_no_executors_come_is_told_and_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    url = fill(tmp_path / "data", numbers(3))
    where = ("--url", url, "--lake", str(tmp_path / "lake"))
    archive = [*PENSTOCK, "lake", "archive", *where, *options(cluster, {"spark.executor.memory": "64g"})]
    with started(archive) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"{WAITING % EXECUTORS_S}\n"
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        again = "penstock: interrupted: run the same command again to continue\n"
        assert ended(waiting) == (128 + signal.SIGINT, "", again)


@pytest.mark.timeout(900)
def test_a_master_that_takes_connections_and_says_nothing_is_told_of_in_a_line(tmp_path: Path) -> None:
    """Spark tries it for a minute, and that is not to be set."""
    url = fill(tmp_path / "data", numbers(1))
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        archive = ("lake", "archive", "--url", url, "--lake", tmp_path / "lake", "--master", master)
        told = "penstock: Spark does not start: All masters are unresponsive! Giving up.\n"
        assert run(*PENSTOCK, *archive) == (1, "", told)
