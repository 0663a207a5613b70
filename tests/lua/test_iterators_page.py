"""docs/iterators.md: every example runs, and its tables say what is there."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import pytest
from lupa.lua54 import LuaRuntime  # type: ignore[import-untyped]

from penstock.lua import LuaLimits, Program
from penstock.model import IteratorKind
from penstock.settings import TABLE
from tests.lua.support import mapped

PAGE = (Path(__file__).parent.parent.parent / "docs" / "iterators.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```lua (map|filter|reduce)\n(.*?)```\n```json\n(.*?)```\n", re.DOTALL)


class Example(NamedTuple):
    kind: IteratorKind
    function: str
    case: dict[str, Any]


EXAMPLES = [Example(IteratorKind(kind), function, json.loads(case)) for kind, function, case in EXAMPLE.findall(PAGE)]


def plain(value: Any) -> Any:
    """A value as JSON has it: its keys are text."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.function.splitlines()[-1])
def test_an_example_does_what_the_page_says(example: Example) -> None:
    ran = Program(example.kind, example.function).run([cbor2.dumps(message) for message in example.case["in"]])
    assert [plain(cbor2.loads(output)) for output in ran.outputs if output is not None] == example.case["out"]
    assert (None if ran.error is None else str(ran.error)) == example.case.get("error")


def test_every_piece_of_lua_on_the_page_is_such_an_example() -> None:
    assert PAGE.count("```lua") == len(EXAMPLES) > 10


def test_the_limits_on_the_page_are_the_limits() -> None:
    rows = re.findall(r"^\| `(\w+_max)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: int(default) for name, default in rows} == asdict(LuaLimits())
    settings = re.findall(r"`(iterator_\w+_max)`", PAGE)
    assert settings
    assert set(settings) <= set(TABLE)


def test_the_library_on_the_page_is_the_library() -> None:
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| ((?:`\w+` ?)+)\|$", PAGE, re.MULTILINE)
    documented = {f"{table}.{name}".lstrip(".") for table, names in rows for name in re.findall(r"\w+", names)}
    tables = {table for table, _ in rows if table}
    lua = LuaRuntime().globals()
    candidates = documented | set(lua) | {f"{table}.{name}" for table in tables for name in lua[table]}
    fields = ", ".join(f'["{name}"] = {name} ~= nil' for name in candidates - {"acc"})
    there = {name for name, present in mapped(f"return {{{fields}}}", 0).items() if present}
    assert there == (documented | tables) - {"acc"}
