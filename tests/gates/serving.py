"""Real servers for the tests of the gates: started on free ports, awaited by their ready line, stopped and reaped."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import httpx

from tests.gates.res_client import PATIENCE_S
from tests.test_server import Served as AnyServed
from tests.test_server import environment, until

__all__ = ["ANY_PORT", "Served", "environment", "until"]

ANY_PORT: Final = "tcp://127.0.0.1:0"


class Served(AnyServed):
    """A `penstock serve` process with a Res01 endpoint, one with the older results, MQ, Remits and HTTP."""

    def __init__(self, data: Path, *flags: str, res: str = ANY_PORT, legacy: str = ANY_PORT) -> None:
        self.data = data
        super().__init__(data, "--res", res, "--res-legacy", legacy, *flags)
        gates = ("res", "res-legacy", "mq", "remits", "http")
        found = re.fullmatch("penstock ready " + " ".join(rf"{gate}=(\S+)" for gate in gates) + "\n", self.ready)
        if found is None:
            self.end()
        assert found, f"no ready line: {self.ready!r}\n{self.said()}"
        self.res, self.res_legacy, self.mq, self.remits, self.http = found.groups()

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
