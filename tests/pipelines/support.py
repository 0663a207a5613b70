"""What the tests of pipelines share: orders, projects, what is in tables, and a Spark in a process of its own."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from penstock.model import NewEvent, new_event
from penstock.pipelines.checkpoints import FILES_LOG, logged_files
from tests.spark.support import fill

ENDING_S: Final = 60
COMMAND_S: Final = 300
"""No command takes this long; some start a Spark."""
TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark gives the process of a streaming source ten seconds to start, and nobody can set that."""
ROUNDS_MAX: Final = 5
GARBAGE: Final = (
    b"no JSON",
    b"[1]",
    b"\xff\xfe",
    b'{"customer": 5, "amount": 1}',
    b'{"amount": 1}',
    b'{"customer": "Eve"',
)
"""Bodies that fit no table of orders."""


def order(number: int) -> NewEvent:
    return new_event("OrderPlaced", b'{"customer": "c%d", "amount": %d}' % (number % 3, number))


def sell(place: Path, first: int, count: int, *others: NewEvent) -> str:
    """Orders with these numbers, and other events behind them; the store's URL."""
    orders = [("shop", f"order-{number}", [order(number)]) for number in range(first, first + count)]
    return fill(place, [*orders, *(("shop", "others", [each]) for each in others)])


def in_batches_of(folder: Path, events: int) -> str:
    """Have bronze take so many events at a time; what the file says then."""
    path = folder / "penstock.yml"
    text, count = re.subn(r"maxEventsPerTrigger: \d+", f"maxEventsPerTrigger: {events}", path.read_text())
    assert count == 1
    path.write_text(text)
    return text


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """What is in a table, as its files have it: those that count."""
    place = folder / "tables" / table
    files = logged_files(place / FILES_LOG) if (place / FILES_LOG).is_dir() else place.glob("*.parquet")
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(found, key=lambda row: (row.get("position", 0), str(row)))


def positions(folder: Path, table: str) -> list[int]:
    return [row["position"] for row in rows(folder, table)]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; Spark may have to start first."""
    deadline = time.monotonic() + COMMAND_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def penstock(*words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """A command that ends with this exit code."""
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
    assert done.returncode == code, done.stderr
    return done


class Rounds:
    """A Spark in a process of its own, that runs rounds of one project."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def do(self, **order: Any) -> dict[str, Any]:
        """Run a round; on a machine that is too busy for Spark, another one."""
        for _ in range(ROUNDS_MAX):
            done = self._do(order)
            if not any(TOO_SLOW in failure for failure in done.get("failures", ())):
                return done
        raise AssertionError(TOO_SLOW)

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def rounds(folder: Path) -> Iterator[Rounds]:
    command = [sys.executable, "-m", "tests.pipelines.driver", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        started = Rounds(process)
        assert started.answer() == {"ready": True}
        yield started
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
