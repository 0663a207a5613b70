"""How a client reaches a Penstock: a request goes in, its reply comes out. Over a socket, or to an engine in process.

A transport connects when it is asked to, and anew when a connection was lost; it never asks twice. What may be asked
again is decided by `calls`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from struct import error as struct_error
from typing import Final

from penstock import __version__
from penstock.errors import CannotConnect, ClientClosed, ConnectionLost, InvalidRequest, PenstockError
from penstock.model import Reply, Request
from penstock.wire.res01.commands import VERSION, Hello
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import fields_of, reply_of

Answer = asyncio.Future[Reply]


class Transport(ABC):
    """One way to one Penstock. It belongs to one event loop."""

    url: str
    losses = 0
    """How many connections have been lost. While this stays the same, requests arrive in the order they were sent."""

    @abstractmethod
    async def ready(self, seconds: float) -> None:
        """Be connected, with room to send. Raises CannotConnect, TimeoutError when there is no room, ClientClosed."""

    @abstractmethod
    def start(self, request: Request) -> Answer:
        """Send a request; its reply, or its error, comes as a future. Raises CannotConnect if that cannot be now.

        A request that cannot be put into words is InvalidRequest or LimitExceeded; then nothing is sent.
        """

    @abstractmethod
    def give_up(self, answer: Answer) -> None:
        """Nobody waits for this one any more."""

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind. Whoever still waits for a reply is told."""


def abandon(answer: Answer) -> None:
    """Nobody will look at this future; if it has failed already, that is nobody's concern."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


def settle(answer: Answer, outcome: Reply | PenstockError) -> None:
    """Put what came of it into a future, unless whoever waited for it has given up."""
    if answer.done():
        return
    if isinstance(outcome, PenstockError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


class Waiting:
    """Gives requests their ids, and answers to those who wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._asked: dict[bytes, tuple[Request, Answer]] = {}

    def send(self, request: Request, send: Callable[[Frames], None]) -> Answer:
        """Have a request sent: its command, an id for it, and its payload. A future for its reply."""
        number = b"%d" % next(self._numbers)
        # Whatever raises here raises before anybody waits.
        fields = encoded(request)
        fields.insert(1, number)
        send(fields)
        answer: Answer = self._loop.create_future()
        self._asked[number] = request, answer
        return answer

    def answered(self, number: bytes, payload: Frames) -> None:
        """An answer has come: its frames after the RequestId. One that nobody waits for is nothing."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked[1].done():
            settle(asked[1], reply_of(asked[0], payload))

    def forget(self, answer: Answer) -> None:
        """Nobody waits for this one any more."""
        for number, asked in self._asked.items():
            if asked[1] is answer:
                del self._asked[number]
                return

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: nobody will be answered, and each is told."""
        asked, self._asked = self._asked, {}
        for _, answer in asked.values():
            settle(answer, error())

    def __len__(self) -> int:
        return len(self._asked)


def encoded(request: Request) -> Frames:
    """The command and the payload of a request. What is no part of one is InvalidRequest."""
    try:
        return fields_of(request)
    except (AttributeError, TypeError, ValueError, struct_error) as error:
        raise InvalidRequest(type(request).__name__, f"cannot be sent: {error}") from None


CONNECT_S_MAX: Final = 10.0
"""How long one attempt to connect may take; another one follows while there is time."""


class Link(ABC):
    """One connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.waiting = Waiting()
        self.welcome: Answer | None = None
        """What the server says of itself: nobody has to wait for it."""

    def greet(self) -> None:
        """Say hello, before anything else is sent."""
        self.welcome = self.waiting.send(Hello(VERSION, f"penstock {__version__}"), self.send)
        self.welcome.add_done_callback(abandon)

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether something can be sent."""

    @abstractmethod
    def send(self, fields: Frames) -> None:
        """Send a request: its command, its id, its payload."""

    @abstractmethod
    async def room(self) -> None:
        """Wait until the server has taken most of what was sent, if that was much."""

    @abstractmethod
    async def close(self) -> None:
        """Close it; returns when it is gone."""

    def ended(self) -> PenstockError:
        """What those are told whose answers have not come."""
        return ConnectionLost(self.url, "the client was closed")


class NetworkTransport(Transport):
    """Has a link, or makes one. Nobody's attempt to connect disturbs another's: they wait for the same one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._connecting: asyncio.Task[Link | CannotConnect] | None = None
        self._closed = False

    @abstractmethod
    async def connect(self) -> Link:
        """A new connection. Raises OSError or CannotConnect."""

    async def ready(self, seconds: float) -> None:
        """Connect unless there is a connection, and wait for room in it."""
        if self._closed:
            raise ClientClosed
        async with asyncio.timeout(seconds) as limit:
            link = self._link if self._link is not None and self._link.is_open else await self._connected(limit)
            await link.room()

    async def _connected(self, limit: asyncio.Timeout) -> Link:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._attempt())
        try:
            # Who gives up does not take the attempt away from others.
            found = await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if limit.expired():
                raise CannotConnect(self.url, "nobody answers") from None
            if self._closed:
                raise ClientClosed from None
            raise
        if isinstance(found, CannotConnect):
            raise found
        return found

    async def _attempt(self) -> Link | CannotConnect:
        """One attempt to connect. Its failure is a result: perhaps nobody waits for it any more."""
        try:
            if self._link is not None:
                # It is about to be closed. Its answers must not be awaited while others are sent elsewhere.
                self.lost(self._link)
            async with asyncio.timeout(CONNECT_S_MAX):
                link = await self.connect()
            self._links.add(link)
            # One that was lost again at once is found out by whoever sends over it.
            if link.is_open:
                link.greet()
            self._link = link
            return link
        except TimeoutError:
            return CannotConnect(self.url, "nobody answers")
        except OSError as error:
            return CannotConnect(self.url, (error.strerror or str(error)).lower())
        except CannotConnect as error:
            return error
        finally:
            self._connecting = None

    def lost(self, link: Link) -> None:
        """A connection is gone: tell those who wait for its answers."""
        if link is self._link:
            self.losses += 1
            self._link = None
        link.waiting.fail(link.ended)

    def gone(self, link: Link) -> None:
        """Nothing is left of a connection."""
        self.lost(link)
        self._links.discard(link)

    def start(self, request: Request) -> Answer:
        """Send a request with those that are under way."""
        link = self._link
        if self._closed:
            raise ClientClosed
        if link is None:
            raise CannotConnect(self.url, "there is no connection")
        if not link.is_open:
            raise _unsent(link.ended())
        return link.waiting.send(request, link.send)

    def give_up(self, answer: Answer) -> None:
        """Nobody waits for this one any more."""
        abandon(answer)
        if self._link is not None:
            self._link.waiting.forget(answer)

    async def close(self) -> None:
        """Say goodbye."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for link in list(self._links):
            await link.close()
            self.gone(link)


def _unsent(error: PenstockError) -> PenstockError:
    """What the end of a connection means for a request that was not sent over it."""
    return CannotConnect(error.url, error.reason) if isinstance(error, ConnectionLost) else error
