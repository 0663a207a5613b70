"""A connection to the MQ gate for plain calls: no event loop, no other thread between the caller and the socket.

Threads may share it. Each sends its own requests. One of those that wait for an answer leads: it reads for all of them,
and another one leads when its own answer has come. A waiting thread sends bytes that the system did not take at once.

An interrupt may come anywhere. It gives the caller's own request up. If it comes between two steps that belong
together, so that bytes of a message may be missing, the connection ends.
"""

import os
import ssl
import threading
import weakref
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any, Final

from penstock.client.hosts import Host, HostFailure, Hosts, attempt_error, unsent_error
from penstock.client.stream import Stream, TlsStream
from penstock.client.tls import (
    HANDSHAKE_ERRORS,
    LOOK_S_MAX,
    TlsOptions,
    alert_error,
    handshake_error,
    lenient,
    needs_another_look,
)
from penstock.client.tokens import TokenRequest
from penstock.client.transport import (
    HELLO,
    LIMITS,
    UNSENT_BYTES_HIGH,
    Channel,
    ending_error,
    request_message,
    split_answer,
)
from penstock.errors import CannotConnect, ClientClosed, InvalidRequest, LimitExceeded, PenstockError, TlsFailed
from penstock.interrupts import NOTICE_S_MAX
from penstock.model import Authenticate, Reply, Request
from penstock.mq import Ending, Reason
from penstock.tcp import CloseReason
from penstock.wire.mqframe import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    PING,
    Disconnected,
    Parser,
    Violation,
    disconnect,
)
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import reply_of

LOOK_S: Final = 0.01
"""How often a thread looks whether another one has connected, or has read its answer while it waits to send."""
SENT_BYTES_MAX: Final = 1 << 18
"""Bytes that are sent at once of those that waited."""
TORN: Final = "a call was interrupted in the middle of a message"


def nested_error() -> InvalidRequest:
    """The error of a call that would wait for the suspended call below it, which may have to read its answer."""
    return InvalidRequest("call", "was made by a signal handler inside a call of the same client; use another client")


class Waiter:
    """A thread that waits for an answer, or for room to send."""

    __slots__ = ("_bell", "number", "outcome")

    def __init__(self, number: bytes) -> None:
        self.number = number
        self.outcome: Frames | PenstockError | None = None
        self._bell: Any = None

    def sleep(self, seconds: float) -> None:
        """Wait until another thread calls `wake`. The first time it returns at once: the caller has to look again."""
        if self._bell is None:
            # Most threads never sleep: they lead.
            bell = threading.Lock()
            bell.acquire()
            self._bell = bell
        else:
            self._bell.acquire(timeout=seconds)

    def wake(self) -> None:
        if self._bell is not None:
            # It may be awake already.
            with suppress(RuntimeError):
                self._bell.release()


class Flag:
    """A `threading.Event` that an interrupt cannot break: inside that one, it can leave a lock taken for good."""

    __slots__ = ("_bell", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._ring()

    def wait(self, seconds: float) -> bool:
        """Whether it is set, at the latest after so many seconds. An interrupt can make others wait that long."""
        if not self._is_set and self._bell.acquire(timeout=seconds):
            # Wake the next one, too.
            self._ring()
        return self._is_set

    def _ring(self) -> None:
        with suppress(RuntimeError):
            self._bell.release()


class BlockingLink:
    """One connection. Its lock keeps steps that belong together from mixing; only the leader reads."""

    def __init__(self, host: Host, stream: Stream) -> None:
        self.host = host
        self.url = host.url
        self.pending: dict[bytes, Waiter] = {}
        self._stream = stream
        self._parser = Parser(LIMITS.message_frames_max, LIMITS.message_bytes_max)
        self._numbers = count(1)
        self._lock = threading.RLock()
        self._leader: Waiter | None = None
        self._inside: dict[Waiter, int] = {}
        """The waiters that may use the socket, with their threads. The last to leave an ended connection closes it."""
        self._for_room: set[Waiter] = set()
        self._out = bytearray()
        """Bytes that wait to be sent."""
        self._is_sending = self._is_reading = False
        """Set while bytes are between the socket and this object. If an interrupt leaves it set, they are lost."""
        self._cannot_send = False
        self._ending: Ending | None = None
        self._mistake: str | None = None
        self._refused: TlsFailed | None = None
        self._over = Flag()
        self._has_sent = True
        self._last_seen = self._moved = monotonic()
        self._send(request_message(HELLO, b"0", FRAME_BYTES_SENT_MAX))

    def keep(self) -> None:
        """Keep the connection while nothing is sent."""
        # The thread holds only a weak reference, so an unclosed client can be collected.
        arguments = weakref.ref(self), self._over
        threading.Thread(target=_keep, args=arguments, name="penstock-client-pings", daemon=True).start()

    # -- for calls

    def is_open(self) -> bool:
        """Whether something can be sent. Looks first for what has come meanwhile, such as the end."""
        with self._lock:
            self._look()
            return self._ending is None and not self._cannot_send

    def has_room(self) -> bool:
        return len(self._out) <= UNSENT_BYTES_HIGH

    def room(self, until: float) -> None:
        """Wait while much of what was sent before is still here. Raises TimeoutError at a time."""
        if not self.has_room():
            self._attend(Waiter(b"%d" % next(self._numbers)), None, until)

    def exchange(self, request: Request, until: float) -> Reply:
        number = b"%d" % next(self._numbers)
        longest = FRAME_BYTES_MAX if self._parser.longest > FRAME_BYTES_SENT_MAX else FRAME_BYTES_SENT_MAX
        outcome = self._attend(Waiter(number), request_message(request, number, longest), until)
        if not isinstance(outcome, PenstockError):
            answer = reply_of(request, outcome)
            if not isinstance(answer, PenstockError):
                return answer
            outcome = answer
        raise outcome

    def replaced(self) -> None:
        """There is another connection now. Requests that still wait for answers here are in doubt."""
        self._end(Reason.SOCKET_ERROR, CloseReason.LOST)

    def drop(self) -> None:
        """End it at once."""
        self._end(Reason.CLIENT_CLOSING, Reason.CLIENT_CLOSING.words)

    def close(self) -> None:
        """End it, and give the server a moment to read why: unread bytes would make the system drop our last ones."""
        closer = Waiter(b"")
        try:
            with self._lock:
                if self._ending is not None:
                    return
                self._inside[closer] = threading.get_ident()
                self._end(Reason.CLIENT_CLOSING, Reason.CLIENT_CLOSING.words)
            self._stream.drain(LIMITS.linger_ms_max / 1000)
        finally:
            self._leave(closer)

    # -- waiting

    def _attend(self, waiter: Waiter, message: bytes | None, until: float) -> Frames | PenstockError:
        """Send a message and wait for its answer; without a message, for room."""
        thread = threading.get_ident()
        with self._lock:
            if thread in self._inside.values():
                raise nested_error()
        try:
            with self._lock:
                if self._is_sending:
                    # Another call was interrupted, and has not left yet.
                    self._end(Reason.UNKNOWN, TORN)
                if self._ending is not None:
                    raise unsent_error(self._ended())
                if self._cannot_send:
                    raise CannotConnect(self.url, CloseReason.LOST)
                self._inside[waiter] = thread
                self.pending[waiter.number] = waiter
                if self._leader is None:
                    self._leader = waiter
                if message is None:
                    self._for_room.add(waiter)
                    self._flush()
                else:
                    self._send(message)
            outcome = self._wait(waiter, until)
            self._leave(waiter)
        except BaseException:
            # Again if it was interrupted: the others need another leader.
            self._leave(waiter)
            raise
        return outcome

    def _wait(self, waiter: Waiter, until: float) -> Frames | PenstockError:
        while waiter.outcome is None:
            left = until - monotonic()
            if left <= 0:
                raise TimeoutError
            if self._ending is not None:
                return self._ended()
            left = min(left, NOTICE_S_MAX)
            if self._leader is waiter:
                if self._stream.wait(left, also_to_send=bool(self._out)):
                    if self._out:
                        with self._lock:
                            self._flush()
                    self._receive()
            elif not self._out:
                waiter.sleep(left)
            elif self._stream.wait_to_send(min(left, LOOK_S)):
                # The leader may not know yet that bytes are left. The wait is short: a bell does not end it.
                with self._lock:
                    self._flush()
        return waiter.outcome

    def _leave(self, waiter: Waiter) -> None:
        """Wait no more. May be called again after an interrupt."""
        with self._lock:
            self.pending.pop(waiter.number, None)
            self._for_room.discard(waiter)
            self._inside.pop(waiter, None)
            leads = self._leader is waiter
            if self._is_sending or (leads and self._is_reading):
                self._end(Reason.UNKNOWN, TORN)
            if leads:
                self._leader = next(iter(self.pending.values()), None)
                if self._leader is not None:
                    self._leader.wake()
            if self._ending is not None and not self._inside:
                self._stream.close()

    # -- sending, under the lock

    def _send(self, message: bytes) -> None:
        self._has_sent = True
        if self._is_sending:
            # These bytes must not follow half a message.
            self._end(Reason.UNKNOWN, TORN)
            return
        if self._cannot_send:
            return
        if self._out:
            self._out += message
            self._flush()
            return
        self._is_sending = True
        sent = self._sent(message)
        if sent < len(message) and not self._cannot_send:
            self._moved = monotonic()
            self._out += memoryview(message)[sent:]
        self._is_sending = False

    def _flush(self) -> None:
        while self._out and not self._is_sending:
            self._is_sending = True
            with memoryview(self._out) as whole, whole[:SENT_BYTES_MAX] as piece:
                sent = self._sent(piece)
            del self._out[:sent]
            self._is_sending = False
            if not sent:
                break
            self._moved = monotonic()
        if self._cannot_send:
            self._out.clear()
        if self._for_room and len(self._out) <= UNSENT_BYTES_HIGH // 4:
            for waiter in list(self._for_room):
                waiter.outcome = []
                waiter.wake()

    def _sent(self, data: bytes | memoryview) -> int:
        try:
            return self._stream.send(data)
        except OSError:
            # The server's last bytes may still be there to read. The reader notices the end.
            self._cannot_send = True
            return 0

    # -- reading, as the leader, or under the lock without one

    def _look(self) -> None:
        """Read what has come, unless a leader does."""
        while self._leader is None and self._ending is None and self._stream.wait(0):
            self._receive()

    def _receive(self) -> None:
        if self._ending is not None:
            return
        if self._is_reading:
            self._end(Reason.UNKNOWN, TORN)
            return
        self._is_reading = True
        parser = self._parser
        try:
            data = self._stream.receive()
        except OSError as error:
            self._refused = alert_error(self.url, error)
            self._end(Reason.SOCKET_ERROR, CloseReason.LOST)
            return
        if data:
            self._last_seen = monotonic()
            try:
                for message in parser.receive(data):
                    number, payload = split_answer(message)
                    waiter = self.pending.pop(number, None)
                    if waiter is not None:
                        waiter.outcome = payload
                        waiter.wake()
            except (InvalidRequest, LimitExceeded, ValueError) as error:
                # Nothing after it can be trusted.
                self._end(Reason.PROTOCOL_ERROR, str(error), mistake=str(error))
            ended = parser.ended
            if isinstance(ended, Disconnected):
                self._end(ended.reason, CloseReason.PEER, by_peer=True)
            elif isinstance(ended, Violation):
                self._end(Reason.PROTOCOL_ERROR, f"{Reason.PROTOCOL_ERROR.words}: {ended.what}")
        elif data is not None:
            self._end(Reason.SOCKET_ERROR, CloseReason.PEER)
        self._is_reading = False

    # -- the end

    def _end(self, reason: Reason, why: str, *, by_peer: bool = False, mistake: str | None = None) -> None:
        """Say why, and fail everybody who waits."""
        with self._lock:
            if self._ending is not None:
                return
            self._ending, self._mistake = Ending(reason, by_peer, why), mistake
            self._over.set()
            if not by_peer and not self._out and not self._is_sending:
                self._sent(disconnect(reason))
            self._out.clear()
            self._stream.finish()
            pending, self.pending = self.pending, {}
            for waiter in list(pending.values()):
                if waiter.outcome is None:
                    waiter.outcome = self._ended()
                waiter.wake()
            if not self._inside:
                self._stream.close()

    def _ended(self) -> PenstockError:
        return self._refused or ending_error(self.url, self._ending, self._mistake)

    def tend(self) -> None:
        """Ping a server that hears nothing for a while, and notice one that is silent, takes nothing, or is gone."""
        with self._lock:
            self._look()
            self._flush()
            now = monotonic()
            # During a long upload nothing comes: a ping would wait behind it.
            if now - max(self._last_seen, self._moved) > LIMITS.idle_ms_max / 1000:
                self._end(Reason.TIME_OUT, CloseReason.IDLE)
            elif self._out and now - self._moved > LIMITS.stall_ms_max / 1000:
                self._end(Reason.TIME_OUT, CloseReason.STALLED)
            elif not self._has_sent and self._ending is None:
                self._send(PING)
            self._has_sent = False


def _keep(of: "weakref.ref[BlockingLink]", over: Flag) -> None:
    while not over.wait(LIMITS.ping_ms / 1000):
        link = of()
        if link is None:
            return
        link.tend()
        del link


class BlockingTransport(Channel):
    """Has a connection, or makes one. Nothing in it suspends. A forked child cannot use it."""

    def __init__(self, hosts: Hosts, token: TokenRequest | None = None, tls: TlsOptions | None = None) -> None:
        self.url = hosts.url
        self.token = token
        self._hosts = hosts
        self._tls = tls
        self._link: BlockingLink | None = None
        self._arriving: BlockingLink | None = None
        """A connection that waits for the answer to its token."""
        self._lock = threading.RLock()
        self._connector: int | None = None
        """The thread that connects."""
        self._closing = Flag()
        self._process = os.getpid()

    def now(self) -> float:
        if self._process != os.getpid():
            raise ClientClosed
        return monotonic()

    def is_ready(self) -> bool:
        link = self._link
        return link is not None and link.is_open() and link.has_room()

    async def ready(self, seconds: float) -> None:
        until = monotonic() + seconds
        if self._closing.is_set():
            raise ClientClosed
        link = self._link
        if link is None or not link.is_open():
            link = self._connected(until)
        try:
            link.room(until)
        except CannotConnect:
            # It ended a moment ago, which the next step notices.
            return

    async def exchange(self, request: Request, until: float) -> Reply:
        link = self._link
        if self._closing.is_set():
            raise ClientClosed
        if link is None:
            raise CannotConnect(self.url, "there is no connection")
        return link.exchange(request, until)

    async def pause(self, seconds: float) -> None:
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0 and not self._closing.wait(min(left, NOTICE_S_MAX)):
            pass

    async def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            self._closing.set()
            links = self._link, self._arriving
        for link in links:
            if link is not None:
                link.close()

    def _connected(self, until: float) -> BlockingLink:
        """A new connection, made by this thread or by another that was first."""
        me = threading.get_ident()
        if self._connector == me:
            raise nested_error()
        try:
            while True:
                with self._lock:
                    if self._connector is None:
                        if self._link is not None:
                            if self._link.is_open():
                                return self._link
                            self._hosts.leave(self._link.host)
                        self._connector = me
                        break
                if monotonic() >= until:
                    raise CannotConnect(self.url, "the server does not answer")
                if self._closing.wait(LOOK_S):
                    raise ClientClosed
            link = self._attempt(until)
            with self._lock:
                is_closed = self._closing.is_set()
                if not is_closed:
                    if self._link is not None:
                        self._link.replaced()
                    self._link = link
            self._connector = None
        except BaseException:
            if self._connector == me:
                self._connector = None
            raise
        if is_closed:
            link.close()
            raise ClientClosed
        link.keep()
        return link

    def _attempt(self, until: float) -> BlockingLink:
        failures: list[HostFailure] = []
        for host, end in self._hosts.turns(until, monotonic):
            try:
                link = self._reached(host, min(until, end))
            except (CannotConnect, TlsFailed) as error:
                failures.append((host, error))
            else:
                self._hosts.use(host)
                return link
        raise self._hosts.error(failures)

    def _reached(self, host: Host, until: float) -> BlockingLink:
        """A connection to one host, which has taken the token."""
        token = None if self.token is None else self.token()
        try:
            link = BlockingLink(host, self._stream(host, until))
            if token is not None:
                self._authenticate(link, token, until)
            return link
        except OSError as error:
            raise attempt_error(host, error) from None

    def _authenticate(self, link: BlockingLink, token: Authenticate, until: float) -> None:
        try:
            with self._lock:
                if self._closing.is_set():
                    raise ClientClosed
                self._arriving = link
            link.exchange(token, until)
        except BaseException as error:
            # It may be a host that answers nothing, and others are left to try.
            link.drop()
            if isinstance(error, PenstockError):
                raise ClientClosed if self._closing.is_set() else unsent_error(error) from None
            raise
        finally:
            self._arriving = None

    def _stream(self, host: Host, until: float) -> Stream:
        is_cancelled = self._closing.is_set
        if self._tls is None:
            return Stream.connect(host.name, host.port, until, is_cancelled)
        # Files may be renewed between two connections.
        context = self._tls.context(host.url)
        try:
            return TlsStream.secure(host.name, host.port, context, until, is_cancelled)
        except HANDSHAKE_ERRORS as error:
            seen = self._look(host, lenient(context), until) if needs_another_look(error) else None
            raise handshake_error(host.url, host.name, host.port, error, seen) from None

    def _look(self, host: Host, context: ssl.SSLContext, until: float) -> Any:
        """The certificate of the server, if it is but for its name and time what it should be."""
        with suppress(OSError):
            until = min(until, monotonic() + LOOK_S_MAX)
            stream = TlsStream.secure(host.name, host.port, context, until, self._closing.is_set)
            try:
                return stream.certificate
            finally:
                stream.close()
        return None
