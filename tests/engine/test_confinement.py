"""An attacker who has broken out of Lua gains little."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from penstock.engine import Engine
from penstock.engine.worker_protocol import JobAnswer, frame, frame_answer
from penstock.errors import WorkerDied
from penstock.settings import Settings
from penstock.store import store_url
from tests.engine.escapes import escape, nothing, pid, send, send_and_stay, threads, writable_files
from tests.engine.logs import MAP, Remits, until
from tests.postgres import Schemas

HERE: Final = Path(__file__).parents[2]
END_ALL: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'"


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1, lua_workers=1, reader_wait_ms_max=60_000)


@pytest.fixture(params=["sqlite", "postgresql"])
async def any_engine(
    request: pytest.FixtureRequest, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    # Confined workers cannot import from the directory that they were started in.
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    is_file = request.param == "sqlite"
    url = store_url(tmp_path / "store") if is_file else request.getfixturevalue("schemas").url()
    async with Engine(url, settings) as running:
        yield running


async def check_confined(engine: Engine) -> None:
    """Start the Lua worker, and skip the test where the system does not offer all that it asks for."""
    await engine.lua.run(nothing)
    if engine.lua.missing:
        pytest.skip(f"not confined: {engine.lua.missing}")


class Bomb:
    """What runs where a pickle of it is read."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


# --- rights ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_workers")
async def test_who_breaks_out_of_lua_can_read_the_store_and_do_nothing_else(any_engine: Engine, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    victim = tmp_path / "store" / "penstock.db"
    if not victim.exists():
        victim.parent.mkdir()
        victim.write_text("something")
    before = victim.stat()
    await check_confined(any_engine)
    assert await any_engine.lua.run(escape, os.getpid(), str(victim), str(secret)) == []
    assert await any_engine.lua.run(writable_files) == []
    assert await any_engine.lua.run(threads) == 2
    assert (victim.stat().st_mode, victim.stat().st_ino) == (before.st_mode, before.st_ino)
    remits = Remits(any_engine)
    await remits.create("log", *range(3000))
    for name, indexed in (("plain", False), ("kept", True)):
        await remits.iterator(name, MAP, "return msg + 1", indexed=indexed)
        assert await remits.everything(name, 1000) == list(range(1, 3001))
    assert any_engine.metrics.lua.replaced == 0


async def test_a_worker_that_cannot_connect_again_is_replaced_by_one_that_can(
    schemas: Schemas, settings: Settings
) -> None:
    url = schemas.url()
    async with Engine(url, settings) as engine:
        await check_confined(engine)
        remits = Remits(engine)
        await remits.create("log", 1, 2)
        await remits.iterator("plain", MAP, "return msg + 1")
        first = await engine.lua.run(pid)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(END_ALL)
        assert await remits.everything("plain", 10) == [2, 3]
        assert await engine.lua.run(pid) != first


def test_what_a_system_lacks_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def open_workers() -> None:
        from penstock.engine.metrics import PoolCounts
        from penstock.engine.workers import LuaPool

        pool = LuaPool("sqlite:///nowhere", Settings(), PoolCounts())
        for _ in range(3):
            pool._opened(["Landlock (Function not implemented)", "seccomp (Operation not permitted)"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(open_workers())
    (record,) = caplog.records
    assert "lacks Landlock (Function not implemented), seccomp (Operation not permitted)" in record.getMessage()


# --- answers --------------------------------------------------------------------------------------------------


async def test_answers_that_are_none_cost_their_worker_only(engine: Engine, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    messages = {
        "a pickle that runs": b"".join(frame((True, Bomb(touched), True))),
        "another result": frame_answer(JobAnswer(True, 7, True)),
        "much too long": b"\xff\xff\xff\xff",
    }
    for count, (name, message) in enumerate(messages.items(), 1):
        with pytest.raises(WorkerDied, match="sent what cannot be read"):
            await engine.lua.run(send, message)
        assert engine.metrics.lua.replaced == count, name
    assert not touched.exists()
    await engine.lua.run(nothing)


async def test_a_worker_that_answers_twice_or_stays_after_its_last_word_is_replaced(engine: Engine) -> None:
    await engine.lua.run(send_and_stay, frame_answer(JobAnswer(True, None, True)))
    await until(lambda: engine.metrics.lua.replaced == 1)
    last = await engine.lua.run(pid)
    await engine.lua.run(send, frame_answer(JobAnswer(True, None, False)))
    await until(lambda: engine.metrics.lua.replaced == 2)
    assert await engine.lua.run(pid) != last


# --- the process that runs SQL --------------------------------------------------------------------------------

ENCLOSED: Final = """
import sys
from pathlib import Path
from penstock.engine.confinement import enclose, python_places
readable, writable = map(Path, sys.argv[1:])
print(enclose([readable, *python_places()], [writable]))
for act in (
    lambda: (readable / "file").read_text(),
    lambda: (writable / "file").write_text("new"),
    lambda: (readable / "other").write_text("new"),
    lambda: Path("/etc/passwd").read_text(),
    lambda: __import__("socket").create_connection(("127.0.0.1", 9)),
):
    try:
        act()
        print("done")
    except PermissionError:
        print("refused")
    except OSError as error:
        print(type(error).__name__)
"""


def test_an_enclosed_process_keeps_the_paths_that_it_is_given(tmp_path: Path) -> None:
    readable, writable = tmp_path / "readable", tmp_path / "writable"
    for path in (readable, writable):
        path.mkdir()
        (path / "file").write_text("old")
    command = [sys.executable, "-c", ENCLOSED, str(readable), str(writable)]
    missing, *found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if missing != "[]":
        pytest.skip(f"not confined: {missing}")
    # Older versions of Landlock do not know connections.
    assert found[:4] == ["done", "done", "refused", "refused"]
    assert found[4] in ("refused", "ConnectionRefusedError")
    assert (writable / "file").read_text() == "new"
