"""A real standalone cluster on loopback: a master and two workers, each a JVM of its own, that tests may kill.

A worker has an address of its own, so that Spark takes it for another machine; one core, and little memory. All
processes, the executors too, are in one group with a guard, which kills the group when its standard input ends or its
time is over. So nothing is left, also if the process that started it is killed.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pyspark

from tests.lake.killing import command_of, descendants

PATIENCE_S: Final = 120
"""How long a JVM may take to start on a busy machine."""
LIFE_S: Final = 5400
"""After so many seconds a cluster ends, whatever happens."""
HOME: Final = Path(pyspark.__file__).parent
SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The code runs for seconds: it is not worth compiling well, and a second thread for garbage is not needed."""
DAEMON: Final = {
    "SPARK_HOME": str(HOME),
    "SPARK_DAEMON_MEMORY": "128m",
    "SPARK_DAEMON_JAVA_OPTS": f"{SMALL} -Dspark.ui.enabled=false -Dspark.master.rest.enabled=false",
}
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
MEMORY: Final = "700m"
"""What a worker has for its executors: one of 512 MiB at a time."""
SMALL_APPLICATION: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.extraJavaOptions": SMALL,
}
"""What a driver on this machine says for such a cluster."""
GUARD: Final = f"timeout --foreground {LIFE_S} cat >/dev/null; kill -KILL 0"


class Cluster:
    """A master and its workers, by the last number of their addresses."""

    def __init__(self, folder: Path, group: int) -> None:
        self._folder, self._group = folder, group
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start_master(self) -> None:
        """Start the master, and wait until workers may come."""
        log = self._folder / "master.log"
        process = self._start(log, 1, MASTER)
        self._until(process, log, partial(_has, log, "I have been elected leader"))
        found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert found is not None
        self.master = found[1]

    def start_workers(self, *numbers: int) -> None:
        """Start workers at the same time, and wait until the master knows them."""
        started = {number: self._folder / f"worker-{number}-{len(self._workers)}.log" for number in numbers}
        for number, log in started.items():
            sizes = ("-c", "1", "-m", MEMORY, "-d", str(self.work(number)))
            self._workers[number] = self._start(log, number, WORKER, *sizes, self.master)
        for number, log in started.items():
            self._until(self._workers[number], log, partial(_has, log, "Successfully registered with master"))

    def _start(self, log: Path, number: int, what: str, *arguments: str) -> "subprocess.Popen[bytes]":
        address = f"127.0.0.{number}"
        places = ("--host", address, "--port", "0", "--webui-port", "0")
        environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
        with log.open("wb") as said:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), what, *places, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._folder,
                env={**environment, **DAEMON, "SPARK_LOCAL_IP": address},
                process_group=self._group,
            )
        self.processes.append(process)
        return process

    def _until(self, process: "subprocess.Popen[bytes]", log: Path, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def work(self, number: int) -> Path:
        """The directory that a worker has for its executors."""
        return self._folder / f"work-{number}"

    def executors(self, number: int) -> list[int]:
        """The executors that a worker runs at this moment."""
        return [pid for pid in descendants(self._workers[number].pid) if EXECUTOR in command_of(pid)]

    def kill_executor(self, number: int) -> None:
        """Kill the executors of a worker, which stays and starts others."""
        found = self.executors(number)
        assert found, f"worker {number} runs no executor"
        for pid in found:
            _kill(pid)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and all that it has started, as when its machine is gone."""
        worker = self._workers[number]
        below = descendants(worker.pid)
        for pid in (worker.pid, *below):
            _kill(pid)
        worker.wait()

    def mend(self) -> None:
        """Start the workers again that were killed."""
        self.start_workers(*(number for number, worker in self._workers.items() if worker.poll() is not None))


def _has(log: Path, text: str) -> bool:
    return text in log.read_text(errors="replace")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """A cluster with the workers 2 and 3; at the end nothing of it is left."""
    with subprocess.Popen(["sh", "-c", GUARD], stdin=subprocess.PIPE, process_group=0) as guard:
        cluster = Cluster(folder, guard.pid)
        try:
            cluster.start_master()
            cluster.start_workers(2, 3)
            yield cluster
        finally:
            os.killpg(guard.pid, signal.SIGKILL)
            for process in cluster.processes:
                process.wait()
