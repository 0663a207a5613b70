"""The capacity sheet of docs/scale.md: bytes, core-seconds and memory per million events, step by step.

Every step is a command or a small program that works with a server, and all processes of both are metered. The start of
a command, measured with a few events, is a separate figure: its cost does not depend on the number of events. Bodies
are 200 bytes of JSON, half of it random; commits have ten events unless a step says otherwise.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import penstock
from bench import load
from bench.lake import an_event, sizes
from bench.report import Report
from bench.usage import Meter, Used, metered
from bench.usage import run as used_by
from penstock.model import NewEvent
from penstock.store.seals import SEALED_EVENTS

EVENTS: Final = 1_000_000
QUICK_EVENTS: Final = 100_000
COMMIT_EVENTS: Final = 10
LARGE_EVENTS: Final = 1000
STREAMS: Final = 5000
MILLION: Final = 1_000_000
MIB: Final = 1 << 20
LOOK_S: Final = 0.2
PENSTOCK: Final = (sys.executable, "-m", "penstock")
GATES: Final = ("--res", "tcp://127.0.0.1:0", "--mq", "127.0.0.1:0", "--remits", "127.0.0.1:0", "--http", "127.0.0.1:0")


class Sheet:
    """Measures what steps use per million events, with one server."""

    def __init__(self, report: Report, url: str, server: Meter, events: int) -> None:
        self._report, self._url, self._server, self._events = report, url, server, events

    def step(self, name: str, command: Sequence[str], start_s: float = 0.0) -> None:
        """A step whose start is known, or nothing."""
        used, served = self._metered(command)
        self._tell(name, used, served, start_s)

    def started(self, name: str, command: Sequence[str]) -> float:
        """Measure a step, and its start: the same command for a few more events."""
        used, served = self._metered(command)
        used_by(program("append", self._url, COMMIT_EVENTS))
        start_s = used_by(command).core_s
        self._report.figure(f"{name}: its start", start_s, "core-s, once")
        self._tell(name, used, served, start_s)
        return start_s

    def size(self, name: str, size_bytes: int) -> None:
        self._report.figure(f"{name}: bytes per event", size_bytes / self._events, "bytes")

    def _metered(self, command: Sequence[str]) -> tuple[Used, Used]:
        before = self._server.used()
        used = used_by(command)
        return used, self._server.used().since(before)

    def _tell(self, name: str, used: Used, served: Used, start_s: float) -> None:
        figure, per_million = self._report.figure, MILLION / self._events
        figure(f"{name}: its processes", (used.core_s - start_s) * per_million, "core-s per million events")
        figure(f"{name}: the server", served.core_s * per_million, "core-s per million events")
        figure(f"{name}: memory of its processes", used.memory_bytes / MIB, "MiB")


def run(report: Report, data: Path, scale: float) -> None:
    """A server that is filled and read; then what goes over its whole history."""
    events = EVENTS if scale >= 1 else QUICK_EVENTS
    directory, lake = load.fresh(data), data / "lake"
    with served(load.fresh(data)) as (url, meter):
        large = Sheet(report, url, meter, events)
        large.step("append, 1,000 events a commit", program("append_large", url, events))
    with served(directory) as (url, meter):
        sheet = Sheet(report, url, meter, events)
        sheet.step("append", program("append", url, events))
        before = meter.used()
        until_sealed(url, events)
        sealing = meter.used().since(before).core_s * MILLION / events
        report.figure("sealing what was left of it", sealing, "core-s per million events")
        sheet.step("read", program("read", url, events))
        sheet.started("archive", [*PENSTOCK, "lake", "archive", "--url", url, "--lake", str(lake)])
        pipeline(sheet, data / "pipeline", url)
        report.figure("the server: its memory", meter.used().memory_bytes / MIB, "MiB")
    sizes(report, directory, lake, events)


def pipeline(sheet: Sheet, project: Path, url: str) -> None:
    """A project as `init` writes it, to which one layer after the other is added."""
    subprocess.run([*PENSTOCK, "pipeline", "init", str(project), "--url", url, "--context", "shop"], check=True)
    layers = {name: project / "transformations" / f"{name}.py" for name in ("bronze", "silver", "gold")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in layers.items()}
    for name in ("silver", "gold"):
        layers[name].unlink()
    command = [*PENSTOCK, "pipeline", "run", str(project)]
    start_s = sheet.started("bronze", command)
    for name in ("silver", "gold"):
        layers[name].write_text(texts[name], encoding="utf-8")
        sheet.step(name, command, start_s)
    for folder in sorted((project / "tables").iterdir()):
        sheet.size(f"table {folder.name}", sum(path.stat().st_size for path in folder.glob("*.parquet")))


@contextmanager
def served(directory: Path) -> Iterator[tuple[str, Meter]]:
    """A server in a new session; its address and its meter."""
    with metered([*PENSTOCK, "serve", "--data", str(directory), *GATES]) as (process, meter):
        assert process.stdout is not None
        gates = dict(pair.split("=", 1) for pair in process.stdout.readline().split()[2:])
        yield f"penstock://{gates['mq']}", meter


def until_sealed(url: str, events: int) -> None:
    """Wait until all but the last block is sealed."""
    with penstock.connect(url) as client:
        while client.stats().sealed < events - 2 * SEALED_EVENTS:
            time.sleep(LOOK_S)


def program(what: str, url: str, events: int) -> list[str]:
    """A program that appends or reads."""
    return [sys.executable, "-m", "bench.capacity", what, url, str(events)]


def append(url: str, events: int, size: int = COMMIT_EVENTS) -> None:
    """Append events in commits of a size, many of them under way at once."""
    with penstock.connect(url) as client:
        client.append_many(a_commit(number, size) for number in range(events // size))


def a_commit(number: int, size: int) -> tuple[str, str, list[NewEvent]]:
    """One of these commits."""
    return "shop", f"order-{number % STREAMS}", [an_event(size * number + each) for each in range(size)]


def append_large(url: str, events: int) -> None:
    """The same in large commits."""
    append(url, events, LARGE_EVENTS)


def read(url: str, events: int) -> None:
    """Read all events, as objects."""
    with penstock.connect(url) as client:
        assert sum(1 for _ in client.read_all()) >= events


if __name__ == "__main__":
    {"append": append, "append_large": append_large, "read": read}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
