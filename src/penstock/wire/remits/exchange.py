"""One frame in, its answer out: the request that a frame makes, and how its reply becomes a frame."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.model import Reply, Request
from penstock.wire.remits.encoding import error_frame

Write = Callable[[Any], bytes]
"""Makes the answer to a request from a reply of its kind."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a frame asks for.

    A frame that asks wrongly, or for nothing that the engine knows, has no request: `answer()` is its answer at once.
    `refused` says why it was refused, for logs; clients are told the code's name.
    """

    request: Request | None
    write: Write
    refused: str | None = None

    def answer(self, reply: Reply | PenstockError | None = None) -> bytes:
        """The finished frame, from the reply to the request or the error that came instead."""
        return error_frame(reply) if isinstance(reply, PenstockError) else self.write(reply)
