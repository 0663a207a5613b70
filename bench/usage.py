"""Core-seconds and memory of a command and all its processes, measured from outside.

The command starts in a new session (setsid), and its child processes stay in that session. The meter samples all
processes of the session every `LOOK_S` seconds, and misses what a process uses after its last sample.
"""

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

LOOK_S: Final = 0.05
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SESSION, _USER, _SYSTEM, _RESIDENT = 3, 11, 12, 21
"""Fields of /proc/PID/stat after the name."""


class Used(NamedTuple):
    """Core-seconds of all processes, and the most memory that they had together, in bytes."""

    core_s: float
    memory_bytes: int

    def since(self, before: "Used") -> "Used":
        """The usage since another measurement; memory is the larger of both."""
        return Used(self.core_s - before.core_s, max(self.memory_bytes, before.memory_bytes))


class Meter:
    """Samples a session until `stop`."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._core_s: dict[int, float] = {}
        self._memory = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        resident = 0
        for process in Path("/proc").glob("[0-9]*"):
            fields = _stat(process)
            if fields is not None and int(fields[_SESSION]) == self._session:
                self._core_s[int(process.name)] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
                resident += int(fields[_RESIDENT]) * _PAGE
        self._memory = max(self._memory, resident)

    def used(self) -> Used:
        self._look()
        return Used(sum(self._core_s.values()), self._memory)

    def stop(self) -> Used:
        self._over.set()
        self._thread.join()
        return self.used()


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
