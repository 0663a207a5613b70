"""The HTTP gate: health for whoever watches the server, metrics for Prometheus, sessions for its operator.

It is small and bounded. Whoever is slow, sends too much or opens too many connections loses a connection, and nobody
else notices.
"""

import asyncio
import json
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

CONNECTIONS_MAX: Final = 128
"""When one more comes, the one that has waited longest since its last answer is cut off."""
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
        self._server = Server(_config(application(engine, keepers), engine.settings.log_level))

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


def _config(app: ASGIApp, log_level: str) -> Config:
    return Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        # What clients do wrong is not the operator's concern, and must not fill the log.
        log_level="debug" if log_level == "debug" else "error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Above what BoundedProtocol allows: this only answers bursts that come before it could make room.
        limit_concurrency=2 * CONNECTIONS_MAX,
        backlog=BACKLOG_MAX,
        timeout_keep_alive=KEEP_ALIVE_S_MAX,
        timeout_graceful_shutdown=KEEP_ALIVE_S_MAX,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )


# --- what is served -------------------------------------------------------------------------------------------


def application(engine: Engine, keepers: Sequence[SessionKeeper] = ()) -> Starlette:
    """Health, metrics, sessions, and an index of them."""
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

    # A page in somebody's browser can send GET and POST anywhere, but not DELETE.
    async def kick(request: Request) -> Response:
        session = request.path_params["session"]
        if any(keeper.kick(session) for keeper in keepers):
            return JSONResponse({"kicked": session})
        return JSONResponse({"error": f"there is no session {session[:PATH_CHARACTERS_MAX]}"}, 404)

    return Starlette(
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
    """uvicorn's protocol, with limits on the number of connections and on the time each may take."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.since = self.loop.time()
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if there are too many, and give this one its time."""
        super().connection_made(transport)
        self._give_time()
        if len(self.connections) > CONNECTIONS_MAX:
            others = (each for each in self.connections if isinstance(each, BoundedProtocol))
            min(others, key=lambda each: each.since).abandon()

    def on_response_complete(self) -> None:
        """Give it time for another request."""
        self._give_time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(exc)

    def _give_time(self) -> None:
        self.since = self.loop.time()
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_later(REQUEST_S_MAX, self.abandon)

    def abandon(self) -> None:
        """Cut the connection off, whatever is under way."""
        self.connections.discard(self)
        self.transport.abort()
