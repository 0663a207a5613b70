"""Locks by key: those who work on the same subscription or queue take turns, in the order they came."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager

from penstock.errors import ReaderTimeout


class KeyedLocks:
    """A lock for every key that somebody holds or waits for, and none for the others."""

    def __init__(self, wait_ms_max: int) -> None:
        self._wait_ms_max = wait_ms_max
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, *keys: Hashable) -> AsyncIterator[None]:
        """Hold the keys' locks. Raises ReaderTimeout when a turn does not come in time."""
        async with AsyncExitStack() as held:
            # Always in one order: two who want the same two keys cannot wait for each other.
            for key in sorted(set(keys), key=repr):
                await held.enter_async_context(self._one(key))
            yield

    @asynccontextmanager
    async def _one(self, key: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            await self._acquire(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            users = self._locks[key][1] - 1
            if users:
                self._locks[key] = (lock, users)
            else:
                del self._locks[key]

    async def _acquire(self, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(self._wait_ms_max / 1000):
                await lock.acquire()
        except TimeoutError:
            raise ReaderTimeout(self._wait_ms_max) from None
