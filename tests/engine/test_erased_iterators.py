"""Iterators over what is erased: they begin anew, and nobody gets a page of both."""

import asyncio
import json

import pytest

from penstock.engine import Engine
from penstock.errors import IteratorNotFound
from penstock.model import ANONYMOUS, NewEvent, NextItems
from penstock.store.contract import Transaction
from tests.engine.caller import Caller
from tests.engine.logs import FILTER, MAP, REDUCE, Remits, until
from tests.engine.test_erasures import about, forget

SUM = "return (acc or 0) + msg.body.n"


def numbers(*values: int, subject: str = "") -> list[NewEvent]:
    return [about(subject, json.dumps({"n": value})) for value in values]


@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
async def test_iterators_that_had_seen_it_begin_anew(engine: Engine, caller: Caller, indexed: bool) -> None:
    remits = Remits(engine)
    await caller.append("s", [*numbers(1, 2), *numbers(30, subject="ann"), *numbers(4)])
    await remits.iterator("sum", REDUCE, SUM, log="shop/s", indexed=indexed)
    await remits.iterator("large", FILTER, "return msg.body.n > 1", log="shop/s", indexed=indexed)
    await remits.iterator("n", MAP, "return msg.body.n", log="shop/s", indexed=indexed)
    assert await remits.everything("sum") == [1, 3, 33, 37]
    assert await remits.next("sum", -1, 1) == [37]
    assert len(await remits.everything("large")) == 3
    assert await forget(caller, "ann") == 1
    assert await remits.next("sum", -1, 1) == [7]
    assert await remits.everything("sum") == [1, 3, 3, 7]
    assert [message["body"]["n"] for message in await remits.everything("large")] == [2, 4]
    assert await remits.everything("n") == [1, 2, None, 4]
    await caller.append("s", numbers(5))
    assert await remits.next("sum", -1, 1) == [12]


async def test_iterators_over_iterators_begin_anew_too(engine: Engine, caller: Caller) -> None:
    remits = Remits(engine)
    await caller.append("s", [*numbers(1), *numbers(20, subject="ann"), *numbers(3)])
    await remits.iterator("n", MAP, "return msg.body.n", log="shop/s", indexed=True)
    await remits.iterator("known", FILTER, "return msg", log="n", indexed=True)
    await remits.iterator("sum", REDUCE, "return (acc or 0) + msg", log="known", indexed=True)
    await remits.iterator("last", REDUCE, "return msg", log="sum")
    assert await remits.next("last", -1, 1) == [24]
    await forget(caller, "ann")
    assert await remits.next("last", -1, 1) == [4]
    assert await remits.everything("sum") == [1, 4]
    await remits.drop_iterator("n", "shop/s")
    assert await remits.iterators() == []
    with pytest.raises(IteratorNotFound):
        await remits.next("last")


@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
async def test_a_page_is_of_one_or_the_other_whoever_asks_meanwhile(
    engine: Engine, caller: Caller, indexed: bool
) -> None:
    remits = Remits(engine)
    await caller.append("s", numbers(*([1] * 400)))
    for subject in range(8):
        await caller.append("t", numbers(*([1000] * 50), subject=f"subject-{subject}"), context="shop")
        await caller.append("s", numbers(*([1000] * 50), subject=f"subject-{subject}"))
    await remits.iterator("sum", REDUCE, SUM, log="shop/s", indexed=indexed)
    erased: list[int] = []
    done = asyncio.Event()
    totals: list[int] = []

    async def ask() -> None:
        while not done.is_set():
            page = await remits.next("sum", 0, 800)
            rises = [after - before for before, after in zip([0, *page], page, strict=False)]
            totals.append(page[-1])
            # Erased messages add nothing, and all of a subject go together.
            assert set(rises) <= {0, 1, 1000}
            assert all(len(set(rises[at : at + 50])) == 1 for at in range(400, len(page) - 49, 50))

    asking = [asyncio.ensure_future(ask()) for _ in range(3)]
    for subject in range(8):
        erased.append(await forget(caller, f"subject-{subject}"))
        asked = len(totals)
        await until(lambda: len(totals) > asked)  # noqa: B023 - it is called in this round
    done.set()
    await asyncio.gather(*asking)
    assert erased == [100] * 8
    assert await remits.next("sum", -1, 1) == [400]
    assert len({*totals}) > 1


async def test_whoever_waits_for_a_build_gets_the_one_that_begins_anew(engine: Engine, caller: Caller) -> None:
    remits = Remits(engine)
    await caller.append("s", numbers(*range(3000)))
    await caller.append("s", numbers(5, subject="ann"))
    slow = "local x = 0; for i = 1, 20000 do x = x + i end; return (acc or 0) + 1"
    await remits.iterator("slow", REDUCE, slow, log="shop/s", indexed=True)
    waiting = [asyncio.ensure_future(remits.next("slow", -1, 1)) for _ in range(3)]
    await until(lambda: engine.metrics.lua_messages > 0)
    assert await forget(caller, "ann") == 1
    assert await asyncio.gather(*waiting) == [[3000]] * 3


async def test_one_that_was_deleted_is_told_as_ever(engine: Engine, remits: Remits) -> None:
    await remits.create("log", 1, 2, 3)
    await remits.iterator("slow", MAP, "while true do end", indexed=True)
    waiting = asyncio.ensure_future(remits.next("slow"))
    await asyncio.sleep(0)
    await remits.drop_iterator("slow")
    with pytest.raises(IteratorNotFound):
        await waiting
    assert await engine._context.write(Transaction(())) == []


async def test_asking_for_an_iterator_that_never_was_is_told(engine: Engine) -> None:
    with pytest.raises(IteratorNotFound):
        await engine.execute(ANONYMOUS, NextItems("none", 0, 1))
