"""Real `penstock serve` processes on one PostgreSQL."""

import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tests.test_server import PATIENCE_S, PENSTOCK, children, environment

GATES: Final = ("res", "mq", "remits", "http")


class SharedServer:
    """A server process. It can be killed and started again, and keeps its address."""

    def __init__(self, log: Path, url: str) -> None:
        self._log = log
        self._environment = {**environment(), "PENSTOCK_STORE": url, "PENSTOCK_HTTP": "127.0.0.1:0"}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PENSTOCK, "serve", "--workers", "1", "--lua-workers", "1"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        found = re.fullmatch("penstock ready " + " ".join(rf"{gate}=(\S+)" for gate in GATES) + "\n", ready)
        assert found, f"no ready line: {ready!r}\n{self.said()}"
        self.addresses = dict(zip(GATES, found.groups(), strict=True))
        self._environment["PENSTOCK_MQ"] = self.addresses["mq"]

    @property
    def url(self) -> str:
        return f"penstock://{self.addresses['mq']}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.addresses['http']}{path}", timeout=PATIENCE_S)

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^{name} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return float(value)

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def processes(self) -> list[int]:
        """Its own process and those of its workers."""
        return [self.process.pid, *children(self.process.pid)]

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> int:
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self._reap()
        finally:
            self.process.kill()
        if kind is None:
            assert code == 0, self.said()
