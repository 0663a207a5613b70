"""Real servers for the tests of the gates: started on free ports, awaited by their ready line, stopped and reaped."""

import contextlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from tests.gates.mq_client import MqClient, MqLarge
from tests.gates.res_client import PATIENCE_S
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import an_event
from tests.test_server import Served as AnyServed
from tests.test_server import environment, until

__all__ = ["ANY_PORT", "MEMORY_BYTES_MAX", "PAUSE_S", "Served", "environment", "others_are_served", "until"]

ANY_PORT: Final = "tcp://127.0.0.1:0"
PAUSE_S: Final = 0.01
"""How long a client that must be served rests between its requests: others may wait for seconds meanwhile."""
MEMORY_BYTES_MAX: Final = 256 << 20
"""What a server may grow by while somebody misbehaves."""


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

    def client(self, gate: str = "res") -> Extended:
        """A client of one of its gates."""
        if gate == "res":
            return Extended(self.res)
        return (MqLarge if gate == "mq-large" else MqClient)(self.mq)

    def metrics(self) -> dict[str, float]:
        """All numbers of /metrics, as they are at one moment; 0 while nothing was counted."""
        lines = self._fetched("/metrics").decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return defaultdict(float, {name: float(value) for name, _, value in samples})

    def metric(self, sample: str) -> float:
        """One of them."""
        return self.metrics()[sample]

    def dropped(self, reason: str, gate: str = "res") -> float:
        """How many messages a gate has dropped for a reason."""
        return self.metric(f'penstock_gate_dropped_total{{gate="{gate}",reason="{reason}"}}')

    def closed(self, reason: str, gate: str = "mq") -> float:
        """How many sessions of a gate have ended for a reason."""
        return self.metric(f'penstock_gate_closed_total{{gate="{gate}",reason="{reason}"}}')

    def sessions(self) -> list[dict[str, Any]]:
        """The sessions of all TCP gates."""
        found: list[dict[str, Any]] = json.loads(self._fetched("/sessions"))["sessions"]
        return found

    def health(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._fetched("/health"))
        return found

    def _fetched(self, path: str) -> bytes:
        # httpx would load the certificates of all authorities each time, and tests ask again and again.
        with contextlib.closing(HTTPConnection(self.http, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()

    def memory_bytes(self) -> int:
        """What the server's own process has in memory."""
        return self._memory("VmRSS")

    def memory_peak_bytes(self) -> int:
        """The most that it has ever had in memory."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found
        return int(found[1]) * 1024


@contextlib.contextmanager
def others_are_served(server: "Served", context: str, gate: str = "res") -> Iterator[None]:
    """Let another client append all the while; each of its requests must be answered, and the history be whole."""
    done = threading.Event()
    failures: list[BaseException] = []
    appended = 0

    def work() -> None:
        nonlocal appended
        try:
            with server.client(gate) as another:
                while not appended or not done.wait(PAUSE_S):
                    appended += 1
                    another.append(context, "others", appended, an_event())
                assert another.list_streams(context, "others") == ([("others", appended)], True)
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failures, failures
