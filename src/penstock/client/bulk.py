"""Bulk appends: many commits in flight at once, up to a window.

Each commit is written once, however often connections are lost, and those of one stream in their order: after a loss
the client settles the commits in flight one by one before it sends new ones.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.client.calls import Calls, append_of
from penstock.client.transport import PendingReply, Transport, within
from penstock.errors import (
    CannotConnect,
    ConnectionLost,
    DeadlinePassed,
    InvalidRequest,
    NotAppended,
    NotAuthenticated,
    PenstockError,
)
from penstock.model import ANY, Append, Appended, NewEvent

Commit = tuple[str, str, Sequence[NewEvent]] | tuple[str, str, Sequence[NewEvent], int]
"""Context, stream, events; and the expected version, if it is not ANY."""
Written = Callable[[int, Appended], object]
"""Called with the number of each commit, from 0 on, and its result."""

WINDOW_BYTES_MAX: Final = 16 << 20
"""Bytes of events in flight at once. A larger commit goes alone."""
AHEAD: Final = 256
"""Commits of the plain client that wait for the loop to take them."""
UNSENT: Final = -1
"""Instead of a number of losses: one of the commits in the window could not be sent."""


@dataclass(frozen=True, slots=True)
class ManyAppended:
    """The result of many commits. `position` is the highest that one of them got."""

    commits: int
    events: int
    position: int


class _InFlight(NamedTuple):
    number: int
    request: Append
    size: int
    answer: PendingReply | None
    until: float


class BulkAppend:
    def __init__(self, calls: Calls, in_flight: int, timeout: float | None, written: Written | None) -> None:
        if in_flight < 1:
            raise InvalidRequest("in_flight", f"is {in_flight}; it must be at least 1")
        self._calls = calls
        assert isinstance(calls.transport, Transport)
        self._transport = calls.transport
        self._in_flight = in_flight
        self._seconds = calls.timeout if timeout is None else timeout
        self._written = written
        self._window: deque[_InFlight] = deque()
        self._window_bytes = 0
        self._losses = self._transport.losses
        self._begun = 0
        self._commits = self._events = self._position = 0

    async def run(self, commits: Iterable[Commit] | AsyncIterable[Commit]) -> ManyAppended:
        """Append them all. Raises NotAppended at the first that fails, once no commit is in flight any more."""
        self._calls.check()
        try:
            if isinstance(commits, AsyncIterable):
                async for commit in commits:
                    await self._send(commit)
            else:
                for commit in commits:
                    await self._send(commit)
            while self._window:
                await self._settle_oldest()
        except asyncio.CancelledError:
            for each in self._window:
                if each.answer is not None:
                    self._transport.give_up(each.answer)
            self._window.clear()
            raise
        except Exception as error:
            # The caller's iterable or callback has failed. Wait for the commits in flight all the same.
            try:
                while self._window:
                    await self._settle_oldest()
            except NotAppended as failed:
                error.add_note(str(failed))
            raise
        return ManyAppended(self._commits, self._events, self._position)

    async def _send(self, commit: Commit) -> None:
        """Send a commit as soon as the window has room."""
        number = self._begun
        self._begun += 1
        try:
            request = append_of(*commit)
        except (PenstockError, TypeError) as error:
            raise await self._failure(number, error) from error
        size = request.columns().size
        while self._window and (
            len(self._window) >= self._in_flight
            or self._window_bytes + size > WINDOW_BYTES_MAX
            or self._losses != self._transport.losses
        ):
            await self._settle_oldest()
        if not self._window:
            # The commits of a lost connection are settled.
            self._losses = self._transport.losses
        if request.expected == ANY and self._calls.retries:
            mark = self._calls.producer_ids.take()
            request = Append(request.context, request.stream, request.events, ANY, mark)
        answer: PendingReply | None = None
        try:
            answer = self._transport.start(request)
        except CannotConnect:
            self._losses = UNSENT
        except PenstockError as error:
            raise await self._failure(number, error) from error
        until = asyncio.get_running_loop().time() + self._seconds
        self._window.append(_InFlight(number, request, size, answer, until))
        self._window_bytes += size

    async def _settle_oldest(self) -> None:
        """Wait for the result of the oldest commit, and resend it if that is needed and safe."""
        oldest = self._window.popleft()
        self._window_bytes -= oldest.size
        try:
            appended = await self._outcome(oldest)
        except PenstockError as error:
            self._give_back(oldest, error)
            raise await self._failure(oldest.number, error) from error
        self._done(oldest, appended)

    async def _outcome(self, oldest: _InFlight) -> Appended:
        lost: ConnectionLost | None = None
        if oldest.answer is not None:
            try:
                return await self._answer(oldest.answer, oldest.until)
            except PenstockError as error:
                if isinstance(error, NotAuthenticated):
                    # Those behind it were refused as well, until the next attempt has shown the token again.
                    self._losses = UNSENT
                    if self._calls.may_authenticate and not await self._is_overtaken(oldest):
                        return await self._calls.ask(oldest.request, Appended, self._seconds)
                    raise
                if not self._calls.may_retry(oldest.request, error) or await self._is_overtaken(oldest):
                    raise
                lost = error if isinstance(error, ConnectionLost) else None
        return await self._calls.ask(oldest.request, Appended, self._seconds, lost=lost)

    async def _answer(self, answer: PendingReply, until: float) -> Appended:
        try:
            # Many answers come at once: most are here when it is their turn.
            reply = answer.result() if answer.done() else await within(answer, until)
        except TimeoutError:
            self._transport.give_up(answer)
            raise DeadlinePassed(self._seconds, True) from None
        assert isinstance(reply, Appended)
        return reply

    async def _is_overtaken(self, oldest: _InFlight) -> bool:
        """Whether a later commit of the same stream was written: then it is too late for this one."""
        place = oldest.request.context, oldest.request.stream
        for each in [each for each in self._window if (each.request.context, each.request.stream) == place]:
            try:
                if each.answer is not None:
                    await self._answer(each.answer, each.until)
                    return True
            except PenstockError:
                continue
        return False

    def _done(self, each: _InFlight, appended: Appended) -> None:
        self._give_back(each)
        self._commits += 1
        self._events += appended.count
        self._position = max(self._position, appended.position + appended.count - 1)
        if self._written is not None:
            # A callback that fails is not called again.
            written, self._written = self._written, None
            written(each.number, appended)
            self._written = written

    def _give_back(self, each: _InFlight, error: PenstockError | None = None) -> None:
        if each.request.mark is not None:
            self._calls.producer_ids.give_back(each.request.mark, error)

    async def _failure(self, number: int, error: Exception) -> NotAppended:
        """Wait for the commits in flight, and resend none of them; then name the one that failed."""
        window, self._window = self._window, deque()
        self._window_bytes = 0
        for each in window:
            try:
                if each.answer is not None:
                    self._done(each, await self._answer(each.answer, each.until))
            except PenstockError as failed:
                self._give_back(each, failed)
        return NotAppended(number, self._commits, str(error))


class CommitFeed:
    """Takes the commits of `append_many` from the program's thread to the loop, and the results back.

    The program's own code (its iterable, its callback) runs in its own thread, so that it may use the client itself.
    """

    def __init__(self, written: Written | None) -> None:
        self._written = written
        self._commits: deque[Commit] = deque()
        self._results: deque[tuple[int, Appended]] = deque()
        self._room = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._is_complete = False
        self._is_over = False

    # -- in the program's thread

    def fill(self, commits: Iterable[Commit]) -> None:
        """Feed all commits as fast as the loop takes them, until the run is over."""
        for commit in commits:
            with self._room:
                self._room.wait_for(lambda: len(self._commits) < AHEAD or self._is_over)
                self._commits.append(commit)
                if len(self._commits) == 1:
                    self._wake()
            self.report()
            if self._is_over:
                return

    def complete(self) -> None:
        with self._room:
            self._is_complete = True
            self._wake()

    def report(self) -> None:
        """Call the program's callback with the results since the last time."""
        while self._results:
            number, appended = self._results.popleft()
            if self._written is not None:
                self._written(number, appended)

    def _wake(self) -> None:
        if self._loop is not None and self._news is not None and not self._is_over:
            self._loop.call_soon_threadsafe(self._news.set)

    # -- on the loop

    def add_result(self, number: int, appended: Appended) -> None:
        self._results.append((number, appended))

    def over(self) -> None:
        """The run has ended: it takes no more commits."""
        with self._room:
            self._is_over = True
            self._room.notify_all()

    async def __aiter__(self) -> AsyncIterator[Commit]:
        with self._room:
            self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        while taken := await self._take(self._news):
            for commit in taken:
                yield commit

    async def _take(self, news: asyncio.Event) -> deque[Commit]:
        """All commits that wait, or the next ones; none at the end."""
        while True:
            with self._room:
                news.clear()
                if self._commits or self._is_complete:
                    taken, self._commits = self._commits, deque()
                    self._room.notify_all()
                    return taken
            await news.wait()
