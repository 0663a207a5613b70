"""Ctrl-C and SIGTERM in commands that use Spark: one line, nothing runs on, and the next run finishes the lake."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.lake.manifests import PENDING
from tests.lake.killing import command_of, descendants, until, workers
from tests.lake.support import archive, fill, is_same, numbers
from tests.spark.support import JAVA
from tests.test_server import PENSTOCK, Served, environment

AGAIN = "penstock: interrupted: run the same command again to continue\n"


@contextmanager
def alone(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A command in a session of its own, of which nothing is left at the end."""
    with subprocess.Popen(
        [*PENSTOCK, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            for pid in session_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def session_of(leader: int) -> list[int]:
    """The processes of a session that are alive, whoever their parents are by now."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def interrupt(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, str, str]:
    """Do as a terminal does, twice; how the process ends, with all others."""
    os.killpg(process.pid, number)
    os.kill(process.pid, number)
    out, complaints = process.communicate(timeout=120)
    until(lambda: not session_of(process.pid), "the end of all processes")
    return process.returncode, out, complaints


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_archive_that_is_interrupted_as_spark_starts_ends_with_its_jvm_in_a_line(
    number: signal.Signals, code: int, data: Path, tmp_path: Path
) -> None:
    url, lake = fill(data, numbers(3)), tmp_path / "lake"
    with archiving(url, lake) as process:
        jvm = b"pyspark-shell"
        until(lambda: any(jvm in command_of(pid) for pid in descendants(process.pid)), "a JVM")
        assert interrupt(process, number) == (code, "", AGAIN)
    archive(url, lake)
    assert is_same(url, lake)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_an_archive_that_is_interrupted_in_a_job_ends_with_its_workers_in_a_line(data: Path, tmp_path: Path) -> None:
    url, lake = fill(data, numbers(3)), tmp_path / "lake"
    with Served(data) as served, archiving(url_of(served), lake) as process:
        until((lake / PENDING).exists, "a plan")
        # The server stands still, so that no task comes to its end.
        served.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: bool(workers(process.pid)), "a worker")
            assert interrupt(process, signal.SIGINT) == (130, "", AGAIN)
        finally:
            served.process.send_signal(signal.SIGCONT)
    archive(url, lake)
    assert is_same(url, lake)


def archiving(url: str, lake: Path) -> AbstractContextManager["subprocess.Popen[str]"]:
    """The command, with a JVM that starts quickly."""
    where = ("--url", url, "--lake", str(lake))
    return alone("lake", "archive", *where, "--conf", f"spark.driver.extraJavaOptions={JAVA}")


def url_of(served: Served) -> str:
    """Where clients connect to."""
    found = re.search(r"mq=(\S+)", served.ready)
    assert found is not None
    return f"penstock://{found[1]}"
