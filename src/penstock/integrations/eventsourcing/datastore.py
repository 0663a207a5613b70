"""A recorder's access to Penstock, through one client. This module alone translates errors into the library's.

The client opens when it is first needed: the library makes factories only to take a mapper from them, and never closes
them. Others it uses and does not close either; so a datastore closes itself when it is collected as garbage.

The library also closes applications when they are collected as garbage. That may happen in any thread at any moment:
in the client's own, while another client opens, or when the interpreter ends and no other thread runs. So a thread
closes the client, and `close` waits for it only so long.

An engine in process owns its store alone, and a system of applications has a factory for each of them. So all
datastores of a process that name the same `sqlite:///` share one client, which the last of them closes.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Final, cast
from weakref import finalize

from eventsourcing.persistence import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    PersistenceError,
    ProgrammingError,
)

from penstock import errors
from penstock.client import Client, connect
from penstock.model import Append, Appended, Event, NewEvent

TIMEOUT_S: Final = 30.0
CLOSE_S_MAX: Final = 15.0
LOCAL: Final = "sqlite:"

ERRORS: Final[dict[type[PersistenceError], tuple[type[errors.PenstockError], ...]]] = {
    IntegrityError: (errors.VersionConflict,),
    DataError: (errors.InvalidRequest, errors.LimitExceeded, errors.DoesNotFit),
    InterfaceError: (errors.BadUrl, errors.ClientClosed, errors.TlsFailed),
    ProgrammingError: (errors.NotAllowed, errors.NotAuthenticated),
    InternalError: (errors.Unexpected, errors.DamagedRecord, errors.AnswerMalformed),
    OperationalError: (
        *(errors.CannotConnect, errors.ConnectionLost, errors.DeadlinePassed, errors.Busy, errors.TimedOut),
        *(errors.WorkerDied, errors.Closed, errors.MarkSuperseded),
        *(errors.StoreError, errors.StoreInUse, errors.StoreChanged, errors.StoreTooNew, errors.NotAStore),
    ),
}
"""The first row that fits decides. Errors without a row do not concern recorders, and become DatabaseError."""


class PenstockDatastore:
    """The client of one factory and its recorders. It is thread-safe."""

    def __init__(self, url: str, timeout: float = TIMEOUT_S) -> None:
        self.url = url
        self.timeout = timeout
        self._lock = Lock()
        self._client: Client | None = None
        self._is_closed = False

    @property
    def client(self) -> Client:
        """The connected client. Raises OSError if the URL is wrong, and InterfaceError after `close`."""
        with self._lock:
            if self._is_closed:
                raise InterfaceError("this datastore is closed; make another one")
            if self._client is None:
                with library_errors():
                    try:
                        self._client = _take_client(self.url, self.timeout)
                    except errors.BadUrl as error:
                        # A wrong setting is an OSError everywhere in the library.
                        reason = f"Penstock environment value for key 'PENSTOCK_URL' is invalid. {error}"
                        raise OSError(reason) from None
                self._finalizer = finalize(self, _let_go, self._client)
                self._finalizer.atexit = False
            return self._client

    def close(self) -> None:
        """Close the client unless another datastore uses it."""
        if sys.is_finalizing():
            return
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None and self._finalizer.detach():
            _let_go(client).join(CLOSE_S_MAX)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """The client, whose errors become the library's."""
        with library_errors():
            yield self.client

    def write(self, appends: Sequence[Append]) -> list[Appended]:
        """Append to one or more streams, all or nothing. Raises IntegrityError if a stream has another version."""
        with self.connected() as client:
            if len(appends) == 1:
                (only,) = appends
                events = cast("Sequence[NewEvent]", only.events)
                return [client.append(only.context, only.stream, events, expected=only.expected)]
            transaction = client.transaction()
            for each in appends:
                events = cast("Sequence[NewEvent]", each.events)
                transaction.append(each.context, each.stream, events, expected=each.expected)
            return transaction.commit()

    def first(self, context: str, stream: str) -> Event | None:
        with self.connected() as client:
            try:
                return client.read_event(context, stream, 1)
            except errors.EventNotFound:
                return None

    def last(self, context: str, stream: str) -> Event | None:
        with self.connected() as client:
            return next(iter(client.read_stream(context, stream, backward=True, limit=1)), None)


# --- clients that datastores share ----------------------------------------------------------------------------

_lock = Lock()
_shared: dict[str, tuple[Client, int]] = {}


def _take_client(url: str, timeout: float) -> Client:
    if not url.startswith(LOCAL):
        return connect(url, timeout=timeout)
    with _lock:
        client, users = _shared.get(url) or (connect(url, timeout=timeout), 0)
        _shared[url] = client, users + 1
        return client


def _give_back(client: Client) -> None:
    """The last user closes the client."""
    with _lock:
        known, users = _shared.get(client.url, (None, 0))
        if known is client and users > 1:
            _shared[client.url] = client, users - 1
            return
        if known is client:
            del _shared[client.url]
        client.close()


def _let_go(client: Client) -> Thread:
    thread = Thread(target=_give_back, args=(client,), name="penstock-let-go", daemon=True)
    thread.start()
    return thread


def translation_of(error: errors.PenstockError) -> PersistenceError:
    kind = next((theirs for theirs, ours in ERRORS.items() if isinstance(error, ours)), DatabaseError)
    return kind(str(error))


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise the library's errors in place of ours, with ours as their cause."""
    try:
        yield
    except errors.PenstockError as error:
        raise translation_of(error) from error
