"""The HTTP gate: health for whoever watches the server, metrics for Prometheus, sessions for its operator.

It is small and bounded. Whoever is slow, sends too much or opens too many connections loses a connection, and nobody
else notices. What browsers may do here is decided in `penstock.gates.guard`.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock import __version__
from penstock.engine import Engine
from penstock.errors import CannotListen
from penstock.gates.addresses import bound_socket, shown_address
from penstock.gates.contract import SessionKeeper
from penstock.gates.guard import SECURITY_HEADERS, Guard, protected
from penstock.settings import Settings, host_and_port
from penstock.tcp import PeerLog, network_of, shown_peer

log = logging.getLogger(__name__)

BACKLOG_MAX: Final = 128
HEAD_BYTES_MAX: Final = 16 * 1024
PATH_CHARACTERS_MAX: Final = 200
"""How much of an unknown path is repeated in the answer."""
KEEP_ALIVE_S_MAX: Final = 5
REQUEST_S_MAX: Final = 10.0
"""How long a connection may be open, or stay open after an answer, without another answer being complete."""

PATHS: Final = {
    "/": "what this is, in plain text",
    "/health": "200 while events can be appended, 503 with a reason otherwise",
    "/metrics": "counters and gauges in Prometheus' text format",
    "/sessions": "the connections of the TCP gates; DELETE /sessions/ID cuts one off",
}


class HttpGate:
    """Serves `PATHS` on a socket of its own."""

    name = "http"

    def __init__(self, engine: Engine, keepers: Sequence[SessionKeeper] = ()) -> None:
        self._engine = engine
        self._config = BoundedConfig(application(engine, keepers), engine.settings)
        self._server = Server(self._config)

    async def start(self) -> None:
        """Listen."""
        settings = self._engine.settings
        self._socket = await bound_socket(self.name, settings.http, insecure=settings.insecure)
        self.address = shown_address(self._socket)
        try:
            await self._listen()
        except OSError as error:
            self._socket.close()
            raise CannotListen(self.name, settings.http, str(error)) from error

    async def _listen(self) -> None:
        # Not Server.serve: that would take over the signals, which belong to the whole server.
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])
        self._ticking = asyncio.get_running_loop().create_task(self._server.main_loop())

    def refuse(self) -> None:
        """Accept nothing more."""
        for listening in self._server.servers:
            listening.close()

    async def stop(self) -> None:
        """Finish the requests under way and close all connections."""
        self.refuse()
        self._server.should_exit = True
        await self._ticking
        await self._server.shutdown(sockets=[self._socket])
        self._config.peer_log.flush()


class BoundedConfig(Config):
    """uvicorn's settings, and ours for `BoundedProtocol`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.connections_max = settings.http_connections_max
        self.connections_per_address_max = settings.http_connections_per_address_max
        self.peer_log = PeerLog(log, HttpGate.name)
        super().__init__(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # uvicorn's lines about mistakes of clients name no peer and have no limit; the peer log has both.
            log_level="debug" if settings.log_level == "debug" else "error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Above what BoundedProtocol allows: this only answers bursts that come before it could make room.
            limit_concurrency=2 * self.connections_max,
            backlog=BACKLOG_MAX,
            timeout_keep_alive=KEEP_ALIVE_S_MAX,
            timeout_graceful_shutdown=KEEP_ALIVE_S_MAX,
            callback_notify=self._tick,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )

    async def _tick(self) -> None:
        self.peer_log.tick()


# --- what is served -------------------------------------------------------------------------------------------


def application(engine: Engine, keepers: Sequence[SessionKeeper] = ()) -> ASGIApp:
    """Health, metrics, sessions, and an index of them, behind the guard."""
    process = _process_registry()

    async def health(_request: Request) -> Response:
        identity = engine.identity
        about = {"store_id": identity.id, "timeline": identity.timeline, "version": __version__}
        reason = engine.trouble
        if reason is None:
            return JSONResponse({"status": "ok", **about})
        return JSONResponse({"status": "unavailable", "reason": reason, **about}, 503)

    async def metrics(_request: Request) -> Response:
        text = generate_latest(engine.metrics.registry) + generate_latest(process)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def sessions(_request: Request) -> Response:
        return JSONResponse({"sessions": [asdict(info) for keeper in keepers for info in keeper.sessions()]})

    async def kick(request: Request) -> Response:
        session = request.path_params["session"]
        if any(keeper.kick(session) for keeper in keepers):
            return JSONResponse({"kicked": session})
        return JSONResponse({"error": f"there is no session {session[:PATH_CHARACTERS_MAX]}"}, 404)

    pages = Starlette(
        routes=[
            Route("/", _index),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/sessions", sessions),
            Route("/sessions/{session}", kick, methods=["DELETE"]),
        ],
        exception_handlers={HTTPException: _refusal},
        middleware=[Middleware(WithoutBodies)],
    )
    settings = engine.settings
    # A server that listens on a name answers to it.
    own_name = host_and_port(settings.http)[0].lower()
    return Guard(pages, {own_name, *settings.http_hosts}, settings.http_origins)


def _process_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


async def _index(_request: Request) -> Response:
    paths = "".join(f"  {path:<10} {meaning}\n" for path, meaning in PATHS.items())
    text = f"Penstock {__version__}, an event store and durable log.\n\n{paths}\nEvents do not go through here.\n"
    return PlainTextResponse(text)


async def _refusal(request: Request, error: Exception) -> Response:
    """An answer in JSON that says what there is."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:PATH_CHARACTERS_MAX]
    # They come from a set, in whatever order.
    allowed = " and ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    sentence = f"there is no {path} here" if error.status_code == 404 else f"{path} answers {allowed} only"
    body = json.dumps({"error": sentence, "paths": PATHS}, indent=2) + "\n"
    return Response(body, error.status_code, dict(error.headers or {}), "application/json")


class WithoutBodies:
    """Refuses requests that carry a body, before any of it is read: nothing here wants one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413 and close the connection."""
        app: ASGIApp = self._app
        if scope["type"] == "http" and _has_body(dict(scope["headers"])):
            app = JSONResponse({"error": "requests here have no body"}, 413, {"connection": "close"})
        await app(scope, receive, send)


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0").strip(b"0") != b"" or b"transfer-encoding" in headers


# --- whom it is served to -------------------------------------------------------------------------------------


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, with limits on the number of connections and on the time each may take.

    One connection too many from an address costs the one of that address its place that waits longest for its peer. If
    all of them have requests under way, the new one is answered 429.
    """

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.bounds = config
        self.since = self.loop.time()
        self.peer = self.network = ""
        self._is_told = False
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if there are too many, and give this one its time."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        self.peer, self.network = shown_peer(address), network_of(address)
        self._give_time()
        everybody = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        neighbours = [each for each in everybody if each.network == self.network]
        if len(neighbours) > self.bounds.connections_per_address_max:
            self._squeeze_in([each for each in neighbours if each is not self and each.waits_for_peer])
        elif len(everybody) > self.bounds.connections_max:
            limit = f"http_connections_max is {self.bounds.connections_max}"
            min(everybody, key=lambda each: each.since).abandon(f"there were too many connections ({limit})")

    def _squeeze_in(self, waiting: list["BoundedProtocol"]) -> None:
        """Take the place of one of those, or none if there are none."""
        limit = f"http_connections_per_address_max is {self.bounds.connections_per_address_max}"
        if waiting:
            reason = f"there were too many connections from its address ({limit})"
            min(waiting, key=lambda each: each.since).abandon(reason)
            return
        sentence = f"there are too many connections from {self.network} ({limit}); try again later"
        self.app = protected(JSONResponse({"error": sentence}, 429, {"connection": "close"}))
        self._tell("refused", sentence)

    @property
    def waits_for_peer(self) -> bool:
        """Whether the peer is who has something to do: send a request, or read an answer."""
        return not self._is_answering or self.flow.write_paused

    @property
    def _is_answering(self) -> bool:
        # Before the first request there is no cycle, whatever uvicorn's annotation says.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def on_response_complete(self) -> None:
        """Give it time for another request."""
        self._give_time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that it was no HTTP, unless an answer is half sent, and close."""
        self._tell("ended the connection of", "what came was no HTTP")
        if not (self._is_answering and self.cycle.response_started):
            head = {**SECURITY_HEADERS, "content-type": "text/plain", "content-length": len(msg), "connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            self.transport.write(f"HTTP/1.1 400 Bad Request\r\n{lines}\r\n{msg}".encode("ascii"))
        if self._is_answering:
            # It must not answer any more.
            self.cycle.disconnected = True
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(exc)

    def _give_time(self) -> None:
        self.since = self.loop.time()
        if self._alarm is not None:
            self._alarm.cancel()
        # Not a warning: browsers open connections that they may need, and then do not.
        why = f"no answer was complete within {REQUEST_S_MAX:g} s"
        self._alarm = self.loop.call_later(REQUEST_S_MAX, self.abandon, why, logging.INFO)

    def abandon(self, why: str, level: int = logging.WARNING) -> None:
        """Cut the connection off, whatever is under way."""
        self._tell("ended the connection of", why, level)
        self.connections.discard(self)
        self.transport.abort()

    def _tell(self, what: str, why: str, level: int = logging.WARNING) -> None:
        """Say in the log what was done to the peer, once."""
        if not self._is_told:
            self._is_told = True
            self.bounds.peer_log.write(level, self.network, "http %s %s: %s", what, self.peer, why)
