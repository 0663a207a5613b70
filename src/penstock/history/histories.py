"""Where a history is read from: a store itself, or a server.

A store is read in steps, each in a short snapshot of its own, so that reading never holds up whoever writes. Records
come as they are stored; whoever reads them takes out what is wanted.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from penstock.errors import StoreChanged
from penstock.model import EventFilter
from penstock.store import open_reader
from penstock.store.contract import ReadLimits, StoreIdentity
from penstock.store.record import Record
from penstock.store.unread import Unread

STEP_EVENTS_MAX: Final = 16_384
STEP_BYTES_MAX: Final = 8 << 20
STEP_MS_MAX: Final = 25
"""One step, and with it one batch for Spark. It is short because the last step of a sparse range may look beyond it."""
CONTEXTS_PER_QUERY: Final = 1000
SERVED: Final = ("penstock://", "zmq+tcp://")


class Now(NamedTuple):
    """What a history is at a moment; `bytes` are those of all its events."""

    identity: StoreIdentity
    head: int
    bytes: int


class History(Protocol):
    """A history that is open for reading."""

    def now(self) -> Now:
        """What it is at this moment."""

    def context_bytes(self, context: str) -> int:
        """The bytes of a context's events; 0 if there is no such context."""

    def position_of(self, context: str, ticks: int) -> int | None:
        """The first position of a context whose event time is at or after a time, if there is one."""

    def records(self, wanted: EventFilter, position: int, end: int) -> Iterator[list[Record]]:
        """Records that may hold wanted events, from the one that holds `position` on.

        All that begin before `end`; there may be more. No position comes twice, also if records are merged meanwhile.
        """

    def close(self) -> None:
        """Release everything."""


def open_history(url: str) -> History:
    """Open what a URL names."""
    if not url.startswith(SERVED):
        return StoredHistory(url)
    # A client takes a while to import, and most reads need none.
    from penstock.history.served import ServedHistory  # noqa: PLC0415

    return ServedHistory(url)


def check_identity(expected: StoreIdentity, actual: StoreIdentity, where: str) -> None:
    """Raise StoreChanged if positions of one store would be read in another."""
    if expected != actual:
        raise StoreChanged(f"{_shown(expected)}, as {where} says", _shown(actual))


def _shown(identity: StoreIdentity) -> str:
    return f"timeline {identity.timeline} of store {identity.id}"


class StoredHistory:
    """A store, read by this process itself."""

    def __init__(self, url: str) -> None:
        self._store = open_reader(url)

    def now(self) -> Now:
        """See History."""
        stats = self._store.stats()
        return Now(StoreIdentity(stats.store_id, stats.timeline), stats.head, stats.body_bytes)

    def context_bytes(self, context: str) -> int:
        """See History."""
        after = context[:-1]
        while found := self._store.contexts(after, CONTEXTS_PER_QUERY):
            for info in found:
                if info.name == context:
                    return info.bytes
            after = found[-1].name
            if after > context:
                return 0
        return 0

    def position_of(self, context: str, ticks: int) -> int | None:
        """See History."""
        limits, start = ReadLimits(STEP_EVENTS_MAX, STEP_BYTES_MAX), 1
        while True:
            search = self._store.find_position(EventFilter(context), ticks, limits, start)
            if search.position is not None or search.end:
                return search.position
            start = search.next

    def records(self, wanted: EventFilter, position: int, end: int) -> Iterator[list[Record]]:
        """See History."""
        unread = Unread()
        while position < end:
            limits = ReadLimits(min(STEP_EVENTS_MAX, end - position), STEP_BYTES_MAX, STEP_MS_MAX)
            span = self._store.read_records(position, wanted, limits)
            if records := unread.of(span.records):
                yield records
            if span.end:
                return
            position = span.next

    def close(self) -> None:
        """See History."""
        self._store.close()
