"""The API as an application: the sender of a call, its body, its limits, its answer.

The API authenticates a call before it reads the body. The bytes of the body count against the engine's budget until the
answer, and those of the answer until the client has taken them. A client that takes nothing, or sends too slowly, loses
its connection; this does not delay other clients.
"""

import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.errors import PenstockError, ReaderBusy, Unexpected, drop_traceback
from penstock.gates.api import problems
from penstock.gates.api.call import ENGINE_S_MAX, STALL_S_MAX, Answer, Call, ClientGone
from penstock.gates.api.followers import SharedReads
from penstock.gates.api.problems import Problem
from penstock.gates.api.routes import Router, parsed_query
from penstock.gates.api.table import ROUTES
from penstock.gates.api.webhooks import Webhooks

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 << 10
"""Longer answers go out in pieces of this size. Each waits until the client has taken the one before."""

NO_BEARER: Final = (
    "this server has principals, and this request has no token: send the header Authorization: Bearer TOKEN "
    "(of commands --token or PENSTOCK_TOKEN)"
)

Sender = Callable[[HttpRequest, Callable[[Login], None] | None], Login]
"""Finds the sender of a request. With a function, which is called when the sender's rights end, the sender counts as a
connection until it leaves. Raises NotAuthenticated or OverLimit."""


class Api:
    """An ASGI application."""

    def __init__(self, engine: Engine, sender: Sender) -> None:
        self.engine = engine
        self.sender = sender
        self.router = Router(ROUTES)
        self.reads = SharedReads(engine)
        self.webhooks = Webhooks(engine.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self, scope, receive)
        try:
            with suppress(ClientGone):
                answer = await self._answered(call)
                call.give_back()
                await self._send(call, answer, send)
                self.engine.metrics.gate_sent["http"] += 1
        finally:
            call.close()

    async def _answered(self, call: "Call") -> Answer:
        self.engine.metrics.gate_received["http"] += 1
        try:
            try:
                return await self._handled(call)
            except PenstockError as error:
                drop_traceback(error)
                raise Problem.of(error) from None
            except Exception as error:
                if isinstance(error, Problem | ClientGone):
                    raise
                log.exception("a call of the API failed")
                raise Problem.of(Unexpected(repr(error))) from None
        except Problem as problem:
            headers = dict(problem.headers)
            if not call.is_read:
                # The connection could only go on after the rest of the body.
                headers["connection"] = "close"
            return Answer(problem.content(), problem.status, problems.MEDIA_TYPE, headers)

    async def _handled(self, call: "Call") -> Answer:
        raw = call.scope.get("raw_path") or call.scope["path"].encode()
        method = call.scope["method"]
        call.route, names = self.router.find(method, raw.decode("latin-1"))
        known = {one.name: one.is_several for one in call.route.parameters if one.where == "query"}
        if names is None:
            known |= dict.fromkeys(call.route.names, False)
        call.query = parsed_query(call.scope["query_string"].decode("latin-1"), known)
        if names is None:
            names = {name: call.query[name][0] for name in call.route.names if name in call.query}
            if missing := [name for name in call.route.names if name not in names]:
                raise Problem(400, f"the parameter {missing[0]} is missing")
        call.names = names
        for one in call.route.parameters:
            if one.required and one.name not in (call.headers if one.where == "header" else call.query):
                raise Problem(400, f"the {one.where} parameter {one.name} is missing")
        if not call.route.is_public:
            await call.receive(NO_BEARER)
            if (refusal := call.login.admit(len(call.body))) is not None:
                raise refusal
        call.connection.give_time(ENGINE_S_MAX)
        answer: Answer = await call.route.handler(call)
        return answer

    async def _send(self, call: Call, answer: Answer, send: Send) -> None:
        size, is_counted = len(answer.content), False
        if size > PIECE_BYTES:
            # The server must not keep more and more bytes for a client that takes none.
            is_counted = self.engine.budget.take(size)
            if not is_counted:
                problem = Problem.of(ReaderBusy(1))
                answer = Answer(problem.content(), problem.status, problems.MEDIA_TYPE, problem.headers)
        try:
            await self._send_counted(call, answer, send)
        finally:
            if is_counted:
                self.engine.budget.give_back(size)

    async def _send_counted(self, call: Call, answer: Answer, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        if answer.media is not None:
            headers.append((b"content-type", answer.media.encode("latin-1")))
        if answer.pieces is None and answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers.append((b"content-length", b"%d" % len(answer.content)))
        call.connection.give_time(STALL_S_MAX)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        rest = answer.content
        if len(rest) > PIECE_BYTES:
            await self._send_piece(call, rest, send)
            rest = b""
        if answer.pieces is not None and call.scope["method"] != "HEAD":
            async with aclosing(answer.pieces) as pieces:
                async for piece in pieces:
                    await self._send_piece(call, piece, send)
        call.connection.give_time(STALL_S_MAX)
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    @staticmethod
    async def _send_piece(call: Call, piece: bytes, send: Send) -> None:
        """Send a part of an answer, as fast as the client takes it."""
        for start in range(0, len(piece), PIECE_BYTES):
            call.connection.give_time(STALL_S_MAX)
            part = piece[start : start + PIECE_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
