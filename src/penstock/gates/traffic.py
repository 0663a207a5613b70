"""What a gate tells about its messages when they are answered: counts and times for metrics, lines for the log.

At debug level every message has a line. A message on which the server itself spent more than `slow_request_ms` has a
warning with what it waited for, within the limits for lines about peers. No line has bodies or tokens.

Observers, such as those that make spans of OpenTelemetry, get the same facts. Without debug level and observers a
message costs two looks at the clock.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock.engine.metrics import Metrics
from penstock.engine.traces import CURRENT, NOTED_S_MIN, WAITS, Trace
from penstock.model import Request, Transact
from penstock.settings import Settings
from penstock.tcp import PeerLog, network_of, shown_peer

log = logging.getLogger(__name__)

OK: Final = "ok"
GONE: Final = "the client has gone"
"""The outcome of a message whose connection ended before it was answered."""
PATH_CHARACTERS_MAX: Final = 200
REQUEST_ID: Final = b"x-request-id"


class Peer(Protocol):
    """Who is at the other end of a connection."""

    id: str
    peer: str
    network: str


class Finished(NamedTuple):
    """A message that is answered, or given up because its connection has ended."""

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
    """Those of HTTP that belong to traces."""

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
        self._in_flight = metrics.in_flight
        self._seconds = metrics.requests_of(gate)
        self._observers = metrics.observers
        self._slow_ms = settings.slow_request_ms
        self._slow_s = settings.slow_request_ms / 1000 or float("inf")
        self._slow_log = PeerLog(log, gate, left_out="%s had %s more slow requests")

    @property
    def tells_all(self) -> bool:
        """Whether somebody wants to know of every message, and not only of slow ones."""
        return bool(self._observers) or log.isEnabledFor(logging.DEBUG)

    def begun(self) -> None:
        self._in_flight[self.gate] += 1

    def finished(
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
        """A message has all its answers. `sizes` are bytes received and sent; `answered`: when an answer began, if it
        takes as long as its reader wants."""
        self._in_flight[self.gate] -= 1
        now = time.monotonic()
        own_s = max(0.0, trace.own_s((answered or now) - trace.since))
        self._seconds.add(own_s)
        # A message of a client that has gone may have waited only for that client to read.
        is_slow = own_s >= self._slow_s and outcome is not GONE
        if not is_slow and not self.tells_all:
            return
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
        if is_slow:
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


# --- HTTP -----------------------------------------------------------------------------------------------------


class _HttpPeer:
    def __init__(self, client: object) -> None:
        self.id = ""
        address = tuple(client) if isinstance(client, list | tuple) else client
        self.peer, self.network = shown_peer(address), network_of(address)


class ObservedApp:
    """An ASGI application whose requests are told of. Each answer has the id of its request in X-Request-Id."""

    def __init__(self, app: Any, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace, traffic = Trace(), self._traffic
        status, sizes, answered = 0, [0, 0], None

        async def count_received() -> Any:
            message = await receive()
            sizes[0] += len(message.get("body", b""))
            return message

        async def count_sent(message: Any) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], time.monotonic()
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, trace.id.encode())]
            else:
                sizes[1] += len(message.get("body", b""))
            await send(message)

        token = CURRENT.set(trace)
        traffic.begun()
        try:
            await self._app(scope, count_received, count_sent)
        finally:
            CURRENT.reset(token)
            command = f"{scope['method']} {scope['path'][:PATH_CHARACTERS_MAX]}"
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACING}
            principal = trace.principal or "nobody"
            outcome = OK if 200 <= status < 400 else str(status) if status else GONE
            peer = _HttpPeer(scope.get("client"))
            traffic.finished(trace, peer, principal, command, (), (sizes[0], sizes[1]), outcome, headers, answered)


TRACING: Final = frozenset({b"traceparent", b"tracestate"})
"""Headers by which a client says to which trace a request belongs."""
