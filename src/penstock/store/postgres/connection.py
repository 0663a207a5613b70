"""Connections to PostgreSQL: the parts of a URL, the settings of a session, and the translation of errors.

A URL is one of libpq's (`postgresql://user@host/database?…`), with several hosts if there are standbys. The tables are
in the schema `penstock`, or in the schema that the URL's `options=-csearch_path=…` names.

A store refuses to open for writing if a setting of the database could lose acknowledged commits, and names the setting.
A store that reconnects may still look up what was written before; every batch checks the settings again.
"""

import re
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import (
    InvalidRequest,
    NotDurable,
    PenstockError,
    ReadFailure,
    StorageFailure,
    StorageFull,
    StoreError,
)
from penstock.store.postgres import arrays
from penstock.store.tables.database import load_queries

QUERIES: Final = load_queries("penstock.store.postgres", "queries.sql")

SCHEMA: Final = "penstock"
VERSION_MIN: Final = 14
CONNECT_S_MAX: Final = 5
SILENT_MS_MAX: Final = 10_000
"""How long the other side may leave sent data unacknowledged before the connection counts as lost."""
LOCK_MS_MAX: Final = 10_000
"""How long a write waits for the writes of other servers."""
IDLE_MS_MAX: Final = 10_000
"""How long a server may be idle inside a write before the database ends its session, because others wait."""
PREPARE_AFTER: Final = 1
"""A statement is prepared when it is used again."""

_SEARCH_PATH: Final = re.compile(r"-c\s*search_path=(\S+)|--search[_-]path=(\S+)")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS: Final = {
    "application_name": "penstock",
    "connect_timeout": CONNECT_S_MAX,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENT_MS_MAX,
}
_REFUSED: Final = {
    "fsync": "acknowledged commits are lost when its machine stops",
    "full_page_writes": "a power cut can damage what was written long ago",
    "synchronous_commit": "acknowledged commits are lost when it crashes",
}
"""Settings that must not be off, and what would happen."""

_LOCK_CLASS: Final = 0x50454E53
"""PENS: the first half of the keys of advisory locks; the second is made from the schema's name."""


@dataclass(frozen=True)
class Target:
    """A store's place: how to connect, in which schema it is, and how it may be shown."""

    conninfo: str
    schema: str
    shown: str

    @classmethod
    def of(cls, url: str) -> "Target":
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise InvalidRequest("store URL", f"cannot be read: {' '.join(str(error).split())}") from None
        options = str(given.get("options") or "")
        found = _SEARCH_PATH.search(options)
        schema = (found[1] or found[2]).split(",")[0].strip('"') if found else SCHEMA
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise InvalidRequest("store URL", f"names the schema {schema!r}; use lower-case letters, digits and _")
        settings: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        return cls(make_conninfo(**settings), schema, _without_password(url))

    def _lock(self, number: int) -> dict[str, int]:
        return {"lock_class": _LOCK_CLASS + number, "lock_key": crc32(self.schema.encode()) - (1 << 31)}

    @property
    def lock(self) -> dict[str, int]:
        """The key of the lock for writing."""
        return self._lock(0)

    @property
    def migration_lock(self) -> dict[str, int]:
        return self._lock(1)

    @property
    def import_lock(self) -> dict[str, int]:
        return self._lock(2)


def _without_password(url: str) -> str:
    hidden = re.sub(r"(?<=://)([^:/@?]*):[^@/?]*@", r"\1@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1…", hidden)


def connect(target: Target, *, write: bool) -> psycopg.Connection[Any]:
    """A new connection. Raises StorageFailure if it reaches no database, StoreError if the store cannot use it."""
    conninfo, given = target.conninfo, conninfo_to_dict(target.conninfo)
    if "target_session_attrs" not in given and write:
        conninfo = make_conninfo(conninfo, target_session_attrs="read-write")
    elif "target_session_attrs" not in given and "," in str(given.get("host", "")):
        # Standbys among several hosts may lack acknowledged commits. A single host is read even if it is a standby.
        conninfo = make_conninfo(conninfo, target_session_attrs="primary")
    try:
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=PREPARE_AFTER)
    except psycopg.Error as error:
        raise translate(error, write=write) from error
    try:
        version = connection.info.server_version // 10_000
        if version < VERSION_MIN:
            raise StoreError(f"the database is PostgreSQL {version}, and the store needs {VERSION_MIN} or later")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(f"the database has the encoding {encoding}, and the store needs UTF8")
        arrays.register(connection)
        connection.prepared_max = 2 * len(QUERIES)
        values = {"schema": target.schema, "lock_ms": str(LOCK_MS_MAX), "idle_ms": str(IDLE_MS_MAX)}
        connection.execute(QUERIES["set_up"], values)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, write=write) from error
    except BaseException:
        connection.close()
        raise
    return connection


def refusal_of(switched_off: str) -> NotDurable | None:
    """Why nothing may be written while settings are off that must be on: their names, separated by blanks."""
    for name in switched_off.split():
        return NotDurable(f"the database has {name} = off, and it must be on: {_REFUSED[name]}")
    return None


# --- errors ---------------------------------------------------------------------------------------------------

DISK_FULL: Final = "53100"
DATA_EXCEPTION: Final = "22"
"""The class of errors about bad values."""

SENTENCES: Final = {
    "25006": "the database is read-only: it is a standby, or was made so",
    "25P03": "the transaction was ended because it was idle for too long",
    "28000": "the database refuses this role from here",
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
"""The more frequent errors by their codes."""


def translate(error: psycopg.Error, *, write: bool = True) -> PenstockError:
    """The error of Penstock for an error of PostgreSQL, on a connection that writes or only reads."""
    code = error.sqlstate or ""
    words = " ".join(str(error).split()) or type(error).__name__
    if code == DISK_FULL:
        return StorageFull(words)
    if code.startswith(DATA_EXCEPTION):
        return InvalidRequest("value", f"cannot be stored: {words}")
    sentence = SENTENCES.get(code)
    failure = StorageFailure if write else ReadFailure
    return failure(f"{sentence} ({words})" if sentence else words)
