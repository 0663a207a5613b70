"""The client for event loops, driven by hand: each call runs a loop until it is done.

So that one suite of tests, written for the plain client, tests both.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, cast

from penstock.client import (
    AsyncAccess,
    AsyncBuild,
    AsyncClient,
    AsyncLog,
    AsyncLogIterator,
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    Client,
    aconnect,
)
from penstock.client.staging import AsyncStaging

PARTS = (
    AsyncAccess,
    AsyncClient,
    AsyncLog,
    AsyncLogIterator,
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    AbstractAsyncContextManager,
    AsyncStaging,
    AsyncBuild,
)


class Driven:
    """An object of the client for event loops, used as if it was one of the plain client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:
        self.loop = loop
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return self._handed(found)

        def call(*arguments: Any, **named: Any) -> Any:
            given = (each.inner if isinstance(each, Driven) else each for each in arguments)
            return self._handed(found(*given, **named))

        return call

    def _handed(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            return self._handed(self.loop.run_until_complete(result))
        if inspect.isasyncgen(result):
            return self._each(result)
        return Driven(self.loop, result) if isinstance(result, PARTS) else result

    def _each(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(source)

        try:
            while True:
                try:
                    yield self.loop.run_until_complete(following())
                except StopAsyncIteration:
                    return
        finally:
            self.loop.run_until_complete(source.aclose())  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        return self._each(aiter(self.inner))

    def __enter__(self) -> Any:
        entered = self.loop.run_until_complete(self.inner.__aenter__())
        return self if entered is self.inner else entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.run_until_complete(self.inner.__aexit__(kind, error, trace))


class DrivenClient(Driven):
    """A client with a loop of its own, which ends with it."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(asyncio.new_event_loop(), None)
        try:
            self.inner = self.loop.run_until_complete(_opened(url, **options))
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.inner.close())

    def _end(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def end(self) -> None:
        """Close the client and its loop; there must be nothing left on it."""
        if self.loop.is_closed():
            return
        self.close()
        left = asyncio.all_tasks(self.loop)
        self._end()
        assert not left, left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


async def _opened(url: str, **options: Any) -> AsyncClient:
    return await aconnect(url, **options)


def driven_connect(url: str, **options: Any) -> Client:
    """As `penstock.connect`, over the other client."""
    return cast("Client", DrivenClient(url, **options))
