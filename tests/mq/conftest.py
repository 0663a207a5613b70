"""Every test runs on uvloop and on plain asyncio, and must leave no task, socket, timer or trouble behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.mq.support import until


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def open_sockets() -> int:
    """How many there are; uvloop has two for itself, which it makes anew now and then."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        # The one by which the folder is read is closed again.
        with contextlib.suppress(FileNotFoundError):
            found += str(file.readlink()).startswith("socket:")
    return found


def timers(loop: asyncio.AbstractEventLoop) -> list[asyncio.TimerHandle]:
    """Those that wait; only plain asyncio shows them."""
    return [timer for timer in getattr(loop, "_scheduled", []) if not timer.cancelled()]


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    troubles: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: troubles.append(context))
    before = open_sockets()
    yield
    await until(lambda: open_sockets() <= before)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(0)
    assert timers(loop) == []
    assert troubles == []
