"""One append through the MQ gate, from the call in the client to the row in the store: how many modules it enters, and
how many functions it calls.

docs/engine.md draws the way. A module that only passes a call on makes it longer: merge it into its caller. Ten calls
cost an append some per cent of its CPU, which a measurement on a busy machine does not show.
"""

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock.engine import Engine, disk_watch
from penstock.gates import MqGate
from penstock.settings import Settings

SOURCE = Path(penstock.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
HOP = re.compile(r"([a-z0-9_]+(?:/[a-z0-9_]+)+\.py) +([A-Za-z_.]+)")
MODULES_MAX = 29
OUTER = ("client", "tcp", "mq", "wire", "gates")
OUTER_MAX = 12
ENGINE_MAX = 12
CALLS_MAX = 190


class Tracer:
    """The modules of this package whose functions are called while it is on, and how many calls there are."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls = 0
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            self.calls += 1
            self.modules.add(str(Path(frame.f_code.co_filename).relative_to(SOURCE)))


async def traced_append(tracer: Tracer, store: Path, profile: Callable[[Tracer | None], None]) -> None:
    async with Engine(f"sqlite:///{store}", Settings()) as engine:
        gate = MqGate(engine, "127.0.0.1:0")
        await gate.start()
        async with penstock.aconnect(f"penstock://{gate.address}") as client:
            await client.append("shop", "order-1", [penstock.event("Placed")])
            event = penstock.event("Paid")
            # A thread that is still busy with the first append must not be counted.
            await asyncio.to_thread(lambda: None)
            tracer.is_on = True
            profile(tracer)
            await client.append("shop", "order-1", [event])
            profile(None)
            tracer.is_on = False
        await gate.stop()


def test_an_append_enters_few_modules_and_calls_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing else runs meanwhile.
    monkeypatch.setattr(disk_watch, "LOOK_S", 3600.0)
    # As in a program that does not use OpenTelemetry; other tests here do.
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    tracer = Tracer()
    # Threads that start from now on report their calls: the engine's writer is one of them.
    threading.setprofile(tracer)
    try:
        asyncio.run(traced_append(tracer, tmp_path / "store", sys.setprofile))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    entered = sorted(tracer.modules)
    assert {"client/aio.py", "gates/mq.py", "engine/writer.py", "store/sqlite/store.py"} < tracer.modules
    outer = [module for module in entered if module.startswith(OUTER)]
    inner = [module for module in entered if module.startswith(("engine", "model"))]
    assert len(outer) <= OUTER_MAX, outer
    assert len(inner) <= ENGINE_MAX, inner
    assert len(entered) <= MODULES_MAX, " ".join(entered)
    assert tracer.calls <= CALLS_MAX


def test_the_pictures_name_functions_that_exist() -> None:
    hops = HOP.findall(PAGE.read_text(encoding="utf-8"))
    assert len(hops) > 40
    for path, name in hops:
        found: Any = import_module(f"penstock.{path.removesuffix('.py').replace('/', '.')}")
        for part in name.split("."):
            found = getattr(found, part)
