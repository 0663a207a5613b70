"""`penstock lake` on a real standalone cluster whose executors read through a server, and a worker that is killed."""

import io
import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import PlaceRefused
from penstock.lake import places
from penstock.lake.manifests import ASIDE, PENDING
from penstock.spark import sessions
from penstock.store import store_url
from penstock.store.urls import absolute_url
from tests.cluster.commands import BOTH, PENSTOCK, SMALL_RANGES, ended, options, run, standing_still, started, url_of
from tests.cluster.standalone import SMALL, Cluster
from tests.lake.killing import command_of, head_of, until
from tests.lake.support import fill, is_same, numbers
from tests.test_cli import no_settings as no_settings  # noqa: PLC0414 - a fixture that is used by itself
from tests.test_cli import penstock
from tests.test_server import Served

EVENTS = 60_000
FILES = 15
"""Ranges end where blocks of 4,096 positions do."""


def has_written(lake: Path) -> bool:
    """Whether a task has written a file. Before there is a plan, the driver writes aside as well."""
    return (lake / PENDING).exists() and any(lake.glob(f"{ASIDE}/*"))


@pytest.mark.timeout(900)
@pytest.mark.long
def test_an_archive_whose_worker_is_killed_in_the_middle_is_exact(cluster: Cluster, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    fill(data, numbers(60, 1000))
    with Served(data) as served:
        where = ("--url", url_of(served), "--lake", "lake")
        archive = [*SMALL_RANGES, "lake", "archive", *where, *options(cluster, BOTH)]
        with started(archive, tmp_path) as archiving:
            until(lambda: has_written(lake), "the first file")
            # Tasks stand still in the middle of a read, because the server does.
            with standing_still(served.process):
                (executor,) = cluster.executors(2)
                assert all(word.encode() in command_of(executor) for word in SMALL.split())
                cluster.kill_worker(2)
                assert head_of(lake) == 0
            code, out, err = ended(archiving)
        assert (code, out) == (0, f"60,000 new of 60,000 events archived, {FILES} new files\n"), err
        assert "Traceback" not in err
        cluster.mend()
        same = f"60,000 events in {FILES} files, up to position 60,000: the same as in the store\n"
        assert run(*PENSTOCK, "lake", "verify", *where, *options(cluster), cwd=tmp_path) == (0, same, "")
    assert is_same(store_url(data), lake)


def test_a_master_that_does_not_answer_is_told_in_a_line_before_a_jvm_is_started(tmp_path: Path) -> None:
    url = fill(tmp_path / "data", numbers(1))
    with closing(socket.socket()) as bound:
        # Nobody listens there, and nobody else gets the port meanwhile.
        bound.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{bound.getsockname()[1]}"
        archive = ("lake", "archive", "--url", url, "--lake", tmp_path / "lake", "--master", master)
        told = f"penstock: Spark does not start: no master answers at {master}: Connection refused\n"
        assert penstock(*archive) == (1, "", told)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--master", "spark://somewhere"), "no master answers at spark://somewhere: 'somewhere' is not HOST:PORT"),
        (("--master", "lokal"), "Spark has no master 'lokal': local[N], spark://HOST:PORT, yarn and k8s://… are some"),
        (("--conf", "executor.memory=1g"), "Spark has no option 'executor.memory': its options begin with 'spark.'"),
        (
            ("--conf", "spark.hadoop.fs.permissions.umask-mode=go="),
            "Spark has spark.hadoop.fs.permissions.umask-mode 'go=': it must be octal digits such as 077",
        ),
        (("--conf", "spark.executor.memory"), "--conf is 'spark.executor.memory': it must be KEY=VALUE"),
    ],
)
def test_a_wrong_master_or_option_is_told_in_a_line(wrong: tuple[str, str], told: str, tmp_path: Path) -> None:
    url = fill(tmp_path / "data", numbers(1))
    code, out, err = penstock("lake", "archive", "--url", url, "--lake", tmp_path / "lake", *wrong)
    assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
    assert told in err


@pytest.mark.long
def test_an_option_that_spark_looks_at_later_is_told_in_a_line_at_once(tmp_path: Path) -> None:
    url, lake = fill(tmp_path / "data", numbers(1)), tmp_path / "lake"
    wrong = ("--conf", "spark.sql.shuffle.partitions=abc", "--master", "local[1]")
    code, out, err = run(*PENSTOCK, "lake", "archive", "--url", url, "--lake", str(lake), *wrong, cwd=tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "The value 'abc' in the config \"spark.sql.shuffle.partitions\" is invalid" in err


@pytest.mark.parametrize(
    ("logged", "raised", "told"),
    [
        ("", "An error occurred\n: java.lang.IllegalStateException: no\n", "java.lang.IllegalStateException: no"),
        (
            'x\nException in thread "main" org.Bad: no\nException in thread "main" a.SomeException: no',
            "x",
            "a.SomeException: no",
        ),
        ("26/11/15 ERROR Backend: Application has been killed. Reason: Nobody.", ": a.SomeException: no", "Nobody."),
        ("much", "neither here nor there", "neither here nor there"),
    ],
)
def test_why_spark_does_not_start_is_told_without_what_belongs_to_java(logged: str, raised: str, told: str) -> None:
    assert sessions._reason(io.BytesIO(logged.encode()), Exception(raised)) == told


def test_the_python_of_executors_is_the_one_that_an_option_names_or_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    sessions._name_python({})
    assert os.environ == {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    sessions._name_python({"spark.pyspark.python": "./environment/bin/python"})
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_a_task_makes_no_lake_where_it_finds_none(tmp_path: Path) -> None:
    """Its machine has other disks than the driver's."""
    with pytest.raises(PlaceRefused, match="there is no such lake; its folder must be shared by all machines"):
        places.open_seen_place(str(tmp_path / "lake"))
    assert not any(tmp_path.iterdir())


def test_tasks_are_given_paths_that_do_not_depend_on_where_they_run() -> None:
    here = Path.cwd()
    assert places.absolute("lake") == str(here / "lake")
    assert absolute_url("sqlite:///data") == f"sqlite:///{here}/data"
    for whole in ("/lake", "s3://lakes/shop", "file:///lake"):
        assert places.absolute(whole) == whole
    for url in ("sqlite:////data", "penstock://127.0.0.1:8472"):
        assert absolute_url(url) == url
