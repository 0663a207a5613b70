"""What the machine itself can do: write and fdatasync, as fast as they go."""

import os
import time
from pathlib import Path

from bench.report import Report

PAGE_BYTES = 4096
COMMIT_BYTES = 3 * (PAGE_BYTES + 24)
"""What a commit of one event writes: three pages with their headers."""
FILE_BYTES = 16 << 20


def overwriting(path: Path, seconds: float, size: int = COMMIT_BYTES) -> float:
    """Write+fdatasync per second inside a file that has its size already, as a reused WAL has."""
    with path.open("wb", buffering=0) as file:
        os.write(file.fileno(), bytes(FILE_BYTES))
        os.fsync(file.fileno())
        block, done, started = os.urandom(size), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), block, done * size % (FILE_BYTES - size))
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - started)


def appending(path: Path, seconds: float, size: int = COMMIT_BYTES) -> float:
    """Write+fdatasync per second at the end of a file that grows."""
    with path.open("wb", buffering=0) as file:
        block, done, started = os.urandom(size), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            done += 1
        return done / (time.perf_counter() - started)


def run(report: Report, data: Path, scale: float) -> None:
    """Both, for the bytes of a one-event commit."""
    seconds = 2 * scale
    report.figure("write+fdatasync, overwriting", overwriting(data / "overwrite", seconds), "/s")
    report.figure("write+fdatasync, appending", appending(data / "append", seconds), "/s")
