"""One request of a browser: who sends it, what it asks for, and what handlers of pages and actions may do with it."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.engine.engine import AnyEncoder
from penstock.errors import PenstockError
from penstock.gates.api.problems import Problem
from penstock.model import Reply, Request, Right
from penstock.model.access import EVERYWHERE
from penstock.model.times import EXAMPLE, ticks_of_text

if TYPE_CHECKING:
    from penstock.console.app import Console

ROOT: Final = "/console"
NUMBER_MAX: Final = (1 << 63) - 1

RETRY_S: Final = 2

R = TypeVar("R", bound=Reply)


class Refused(Exception):
    """An answer of the console itself that is no success: what happened, and what to do."""

    def __init__(self, status: int, sentence: str, advice: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.advice = advice
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `path` is what follows `/console`. `right` is needed somewhere, with `everywhere` for the whole store;
    None: every principal may see it. `nav` is its name in the navigation, or `within` the path of the page
    there that it belongs to. `group` is the heading under which the navigation has it. With `posts` it also answers a
    form that is no action, such as a statement that is too long for an address.
    """

    path: str
    title: str
    template: str
    handler: "Callable[[Visit], Awaitable[Mapping[str, Any] | Response]]"
    right: Right | None = Right.READ
    everywhere: bool = False
    nav: str = ""
    group: str = ""
    within: str = ""
    posts: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A change. `page` is the path of the page that shows an error. `confirm` is the field of the form whose value has
    to be typed again, into the field `typed`. The handler returns what the next page says.
    """

    path: str
    page: str
    handler: "Callable[[Visit], Awaitable[str]]"
    right: Right
    everywhere: bool = False
    confirm: str = ""


@dataclass(slots=True)
class Visit:
    console: "Console"
    http: HttpRequest
    path: str
    """Behind `/console`, as in the table."""
    login: Login
    id: str
    """Names the browser; see `penstock.console.sessions`."""
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]] = field(default_factory=dict)
    is_session: bool = False
    """Whether the browser has logged in with a token."""
    error: str = ""
    """Why an action of this page has failed."""
    left: str | None = None
    """Where an action sends the browser, if not back to its page."""
    status: int = 200
    """A page that shows why it cannot answer a form sets it."""

    @property
    def engine(self) -> Engine:
        return self.console.engine

    @property
    def part(self) -> str:
        """The block that a script refreshes; empty for a whole page."""
        return self.one("part")

    @property
    def here(self) -> str:
        """The URL of the page, without the part."""
        kept = [(name, value) for name, values in self.query.items() if name != "part" for value in values]
        return url(self.path, kept)

    def part_url(self, part: str) -> str:
        """Where a script gets a part of the page from."""
        here = self.here
        return f"{here}{'&' if '?' in here else '?'}part={part}"

    @property
    def csrf(self) -> str:
        return self.console.sessions.csrf(self.id)

    def may(self, right: Right | None, *, everywhere: bool = False) -> bool:
        """Whether the principal has a right somewhere, or for the whole store."""
        if right is None:
            return True
        principal = self.login.principal
        if right & ~principal.rights:
            return False
        return not everywhere or all(EVERYWHERE in principal.views[one].scopes for one in right)

    async def run(self, request: Request, job: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module finds in a worker: it gets the store, these arguments, and what the principal
        may see of what `request` is about; None: all of it.
        """
        view = self.engine.permitted(self.login.principal, request)
        return await self.engine.pool.run(job, *arguments, view)

    async def ask(self, request: Request, kind: type[R], present: AnyEncoder | None = None) -> R:
        """The engine's reply to the principal. `present` is called in a worker, with the events of the reply."""
        reply = await self.engine.execute(self.login.principal, request, present, self.login)
        assert isinstance(reply, kind)
        return reply

    def refused(self, error: "Refused | PenstockError") -> str:
        """The sentence about an error that a page shows itself, with its form as it was. Its status is the error's."""
        refused = error if isinstance(error, Refused) else failure(error)
        self.status = refused.status
        sentence = refused.sentence[:1].upper() + refused.sentence[1:]
        return f"{sentence}. {refused.advice}".rstrip()

    async def record(self, stream: str, what: str, **facts: object) -> None:
        """Tell the audit about a change that is not a request of the engine."""
        await self.engine.record(self.login.principal, stream, what, **facts)

    def one(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return self.query.get(name, [default])[0]

    def number(self, name: str, default: int) -> int:
        """A parameter of the query that is a whole number from 0 on. Raises Refused."""
        return number(name, text) if (text := self.one(name).strip()) else default

    def field(self, name: str, default: str = "") -> str:
        """A field of the form."""
        return self.form.get(name, [default])[0]


class Places:
    """How many of something expensive may be under way at once; one more is answered *busy*."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place for as long as a `with` block lasts. Raises Refused if all are taken."""
        if self.taken >= self.most:
            raise Refused(
                503,
                f"the server runs {self.most} {self.what}{'' if self.most == 1 else 's'} at a time, and no more now",
                "Try again in a moment.",
                {"retry-after": str(RETRY_S)},
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


def number(name: str, text: str) -> int:
    """A whole number as people type it, perhaps with separators. Raises Refused."""
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19 or int(digits) > NUMBER_MAX:
        raise Refused(400, f"{name} is {text[:60]!r}, and must be a whole number", "Go back and correct it.")
    return int(digits)


def ticks(text: str, advice: str = f"Write it in UTC, as in {EXAMPLE}.") -> int:
    """A time as people type it. Raises Refused."""
    try:
        return ticks_of_text(text.strip())
    except ValueError:
        raise Refused(400, f"the time is {text[:60]!r}", advice) from None


def url(path: str, query: Iterable[tuple[str, Any]] = (), **others: Any) -> str:
    """The URL of a page by its path in the table. Parameters that are None or empty are left out."""
    pairs = [*query, *others.items()]
    text = urlencode([(name.rstrip("_"), value) for name, value in pairs if value not in (None, "")])
    place = ROOT if path == "/" else f"{ROOT}{path}"
    return f"{place}?{text}" if text else place


def failure(error: PenstockError) -> Refused:
    """An error of the engine as an answer: with the status that the API gives it."""
    problem = Problem.of(error)
    headers = {name: value for name, value in problem.headers.items() if name == "retry-after"}
    return Refused(problem.status, str(error), ADVICE.get(problem.status, ""), headers)


ADVICE: Final = {
    401: "Log in with a token that is valid here.",
    403: "Ask an administrator for the right, or log in with another token.",
    404: "It may have been deleted, or your principal may not see it.",
    409: "Load the page again to see what has changed.",
    413: "Ask for less at a time.",
    429: "Wait for the time that is named, then load the page again.",
    500: "The server's log has the details.",
    503: "The server is busy or stopping. Load the page again in a moment.",
}
"""The advice on pages about errors, by status."""
