"""One message in, its answers out: the requests that a message makes, and how their replies are put into frames."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.model import Event, Reply, Request
from penstock.wire.res01.codes import code_of

Frames = list[bytes]
Replies = Sequence[Reply | PenstockError]
Compose = Callable[[Replies], list[Frames]]
"""Makes the payloads of a message's answers, in order, from the replies to its requests, in order."""
Presenter = Callable[[list[Event]], Frames]
"""Turns events into frames; a function of a module, so that workers can be told to call it."""


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
    requests: tuple[Request, ...]
    compose: Compose
    present: Presenter
    one_each: bool = False

    def answers(self, replies: Replies) -> list[Frames]:
        """The finished messages."""
        return [self.envelope.around(payload) for payload in self.compose(replies)]


def error_payload(error: PenstockError) -> Frames:
    """ER with its code and sentence."""
    return refusal_payload(code_of(error), sentence_of(error))


def refusal_payload(code: int, sentence: str) -> Frames:
    """ER with a code and a sentence."""
    return [b"ER", b"%d" % code, sentence.encode(errors="replace")]


def sentence_of(error: PenstockError) -> str:
    """What happened. Never empty: in some answers an empty reason means success."""
    return str(error) or type(error).__name__
