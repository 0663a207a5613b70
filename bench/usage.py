"""What commands use: core-seconds and memory of all their processes, seen from outside.

A command is started in a session of its own (setsid), and everything that it starts stays in that. All processes of the
session are looked at many times a second. What a process uses after the last look at it is missed, which is at most
`LOOK_S` of it.
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
        """What was used meanwhile; the memory is the most of both."""
        return Used(self.core_s - before.core_s, max(self.memory_bytes, before.memory_bytes))


class Meter:
    """Looks at a session until it is told to stop."""

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
        """What was used until now."""
        self._look()
        return Used(sum(self._core_s.values()), self._memory)

    def stop(self) -> Used:
        """Look no longer."""
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
    """A command that runs meanwhile, and its meter. It is ended at the end, if it has not ended by itself."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        meter = Meter(process.pid)
        try:
            yield process, meter
        finally:
            meter.stop()
            process.terminate()


def run(command: Sequence[str]) -> Used:
    """What a command uses from its start to its end. It must not fail."""
    with metered(command) as (process, meter):
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {output}")
        return meter.stop()
