"""Iterators through the engine: what they give, plain and indexed, and what can go wrong with them.

One engine serves all tests here; each has names of its own in it.
"""

import json
from collections.abc import AsyncIterator
from functools import partial
from itertools import accumulate, count
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import cbor2
import pytest
import pytest_asyncio

from penstock.engine import Engine
from penstock.engine.iterator_jobs import BODY_DEPTH_MAX, Paged, Point
from penstock.errors import (
    FunctionFailed,
    InvalidRequest,
    IteratorCycle,
    IteratorExists,
    IteratorNotFound,
    LogNotFound,
    ResultUnreadable,
    WorkerDied,
)
from penstock.model import ANONYMOUS, Append, Encoded, ItemPage, NextItems, new_event
from penstock.settings import Settings
from penstock.store import store_url
from penstock.wire.remits.operations import item_payload
from penstock.wire.res01.dialects import item_frames
from penstock.wire.res01.messages import fitting
from tests.engine.logs import FILTER, MAP, REDUCE, Remits

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = count()
KINDS = [(MAP, "return msg * 2"), (FILTER, "return msg % 3 == 0"), (REDUCE, "return (acc or 0) + msg")]
EXPECTED: dict[str, Any] = {
    MAP: lambda values: [2 * value for value in values],
    FILTER: lambda values: [value for value in values if value % 3 == 0],
    REDUCE: lambda values: list(accumulate(values)),
}
FAILING = {
    MAP: "if msg == 7 then error('no sevens') end return msg * 2",
    FILTER: "if msg == 7 then error('no sevens') end return msg % 3 == 0",
    REDUCE: "if msg == 7 then error('no sevens') end return (acc or 0) + msg",
}
both_ways = pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
all_kinds = pytest.mark.parametrize(("kind", "function"), KINDS, ids=[kind.value for kind, _ in KINDS])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    async with Engine(store_url(tmp_path_factory.mktemp("store")), Settings()) as running:
        yield running


@pytest.fixture
def remits(engine: Engine) -> Remits:
    return Remits(engine, f"{next(_numbers)}:")


# --- what they give -------------------------------------------------------------------------------------------


@both_ways
@all_kinds
async def test_every_item_is_found_by_its_ordinal(remits: Remits, kind: Any, function: str, indexed: bool) -> None:
    await remits.create("log", *range(50))
    await remits.iterator("it", kind, function, indexed=indexed)
    right = EXPECTED[kind](range(50))
    for ordinal in (0, 1, 7, len(right) - 1, len(right), 1000):
        assert await remits.next("it", ordinal) == right[ordinal:]
        assert await remits.next("it", ordinal, 3) == right[ordinal : ordinal + 3]
    assert await remits.next("it", -1) == right[-1:]
    assert await remits.next("it", 2, 0) == []
    assert await remits.everything("it", 7) == right


@both_ways
@all_kinds
async def test_an_acknowledged_message_is_seen_by_the_next_request(
    remits: Remits, kind: Any, function: str, indexed: bool
) -> None:
    await remits.create()
    await remits.iterator("it", kind, function, indexed=indexed)
    assert await remits.next("it", -1) == await remits.next("it") == []
    for number in range(20):
        await remits.add("log", 3 * number)
        right = EXPECTED[kind](range(0, 3 * number + 1, 3))
        assert await remits.next("it", -1) == right[-1:]
        assert await remits.next("it", number) == right[number:]


@both_ways
async def test_the_last_item_of_a_filter_may_lie_far_back(remits: Remits, indexed: bool) -> None:
    await remits.create("log", 3, 4, 5)
    await remits.iterator("it", FILTER, "return msg % 3 == 0", indexed=indexed)
    assert await remits.next("it", -1) == [3]
    for _ in range(3):
        await remits.add("log", 4, 5)
        assert await remits.next("it", -1) == [3]
        assert await remits.next("it", 1) == []


@both_ways
async def test_a_reduce_tells_nil_from_null_wherever_a_page_ends(remits: Remits, indexed: bool) -> None:
    function = """
        if acc == nil then return 'first' elseif acc == null then return 'after null' end
        if msg == 0 then return null elseif msg == 1 then return nil end
        return acc .. msg
    """
    await remits.create("log", *[2, 0, 2, 1, 2, 2, 0, 0, 1, 1, 2] * 3)
    await remits.iterator("it", REDUCE, function, indexed=indexed)
    whole = await remits.next("it")
    assert whole[:6] == ["first", None, "after null", None, "first", "first2"]
    for size in (1, 2, 3, 5):
        assert await remits.everything("it", size) == whole


@both_ways
async def test_numbers_that_cannot_be_are_refused(remits: Remits, indexed: bool) -> None:
    await remits.create("log", 1)
    await remits.iterator("it", indexed=indexed)
    for ordinal, number in ((-2, 1), (0, -1), (1 << 63, 1)):
        with pytest.raises(InvalidRequest):
            await remits.next("it", ordinal, number)


@both_ways
@all_kinds
@pytest.mark.parametrize("over", ["log", "it", "shop/nothing"])
async def test_any_ordinal_beyond_the_end_is_an_empty_page(
    remits: Remits, kind: Any, function: str, indexed: bool, over: str
) -> None:
    await remits.create("log", 3)
    await remits.drop("log")
    await remits.create("log", 3)
    await remits.iterator("it", indexed=True)
    await remits.iterator("other", kind, function, over, indexed=indexed)
    for ordinal in (1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1):
        assert await remits.next("other", ordinal, 1000) == []


@both_ways
async def test_a_wire_gets_its_bytes_from_the_worker(engine: Engine, remits: Remits, indexed: bool) -> None:
    await remits.create("log", 1, "two")
    await remits.iterator("it", indexed=indexed)
    for count_ in (0, 1, 2, 9):
        request = NextItems(remits.named("it"), 0, count_)
        page = await engine.execute(ANONYMOUS, request, item_payload)
        assert isinstance(page, ItemPage)
        items = [cbor2.dumps(value) for value in (1, "two")][:count_]
        assert page.items == []
        assert page.encoded is not None
        assert (page.encoded.count, page.encoded.content) == (len(items), item_payload(items))


async def test_a_page_comes_in_the_form_that_was_asked_for_or_not_at_all(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create("log", 1, 2)
    await remits.iterator("it")
    request = NextItems(remits.named("it"), 0, 10)
    in_frames = partial(fitting, item_frames, 1000)
    items = [b"\x01", b"\x02"]
    for present, content in ((item_frames, items), (in_frames, items), (item_payload, item_payload(items))):
        page = await engine.execute(ANONYMOUS, request, present)
        assert isinstance(page, ItemPage)
        assert page.encoded == Encoded(2, content)

    forgeries: dict[Any, Any] = {item_frames: b"", in_frames: b"", item_payload: items, None: items}
    for asked, given in forgeries.items():
        forged = Paged(ItemPage([], Encoded(2, given)), [Point()], 2, 2, None)
        monkeypatch.setattr(engine.lua, "run", AsyncMock(return_value=forged))
        with pytest.raises(WorkerDied, match="another form"):
            await engine.execute(ANONYMOUS, request, asked)


# --- making and deleting them ---------------------------------------------------------------------------------


async def test_the_same_again_is_fine_and_another_of_the_name_is_not(remits: Remits) -> None:
    await remits.create()
    await remits.create("other")
    for _ in range(2):
        await remits.iterator("it", FILTER, "return true")
    for change in ({"kind": MAP}, {"function": "return false"}, {"log": "other"}, {"indexed": True}):
        with pytest.raises(IteratorExists):
            await remits.iterator("it", **{"kind": FILTER, "function": "return true", **change})  # type: ignore[arg-type]
    assert await remits.iterators() == await remits.iterators("log") == ["it"]
    assert await remits.iterators("other") == await remits.iterators("unknown") == []


async def test_a_function_that_does_not_compile_makes_nothing(remits: Remits) -> None:
    await remits.create()
    with pytest.raises(FunctionFailed) as caught:
        await remits.iterator("it", MAP, "return +")
    assert caught.value.message is None
    assert await remits.iterators() == []


async def test_without_a_log_there_is_no_iterator(remits: Remits) -> None:
    for log in ("log", "remits/log", "/x"):
        with pytest.raises(LogNotFound):
            await remits.iterator("it", log=log)
    with pytest.raises(IteratorNotFound):
        await remits.next("it")
    with pytest.raises(IteratorNotFound):
        await remits.next("it", 0, 0)
    with pytest.raises(InvalidRequest):
        await remits.iterator("x" * 513)


@both_ways
async def test_a_deleted_iterator_is_gone_and_one_made_again_begins_anew(remits: Remits, indexed: bool) -> None:
    await remits.create("log", *range(9))
    await remits.iterator("it", FILTER, "return msg > 5", indexed=indexed)
    assert await remits.next("it") == [6, 7, 8]
    for wrong in ({"name": "other"}, {"name": "it", "log": "other"}):
        with pytest.raises(IteratorNotFound):
            await remits.drop_iterator(**wrong)
    await remits.drop_iterator("it")
    with pytest.raises(IteratorNotFound):
        await remits.next("it")
    await remits.iterator("it", FILTER, "return msg < 2", indexed=indexed)
    assert await remits.next("it") == [0, 1]


# --- functions that fail --------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("kind", FAILING, ids=str)
async def test_what_comes_before_a_failing_message_stays_readable(remits: Remits, kind: Any, indexed: bool) -> None:
    await remits.create("log", *range(10))
    await remits.iterator("it", kind, FAILING[kind], indexed=indexed)
    right = EXPECTED[kind](range(7))
    for size in (1000, 2, 1):
        found: list[Any] = []
        while len(found) < len(right):
            found += await remits.next("it", len(found), size)
        assert found == right
        with pytest.raises(FunctionFailed, match=r"at message 7: .*no sevens") as caught:
            await remits.next("it", len(found), size)
        assert caught.value.message == 7
    if kind != MAP:
        for ordinal in (-1, len(right), len(right) + 1, 100):
            with pytest.raises(FunctionFailed, match="at message 7"):
                await remits.next("it", ordinal)


@both_ways
async def test_a_map_goes_on_after_a_failing_message(remits: Remits, indexed: bool) -> None:
    await remits.create("log", *range(10), 7, 7, 10)
    await remits.iterator("it", MAP, FAILING[MAP], indexed=indexed)
    assert await remits.next("it", 8) == [16, 18]
    for ordinal in (7, 10, 11):
        with pytest.raises(FunctionFailed, match=f"at message {ordinal}:"):
            await remits.next("it", ordinal)
    assert await remits.next("it", 12) == await remits.next("it", -1) == [20]
    await remits.add("log", 7)
    with pytest.raises(FunctionFailed, match="at message 13:"):
        await remits.next("it", -1)
    assert await remits.next("it", 14) == []


@both_ways
async def test_a_result_that_has_no_place_in_cbor_is_told_as_such(remits: Remits, indexed: bool) -> None:
    await remits.create("log", 1)
    await remits.iterator("it", MAP, "return function() end", indexed=indexed)
    with pytest.raises(ResultUnreadable, match="at message 0"):
        await remits.next("it")


async def test_a_failed_build_is_left_alone_and_its_followers_are_told(engine: Engine, remits: Remits) -> None:
    await remits.create("log", *range(10))
    await remits.iterator("it", FILTER, FAILING[FILTER], indexed=True)
    await remits.iterator("kept", MAP, "return msg + 1", "it", indexed=True)
    await remits.iterator("plain", MAP, "return msg + 2", "it")
    assert await remits.next("kept") == [1, 4, 7]
    assert await remits.next("plain") == [2, 5, 8]
    errors = engine.metrics.lua_errors
    for name in ("kept", "plain"):
        for ordinal in (3, -1):
            with pytest.raises(FunctionFailed, match=r"it' failed at message 7: .*no sevens"):
                await remits.next(name, ordinal)
    for number in range(20):
        await remits.add("log", number)
        assert await remits.next("it") == [0, 3, 6]
    assert engine.metrics.lua_errors - errors <= 1, "a build that failed is not tried with every message"


async def test_an_iterator_over_a_map_that_failed_fails_at_the_same_message(remits: Remits) -> None:
    await remits.create("log", *range(10))
    await remits.iterator("it", MAP, FAILING[MAP], indexed=True)
    await remits.iterator("map", MAP, "return msg", "it", indexed=True)
    await remits.iterator("sum", REDUCE, "return (acc or 0) + msg", "it")
    assert await remits.next("map") == await remits.next("map", 0, 7) == [0, 2, 4, 6, 8, 10, 12]
    assert await remits.next("map", 8) == [16, 18]
    with pytest.raises(FunctionFailed, match=r"at message 7: iterator .*it' failed"):
        await remits.next("map", 7)
    assert await remits.next("sum") == [0, 2, 6, 12, 20, 30, 42]
    with pytest.raises(FunctionFailed, match=r"at message 7: iterator .*it' failed"):
        await remits.next("sum", -1)


# --- what they read -------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("kind", [FILTER, REDUCE], ids=str)
async def test_an_event_nested_deeper_than_lua_can_hold_is_given_as_text(
    engine: Engine, remits: Remits, kind: Any, indexed: bool
) -> None:
    stream = f"deep-{next(_numbers)}"
    function = {FILTER: "return type(msg.body) == 'table'", REDUCE: "return (acc or '') .. type(msg.body) .. ' '"}[kind]
    await remits.iterator("it", kind, function, f"shop/{stream}", indexed=indexed)
    large, deep = str(1 << 70), BODY_DEPTH_MAX
    bodies = ["[" * deep + "]" * deep, "[" * (deep + 1) + "]" * (deep + 1)]
    bodies += ["[" * deep + large + "]" * deep, "[" * (deep - 1) + large + "]" * (deep - 1)]
    bodies += [
        '{"a":' * deep + "1" + "}" * deep,
        '{"a":' * (deep + 1) + "1" + "}" * (deep + 1),
        "[[]," * 40 + "1" + "]" * 40,
    ]
    events = tuple(new_event("E", body.encode()) for body in bodies)
    await engine.execute(ANONYMOUS, Append("shop", stream, events, -1))
    right = ["table", "string", "string", "table", "table", "string", "table"]
    if kind == REDUCE:
        assert await remits.next("it", -1) == ["".join(f"{name} " for name in right)]
    else:
        found = await remits.everything("it")
        assert [one["sequence"] for one in found] == [n for n, name in enumerate(right, 1) if name == "table"]


async def test_iterators_over_iterators_see_an_acknowledged_message(remits: Remits) -> None:
    await remits.create()
    await remits.iterator("even", FILTER, "return msg % 2 == 0", indexed=True)
    await remits.iterator("square", MAP, "return msg * msg", "even", indexed=True)
    await remits.iterator("sum", REDUCE, "return (acc or 0) + msg", "square", indexed=True)
    await remits.iterator("big", FILTER, "return msg > 30", "sum")
    for number in range(12):
        await remits.add("log", number)
        squares = [even * even for even in range(0, number + 1, 2)]
        sums = list(accumulate(squares))
        assert await remits.next("big") == [value for value in sums if value > 30]
        assert await remits.next("sum", -1) == sums[-1:]
    assert await remits.next("square") == [0, 4, 16, 36, 64, 100]
    await remits.drop_iterator("square", "even")
    assert await remits.iterators() == ["even"]
    with pytest.raises(IteratorNotFound):
        await remits.next("big")


async def test_a_cycle_is_refused(remits: Remits) -> None:
    await remits.create()
    await remits.iterator("a", indexed=True)
    await remits.iterator("b", log="a", indexed=True)
    with pytest.raises(IteratorCycle):
        await remits.iterator("a", log="b", indexed=True)
    with pytest.raises(IteratorCycle):
        await remits.iterator("c", log="c", indexed=True)


async def test_a_log_made_later_does_not_change_what_an_iterator_reads(engine: Engine, remits: Remits) -> None:
    await remits.iterator("it", MAP, "return msg.type", "later/log")
    await engine.execute(ANONYMOUS, Append("later", "log", (new_event("Event"),), -1))
    await remits.create("later/log", {"type": "message"})
    await remits.iterator("new", MAP, "return msg.type", "later/log")
    assert await remits.next("it") == ["Event"]
    assert await remits.next("new") == ["message"]
    await remits.drop("later/log")
    assert await remits.iterators() == ["it"]


@both_ways
async def test_events_of_any_stream_are_messages(engine: Engine, remits: Remits, indexed: bool) -> None:
    stream = f"orders-{next(_numbers)}"
    await remits.iterator("it", MAP, "return msg", f"shop/{stream}", indexed=indexed)
    assert await remits.next("it") == []
    bodies = [
        *(
            b'{"amount": 7.5, "items": [1, {"a": null}]}',
            b" [1, 2]",
            b'"text"',
            b"12",
            b"",
            b"\xff\x00",
            "grün".encode(),
        ),
        *(b"{broken", b'{"lone": "\\ud800"}', b"[" * 5000, json.dumps({"huge": 1 << 70}).encode()),
    ]
    shown = [
        *({"amount": 7.5, "items": [1, {"a": None}]}, [1, 2], '"text"', "12", "", b"\xff\x00", "grün"),
        *("{broken", '{"lone": "\\ud800"}', "[" * 5000, {"huge": 1 << 70}),
    ]
    events = [new_event(f"T{n}", body, "head" if n % 2 else None) for n, body in enumerate(bodies)]
    for event in events:
        await engine.execute(ANONYMOUS, Append("shop", stream, (event,), -1))
    found = await remits.everything("it")
    assert [one["body"] for one in found] == shown
    assert [one["id"] for one in found] == [str(UUID(bytes=event.id)) for event in events]
    for number, (one, event) in enumerate(zip(found, events, strict=True)):
        assert set(one) == {"id", "stream", "sequence", "timestamp", "ticks", "type", "headers", "body"}
        assert (one["stream"], one["sequence"], one["type"]) == (stream, number + 1, f"T{number}")
        assert one["headers"] == event.headers
        assert one["ticks"] == event.stamp & ((1 << 62) - 1)
        assert one["timestamp"] == pytest.approx((one["ticks"] - 621_355_968_000_000_000) / 1e7)


# --- how they run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "function"), KINDS[1:], ids=["filter", "reduce"])
async def test_paging_on_runs_no_message_twice(engine: Engine, remits: Remits, kind: Any, function: str) -> None:
    await remits.create("log", *range(3000))
    await remits.iterator("it", kind, function)
    before = engine.metrics.lua_messages
    assert await remits.everything("it", 100) == EXPECTED[kind](range(3000))
    ran = engine.metrics.lua_messages - before
    assert 3000 <= ran <= 6000, "a filter may run a few messages more than a page holds"
    before = engine.metrics.lua_messages
    await remits.add("log", 3000)
    assert await remits.next("it", -1) == EXPECTED[kind](range(3001))[-1:]
    assert engine.metrics.lua_messages - before <= 256
