"""Many commits, pipelined: sent without waiting for one another's answers, but never more than a window at once.

Each is written once, however often connections are lost, and those of one stream in their order: after a loss, what was
under way is settled one by one before anything new is sent.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.client.calls import Calls, within
from penstock.client.commits import append_of
from penstock.client.lanes import Lane
from penstock.client.transport import Answer
from penstock.errors import CannotConnect, ConnectionLost, DeadlinePassed, InvalidRequest, NotAppended, PenstockError
from penstock.model import ANY, Append, Appended, NewEvent

Commit = tuple[str, str, Sequence[NewEvent]] | tuple[str, str, Sequence[NewEvent], int]
"""Context, stream, events; and the expected version, if it is not ANY."""
Written = Callable[[int, Appended], object]
"""Told the number of each commit, from 0 on, and what came of it."""

WINDOW_BYTES_MAX: Final = 16 << 20
"""Bytes of events that are under way at once; a commit that is larger goes alone."""
EVENT_BYTES: Final = 100
"""What an event counts for besides its body."""
UNSENT: Final = -1
"""In place of the number of losses: one of those under way could not be sent."""


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
    size: int
    lane: Lane | None
    answer: Answer | None
    until: float


class Many:
    """One run of many appends."""

    def __init__(self, calls: Calls, in_flight: int, timeout: float | None, written: Written | None) -> None:
        if in_flight < 1:
            raise InvalidRequest("in_flight", f"is {in_flight}; it must be at least 1")
        self._calls = calls
        self._transport = calls.transport
        self._in_flight = in_flight
        self._seconds = calls.timeout if timeout is None else timeout
        self._written = written
        self._window: deque[_Flight] = deque()
        self._window_bytes = 0
        self._losses = self._transport.losses
        self._begun = 0
        self._commits = self._events = self._position = 0

    async def run(self, commits: Iterable[Commit] | AsyncIterable[Commit]) -> ManyAppended:
        """Append them all. Raises NotAppended at the first that fails, once nothing is under way any more."""
        self._calls.check()
        try:
            if isinstance(commits, AsyncIterable):
                async for commit in commits:
                    await self._take(commit)
            else:
                for commit in commits:
                    await self._take(commit)
            await self._settle_all()
        except asyncio.CancelledError:
            self._give_up()
            raise
        except Exception as error:
            await self._end(error)
            raise
        return ManyAppended(self._commits, self._events, self._position)

    async def _end(self, error: Exception) -> None:
        """Those who gave the commits, or are told of them, have failed: see what is under way to its end."""
        try:
            await self._settle_all()
        except NotAppended as failed:
            error.add_note(str(failed))

    def _give_up(self) -> None:
        for flight in self._window:
            if flight.answer is not None:
                self._transport.give_up(flight.answer)
        self._window.clear()

    # -- sending

    async def _take(self, commit: Commit) -> None:
        """Send a commit as soon as it may be."""
        number = self._begun
        self._begun += 1
        try:
            request = append_of(*commit)
        except (PenstockError, TypeError) as error:
            raise await self._failure(number, error) from error
        size = _size(request.events)
        while self._window and self._must_wait(size):
            await self._settle()
        if not self._window:
            # All that a lost connection has left behind is settled.
            self._losses = self._transport.losses
        try:
            self._begin(number, request, size)
        except PenstockError as error:
            raise await self._failure(number, error) from error

    def _must_wait(self, size: int) -> bool:
        """Whether something must be settled first: the window is full, or a connection was lost."""
        return (
            len(self._window) >= self._in_flight
            or self._window_bytes + size > WINDOW_BYTES_MAX
            or self._losses != self._transport.losses
        )

    def _begin(self, number: int, request: Append, size: int) -> None:
        lane = None
        if request.expected == ANY and self._calls.retries:
            lane = self._calls.lanes.take()
            request = Append(request.context, request.stream, request.events, ANY, lane.mark())
        answer: Answer | None = None
        try:
            answer = self._transport.start(request)
        except CannotConnect:
            self._losses = UNSENT
        until = asyncio.get_running_loop().time() + self._seconds
        self._window.append(_Flight(number, request, size, lane, answer, until))
        self._window_bytes += size

    # -- settling

    async def _settle_all(self) -> None:
        while self._window:
            await self._settle()

    async def _settle(self) -> None:
        """See the oldest commit to its end."""
        flight = self._window.popleft()
        self._window_bytes -= flight.size
        try:
            appended = await self._outcome(flight)
        except PenstockError as error:
            self._give_back(flight, error)
            raise await self._failure(flight.number, error) from error
        self._done(flight, appended)

    async def _outcome(self, flight: _Flight) -> Appended:
        lost: ConnectionLost | None = None
        if flight.answer is not None:
            try:
                return await self._answer(flight, flight.answer)
            except PenstockError as error:
                if not self._calls.may_ask_again(flight.request, error) or await self._is_overtaken(flight):
                    raise
                lost = error if isinstance(error, ConnectionLost) else None
        return await self._calls.ask(flight.request, Appended, self._seconds, lost=lost)

    async def _answer(self, flight: _Flight, answer: Answer) -> Appended:
        try:
            # Many are answered at once: most of them have their answers when it is their turn.
            reply = answer.result() if answer.done() else await within(answer, flight.until)
        except TimeoutError:
            self._transport.give_up(answer)
            raise DeadlinePassed(self._seconds, True) from None
        assert isinstance(reply, Appended)
        return reply

    async def _is_overtaken(self, flight: _Flight) -> bool:
        """Whether a later commit of the same stream was written: then it is too late for this one."""
        place = flight.request.context, flight.request.stream
        later = [each for each in self._window if (each.request.context, each.request.stream) == place]
        for each in later:
            try:
                if each.answer is not None:
                    await self._answer(each, each.answer)
                    return True
            except PenstockError:
                continue
        return False

    def _done(self, flight: _Flight, appended: Appended) -> None:
        if flight.lane is not None:
            self._calls.lanes.give_back(flight.lane)
        self._commits += 1
        self._events += appended.count
        self._position = max(self._position, appended.position + appended.count - 1)
        if self._written is not None:
            # One that fails is not called again.
            written, self._written = self._written, None
            written(flight.number, appended)
            self._written = written

    def _give_back(self, flight: _Flight, error: PenstockError) -> None:
        if flight.lane is not None:
            self._calls.lanes.give_back(flight.lane, error)

    async def _failure(self, number: int, error: Exception) -> NotAppended:
        """Let those that were sent come to their end, and send nothing again; then say which one failed."""
        window, self._window = self._window, deque()
        self._window_bytes = 0
        for flight in window:
            try:
                if flight.answer is not None:
                    self._done(flight, await self._answer(flight, flight.answer))
            except PenstockError as failed:
                self._give_back(flight, failed)
        return NotAppended(number, self._commits, str(error))


def _size(events: Sequence[NewEvent]) -> int:
    if len(events) == 1:
        return len(events[0].body) + EVENT_BYTES
    return sum(len(event.body) for event in events) + EVENT_BYTES * len(events)
