"""Wake-ups by commits: of long polls, indexed iterators, and the sealer.

The writer calls `Wakeups.committed` once for each group commit. A long poll watches, then reads, then waits: a
commit between the read and the wait has already woken it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.engine.metrics import Metrics
from penstock.errors import PenstockError, ReaderBusy
from penstock.model import EventFilter

Source = tuple[str, str]
"""A stream (context, stream), or an iterator ("", name), that an indexed iterator follows."""


R = TypeVar("R")


class Wakeups:
    """All long polls, by context and prefix; the indexed iterators, by what they follow; and the sealer."""

    def __init__(self, waiters_max: int, metrics: Metrics) -> None:
        self._max = waiters_max
        self._metrics = metrics
        self._count = 0
        self.closing = False
        self._by_context: dict[str | None, _Group] = {}
        self.head = 0
        """The last position that this server knows of."""
        self.seal_due = 1 << 63
        """The position at which the next block of the history is complete and can be sealed."""
        self.wake_sealer: Callable[[], None] = lambda: None
        self.followed: set[Source] = set()
        """The streams that indexed iterators follow."""
        self.wake_index: Callable[[Source], None] = lambda _: None

    def committed(self, streams: Iterable[Source], head: int) -> None:
        """Wake the followers of these streams (context, stream), which have new events up to a position."""
        if self._count:
            for context, stream in streams:
                for name in (context, None):
                    if (group := self._by_context.get(name)) is not None:
                        group.wake(stream)
        if self.followed:
            for source in self.followed.intersection(streams):
                self.wake_index(source)
        # Notices of other servers' commits can arrive after a later commit of this server.
        self.head = max(self.head, head)
        if head >= self.seal_due:
            self.wake_sealer()

    def wake_all(self, context: str | None = None) -> None:
        for name, group in self._by_context.items():
            if context in (None, name):
                for waiting in group.by_prefix.values():
                    for waiter in waiting:
                        waiter.set()

    def close(self) -> None:
        """End all long polls: each is answered with what it has found."""
        self.closing = True
        self.wake_all()

    @contextmanager
    def watch(self, wanted: EventFilter) -> Iterator[asyncio.Event]:
        """An event that commits of this filter set."""
        if self._count >= self._max:
            self._metrics.refused["waiters_busy"] += 1
            raise ReaderBusy(self._count)
        waiter = asyncio.Event()
        group = self._by_context.setdefault(wanted.context, _Group())
        group.add(wanted.prefix, waiter)
        self._count += 1
        self._metrics.waiting_polls = self._count
        try:
            yield waiter
        finally:
            group.remove(wanted.prefix, waiter)
            if not group.by_prefix:
                self._by_context.pop(wanted.context, None)
            self._count -= 1
            self._metrics.waiting_polls = self._count


class _Group:
    """The long polls of one context. A commit costs one look-up per length of prefix, however many polls wait."""

    def __init__(self) -> None:
        self.by_prefix: dict[str, set[asyncio.Event]] = {}
        self._lengths: Counter[int] = Counter()

    def add(self, prefix: str, waiter: asyncio.Event) -> None:
        self.by_prefix.setdefault(prefix, set()).add(waiter)
        self._lengths[len(prefix)] += 1

    def remove(self, prefix: str, waiter: asyncio.Event) -> None:
        waiting = self.by_prefix[prefix]
        waiting.discard(waiter)
        if not waiting:
            del self.by_prefix[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]

    def wake(self, stream: str) -> None:
        for length in self._lengths:
            if length <= len(stream):
                for waiter in self.by_prefix.get(stream[:length], ()):
                    waiter.set()


def resolve(answer: asyncio.Future[R], outcome: R | PenstockError) -> None:
    """Set the result or the error of a future, unless its caller has given up."""
    if answer.done():
        return
    if isinstance(outcome, PenstockError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
