"""The HTTP gate: the API (`penstock.gates.api`), health for monitoring, metrics for Prometheus, sessions for operators.

It is small and bounded: a client that is slow, sends too much or opens too many connections loses its connection, and
other clients do not notice.

A page from anywhere can make a browser send requests here. `Guard` keeps it from reading or changing anything:

- **Names.** A page whose own name resolves to this server's address (DNS rebinding) has the same origin for the
  browser, but its requests have that name in `Host`. The gate answers only IP addresses, `localhost` and configured
  names.
- **Origins.** A request that can change something must come from a page of this server, from a configured origin, or
  from no page at all.
- **Headers** tell browsers to show, embed, guess and cache nothing.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock import __version__
from penstock.engine import Engine
from penstock.engine.access import NOBODY, Login
from penstock.engine.lags import LagCollector
from penstock.engine.traffic import Traffic
from penstock.errors import CannotListen, NotAllowed, NotAuthenticated, OverLimit, PenstockError
from penstock.gates import probes
from penstock.gates.api import Api
from penstock.gates.api.api import NO_BEARER
from penstock.gates.api.call import CONNECTION, WITHOUT_BODY
from penstock.gates.api.problems import MEDIA_TYPE as PROBLEM_TYPE
from penstock.gates.api.problems import Problem
from penstock.gates.contract import bound_socket, check_fixed, exposed, shown_address
from penstock.gates.observed import ObservedApp
from penstock.gates.tls import ServerTls, certificate_ids
from penstock.model import Right
from penstock.model.access import EVERYWHERE
from penstock.settings import Settings, host_and_port
from penstock.tcp import CloseReason, PeerLog, TcpServer, TlsLayer, network_of, shown_peer
from penstock.tcp.server import QUIET
from penstock.tcp.session import TLS_HELLO

log = logging.getLogger(__name__)

BACKLOG_MAX: Final = 128
HEAD_BYTES_MAX: Final = 16 * 1024
SHOWN_CHARACTERS_MAX: Final = 200
"""How much of an unknown path or name the answer repeats."""
KEEP_ALIVE_S_MAX: Final = 5
"""How long a connection may stay open between two requests, and a request may go on while the server stops."""
REQUEST_S_MAX: Final = 10.0
"""How long a connection may stay open without completing an answer, unless the API gives it time."""
API: Final = "/v1/"
OPENAPI: Final = "/openapi.json"
CONSOLE: Final = "/console"

PATHS: Final = {
    "/": "what this is, in plain text",
    "/health": "200 while events can be appended, 503 with a reason otherwise",
    "/livez": "200 while the process answers",
    "/readyz": "200 while clients are welcome, 503 with the reasons while the server stops or cannot write",
    "/metrics": "counters and gauges in Prometheus' text format",
    "/sessions": "the connections of the TCP gates; DELETE /sessions/ID cuts one off",
    "/v1/events": "the history; events go in and out under /v1",
    "/openapi.json": "what there is under /v1, as OpenAPI describes it",
    "/console": "the console, for browsers",
}

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Added to every answer that has no header of the same name: a page with scripts sets its own policy."""

PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS: use https instead of http.\n"
)
CERTIFICATE: Final = "certificate"
"""In the state of a request: the ids of credentials that the certificate of its connection may have."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

AUTHORITY: Final = re.compile(r"(\[[^\[\]@/\s]+\]|[^\[\]:@/\s]+)(?::([0-9]{0,5}))?")
ORIGIN: Final = re.compile(r"(https?)://(.+)")
ABSOLUTE: Final = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
PORTS: Final = {"http": "80", "https": "443"}


class HttpGate:
    name = "http"

    def __init__(
        self,
        engine: Engine,
        servers: Sequence[TcpServer[Any]] = (),
        tls: ServerTls | None = None,
        console: ASGIApp | None = None,
    ) -> None:
        self._engine = engine
        self._tls = tls
        self._config = BoundedConfig(application(engine, servers, console), engine.settings, tls)
        self._server = Server(self._config)

    async def start(self) -> None:
        settings = self._engine.settings
        check_fixed(self._engine, self.name, settings.http)
        is_encrypted = self._tls is not None
        self._socket = await bound_socket(self.name, settings.http, exposed(self._engine, is_encrypted=is_encrypted))
        self.address = shown_address(self._socket)
        try:
            # Not Server.serve: that would take over the signals, which belong to the whole server.
            config = self._server.config
            config.load()
            self._server.lifespan = config.lifespan_class(config)
            await self._server.startup(sockets=[self._socket])
            self._engine.metrics.http_sessions = lambda: len(self._server.server_state.connections)
        except OSError as error:
            self._socket.close()
            raise CannotListen(self.name, settings.http, str(error)) from error
        self._ticking = asyncio.get_running_loop().create_task(self._server.main_loop())

    def refuse(self) -> None:
        for listening in self._server.servers:
            listening.close()

    async def stop(self) -> None:
        """Finish the requests in flight and close all connections."""
        self.refuse()
        self._server.should_exit = True
        await self._ticking
        await self._server.shutdown(sockets=[self._socket])
        self._config.peer_log.flush()


class BoundedConfig(Config):
    """uvicorn's settings, and ours for `BoundedProtocol`."""

    def __init__(self, app: ASGIApp, settings: Settings, tls: ServerTls | None = None) -> None:
        self.tls = tls
        self.handshake_s_max = settings.tls_handshake_ms_max / 1000
        self.connections_max = settings.http_connections_max
        self.connections_per_address_max = settings.http_connections_per_address_max
        self.peer_log = PeerLog(log, HttpGate.name)
        super().__init__(
            app,
            # uvicorn calls it for each connection, and looks at nothing else of it.
            http=BoundedProtocol if tls is None else cast("type[asyncio.Protocol]", _secured_protocol),
            ws="none",
            lifespan="off",
            log_config=None,
            # uvicorn's lines about clients' mistakes name no peer and have no limit; the peer log has both.
            log_level="debug" if settings.log_level == "debug" else "error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Above what BoundedProtocol allows: this only answers bursts before it can make room.
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


def application(engine: Engine, servers: Sequence[TcpServer[Any]] = (), console: ASGIApp | None = None) -> ASGIApp:
    """Health, metrics, sessions, an index, the API and the console, behind the guard."""
    process = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=process)

    def sender(request: Request) -> Login:
        """The sender of a request. Raises NotAuthenticated or OverLimit."""
        login = known_sender(engine, request)
        if (refusal := login.admit(0)) is not None:
            raise refusal
        return login

    def allowed(request: Request, right: Right) -> Login:
        """The sender of a request about the whole server. Raises NotAllowed, NotAuthenticated or OverLimit."""
        login = sender(request)
        view = login.principal.views.get(right)
        if view is None or EVERYWHERE not in view.scopes:
            if login.principal is NOBODY:
                raise NotAuthenticated(NO_BEARER)
            raise NotAllowed(login.principal.name, right.words)
        return login

    async def health(request: Request) -> Response:
        return JSONResponse(*probes.health(engine, sender(request)))

    async def alive(_request: Request) -> Response:
        return JSONResponse(*probes.alive())

    async def ready(request: Request) -> Response:
        return JSONResponse(*probes.ready(engine, lambda: sender(request)))

    async def metrics(request: Request) -> Response:
        principal = allowed(request, Right.READ).principal
        view = None if principal.may(Right.READ) else principal.views[Right.READ]
        lags = LagCollector(await engine.lags.latest(), view)
        await engine.refresh_metrics()
        text = b"".join(map(generate_latest, (engine.metrics.registry, lags, process)))
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def sessions(request: Request) -> Response:
        allowed(request, Right.ADMIN)
        return JSONResponse({"sessions": [asdict(info) for server in servers for info in server.sessions()]})

    async def kick(request: Request) -> Response:
        login, session = allowed(request, Right.ADMIN), request.path_params["session"]
        if any(server.session(session) for server in servers):
            await engine.record(login.principal, "sessions", "session-kicked", session=session)
        if any(server.kick(session) for server in servers):
            return JSONResponse({"kicked": session})
        return JSONResponse({"error": f"there is no session {session[:SHOWN_CHARACTERS_MAX]}"}, 404)

    pages = Starlette(
        routes=[
            Route("/", partial(_index, console is not None)),
            Route("/health", health),
            Route("/livez", alive),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            Route("/sessions", sessions),
            Route("/sessions/{session}", kick, methods=["DELETE"]),
        ],
        exception_handlers={HTTPException: _refusal, PenstockError: _refused_access},
    )
    api, settings = Api(engine, partial(known_sender, engine)), engine.settings

    # A server that listens on a name answers to it.
    own_name = host_and_port(settings.http)[0].lower()
    guarded = Guard(_by_path(api, console or pages, pages), {own_name, *settings.http_hosts}, settings.http_origins)
    return ObservedApp(guarded, Traffic(HttpGate.name, settings, engine.metrics))


def known_sender(engine: Engine, request: Request, ended: Callable[[Login], None] | None = None) -> Login:
    """The sender of a request. Raises NotAuthenticated; with `ended`, which makes it a connection, also OverLimit."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind and kind.lower() != "bearer":
        # Not repeated: it may be a token without its word.
        raise NotAuthenticated("this authorization is not known here; send Bearer TOKEN")
    shown: Sequence[str] = request.scope.get("state", {}).get(CERTIFICATE, ())
    return engine.access.for_one_request(token.strip() if kind else None, engine.settings.http_as, shown, ended)


def is_of_api(scope: Scope) -> bool:
    path: str = scope.get("path", "")
    return path.startswith(API) or path == OPENAPI


def is_of_console(scope: Scope) -> bool:
    path: str = scope.get("path", "")
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def _by_path(api: ASGIApp, console: ASGIApp, others: ASGIApp) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        app = api if is_of_api(scope) else console if is_of_console(scope) else others
        await app(scope, receive, send)

    return answer


async def _index(has_console: bool, request: Request) -> Response:
    if has_console and "text/html" in request.headers.get("accept", "").lower():
        return RedirectResponse(CONSOLE, 303)
    paths = "".join(f"  {path:<13} {meaning}\n" for path, meaning in PATHS.items())
    return PlainTextResponse(f"Penstock {__version__}, an event store and durable log.\n\n{paths}")


async def _refused_access(_request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    if isinstance(error, NotAuthenticated):
        return JSONResponse({"error": str(error)}, 401, {"www-authenticate": "Bearer"})
    if isinstance(error, NotAllowed):
        return JSONResponse({"error": str(error)}, 403)
    if isinstance(error, OverLimit):
        return JSONResponse({"error": str(error)}, 429, {"retry-after": str(-(-error.retry_after_ms // 1000))})
    return JSONResponse({"error": str(error)}, 503)


async def _refusal(request: Request, error: Exception) -> Response:
    """An answer in JSON that says what there is."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:SHOWN_CHARACTERS_MAX]
    # They come from a set, in any order.
    allowed = " and ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    sentence = f"there is no {path} here" if error.status_code == 404 else f"{path} answers {allowed} only"
    body = json.dumps({"error": sentence, "paths": PATHS}, indent=2) + "\n"
    return Response(body, error.status_code, dict(error.headers or {}), "application/json")


# --- connections ----------------------------------------------------------------------------------------------


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, with limits on the number of connections and on the time each may take.

    With one connection too many from an address, the gate ends the one of that address that waits longest for its peer.
    If all of them have requests in flight, it answers the new one with 429; with one too many in all, with 503.
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
        self._is_logged = self._is_lost = False
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if there are too many, and start this one's timer."""
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        self.peer, self.network = shown_peer(address), network_of(address)
        self.app_state = {**self.app_state, CONNECTION: self}
        self._give_time()
        everybody = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        neighbours = [each for each in everybody if each.network == self.network]
        if len(neighbours) > self.bounds.connections_per_address_max:
            limit = f"http_connections_per_address_max is {self.bounds.connections_per_address_max}"
            self._squeeze_in(neighbours, 429, " from its address", f" from {self.network}", limit)
        elif len(everybody) > self.bounds.connections_max:
            self._squeeze_in(everybody, 503, "", "", f"http_connections_max is {self.bounds.connections_max}")

    def _squeeze_in(self, others: list["BoundedProtocol"], status: int, whose: str, ours: str, limit: str) -> None:
        waiting = [each for each in others if each is not self and each.waits_for_peer]
        if waiting:
            reason = f"there were too many connections{whose} ({limit})"
            min(waiting, key=lambda each: each.since).abandon(reason)
            return
        sentence = f"there are too many connections{ours} ({limit}); try again later"
        self.app = protected(_refused(status, sentence))
        self._log("refused", sentence)

    @property
    def waits_for_peer(self) -> bool:
        """Whether the gate waits for the peer: to send a request with its body, or to read an answer."""
        return not self._is_answering or self.cycle.more_body or self.flow.write_paused

    @property
    def _is_answering(self) -> bool:
        # Before the first request there is no cycle, whatever uvicorn's annotation says.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    # -- TLS

    def secured(self) -> None:
        """The handshake is done: every request of this connection comes with its certificate."""
        self._give_time()
        ids = certificate_ids(self.transport.get_extra_info("ssl_object"))
        if ids:
            self.app_state = {**self.app_state, CERTIFICATE: ids}

    def unsecured(self, why: CloseReason, detail: str = "") -> None:
        if why not in QUIET:
            self._log("ended the connection of", f"{why}: {detail}" if detail else why)

    def on_response_complete(self) -> None:
        self._give_time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer 400, unless an answer is half sent, and close."""
        came, _ = self.conn.trailing_data
        self._log(
            "ended the connection of", CloseReason.NO_TLS if came.startswith(TLS_HELLO) else "what came was no HTTP"
        )
        if not (self._is_answering and self.cycle.response_started):
            head = {**SECURITY_HEADERS, "content-type": "text/plain", "content-length": len(msg), "connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            self.transport.write(f"HTTP/1.1 400 Bad Request\r\n{lines}\r\n{msg}".encode("ascii"))
        if self._is_answering:
            self.cycle.disconnected = True
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._alarm is not None:
            self._alarm.cancel()
        super().connection_lost(exc)

    def _give_time(self) -> None:
        self.since = self.loop.time()
        if self._alarm is not None:
            self._alarm.cancel()
        if getattr(self.transport, "is_shaking_hands", False):
            self._alarm = self.loop.call_later(self.bounds.handshake_s_max, self.abandon, CloseReason.HANDSHAKE_SLOW)
            return
        self._set_alarm(REQUEST_S_MAX)

    def give_time(self, seconds: float) -> None:
        """From now on, as long as an answer is under way."""
        self.since = self.loop.time()
        if self._alarm is not None:
            self._alarm.cancel()
        self._set_alarm(seconds)

    def _set_alarm(self, seconds: float) -> None:
        # An answer may be under way when its client is gone already.
        if not self._is_lost:
            self._alarm = self.loop.call_later(seconds, self._time_is_up, seconds)

    def _time_is_up(self, seconds: float) -> None:
        """End the connection. This is no warning: clients are slow, and their users go away."""
        came, _ = self.conn.trailing_data
        level = logging.INFO
        if self.transport.get_write_buffer_size():
            why = "its answer was not taken"
        elif self._is_answering and not self.cycle.more_body:
            why = "no answer was complete"
        elif self._is_answering or came:
            why = "its request was not complete"
        else:
            # Browsers open connections in advance and may not use them.
            level, why = logging.DEBUG, "no request came"
        self.abandon(f"{why} within {seconds:g} s", level)

    def abandon(self, why: str, level: int = logging.WARNING) -> None:
        """Close the connection at once, whatever is in flight."""
        self._log("ended the connection of", why, level)
        self.connections.discard(self)
        self.transport.abort()

    def _log(self, what: str, why: str, level: int = logging.WARNING) -> None:
        if not self._is_logged:
            self._is_logged = True
            self.bounds.peer_log.write(level, self.network, "http %s %s: %s", what, self.peer, why)


def _secured_protocol(*, config: BoundedConfig, **others: Any) -> TlsLayer:
    assert config.tls is not None
    return TlsLayer(BoundedProtocol(config, **others), config.tls.current(), PLAIN_ANSWER)


# --- protection against pages in browsers -------------------------------------------------------------------------


class Guard:
    """Answers requests for other hosts with 421, those of other origins' pages with 403, and with 413 those that have a
    body where none belongs.

    It accepts a request without `Host`, which only HTTP/1.0 allows: load balancers send such checks, and browsers
    always send a host.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset({"localhost", *hosts})
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        authorities = headers.getlist("host")
        # A target may name a host, as in requests to proxies. It takes precedence over Host (RFC 9112).
        if found := ABSOLUTE.fullmatch(scope.get("raw_path") or b""):
            path = found[2] or b"/"
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("latin-1"))}
            authorities.append(found[1].decode("latin-1"))
        refusal = self._name_refusal(authorities)
        # A WebSocket has no method, and is not safe.
        if refusal is None and scope.get("method") not in SAFE_METHODS:
            refusal = self._origin_refusal(headers, authorities[-1] if authorities else "")
        # Only the API and the console read bodies, each with its own limit.
        has_body = headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers
        reads_body = is_of_api(scope) or is_of_console(scope)
        if refusal is None and has_body and (scope.get("method") in WITHOUT_BODY or not reads_body):
            refusal = _refused(413, "requests here have no body")
        if refusal is not None and is_of_api(scope):
            refusal = _as_problem(refusal)
        await protected(refusal or self._app)(scope, receive, send)

    def _name_refusal(self, authorities: list[str]) -> Response | None:
        for authority in authorities:
            parsed = parse_authority(authority)
            if parsed is None or not (parsed[0] in self._hosts or is_ip_address(parsed[0])):
                name = authority[:SHOWN_CHARACTERS_MAX]
                return _refused(
                    421, f"this server does not answer to the name {name!r}; if it is its own, add it to http_hosts"
                )
        return None

    def _origin_refusal(self, headers: Headers, authority: str) -> Response | None:
        origins = headers.getlist("origin")
        if any(origin.lower() not in self._origins and not is_same_origin(origin, authority) for origin in origins):
            name = ", ".join(origins)[:SHOWN_CHARACTERS_MAX]
            return _refused(
                403, f"pages of {name} may change nothing here; to allow it, add that origin to http_origins"
            )
        if not origins and headers.get("sec-fetch-site", "").lower() == "cross-site":
            return _refused(403, "pages of other sites may change nothing here; http_origins names those that may")
        return None


def protected(app: ASGIApp) -> ASGIApp:

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_protected)

    return answer


def parse_authority(text: str) -> tuple[str, str] | None:
    """The host of `Host`, without the dot that may end a name, and its port or ""; None if the text is malformed."""
    found = AUTHORITY.fullmatch(text)
    return (found[1].lower().removesuffix("."), found[2] or "") if found else None


def is_ip_address(host: str) -> bool:
    """Whether a host is an address and not a name, so that DNS does not matter."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, authority: str) -> bool:
    """Whether an `Origin` is this server's, by the `Host` of the same request.

    The scheme is not compared: TLS may end at a proxy. A `Host` without a port has the port of the origin's scheme.
    """
    found = ORIGIN.fullmatch(origin.lower())
    if found is None:
        return False
    usual = PORTS[found[1]]
    theirs, ours = parse_authority(found[2]), parse_authority(authority)
    if theirs is None or ours is None:
        return False
    return (theirs[0], theirs[1] or usual) == (ours[0], ours[1] or usual)


def _as_problem(refusal: Response) -> Response:
    """The same refusal, as the API answers."""
    problem = Problem(refusal.status_code, json.loads(bytes(refusal.body))["error"])
    return Response(problem.content(), problem.status, {"connection": "close"}, PROBLEM_TYPE)


def _refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, {"connection": "close"})
