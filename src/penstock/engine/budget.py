"""How many bytes of requests may be under way in the whole server.

A gate takes the bytes of a message when it has read it, and gives them back when its last answer is ready, or when
whoever sent it is gone and the engine has let go of it. In between they may lie anywhere: in a gate until it is their
turn, with a worker, in the writer's queue. So there is one sum, and those queues need no sums of their own.

A message that finds no room is answered *busy*. Each connection has a limit of its own, far below the sum: there its
gate reads no further. Where a gate cannot help reading, a client with too much is answered *busy* by itself.
"""

from collections import Counter
from typing import Final

from penstock.errors import Busy, PenstockError, ReaderBusy, WriterBusy
from penstock.model import Request
from penstock.model.requests import Repeat

CONNECTIONS_MIN: Final = 16
"""How many connections it takes at least to have everything under way: one with a larger share is not read from. The
request that goes beyond is still taken, so that any request can be sent."""
CLIENTS_MIN: Final = 4
"""How many clients it takes at a gate that cannot hold them: one that would have a larger share is answered busy."""
FIELD_BYTES: Final = 64
"""What a field of a message, or a message of a log, counts for besides its bytes: many may be short, or empty."""


def let_go(error: PenstockError) -> None:
    """A request has come to this error, and nothing else of it is needed.

    Its traceback has frames, and some of them have the error and the request: a cycle, which would stay in memory until
    somebody looks for cycles.
    """
    error.__traceback__ = None


class Budget:
    """The bytes of all requests that gates have taken and not answered."""

    __slots__ = ("_bytes_max", "_refused", "_requests", "client_bytes_max", "connection_bytes_max", "taken")

    def __init__(self, bytes_max: int, refused: Counter[str]) -> None:
        self.taken = 0
        """The sum at present."""
        self.connection_bytes_max = bytes_max // CONNECTIONS_MIN
        self.client_bytes_max = bytes_max // CLIENTS_MIN
        self._bytes_max = bytes_max
        self._requests = 0
        self._refused = refused

    def take(self, size: int) -> bool:
        """Count these bytes; False if there is no room for them.

        While at most half is taken there is room for any request: also for one that is larger than all of this.
        """
        taken = self.taken + size
        if taken > self._bytes_max and 2 * self.taken > self._bytes_max:
            return False
        self.taken = taken
        self._requests += 1
        return True

    def give_back(self, size: int) -> None:
        """These bytes, taken before, are not needed any more."""
        self.taken -= size
        self._requests -= 1

    def busy(self, request: Request) -> Busy:
        """What a request is answered that found no room."""
        self._refused["requests_busy"] += 1
        return (ReaderBusy if request.repeat is Repeat.READS else WriterBusy)(self._requests)
