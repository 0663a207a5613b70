"""Calls with a deadline: connected, sent, answered, and where that is safe tried again until the time is up.

What only reads, or gives the same result when it is done twice, is asked again when a connection was lost. An append
without an expected version is marked by its producer, so that the store recognises it when it comes again.
"""

import asyncio
import random
from dataclasses import replace
from typing import Final, TypeVar

from penstock.client.lanes import Lanes
from penstock.client.transport import Answer, Transport
from penstock.errors import (
    Busy,
    CannotConnect,
    Closed,
    ConnectionLost,
    DeadlinePassed,
    PenstockError,
    WorkerDied,
)
from penstock.model import ANY, AddMessages, Append, Appended, DropIterator, Reply, Request, Transact

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 1.0
"""Between two attempts: twice as long each time, and not quite the same for all clients."""
SILENCE_S_MAX: Final = 5.0
"""How long an answer may take where nobody says that a connection is lost, before it is asked for again."""

R = TypeVar("R", bound=Reply)

NOTHING_DONE: Final = (Busy, CannotConnect, Closed, WorkerDied)
"""Errors after which anything may be asked again."""
DOUBTFUL: Final = (*NOTHING_DONE, ConnectionLost, DeadlinePassed)
"""Errors that have nothing to do with what was asked for."""


class Calls:
    """What all calls of a client share."""

    def __init__(self, transport: Transport, timeout: float, retries: bool) -> None:
        self.transport = transport
        self.timeout = timeout
        self._retries = retries
        self._lanes = Lanes()

    async def ask(self, request: Request, kind: type[R], timeout: float | None = None, wait: float = 0.0) -> R:
        """The reply to a request. `wait` is how long the server itself may wait before it answers."""
        seconds = self.timeout if timeout is None else timeout
        reply = await _Attempts(self, request, seconds + wait, wait).run()
        assert isinstance(reply, kind), f"{type(reply).__name__} came where {kind.__name__} was wanted"
        return reply

    async def append(self, request: Append, timeout: float | None = None) -> Appended:
        """Append once, however often it has to be sent."""
        if request.expected != ANY or not self._retries:
            return await self.ask(request, Appended, timeout)
        with self._lanes.mark() as mark:
            return await self.ask(replace(request, mark=mark), Appended, timeout)

    async def transact(self, request: Transact, kind: type[R], timeout: float | None = None) -> R:
        """Carry a transaction out once, however often it has to be sent."""
        if not self._retries:
            return await self.ask(request, kind, timeout)
        with self._lanes.mark() as mark:
            return await self.ask(replace(request, mark=mark), kind, timeout)

    async def within(self, answer: Answer, timeout: float | None) -> Reply:
        """The reply that a future will have, if it has it in time."""
        seconds = self.timeout if timeout is None else timeout
        try:
            return await asyncio.wait_for(answer, min(seconds, SILENCE_S_MAX) if self.transport.is_silent else seconds)
        except TimeoutError:
            raise DeadlinePassed(seconds, True) from None

    def may_ask_again(self, request: Request, error: PenstockError) -> bool:
        """Whether a request that ended like this may be asked again."""
        if not self._retries:
            return False
        return isinstance(error, NOTHING_DONE) or self.may_repeat(request)

    def may_repeat(self, request: Request) -> bool:
        """Whether this may be asked again when nobody knows whether it was done."""
        if not self._retries:
            return False
        if isinstance(request, Append):
            return request.expected != ANY or request.mark is not None
        if isinstance(request, Transact):
            return request.mark is not None
        return not isinstance(request, AddMessages | DropIterator)

    @property
    def lanes(self) -> Lanes:
        """The producer marks of this client."""
        return self._lanes

    @property
    def retries(self) -> bool:
        """Whether anything is tried again at all."""
        return self._retries


class _Attempts:
    """One call, attempt by attempt."""

    def __init__(self, calls: Calls, request: Request, seconds: float, wait: float) -> None:
        self._calls = calls
        self._request = request
        self._seconds = seconds
        self._silence = SILENCE_S_MAX + wait if calls.transport.is_silent else None
        self._until = asyncio.get_running_loop().time() + seconds
        self._was_sent = False
        self._reason = ""

    async def run(self) -> Reply:
        pause = PAUSE_S_MIN
        while True:
            try:
                return await self._attempt()
            except NOTHING_DONE as error:
                if not self._calls.retries:
                    raise
                self._reason = str(error)
                self._give_up_if_late(error)
            except (ConnectionLost, TimeoutError) as error:
                self._reason = str(error) or "the server is silent"
                if self._was_sent and not self._calls.may_repeat(self._request):
                    raise self._passed() if isinstance(error, TimeoutError) else error from None
                self._give_up_if_late(error)
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), max(0.0, self._left())))  # noqa: S311
            pause = min(2 * pause, PAUSE_S_MAX)

    async def _attempt(self) -> Reply:
        transport = self._calls.transport
        await transport.ready(max(0.0, self._left()))
        answer = transport.start(self._request)
        self._was_sent = True
        left = self._left() if self._silence is None else min(self._left(), self._silence)
        return await asyncio.wait_for(answer, max(0.0, left))

    def _left(self) -> float:
        return self._until - asyncio.get_running_loop().time()

    def _give_up_if_late(self, error: Exception) -> None:
        if self._left() > 0:
            return
        if isinstance(error, CannotConnect) and not self._was_sent:
            raise error from None
        raise self._passed() from None

    def _passed(self) -> DeadlinePassed:
        return DeadlinePassed(self._seconds, self._was_sent, self._reason)
