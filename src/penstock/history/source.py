"""Where a history is read from: a store itself, or a server.

A store is read in steps, each in a short snapshot, so that a long read never delays writers. Records come as they are
stored; the reader filters them.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar

from penstock.errors import StorageFailure, StoreChanged
from penstock.model import ContextInfo, EventFilter
from penstock.store import open_reader
from penstock.store.contract import ReadLimits, StoreIdentity
from penstock.store.record import Dedupe, Record

T = TypeVar("T")

STEP_EVENTS_MAX: Final = 16_384
STEP_BYTES_MAX: Final = 8 << 20
STEP_MS_MAX: Final = 25
"""One step, and with it one batch for Spark. It is short because the last step of a sparse range may look beyond it."""
CONTEXTS_PER_QUERY: Final = 1000
SERVED: Final = ("penstock://", "zmq+tcp://")
LOCAL: Final = "sqlite:///"
PATIENCE_S: Final = 30.0
"""How long a database may be away while its history is read: as long as a client is patient with a server."""
OPENING_S_MAX: Final = 5.0
"""How long a database may be away when it is opened: enough for a restart, and not too long for a typing error."""
PAUSE_S: Final = 0.5


class Now(NamedTuple):
    """A history's identity and last position at a moment."""

    identity: StoreIdentity
    head: int


class History(ABC):
    @abstractmethod
    def now(self) -> Now:
        """Cheap, as readers ask often."""

    @abstractmethod
    def all_bytes(self) -> int: ...

    @abstractmethod
    def event_bytes(self, position: int) -> int:
        """About how many bytes each event takes from a position on."""

    def context_bytes(self, context: str) -> int:
        """The bytes of a context's events; 0 if there is no such context."""
        after = context[:-1]
        while (found := self._contexts(after)) and after <= context:
            for info in found:
                if info.name == context:
                    return info.bytes
            after = found[-1].name
        return 0

    @abstractmethod
    def _contexts(self, after: str) -> list[ContextInfo]:
        """The next contexts by name; none after the last."""

    @abstractmethod
    def position_of(self, context: str, ticks: int) -> int | None:
        """The first position of a context whose event time is at or after a time, if there is one."""

    @abstractmethod
    def records(self, wanted: EventFilter, position: int, end: int) -> Iterator[list[Record]]:
        """Records that may hold wanted events, from the one that holds `position` on.

        All that begin before `end`; there may be more. No position comes twice, also if records are merged meanwhile.
        """

    @abstractmethod
    def close(self) -> None: ...


def open_history(url: str) -> History:
    if not url.startswith(SERVED):
        return StoredHistory(url)
    # A client takes a while to import, and most reads need none.
    from penstock.history.remote import RemoteHistory  # noqa: PLC0415

    return RemoteHistory(url)


def check_identity(expected: StoreIdentity, actual: StoreIdentity, where: str) -> None:
    """Raise StoreChanged if positions of one store would be read in another."""
    if expected != actual:
        raise StoreChanged(f"{_name_of(expected)}, as {where} says", _name_of(actual))


def _name_of(identity: StoreIdentity) -> str:
    return f"timeline {identity.timeline} of store {identity.id}"


class StoredHistory(History):
    def __init__(self, url: str) -> None:
        self._is_local = url.startswith(LOCAL)
        self._store = self._retried(partial(open_reader, url), OPENING_S_MAX)

    def now(self) -> Now:
        return self._retried(lambda: Now(self._store.identity(), self._store.head()))

    def all_bytes(self) -> int:
        return self._retried(self._store.stats).body_bytes

    def event_bytes(self, position: int) -> int:
        records = self._retried(partial(self._store.read_records, position, EventFilter(), ReadLimits(1, 1))).records
        return len(records[0].data) // records[0].count if records else 0

    def _contexts(self, after: str) -> list[ContextInfo]:
        return self._retried(partial(self._store.contexts, after, CONTEXTS_PER_QUERY))

    def position_of(self, context: str, ticks: int) -> int | None:
        limits, start = ReadLimits(STEP_EVENTS_MAX, STEP_BYTES_MAX), 1
        while True:
            search = self._retried(partial(self._store.find_position, EventFilter(context), ticks, limits, start))
            if search.position is not None or search.end:
                return search.position
            start = search.next

    def records(self, wanted: EventFilter, position: int, end: int) -> Iterator[list[Record]]:
        dedupe = Dedupe()
        while position < end:
            limits = ReadLimits(min(STEP_EVENTS_MAX, end - position), STEP_BYTES_MAX, STEP_MS_MAX)
            span = self._retried(partial(self._store.read_records, position, wanted, limits))
            if records := dedupe.new(span.records):
                yield records
            if span.end:
                return
            position = span.next

    def close(self) -> None:
        self._store.close()

    def _retried(self, read: Callable[[], T], patience_s: float | None = None) -> T:
        """Retry a read while the database is away: a restart takes a moment."""
        deadline = time.monotonic() + (0 if self._is_local else PATIENCE_S if patience_s is None else patience_s)
        while True:
            try:
                return read()
            except StorageFailure:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(PAUSE_S)
