"""From a thread to the event loop, one by one and bounded: what a plain program appends with `append_many`.

The program's own code (its iterable, its callback) runs in its own thread, so that it may use the client itself.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from penstock.client.many import Commit, Written
from penstock.model import Appended

AHEAD: Final = 256
"""Commits that wait for the loop to take them."""


class Feed:
    """Commits on their way to the loop, and results on their way back."""

    def __init__(self, written: Written | None) -> None:
        self._written = written
        self._commits: deque[Commit] = deque()
        self._results: deque[tuple[int, Appended]] = deque()
        self._room = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._is_complete = False
        self._is_over = False

    # -- in the program's thread

    def fill(self, commits: Iterable[Commit]) -> None:
        """Give all commits, as fast as they are taken; until the run is over, if that is sooner."""
        for commit in commits:
            with self._room:
                self._room.wait_for(lambda: len(self._commits) < AHEAD or self._is_over)
                self._commits.append(commit)
                if len(self._commits) == 1:
                    self._wake()
            self.report()
            if self._is_over:
                return

    def complete(self) -> None:
        """No more come."""
        with self._room:
            self._is_complete = True
            self._wake()

    def report(self) -> None:
        """Tell the program what was written since the last time."""
        while self._results:
            number, appended = self._results.popleft()
            if self._written is not None:
                self._written(number, appended)

    def _wake(self) -> None:
        if self._loop is not None and self._news is not None and not self._is_over:
            self._loop.call_soon_threadsafe(self._news.set)

    # -- on the loop

    def wrote(self, number: int, appended: Appended) -> None:
        """One is written."""
        self._results.append((number, appended))

    def over(self) -> None:
        """The run has ended: nothing more is taken."""
        with self._room:
            self._is_over = True
            self._room.notify_all()

    async def __aiter__(self) -> AsyncIterator[Commit]:
        with self._room:
            self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        while taken := await self._taken():
            for commit in taken:
                yield commit

    async def _taken(self) -> deque[Commit]:
        """All that is there, or what comes next; nothing at the end."""
        assert self._news is not None
        while True:
            with self._room:
                self._news.clear()
                if self._commits or self._is_complete:
                    taken, self._commits = self._commits, deque()
                    self._room.notify_all()
                    return taken
            await self._news.wait()
