"""From the client for event loops to the one for plain code: the same calls, carried out on a loop in a thread.

Nothing is written twice: `blocking` and `iterating` make a plain method of each method of the other client, with the
same parameters and types.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from penstock.errors import ClientClosed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")

CLOSE_S_MAX: Final = 15.0


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()
        self._closed = False

    def run(self, work: Awaitable[R]) -> R:
        """Carry something out there and wait for it. If the wait is interrupted, it is given up."""
        coroutine = _coroutine(work)
        if self._closed:
            coroutine.close()
            raise ClientClosed
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be carried out any more."""
        return self._closed

    def close(self) -> None:
        """End the loop and its thread."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S_MAX)
        self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


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
    try:
        while True:
            try:
                item = portal.run(anext(source))
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(source, "aclose", None)
        if close is not None and not portal.is_closed:
            portal.run(close())
