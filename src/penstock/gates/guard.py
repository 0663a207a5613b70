"""Protection of the HTTP gate against pages in browsers of its network.

A page from anywhere can make a browser send requests here. Three things keep it from reading or changing anything:

- **Names.** A page whose own name leads to this server's address (DNS rebinding) counts as the same origin for the
  browser, but its requests have that name in `Host`. Only IP addresses, `localhost` and configured names are answered.
- **Origins.** Whatever can change something must come from a page of this server, from a configured origin, or from no
  page at all.
- **Headers** that tell browsers to show, embed, guess and keep nothing.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHOWN_CHARACTERS_MAX: Final = 200
"""How much of an unknown name is repeated in the answer."""

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Added to every answer that has no header of the same name: a page with scripts brings its own policy."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

AUTHORITY: Final = re.compile(r"(\[[^\[\]@/\s]+\]|[^\[\]:@/\s]+)(?::([0-9]{0,5}))?")
ORIGIN: Final = re.compile(r"(https?)://(.+)")
ABSOLUTE: Final = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
PORTS: Final = {"http": "80", "https": "443"}


class Authority(NamedTuple):
    """A host in lower case, IPv6 in brackets, and its port, which may be empty."""

    host: str
    port: str


class Guard:
    """Answers requests for other hosts with 421 and those of other origins' pages with 403; the rest is the app's.

    A request without `Host`, which only HTTP/1.0 allows, is answered: checks of load balancers are such, and browsers
    always send one.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset({"localhost", *hosts})
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        authorities = headers.getlist("host")
        # A target may name a host, as in requests to proxies. It then goes before Host (RFC 9112).
        if found := ABSOLUTE.fullmatch(scope.get("raw_path") or b""):
            path = found[2] or b"/"
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("latin-1"))}
            authorities.append(found[1].decode("latin-1"))
        refusal = self._name_refusal(authorities)
        # A WebSocket has no method, and is not safe.
        if refusal is None and scope.get("method") not in SAFE_METHODS:
            refusal = self._origin_refusal(headers, authorities[-1] if authorities else "")
        await protected(refusal or self._app)(scope, receive, send)

    def _name_refusal(self, authorities: list[str]) -> Response | None:
        for authority in authorities:
            parsed = parse_authority(authority)
            if parsed is None or not (parsed.host in self._hosts or is_ip_address(parsed.host)):
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
    """An app whose answers have the security headers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_protected)

    return answer


def parse_authority(text: str) -> Authority | None:
    """The host and port of `Host`, without the dot that may end a name; None if the text is malformed."""
    found = AUTHORITY.fullmatch(text)
    return Authority(found[1].lower().removesuffix("."), found[2] or "") if found else None


def is_ip_address(host: str) -> bool:
    """Whether a host is an address and not a name, so that no DNS has a say in it."""
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, authority: str) -> bool:
    """Whether an `Origin` is that of this server, by what its client calls it.

    The scheme is not compared: TLS may end at a proxy. A `Host` without a port has that of the origin's scheme.
    """
    found = ORIGIN.fullmatch(origin.lower())
    if found is None:
        return False
    usual = PORTS[found[1]]
    theirs, ours = parse_authority(found[2]), parse_authority(authority)
    if theirs is None or ours is None:
        return False
    return (theirs.host, theirs.port or usual) == (ours.host, ours.port or usual)


def _refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, {"connection": "close"})
