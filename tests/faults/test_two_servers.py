"""Two servers on one directory: the second is refused, and told by whom, until the first is gone."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StoreInUse
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.faults.support import append, engine_on, findings, read_everything, run

_SERVER = """
import asyncio, sys
from pathlib import Path
from tests.faults.support import append, engine_on, run

async def scenario():
    async with engine_on(Path(sys.argv[1])) as engine:
        await append(engine)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

run(scenario())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with an engine on the directory; it ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_the_second_server_is_told_who_has_the_store(server: subprocess.Popen[str], tmp_path: Path) -> None:
    threads = set(threading.enumerate())

    async def scenario() -> None:
        async with engine_on(tmp_path):
            pass

    with pytest.raises(StoreInUse, match=f"process {server.pid};") as error:
        run(scenario())
    assert error.value.path == str(tmp_path)
    assert set(threading.enumerate()) <= threads
    reader = SqliteReader(tmp_path)
    assert reader.head() == 1
    reader.close()


def test_the_second_server_opens_the_store_when_the_first_was_killed(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait()

    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            assert (await append(engine)).position == 2
            assert len(await read_everything(engine)) == 2
            with pytest.raises(StoreInUse, match=f"process {os.getpid()};"):
                SqliteStore(tmp_path)

    run(scenario())
    assert findings(tmp_path) == []


def test_the_second_server_opens_the_store_when_the_first_has_stopped(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    server.communicate(timeout=30)
    assert server.returncode == 0
    store = SqliteStore(tmp_path)
    assert store.head() == 1
    store.close()
