"""Transports: how a client reaches a Penstock, over a socket or through an engine in its own process.

A transport connects on demand and reconnects after a loss. It sends each request once; `calls` decides about retries.
The MQ gate's transport is here. Those of ZeroMQ and of an engine in process (`zeromq`, `local`) import much, so
`transport_to` loads them on demand.
"""

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from struct import error as struct_error
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock import __version__
from penstock.client.hosts import Host, HostFailure, Hosts, attempt_error, host_urls, unanswered_error, unsent_error
from penstock.client.tls import (
    HANDSHAKE_ERRORS,
    LOOK_S_MAX,
    TlsOptions,
    alert_error,
    handshake_error,
    lenient,
    needs_another_look,
    plain_error,
    tls_options,
)
from penstock.client.tokens import Token, TokenRequest, token_request
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
    TlsFailed,
)
from penstock.model import Reply, Request
from penstock.mq import Ending, FrameTooLong, Message, MqClient, MqLimits, MqSession, Reason
from penstock.wire.codes import Res01Code
from penstock.wire.mqframe import SPEAKS_TLS, encode
from penstock.wire.res01.commands import VERSION, Hello
from penstock.wire.res01.dialects import OWN_TAG, Frames
from penstock.wire.res01.messages import (
    OWN_LARGE_TAG,
    append_message,
    fields_of,
    joined_bytes,
    large_frames,
    reply_of,
    split_fields,
)

PendingReply = asyncio.Future[Reply]

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
TOKENS: Final = "a token is passed as token=… or in PENSTOCK_TOKEN"
HELLO: Final = Hello(VERSION, f"penstock {__version__}")
"""The first request of every connection."""
WAYS: Final = "use penstock://HOST:PORT, zmq+tcp://HOST:PORT, sqlite:///DIR or postgresql://…"


class Channel(ABC):
    """The way of calls to one Penstock. Calls wait in these coroutines only.

    Those of a `Transport` suspend on its event loop. Those of `blocking.BlockingTransport` block and never suspend, so
    that calls over it need no event loop.
    """

    url: str
    token: TokenRequest | None = None
    """The token that it shows on each connection, right after the hello."""

    @abstractmethod
    def now(self) -> float:
        """The time of the clock of deadlines. Raises an error where the caller must not use this channel."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether `ready` would return at once, where that is known."""

    @abstractmethod
    async def ready(self, seconds: float) -> None:
        """Connect and wait for room to send. Raises CannotConnect, ClientClosed, or TimeoutError without room.

        Raises the server's error if it refuses the token, such as NotAuthenticated. Then there is no connection.
        """

    @abstractmethod
    async def exchange(self, request: Request, until: float) -> Reply:
        """Send a request once and wait for its reply. Raises the error in it, or TimeoutError at a time.

        Raises CannotConnect without a connection, and ConnectionLost if the connection ends before the reply. A request
        that cannot be encoded is InvalidRequest or LimitExceeded. Then nothing is sent.
        """

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, unless the channel is closed meanwhile."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Calls that still wait for a reply fail."""


class Transport(Channel):
    """A channel that belongs to one event loop: the first it was used on. Requests may be sent ahead."""

    losses = 0
    """How many connections were lost. While this stays the same, requests arrive in the order they were sent."""
    _own_loop: asyncio.AbstractEventLoop | None = None
    _closing: "asyncio.Future[None] | None" = None

    @abstractmethod
    def start(self, request: Request) -> PendingReply:
        """Send a request as `exchange` does; the future gets its reply or its error."""

    @abstractmethod
    def give_up(self, answer: PendingReply) -> None:
        """The caller does not wait for this answer any more."""

    def is_ready(self) -> bool:
        return False

    def now(self) -> float:
        loop = asyncio.get_running_loop()
        if self._own_loop is not loop:
            if self._own_loop is not None:
                raise InvalidRequest("event loop", "is not the one that this client was first used on")
            self._own_loop, self._closing = loop, loop.create_future()
        return loop.time()

    async def exchange(self, request: Request, until: float) -> Reply:
        answer = self.start(request)
        try:
            return await within(answer, until)
        except (TimeoutError, asyncio.CancelledError):
            self.give_up(answer)
            raise

    async def pause(self, seconds: float) -> None:
        assert self._closing is not None
        await asyncio.wait({self._closing}, timeout=seconds)

    def end_pauses(self) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)


async def within(answer: PendingReply, until: float) -> Reply:
    """The reply in a future, or TimeoutError at a time of the loop's clock."""
    # Not `asyncio.timeout_at`: it takes longer than everything else here.
    timer = answer.get_loop().call_at(until, expire, answer)
    try:
        return await answer
    finally:
        timer.cancel()


def expire(answer: PendingReply) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def abandon(answer: PendingReply) -> None:
    """Ignore a future. An error that it has already counts as seen."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


class PendingReplies:
    """Numbers the requests of one connection, and gives each answer to the future that waits for it.

    One timer serves the deadlines of all requests: it is set to the first of them, and then looks at all.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._pending: dict[bytes, tuple[Request, PendingReply, float]] = {}
        self._number_of: dict[PendingReply, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def send(self, request: Request, send: Callable[[Request, bytes], None], until: float = inf) -> PendingReply:
        """Send a request through `send`, with its number; a future for its reply, or for TimeoutError at a time."""
        number = b"%d" % next(self._numbers)
        # Add the future last: a request that cannot be sent is not pending.
        send(request, number)
        answer: PendingReply = self._loop.create_future()
        self._pending[number] = request, answer, until
        self._number_of[answer] = number
        if until < self._timer_at:
            self._set_timer(until)
        return answer

    def receive(self, number: bytes, payload: Frames) -> None:
        """Resolve the future of an answer, given the frames after its RequestId. An unknown number is ignored."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        request, answer, _ = pending
        del self._number_of[answer]
        if answer.done():
            return
        outcome = reply_of(request, payload)
        if isinstance(outcome, PenstockError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def forget(self, answer: PendingReply) -> None:
        number = self._number_of.pop(answer, None)
        if number is not None:
            del self._pending[number]

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: every future that still waits gets an error."""
        pending, self._pending, self._number_of = self._pending, {}, {}
        self._set_timer(inf)
        for _, answer, _ in pending.values():
            if not answer.done():
                answer.set_exception(error())

    def __len__(self) -> int:
        return len(self._pending)

    def _set_timer(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = None if until == inf else self._loop.call_at(until, self._expire_due)

    def _expire_due(self) -> None:
        """Requests whose deadline has come get TimeoutError. The timer is set to the next deadline."""
        # The loop may call a timer a little before its time.
        due = self._timer_at
        for answer in [answer for _, answer, until in self._pending.values() if until <= due]:
            self.forget(answer)
            expire(answer)
        self._set_timer(min((until for _, _, until in self._pending.values()), default=inf))


class Link(ABC):
    def __init__(self, host: Host) -> None:
        self.host = host
        self.url = host.url
        self.pending = PendingReplies()
        self.welcome: PendingReply | None = None
        """The server's answer to the hello. Calls do not wait for it."""

    def greet(self) -> None:
        """Send the hello, which must be the first request."""
        self.welcome = self.pending.send(HELLO, self.send)
        self.welcome.add_done_callback(abandon)

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether something can be sent."""

    @abstractmethod
    def send(self, request: Request, number: bytes) -> None:
        """Send a request, and its number with it."""

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once, where that is known."""
        return False

    @abstractmethod
    async def room(self) -> None:
        """Wait while much of what was sent before is still here."""

    @abstractmethod
    def end(self) -> None:
        """Begin to close it. The transport hears of it when it is gone."""

    @abstractmethod
    async def close(self) -> None:
        """Close it; returns when it is gone."""

    def ended(self) -> PenstockError:
        """The error for requests that the connection's end leaves without an answer."""
        return ConnectionLost(self.url, "the client was closed")


class NetworkTransport(Transport):
    """Has a link, or makes one. Calls that need a connection at the same time wait for the same attempt."""

    def __init__(self, hosts: Hosts, token: TokenRequest | None = None) -> None:
        self.url = hosts.url
        self.hosts = hosts
        self.token = token
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._connecting: asyncio.Task[Link | Exception] | None = None
        self._failures: list[HostFailure] = []
        """Those of the last attempt, or of the one under way: also of the host that has not answered yet."""
        self._closed = False

    @abstractmethod
    async def connect(self, host: Host) -> Link:
        """A new connection. Raises OSError, CannotConnect or TlsFailed."""

    def is_ready(self) -> bool:
        link = self._link
        return link is not None and link.is_open and link.has_room

    async def ready(self, seconds: float) -> None:
        if self._closed:
            raise ClientClosed
        link = self._link if self._link is not None and self._link.is_open else None
        if link is None or not link.has_room:
            async with asyncio.timeout(seconds) as limit:
                await (link or await self._connected(limit)).room()

    async def _connected(self, limit: asyncio.Timeout) -> Link:
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._attempt(limit.when() or inf))
        try:
            # Shielded: a caller that gives up does not cancel the attempt for the others.
            found = await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if limit.expired():
                raise self.hosts.error(self._failures) from None
            if self._closed:
                raise ClientClosed from None
            raise
        if isinstance(found, Exception):
            raise found
        return found

    async def _attempt(self, until: float) -> Link | Exception:
        """One attempt to connect. A failure is a result: perhaps no caller waits for it any more."""
        try:
            if self._link is not None:
                # It is about to close. Its answers must not be awaited while others are sent elsewhere.
                self.lost(self._link)
            self._failures = []
            for host, end in self.hosts.turns(until, asyncio.get_running_loop().time):
                self._failures.append((host, unanswered_error(host)))
                found = await self._reached(host, end)
                if isinstance(found, Link):
                    self.hosts.use(host)
                    self._link = found
                    return found
                if not isinstance(found, CannotConnect | TlsFailed):
                    return found
                self._failures[-1] = host, found
            return self.hosts.error(self._failures)
        finally:
            self._connecting = None

    async def _reached(self, host: Host, until: float) -> Link | Exception:
        """A connection to one host, which has taken the token."""
        link: Link | None = None
        failure: Exception
        try:
            token = None if self.token is None else self.token()
            async with asyncio.timeout_at(until):
                link = await self.connect(host)
                self._links.add(link)
                # The next sender notices a link that was lost again at once.
                if link.is_open:
                    link.greet()
                    if token is not None:
                        await link.pending.send(token, link.send)
            return link
        except (OSError, PenstockError) as error:
            failure = attempt_error(host, error)
        except Exception as error:  # noqa: BLE001 - of the caller's function that returns a token
            failure = error
        if link is not None:
            # Without a wait: it may be a host that answers nothing, and others are left to try.
            link.end()
            self.lost(link)
        return failure

    def lost(self, link: Link) -> None:
        """A connection is gone: fail the requests that wait for its answers."""
        if link is self._link:
            self.losses += 1
            self._link = None
            self.hosts.leave(link.host)
        link.pending.fail(link.ended)

    def gone(self, link: Link) -> None:
        self.lost(link)
        self._links.discard(link)

    def start(self, request: Request, until: float = inf) -> PendingReply:
        link = self._link
        if self._closed:
            raise ClientClosed
        if link is None:
            raise CannotConnect(self.url, "there is no connection")
        if not link.is_open:
            raise unsent_error(link.ended())
        return link.pending.send(request, link.send, until)

    async def exchange(self, request: Request, until: float) -> Reply:
        answer = self.start(request, until)
        try:
            return await answer
        except asyncio.CancelledError:
            self.give_up(answer)
            raise

    def give_up(self, answer: PendingReply) -> None:
        abandon(answer)
        if self._link is not None:
            self._link.pending.forget(answer)

    async def close(self) -> None:
        self._closed = True
        self.end_pauses()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for link in list(self._links):
            await link.close()
            self.gone(link)


# --- the MQ gate: `penstock://host:port` ------------------------------------------------------------------------


def request_message(request: Request, number: bytes, frame_bytes_max: int) -> bytes:
    """A request and its number as one message. Raises InvalidRequest or LimitExceeded.

    It is in frames if the request and its answer are sure to fit; in one long string otherwise.
    """
    message = append_message(request, number)
    if message is not None:
        return message
    fields = encoded_fields(request)
    fields.insert(1, number)
    if fields[0] in SMALL:
        try:
            return encode([OWN_TAG, *fields], frame_bytes_max)
        except FrameTooLong:
            pass
    if (size := joined_bytes(fields)) > MESSAGE_BYTES_MAX:
        raise LimitExceeded("mq_message_bytes_max", size, MESSAGE_BYTES_MAX)
    return encode([OWN_LARGE_TAG, *large_frames(fields, frame_bytes_max)], frame_bytes_max)


def encoded_fields(request: Request) -> Frames:
    """The command and the payload of a request. Raises InvalidRequest."""
    try:
        return fields_of(request)
    except (AttributeError, TypeError, ValueError, struct_error) as error:
        raise InvalidRequest(type(request).__name__, f"cannot be sent: {error}") from None


def split_answer(message: Message) -> tuple[bytes, Frames]:
    """The number of the request that a message answers, and the frames after it. Raises if it is malformed."""
    tag, *fields = message
    if tag == OWN_LARGE_TAG:
        fields = split_fields(fields)
    elif tag != OWN_TAG:
        raise InvalidRequest("protocol", f"is {tag[:16]!r}, not {OWN_TAG.decode()}")
    number, *payload = fields
    return number, payload


def ending_error(url: str, ending: Ending | None, mistake: str | None) -> PenstockError:
    """The error for requests that a connection's end leaves without an answer. `mistake`: of a malformed answer."""
    if mistake is not None:
        return AnswerMalformed(mistake)
    if ending is None or ending.reason is Reason.CLIENT_CLOSING:
        return ConnectionLost(url, "the client was closed")
    if ending.reason is Reason.CONNECTION_REFUSED:
        return CannotConnect(url, f"{ending}: it has too many connections, or too many from this address")
    if ending.why.endswith(SPEAKS_TLS):
        return plain_error(url)
    if ending.reason is not Reason.PROTOCOL_ERROR:
        return ConnectionLost(url, str(ending))
    if not ending.by_peer:
        return AnswerMalformed(ending.why)
    return Refused(Res01Code.MALFORMED, "the server ended the connection: it takes no such message, or none so large")


class MqTransport(NetworkTransport):
    def __init__(self, hosts: Hosts, token: TokenRequest | None = None, tls: TlsOptions | None = None) -> None:
        super().__init__(hosts, token)
        self.tls = tls

    async def connect(self, host: Host) -> Link:
        link = MqLink(self, host)
        if self.tls is None:
            await link.open(None)
            return link
        # Files may be renewed between two connections.
        context = self.tls.context(host.url)
        try:
            await link.open(context)
        except HANDSHAKE_ERRORS as error:
            seen = await self._look(host, lenient(context)) if needs_another_look(error) else None
            raise handshake_error(host.url, host.name, host.port, error, seen) from None
        return link

    async def _look(self, host: Host, context: ssl.SSLContext) -> dict[str, Any] | None:
        """The certificate of the server, if it is but for its name and time what it should be."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                _, writer = await asyncio.open_connection(host.name, host.port, ssl=context)
            found: dict[str, Any] | None = writer.get_extra_info("peercert")
            writer.transport.abort()
            return found
        return None


class MqLink(Link):
    session: MqClient

    def __init__(self, transport: MqTransport, host: Host) -> None:
        super().__init__(host)
        self._transport = transport
        self._mistake: str | None = None

    async def open(self, tls: ssl.SSLContext | None) -> None:
        name, port, _ = self.host
        self.session = await MqClient.connect(
            name, port, on_message=self.received, on_close=self.lost, limits=LIMITS, tls=tls
        )

    @property
    def is_open(self) -> bool:
        return self.session.ended is None

    @property
    def has_room(self) -> bool:
        return self.session.unsent_bytes <= UNSENT_BYTES_HIGH

    async def room(self) -> None:
        if not self.has_room:
            await self.session.drain()

    def send(self, request: Request, number: bytes) -> None:
        self.session.send_encoded(request_message(request, number, self.session.frame_bytes_max))

    def end(self) -> None:
        self.session.close()

    async def close(self) -> None:
        self.end()
        await self.session.gone()

    def received(self, session: MqSession, message: Message) -> None:
        """An answer has come. If it is malformed, nothing after it can be trusted."""
        try:
            number, payload = split_answer(message)
        except (InvalidRequest, LimitExceeded, ValueError) as error:
            self._mistake = str(error)
            session.close(Reason.PROTOCOL_ERROR)
            self._transport.lost(self)
        else:
            self.pending.receive(number, payload)

    def lost(self, _session: MqSession, _ending: Ending) -> None:
        self._transport.gone(self)

    def ended(self) -> PenstockError:
        failure = self.session.failure
        refused = None if failure is None else alert_error(self.url, failure)
        return refused or ending_error(self.url, self.session.ending, self._mistake)


# --- URLs -------------------------------------------------------------------------------------------------------


def transport_to(url: str, token: Token | None = None) -> Transport:
    """A transport to the server or store that a URL names. It connects later. Raises BadUrl.

    Without a token it shows that of `PENSTOCK_TOKEN`. A store itself asks for none: its files decide who may open it.
    """
    if not isinstance(url, str):
        raise BadUrl(repr(url), f"it is not a text; {WAYS}")
    if url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        if url == "sqlite:///":
            raise BadUrl(url, f"it names no directory; {WAYS}")
        from penstock.client.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(url)
    places = [_place(each) for each in host_urls(url)]
    scheme, options = places[0].scheme, places[0].options
    hosts = Hosts(url, [place.host for place in places])
    if scheme == "penstock":
        return MqTransport(hosts, token_request(url, token), options)
    from penstock.client.zeromq import ZeromqTransport  # noqa: PLC0415

    return ZeromqTransport(hosts, token_request(url, token), options)


class _Place(NamedTuple):
    """The parts of a URL with one host. `options` are those of TLS or CURVE."""

    scheme: str
    host: Host
    options: Any


def _place(url: str) -> _Place:
    # What is before the host may be a token: errors do not show it.
    shown = re.sub("//.*@", "//", url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(shown, str(error).lower()) from None
    if parts.scheme not in ("penstock", "zmq+tcp"):
        raise BadUrl(url, WAYS)
    if not parts.hostname:
        raise BadUrl(url, f"it names no host; {WAYS}")
    # So may be what is behind it.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.path.strip("/") or parts.fragment or parts.username is not None:
        raise BadUrl(shown, f"it has more than a host, a port and parameters; {TOKENS}")
    if parts.scheme == "zmq+tcp" and parts.query.startswith("tls"):
        raise BadUrl(shown, "only penstock:// has TLS; zmq+tcp:// has CURVE: ?curve_server_key=KEY")
    options: Any = None
    try:
        if parts.scheme == "penstock":
            options = tls_options(parts.query)
        elif parts.query:
            from penstock.client.curve import curve_options  # noqa: PLC0415

            options = curve_options(parts.query)
    except ValueError as error:
        raise BadUrl(shown, f"{error}; {TOKENS}") from None
    try:
        # The resolver would fail in the same way, with an error that does not name the address.
        parts.hostname.encode("idna")
    except UnicodeError:
        raise BadUrl(url, "its host is not a valid host name") from None
    if port == 0:
        raise BadUrl(url, "port 0 cannot be connected to")
    if port is None:
        port = MQ_PORT if parts.scheme == "penstock" else RES_PORT
    return _Place(parts.scheme, Host(parts.hostname, port, url), options)
