"""The console as an ASGI application: who asks, sessions, forms and their checks, pages, errors."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from penstock.console.samples import Sampler
from penstock.console.sessions import COOKIE, Sessions
from penstock.console.static_files import STATIC
from penstock.console.static_files import answer as static_answer
from penstock.console.table import ACTIONS, PAGES
from penstock.console.tail import Tails
from penstock.console.visit import ROOT, Action, Page, Places, Refused, Visit, failure, url
from penstock.engine import Engine
from penstock.engine.access import NOBODY, UNKNOWN, Login
from penstock.errors import NotAllowed, NotAuthenticated, PenstockError, Unexpected
from penstock.gates import Gate
from penstock.gates.api.call import CONNECTION, ENGINE_S_MAX, STALL_S_MAX
from penstock.gates.http import known_sender
from penstock.tcp import TcpServer, network_of
from penstock.terminal import escape

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

SEARCHES_MAX: Final = 2
"""Searches at once: each one keeps a worker busy."""
FORM_BYTES_MAX: Final = 256 << 10
"""Bytes of a form."""
FORM_S_MAX: Final = 10.0
"""How long a form may take to come."""
FIELDS_MAX: Final = 100
"""Fields of a form, or parameters of a query."""
SHOWN_CHARACTERS_MAX: Final = 200

STATEMENTS_MAX: Final = 2
"""Statements of SQL at once."""
TRIALS_MAX: Final = 1
"""Trials of functions at once: they run in the Lua workers that serve iterators."""

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # With "no-referrer", as elsewhere on this gate, browsers send forms with the origin "null".
    "referrer-policy": "same-origin",
}
BOUNCE: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=0><title>Penstock</title>"
    "<p>One moment: opening the console.</p></html>"
)
"""Browsers send no cookie when a link on another site leads here. They send it when this page loads itself again."""


class Console:
    """An ASGI application for all paths under `/console`."""

    def __init__(self, engine: Engine, servers: Sequence[TcpServer[Any]] = ()) -> None:
        self.engine = engine
        self.servers = servers
        """Those whose sessions the console shows."""
        self.gates: Sequence[Gate] = ()
        self.sources: Mapping[str, str] = {}
        """Where settings came from, by their names."""
        self.sessions = Sessions()
        self.searches = Places(SEARCHES_MAX, "search")
        self.tails = Tails(engine)
        self.sampler = Sampler(engine.metrics)
        self.statements = Places(STATEMENTS_MAX, "statement")
        self.trials = Places(TRIALS_MAX, "trial")
        self.pages = {page.path: page for page in PAGES}
        self.actions = {action.path: action for action in ACTIONS}
        self._templates: Environment | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get(CONNECTION)

        async def send_timed(message: Message) -> None:
            if connection is not None:
                connection.give_time(STALL_S_MAX)
            await send(message)

        if connection is not None:
            connection.give_time(ENGINE_S_MAX)
        path = scope["path"].removeprefix(ROOT).rstrip("/") or "/"
        http = HttpRequest(scope, receive)
        try:
            response = static_answer(path) if path.startswith(STATIC) else await self._answered(http, path)
        except ClientDisconnect:
            return
        await (response or self._error(None, Refused(404, "there is no such file here")))(scope, receive, send_timed)

    # -- who asks, and for what

    async def _answered(self, http: HttpRequest, path: str) -> Response:
        cookie, site = http.cookies.get(COOKIE), http.headers.get("sec-fetch-site")
        is_known = Sessions.is_id(cookie)
        if not is_known and site == "cross-site" and http.headers.get("sec-fetch-mode") == "navigate":
            return HTMLResponse(BOUNCE, headers=HEADERS)
        id = cookie if cookie is not None and is_known else Sessions.new_id()
        nobody = Login(NOBODY, self.engine.access.usage[NOBODY.name])
        visit = Visit(self, http, path, nobody, id, {})
        try:
            response = await self._handled(visit)
        except Refused as refused:
            response = self._error(visit, refused)
        except PenstockError as error:
            response = self._error(visit, failure(error))
        except ClientDisconnect:
            raise
        except Exception as error:
            log.exception("a page of the console failed")
            response = self._error(visit, failure(Unexpected(repr(error))))
        if visit.id != cookie:
            self._set_cookie(visit, response)
        return response

    async def _handled(self, visit: Visit) -> Response:
        http, path = visit.http, visit.path
        visit.query = _pairs(http.scope["query_string"])
        ended = self._find_sender(visit)
        if http.method == "POST":
            visit.form = await self._form(http)
            sent = visit.field("csrf") or http.headers.get("x-csrf-token", "")
            if not self.sessions.is_csrf(visit.id, sent):
                raise Refused(
                    403,
                    "this form is not from a page that your browser has open now, so nothing was changed",
                    "Your session may have ended. Go back, load the page again, and send the form again.",
                )
        elif http.method not in ("GET", "HEAD"):
            raise Refused(405, f"{path} does not answer {http.method[:20]}", headers={"allow": "GET, HEAD, POST"})
        if path == LOGIN:
            return self._log_in(visit) if http.method == "POST" else self._login_page(visit, visit.one("ended"))
        if path == LOGOUT and http.method == "POST":
            return self._log_out(visit)
        if visit.login.principal is NOBODY:
            return self._to_login(visit, ended)
        if (refusal := visit.login.admit(0)) is not None:
            raise refusal
        page = self.pages.get(path)
        if http.method == "POST" and not (page is not None and page.posts):
            return await self._act(visit)
        if page is None:
            raise Refused(404, f"there is no page {path[:SHOWN_CHARACTERS_MAX]} here", "The navigation has all pages.")
        return await self._page(visit, page)

    def _find_sender(self, visit: Visit) -> bool:
        """Find out who sends a request; whether that was a session that has ended."""
        session = self.sessions.find(visit.id)
        if session is not None:
            try:
                visit.login = self.engine.access.by_credential(session.credential)
                visit.is_session = True
                return False
            except NotAuthenticated:
                self.sessions.end(visit.id)
        visit.login = known_sender(self.engine, visit.http)
        return session is not None

    async def _form(self, http: HttpRequest) -> Mapping[str, list[str]]:
        """The fields of a form. Raises Refused."""
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "application/x-www-form-urlencoded"):
            raise Refused(415, "forms come as application/x-www-form-urlencoded", headers={"connection": "close"})
        parts, size = [], 0
        try:
            async with asyncio.timeout(FORM_S_MAX):
                async for part in http.stream():
                    size += len(part)
                    if size > FORM_BYTES_MAX:
                        raise Refused(
                            413,
                            f"the form has more than {FORM_BYTES_MAX >> 10} KiB, so nothing was changed",
                            "Send less text at a time.",
                            {"connection": "close"},
                        )
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, "the form did not come in time", headers={"connection": "close"}) from None
        return _pairs(b"".join(parts))

    # -- logging in and out

    def _log_in(self, visit: Visit) -> Response:
        network, access = network_of(visit.http.client), self.engine.access
        if (wait_s := self.sessions.wait_s(network)) > 0:
            seconds = -int(-wait_s // 1)
            raise Refused(
                429,
                f"too many wrong tokens came from your address; try again in {seconds} s",
                headers={"retry-after": str(seconds)},
            )
        token = visit.field("token").strip()
        try:
            login = access.for_one_request(token, None)
            if access.is_closed and (login.credential is None or login.principal is NOBODY):
                raise NotAuthenticated(UNKNOWN)
        except NotAuthenticated as error:
            self.sessions.failed(network)
            visit.error = str(error)
            return self._login_page(visit, status=401)
        if (refusal := login.admit(0)) is not None:
            raise refusal
        if login.credential is not None:
            self.sessions.end(visit.id)
            visit.id = self.sessions.begin(login.credential)
        return RedirectResponse(_own_place(visit.field("next")), 303, HEADERS)

    def _log_out(self, visit: Visit) -> Response:
        self.sessions.end(visit.id)
        visit.id = Sessions.new_id()
        return RedirectResponse(url(LOGIN), 303, {**HEADERS, "clear-site-data": '"cache"'})

    def _to_login(self, visit: Visit, ended: bool) -> Response:
        """Send a browser to the form for a token; it comes back to where it is."""
        place = url(LOGIN, next=visit.here, ended="1" if ended else "")
        if "hx-request" in visit.http.headers:
            return Response("", 401, {**HEADERS, "hx-redirect": place})
        if visit.http.method == "POST":
            raise Refused(401, "you are not logged in any more, so nothing was changed", "Log in and try again.")
        return RedirectResponse(place, 303, HEADERS)

    def _login_page(self, visit: Visit, ended: str = "", status: int = 200) -> Response:
        next = visit.field("next") or visit.one("next")
        return self._rendered(visit, "login.html", {"title": "Log in", "next": next, "ended": bool(ended)}, status)

    def _set_cookie(self, visit: Visit, response: Response) -> None:
        # TLS may end at a proxy: then only the origin of a form tells.
        is_secure = visit.http.url.scheme == "https" or visit.http.headers.get("origin", "").startswith("https:")
        response.set_cookie(COOKIE, visit.id, path=ROOT, secure=is_secure, httponly=True, samesite="strict")

    # -- pages and actions

    async def _page(self, visit: Visit, page: Page, status: int = 200) -> Response:
        if not visit.may(page.right, everywhere=page.everywhere):
            assert page.right is not None
            raise NotAllowed(visit.login.principal.name, page.right.words, "*" if page.everywhere else "")
        found = await page.handler(visit)
        if isinstance(found, Response):
            for name, value in HEADERS.items():
                found.headers.setdefault(name, value)
            return found
        facts = {"title": page.title, "page": page, **found}
        return self._rendered(visit, page.template, facts, visit.status if status == 200 else status)

    async def _act(self, visit: Visit) -> Response:
        action = self.actions.get(visit.path)
        if action is None:
            raise Refused(404, f"there is no {visit.path[:SHOWN_CHARACTERS_MAX]} to send a form to")
        back = _own_place(visit.field("back"))
        try:
            sentence = await self._acted(visit, action)
        except (PenstockError, Refused) as error:
            refused = error if isinstance(error, Refused) else failure(error)
            # The page again, as it was, with what went wrong.
            visit.error, visit.path = refused.sentence, action.page
            visit.query = _pairs(urlsplit(back).query.encode())
            response = await self._page(visit, self.pages[action.page], refused.status)
            response.headers.update(refused.headers)
            return response
        self.sessions.note(visit.id, sentence)
        return RedirectResponse(visit.left or back, 303, HEADERS)

    async def _acted(self, visit: Visit, action: Action) -> str:
        if not visit.may(action.right, everywhere=action.everywhere):
            raise NotAllowed(visit.login.principal.name, action.right.words, "*" if action.everywhere else "")
        if action.confirm:
            wanted, typed = visit.field(action.confirm), visit.field("typed").strip()
            # Not every character of a name can be typed: then it is typed as the page shows it.
            if typed not in (wanted.strip(), escape(wanted).strip()):
                raise Refused(422, f"what you typed is not {wanted}, so nothing was changed", "Type it again.")
        return await action.handler(visit)

    def _error(self, visit: Visit | None, refused: Refused) -> Response:
        if visit is None:
            return Response(refused.sentence, refused.status, HEADERS, "text/plain")
        facts = {"title": TITLES.get(refused.status, "It did not work"), "refused": refused}
        return self._rendered(visit, "error.html", facts, refused.status, refused.headers)

    def _rendered(
        self,
        visit: Visit,
        template: str,
        facts: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        if self._templates is None:
            # Only who opens the console pays for it.
            from penstock.console.rendering import environment  # noqa: PLC0415

            self._templates = environment()
        found = self._templates.get_template(template)
        nav = (
            [] if visit.login.principal is NOBODY else [page for page in PAGES if page.nav and self._shows(visit, page)]
        )
        context = found.new_context({"page": None, "nav": nav, "visit": visit, **facts})
        if visit.part and status == 200:
            if visit.part not in found.blocks:
                raise Refused(404, f"this page has no part {visit.part[:SHOWN_CHARACTERS_MAX]}")
            text = "".join(found.blocks[visit.part](context))
        else:
            context.vars["note"] = self.sessions.take_note(visit.id)
            text = "".join(found.root_render_func(context))
        return HTMLResponse(text, status, {**HEADERS, **(headers or {})})

    @staticmethod
    def _shows(visit: Visit, page: Page) -> bool:
        return visit.may(page.right, everywhere=page.everywhere)


TITLES: Final = {
    400: "This cannot be asked",
    401: "You are not logged in",
    403: "This is not allowed",
    404: "There is nothing here",
    429: "Too much at once",
    503: "Not now",
}


def _pairs(text: bytes) -> Mapping[str, list[str]]:
    """The parameters of a query, or the fields of a form. Raises Refused."""
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Refused(
            400, f"the address or form is not UTF-8 behind its percent signs, or has more than {FIELDS_MAX} fields"
        ) from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _own_place(text: str) -> str:
    """A URL of the console; the overview instead of anything else that a form names."""
    is_own = text == ROOT or text.startswith((f"{ROOT}/", f"{ROOT}?"))
    return text if is_own and text.isascii() and text.isprintable() and "\\" not in text else ROOT
