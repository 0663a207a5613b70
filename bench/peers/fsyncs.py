"""Counts the calls of fsync and fdatasync while one writer appends one event after the other, with strace.

`python -m bench.peers.fsyncs [SYSTEM …] [--docs PAGE]`: a durable system needs at least one for each append.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from bench.peers.figures import BODIES
from bench.peers.rounds import directory
from bench.peers.system import Load, System
from bench.peers.systems import SYSTEMS, installed
from bench.report import machine, replace_section
from bench.usage import members

SECONDS: Final = 0.5
ATTACH_S_MAX: Final = 10.0
CALLS: Final = ("fsync", "fdatasync")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.fsyncs", description=__doc__.partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"some of: {'; '.join(SYSTEMS)}")
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--docs", type=Path, help="a page that gets the table")
    arguments = parser.parse_args()
    lines = ["| | appends | fsyncs | fsyncs for each append |", "|---|---|---|---|"]
    for system in installed(arguments.systems or SYSTEMS):
        appends, syncs = count(system, arguments.dir)
        lines.append(f"| {system.name} | {appends:,} | {syncs:,} | {syncs / appends:.2f} |")
        print(lines[-1], flush=True)
    if arguments.docs is not None:
        replace_section(arguments.docs, "fsyncs", "\n".join([machine(), "", *lines]))


def count(system: System, place: Path) -> tuple[int, int]:
    """Appends of one writer, and the fsyncs of the server meanwhile, or of this process if there is none."""
    with directory(place) as path, system.server(path) as server:
        load = Load(1, 1, BODIES[""], SECONDS)
        # What is done once, as growing a log to its full size, is not what is counted.
        system.append(server.url, load)
        watched = sorted(members(server.pids())) if server.programs else [os.getpid()]
        summary = path / "strace"
        command = ["strace", "-f", "-c", "-o", str(summary), "-e", f"trace={','.join(CALLS)}"]
        with subprocess.Popen([*command, *(f"-p{pid}" for pid in watched)], stderr=subprocess.DEVNULL) as tracer:
            try:
                _until_traced(watched)
                appends = system.append(server.url, load).stored
            finally:
                tracer.terminate()
        # Percent, seconds, microseconds a call, calls, perhaps errors, name.
        rows = (line.split() for line in summary.read_text().splitlines())
        return appends, sum(int(row[3]) for row in rows if row and row[-1] in CALLS)


def _until_traced(pids: list[int]) -> None:
    deadline = time.monotonic() + ATTACH_S_MAX
    while any(_is_untraced(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise TimeoutError("strace did not attach; is it allowed to trace processes here?")
        time.sleep(0.01)


def _is_untraced(pid: int) -> bool:
    try:
        return "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
