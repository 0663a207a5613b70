"""What the engine tells of an iterator: its definition, and how far the output of an indexed one is built."""

import pytest

from penstock.engine import Engine
from penstock.errors import FunctionFailed, InvalidRequest, IteratorNotFound, LogNotFound, NotAllowed
from penstock.model import (
    ANONYMOUS,
    AUDIT_CONTEXT,
    Append,
    BeginBuild,
    CreateIterator,
    CreateLog,
    DropIterator,
    DropOutput,
    InstallOutput,
    IteratorSummary,
    NextItems,
    Over,
    PutPrincipal,
    Request,
    ShowIterator,
    StageOutput,
    new_event,
    now_ticks,
)
from tests.engine.caller import principal
from tests.engine.logs import FILTER, MAP, REDUCE, Remits


async def shown(remits: Remits, name: str) -> IteratorSummary:
    found = await remits.ask(ShowIterator(name))
    assert isinstance(found, IteratorSummary)
    return found


async def test_an_iterator_is_shown_as_it_was_made(engine: Engine, remits: Remits) -> None:
    before = now_ticks()
    await remits.create("log", 1, 2, 3)
    await remits.iterator("kept", MAP, "return\tmsg -- grün\n", indexed=True)
    await remits.iterator("sum", REDUCE, "return (acc or 0) + msg", "kept")
    await engine.execute(ANONYMOUS, Append("shop", "a/b", (new_event("T"),), -1))
    await remits.iterator("stream", FILTER, "return true", "shop/a/b", indexed=True)
    await remits.next("kept", -1)
    await remits.next("stream", -1)
    found = [await shown(remits, name) for name in ("kept", "sum", "stream")]
    assert all(before <= one.created <= now_ticks() for one in found)
    kept, total, stream = (one.created for one in found)
    assert found == [
        IteratorSummary("kept", "log", Over.LOG, MAP, "return\tmsg -- grün\n", True, kept, 3, 0),
        IteratorSummary("sum", "kept", Over.ITERATOR, REDUCE, "return (acc or 0) + msg", False, total, None, None),
        IteratorSummary("stream", "shop/a/b", Over.STREAM, FILTER, "return true", True, stream, 1, 0),
    ]


async def test_an_indexed_iterator_says_how_far_it_is_behind(remits: Remits) -> None:
    # A log that was there before: the messages of this one begin somewhere else.
    await remits.create("log", "old", "old")
    await remits.drop("log")
    await remits.create("log", *range(10))
    await remits.iterator("odd", FILTER, "if msg == 6 then error('no six') end return msg % 2 == 1", indexed=True)
    await remits.iterator("all", MAP, "return msg", "odd", indexed=True)
    for name in ("odd", "all"):
        with pytest.raises(FunctionFailed, match="no six"):
            await remits.next(name, -1)
    odd, everything = [await shown(remits, name) for name in ("odd", "all")]
    assert (odd.items, odd.behind) == (3, 4)
    assert (everything.items, everything.behind) == (3, 0)


async def test_an_iterator_that_is_not_there_is_told(engine: Engine, remits: Remits) -> None:
    await remits.create("log", 1)
    await remits.iterator("it", indexed=True)
    with pytest.raises(NotAllowed, match="the right read"):
        await engine.execute(principal("writer", "append"), ShowIterator("it"))
    await engine.execute(principal("reader", "read"), ShowIterator("it"))
    await remits.drop("log")
    for name in ("it", "nobody", ""):
        with pytest.raises(IteratorNotFound):
            await shown(remits, name)


async def test_what_reads_the_audit_is_there_for_those_who_may_read_that_only(engine: Engine, remits: Remits) -> None:
    await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
    root, operator = principal("root", "all"), principal("operator", "read,append,consume,admin")
    made = CreateIterator("watch", f"{AUDIT_CONTEXT}/access", MAP, "return 1", True)
    await engine.execute(root, made)
    (number,) = [one.id for one in engine._iterators._known.values()]
    hidden: list[Request] = [
        ShowIterator("watch"),
        NextItems("watch", 0, 1),
        BeginBuild("watch"),
        StageOutput(number, 0, "a", 0, ()),
        InstallOutput("watch", number, 0, 0, 0, ()),
        DropOutput(number),
        DropIterator(made.log, "watch"),
    ]
    for request in hidden:
        with pytest.raises(IteratorNotFound):
            await engine.execute(operator, request)
    for over in (made.log, "watch"):
        with pytest.raises(LogNotFound):
            await engine.execute(operator, CreateIterator("mine", over, MAP, "return 1", False))
    await engine.execute(root, DropIterator(made.log, "watch"))


async def test_no_log_and_no_iterator_stands_before_a_stream_of_the_audit(engine: Engine, remits: Remits) -> None:
    await remits.create("log", 1)
    await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
    writer, name = principal("writer", "append"), f"{AUDIT_CONTEXT}/access"
    for request in (CreateLog(name), CreateIterator(name, "log", MAP, "return 1", True)):
        with pytest.raises(InvalidRequest, match=r"begins with \$audit/, as only streams of the audit do"):
            await engine.execute(writer, request)
