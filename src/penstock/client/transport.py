"""Transports: how a client reaches a Penstock, over a socket or through an engine in its own process.

A transport connects on demand and reconnects after a loss. It sends each request once; `calls` decides about retries.
The MQ gate's transport is here. Those of ZeroMQ and of an engine in process (`zeromq`, `local`) import much, so
`transport_to` loads them on demand.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from struct import error as struct_error
from typing import Final
from urllib.parse import urlsplit

from penstock import __version__
from penstock.errors import (
    AnswerMalformed,
    BadUrl,
    CannotConnect,
    ClientClosed,
    ConnectionLost,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    Refused,
)
from penstock.model import Reply, Request
from penstock.mq import Ending, FrameTooLong, Message, MqClient, MqLimits, MqSession, Reason
from penstock.wire.codes import Res01Code
from penstock.wire.mqframe import split_frames
from penstock.wire.res01.commands import VERSION, Hello
from penstock.wire.res01.dialects import OWN_TAG, Frames
from penstock.wire.res01.messages import OWN_LARGE_TAG, fields_of, join_fields, reply_of, split_fields

PendingReply = asyncio.Future[Reply]

CONNECT_S_MAX: Final = 10.0
"""How long one attempt to connect may take. Another one follows while the call has time left."""
SMALL: Final = frozenset((b"AB", b"TB"))
"""Commands whose answers always fit into frames, whatever the store holds."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Bytes of one request: what a server accepts by default."""
UNSENT_BYTES_HIGH: Final = 1 << 20
"""When more bytes than this wait to be sent, calls wait before they send."""
LIMITS: Final = MqLimits(message_bytes_max=1 << 30, unsent_bytes_max=1 << 30)
"""Pages may be large, and many threads may send large commits at once."""
MQ_PORT: Final = 8472
RES_PORT: Final = 8471
WAYS: Final = "use penstock://HOST:PORT, zmq+tcp://HOST:PORT, sqlite:///DIR or postgresql://…"


class Transport(ABC):
    """One way to one Penstock. It belongs to one event loop."""

    url: str
    losses = 0
    """How many connections were lost. While this stays the same, requests arrive in the order they were sent."""

    @abstractmethod
    async def ready(self, seconds: float) -> None:
        """Connect and wait for room to send. Raises CannotConnect, ClientClosed, or TimeoutError without room."""

    @abstractmethod
    def start(self, request: Request) -> PendingReply:
        """Send a request; the future gets its reply or its error. Raises CannotConnect without a connection.

        A request that cannot be encoded is InvalidRequest or LimitExceeded. Then nothing is sent.
        """

    @abstractmethod
    def give_up(self, answer: PendingReply) -> None:
        """The caller does not wait for this answer any more."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Calls that still wait for a reply fail."""


def abandon(answer: PendingReply) -> None:
    """Ignore a future. An error that it has already counts as seen."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


class PendingReplies:
    """Numbers the requests of one connection, and gives each answer to the future that waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._pending: dict[bytes, tuple[Request, PendingReply]] = {}

    def send(self, request: Request, send: Callable[[Frames], None]) -> PendingReply:
        """Send a request through `send` (its command, its number, its payload); a future for its reply."""
        try:
            fields = fields_of(request)
        except (AttributeError, TypeError, ValueError, struct_error) as error:
            raise InvalidRequest(type(request).__name__, f"cannot be sent: {error}") from None
        number = b"%d" % next(self._numbers)
        fields.insert(1, number)
        # Add the future last: a request that cannot be sent is not pending.
        send(fields)
        answer: PendingReply = self._loop.create_future()
        self._pending[number] = request, answer
        return answer

    def receive(self, number: bytes, payload: Frames) -> None:
        """Resolve the future of an answer, given the frames after its RequestId. An unknown number is ignored."""
        pending = self._pending.pop(number, None)
        if pending is None or pending[1].done():
            return
        outcome = reply_of(pending[0], payload)
        if isinstance(outcome, PenstockError):
            pending[1].set_exception(outcome)
        else:
            pending[1].set_result(outcome)

    def forget(self, answer: PendingReply) -> None:
        for number, pending in self._pending.items():
            if pending[1] is answer:
                del self._pending[number]
                return

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: every future that still waits gets an error."""
        pending, self._pending = self._pending, {}
        for _, answer in pending.values():
            if not answer.done():
                answer.set_exception(error())

    def __len__(self) -> int:
        return len(self._pending)


class Link(ABC):
    def __init__(self, url: str) -> None:
        self.url = url
        self.pending = PendingReplies()
        self.welcome: PendingReply | None = None
        """The server's answer to the hello. Calls do not wait for it."""

    def greet(self) -> None:
        """Send the hello, which must be the first request."""
        self.welcome = self.pending.send(Hello(VERSION, f"penstock {__version__}"), self.send)
        self.welcome.add_done_callback(abandon)

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether something can be sent."""

    @abstractmethod
    def send(self, fields: Frames) -> None:
        """Send a request: its command, its number, its payload."""

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once, where that is known."""
        return False

    @abstractmethod
    async def room(self) -> None:
        """Wait while much of what was sent before is still here."""

    @abstractmethod
    async def close(self) -> None:
        """Close it; returns when it is gone."""

    def ended(self) -> PenstockError:
        """The error for requests that the connection's end leaves without an answer."""
        return ConnectionLost(self.url, "the client was closed")


class NetworkTransport(Transport):
    """Has a link, or makes one. Calls that need a connection at the same time wait for the same attempt."""

    def __init__(self, url: str, host: str, port: int) -> None:
        self.url = url
        self._host = host
        self._port = port
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._connecting: asyncio.Task[Link | CannotConnect] | None = None
        self._closed = False

    @abstractmethod
    async def connect(self) -> Link:
        """A new connection. Raises OSError or CannotConnect."""

    async def ready(self, seconds: float) -> None:
        if self._closed:
            raise ClientClosed
        link = self._link if self._link is not None and self._link.is_open else None
        if link is None or not link.has_room:
            async with asyncio.timeout(seconds) as limit:
                await (link or await self._connected(limit)).room()

    async def _connected(self, limit: asyncio.Timeout) -> Link:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._attempt())
        try:
            # Shielded: a caller that gives up does not cancel the attempt for the others.
            found = await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if limit.expired():
                raise CannotConnect(self.url, "the server does not answer") from None
            if self._closed:
                raise ClientClosed from None
            raise
        if isinstance(found, CannotConnect):
            raise found
        return found

    async def _attempt(self) -> Link | CannotConnect:
        """One attempt to connect. A failure is a result: perhaps no caller waits for it any more."""
        try:
            if self._link is not None:
                # It is about to close. Its answers must not be awaited while others are sent elsewhere.
                self.lost(self._link)
            async with asyncio.timeout(CONNECT_S_MAX):
                link = await self.connect()
            self._links.add(link)
            # The next sender notices a link that was lost again at once.
            if link.is_open:
                link.greet()
            self._link = link
            return link
        except TimeoutError:
            return CannotConnect(self.url, "the server does not answer")
        except OSError as error:
            return CannotConnect(self.url, (error.strerror or str(error)).lower())
        except CannotConnect as error:
            return error
        finally:
            self._connecting = None

    def lost(self, link: Link) -> None:
        """A connection is gone: fail the requests that wait for its answers."""
        if link is self._link:
            self.losses += 1
            self._link = None
        link.pending.fail(link.ended)

    def gone(self, link: Link) -> None:
        self.lost(link)
        self._links.discard(link)

    def start(self, request: Request) -> PendingReply:
        link = self._link
        if self._closed:
            raise ClientClosed
        if link is None:
            raise CannotConnect(self.url, "there is no connection")
        if not link.is_open:
            error = link.ended()
            # The request was not sent, so its outcome is known.
            raise CannotConnect(error.url, error.reason) if isinstance(error, ConnectionLost) else error
        return link.pending.send(request, link.send)

    def give_up(self, answer: PendingReply) -> None:
        abandon(answer)
        if self._link is not None:
            self._link.pending.forget(answer)

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for link in list(self._links):
            await link.close()
            self.gone(link)


# --- the MQ gate: `penstock://host:port` ------------------------------------------------------------------------


class MqTransport(NetworkTransport):
    async def connect(self) -> Link:
        link = MqLink(self)
        link.session = await MqClient.connect(
            self._host, self._port, on_message=link.received, on_close=link.lost, limits=LIMITS
        )
        return link


class MqLink(Link):
    session: MqClient

    def __init__(self, transport: MqTransport) -> None:
        super().__init__(transport.url)
        self._transport = transport
        self._mistake: str | None = None

    @property
    def is_open(self) -> bool:
        return self.session.ended is None

    @property
    def has_room(self) -> bool:
        return self.session.unsent_bytes <= UNSENT_BYTES_HIGH

    async def room(self) -> None:
        if not self.has_room:
            await self.session.drain()

    def send(self, fields: Frames) -> None:
        """In frames if the request and its answer are sure to fit; in one long string otherwise."""
        if fields[0] in SMALL:
            try:
                self.session.send([OWN_TAG, *fields])
            except FrameTooLong:
                pass
            else:
                return
        content = join_fields(fields)
        if len(content) > MESSAGE_BYTES_MAX:
            raise LimitExceeded("mq_message_bytes_max", len(content), MESSAGE_BYTES_MAX)
        self.session.send([OWN_LARGE_TAG, *split_frames(content, self.session.frame_bytes_max)])

    async def close(self) -> None:
        self.session.close()
        await self.session.gone()

    def received(self, session: MqSession, message: Message) -> None:
        """An answer has come. If it is malformed, nothing after it can be trusted."""
        tag, *fields = message
        try:
            if tag == OWN_LARGE_TAG:
                fields = split_fields(fields)
            elif tag != OWN_TAG:
                raise InvalidRequest("protocol", f"is {tag[:16]!r}, not {OWN_TAG.decode()}")
            number, *payload = fields
        except (InvalidRequest, LimitExceeded, ValueError) as error:
            self._mistake = str(error)
            session.close(Reason.PROTOCOL_ERROR)
            self._transport.lost(self)
        else:
            self.pending.receive(number, payload)

    def lost(self, _session: MqSession, _ending: Ending) -> None:
        self._transport.gone(self)

    def ended(self) -> PenstockError:
        ending = self.session.ending
        if self._mistake is not None:
            return AnswerMalformed(self._mistake)
        if ending is None or ending.reason is Reason.CLIENT_CLOSING:
            return super().ended()
        if ending.reason is Reason.CONNECTION_REFUSED:
            return CannotConnect(self.url, f"{ending}: it has too many connections, or too many from this address")
        if ending.reason is not Reason.PROTOCOL_ERROR:
            return ConnectionLost(self.url, str(ending))
        if not ending.by_peer:
            return AnswerMalformed(ending.why)
        return Refused(
            Res01Code.MALFORMED, "the server ended the connection: it takes no such message, or none so large"
        )


# --- URLs -------------------------------------------------------------------------------------------------------


def transport_to(url: str) -> Transport:
    """A transport to the server or store that a URL names. It connects later. Raises BadUrl."""
    if not isinstance(url, str):
        raise BadUrl(repr(url), f"it is not a text; {WAYS}")
    if url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        if url == "sqlite:///":
            raise BadUrl(url, f"it names no directory; {WAYS}")
        from penstock.client.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(url, str(error).lower()) from None
    if parts.scheme not in ("penstock", "zmq+tcp"):
        raise BadUrl(url, WAYS)
    if not parts.hostname:
        raise BadUrl(url, f"it names no host; {WAYS}")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise BadUrl(url, "it has more than a host and a port")
    try:
        # The resolver would fail in the same way, with an error that does not name the address.
        parts.hostname.encode("idna")
    except UnicodeError:
        raise BadUrl(url, "its host is not a valid host name") from None
    if port == 0:
        raise BadUrl(url, "port 0 cannot be connected to")
    if parts.scheme == "penstock":
        return MqTransport(url, parts.hostname, MQ_PORT if port is None else port)
    from penstock.client.zeromq import ZeromqTransport  # noqa: PLC0415

    return ZeromqTransport(url, parts.hostname, RES_PORT if port is None else port)
