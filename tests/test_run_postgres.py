"""`make run-postgres`: a server and its PostgreSQL, which begin and end together and lose nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import penstock
from tests.postgres import is_reachable
from tests.test_server import PATIENCE_S, environment

SCRIPT = Path(__file__).parent.parent / "scripts" / "run-postgres"
pytestmark = pytest.mark.skipif(
    not is_reachable(SCRIPT.parent), reason="root has this folder to itself, and PostgreSQL runs as another user"
)


class Running:
    """The script, with a server that has come up."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(SCRIPT), str(folder), "--http", "127.0.0.1:0"]
        with (folder.parent / "said").open("ab") as said:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment(), start_new_session=True
            )
        assert self.process.stdout is not None
        ready = re.search(r"mq=(\S+)", self.process.stdout.readline())
        assert ready, (folder.parent / "said").read_text()
        self.url = f"penstock://{ready[1]}"

    def sell(self, expected: int) -> None:
        with penstock.connect(self.url) as client:
            client.append("shop", "order-1", [penstock.event("OrderPlaced", {"n": expected})], expected=expected)

    def count(self) -> int:
        with penstock.connect(self.url) as client:
            return len(list(client.read_stream("shop", "order-1")))

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def server(self) -> int:
        """The process of the server itself."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (found,) = (int(pid) for pid in children if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
        return found

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not where pytest keeps its things: if root runs this, PostgreSQL runs as somebody else, and must get there."""
    root = Path(tempfile.mkdtemp(prefix="penstock-run-"))
    root.chmod(0o755)
    yield root / "pg"
    shutil.rmtree(root)


def test_a_server_and_its_postgres_come_up_and_go_together(folder: Path) -> None:
    with closing(Running(folder)) as running:
        running.sell(1)
        command = [sys.executable, str(SCRIPT), str(folder)]
        second = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
        assert (second.returncode, second.stderr) == (1, f"penstock: {folder} is in use by another server\n")
        assert running.stop(signal.SIGTERM) == 0
    assert not (folder / "data" / "postmaster.pid").exists()
    with closing(Running(folder)) as running:
        assert running.count() == 1
        running.sell(2)
        server = running.server()
        running.stop(signal.SIGKILL)
        kill(server)
    # Now there is a PostgreSQL that was left behind, which the next one ends first.
    assert (folder / "data" / "postmaster.pid").exists()
    with closing(Running(folder)) as running:
        assert running.count() == 2
        assert running.stop(signal.SIGINT) == 0
    assert not (folder / "data" / "postmaster.pid").exists()


def kill(pid: int) -> None:
    """Kill a process that is nobody's child any more, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    with suppress(FileNotFoundError, ProcessLookupError):
        while " Z " not in Path(f"/proc/{pid}/stat").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_what_is_wrong_is_told_in_a_line(folder: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(SCRIPT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stderr

    assert said() == (1, "penstock: say where PostgreSQL shall live: scripts/run-postgres FOLDER\n")
    (folder / "data").mkdir(parents=True)
    assert said(str(folder)) == (1, f"penstock: PostgreSQL does not start; see {folder / 'log'}\n")
