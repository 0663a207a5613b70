"""What tests of logs and iterators ask for, in Python values instead of CBOR."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import cbor2

from penstock.engine import Engine
from penstock.model import (
    ANONYMOUS,
    AddMessages,
    CreateIterator,
    CreateLog,
    Done,
    DropIterator,
    DropLog,
    ItemPage,
    IteratorKind,
    ListIterators,
    ListLogs,
    LogSummary,
    Names,
    NextItems,
    Reply,
    Request,
    ShowLog,
)

MAP, FILTER, REDUCE = IteratorKind.MAP, IteratorKind.FILTER, IteratorKind.REDUCE


class Remits:
    """A client of logs and iterators. With a prefix its names are its own, whoever else uses the same engine."""

    def __init__(self, engine: Engine, prefix: str = "") -> None:
        self.engine = engine
        self._prefix = prefix

    def named(self, name: str) -> str:
        """A name as the engine knows it."""
        return name if "/" in name else self._prefix + name

    async def ask(self, request: Request) -> Reply:
        return await self.engine.execute(ANONYMOUS, request)

    async def create(self, log: str = "log", *values: Any) -> None:
        assert await self.ask(CreateLog(self.named(log))) == Done()
        if values:
            await self.add(log, *values)

    async def drop(self, log: str = "log") -> None:
        assert await self.ask(DropLog(self.named(log))) == Done()

    async def add(self, log: str, *values: Any) -> None:
        assert await self.ask(AddMessages(self.named(log), tuple(map(cbor2.dumps, values)))) == Done()

    async def show(self, log: str = "log") -> LogSummary:
        shown = await self.ask(ShowLog(self.named(log)))
        assert isinstance(shown, LogSummary)
        return shown

    async def logs(self) -> list[str]:
        return await self._names(ListLogs())

    async def _names(self, request: Request) -> list[str]:
        found = await self.ask(request)
        assert isinstance(found, Names)
        return [name.removeprefix(self._prefix) for name in found.names if name.startswith(self._prefix)]

    async def iterator(
        self,
        name: str,
        kind: IteratorKind = MAP,
        function: str = "return msg",
        log: str = "log",
        *,
        indexed: bool = False,
    ) -> None:
        request = CreateIterator(self.named(name), self.named(log), kind, function, indexed)
        assert await self.ask(request) == Done()

    async def drop_iterator(self, name: str, log: str = "log") -> None:
        assert await self.ask(DropIterator(self.named(log), self.named(name))) == Done()

    async def iterators(self, log: str | None = None) -> list[str]:
        return await self._names(ListIterators(log and self.named(log)))

    async def next(self, name: str, ordinal: int = 0, count: int = 1000) -> list[Any]:
        page = await self.ask(NextItems(self.named(name), ordinal, count))
        assert isinstance(page, ItemPage)
        return [cbor2.loads(item) for item in page.items]

    async def everything(self, name: str, count: int = 1000) -> list[Any]:
        """All items, page by page."""
        found: list[Any] = []
        while page := await self.next(name, len(found), count):
            found += page
        return found

    async def everything_before(self, name: str, ordinal: int) -> list[Any]:
        """All items up to an ordinal, however short the pages are."""
        found: list[Any] = []
        while len(found) < ordinal:
            found += await self.next(name, len(found), ordinal - len(found))
        return found


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.005)
