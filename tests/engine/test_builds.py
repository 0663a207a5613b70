"""Builds elsewhere: what they are told, what they may bring, and that the server's own work and theirs are one.

One engine serves all tests here; each has names of its own in it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import cbor2
import pytest
import pytest_asyncio

from penstock.engine import Engine
from penstock.errors import (
    FunctionFailed,
    InvalidRequest,
    IteratorNotFound,
    LimitExceeded,
    NotCbor,
    PenstockError,
    StageLost,
)
from penstock.model import (
    ANONYMOUS,
    BeginBuild,
    BuildStart,
    Done,
    DropOutput,
    DropStages,
    FindMessage,
    Installed,
    InstallOutput,
    IteratorKind,
    MessagePage,
    Over,
    ProducerMark,
    PublishStages,
    ReadMessages,
    Request,
    StageEvents,
    StageOutput,
    Winner,
)
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.outputs import output_job, pack_items
from tests.engine.caller import Caller
from tests.engine.logs import FILTER, MAP, REDUCE, Remits
from tests.engine.test_erasures import about, forget

SLOW = "for i = 1, 40000 do end; "
SUM = "return (acc or 0) + msg"
ODD = "return msg % 2 == 1"
DOUBLE = "return 2 * msg"
Outputs = tuple[list[bytes], bytes | None]


pytestmark = pytest.mark.asyncio(loop_scope="module")
_numbers = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    settings = Settings(workers=2, lua_workers=1, stage_bytes_max=1 << 20)
    async with Engine(store_url(tmp_path_factory.mktemp("store")), settings) as running:
        yield running


@pytest.fixture
def remits(engine: Engine) -> Remits:
    return Remits(engine, f"{next(_numbers)}:")


def computed(start: BuildStart, messages: Iterable[bytes | None]) -> Outputs:
    """What the functions of these tests give for messages, and the accumulator then."""
    values = [None if message is None else cbor2.loads(message) for message in messages]
    if start.kind is IteratorKind.MAP:
        return [cbor2.dumps(None if value is None else 2 * value) for value in values], None
    if start.kind is IteratorKind.FILTER:
        return [cbor2.dumps(value) for value in values if value is not None and value % 2], None
    items, state = [], start.state
    for value in values:
        if value is not None:
            state = cbor2.dumps((cbor2.loads(state) if state else 0) + value)
        items.append(state or cbor2.dumps(None))
    return items, state


def build_of(remits: Remits, name: str) -> "Build":
    return Build(remits.engine, remits.named(name))


class Build:
    """A build of one iterator, as a program elsewhere makes it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    async def ask(self, request: Request) -> Any:
        return await self._engine.execute(ANONYMOUS, request)

    async def begin(self) -> BuildStart:
        start = await self.ask(BeginBuild(self.name))
        assert isinstance(start, BuildStart)
        return start

    async def messages(self, start: BuildStart, last: int | None = None) -> list[bytes | None]:
        found: list[bytes | None] = []
        end = start.head if last is None else last
        while left := end - start.source - len(found):
            page = await self.ask(ReadMessages(self.name, start.id, start.source + len(found), left))
            assert isinstance(page, MessagePage)
            assert page.messages
            found += page.messages
        return found

    async def stage(self, start: BuildStart, items: Sequence[bytes], attempt: str = "a") -> list[Winner]:
        """Two parts, the first of which has two chunks."""
        half = len(items) // 2
        first = tuple(map(pack_items, (items[: half // 2], items[half // 2 : half])))
        assert await self.ask(StageOutput(start.id, 0, attempt, 0, first)) == Done()
        assert await self.ask(StageOutput(start.id, 1, attempt, 0, (pack_items(items[half:]),))) == Done()
        return [Winner(0, attempt, 2), Winner(1, attempt, 1)]

    async def install(self, start: BuildStart, messages: int, winners: Sequence[Winner], state: bytes | None) -> Any:
        place = (start.id, start.source, start.items)
        return await self.ask(InstallOutput(self.name, *place, messages, tuple(winners), state))

    async def run(self) -> Installed:
        """All of it, from where the index is to what there is now."""
        start = await self.begin()
        items, state = computed(start, await self.messages(start))
        installed = await self.install(start, start.head, await self.stage(start, items), state)
        assert isinstance(installed, Installed)
        return installed


@asynccontextmanager
async def idle(engine: Engine) -> AsyncIterator[None]:
    """The server builds nothing meanwhile."""
    builder = engine._iterators.builder
    tasks, builder._tasks = builder._tasks, []
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    try:
        yield
    finally:
        builder.start(1)


async def three(remits: Remits, slow: str = "", log: str = "log") -> dict[str, Callable[[list[int]], list[int]]]:
    """An iterator of each kind, and what each of them gives."""
    await remits.iterator("double", MAP, slow + DOUBLE, log, indexed=True)
    await remits.iterator("odd", FILTER, slow + ODD, log, indexed=True)
    await remits.iterator("sum", REDUCE, slow + SUM, log, indexed=True)
    return {
        "double": lambda values: [2 * value for value in values],
        "odd": lambda values: [value for value in values if value % 2],
        "sum": lambda values: [sum(values[: end + 1]) for end in range(len(values))],
    }


async def test_an_index_that_was_built_elsewhere_is_read_and_the_server_goes_on(engine: Engine, remits: Remits) -> None:
    values, before = list(range(500)), engine.metrics.installed_items
    await remits.create("log", *values)
    async with idle(engine):
        expected = await three(remits)
        start = await build_of(remits, "sum").begin()
        limits = (start.call_ms_max, start.memory_bytes_max, start.result_bytes_max)
        assert limits == (1000, 64 << 20, 8 << 20)
        what = (start.iterator, start.log, start.over, start.kind, start.function)
        assert what == (remits.named("sum"), remits.named("log"), Over.LOG, REDUCE, SUM)
        assert (start.source, start.items, start.state, start.head) == (0, 0, None, 500)
        for name, gives in expected.items():
            items = len(gives(values))
            assert await build_of(remits, name).run() == Installed(items, items, 500)
            assert await build_of(remits, name).run() == Installed(items, 0, 500)
        again = await build_of(remits, "sum").begin()
        assert (again.source, again.items, again.state) == (500, 500, cbor2.dumps(sum(values)))
        await remits.add("log", 500, 501)
        assert await build_of(remits, "sum").run() == Installed(502, 2, 502)
    await remits.add("log", *range(502, 600))
    for name, gives in expected.items():
        assert await remits.everything(name) == gives(list(range(600)))
    assert engine.metrics.installed_items - before == 500 + 250 + 502


async def test_the_server_and_builds_elsewhere_do_the_same_work_at_once_while_messages_arrive(
    engine: Engine, remits: Remits
) -> None:
    await remits.create("log", *range(1000))
    async with idle(engine):
        expected = await three(remits, SLOW)
        assert (await build_of(remits, "sum").run()).added == 1000
    done, before = asyncio.Event(), engine.metrics.installed_items

    async def arrive() -> None:
        for first in range(1000, 2000, 50):
            await remits.add("log", *range(first, first + 50))
            await asyncio.sleep(0.02)

    async def build(name: str) -> int:
        added = 0
        while not done.is_set():
            added += (await build_of(remits, name).run()).added
        return added

    async def read(name: str) -> None:
        found: list[int] = []
        while not done.is_set() or len(found) < len(expected[name](list(range(2000)))):
            found += await remits.next(name, len(found), 300)
        assert found == expected[name](list(range(2000)))

    at_once = [asyncio.ensure_future(read(name)) for name in expected]
    builds = [asyncio.ensure_future(build(name)) for name in expected]
    await arrive()
    done.set()
    added = sum(await asyncio.gather(*builds))
    await asyncio.gather(*at_once)
    assert engine.metrics.installed_items - before == added
    for name, gives in expected.items():
        assert await remits.everything(name) == gives(list(range(2000)))


async def test_iterators_over_one_that_was_built_elsewhere_go_on(engine: Engine, remits: Remits) -> None:
    await remits.create("log", *range(300))
    await remits.iterator("double", MAP, "if msg == 7 then error('seven') end " + DOUBLE, indexed=True)
    await remits.iterator("sum", REDUCE, SUM, log="double", indexed=True)
    with pytest.raises(FunctionFailed, match="failed at this message"):
        await remits.next("sum", 7)
    async with idle(engine):
        await remits.add("log", *range(300, 400))
        assert (await build_of(remits, "double").run()).added == 100
        build = build_of(remits, "sum")
        start = await build.begin()
        assert (start.over, start.source, start.head) == (Over.ITERATOR, 7, 400)
        assert await build.messages(start, 9) == [b"", cbor2.dumps(16)]
    with pytest.raises(FunctionFailed, match="failed at this message"):
        await remits.next("sum", 7)
    await remits.iterator("known", FILTER, "return msg > 700", log="double", indexed=True)
    await remits.iterator("all", MAP, "return msg", log="double", indexed=True)
    assert len(await remits.next("all", 8, 1000)) == 392


async def test_what_was_erased_is_erased_for_builds_too(engine: Engine, caller: Caller, remits: Remits) -> None:
    await caller.append("s", [about("", "{}"), about("ann", "{}"), about("", "{}")])
    await remits.iterator("n", MAP, "return msg.sequence", log="shop/s", indexed=True)
    build = build_of(remits, "n")
    start = await build.begin()
    assert start.over is Over.STREAM
    page = await build.ask(ReadMessages(build.name, start.id, 0, 10))
    assert [cbor2.loads(message)["sequence"] for message in page.messages] == [1, 2, 3]
    winners = await build.stage(start, [b"\x01", b"\x02", b"\x03"])
    await forget(caller, "ann")
    requests: list[Request] = [
        ReadMessages(build.name, start.id, 0, 10),
        StageOutput(start.id, 0, "a", 2, (pack_items([b"\x01"]),)),
        InstallOutput(build.name, start.id, 0, 0, 3, tuple(winners)),
    ]
    for request in requests:
        with pytest.raises(IteratorNotFound):
            await build.ask(request)
    await build.ask(DropOutput(start.id))
    again = await build.begin()
    assert again.id != start.id
    found = await build.ask(ReadMessages(build.name, again.id, 0, 10))
    assert [message is None for message in found.messages] == [False, True, False]
    positions = [await build.ask(FindMessage(build.name, again.id, ordinal)) for ordinal in (0, 1, 2, 1 << 62)]
    first = positions[0].position
    assert [one.position for one in positions] == [first, None, first + 2, None]
    assert await remits.everything("n") == [1, None, 3]


async def test_what_cannot_be_is_refused_and_changes_nothing(engine: Engine, remits: Remits) -> None:
    await remits.create("log", 1, 2, 3)
    await remits.iterator("plain")
    async with idle(engine):
        await three(remits)
        build = build_of(remits, "double")
        start = await build.begin()
        good = [cbor2.dumps(value) for value in (2, 4, 6)]
        winners = tuple(await build.stage(start, good))
        await build.stage(await build_of(remits, "sum").begin(), good)
        install = InstallOutput(build.name, start.id, 0, 0, 3, winners)
        stage = StageOutput(start.id, 5, "a", 0, (pack_items(good),))
        many = cbor2.dumps(list(range(150_000)))
        refused: list[tuple[Request, type[PenstockError]]] = [
            (BeginBuild("nothing"), IteratorNotFound),
            (BeginBuild(remits.named("plain")), InvalidRequest),
            (ReadMessages(build.name, start.id + 100, 0, 1), IteratorNotFound),
            (ReadMessages(build.name, start.id, -1, 1), InvalidRequest),
            (ReadMessages(build.name, start.id, 0, 0), InvalidRequest),
            (FindMessage(build.name, start.id + 100, 0), IteratorNotFound),
            (FindMessage(build.name, start.id, -1), InvalidRequest),
            (replace(stage, id=start.id + 100), IteratorNotFound),
            (replace(stage, id=-1), IteratorNotFound),
            (replace(stage, part=-1), InvalidRequest),
            (replace(stage, attempt=""), InvalidRequest),
            (replace(stage, number=1), InvalidRequest),
            (replace(stage, chunks=(pack_items(good)[:-1],)), InvalidRequest),
            (replace(stage, chunks=(pack_items([b"\x01", b"\x01\x02"]),)), NotCbor),
            (replace(stage, chunks=(pack_items([b"\x01", b"\x61\xff"]),)), NotCbor),
            (replace(stage, chunks=(pack_items([bytes(33 << 20)]),)), LimitExceeded),
            (replace(stage, chunks=(pack_items([b"\x01"] * 1000),) * 300), LimitExceeded),
            (replace(install, id=start.id + 100), IteratorNotFound),
            (replace(install, iterator=remits.named("sum")), IteratorNotFound),
            (replace(install, messages=4), InvalidRequest),
            (replace(install, source=2, messages=1), InvalidRequest),
            (replace(install, source=1), InvalidRequest),
            (replace(install, items=1), InvalidRequest),
            (replace(install, messages=2), InvalidRequest),
            (replace(install, state=b"\x01"), InvalidRequest),
            (replace(install, winners=winners[:1]), InvalidRequest),
            (replace(install, winners=(*winners, Winner(5, "a", 1))), StageLost),
            (replace(install, iterator=remits.named("sum"), id=start.id + 2, state=b"\x61\xff"), NotCbor),
            (replace(install, iterator=remits.named("sum"), id=start.id + 2, state=bytes(9 << 20)), LimitExceeded),
            (DropOutput(0), IteratorNotFound),
            (StageEvents(output_job(start.id), 0, "b", 0, ()), InvalidRequest),
            (PublishStages(output_job(start.id), winners, ProducerMark("p", 1)), InvalidRequest),
            (DropStages(output_job(start.id)), InvalidRequest),
        ]
        for request, error in refused:
            with pytest.raises(error):
                await build.ask(request)
        assert (await build.begin(), (await build.ask(ReadMessages(build.name, start.id, 1 << 62, 9))).messages) == (
            start,
            [],
        )
        assert await build.ask(replace(stage, chunks=(pack_items([many, b""]),))) == Done(), "a result may be as large"
        assert await build.ask(install) == Installed(3, 3, 3)
        await build.ask(DropOutput(start.id + 2))
        with pytest.raises(StageLost):
            await build.ask(replace(install, iterator=remits.named("sum"), id=start.id + 2))
    assert await remits.everything("double") == [2, 4, 6]
