"""Res01 messages in flight: `InFlightMessage` is one message, `Pipeline` has those of one connection.

The gate submits a message's requests to the engine, and sends its answers when they are ready. Its bytes count against
the budget until then, and so do replies that wait for an earlier one; see `penstock.engine.engine`.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock.engine import Engine
from penstock.engine.access import NOBODY, Login
from penstock.engine.engine import Budget
from penstock.engine.traffic import CURRENT, GONE, OK, Trace, Traffic
from penstock.errors import NotAuthenticated, PenstockError, Unexpected, drop_traceback
from penstock.gates.logins import Logins
from penstock.model import (
    Append,
    Authenticate,
    FetchSubscription,
    ReadAll,
    ReadRecords,
    ReadStream,
    Reply,
    Request,
    WhoAmI,
)
from penstock.model.replies import Encoded
from penstock.tcp import CloseReason, ReadHold, TcpSession
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import Exchange, Framed

log = logging.getLogger(__name__)

OUTSTANDING_MAX: Final = 1024
"""Unanswered messages of one connection; when there are more, the gate stops reading from it. Long polls do not count:
the engine limits them for all connections together."""
PAGES_MAX: Final = 4
"""Reads of pages in flight for one connection; others wait for their turn."""
UNREAD_MS_MAX: Final = 1000
"""How long a peer may take nothing while too much waits for it. Many long polls may end at once: a peer that reads
slowly still gets all answers."""
PAGES: Final = (FetchSubscription, ReadAll, ReadRecords, ReadStream)


Framing = Exchange | Framed
"""How a gate frames the answers to one message."""


class Pipeline:
    """The messages in flight on one connection. It sends each answer when it is ready.

    Reads of pages begin only as fast as the peer takes the answers, so that large reads do not fill the memory. It
    stops reading from a connection with too many messages, or bytes of them, until some are answered.
    """

    __slots__ = (
        *("_bytes_max", "_engine", "_in_flight", "_is_done", "_is_reading_on", "_outstanding", "_outstanding_bytes"),
        *("_outstanding_max", "_pages", "_series", "_session", "_traffic", "_waiting", "logins", "send"),
    )

    def __init__(
        self,
        engine: Engine,
        session: TcpSession,
        traffic: Traffic,
        send: Callable[[Any, list[Frames]], None],
        outstanding_max: int = OUTSTANDING_MAX,
    ) -> None:
        self._engine = engine
        self._session = session
        self._traffic = traffic
        self.logins = Logins(engine, session, traffic.gate, self._replaced)
        self.send = send
        """Sends answers, given the framing of their message."""
        self._outstanding_max = outstanding_max
        self._bytes_max = engine.budget.connection_bytes_max
        self._outstanding = self._outstanding_bytes = 0
        self._pages = 0
        self._waiting: deque[InFlightMessage] = deque()
        self._in_flight: set[InFlightMessage] = set()
        self._series: set[InFlightMessage] = set()
        self._is_done = False
        self._is_reading_on = False

    def take(self, exchange: Exchange, size: int, framing: Framing) -> None:
        """Begin a message of so many bytes, or queue it until its turn."""
        message = InFlightMessage(self, exchange, size, framing, self.logins.of(exchange.envelope.routing))
        self._traffic.in_flight += 1
        self._outstanding_bytes += size
        if not message.waits:
            self._outstanding += 1
        if not message.enter(self._engine.budget):
            return
        if message.fills_pages:
            self._waiting.append(message)
            self.read_on()
        else:
            self._begin(message)
        if self._outstanding >= self._outstanding_max or self._outstanding_bytes > self._bytes_max:
            self._session.hold(ReadHold.BUSY)

    def read_on(self) -> None:
        """Begin reads whose turn has come. Gates call this when the peer has taken answers, too."""
        # One may be answered while it begins: then this runs already.
        if self._is_reading_on:
            return
        self._is_reading_on = True
        try:
            for series in list(self._series):
                series.go_on()
            while self._waiting and self._pages < PAGES_MAX and self.may_read:
                message = self._waiting.popleft()
                message.trace.had_its_turn()
                message.has_page = True
                self._pages += 1
                self._begin(message)
        finally:
            self._is_reading_on = False

    def _begin(self, message: "InFlightMessage") -> None:
        message.begin(self._engine)
        if message.left:
            self._in_flight.add(message)
            if message.fills_pages and len(message.exchange.requests) > 1:
                self._series.add(message)

    @property
    def is_alone(self) -> bool:
        """Whether an answer is sent now, because no other is about to come."""
        return self._outstanding <= 1

    @property
    def may_read(self) -> bool:
        """Whether the peer reads its answers."""
        return not self._session.holds & ReadHold.UNSENT

    def finished(self, message: "InFlightMessage", answers: list[Frames]) -> None:
        """A message has all its answers; these are the last ones."""
        if self._traffic.done(message.trace):
            self._tell(message, message.outcome, answers)
        self._in_flight.discard(message)
        self._outstanding_bytes -= message.size
        if not message.waits:
            self._outstanding -= 1
        if message.has_page:
            self._series.discard(message)
            self._pages -= 1
            self.read_on()
        if (
            self._session.holds & ReadHold.BUSY
            and self._outstanding < self._outstanding_max
            and self._outstanding_bytes <= self._bytes_max
        ):
            self._session.release(ReadHold.BUSY)
        if self._is_done and not self._outstanding:
            self._session.leave(CloseReason.DONE)

    def peer_is_done(self) -> bool:
        """The peer sends nothing more; whether answers are due. Those of long polls are not."""
        self._is_done = True
        return bool(self._outstanding)

    def _replaced(self, login: Login, now: Login | None) -> None:
        """A sender has shown another credential, or has none now. If its principal is the same, its requests go on.

        Otherwise its long polls end, and requests that have not begun do not begin: a later revocation of the first
        principal would not end them.
        """
        messages = [message for message in [*self._in_flight, *self._waiting] if message.login is login]
        if now is not None and now.principal == login.principal:
            for message in messages:
                message.login = now
            return
        login.principal = NOBODY
        for message in messages:
            if message.waits:
                message.revoke()

    def abandon(self) -> None:
        """The connection is gone: give up requests that only read or wait."""
        self.logins.close()
        self._series.clear()
        for message in [*self._waiting, *self._in_flight]:
            if message.abandon() and self._traffic.done(message.trace):
                self._tell(message, GONE)
        self._waiting.clear()
        self._in_flight.clear()

    def _tell(self, message: "InFlightMessage", outcome: str, answers: list[Frames] | None = None) -> None:
        exchange, sizes = message.exchange, (message.size, message.sent_bytes + _bytes_of(answers or []))
        name = message.login.principal.name
        self._traffic.tell(message.trace, self._session, name, exchange.name, exchange.requests, sizes, outcome)


class InFlightMessage:
    """Collects the replies to a message's requests, which may come in any order."""

    __slots__ = (
        *("_abandons", "_budget", "_counted", "_engine", "_framing", "_is_abandoned", "_is_going_on"),
        *(
            "_next",
            "_pipeline",
            "_polls",
            "_replies",
            "exchange",
            "fills_pages",
            "has_page",
            "left",
            "login",
            "outcome",
            "sent_bytes",
            "size",
            "trace",
            "waits",
        ),
    )

    def __init__(self, pipeline: Pipeline, exchange: Exchange, size: int, framing: Framing, login: Login) -> None:
        requests = exchange.requests
        self.trace = Trace()
        self._pipeline = pipeline
        self.outcome = OK
        self.sent_bytes = 0
        """Of all answers but the last ones."""
        self.login = login
        self._framing = framing
        self._counted = self._is_abandoned = False
        self._polls = 0
        self._abandons: list[Callable[[], bool]] = []
        self.exchange = exchange
        self.size = size
        """Bytes of the message."""
        self.left = len(requests)
        """How many requests are not answered."""
        self.has_page = False
        if len(requests) == 1 and isinstance(requests[0], Append):
            self.waits = self.fills_pages = False
            return
        # A long poll must not wait for other messages, nor they for it.
        self.waits = any(getattr(request, "wait_ms", 0) for request in requests)
        self.fills_pages = not self.waits and any(isinstance(request, PAGES) for request in requests)

    def enter(self, budget: Budget) -> bool:
        """Take the message's bytes from the budget. Without room, answer busy to every request and return False."""
        self._budget = budget
        requests = self.exchange.requests
        refusal = self.login.admit(self.size, len(requests) or 1)
        if self.login.refusal is not None and not (requests and isinstance(requests[0], Authenticate)):
            refusal = self.login.refusal
        polls = sum(1 for request in requests if getattr(request, "wait_ms", 0)) if self.waits else 0
        if refusal is None and polls:
            refusal = self.login.begin_polls(polls)
        if refusal is None:
            if budget.take(self.size):
                self._counted = True
                self._polls = polls
                return True
            self.login.end_polls(polls)
        refused: list[Reply | PenstockError] = [
            budget.busy(request, self.login.principal) if refusal is None else refusal for request in requests
        ]
        self._refuse(refused)
        return False

    def _refuse(self, refused: list[Reply | PenstockError]) -> None:
        # A message without requests is answered, too.
        for replies in [[each] for each in refused] if refused and self.exchange.one_each else [refused]:
            self.left -= len(replies)
            self._answer(replies)

    def begin(self, engine: Engine) -> None:
        """Submit all requests; a message without requests is answered at once."""
        requests = self.exchange.requests
        engine.metrics.commands[self.exchange.name] += 1
        token = CURRENT.set(self.trace)
        try:
            if len(requests) == 1:
                request = requests[0]
                if isinstance(request, Append):
                    self._abandons.append(engine.submit(self.login.principal, request, self._only))
                else:
                    self._begin_only(engine, request)
            elif requests:
                self._engine = engine
                self._replies: dict[int, tuple[Reply | PenstockError, int]] = {}
                self._next = 0
                self._is_going_on = False
                self.go_on()
            else:
                self._answer([])
        finally:
            CURRENT.reset(token)

    def _begin_only(self, engine: Engine, request: Request) -> None:
        if isinstance(request, Authenticate):
            self._only(self._pipeline.logins.authenticate(request.token, self.exchange.envelope.routing))
        elif isinstance(request, WhoAmI):
            self._only(self._pipeline.logins.identity(self.login))
        else:
            present = self._framing.present
            self._abandons.append(engine.submit(self.login.principal, request, self._only, present, self.login))

    def go_on(self) -> None:
        """Submit those of several requests that may begin."""
        # A reply may come while its request is submitted: then this runs already.
        if self._is_going_on:
            return
        self._is_going_on = True
        # Replies to earlier requests bring it here, too.
        token = CURRENT.set(self.trace)
        requests, abandons, present = self.exchange.requests, self._abandons, self._framing.present
        try:
            while (begun := len(abandons)) < len(requests) and self.may_go_on(begun - len(requests) + self.left):
                answer = partial(self._one_of_many, begun)
                abandons.append(_nothing)
                abandons[begun] = self._engine.submit(self.login.principal, requests[begun], answer, present)
        finally:
            CURRENT.reset(token)
            self._is_going_on = False

    def may_go_on(self, begun: int) -> bool:
        """Whether another of several requests may begin while so many are in flight: pages as the peer takes them."""
        return not self.fills_pages or (begun < PAGES_MAX and self._pipeline.may_read)

    def abandon(self) -> bool:
        """The connection is gone: give up requests that only read or wait. False: there will be an answer."""
        given_up = [give_up() for give_up in self._abandons]
        # A cancelled task keeps its frames, which refer to this message. Drop the task, or the cycle stays in memory.
        self._abandons = [_nothing] * len(given_up)
        self._end_polls()
        self._is_abandoned = True
        if len(self.exchange.requests) == 1 and given_up == [False]:
            # The engine still writes it, and replies then.
            return False
        self._give_bytes_back()
        if len(self.exchange.requests) > 1 and given_up:
            self._drop_replies()
        return True

    def revoke(self) -> None:
        """Give up a long poll whose sender may not wait for it any more, and say so."""
        given_up = [give_up() for give_up in self._abandons]
        self._abandons = []
        if len(self.exchange.requests) > 1:
            # Some may have their replies already.
            self._is_abandoned = True
            self._drop_replies()
        elif not all(given_up):
            # Its reply is on its way.
            return
        if not self.exchange.one_each:
            self.left = len(self.exchange.requests)
        self._refuse([NotAuthenticated(CloseReason.REVOKED)] * self.left)

    def _drop_replies(self) -> None:
        for _, size in self._replies.values():
            if size:
                self._budget.give_back(size)
        self._replies.clear()

    # -- replies

    def _only(self, reply: Reply | PenstockError) -> None:
        self.left = 0
        self._answer([reply])

    def _one_of_many(self, index: int, reply: Reply | PenstockError) -> None:
        """Answer all together at the end, or one after the other in order."""
        if self._is_abandoned:
            return
        if self.exchange.one_each:
            # A reply that waits for an earlier one takes memory, and its answer is still due.
            self._replies[index] = (reply, 0) if index == self._next else self._kept(index, reply)
            while (ready := self._replies.pop(self._next, None)) is not None:
                self._next += 1
                self.left -= 1
                if ready[1]:
                    self._budget.give_back(ready[1])
                self._answer([ready[0]])
        else:
            self._replies[index] = (reply, 0)
            self.left -= 1
            if not self.left:
                self._answer([self._replies[place][0] for place in range(len(self._replies))])
        self.go_on()

    def _kept(self, index: int, reply: Reply | PenstockError) -> tuple[Reply | PenstockError, int]:
        """A reply that has to wait, and its bytes. Without room for them the answer is busy: such messages only fetch,
        and the client can fetch again."""
        encoded: Encoded | None = getattr(reply, "encoded", None)
        size = 0 if encoded is None else sum(map(len, encoded.content))
        if not size or self._budget.take(size):
            return reply, size
        return self._budget.busy(self.exchange.requests[index], self.login.principal), 0

    def _answer(self, replies: list[Reply | PenstockError]) -> None:
        for reply in replies:
            if isinstance(reply, PenstockError):
                drop_traceback(reply)
                self.outcome = type(reply).__name__ if self.outcome is OK else self.outcome
        try:
            answers = self.exchange.answers(replies)
        except Exception as error:
            log.exception("an answer could not be encoded")
            answers = [self.exchange.failed(Unexpected(repr(error)))]
        done = not self.left
        if done:
            if self._polls:
                self._end_polls()
            self._give_bytes_back()
        self._pipeline.send(self._framing, answers)
        if done:
            self._pipeline.finished(self, answers)
        else:
            self.sent_bytes += _bytes_of(answers)

    def _end_polls(self) -> None:
        """Count its long polls no more: once, although one that writes is answered after its connection is lost."""
        polls, self._polls = self._polls, 0
        if polls:
            self.login.end_polls(polls)

    def _give_bytes_back(self) -> None:
        if self._counted:
            self._counted = False
            self._budget.give_back(self.size)


def _bytes_of(answers: list[Frames]) -> int:
    return sum(len(frame) for answer in answers for frame in answer)


def _nothing() -> bool:
    """Stands for the function that gives a request up, while it is being submitted."""
    return False
