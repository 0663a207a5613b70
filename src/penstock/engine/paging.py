"""Pages of iterators: of a plain one by running its function, of an indexed one from its kept output.

A page stops before a message that fails, and only a page that would begin with it is that error. The items of a map
stand for themselves; those of a filter or a reduce need all messages before them, so a step begins at a point that
an earlier one came to.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.engine import sources
from penstock.engine.running import MESSAGES_PER_RUN, NULL, Point, Running, Step, find
from penstock.engine.sources import FAILED
from penstock.errors import FunctionFailed, IteratorNotFound
from penstock.lua import Ran
from penstock.model import Encoded, ItemPage, IteratorKind
from penstock.store import Store
from penstock.store.contract import IteratorState, ReadLimits

LAST: Final = -1
"""The ordinal of the last item."""
MESSAGES_PER_RUN_MIN: Final = 256
"""A filter is run over at least so many, even if fewer items are wanted."""
POINT_MESSAGES: Final = 8192
"""How far apart the points are that a long step remembers."""

ItemPresenter = Callable[[list[bytes]], bytes | list[bytes]]
"""A codec's function of a module that turns items into what its wire has: one payload, or frames."""


class Wanted(NamedTuple):
    """What is asked for: a page from an ordinal on, or the last item.

    Messages from `target` on are left for another request; None is as many as there are.
    """

    ordinal: int
    target: int | None
    present: ItemPresenter | None


class Paged(NamedTuple):
    """What a step towards a page came to: the page; or an error; or neither, and it goes on from the last point."""

    page: ItemPage | None
    points: list[Point]
    target: int
    messages: int
    error: FunctionFailed | None


class Kept(NamedTuple):
    """A kept page, and whether it is short because no more is kept yet.

    Without a page it would begin with a message that a map failed at.
    """

    page: ItemPage | None
    end: bool


def page(store: Store, name: str, number: int, start: Point, wanted: Wanted, step: Step) -> Paged:
    """A page of an iterator by running its function, or a step towards it."""
    iterator = find(store, name, number)
    target = sources.count(store, iterator) if wanted.target is None else wanted.target
    paged = _Paging(store, iterator, start, wanted, target, step).go()
    # What was read is this iterator's if it is still there now.
    _count(store, name, number)
    return paged


def last_of_map(store: Store, name: str, number: int, wanted: Wanted) -> Wanted:
    """The last item of a map by its ordinal, which is that of the last message."""
    target = sources.count(store, find(store, name, number))
    return wanted._replace(ordinal=max(0, target - 1), target=target)


def kept(store: Store, name: str, number: int, wanted: Wanted, limits: ReadLimits) -> Kept:
    """A page of an indexed iterator's kept output."""
    # Asked first: what is added meanwhile must not make the end look like something else.
    count = _count(store, name, number)
    ordinal = wanted.ordinal
    if ordinal == LAST:
        ordinal, limits = max(0, count - 1), limits._replace(events_max=1)
    items = store.read_output(number, ordinal, limits)
    _count(store, name, number)
    end = len(items) < limits.events_max and ordinal + len(items) >= count
    if FAILED in items:
        items, end = items[: items.index(FAILED)], False
        if not items:
            return Kept(None, end)
    return Kept(_presented(items, wanted.present), end)


def _count(store: Store, name: str, number: int) -> int:
    """How many items are kept, or IteratorNotFound."""
    count = store.output_count(number)
    if count is None:
        raise IteratorNotFound(name)
    return count


def _presented(items: list[bytes], present: ItemPresenter | None) -> ItemPage:
    return ItemPage(items) if present is None else ItemPage([], Encoded(len(items), present(items)))


class _Paging(Running):
    """A step towards one page."""

    def __init__(
        self, store: Store, iterator: IteratorState, start: Point, wanted: Wanted, target: int, step: Step
    ) -> None:
        super().__init__(iterator, start, step, partial(sources.read, store, iterator))
        self._store, self._iterator = store, iterator
        self._wanted = wanted
        self._target = target
        self._points: list[Point] = []
        self._items: list[bytes] = []
        self._size = 0
        self._full = False
        self._late = False
        self._previous: bytes | None = None

    def go(self) -> Paged:
        """Run until there is a page, an error, or no time left."""
        while not self._full and self.error is None and self.point.source < self._target and not self._late:
            if not self.run_some(min(self._run_length(), self._target - self.point.source)):
                break
            self._late = self.is_late
        return self.answer()

    def _run_length(self) -> int:
        """So many messages that no more items can come of them than are wanted; of a filter perhaps a few more."""
        if self._wanted.ordinal == LAST:
            return MESSAGES_PER_RUN
        items = self._wanted.ordinal + self.step.items_max - self.point.output
        if self.kind == IteratorKind.FILTER:
            items = max(items, MESSAGES_PER_RUN_MIN)
        return min(items, MESSAGES_PER_RUN)

    def take(self, ran: Ran) -> None:
        self.messages += len(ran.outputs) + (ran.error is not None)
        source, output, _, passed = self.point
        for item in ran.outputs:
            if item is not None:
                if 0 <= self._wanted.ordinal <= output and not self._add(item):
                    return self._stop_before(source, output, passed)
                self._previous, passed = item, source
                output += 1
            source += 1
        self.point = Point(source, output, ran.state, passed)
        if ran.error is not None:
            self.fail(ran.error)
        if not self._points or source - self._points[-1].source >= POINT_MESSAGES:
            self._points.append(self.point)
        return None

    def _add(self, item: bytes) -> bool:
        """Put an item into the page, if there is room."""
        if self._full or (self._items and self._size + len(item) > self.step.bytes_max):
            self._full = True
            return False
        self._items.append(item)
        self._size += len(item)
        self._full = len(self._items) >= self.step.items_max
        return True

    def _stop_before(self, source: int, output: int, passed: int | None) -> None:
        """The page is full, and more was run than it holds: go on from here the next time."""
        state = self._previous if self.kind == IteratorKind.REDUCE else None
        # An item of null does not say whether the accumulator was nil; then the next page runs a few messages again.
        if state != NULL:
            self.point = Point(source, output, state, passed)

    def answer(self) -> Paged:
        items = self._final_item() if self._wanted.ordinal == LAST else self._items
        done = bool(items) or not self._late or self.point.source >= self._target
        if self.error is not None and (not items or self._wanted.ordinal == LAST):
            page, error = None, self.error
        else:
            page, error = (_presented(items, self._wanted.present) if done else None), None
        return Paged(page, [*self._points, self.point], self._target, self.messages, error)

    def _final_item(self) -> list[bytes]:
        """The last item of a filter or a reduce, if this has come to the end."""
        point = self.point
        if self._late and point.source < self._target:
            return []
        if self.kind == IteratorKind.REDUCE:
            return [point.state or NULL] if point.source else []
        if point.passed is None or self._previous is not None:
            return [] if self._previous is None else [self._previous]
        found = sources.read(self._store, self._iterator, point.passed, ReadLimits(events_max=1))
        return [message for message in found if message]
