"""The Remits gate: logs and iterators over TCP, in CBOR.

Answers have no numbers: they come in the order of the requests. So a request begins when all before it on its
connection are answered, except that several adds, or several reads, may be in flight together. Requests behind a slow
one wait, and when there are too many of them the gate stops reading from the connection.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.engine import Engine
from penstock.engine.engine import FIELD_BYTES, Budget
from penstock.engine.traffic import CURRENT, GONE, OK, Trace
from penstock.errors import PenstockError, ReaderBusy, Unexpected, WriterBusy, drop_traceback
from penstock.gates.contract import TcpGate, limits_of
from penstock.gates.logins import Logins
from penstock.gates.tls import ServerTls, certificate_ids
from penstock.model import AddMessages, Authenticate, ListIterators, ListLogs, NextItems, Reply, Request, ShowLog
from penstock.tcp import CloseReason, ReadHold, TcpSession
from penstock.wire.codes import RemitsCode
from penstock.wire.remits.frames import Frame, Parser
from penstock.wire.remits.operations import Exchange, decode, error_frame, item_payload, refusal_frame

log = logging.getLogger(__name__)

REJECTED: Final = "rejected"
"""The outcome of a frame that is no request."""
OUTSTANDING_MAX: Final = 1024
"""Unanswered requests of one connection; when there are more, the gate stops reading from it."""
READS_MAX: Final = 4
"""Reads in flight for one connection."""

LOST: Final[dict[int, str]] = {
    RemitsCode.LimitExceeded: "a frame was too long",
    RemitsCode.FailedToReadBytes: "a frame was too short",
}
"""Why a connection ends after a frame with a wrong length, by the code that its peer gets. Metrics use these words, so
they contain nothing that a peer can choose."""

READS: Final = (ListIterators, ListLogs, NextItems, ShowLog)


class RemitsGate(TcpGate["_Session"]):
    def __init__(self, engine: Engine, address: str, tls: ServerTls | None = None) -> None:
        super().__init__("remits", limits_of(engine.settings, "remits"), engine, address, tls)

    def new_session(self) -> "_Session":
        return _Session(self)


class _InFlightRequest:
    """A request in flight, and its answer once it is ready."""

    __slots__ = (
        "_abandon",
        "_budget",
        "_exchange",
        "_kept",
        "_session",
        "answer",
        "asked",
        "bytes",
        "outcome",
        "size",
        "trace",
    )

    def __init__(self, session: "_Session", exchange: Exchange, size: int) -> None:
        self.trace = Trace()
        self._session = session
        self.asked = exchange.request
        self.bytes = size
        self.outcome = OK if exchange.refused is None else REJECTED
        self._budget: Budget = session.budget
        self._exchange = exchange
        self.size = size
        """Bytes that it has taken from the budget; 0 if there was no room."""
        self._kept = 0
        self.answer: bytes | None = None
        self._abandon: Callable[[], bool] | None = None
        if not self._budget.take(size):
            self._refuse()

    @property
    def group(self) -> type[Request] | None:
        """Requests of one group may be in flight together; one without a group is alone."""
        request = self._exchange.request
        if isinstance(request, AddMessages):
            return AddMessages
        return NextItems if isinstance(request, READS) else None

    def _refuse(self) -> None:
        """Drop the request, and answer busy in its turn."""
        self.size = 0
        if self._exchange.request is not None:
            self.outcome = WriterBusy.__name__ if isinstance(self.asked, AddMessages) else ReaderBusy.__name__
            busy = error_frame(self._budget.busy(self._exchange.request, self._session.logins.of(()).principal))
            self._exchange = Exchange(None, lambda _reply: busy)

    def begin(self, engine: Engine) -> None:
        request = self._exchange.request
        self.trace.had_its_turn()
        token = CURRENT.set(self.trace)
        try:
            if request is None:
                self.answer = self._exchange.answer()
            else:
                self._submit(engine, request)
        finally:
            CURRENT.reset(token)

    def _submit(self, engine: Engine, request: Request) -> None:
        login = self._session.logins.of(())
        refusal = login.admit(self.size)
        if login.refusal is not None and not isinstance(request, Authenticate):
            refusal = login.refusal
        if refusal is not None:
            self._replied(refusal)
        elif isinstance(request, Authenticate):
            self._replied(self._session.logins.authenticate(request.token))
        else:
            self._abandon = engine.submit(login.principal, request, self._replied, item_payload)

    def _replied(self, reply: Reply | PenstockError) -> None:
        if isinstance(reply, PenstockError):
            drop_traceback(reply)
            self.outcome = type(reply).__name__
        try:
            self.answer = self._exchange.answer(reply)
        except Exception as error:
            # Others wait behind this one, so it needs an answer.
            log.exception("an answer could not be encoded")
            self.answer = error_frame(Unexpected(repr(error)))
        if self.group is NextItems and not self._session.is_next(self):
            self._keep(self.answer)
        if self._session.is_gone:
            self.leave()
        self._session.go_on()

    def _keep(self, answer: bytes) -> None:
        """Count an answer that waits for earlier ones. Without room for it the answer is busy: the client can read
        again."""
        if self._budget.take(len(answer)):
            self._kept = len(answer)
        elif self._exchange.request is not None:
            principal = self._session.logins.of(()).principal
            self.answer = error_frame(self._budget.busy(self._exchange.request, principal))

    def leave(self) -> None:
        if self.size:
            self._budget.give_back(self.size)
        if self._kept:
            self._budget.give_back(self._kept)
        self.size = self._kept = 0

    def abandon(self) -> None:
        # The engine still writes what cannot be given up, and replies then.
        if self._abandon is None or self.answer is not None or self._abandon():
            self.leave()
        self._abandon = None


class _Session(TcpSession):
    """One connection: requests in, answers out in the same order."""

    def __init__(self, gate: RemitsGate) -> None:
        super().__init__(gate.limits, gate)
        self._gate = gate
        self._engine = gate.engine
        self.budget = gate.engine.budget
        self.logins = Logins(gate.engine, self, gate.name)
        self._parser = Parser(gate.engine.settings.remits_frame_bytes_max)
        self._waiting: deque[_InFlightRequest] = deque()
        self._in_flight: deque[_InFlightRequest] = deque()
        self._size = 0
        self.is_gone = False
        self._is_going_on = False
        self._peer_is_done = False
        self._is_leaving = False

    # -- requests

    def opened(self) -> None:
        self.logins.secured(certificate_ids(self.tls))

    def received(self, data: bytes) -> int:
        """Read requests, until the server stops."""
        frames = self._parser.receive(data)
        if self._gate.is_accepting:
            self.messages_received += len(frames)
            self._engine.metrics.gate_received[self._gate.name] += len(frames)
            for frame in frames:
                self._take(frame)
            self.go_on()
        return self._parser.pending_bytes

    def _take(self, frame: Frame) -> None:
        exchange = decode(frame, self._engine.settings.commit_events_max)
        messages = exchange.request.messages if isinstance(exchange.request, AddMessages) else ()
        request = _InFlightRequest(self, exchange, len(frame.payload) + FIELD_BYTES * (1 + len(messages)))
        self._gate.traffic.in_flight += 1
        self._waiting.append(request)
        self._size += request.size
        if self._is_crowded:
            self.hold(ReadHold.BUSY)

    @property
    def _is_crowded(self) -> bool:
        return (
            len(self._waiting) + len(self._in_flight) >= OUTSTANDING_MAX
            or self._size > self.budget.connection_bytes_max
        )

    # -- answers

    def go_on(self) -> None:
        """Send the answers that are due and begin what may begin, until there is nothing to do."""
        # An answer may come while its request begins: then this runs already.
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._answer_next() or self._begin_next():
                pass
        finally:
            self._is_going_on = False
        if not self._is_crowded:
            self.release(ReadHold.BUSY)
        if not self._in_flight and not self._waiting:
            self._end_if_done()

    def _answer_next(self) -> bool:
        """Send the next answer if it is there; whether it was."""
        if not self._in_flight or (answer := self._in_flight[0].answer) is None:
            return False
        request = self._in_flight.popleft()
        self._size -= request.size
        request.leave()
        self.messages_sent += 1
        self._tell(request, request.outcome, len(answer))
        self._engine.metrics.gate_sent[self._gate.name] += 1
        self.write(answer)
        return True

    def _tell(self, request: _InFlightRequest, outcome: str, sent_bytes: int) -> None:
        if not self._gate.traffic.done(request.trace):
            return
        asked, name = request.asked, self.logins.of(()).principal.name
        command = "other" if asked is None else type(asked).__name__
        requests = () if asked is None else (asked,)
        self._gate.traffic.tell(request.trace, self, name, command, requests, (request.bytes, sent_bytes), outcome)

    def is_next(self, request: _InFlightRequest) -> bool:
        return not self._in_flight or self._in_flight[0] is request

    def _begin_next(self) -> bool:
        """Begin the next request if it may begin; whether it did."""
        if not self._waiting or not self._may_begin(self._waiting[0].group):
            return False
        request = self._waiting.popleft()
        self._in_flight.append(request)
        request.begin(self._engine)
        return True

    def _may_begin(self, group: type[Request] | None) -> bool:
        if group is NextItems and (self.holds & ReadHold.UNSENT or len(self._in_flight) >= READS_MAX):
            return False
        return not self._in_flight or (group is not None and group is self._in_flight[-1].group)

    # -- the end

    def farewell(self, why: str) -> bytes:
        """A refused peer gets this as the answer to its first request. Later it would look like another answer."""
        return refusal_frame(RemitsCode.ServerBusy) if why in (CloseReason.REFUSED, CloseReason.CROWDED) else b""

    def _end_if_done(self) -> None:
        """All requests are answered: close if the peer sends no more, or sent a wrong length."""
        if self._is_leaving:
            return
        if self._parser.lost is not None:
            self._is_leaving = True
            self.write(refusal_frame(self._parser.lost.code))
            self.leave(LOST[self._parser.lost.code])
        elif self._peer_is_done:
            self._is_leaving = True
            self.leave(CloseReason.DONE)

    def has_due(self) -> bool:
        """The peer sends nothing more. It still gets its answers."""
        self._peer_is_done = True
        return bool(self._in_flight or self._waiting)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.go_on()

    def forget(self) -> None:
        self._parser.forget()

    def lost(self) -> None:
        self.is_gone = True
        self.logins.close()
        for request in [*self._waiting, *self._in_flight]:
            request.abandon()
            self._tell(request, GONE, 0)
        # They refer to this session: a cycle that would keep large requests in memory.
        self._waiting.clear()
        self._in_flight.clear()
