"""From Penstock's errors to those that the library's users catch: one table, used at one place, the datastore."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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

TABLE: Final[tuple[tuple[type[errors.PenstockError], type[PersistenceError]], ...]] = (
    (errors.VersionConflict, IntegrityError),
    (errors.InvalidRequest, DataError),
    (errors.LimitExceeded, DataError),
    (errors.DoesNotFit, DataError),
    (errors.BadUrl, InterfaceError),
    (errors.ClientClosed, InterfaceError),
    (errors.NotAllowed, ProgrammingError),
    (errors.Unexpected, InternalError),
    (errors.DamagedRecord, InternalError),
    (errors.AnswerMalformed, InternalError),
    (errors.CannotConnect, OperationalError),
    (errors.ConnectionLost, OperationalError),
    (errors.DeadlinePassed, OperationalError),
    (errors.Busy, OperationalError),
    (errors.TimedOut, OperationalError),
    (errors.WorkerDied, OperationalError),
    (errors.Closed, OperationalError),
    (errors.MarkSuperseded, OperationalError),
    (errors.StoreError, OperationalError),
    (errors.StoreInUse, OperationalError),
    (errors.StoreChanged, OperationalError),
    (errors.StoreTooNew, OperationalError),
    (errors.NotAStore, OperationalError),
)
"""The first that fits is taken. What is in no row has nothing to do with recorders, and is a DatabaseError."""


def translation_of(error: errors.PenstockError) -> PersistenceError:
    """The library's error for one of ours, with the same sentence."""
    kind = next((theirs for ours, theirs in TABLE if isinstance(error, ours)), DatabaseError)
    return kind(str(error))


@contextmanager
def translated() -> Iterator[None]:
    """Raise the library's errors in place of ours, which stay their cause."""
    try:
        yield
    except errors.PenstockError as error:
        raise translation_of(error) from error
