"""An indexed iterator as its builder sees it: what it follows, how far it is, and who waits for it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import FunctionFailed, PenstockError
from penstock.model import Over
from penstock.store.contract import LOG_CONTEXT, IteratorState

Source = tuple[str, str]
"""What an iterator follows: a stream (context, stream), or another iterator ("", name)."""

UNKNOWN: Final = -1


class Index:
    """One indexed iterator. Its source rings whenever it grows; what it had then is read when `seen` is that ring."""

    def __init__(self, iterator: IteratorState) -> None:
        self.id = iterator.id
        self.name = iterator.name
        self.source = source_of(iterator)
        self.rings = 1
        self.seen = 0
        self.read = iterator.source - iterator.base
        self.head = self.read
        self.error: FunctionFailed | None = None
        self.not_before = 0.0
        self.pause_s = 0.0
        self.is_queued = False
        self.timer: asyncio.TimerHandle | None = None
        self.is_running = False
        self.is_followed = False
        self.is_gone = False
        self._demands: set[Demand] = set()

    @property
    def above(self) -> str | None:
        """The iterator whose output it reads, if it does."""
        context, name = self.source
        return None if context else name

    @property
    def lease(self) -> str:
        """What a server holds that builds it, where several could."""
        return f"iterator:{self.id}"

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self._demands)

    @property
    def is_current(self) -> bool:
        """Whether it has read all that there was when its source last grew."""
        return self.seen == self.rings and self.error is None

    @property
    def wants_more(self) -> bool:
        """Whether it needs another turn by itself."""
        return not self.is_gone and (bool(self._demands) or (self.error is None and self.seen < self.rings))

    def rests(self, now: float) -> bool:
        """Whether it failed so lately that it is not tried again yet."""
        return self.error is not None and now < self.not_before

    @contextmanager
    def demand(self, loop: asyncio.AbstractEventLoop) -> "Iterator[asyncio.Future[None]]":
        """Done when it has read what there is now, or failed at it. Whoever leaves waits no longer."""
        demand = Demand(loop.create_future())
        self._demands.add(demand)
        try:
            yield demand.done
        finally:
            self._demands.discard(demand)

    def ask(self) -> "Asked":
        """Those who wait and do not know yet for what: the step that begins now will say."""
        return Asked([demand for demand in self._demands if demand.target == UNKNOWN])

    def advanced(self, read: int, head: int, rings: int, error: FunctionFailed | None) -> None:
        """A step that began at a ring is written: it has read so many of so many messages."""
        self.read, self.head, self.error = read, head, error
        if read >= head:
            self.seen = max(self.seen, rings)
        for demand in list(self._demands):
            if error is not None or UNKNOWN < demand.target <= read:
                self._demands.discard(demand)
                demand.settle(None)

    def fail_all(self, error: PenstockError) -> None:
        """Nobody shall wait any longer."""
        demands, self._demands = self._demands, set()
        for demand in demands:
            demand.settle(error)


class Demand:
    """Somebody who waits until so many messages are read."""

    def __init__(self, done: "asyncio.Future[None]") -> None:
        self.done = done
        self.target = UNKNOWN

    def settle(self, error: PenstockError | None) -> None:
        """Wake them, unless they have given up."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class Asked:
    """Demands that a step gives their targets."""

    def __init__(self, demands: list[Demand]) -> None:
        self._demands = demands

    def answer(self, head: int) -> None:
        """There were so many messages when the step began."""
        for demand in self._demands:
            demand.target = head


def source_of(iterator: IteratorState) -> Source:
    """What an iterator follows."""
    if iterator.over == Over.LOG:
        return LOG_CONTEXT, iterator.log
    if iterator.over == Over.ITERATOR:
        return "", iterator.log
    context, _, stream = iterator.log.partition("/")
    return context, stream
