"""The way of one append, from the call in the client to the row in the store: docs/engine.md draws it."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock.engine import Engine
from penstock.gates.mq import MqGate
from penstock.settings import Settings
from penstock.store import store_url

MODULES_MAX = 25
SOURCES = str(Path(penstock.__file__).parent)


class Trace:
    """The modules of Penstock that threads enter while it runs, with the functions."""

    def __init__(self) -> None:
        self.entered: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCES):
            self.entered.setdefault(file.removeprefix(SOURCES).lstrip("/"), set()).add(frame.f_code.co_name)


def traced_once(method: Callable[..., Any], trace: Trace, writer: Any) -> Callable[..., Any]:
    """The writer's thread traces itself from its next turn on."""

    def call() -> Any:
        sys.setprofile(trace)
        writer._gather = method
        return method()

    return call


async def test_an_append_enters_few_modules_and_the_page_shows_them_all(tmp_path: Path) -> None:
    trace = Trace()
    async with Engine(store_url(tmp_path / "store"), Settings()) as engine:
        gate = MqGate(engine, "127.0.0.1:0")
        await gate.start()
        async with penstock.aconnect(f"penstock://{gate.address}") as client:
            first, second, third = (penstock.event("OrderPlaced", b"{}") for _ in range(3))
            await client.append("shop", "order-1", [first])
            writer: Any = engine._writer
            writer._gather = traced_once(writer._gather, trace, writer)
            await client.append("shop", "order-1", [second])
            trace.entered.clear()
            sys.setprofile(trace)
            try:
                await client.append("shop", "order-1", [third])
            finally:
                sys.setprofile(None)
            found = dict(trace.entered)
        await gate.stop()
    assert {"client/aio.py", "gates/mq.py", "engine/appends.py", "store/sqlite/store.py"} <= set(found)
    assert len(found) <= MODULES_MAX, sorted(found)
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    picture = page.partition("The way of one append")[2].partition("The way of one catch-up read")[0]
    drawn = set(re.findall(r"[a-z0-9_]+(?:/[a-z0-9_]+)*\.py", picture))
    assert set(found) - drawn == set(), "docs/engine.md does not draw these"
