"""From the client for event loops to the one for plain code: the same calls, carried out on a loop in a thread.

Nothing is written twice: `blocking` and `iterating` make a plain method of each method of the other client, with the
same parameters and types.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from penstock.errors import ClientClosed
from penstock.interrupts import awaited
from penstock.tcp import new_loop

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")

END_S_MAX: Final = 2.0
"""How long those who are told that a client is closed may take to notice."""


class Portal:
    """An event loop in a thread of its own. It is of no use to a process that was forked off."""

    def __init__(self) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._thread.start()

    def run(self, work: Awaitable[R]) -> R:
        """Carry something out there and wait for it. If the wait is interrupted, it is given up."""
        return self.result(self.start(work))

    def start(self, work: Awaitable[R]) -> "Future[R]":
        """Have something carried out there."""
        coroutine = _coroutine(work)
        with self._lock:
            if not self.is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClientClosed

    def result(self, future: "Future[R]") -> R:
        """What came of it."""
        try:
            return awaited(future)
        except CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be carried out any more; not in a process that was forked off either."""
        return self._closed or self._process != os.getpid()

    def close(self) -> None:
        """End the loop and its thread. Whoever still waits for something gets ClientClosed."""
        with self._lock:
            if self.is_closed:
                return
            self._closed = True
            ending = asyncio.run_coroutine_threadsafe(_end_others(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    """Wait a moment for what is under way, then end it."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=END_S_MAX)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


async def _coroutine_of(work: Awaitable[R]) -> R:
    return await work


def _coroutine(work: Awaitable[R]) -> Coroutine[Any, Any, R]:
    return work if asyncio.iscoroutine(work) else _coroutine_of(work)


class Blocking(Generic[A]):
    """A plain object over one for event loops. Methods made by the functions below use both of its parts."""

    def __init__(self, portal: Portal, inner: A) -> None:
        self._portal = portal
        self._inner = inner


def blocking(method: Callable[Concatenate[A, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that waits for what the other client's method does."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call


def iterating(method: Callable[Concatenate[A, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that iterates over what the other client's method iterates over."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(self._portal, method(self._inner, *args, **kwargs))

    return call


def flattening(
    method: Callable[Concatenate[A, P], AsyncIterator[list[T]]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that iterates over the items of the pages that the other client's method iterates over."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for page in iterate(self._portal, method(self._inner, *args, **kwargs)):
            yield from page

    return call


def iterate(portal: Portal, source: AsyncIterator[T]) -> Iterator[T]:
    """Take one after the other. What is left is given up when nobody wants more."""
    steps = _Steps(source)
    try:
        while True:
            try:
                item = portal.run(steps.next())
            except StopAsyncIteration:
                return
            yield item
    finally:
        if not portal.is_closed:
            portal.run(steps.close())


class _Steps(Generic[T]):
    """The steps of an iteration, one at a time."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._last: asyncio.Task[Any] | None = None

    async def next(self) -> T:
        self._last = asyncio.current_task()
        return await anext(self._source)

    async def close(self) -> None:
        """End them. Whoever was interrupted may have left a step under way, and nobody to give it up."""
        if self._last is not None:
            self._last.cancel()
            await asyncio.wait({self._last})
        if isinstance(self._source, AsyncGenerator):
            await self._source.aclose()
