"""A limit, in bytes, for the requests that are in flight in the whole server.

A gate takes the bytes of a message from the budget when it has read the message. It gives them back when the last
answer is ready, or when the client is gone and the engine has dropped the request. In between the request may wait in
the gate, for a worker or for the writer: one sum covers all these queues.

A gate answers *busy* to a message that finds no room. Each connection also has a limit, far below the sum, at which its
gate stops reading.
"""

from collections import Counter
from typing import Final

from penstock.errors import Busy, PenstockError, ReaderBusy, WriterBusy
from penstock.model import Request
from penstock.model.requests import Repeat

CONNECTIONS_MIN: Final = 16
"""The gate stops reading from a connection that has more than this part of the budget. It still takes the request that
exceeds the limit, so a client can send any request."""
FIELD_BYTES: Final = 64
"""Overhead of a field of a message, and of a message of a log: a request may have many short or empty ones."""


def drop_traceback(error: PenstockError) -> None:
    """Break the cycle between an error and the frames of its traceback, which refer to the error and to the request.

    Otherwise the request stays in memory until the garbage collector finds the cycle.
    """
    error.__traceback__ = None


class Budget:
    """The bytes of all requests that gates have taken and not answered."""

    __slots__ = ("_bytes_max", "_refused", "_requests", "connection_bytes_max", "taken")

    def __init__(self, bytes_max: int, refused: Counter[str]) -> None:
        self.taken = 0
        self.connection_bytes_max = bytes_max // CONNECTIONS_MIN
        self._bytes_max = bytes_max
        self._requests = 0
        self._refused = refused

    def take(self, size: int) -> bool:
        """Count these bytes; False if there is no room for them.

        While at most half of the budget is taken there is room for any request, even for one that exceeds the budget.
        """
        taken = self.taken + size
        if taken > self._bytes_max and 2 * self.taken > self._bytes_max:
            return False
        self.taken = taken
        self._requests += 1
        return True

    def give_back(self, size: int) -> None:
        """Count these bytes no more."""
        self.taken -= size
        self._requests -= 1

    def busy(self, request: Request) -> Busy:
        """The error for a request that found no room."""
        self._refused["requests_busy"] += 1
        return (ReaderBusy if request.repeat is Repeat.READS else WriterBusy)(self._requests)
