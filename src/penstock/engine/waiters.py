"""Long polls: somebody found nothing and waits for events of a filter. Commits wake them; nobody polls.

Watch first, then read, then wait: a commit between the read and the wait has already rung.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.engine.metrics import Metrics
from penstock.errors import ReaderBusy
from penstock.model import EventFilter


class Waiter:
    """One who may have to wait."""

    def __init__(self, wanted: EventFilter) -> None:
        self.wanted = wanted
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """There is something new."""
        self._bell.set()

    def clear(self) -> None:
        """About to read: forget what rang before."""
        self._bell.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for a ring; False when the time is up."""
        if seconds <= 0:
            return self._bell.is_set()
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return False
        return True


class Waiters:
    """All who wait, by context."""

    def __init__(self, waiters_max: int, metrics: Metrics) -> None:
        self._max = waiters_max
        self._metrics = metrics
        self._count = 0
        self.closing = False
        self._by_context: defaultdict[str | None, set[Waiter]] = defaultdict(set)

    @contextmanager
    def watch(self, wanted: EventFilter) -> Iterator[Waiter]:
        """A waiter that is rung by commits of this filter."""
        if self._count >= self._max:
            self._metrics.refused["waiters_busy"] += 1
            raise ReaderBusy(self._count)
        waiter = Waiter(wanted)
        self._change(+1)
        self._by_context[wanted.context].add(waiter)
        try:
            yield waiter
        finally:
            group = self._by_context[wanted.context]
            group.discard(waiter)
            if not group:
                del self._by_context[wanted.context]
            self._change(-1)

    def _change(self, by: int) -> None:
        self._count += by
        self._metrics.waiting_polls = self._count

    def committed(self, streams: Iterable[tuple[str, str]]) -> None:
        """These streams (context, stream) have new events."""
        if not self._count:
            return
        for context, stream in streams:
            for group in (self._by_context.get(context, ()), self._by_context.get(None, ())):
                for waiter in group:
                    if stream.startswith(waiter.wanted.prefix):
                        waiter.ring()

    def close(self) -> None:
        """Nobody waits any longer: those who do are answered with what there is."""
        self.closing = True
        self.ring_all()

    def ring_all(self, context: str | None = None) -> None:
        """Wake everyone, or everyone of a context."""
        groups = list(self._by_context.values()) if context is None else [self._by_context.get(context, set())]
        for group in groups:
            for waiter in group:
                waiter.ring()
