"""Running an iterator's function over its log, in bounded steps: in the Lua workers, and wherever else one is built.

A step reads messages and runs them until it has what is wanted, comes to the end, meets an error, or has taken long
enough; then it says how far it came. Work done is kept: when a function is stuck for good, what came before it is
answered by another thread, and the process ends.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from penstock.engine.last_words import answer_and_leave
from penstock.errors import FunctionFailed, IteratorNotFound
from penstock.lua import LuaLimits, Program, Ran
from penstock.model import IteratorKind
from penstock.store import Store
from penstock.store.contract import IteratorState, ReadLimits

PROGRAMS_MAX: Final = 16
"""Compiled functions a worker keeps; each has a Lua state of its own."""
MESSAGES_PER_RUN: Final = 1024
NULL: Final = b"\xf6"


Read = Callable[[int, ReadLimits], list[bytes | None]]
"""Messages from an ordinal on: None for one that was erased, `b""` for one that the iterator above failed at."""
Leave = Callable[[Any], object]
"""Answers what a step has come to, and ends the process."""


class Function(Protocol):
    """What is run, and what it reads."""

    @property
    def log(self) -> str:
        """The name of what it reads."""

    @property
    def kind(self) -> str:
        """An IteratorKind."""

    @property
    def function(self) -> str:
        """The function, in Lua."""


class Point(NamedTuple):
    """A place in an iterator's work: `source` messages have given `output` items.

    A reduce has its accumulator then, a filter the ordinal of the last message that passed.
    """

    source: int = 0
    output: int = 0
    state: bytes | None = None
    passed: int | None = None


class Step(NamedTuple):
    """The limits of one step: how long it goes on, how many items it gives and of how many bytes, and Lua's own."""

    seconds_max: float
    items_max: int
    bytes_max: int
    lua: LuaLimits


def check(_store: Store, kind: IteratorKind, function: str, lua: LuaLimits) -> None:
    """Raise FunctionFailed if a function does not compile."""
    program_of(kind, function, lua)


@lru_cache(maxsize=PROGRAMS_MAX)
def program_of(kind: IteratorKind, function: str, lua: LuaLimits) -> Program:
    """A compiled function, the same one again if it was used lately."""
    return Program(kind, function, lua)


def find(store: Store, name: str, number: int) -> IteratorState:
    """The iterator of a name and number, or IteratorNotFound."""
    iterator = store.iterator(name)
    if iterator is None or iterator.id != number:
        raise IteratorNotFound(name)
    return iterator


class Running(ABC):
    """A step under way: where it is, and what it has. A subclass says what it does with what came of messages."""

    def __init__(
        self, iterator: Function, start: Point, step: Step, read: Read, leave: Leave = answer_and_leave
    ) -> None:
        self._function = iterator
        self._read = read
        self._leave = leave
        self.kind = IteratorKind(iterator.kind)
        self.step = step
        self.point = start
        self.messages = 0
        self.error: FunctionFailed | None = None
        self._deadline = time.monotonic() + step.seconds_max
        self._ahead: list[bytes | None] = []

    @property
    def is_late(self) -> bool:
        """Whether the step has taken long enough."""
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
        there = _count(messages, bool)
        if there:
            return self._run_all([message for message in messages[:there] if message])
        erased = _count(messages, lambda message: message is None)
        if erased:
            return self.take(Ran([self._of_erased()] * erased, self.point.state, None))
        if messages:
            reason = f"iterator '{self._function.log}' failed at this message"
            self.take(Ran([], self.point.state, FunctionFailed(reason)))
        return None

    def _run_all(self, messages: list[bytes]) -> None:
        state = self.point.state
        try:
            program = program_of(self.kind, self._function.function, self.step.lua)
        except FunctionFailed as error:
            return self.take(Ran([], state, error))
        return self.take(program.run(_in_time(messages, self._deadline), state, self._stuck))

    def _of_erased(self) -> bytes | None:
        """What an erased message gives: a map null, a filter nothing, a reduce the accumulator that it had."""
        if self.kind == IteratorKind.FILTER:
            return None
        return self.point.state or NULL

    def _stuck(self, ran: Ran) -> None:
        """Called by another thread while this one is lost inside Lua."""
        self.take(ran)
        self._leave(self.answer())

    def fail(self, error: FunctionFailed) -> None:
        """The message where this is failed. Its number in the log goes with the error."""
        error.message = self.point.source
        self.error = error

    @abstractmethod
    def take(self, ran: Ran) -> None:
        """Go on past what was run, and to the error that it came to, if any."""

    @abstractmethod
    def answer(self) -> Any:
        """What the job answers."""


def _count(messages: list[bytes | None], is_it: Any) -> int:
    """How many of the first messages are so."""
    return next((index for index, message in enumerate(messages) if not is_it(message)), len(messages))


def _in_time(messages: Sequence[bytes], deadline: float) -> Iterator[bytes]:
    """Messages that come to an end when time is up; the first one always comes."""
    for message in messages:
        yield message
        if time.monotonic() > deadline:
            return
