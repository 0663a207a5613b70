"""How a client reaches a Penstock: a request goes in, its reply comes out. Over a socket, or to an engine in process.

A transport connects by itself when it is asked, and connects anew when a connection was lost; it never asks twice. What
may be asked again is decided by `calls`.
"""

import asyncio
from abc import ABC, abstractmethod

from penstock.errors import PenstockError
from penstock.model import Reply, Request

Answer = asyncio.Future[Reply]


class Transport(ABC):
    """One way to one Penstock. It belongs to one event loop."""

    url: str
    is_silent = False
    """Whether nobody is told when a connection is lost."""

    @abstractmethod
    async def ready(self, seconds: float) -> None:
        """Be connected, or raise CannotConnect within so many seconds."""

    @abstractmethod
    def start(self, request: Request) -> Answer:
        """Send a request; its reply, or its error, comes as a future. Raises ConnectionLost if that cannot be now.

        Cancelling the future gives the request up, as far as this end is concerned.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind. Whoever still waits for a reply is told."""


def settle(answer: Answer, outcome: Reply | PenstockError) -> None:
    """Put what came of it into a future, unless whoever waited for it has given up."""
    if answer.done():
        return
    if isinstance(outcome, PenstockError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
