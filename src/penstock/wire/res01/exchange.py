"""One message in, its answers out: the requests that a message makes, and how their replies are put into frames."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.model import Reply, Request
from penstock.wire.res01.commands import Command
from penstock.wire.res01.dialects import Dialect, Frames, Presenter

Replies = Sequence[Reply | PenstockError]


class Envelope(NamedTuple):
    """What comes back unchanged: the routing frames, the protocol's tag and the RequestId."""

    routing: Frames
    tag: bytes
    request_id: bytes

    def around(self, payload: Frames) -> Frames:
        """An answer: the envelope, then its command and details."""
        return [*self.routing, b"", self.tag, self.request_id, *payload]


class Exchange(NamedTuple):
    """What a message asks for.

    All requests are carried out; `answers` gets their replies, in order: all of them, or with `one_each` each by itself
    as it comes. A message that asks for nothing, or wrongly, has no requests and is answered at once. Every message has
    at least one answer.
    """

    envelope: Envelope
    dialect: Dialect
    command: Command | None = None
    requests: tuple[Request, ...] = ()
    settled: Frames | None = None
    """The answer, where no request is needed for it."""

    @property
    def name(self) -> str:
        """The command, or `other` for one that is not known."""
        return "other" if self.command is None else self.command.name

    @property
    def present(self) -> Presenter:
        """How a worker turns what it has read into frames."""
        return self.dialect.present if self.command is None or self.command.present is None else self.command.present

    @property
    def one_each(self) -> bool:
        """Whether answers come one for each request, as they are ready."""
        return self.command is not None and self.command.answer.each

    def answers(self, replies: Replies) -> list[Frames]:
        """The finished messages."""
        if self.settled is not None or self.command is None:
            return [self.envelope.around(self.settled or [])]
        payloads = self.command.answer.payloads(self.requests, replies, self.dialect)
        return [self.envelope.around(payload) for payload in payloads]

    def failed(self, error: PenstockError) -> Frames:
        """The finished message that tells an error in place of an answer."""
        return self.envelope.around(self.dialect.failed(error))
