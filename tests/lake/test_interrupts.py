"""Ctrl-C and SIGTERM in commands that use Spark: one line, nothing runs on, and the next run finishes the lake."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lake.killing import command_of, descendants, until
from tests.lake.support import archive, fill, is_same, numbers
from tests.test_server import PENSTOCK, environment

AGAIN = "penstock: interrupted: run the same command again, and it goes on\n"


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


def interrupt(process: "subprocess.Popen[str]", number: signal.Signals, sign: bytes) -> tuple[int, str, str]:
    """Wait until a process has started another, then do as a terminal does, twice; how it ends, with all others."""
    until(lambda: any(sign in command_of(pid) for pid in descendants(process.pid)), f"a process {sign!r}")
    os.killpg(process.pid, number)
    os.kill(process.pid, number)
    out, complaints = process.communicate(timeout=120)
    until(lambda: not session_of(process.pid), "the end of all processes")
    return process.returncode, out, complaints


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "sign", "code"),
    [
        (signal.SIGINT, b"pyspark-shell", 130),
        (signal.SIGTERM, b"pyspark-shell", 143),
        (signal.SIGINT, b"pyspark.daemon", 130),
    ],
    ids=["at the start", "terminated at the start", "in a job"],
)
def test_an_archive_that_is_interrupted_ends_with_its_jvm_in_a_line(
    number: signal.Signals, sign: bytes, code: int, data: Path, tmp_path: Path
) -> None:
    url, lake = fill(data, numbers(3)), tmp_path / "lake"
    with alone("lake", "archive", "--url", url, "--lake", str(lake)) as process:
        assert interrupt(process, number, sign) == (code, "", AGAIN)
    archive(url, lake)
    assert is_same(url, lake)
