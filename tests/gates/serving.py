"""Real servers for the tests of the gates: started on free ports, awaited by their ready line, stopped and reaped."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tests.gates.res_client import PATIENCE_S

ANY_PORT: Final = "tcp://127.0.0.1:0"


class Served:
    """A `penstock serve` process with a Res01 endpoint, one with the older results, and HTTP."""

    def __init__(self, data: Path, *flags: str, res: str = ANY_PORT, legacy: str = ANY_PORT) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(data)]
        command += ["--res", res, "--res-legacy", legacy, "--http", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *flags], stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"penstock ready res=(\S+) res-legacy=(\S+) http=(\S+)\n", line)
        if found is None:
            self._end()
        assert found, f"no ready line: {line!r}\n{self.said()}"
        self.res, self.res_legacy, self.http = found.groups()

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def metrics(self) -> dict[str, float]:
        """All numbers of /metrics, as they are at one moment; 0 while nothing was counted."""
        text = httpx.get(f"http://{self.http}/metrics", timeout=PATIENCE_S).text
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return defaultdict(float, {name: float(value) for name, _, value in samples})

    def metric(self, sample: str) -> float:
        """One of them."""
        return self.metrics()[sample]

    def dropped(self, reason: str, gate: str = "res") -> float:
        """How many messages a gate has dropped for a reason."""
        return self.metric(f'penstock_gate_dropped_total{{gate="{gate}",reason="{reason}"}}')

    def health(self) -> dict[str, object]:
        found: dict[str, object] = httpx.get(f"http://{self.http}/health", timeout=PATIENCE_S).json()
        return found

    def memory_bytes(self) -> int:
        """What the server's own process has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found
        return int(found[1]) * 1024

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def environment() -> dict[str, str]:
    """Ours, without anything that a server would take for a setting."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
