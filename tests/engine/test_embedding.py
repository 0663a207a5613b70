"""What an engine leaves alone in the program that it runs in: the interpreter's settings, and the event loop's time."""

import asyncio
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, engine
from penstock.settings import Settings
from penstock.store import Store, open_store, store_url
from penstock.store.sqlite import SqliteStore


class SlowOpening:
    """Opens a store when somebody allows it."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, url: str, **limits: Any) -> Store:
        self.began.set()
        assert self.may_go_on.wait(30), "the event loop stood still"
        return open_store(url, **limits)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> SlowOpening:
    slow = SlowOpening()
    monkeypatch.setattr(engine, "open_store", slow)
    return slow


async def test_the_loop_goes_on_while_the_store_is_opened(opening: SlowOpening, tmp_path: Path) -> None:
    asyncio.get_running_loop().call_soon(opening.may_go_on.set)
    async with Engine(store_url(tmp_path), Settings(workers=1)) as started:
        assert started.trouble is None


async def test_a_start_that_is_given_up_leaves_the_store_to_others(opening: SlowOpening, tmp_path: Path) -> None:
    starting = asyncio.ensure_future(Engine(store_url(tmp_path), Settings(workers=1)).start())
    await asyncio.to_thread(opening.began.wait)
    starting.cancel()
    opening.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with closing(SqliteStore(tmp_path)) as store:
        assert store.head() == 0


async def test_the_interpreter_switches_threads_as_often_as_before(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    async with Engine(store_url(tmp_path), Settings(workers=1)):
        assert sys.getswitchinterval() == before
