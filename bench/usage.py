"""Core-seconds and memory of a command and all its processes, measured from outside.

The command starts in a new session (setsid). The meter samples all processes of that session, and the descendants of
all of them, every `LOOK_S` seconds. What a process uses after its last sample counts if its parent lives on.
"""

import os
import subprocess
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

LOOK_S: Final = 0.05
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PARENT, _SESSION, _USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM, _RESIDENT = 1, 3, 11, 12, 13, 14, 21
"""Fields of /proc/PID/stat after the name."""


class Used(NamedTuple):
    """Core-seconds of all processes, and the most memory that they had together, in bytes."""

    core_s: float
    memory_bytes: int

    def since(self, before: "Used") -> "Used":
        """The usage since another measurement; memory is the larger of both."""
        return Used(self.core_s - before.core_s, max(self.memory_bytes, before.memory_bytes))


class Meter:
    """Samples processes, those of their sessions and their descendants, until `stop`."""

    def __init__(self, *roots: int, look_s: float = LOOK_S) -> None:
        self._roots, self._look_s = roots, look_s
        self._core_s: dict[int, float] = {}
        self._most_s = 0.0
        self._memory = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            self._look()

    def _look(self) -> None:
        found = members(self._roots)
        with self._lock:
            for process, fields in found.items():
                self._core_s[process] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
            # A process that has ended counts with its last sample, or in full with the parent that waited for it.
            times = (_USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM)
            now = sum(int(fields[field]) for fields in found.values() for field in times) / _TICK
            self._most_s = max(self._most_s, now, sum(self._core_s.values()))
            self._memory = max(self._memory, sum(int(fields[_RESIDENT]) * _PAGE for fields in found.values()))

    def used(self) -> Used:
        self._look()
        with self._lock:
            return Used(self._most_s, self._memory)

    def proportional_bytes(self) -> int:
        """The memory that the processes have now; pages that several share are divided between them."""
        total = 0
        for process in members(self._roots):
            with suppress(OSError):
                text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
                total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
        return total

    def stop(self) -> Used:
        self._over.set()
        self._thread.join()
        return self.used()


def members(roots: Collection[int]) -> dict[int, list[str]]:
    """The processes of these sessions and their descendants, with the fields of /proc/PID/stat after the name."""
    stats = {int(path.name): fields for path in Path("/proc").glob("[0-9]*") if (fields := _stat(path)) is not None}
    found = {pid for pid, fields in stats.items() if pid in roots or int(fields[_SESSION]) in roots}
    size = 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, fields in stats.items() if int(fields[_PARENT]) in found}
    return {pid: stats[pid] for pid in found}


def _stat(process: Path) -> list[str] | None:
    try:
        text = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # A name may have spaces and brackets in it.
    return text.rpartition(")")[2].split()


@contextmanager
def metered(command: Sequence[str]) -> Iterator[tuple["subprocess.Popen[str]", Meter]]:
    """A running command and its meter; the command is terminated at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        meter = Meter(process.pid)
        try:
            yield process, meter
        finally:
            meter.stop()
            process.terminate()


def run(command: Sequence[str]) -> Used:
    """The usage of a command from start to end. Raises RuntimeError if it fails."""
    with metered(command) as (process, meter):
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {output}")
        return meter.stop()
