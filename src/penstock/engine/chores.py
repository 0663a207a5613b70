"""Chores: work that goes on beside requests, each in a task of its own."""

import asyncio
from abc import ABC, abstractmethod


class Chore(ABC):
    """Works whenever it is rung. What it has not done when it is stopped is done after the next start."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """From now on it works."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Work no further."""
        if self._task is not None:
            self._task.cancel()

    def ring(self) -> None:
        """There is something to do."""
        self._bell.set()

    async def _work(self) -> None:
        while await self._bell.wait():
            self._bell.clear()
            await self._turn()

    @abstractmethod
    async def _turn(self) -> None:
        """Do what there is to do, or some of it."""
