"""Many commits, pipelined: sent without waiting for one another's answers, but never more than a window at once.

Each is written once, however often connections are lost, and those of one stream in their order: after a loss, what was
under way is settled one by one before anything new is sent.
"""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.client.calls import DOUBTFUL, Calls
from penstock.client.lanes import Lane
from penstock.client.transport import Answer
from penstock.errors import ConnectionLost, DeadlinePassed, NotAppended, PenstockError
from penstock.model import ANY, Append, Appended, NewEvent

Commit = tuple[str, str, Sequence[NewEvent]] | tuple[str, str, Sequence[NewEvent], int]
"""Context, stream, events; and the expected version, if it is not ANY."""
Written = Callable[[int, Appended], object]
"""Told the number of each commit, from 0 on, and what came of it."""


@dataclass(frozen=True, slots=True)
class ManyAppended:
    """What many commits came to. `position` is the highest that one of them got."""

    commits: int
    events: int
    position: int


class _Flight(NamedTuple):
    """A commit that is under way."""

    number: int
    request: Append
    lane: Lane | None
    answer: Answer | None


class Many:
    """One run of many appends."""

    def __init__(self, calls: Calls, in_flight: int, timeout: float | None, written: Written | None) -> None:
        self._calls = calls
        self._in_flight = in_flight
        self._timeout = timeout
        self._written = written
        self._window: deque[_Flight] = deque()
        self._commits = self._events = self._position = 0

    async def run(self, commits: Iterable[Commit] | AsyncIterable[Commit]) -> ManyAppended:
        """Append them all. Raises NotAppended at the first that fails, once nothing is under way any more."""
        index = 0
        await self._calls.transport.ready(self._calls.timeout if self._timeout is None else self._timeout)
        async for commit in _each(commits):
            while len(self._window) >= self._in_flight:
                await self._settle()
            self._begin(index, commit)
            index += 1
        while self._window:
            await self._settle()
        return ManyAppended(self._commits, self._events, self._position)

    def _begin(self, index: int, commit: Commit) -> None:
        request = Append(commit[0], commit[1], tuple(commit[2]), commit[3] if len(commit) > 3 else ANY)
        lane = None
        if request.expected == ANY and self._calls.retries:
            lane = self._calls.lanes.take()
            request = replace(request, mark=lane.mark())
        try:
            answer: Answer | None = self._calls.transport.start(request)
        except ConnectionLost:
            answer = None
        self._window.append(_Flight(index, request, lane, answer))

    async def _settle(self) -> None:
        """See the oldest commit to its end."""
        flight = self._window.popleft()
        try:
            appended = await self._outcome(flight)
        except PenstockError as error:
            await self._fail(flight, error)
            raise
        if flight.lane is not None:
            self._calls.lanes.give_back(flight.lane)
        self._count(flight.number, appended)

    async def _outcome(self, flight: _Flight) -> Appended:
        if flight.answer is not None:
            try:
                reply = await self._calls.within(flight.answer, self._timeout)
            except DOUBTFUL as error:
                if not self._calls.may_ask_again(flight.request, error):
                    raise
            else:
                assert isinstance(reply, Appended)
                return reply
        # What came after it may be lost too: nothing new is sent until all of it is settled, in order.
        appended = await self._calls.ask(flight.request, Appended, self._timeout)
        await self._settle_lost()
        return appended

    async def _settle_lost(self) -> None:
        while self._window and (self._window[0].answer is None or self._window[0].answer.done()):
            await self._settle()

    def _count(self, index: int, appended: Appended) -> None:
        self._commits += 1
        self._events += appended.count
        self._position = max(self._position, appended.position + appended.count - 1)
        if self._written is not None:
            self._written(index, appended)

    async def _fail(self, failed: _Flight, error: PenstockError) -> None:
        """Let what is under way come to its end, then say which one failed."""
        if isinstance(error, NotAppended):
            return
        if failed.lane is not None and not isinstance(error, ConnectionLost | DeadlinePassed):
            self._calls.lanes.give_back(failed.lane)
        window, self._window = self._window, deque()
        for flight in window:
            try:
                appended = await self._outcome(flight)
            except PenstockError:
                continue
            self._count(flight.number, appended)
        raise NotAppended(failed.number, self._commits, str(error)) from error


async def _each(commits: Iterable[Commit] | AsyncIterable[Commit]) -> AsyncIterator[Commit]:
    if isinstance(commits, AsyncIterable):
        async for commit in commits:
            yield commit
    else:
        for commit in commits:
            yield commit
