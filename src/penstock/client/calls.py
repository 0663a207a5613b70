"""Calls with a deadline: connected, sent, answered, and where that is safe tried again until the time is up.

Each request declares whether a repeat is harmless (`penstock.model.Repeat`). After a lost connection the client resends
only those requests. It puts a producer's mark on an append without an expected version, so that the store recognises a
repeat.

A call is in doubt once the connection was lost before its answer came. A refusal of the next attempt settles nothing:
the first attempt may be on disk. So the caller gets an error with an unknown outcome, and the refusal as its cause.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

from penstock.client.lanes import Lanes
from penstock.client.transport import Answer, Transport
from penstock.errors import (
    AnswerMalformed,
    CannotConnect,
    ClientClosed,
    ConnectionLost,
    DeadlinePassed,
    EventNotFound,
    InvalidRequest,
    MarkSuperseded,
    NotDurable,
    PenstockError,
    Retry,
    StorageFull,
    VersionConflict,
)
from penstock.model import ANY, Append, Appended, Repeat, ReplayQueue, Reply, Request, Transact

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 1.0
"""Between two attempts: twice as long each time, and not quite the same for all clients."""
ATTEMPT_S_MIN: Final = 0.02
"""With less time than this nothing is tried again: what is hardly sent when the time is up would only be in doubt."""
LASTING: Final = (EventNotFound, StorageFull, NotDurable)
"""Errors that do not pass by themselves in a moment: whoever asked decides whether to ask again."""
HONEST: Final = (ConnectionLost, MarkSuperseded)
"""Errors that claim no more than what is known: the outcome is unknown, or is no longer kept."""

R = TypeVar("R", bound=Reply)
T = TypeVar("T")


class Calls:
    """What all calls of a client share."""

    def __init__(self, transport: Transport, timeout: float, retries: bool) -> None:
        self.transport = transport
        self.timeout = timeout
        self.retries = retries
        """Whether anything is tried again at all."""
        self.lanes = Lanes()
        """The producer marks of this client."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self._closed = False
        self._begun: set[asyncio.Task[Any]] = set()

    # -- the client's life

    def check(self) -> None:
        """Raise ClientClosed if this client is closed."""
        if self._closed:
            raise ClientClosed

    async def open(self) -> None:
        """Be connected, or raise CannotConnect."""
        self._at_home()
        await self.transport.ready(self.timeout)

    async def close(self) -> None:
        """Tell all who wait, and leave nothing behind."""
        self._closed = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)
        for task in self._begun:
            task.cancel()
        if self._begun:
            await asyncio.wait(self._begun)
        await self.transport.close()

    def _at_home(self) -> asyncio.AbstractEventLoop:
        """The client's event loop: the first it was used on."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._closing = loop, loop.create_future()
        elif self._loop is not loop:
            raise InvalidRequest("event loop", "is not the one that this client was first used on")
        return loop

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something beside whoever asked for it; it ends with the client at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            # Perhaps nobody wants it any more; then its failure is nobody's concern.
            task.exception()

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt, unless the client is closed meanwhile."""
        assert self._closing is not None
        await asyncio.wait({self._closing}, timeout=seconds)

    # -- calls

    async def ask(
        self,
        request: Request,
        kind: type[R],
        timeout: float | None = None,
        wait: float = 0.0,
        lost: ConnectionLost | None = None,
    ) -> R:
        """The reply to a request. `wait` is how long the server itself may wait before it answers.

        `lost` is how an attempt ended that was made before: the call is in doubt from the beginning.
        """
        seconds = self.timeout if timeout is None else timeout
        reply = await _Attempts(self, request, self._at_home().time(), seconds + wait, lost).run()
        if not isinstance(reply, kind):
            raise AnswerMalformed(f"it is {type(reply).__name__}, where {kind.__name__} was asked for")
        return reply

    async def append(self, request: Append, timeout: float | None = None) -> Appended:
        """Append once, however often it has to be sent."""
        if request.expected != ANY or not self.retries:
            return await self.ask(request, Appended, timeout)
        with self.lanes.mark() as mark:
            return await self.ask(replace(request, mark=mark), Appended, timeout)

    async def transact(self, request: Transact | ReplayQueue, kind: type[R], timeout: float | None = None) -> R:
        """Carry a transaction out once, however often it has to be sent."""
        if not self.retries:
            return await self.ask(request, kind, timeout)
        with self.lanes.mark() as mark:
            return await self.ask(replace(request, mark=mark), kind, timeout)

    def may_ask_again(self, request: Request, error: PenstockError) -> bool:
        """Whether a request that ended like this may be asked again by itself."""
        if not self.retries:
            return False
        if isinstance(error, ConnectionLost):
            return request.may_repeat()
        return error.retry is Retry.SAFE and not isinstance(error, LASTING)


class _Attempts:
    """One call, attempt by attempt."""

    def __init__(self, calls: Calls, request: Request, now: float, seconds: float, lost: ConnectionLost | None) -> None:
        self._calls = calls
        self._request = request
        self._seconds = seconds
        self._until = now + seconds
        self._lost = lost
        """How an attempt ended that was sent and not answered: the call is in doubt."""
        self._reason = ""

    async def run(self) -> Reply:
        longest = PAUSE_S_MIN
        while True:
            pause = longest * random.uniform(0.5, 1.0)  # noqa: S311
            try:
                return await self._attempt()
            except PenstockError as error:
                self._judge(error)
                self._check_time(error, pause)
                await self._calls.pause(pause)
                # A pause may take longer than it should.
                self._check_time(error)
            longest = min(2 * longest, PAUSE_S_MAX)

    async def _attempt(self) -> Reply:
        transport = self._calls.transport
        try:
            await transport.ready(max(0.0, self._left()))
        except TimeoutError:
            self._reason = self._reason or "the server does not take what is sent"
            raise self._passed() from None
        answer = transport.start(self._request)
        try:
            # Not `wait_for`: under Python 3.11 it forgets a cancellation that comes together with the answer.
            return await within(answer, self._until)
        except TimeoutError:
            raise self._passed(was_sent=True) from None
        except ConnectionLost as lost:
            self._lost = lost
            raise
        finally:
            if answer.cancelled():
                transport.give_up(answer)

    def _judge(self, error: PenstockError) -> None:
        """Raise what cannot be mended by another attempt."""
        if isinstance(error, ClientClosed):
            self._closed(error)
        if isinstance(error, DeadlinePassed):
            raise error
        self._reason = self._why(error)
        if not self._calls.may_ask_again(self._request, error):
            if self._leaves_doubt(error):
                raise ConnectionLost(self._calls.transport.url, self._reason) from error
            raise error

    def _leaves_doubt(self, error: PenstockError) -> bool:
        """Whether an error says less than it seems to: an attempt before may have been carried out all the same."""
        if self._lost is None or self._request.repeat is Repeat.READS:
            return False
        if isinstance(error, VersionConflict):
            # Other events are where these belong: neither attempt was written, or ever will be.
            return error.actual < error.expected
        return not isinstance(error, HONEST)

    def _why(self, error: PenstockError) -> str:
        """The reason for an error message. In doubt, without the refusal's sentence: it may say "nothing was done"."""
        if self._lost is None:
            return str(error)
        if error is self._lost:
            return error.reason
        return f"{self._lost.reason}; then {error.reason if isinstance(error, CannotConnect) else type(error).__name__}"

    def _check_time(self, error: PenstockError, pause: float = 0.0) -> None:
        """Raise how the last attempt ended if there is no time for another one after a pause."""
        if self._left() - pause < ATTEMPT_S_MIN:
            if self._lost is None:
                raise error
            raise self._passed() from error

    def _closed(self, error: ClientClosed) -> NoReturn:
        """The client was closed meanwhile. What may have been written is said to be in doubt."""
        if self._leaves_doubt(error):
            raise ConnectionLost(self._calls.transport.url, "the client was closed")
        raise error

    def _left(self) -> float:
        return self._until - asyncio.get_running_loop().time()

    def _passed(self, *, was_sent: bool = False) -> DeadlinePassed:
        return DeadlinePassed(self._seconds, was_sent or self._lost is not None, self._reason)


def refusal_of(error: PenstockError) -> PenstockError:
    """The last thing that the server said: what left a call in doubt has it as its cause."""
    return error.__cause__ if isinstance(error.__cause__, PenstockError) else error


async def within(answer: Answer, until: float) -> Reply:
    """The reply that a future will have, if it has it before a time. Raises TimeoutError."""
    async with asyncio.timeout_at(until):
        return await answer
