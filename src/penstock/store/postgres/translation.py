"""What errors of PostgreSQL mean to somebody who waits for an answer."""

from typing import Final

import psycopg

from penstock.errors import InvalidRequest, PenstockError, ReadFailure, StorageFailure, StorageFull

DISK_FULL: Final = "53100"
DATA_EXCEPTION: Final = "22"
"""The class of errors about values that cannot be."""

SENTENCES: Final = {
    "25006": "the database is read-only: it is a standby, or was made so",
    "25P03": "the transaction was ended because it stood still for too long",
    "28000": "the database lets nobody in by this name from here",
    "28P01": "the password is wrong",
    "3D000": "there is no such database",
    "3F000": "the role lacks a right: USAGE and CREATE on the schema",
    "42501": "the role lacks a right",
    "53300": "the database has no connection left",
    "55P03": "another server has been writing for too long",
    "57P01": "the database is being shut down or has ended the connection",
    "57P02": "the database has crashed and is starting again",
    "57P03": "the database is starting up or shutting down",
    "58030": "the database's disk failed",
}
"""What the more frequent ones mean, by their codes."""


def translate(error: psycopg.Error, *, write: bool = True) -> PenstockError:
    """The error that says it; of a connection that writes, or only reads."""
    code = error.sqlstate or ""
    words = " ".join(str(error).split()) or type(error).__name__
    if code == DISK_FULL:
        return StorageFull(words)
    if code.startswith(DATA_EXCEPTION):
        return InvalidRequest("value", f"cannot be stored: {words}")
    sentence = SENTENCES.get(code)
    failure = StorageFailure if write else ReadFailure
    return failure(f"{sentence} ({words})" if sentence else words)
