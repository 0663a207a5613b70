"""One call of the API: its parameters, its body, its answer; and clients that wait for events."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope

from penstock.engine.access import NOBODY, Access, Login
from penstock.engine.engine import FIELD_BYTES, AnyEncoder
from penstock.errors import LimitExceeded, NotAuthenticated, WriterBusy
from penstock.gates.api.media import JSON_TYPE
from penstock.gates.api.routes import Route
from penstock.model import Reply, Request
from penstock.tcp import CloseReason

if TYPE_CHECKING:
    from penstock.gates.api.api import Api

T = TypeVar("T")

CONNECTION: Final = "connection"
"""In the state of a request: the connection that it came on, which ends when its time is up."""
WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods of which no request has a body; one of another method that has is read, or ends its connection."""
ENGINE_S_MAX: Final = 60.0
"""How long the engine may take for a call, in addition to what the call wants to wait."""
BODY_BYTES_PER_S_MIN: Final = 64 << 10
"""How fast a long body must come."""
STALL_S_MAX: Final = 10.0
"""How long a client may take for a piece of an answer, and for the first bytes of its body."""


class Timed(Protocol):
    def give_time(self, seconds: float) -> None:
        """End the connection unless it gets time again."""


class _Untimed:
    def give_time(self, seconds: float) -> None:
        pass


@dataclass(slots=True)
class Answer:
    content: bytes = b""
    status: int = 200
    media: str | None = JSON_TYPE
    headers: dict[str, str] = field(default_factory=dict)
    pieces: AsyncGenerator[bytes, None] | None = None
    """Instead of a content: what comes later, until it ends."""


class ClientGone(Exception):
    """The client has gone and does not wait for the answer."""


class Call:
    """One request of a client, with what it asks for."""

    route: Route
    names: Mapping[str, str]
    query: Mapping[str, list[str]]
    login: Login
    """The sender, once that is known."""

    def __init__(self, api: "Api", scope: Scope, receive: Receive) -> None:
        self.api = api
        self.engine = api.engine
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.request = HttpRequest(scope)
        self.connection: Timed = scope.get("state", {}).get(CONNECTION) or _Untimed()
        self.body = b""
        self.bytes_max = api.engine.settings.http_body_bytes_max
        self.is_read = scope["method"] in WITHOUT_BODY
        self._receive = receive
        self._taken: list[int] = []
        self._attendance: Attendance | None = None

    def attend(self) -> "Attendance":
        """Wait for events from now on. Raises OverLimit."""
        self._attendance = attendance = Attendance(
            self.engine.access, partial(self.api.sender, self.request), self.until_gone
        )
        self.login = attendance.login
        return attendance

    def close(self) -> None:
        """The call has its answer, or its client has gone."""
        self.give_back()
        if self._attendance is not None:
            self._attendance.close()

    def one(self, name: str) -> str | None:
        """A parameter of the query; None if it is not there."""
        found = self.query.get(name)
        return None if found is None else found[0]

    async def execute(self, request: Request, present: AnyEncoder | None = None) -> Reply:
        return await self.engine.execute(self.login.principal, request, present, self.login)

    async def receive(self, nobody: str) -> None:
        """Find the sender and read the body. Raises NotAuthenticated; without a credential, with this sentence."""
        self._recognise(nobody)
        if not self.is_read:
            await self.read_body()
            # The body may have taken long, and an administrator may have revoked the sender since.
            self._recognise(nobody)

    def _recognise(self, nobody: str) -> None:
        self.login = self.api.sender(self.request, None)
        if self.login.principal is NOBODY:
            raise NotAuthenticated(nobody)

    async def read_body(self) -> None:
        """Read the body, if the route has one. Raises LimitExceeded, WriterBusy or ClientGone."""
        if self.is_read:
            return
        maximum = self.bytes_max
        announced = self.headers.get("content-length", "0")
        # The protocol has refused a length that is no number.
        size = int(announced) if announced.isdecimal() else 0
        if size > maximum:
            raise LimitExceeded("http_body_bytes_max", size, maximum)
        parts: list[bytes] = []
        self._take(FIELD_BYTES)
        deadline = asyncio.get_running_loop().time() + STALL_S_MAX + size / BODY_BYTES_PER_S_MIN
        size = 0
        while not self.is_read:
            left = deadline + size / BODY_BYTES_PER_S_MIN - asyncio.get_running_loop().time()
            self.connection.give_time(max(0.0, left))
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > maximum:
                raise LimitExceeded("http_body_bytes_max", size, maximum)
            if part:
                self._take(len(part))
                parts.append(part)
            self.is_read = not message.get("more_body", False)
        self.body = b"".join(parts)

    def _take(self, size: int) -> None:
        if not self.engine.budget.take(size):
            self.engine.metrics.refused["requests_busy"] += 1
            raise WriterBusy(len(self._taken))
        self._taken.append(size)

    def give_back(self) -> None:
        for size in self._taken:
            self.engine.budget.give_back(size)
        self._taken.clear()

    async def until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Attendance:
    """A client that waits for events: until it is gone, or may not wait any more.

    While it waits it counts as a connection and a long poll of its principal.
    """

    def __init__(
        self,
        access: Access,
        enter: Callable[[Callable[[Login], None]], Login],
        until_gone: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`enter` says who it is, and gets what to call when that ends. Raises what that raises, or OverLimit."""
        loop = asyncio.get_running_loop()
        self._access = access
        self._over: asyncio.Future[None] = loop.create_future()
        self.login = login = enter(self._revoked)
        if (refusal := login.begin_polls(1)) is not None:
            access.leave(login)
            raise refusal
        self._watching = loop.create_task(until_gone())
        self._watching.add_done_callback(self._gone)

    def close(self) -> None:
        self._watching.cancel()
        if self._over.done():
            self._over.exception()
        self._over.cancel()
        self.login.end_polls(1)
        self._access.leave(self.login)

    def _revoked(self, _login: Login) -> None:
        self._end(NotAuthenticated(CloseReason.REVOKED))

    def _gone(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled():
            self._end(ClientGone())

    def _end(self, why: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(why)

    async def wait(self, work: "asyncio.Future[Any]", seconds: float | None = None) -> bool:
        """Wait for work, at most so long; whether it is done. Raises ClientGone, or NotAuthenticated once revoked."""
        await asyncio.wait({work, self._over}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            self._over.result()
        return work.done()

    async def result(self, work: "asyncio.Future[T]") -> T:
        """The result of work. If the client goes, the server gives the work up."""
        try:
            await self.wait(work)
        finally:
            work.cancel()
        return work.result()
