"""Long polls: somebody found nothing and waits for events of a filter. Commits wake them; nobody polls.

Watch first, then read, then wait: a commit between the read and the wait has already rung.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.engine.metrics import Metrics
from penstock.errors import ReaderBusy
from penstock.model import EventFilter


class Waiter:
    """One who may have to wait."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()

    @property
    def has_rung(self) -> bool:
        """Whether there was something new since it was cleared."""
        return self._bell.is_set()

    def ring(self) -> None:
        """There is something new."""
        self._bell.set()

    def clear(self) -> None:
        """About to read: forget what rang before."""
        self._bell.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for a ring; False when the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return False
        return True


class Wakeups:
    """All who wait, by context and prefix."""

    def __init__(self, waiters_max: int, metrics: Metrics) -> None:
        self._max = waiters_max
        self._metrics = metrics
        self._count = 0
        self.closing = False
        self._by_context: dict[str | None, _Group] = {}

    @contextmanager
    def watch(self, wanted: EventFilter) -> Iterator[Waiter]:
        """A waiter that is rung by commits of this filter."""
        if self._count >= self._max:
            self._metrics.refused["waiters_busy"] += 1
            raise ReaderBusy(self._count)
        waiter = Waiter()
        group = self._by_context.setdefault(wanted.context, _Group())
        group.add(wanted.prefix, waiter)
        self._change(+1)
        try:
            yield waiter
        finally:
            group.remove(wanted.prefix, waiter)
            if not group.by_prefix:
                self._by_context.pop(wanted.context, None)
            self._change(-1)

    def _change(self, by: int) -> None:
        self._count += by
        self._metrics.waiting_polls = self._count

    def committed(self, streams: Iterable[tuple[str, str]]) -> None:
        """These streams (context, stream) have new events."""
        if not self._count:
            return
        for context, stream in streams:
            for name in (context, None):
                if (group := self._by_context.get(name)) is not None:
                    group.ring(stream)

    def close(self) -> None:
        """Nobody waits any longer: those who do are answered with what there is."""
        self.closing = True
        self.ring_all()

    def ring_all(self, context: str | None = None) -> None:
        """Wake everyone, or everyone of a context."""
        for name, group in self._by_context.items():
            if context in (None, name):
                group.ring_all()


class _Group:
    """Those who wait for one context. A commit costs a look-up per length of prefix, however many wait."""

    def __init__(self) -> None:
        self.by_prefix: dict[str, set[Waiter]] = {}
        self._lengths: Counter[int] = Counter()

    def add(self, prefix: str, waiter: Waiter) -> None:
        self.by_prefix.setdefault(prefix, set()).add(waiter)
        self._lengths[len(prefix)] += 1

    def remove(self, prefix: str, waiter: Waiter) -> None:
        waiting = self.by_prefix[prefix]
        waiting.discard(waiter)
        if not waiting:
            del self.by_prefix[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]

    def ring(self, stream: str) -> None:
        for length in self._lengths:
            for waiter in self.by_prefix.get(stream[:length], ()) if length <= len(stream) else ():
                waiter.ring()

    def ring_all(self) -> None:
        for waiting in self.by_prefix.values():
            for waiter in waiting:
                waiter.ring()
