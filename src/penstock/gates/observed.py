"""Requests over HTTP as traffic: an ASGI application around the one that answers them, however HTTP is served."""

import time
from typing import Any, Final

from penstock.engine.traffic import CURRENT, GONE, OK, Trace, Traffic
from penstock.tcp import network_of, shown_peer

PATH_CHARACTERS_MAX: Final = 200
REQUEST_ID: Final = b"x-request-id"
TRACING: Final = frozenset({b"traceparent", b"tracestate"})
"""Headers by which a client says to which trace a request belongs."""


class _HttpPeer:
    def __init__(self, client: object) -> None:
        self.id = ""
        address = tuple(client) if isinstance(client, list | tuple) else client
        self.peer, self.network = shown_peer(address), network_of(address)


class ObservedApp:
    """An ASGI application that reports its requests. Each answer has the id of its request in X-Request-Id."""

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
        traffic.in_flight += 1
        try:
            await self._app(scope, count_received, count_sent)
        finally:
            CURRENT.reset(token)
            if traffic.done(trace, answered):
                self._tell(scope, trace, status, (sizes[0], sizes[1]), answered)

    def _tell(self, scope: Any, trace: Trace, status: int, sizes: tuple[int, int], answered: float | None) -> None:
        command = f"{scope['method']} {scope['path'][:PATH_CHARACTERS_MAX]}"
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACING}
        principal = trace.principal or ""
        outcome = OK if 200 <= status < 400 else str(status) if status else GONE
        peer = _HttpPeer(scope.get("client"))
        self._traffic.tell(trace, peer, principal, command, (), sizes, outcome, headers, answered)
