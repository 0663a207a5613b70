"""Drivers and Python workers of an archive, killed with SIGKILL again and again while appends go on."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock.model import ANY
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, HideStream, Transaction
from penstock.store.sqlite import SqliteStore
from tests.lake.support import erase_in, manifest_of
from tests.spark.support import counted

PATIENCE_S: Final = 240
"""How long a JVM may take to start on a busy machine."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


@contextmanager
def appending(data: Path, pause_s: float = 0.05, erase_every: int | None = None) -> Iterator[Callable[[], int]]:
    """Append to a store until the end, and erase a stream now and then; how many events there are."""
    over, done = threading.Event(), [0]

    def run() -> None:
        with closing(SqliteStore(data)) as store:
            for number in itertools.count():
                columns = columns_of(counted(100, start=done[0] + 1))
                store.write([Transaction((Commit("shop", f"s-{number % 50}", ANY, columns),))])
                done[0] += 100
                if erase_every and number % erase_every == erase_every - 1:
                    erase_in(store, HideStream("shop", f"s-{number // erase_every % 50}"))
                if over.wait(pause_s):
                    return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: done[0] > 0, "the first append")
        yield lambda: done[0]
    finally:
        over.set()
        thread.join()


@contextmanager
def driver(url: str, lake: Path) -> Iterator["subprocess.Popen[str]"]:
    """An archive in a process of its own; whatever happens, it is killed at the end, and its JVM with it."""
    command = [sys.executable, "-m", "tests.lake.driver", url, str(lake)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        below: list[int] = []
        try:
            yield process
            below = descendants(process.pid)
        finally:
            process.kill()
            process.wait()
            # What Spark has started ends by itself; here nobody waits for that.
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes that one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def workers(pid: int) -> list[int]:
    """The Python processes of Spark below one, but for the one that starts the others."""
    found = [each for each in descendants(pid) if b"pyspark.daemon" in command_of(each)]
    return [each for each in found if _parent(each) in found]


def command_of(pid: int) -> bytes:
    """What a process was started with; nothing if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill_workers(process: "subprocess.Popen[str]", times: int, chance: random.Random) -> int:
    """Kill workers of a driver one by one; how many."""
    killed = 0
    while killed < times and process.poll() is None:
        found = workers(process.pid)
        if found:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(0.01, 0.2))
    return killed


def head_of(lake: Path) -> int:
    """How far a lake is; 0 as long as there is none."""
    try:
        return manifest_of(lake).head
    except Exception:  # noqa: BLE001 - it may not be there yet
        return 0


def kill_driver(url: str, lake: Path, workers_max: int, chance: random.Random, life_s: float = 0.5) -> dict[str, Any]:
    """Start an archive, kill some of its workers, and then itself at some moment."""
    before = head_of(lake)
    with driver(url, lake) as process:
        until(lambda: process.poll() is not None or bool(workers(process.pid)), "a worker")
        killed = kill_workers(process, workers_max, chance)
        until(lambda: process.poll() is not None or head_of(lake) > before, "progress")
        time.sleep(chance.uniform(0, life_s))
        return {"workers": killed, "ended": process.poll(), "from": before, "to": head_of(lake)}
