"""How a client reaches a Penstock: a request goes in, its reply comes out. Over a socket, or to an engine in process.

A transport connects when it is asked to, and anew when a connection was lost; it never asks twice. What may be asked
again is decided by `calls`.
"""

import asyncio
from abc import ABC, abstractmethod

from penstock.errors import PenstockError
from penstock.model import Reply, Request

Answer = asyncio.Future[Reply]


class Transport(ABC):
    """One way to one Penstock. It belongs to one event loop."""

    url: str
    losses = 0
    """How many connections have been lost. While this stays the same, requests arrive in the order they were sent."""

    @abstractmethod
    async def ready(self, seconds: float) -> None:
        """Be connected, with room to send. Raises CannotConnect, TimeoutError when there is no room, ClientClosed."""

    @abstractmethod
    def start(self, request: Request) -> Answer:
        """Send a request; its reply, or its error, comes as a future. Raises CannotConnect if that cannot be now.

        A request that cannot be put into words is InvalidRequest or LimitExceeded; then nothing is sent.
        """

    @abstractmethod
    def give_up(self, answer: Answer) -> None:
        """Nobody waits for this one any more."""

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind. Whoever still waits for a reply is told."""


def abandon(answer: Answer) -> None:
    """Nobody will look at this future; if it has failed already, that is nobody's concern."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()


def settle(answer: Answer, outcome: Reply | PenstockError) -> None:
    """Put what came of it into a future, unless whoever waited for it has given up."""
    if answer.done():
        return
    if isinstance(outcome, PenstockError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
