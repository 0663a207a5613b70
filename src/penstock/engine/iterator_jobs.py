"""Jobs of the Lua workers: read messages, run an iterator's function over them, and give pages or output to store.

An iterator reads messages: each is one CBOR item, numbered from 0. The messages of a log are its events' bodies; those
of another iterator are the items of its stored output; those of any other stream are its events as maps. An erased
event keeps its number and has no message.

A job runs in bounded steps: until it has a page, reaches the end, meets an error, or has taken long enough; then it
answers how far it is. When a function hangs for good, another thread answers the work done so far, and the process
ends. Spark runs the same code for builds elsewhere.

A page stops before a message that fails, and only a page that would begin with that message is the error. The items of
a map do not depend on each other; those of a filter or a reduce need all messages before them, so their steps begin at
a point that an earlier step reached. In a build, a failing message stops a filter or a reduce, and a map goes on.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

import cbor2

from penstock.engine.jobs import list_iterators, source_of, visible_iterator
from penstock.engine.worker_protocol import answer_and_leave
from penstock.errors import FunctionFailed, FunctionTimedOut, IteratorNotFound, LogNotFound
from penstock.lua import LuaLimits, Program, RunResult
from penstock.model import (
    LOG_CONTEXT,
    BuildStart,
    Encoded,
    Event,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    LogSummary,
    Over,
    View,
)
from penstock.model.times import TICKS_PER_SECOND, UNIX_EPOCH_TICKS
from penstock.store import Store
from penstock.store.contract import IteratorState, ReadLimits, WriteOutput

BODY_DEPTH_MAX: Final = LuaLimits().depth_max - 1
"""Levels of a body that functions can be given; the event around it is one more."""
FAILED: Final = b""
"""In an iterator's stored output, the item of a message at which its function failed."""
NULL: Final = b"\xf6"
LAST: Final = -1
"""The ordinal of the last item."""
PROGRAMS_MAX: Final = 16
"""Compiled functions that a worker keeps, each in its own Lua state."""
MESSAGES_PER_RUN: Final = 1024
MESSAGES_PER_RUN_MIN: Final = 256
"""A filter runs over at least so many, even for fewer items."""
POINT_MESSAGES: Final = 8192
"""The distance between the points that a long step remembers."""


# --- messages -------------------------------------------------------------------------------------------------


def count_messages(store: Store, iterator: IteratorState) -> int:
    """How many messages there are for an iterator now."""
    if iterator.over == Over.ITERATOR:
        return _above(store, iterator).outputs
    return max(0, store.stream_head(*source_of(iterator)) - iterator.base)


def read_source(store: Store, iterator: IteratorState, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
    """Messages of an iterator's log from an ordinal on; None stands for one that was erased."""
    if iterator.over == Over.ITERATOR:
        return [*store.read_output(_above(store, iterator).id, ordinal, limits)]
    first = iterator.base + ordinal + 1
    # Ask first: an event that comes meanwhile is not erased.
    head = store.stream_head(*source_of(iterator))
    page = store.read_stream(*source_of(iterator), first, None, limits)
    events = page.events
    following = page.next
    if page.end:
        # The page does not say what was erased behind its last event.
        following = max(following, min(head + 1, first + limits.events_max))
    bodies = [event.body for event in events] if iterator.over == Over.LOG else list(map(event_message, events))
    if len(events) == following - first:
        return [*bodies]
    found: list[bytes | None] = [None] * (following - first)
    for event, body in zip(events, bodies, strict=True):
        found[event.sequence - first] = body
    return found


def message_position(store: Store, iterator: IteratorState, ordinal: int) -> int | None:
    """Where in the history the event of a message is; None if it is erased, or an item of another iterator."""
    if iterator.over == Over.ITERATOR:
        return None
    sequence = iterator.base + ordinal + 1
    found = store.read_stream(*source_of(iterator), sequence, sequence, ReadLimits(events_max=1)).events
    return found[0].position if found else None


def _above(store: Store, iterator: IteratorState) -> IteratorState:
    above = store.iterator(iterator.log)
    if above is None:
        raise IteratorNotFound(iterator.name)
    return above


def event_message(event: Event) -> bytes:
    """An event of a stream as the map that functions get."""
    fields = {
        "id": str(event.uuid),
        "stream": event.stream,
        "sequence": event.sequence,
        "timestamp": (event.ticks - UNIX_EPOCH_TICKS) / TICKS_PER_SECOND,
        "ticks": event.ticks,
        "type": event.type,
        "headers": event.headers,
    }
    try:
        return cbor2.dumps({**fields, "body": _parsed(event.body)})
    except (ValueError, RecursionError, cbor2.CBOREncodeError):
        # Not JSON, or JSON that CBOR cannot say, such as half a surrogate pair, or Lua cannot hold.
        try:
            return cbor2.dumps({**fields, "body": event.body.decode()})
        except UnicodeDecodeError:
            return cbor2.dumps({**fields, "body": event.body})


def _parsed(body: bytes) -> Any:
    """The value of a JSON object or array; raises ValueError if it is neither, or nested too deep."""
    if body.lstrip()[:1] not in (b"{", b"["):
        raise ValueError
    value = json.loads(body.decode())
    # Every level has its bracket. Most bodies have so few that there is nothing to look for.
    if body.count(b"[") + body.count(b"{") >= BODY_DEPTH_MAX and _is_deeper(value, BODY_DEPTH_MAX):
        raise ValueError
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether there are more levels than so many. An integer beyond 64 bits is one too: CBOR has it as a tag."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not isinstance(value, dict | list) and not (isinstance(value, int) and value.bit_length() > 64):
        return False
    return not levels or any(_is_deeper(one, levels - 1) for one in inner)


# --- steps ----------------------------------------------------------------------------------------------------

Read = Callable[[int, ReadLimits], list[bytes | None]]
"""Messages from an ordinal on: None for one that was erased, `b""` for one that the iterator above failed at."""
Leave = Callable[[Any], object]
"""Sends the answer of a step that hangs, and ends the process."""


class Point(NamedTuple):
    """A place in an iterator's work: `source` messages have given `output` items.

    A reduce has its accumulator then, a filter the ordinal of the last message that passed.
    """

    source: int = 0
    output: int = 0
    state: bytes | None = None
    passed: int | None = None


class StepLimits(NamedTuple):
    """The limits of one step: how long it goes on, how many items it gives and of how many bytes, and Lua's own."""

    seconds_max: float
    items_max: int
    bytes_max: int
    lua: LuaLimits


def check_function(_store: Store, kind: IteratorKind, function: str, lua: LuaLimits) -> None:
    """Raise FunctionFailed if a function does not compile."""
    program_of(kind, function, lua)


@lru_cache(maxsize=PROGRAMS_MAX)
def program_of(kind: IteratorKind, function: str, lua: LuaLimits) -> Program:
    return Program(kind, function, lua)


def find_iterator(store: Store, name: str, number: int, view: View | None = None) -> IteratorState:
    """The iterator of a name and number, or IteratorNotFound."""
    iterator = visible_iterator(store, name, view)
    if iterator.id != number:
        raise IteratorNotFound(name)
    return iterator


class FunctionRun(ABC):
    """A step in progress. A subclass says what it does with the output."""

    def __init__(
        self,
        iterator: IteratorState | BuildStart,
        start: Point,
        step: StepLimits,
        read: Read,
        leave: Leave = answer_and_leave,
    ) -> None:
        self._function = iterator
        self._read = read
        self._leave = leave
        self.kind = IteratorKind(iterator.kind)
        self.step = step
        self.point = start
        self.messages = 0
        self.items: list[bytes] = []
        self.size = 0
        self.error: FunctionFailed | None = None
        self._deadline = time.monotonic() + step.seconds_max
        self._ahead: list[bytes | None] = []

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def run_some(self, count: int) -> bool:
        """Run up to so many messages from where this is; False if there are none."""
        if not self._ahead:
            limits = ReadLimits(events_max=count, bytes_max=self.step.bytes_max)
            self._ahead = self._read(self.point.source, limits)
        before = self.point.source
        self._run(self._ahead[:count])
        found = bool(self._ahead)
        self._ahead = self._ahead[self.point.source - before :]
        return found

    def _run(self, messages: list[bytes | None]) -> None:
        """Run messages up to the first that is missing, or pass over those that are."""
        state = self.point.state
        there = list(takewhile(bool, messages))
        erased = sum(1 for _ in takewhile(lambda message: message is None, messages))
        if there:
            try:
                program = program_of(self.kind, self._function.function, self.step.lua)
            except FunctionFailed as error:
                return self.take(RunResult([], state, error))
            return self.take(program.run(_in_time(there, self._deadline), state, self._stuck))
        if erased:
            # A map gives null, a filter nothing, a reduce its accumulator.
            output = None if self.kind == IteratorKind.FILTER else state or NULL
            return self.take(RunResult([output] * erased, state, None))
        if messages:
            reason = f"iterator '{self._function.log}' failed at this message"
            self.take(RunResult([], state, FunctionFailed(reason)))
        return None

    def _stuck(self, ran: RunResult) -> None:
        """Called by another thread while this one hangs inside Lua."""
        self.take(ran)
        self._leave(self.answer())

    def fail(self, error: FunctionFailed) -> None:
        """Set the error of the current message, with its number."""
        error.message = self.point.source
        self.error = error

    @abstractmethod
    def take(self, ran: RunResult) -> None:
        """Move past the messages that were run, up to the error if there is one."""

    @abstractmethod
    def answer(self) -> Any: ...


def _in_time(messages: Sequence[bytes | None], deadline: float) -> Iterator[bytes]:
    """Messages until the deadline; at least one."""
    for message in messages:
        yield message or b""
        if time.monotonic() > deadline:
            return


# --- builds ---------------------------------------------------------------------------------------------------


class Built(NamedTuple):
    """A step of a build: its output, that `read` of `head` messages are read now, and why it ended.

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
        return self.output.next_source != self.output.source


class IndexProgress(NamedTuple):
    """How many messages an indexed iterator has read, of how many."""

    read: int
    head: int


def look_at_index(store: Store, name: str, number: int) -> IndexProgress:
    iterator = find_iterator(store, name, number)
    return IndexProgress(iterator.source - iterator.base, count_messages(store, iterator))


def build_index(store: Store, name: str, number: int, step: StepLimits) -> Built:
    return _BuildRun(store, find_iterator(store, name, number), step).go()


class OutputRun(FunctionRun):
    """Collects the output of messages, in order, for an iterator's stored output."""

    errors = 0
    timed_out = False

    def take(self, ran: RunResult) -> None:
        """For a map, an empty item takes the place of an error, and the step goes on."""
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
        self.errors += 1
        self.timed_out = isinstance(error, FunctionTimedOut)


class _BuildRun(OutputRun):
    def __init__(self, store: Store, iterator: IteratorState, step: StepLimits) -> None:
        start = Point(iterator.source - iterator.base, iterator.outputs, iterator.state)
        super().__init__(iterator, start, step, partial(read_source, store, iterator))
        self._iterator = iterator
        self._head = count_messages(store, iterator)

    def go(self) -> Built:
        """Run until there is enough to write, an error, or no time left."""
        while self.run_some(MESSAGES_PER_RUN):
            is_full = len(self.items) >= self.step.items_max or self.size >= self.step.bytes_max
            if is_full or self.error is not None or self.timed_out or self.is_late:
                break
        return self.answer()

    def answer(self) -> Built:
        iterator, read = self._iterator, self.point.source
        output = WriteOutput(iterator.id, iterator.source, iterator.base + read, tuple(self.items), self.point.state)
        head = max(self._head, read)
        return Built(output, read, head, self.messages, self.errors, self.error, self.timed_out)


# --- pages ----------------------------------------------------------------------------------------------------

ItemEncoder = Callable[[list[bytes]], bytes | list[bytes]]
"""A codec's function that turns items into what its wire sends: one payload, or frames."""


class PageRequest(NamedTuple):
    """Items from an ordinal on, or the last one, of the messages before `target`; None is as many as there are."""

    ordinal: int
    target: int | None
    present: ItemEncoder | None


class Paged(NamedTuple):
    """A step towards a page: the page, or an error, or neither; then the next step continues from the last point."""

    page: ItemPage | None
    points: list[Point]
    target: int
    messages: int
    error: FunctionFailed | None


class KeptPage(NamedTuple):
    """A stored page, None if it begins where a map failed; and whether it is short because the index ends there."""

    page: ItemPage | None
    end: bool


def run_page(store: Store, name: str, number: int, start: Point, wanted: PageRequest, step: StepLimits) -> Paged:
    """A page of an iterator by running its function, or a step towards it."""
    iterator = find_iterator(store, name, number)
    target = count_messages(store, iterator) if wanted.target is None else wanted.target
    paged = _PageRun(store, iterator, start, wanted, target, step).go()
    # The messages are this iterator's only if it still exists now.
    _count_kept(store, name, number)
    return paged


def last_of_map(store: Store, name: str, number: int, wanted: PageRequest) -> PageRequest:
    """The last item of a map by its ordinal, which is that of the last message."""
    target = count_messages(store, find_iterator(store, name, number))
    return wanted._replace(ordinal=max(0, target - 1), target=target)


def read_kept(store: Store, name: str, number: int, wanted: PageRequest, limits: ReadLimits) -> KeptPage:
    """A page of an indexed iterator's stored output."""
    # Count first: output that is added meanwhile must not hide the end.
    count = _count_kept(store, name, number)
    ordinal = wanted.ordinal
    if ordinal == LAST:
        ordinal, limits = max(0, count - 1), limits._replace(events_max=1)
    items = store.read_output(number, ordinal, limits)
    _count_kept(store, name, number)
    end = len(items) < limits.events_max and ordinal + len(items) >= count
    if FAILED in items:
        items, end = items[: items.index(FAILED)], False
        if not items:
            return KeptPage(None, end)
    return KeptPage(_presented(items, wanted.present), end)


def _count_kept(store: Store, name: str, number: int) -> int:
    """How many items are kept, or IteratorNotFound."""
    count = store.output_count(number)
    if count is None:
        raise IteratorNotFound(name)
    return count


def _presented(items: list[bytes], present: ItemEncoder | None) -> ItemPage:
    return ItemPage(items) if present is None else ItemPage([], Encoded(len(items), present(items)))


class _PageRun(FunctionRun):
    def __init__(
        self, store: Store, iterator: IteratorState, start: Point, wanted: PageRequest, target: int, step: StepLimits
    ) -> None:
        super().__init__(iterator, start, step, partial(read_source, store, iterator))
        self._store, self._iterator = store, iterator
        self._wanted = wanted
        self._target = target
        self._points: list[Point] = []
        self._full = False
        self._late = False
        self._previous: bytes | None = None

    def go(self) -> Paged:
        """Run until there is a page, an error, or no time left."""
        while not self._full and self.error is None and self.point.source < self._target and not self._late:
            # As many messages as the page lacks items; a few more for a filter.
            count = self._wanted.ordinal + self.step.items_max - self.point.output
            if self.kind == IteratorKind.FILTER:
                count = max(count, MESSAGES_PER_RUN_MIN)
            if self._wanted.ordinal == LAST or count > MESSAGES_PER_RUN:
                count = MESSAGES_PER_RUN
            if not self.run_some(min(count, self._target - self.point.source)):
                break
            self._late = self.is_late
        return self.answer()

    def take(self, ran: RunResult) -> None:
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
        if self._full or (self.items and self.size + len(item) > self.step.bytes_max):
            self._full = True
            return False
        self.items.append(item)
        self.size += len(item)
        self._full = len(self.items) >= self.step.items_max
        return True

    def _stop_before(self, source: int, output: int, passed: int | None) -> None:
        """The page is full, and more was run than it holds: go on from here the next time."""
        state = self._previous if self.kind == IteratorKind.REDUCE else None
        # An item of null does not say whether the accumulator was nil; then the next page runs a few messages again.
        if state != NULL:
            self.point = Point(source, output, state, passed)

    def answer(self) -> Paged:
        items = self._final_item() if self._wanted.ordinal == LAST else self.items
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
        found = read_source(self._store, self._iterator, point.passed, ReadLimits(events_max=1))
        return [message for message in found if message]


# --- trials ---------------------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """The outputs of a function for some messages: one for each message that it ran on, None if a filter drops it or if
    it failed. `errors` are the failures, each with its message. The function did not run on messages behind the last.
    """

    outputs: list[bytes | None]
    errors: list[FunctionFailed]


def try_function(
    _store: Store, kind: IteratorKind, function: str, messages: list[bytes], seconds_max: float, lua: LuaLimits
) -> Tried:
    """Run a function on some messages, and keep nothing. A map goes on after one that failed, as in a build."""
    outputs: list[bytes | None] = []
    errors: list[FunctionFailed] = []
    state: bytes | None = None
    deadline = time.monotonic() + seconds_max

    def taken(ran: RunResult) -> None:
        outputs.extend(ran.outputs)
        if ran.error is not None:
            ran.error.message = len(outputs)
            errors.append(ran.error)
            outputs.append(None)

    def stuck(ran: RunResult) -> None:
        taken(ran)
        answer_and_leave(Tried(outputs, errors))

    while len(outputs) < len(messages) and time.monotonic() < deadline:
        # Compiled within the loop: a function that ran out of memory gets a new state.
        ran = program_of(kind, function, lua).run(_in_time(messages[len(outputs) :], deadline), state, stuck)
        taken(ran)
        state = ran.state
        if ran.error is not None and (kind != IteratorKind.MAP or isinstance(ran.error, FunctionTimedOut)):
            break
    return Tried(outputs, errors)


# --- summaries ------------------------------------------------------------------------------------------------


def show_log(store: Store, name: str, view: View | None = None) -> LogSummary:
    """A log and what is in it, or LogNotFound."""
    found = store.log(name)
    if found is None:
        raise LogNotFound(name)
    messages = store.stream_head(LOG_CONTEXT, name) - found.base
    return LogSummary(name, found.created, messages, found.bytes, list_iterators(store, name, view).names)


def show_iterator(store: Store, name: str, view: View | None = None) -> IteratorSummary:
    """An iterator and how far it is, or IteratorNotFound."""
    found = visible_iterator(store, name, view)
    return IteratorSummary(
        found.name,
        found.log,
        Over(found.over),
        IteratorKind(found.kind),
        found.function,
        found.indexed,
        found.created,
        found.outputs if found.indexed else None,
        # Count the messages after the state was read: there can only be more.
        max(0, count_messages(store, found) - (found.source - found.base)) if found.indexed else None,
    )
