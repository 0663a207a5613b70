"""Commands on the cluster, as people run them, in processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.cluster.standalone import SMALL_APPLICATION, Cluster
from tests.lake.killing import PATIENCE_S, descendants
from tests.test_server import Served, environment

ROOT: Final = Path(__file__).parents[2]
PENSTOCK: Final = (sys.executable, "-m", "penstock")
SMALL_RANGES: Final = (sys.executable, "-m", "tests.cluster.command")
BOTH: Final = {
    # No task begins before both executors are there. How many cores are to come must be said for that.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "100s",
}


def options(cluster: Cluster, conf: Mapping[str, str] | None = None) -> list[str]:
    """What a command is told of the cluster."""
    given = {**SMALL_APPLICATION, **(conf or {})}
    return ["--master", cluster.master, *(word for key in given for word in ("--conf", f"{key}={given[key]}"))]


@contextmanager
def started(command: list[str], cwd: Path = ROOT) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs; whatever happens, it is killed at the end, and all that it has started."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            below = descendants(process.pid)
            for pid in (process.pid, *below) if process.poll() is None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def standing_still(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Meanwhile a process does nothing: what must be seen in the middle of its work is seen there."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def url_of(served: Served) -> str:
    """Where executors read from."""
    found = re.search(r"mq=(\S+)", served.ready)
    assert found is not None
    return f"penstock://{found[1]}"


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for a command: exit code, standard output, standard error."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def run(*command: object, cwd: Path = ROOT) -> tuple[int, str, str]:
    """Run a command to its end."""
    with started([str(word) for word in command], cwd) as process:
        return ended(process)
