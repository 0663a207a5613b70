"""The way of one append through the code: how many modules it enters, and that the docs draw it as it is."""

import asyncio
import re
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import penstock
from penstock.engine import Engine, background
from penstock.gates.mq import MqGate
from penstock.model import new_event
from penstock.settings import Settings
from penstock.store import store_url

SOURCES: Final = Path(penstock.__file__).parent
PAGE: Final = Path(__file__).parents[2] / "docs" / "engine.md"
HOP: Final = re.compile(r"([a-z0-9_]+(?:/[a-z0-9_]+)+\.py) +([A-Za-z_.]+)")
MODULES_MAX: Final = 25
ENGINE_AND_MODEL_MAX: Final = 8


async def modules_of_one_append(data: Path) -> set[str]:
    """The modules that an append by our own client through the MQ gate enters, in the client and the server."""
    entered: set[str] = set()

    def enter(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCES):
            entered.add(str(path.relative_to(SOURCES)))

    async with Engine(store_url(data), Settings()) as engine:
        gate = MqGate(engine, "127.0.0.1:0")
        await gate.start()
        writer, gather = engine._writer, engine._writer._gather

        def traced() -> Any:
            # The writer's thread traces itself from here on.
            sys.setprofile(enter)
            writer._gather = gather  # type: ignore[method-assign]
            return gather()

        async with await penstock.aconnect(f"penstock://{gate.address}") as client:
            await client.append("shop", "order-1", [new_event("OrderPlaced")])
            writer._gather = traced  # type: ignore[method-assign]
            # The thread has begun to wait in the old method: the first append gets it out of there.
            for _ in range(2):
                await client.append("shop", "order-1", [new_event("OrderPlaced")])
            entered.clear()
            sys.setprofile(enter)
            try:
                await client.append("shop", "order-1", [new_event("OrderPlaced")])
            finally:
                sys.setprofile(None)
            found = set(entered)
        await gate.stop()
    return found


def test_an_append_enters_few_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing else runs meanwhile.
    monkeypatch.setattr(background, "LOOK_S", 3600.0)
    modules = asyncio.run(modules_of_one_append(tmp_path))
    assert "engine/writer.py" in modules
    assert len(modules) <= MODULES_MAX, sorted(modules)
    assert sum(module.startswith(("engine/", "model/")) for module in modules) <= ENGINE_AND_MODEL_MAX


def test_the_pictures_name_functions_that_exist() -> None:
    hops = HOP.findall(PAGE.read_text(encoding="utf-8"))
    assert len(hops) > 40
    for path, name in hops:
        found = import_module(f"penstock.{path.removesuffix('.py').replace('/', '.')}")
        for part in name.split("."):
            found = getattr(found, part)
