"""Plain, indexed and a reference in Python give the same items at every ordinal, however they are asked for."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import Engine
from penstock.errors import FunctionFailed
from penstock.model import IteratorKind
from penstock.settings import Settings
from penstock.store import store_url
from tests.engine.logs import FILTER, MAP, REDUCE, Remits

NIL = object()
"""What a reduce has for an accumulator at first; null is None."""

Reference = Callable[..., Any]


class Failed(Exception):
    """The reference's word for a message that fails."""


def _no_threes(value: int) -> int:
    if value % 10 == 3:
        raise Failed
    return value


def _nil_and_null(acc: Any, value: int) -> Any:
    if acc is NIL:
        return 1
    if acc is None:
        return 2
    return [None, NIL, acc + value][value % 3]


FUNCTIONS: list[tuple[IteratorKind, str, Reference]] = [
    (MAP, "return msg", lambda value: value),
    (MAP, "return {twice = msg * 2, text = tostring(msg)}", lambda value: {"twice": 2 * value, "text": str(value)}),
    (MAP, "if msg % 10 == 3 then error('three') end return msg", _no_threes),
    (FILTER, "return msg % 2 == 0", lambda value: value % 2 == 0),
    (FILTER, "return msg == 77", lambda value: value == 77),
    (FILTER, "return true", lambda _: True),
    (FILTER, "if msg % 10 == 3 then error('three') end return msg > 50", lambda value: _no_threes(value) > 50),
    (REDUCE, "return (acc or 0) + msg", lambda acc, value: (0 if acc is NIL else acc) + value),
    (REDUCE, "if msg % 10 == 3 then error('three') end return msg", lambda _, value: _no_threes(value)),
    (
        REDUCE,
        "if acc == nil then return 1 elseif acc == null then return 2 end "
        "if msg % 3 == 0 then return null elseif msg % 3 == 1 then return nil end return acc + msg",
        _nil_and_null,
    ),
]


def reference(kind: IteratorKind, function: Reference, values: list[int]) -> tuple[list[Any], int | None]:
    """The items up to the first message that fails, and its number; a failed item of a map is `Failed`."""
    items: list[Any] = []
    acc: Any = NIL
    for number, value in enumerate(values):
        try:
            result = function(acc, value) if kind == REDUCE else function(value)
        except Failed:
            if kind != MAP:
                return items, number
            result = Failed
        if kind == REDUCE:
            acc = result
            items.append(None if result is NIL else result)
        elif kind == MAP:
            items.append(result)
        elif result:
            items.append(value)
    return items, None


async def _check(remits: Remits, name: str, right: tuple[list[Any], int | None], ordinal: int, size: int) -> None:
    items, failed = right
    at = len(items) - 1 if ordinal == -1 else ordinal
    needed = failed if at >= len(items) or ordinal == -1 else None
    if 0 <= at < len(items) and items[at] is Failed:
        needed = at
    if needed is not None:
        with pytest.raises(FunctionFailed) as caught:
            await remits.next(name, ordinal, size)
        assert caught.value.message == needed
        return
    wanted = items[at : at + size] if at >= 0 else []
    wanted = wanted[:1] if ordinal == -1 else wanted[:PAGE_EVENTS]
    if Failed in wanted:
        wanted = wanted[: wanted.index(Failed)]
    assert await remits.next(name, ordinal, size) == wanted


_numbers = count()
PAGE_EVENTS = 7
values = st.lists(st.integers(0, 100), max_size=25)
asked = st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 12)), max_size=8)
rounds = st.lists(st.tuples(values, asked), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    async def made() -> Engine:
        return Engine(store_url(tmp_path_factory.mktemp("store")), Settings(page_events_max=PAGE_EVENTS))

    engine = runner.run(made())
    runner.run(engine.start())
    yield engine
    runner.run(engine.stop())


@pytest.mark.parametrize(("kind", "function", "right"), FUNCTIONS, ids=[text for _, text, _ in FUNCTIONS])
def test_plain_and_indexed_give_what_the_reference_gives(
    runner: asyncio.Runner, engine: Engine, kind: IteratorKind, function: str, right: Reference
) -> None:
    async def example(history: list[tuple[list[int], list[tuple[int, int]]]]) -> None:
        remits = Remits(engine, f"{next(_numbers)}:")
        await remits.create()
        await remits.iterator("plain", kind, function)
        await remits.iterator("kept", kind, function, indexed=True)
        there: list[int] = []
        for added, questions in history:
            if added:
                await remits.add("log", *added)
            there += added
            for ordinal, size in questions:
                for name in ("plain", "kept"):
                    await _check(remits, name, reference(kind, right, there), ordinal, size)
        await remits.drop()

    @settings(max_examples=15)
    @given(rounds)
    def examples(history: list[tuple[list[int], list[tuple[int, int]]]]) -> None:
        runner.run(example(history))

    examples()
