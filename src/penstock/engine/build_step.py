"""Steps of a build: what the next messages of an indexed iterator's log give, to be added to its kept output.

A message that fails ends the build of a filter or a reduce: whatever comes after it depends on it. A map goes on after
it; an empty item keeps its place.
"""

from functools import partial
from typing import NamedTuple

from penstock.engine import sources
from penstock.engine.last_words import answer_and_leave
from penstock.engine.running import MESSAGES_PER_RUN, Function, Leave, Point, Read, Running, Step
from penstock.engine.sources import FAILED
from penstock.errors import FunctionFailed, FunctionTimedOut
from penstock.lua import Ran
from penstock.model import IteratorKind
from penstock.store import Store
from penstock.store.contract import IteratorState, WriteOutput


class Built(NamedTuple):
    """What a step came to: what is to be written, of how many messages now `read` (there are `head`), and why it ended.

    Of `messages` that were run, `errors` failed. `error` is the one that keeps the build from going on.
    """

    output: WriteOutput
    read: int
    head: int
    messages: int
    errors: int
    error: FunctionFailed | None
    timed_out: bool

    @property
    def has_moved(self) -> bool:
        """Whether there is anything to write."""
        return self.output.next_source != self.output.source


class Looked(NamedTuple):
    """How many messages an indexed iterator has read, of how many."""

    read: int
    head: int


def look(store: Store, name: str, number: int) -> Looked | None:
    """How far an indexed iterator is, whoever builds it; None if it is gone."""
    iterator = store.iterator(name)
    if iterator is None or iterator.id != number:
        return None
    return Looked(iterator.source - iterator.base, sources.count(store, iterator))


def build(store: Store, name: str, number: int, step: Step) -> Built | None:
    """What an indexed iterator's next messages give; None if it is gone."""
    iterator = store.iterator(name)
    if iterator is None or iterator.id != number:
        return None
    return _Building(store, iterator, step).go()


class Gathering(Running):
    """Everything that comes of messages, in order, as it belongs into an iterator's kept output."""

    def __init__(
        self, iterator: Function, start: Point, step: Step, read: Read, leave: Leave = answer_and_leave
    ) -> None:
        super().__init__(iterator, start, step, read, leave)
        self.items: list[bytes] = []
        self.size = 0
        self.errors = 0
        self.timed_out = False

    def take(self, ran: Ran) -> None:
        """See Running. Of a map, an error takes its place as an item, and the step goes on."""
        items = [item for item in ran.outputs if item is not None]
        self.point = Point(self.point.source + len(ran.outputs), 0, ran.state)
        if ran.error is not None:
            self.failed(ran.error)
            if self.kind == IteratorKind.MAP:
                items.append(FAILED)
                self.point = self.point._replace(source=self.point.source + 1)
            else:
                self.fail(ran.error)
        self.messages += len(ran.outputs) + (ran.error is not None)
        self.items += items
        self.size += sum(map(len, items))

    def failed(self, error: FunctionFailed) -> None:
        """The message where this is failed."""
        self.errors += 1
        self.timed_out = isinstance(error, FunctionTimedOut)


class _Building(Gathering):
    """A step of a server's."""

    def __init__(self, store: Store, iterator: IteratorState, step: Step) -> None:
        start = Point(iterator.source - iterator.base, iterator.outputs, iterator.state)
        super().__init__(iterator, start, step, partial(sources.read, store, iterator))
        self._iterator = iterator
        self._head = sources.count(store, iterator)

    def go(self) -> Built:
        """Run until there is enough to write, an error, or no time left."""
        while self.run_some(MESSAGES_PER_RUN) and not self._is_enough:
            pass
        return self.answer()

    @property
    def _is_enough(self) -> bool:
        full = len(self.items) >= self.step.items_max or self.size >= self.step.bytes_max
        return full or self.error is not None or self.timed_out or self.is_late

    def answer(self) -> Built:
        iterator, read = self._iterator, self.point.source
        output = WriteOutput(iterator.id, iterator.source, iterator.base + read, tuple(self.items), self.point.state)
        head = max(self._head, read)
        return Built(output, read, head, self.messages, self.errors, self.error, self.timed_out)
