"""What recorders ask of a Penstock, through one client. Errors become the library's here, and nowhere else.

The client is opened when it is first needed: the library makes factories that it only takes a mapper from, and never
closes them. Others it uses and does not close either; so a datastore that nobody holds any more closes itself.

The library also closes applications when they are collected as garbage. That may happen in any thread at any moment:
in the client's own, in the middle of opening another one, or when the interpreter ends and no other thread runs. So a
client is closed in a thread of its own, which is waited for only so long.
"""

import sys
from collections.abc import Collection, Sequence
from threading import Lock, Thread
from typing import Final
from weakref import finalize

from eventsourcing.persistence import InterfaceError

from penstock.client import Client
from penstock.errors import BadUrl, EventNotFound
from penstock.integrations.eventsourcing import sharing
from penstock.integrations.eventsourcing.translation import translated
from penstock.model import Append, Appended, Event, EventPage

TIMEOUT_S: Final = 30.0
CLOSE_S_MAX: Final = 15.0
"""How long the end of a client is waited for."""


class PenstockDatastore:
    """The client of one factory and its recorders. Threads may share it."""

    def __init__(self, url: str, timeout: float = TIMEOUT_S) -> None:
        self.url = url
        self.timeout = timeout
        self._lock = Lock()
        self._client: Client | None = None
        self._is_closed = False

    @property
    def client(self) -> Client:
        """The client, connected. Raises OSError if the URL is none, and InterfaceError once this is closed."""
        with self._lock:
            if self._is_closed:
                raise InterfaceError("this datastore is closed; make another one")
            if self._client is None:
                self._client = self._taken()
                self._last_will = finalize(self, _let_go, self._client)
                self._last_will.atexit = False
            return self._client

    def _taken(self) -> Client:
        with translated():
            try:
                return sharing.take(self.url, self.timeout)
            except BadUrl as error:
                # A wrong setting is an OSError everywhere in the library.
                raise OSError(f"Penstock environment value for key 'PENSTOCK_URL' is invalid. {error}") from None

    def close(self) -> None:
        """Give the client back; if nobody else uses it, it is closed."""
        if sys.is_finalizing():
            return
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None and self._last_will.detach():
            _let_go(client).join(CLOSE_S_MAX)

    # -- writing

    def write(self, appends: Sequence[Append]) -> list[Appended]:
        """Append to one or more streams, all or nothing, once. Raises IntegrityError if a stream is elsewhere."""
        with translated():
            if len(appends) == 1:
                (only,) = appends
                return [self.client.append(only.context, only.stream, only.events, expected=only.expected)]
            transaction = self.client.transaction()
            for part in appends:
                transaction.append(part.context, part.stream, part.events, expected=part.expected)
            return transaction.commit()

    # -- reading

    def first(self, context: str, stream: str) -> Event | None:
        """A stream's first event, if it has one."""
        with translated():
            try:
                return self.client.read_event(context, stream, 1)
            except EventNotFound:
                return None

    def last(self, context: str, stream: str) -> Event | None:
        """A stream's last event, if it has one."""
        events = self.stream(context, stream, backward=True, limit=1)
        return events[0] if events else None

    def stream(
        self,
        context: str,
        stream: str,
        start: int | None = None,
        end: int | None = None,
        *,
        backward: bool = False,
        limit: int | None = None,
    ) -> list[Event]:
        """Events of a stream from sequence `start` to `end`, or down to it; at most `limit`."""
        with translated():
            return list(self.client.read_stream(context, stream, start, end, backward=backward, limit=limit))

    def streams(self, context: str, prefix: str) -> list[str]:
        """Names of streams that begin with a prefix, in order."""
        with translated():
            return [found.name for found in self.client.streams(context, prefix)]

    def page(
        self,
        position: int,
        context: str,
        *,
        filter: str = "",
        topics: Collection[str] = (),
        limit: int | None = None,
        wait: float = 0.0,
    ) -> EventPage:
        """A page of a context from a position on; an empty one may come before the end."""
        types = topics or None
        with translated():
            return self.client.read_page(position, context=context, filter=filter, types=types, limit=limit, wait=wait)

    def exists_from(self, position: int, context: str) -> int | None:
        """The position of a context's first event from a position on, if there is one."""
        while True:
            page = self.page(position, context, limit=1)
            if page.events:
                return page.events[0].position
            if page.end:
                return None
            position = page.next

    def head(self) -> int:
        """The last position of the whole store."""
        with translated():
            return self.client.stats().head


def _let_go(client: Client) -> Thread:
    thread = Thread(target=sharing.give_back, args=(client,), name="penstock-let-go", daemon=True)
    thread.start()
    return thread
