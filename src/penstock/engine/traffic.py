"""Requests in flight: where the time of each goes, and what a gate reports about a message after its answers.

A gate gives each message a trace, and every part that makes its requests wait adds to it. A context variable has the
trace of the request that runs, so that no layer has to pass it on. Lines of the log get its id from there, too.

At debug level every message has a line. A message on which the server itself spent more than `slow_request_ms` has a
warning with what it waited for, within the limits for lines about peers. No line has bodies or tokens. Observers, such
as those that make spans of OpenTelemetry, get the same facts. Without both a message costs two reads of the clock.
"""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.engine.metrics import Metrics
from penstock.model import Request, Transact
from penstock.settings import Settings
from penstock.tcp import PeerLog

log = logging.getLogger(__name__)

NOTED_S_MIN: Final = 0.001
"""Gates, the writer and the log leave out shorter waits. Most requests have only such, and cost next to nothing."""

CONNECTION: Final = "connection"
WRITER: Final = "writer"
STORE: Final = "store"
WORKER: Final = "worker"
JOB: Final = "job"
TURN: Final = "turn"
EVENTS: Final = "events"
WAITS: Final = {
    CONNECTION: "for its turn on the connection",
    WRITER: "in the writer's queue",
    STORE: "for the store's commit",
    WORKER: "for a worker",
    JOB: "for the work of a worker",
    TURN: "for other requests about the same subscription, queue or iterator",
    EVENTS: "for events",
}
"""Reasons why a request waits, in words."""
OWN_WAITS: Final = (CONNECTION, EVENTS)
"""Waits that the client causes: a long poll is not slow, and neither is a request behind others of its connection."""

_RUN: Final = secrets.token_hex(3)
"""Tells the ids of this process from those of others."""
_NUMBERS: Final = count(1)


class Trace(msgspec.Struct):
    """A request in flight, or several that came in one message.

    It refers to nothing else: tasks and timers keep their context, and so the trace, for longer than the request.
    """

    since: float = msgspec.field(default_factory=time.monotonic)
    spent: dict[str, float] | None = None
    """Seconds by the reason of the wait; all requests of one message together."""
    client_s: float = 0.0
    """Those of them that the client has caused."""
    principal: str | None = None
    """The sender, if each request names its own, as over HTTP."""
    _number: int | None = None

    @property
    def id(self) -> str:
        """The trace gets a number at the first use of its id."""
        if self._number is None:
            self._number = next(_NUMBERS)
        return f"{_RUN}-{self._number:x}"

    def waited(self, what: str, seconds: float) -> None:
        if self.spent is None:
            self.spent = {}
        self.spent[what] = self.spent.get(what, 0.0) + seconds
        if what in OWN_WAITS:
            self.client_s += seconds

    def had_its_turn(self) -> None:
        """It was behind others of its connection until now."""
        if (waited_s := time.monotonic() - self.since) >= NOTED_S_MIN:
            self.waited(CONNECTION, waited_s)

    def written(self, waited_s: float, took_s: float) -> None:
        """It waited for the writer, and then for the store. Most requests do nothing else."""
        if self.spent is None:
            self.spent = {WRITER: waited_s, STORE: took_s}
        else:
            self.waited(WRITER, waited_s)
            self.waited(STORE, took_s)

    def own_s(self, took_s: float) -> float:
        """How much of a time the server itself has taken."""
        return max(0.0, took_s - self.client_s)


CURRENT: Final[ContextVar[Trace | None]] = ContextVar("penstock_request", default=None)
"""The request that runs. Tasks that it starts inherit it."""


def note(what: str, seconds: float) -> None:
    """Add a wait to the request that runs, if one does."""
    if (trace := CURRENT.get()) is not None:
        trace.waited(what, seconds)


# --- reports of gates ----------------------------------------------------------------------------------------

OK: Final = "ok"
GONE: Final = "the client has gone"
"""The outcome of a message whose connection ended before it was answered."""


class Peer(Protocol):
    """The other end of a connection."""

    id: str
    peer: str
    network: str


class Finished(NamedTuple):
    """A message that has its answers, or that the server gave up because its connection ended."""

    gate: str
    id: str
    peer: Peer
    principal: str
    command: str
    requests: Sequence[Request]
    received_bytes: int
    sent_bytes: int
    took_s: float
    waits: Mapping[str, float]
    outcome: str
    """`ok`, or the name of the first error."""
    headers: Mapping[str, str] = {}
    """The headers of HTTP that belong to traces."""

    @property
    def context(self) -> str | None:
        """The context that it is about; of several, the first."""
        for request in self.requests:
            if isinstance(request, Transact):
                return request.commits[0].context if request.commits else None
            found = getattr(request, "context", None)
            return found if isinstance(found, str) else None
        return None


class Traffic:
    """The messages of one gate."""

    def __init__(self, gate: str, settings: Settings, metrics: Metrics) -> None:
        self.gate = gate
        self.in_flight = 0
        metrics.in_flight[gate] = lambda: self.in_flight
        self._seconds = metrics.requests_of(gate)
        self._observers = metrics.observers
        self._slow_ms = settings.slow_request_ms
        self._slow_s = settings.slow_request_ms / 1000 or float("inf")
        self._slow_log = PeerLog(log, gate, left_out="%s had %s more slow requests")

    def done(self, trace: Trace, answered: float | None = None) -> bool:
        """Count a message that has all its answers; whether to `tell` of it. Its gate has added it to `in_flight`.

        `answered` is when an answer began, if it takes as long as its reader wants.
        """
        self.in_flight -= 1
        own_s = (answered or time.monotonic()) - trace.since
        if trace.client_s:
            own_s = trace.own_s(own_s)
        self._seconds.add(own_s)
        # Observers and the debug log want every message, not only the slow ones.
        return own_s >= self._slow_s or bool(self._observers) or log.isEnabledFor(logging.DEBUG)

    def tell(
        self,
        trace: Trace,
        peer: Peer,
        principal: str,
        command: str,
        requests: Sequence[Request],
        sizes: tuple[int, int],
        outcome: str,
        headers: Mapping[str, str] | None = None,
        answered: float | None = None,
    ) -> None:
        """Log a message that is done, and show it to the observers. `sizes` are bytes received and sent."""
        now = time.monotonic()
        own_s = trace.own_s((answered or now) - trace.since)
        told = Finished(
            self.gate,
            trace.id,
            peer,
            principal,
            command,
            requests,
            *sizes,
            now - trace.since,
            {what: seconds for what, seconds in (trace.spent or {}).items() if seconds >= NOTED_S_MIN},
            outcome,
            headers or {},
        )
        # A message of a client that has gone may have waited only for that client to read.
        if own_s >= self._slow_s and outcome is not GONE:
            self._warn(told, own_s)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s was answered: %s", command, outcome, extra={"fields": _fields(told)})
        for observe in self._observers:
            try:
                observe(told)
            except Exception:
                # Its client has the answer.
                log.exception("an observer of requests failed")

    def _warn(self, told: Finished, own_s: float) -> None:
        waits = ", ".join(f"{1000 * seconds:,.0f} ms {WAITS[what]}" for what, seconds in told.waits.items())
        self._slow_log.write(
            logging.WARNING,
            told.peer.network,
            "%s took %s ms, and slow_request_ms is %s; it waited %s",
            told.command,
            f"{1000 * own_s:,.0f}",
            f"{self._slow_ms:,}",
            waits or "for nothing that the server measures",
            fields=_fields(told),
        )

    def close(self) -> None:
        """Say how many slow requests the log has left out."""
        self._slow_log.flush()


def _fields(told: Finished) -> dict[str, Any]:
    fields = {
        "request": told.id,
        "gate": told.gate,
        "session": told.peer.id,
        "peer": told.peer.peer,
        "principal": told.principal,
        "command": told.command,
        "context": told.context,
        "received_bytes": told.received_bytes,
        "sent_bytes": told.sent_bytes,
        "duration_ms": round(1000 * told.took_s, 3),
        "outcome": told.outcome,
        **{f"{what}_ms": round(1000 * seconds, 3) for what, seconds in told.waits.items()},
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}
