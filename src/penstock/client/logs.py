"""Logs of CBOR messages, and iterators over them."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import cbor2

from penstock import model
from penstock.client.calls import Calls, flattened
from penstock.errors import InvalidRequest, LogNotFound, NotCbor
from penstock.model import Done, IteratorKind

LOG_CONTEXT = "remits"
MESSAGE_TYPE = "cbor"
PAGE_ITEMS = 1000


class AsyncLog:
    """A named log of Python values, which the client encodes as CBOR."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self.name = name

    async def create(self) -> None:
        """Create it, unless it exists."""
        await self._calls.ask(model.CreateLog(self.name), Done)

    async def delete(self) -> None:
        """Delete it with its messages and its iterators, if it exists."""
        try:
            created = (await self.show()).created
        except LogNotFound:
            return
        # A repeat must not delete a log of the same name that another client made in between.
        await self._calls.ask(model.DropLog(self.name, created), Done)

    async def show(self) -> model.LogSummary:
        return await self._calls.ask(model.ShowLog(self.name), model.LogSummary)

    async def append(self, messages: Iterable[Any]) -> None:
        """Append messages: all or none, and once, however often the client has to send them."""
        events = tuple(model.new_event(MESSAGE_TYPE, _encoded(index, value)) for index, value in enumerate(messages))
        if events:
            await self._calls.append(model.Append(LOG_CONTEXT, self.name, events, model.ANY))


class AsyncLogIterator:
    """A function over the messages of a log that the server runs: map, filter or reduce."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self.name = name

    async def create(self, log: str, kind: IteratorKind | str, function: str, *, indexed: bool = False) -> None:
        """Create it, unless the same one exists."""
        try:
            kind = IteratorKind(kind)
        except ValueError:
            raise InvalidRequest("kind", f"is {kind!r}; it must be one of {', '.join(IteratorKind)}") from None
        await self._calls.ask(model.CreateIterator(self.name, log, kind, function, indexed), Done)

    async def delete(self, log: str) -> None:
        """Delete it with its output."""
        await self._calls.ask(model.DropIterator(log, self.name), Done)

    async def show(self) -> model.IteratorSummary:
        return await self._calls.ask(model.ShowIterator(self.name), model.IteratorSummary)

    async def next(self, ordinal: int = 0, count: int = PAGE_ITEMS) -> list[Any]:
        """Up to `count` of its results from an ordinal on; -1 is the last one. Empty: there are no more now."""
        page = await self._calls.ask(model.NextItems(self.name, ordinal, count), model.ItemPage)
        return [cbor2.loads(item) for item in page.items]

    async def pages(self, ordinal: int = 0) -> AsyncGenerator[list[Any], None]:
        """All its results from an ordinal on, in pages."""
        while page := await self.next(ordinal):
            yield page
            ordinal += len(page)

    __aiter__ = flattened(pages)


def _encoded(index: int, value: Any) -> bytes:
    try:
        return cbor2.dumps(value)
    except (cbor2.CBOREncodeError, ValueError, TypeError) as error:
        raise NotCbor(index, str(error)) from None
