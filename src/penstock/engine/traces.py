"""Where the time of a request goes: the gate gives each request a trace, and what makes the request wait adds to it.

The trace of the request that runs is in a context variable, so that no layer has to pass it on. Lines of the log get
its id from there, too.
"""

import secrets
import time
from contextvars import ContextVar
from itertools import count
from typing import Final

NOTED_S_MIN: Final = 0.001
"""The writer and the log leave shorter waits out. Most requests have no others, and cost next to nothing."""

CONNECTION: Final = "connection"
WRITER: Final = "writer"
STORE: Final = "store"
WORKER: Final = "worker"
JOB: Final = "job"
TURN: Final = "turn"
EVENTS: Final = "events"
WAITS: Final = {
    CONNECTION: "for its turn on the connection",
    WRITER: "in the writer's queue",
    STORE: "for the store's commit",
    WORKER: "for a worker",
    JOB: "for the work of a worker",
    TURN: "for other requests about the same subscription, queue or iterator",
    EVENTS: "for events",
}
"""What a request waits for, in words."""
OWN_WAITS: Final = (CONNECTION, EVENTS)
"""Waits that the client has caused: a long poll is not slow, nor is a request behind others of its connection."""

_RUN: Final = secrets.token_hex(3)
"""Tells the ids of this process from those of others."""
_NUMBERS: Final = count(1)


class Trace:
    """A request in flight, or several that came in one message.

    It refers to nothing else: tasks and timers keep their context, and so the trace, for longer than the request.
    """

    __slots__ = ("_number", "principal", "since", "spent")

    def __init__(self) -> None:
        self._number = next(_NUMBERS)
        self.since = time.monotonic()
        self.spent: dict[str, float] | None = None
        """Seconds by what they were spent on; of requests of one message together."""
        self.principal: str | None = None
        """Who sends it, where only the request itself tells, as over HTTP."""

    @property
    def id(self) -> str:
        return f"{_RUN}-{self._number:x}"

    def waited(self, what: str, seconds: float) -> None:
        if self.spent is None:
            self.spent = {}
        self.spent[what] = self.spent.get(what, 0.0) + seconds

    def own_s(self, took_s: float) -> float:
        """How much of a time the server itself has taken."""
        return took_s - sum(self.spent.get(each, 0.0) for each in OWN_WAITS) if self.spent else took_s


CURRENT: Final[ContextVar[Trace | None]] = ContextVar("penstock_request", default=None)
"""The request that runs. Tasks that it starts inherit it."""


def note(what: str, seconds: float) -> None:
    """Add a wait to the request that runs, if one does."""
    if (trace := CURRENT.get()) is not None:
        trace.waited(what, seconds)
