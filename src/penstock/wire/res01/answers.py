"""How the replies to a message's requests become its answers, and how a client reads them."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import InvalidRequest, PenstockError, Unexpected
from penstock.model import Done, Reply, Request
from penstock.wire.res01.dialects import Dialect, Frames, error_of, legacy_commit_error
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.kinds import LONG, Field, Layout, Values

Replies = Sequence[Reply | PenstockError]


class Answer:
    """One answer for each request: its code and the fields of the reply. With `each`, it comes as it is ready."""

    def __init__(
        self,
        code: str,
        reply: type[Reply],
        *fields: Field,
        make: Callable[..., Any] | None = None,
        each: bool = False,
    ) -> None:
        self.code = code.encode()
        self.reply = reply
        self.layout = Layout(make or reply, fields)
        self.each = each

    def payloads(self, requests: Sequence[Request], replies: Replies, dialect: Dialect) -> list[Frames]:
        """The answers, in order, from the replies, in order."""
        return [self._payload(request, reply, dialect) for request, reply in zip(requests, replies, strict=False)]

    def _payload(self, request: Request, reply: Reply | PenstockError, dialect: Dialect) -> Frames:
        if not isinstance(reply, self.reply):
            return self.failed(self._error(reply), dialect)
        payload = [self.code]
        self.write(payload, request, reply, dialect)
        return payload

    def _error(self, reply: Reply | PenstockError) -> PenstockError:
        if isinstance(reply, PenstockError):
            return reply
        return Unexpected(f"{type(reply).__name__} came where {self.reply.__name__} was wanted")

    def failed(self, error: PenstockError, dialect: Dialect) -> Frames:
        """The answer in place of this one."""
        return dialect.failed(error)

    def write(self, payload: Frames, _request: Request, reply: Reply, dialect: Dialect) -> None:
        """Append the fields."""
        self.layout.write(payload, reply, dialect)

    def read(self, fields: Fields) -> Reply | PenstockError:
        """The reply that a client gets."""
        reply: Reply = self.layout.read(fields)
        return reply


class CommitAnswer(Answer):
    """CR, which has the older results on an endpoint for older clients."""

    def write(self, payload: Frames, request: Request, reply: Reply, dialect: Dialect) -> None:
        """Result and Error are empty in the older results of a commit that is on disk."""
        if dialect.legacy:
            payload += (b"", b"")
        super().write(payload, request, reply, dialect)

    def failed(self, error: PenstockError, dialect: Dialect) -> Frames:
        """The older results have errors of their own."""
        return legacy_commit_error(error) if dialect.legacy else dialect.failed(error)


class Echo(Answer):
    """Done: the fields repeat what was asked for."""

    def __init__(self, code: str, *fields: Field) -> None:
        super().__init__(code, Done, *fields, make=lambda **_echoed: Done())

    def write(self, payload: Frames, request: Request, _reply: Reply, dialect: Dialect) -> None:
        """Append the fields of the request."""
        self.layout.write(payload, request, dialect)


class Progressed(Answer):
    """SP: one answer for all requests, or the first error."""

    def __init__(self) -> None:
        super().__init__("SP", Done, Field("SubscriptionId", Values(LONG)))

    def payloads(self, requests: Sequence[Any], replies: Replies, dialect: Dialect) -> list[Frames]:
        """The ids of all subscriptions."""
        for reply in replies:
            if isinstance(reply, PenstockError):
                return [dialect.failed(reply)]
        return [[self.code, b"%d" % len(requests), *(b"%d" % request.subscription for request in requests)]]


class WereSet(Answer):
    """ST: one answer for all requests, with an empty frame for each that was done, and the reason for others."""

    def __init__(self) -> None:
        super().__init__("ST", Done)

    def payloads(self, _requests: Sequence[Request], replies: Replies, dialect: Dialect) -> list[Frames]:
        """A frame for each."""
        reasons = [dialect.reason(reply) if isinstance(reply, PenstockError) else b"" for reply in replies]
        return [[self.code, b"%d" % len(reasons), *reasons]]

    def read(self, fields: Fields) -> Reply | PenstockError:
        """Our client sets one at a time."""
        if (count := fields.count_to_end("Count", 1)) != 1:
            raise InvalidRequest("Count", f"is {count} where one subscription was set")
        reason = fields.frame("Reason")
        return error_of(reason) if reason else Done()
