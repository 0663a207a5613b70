"""Connecting to a database: what a URL says, what every session is set to, and what is refused.

A URL is one of libpq's (`postgresql://user@host/database?…`), with several hosts if there are standbys. The tables live
in the schema `penstock`, or in the one that the URL's `options=-csearch_path=…` names.

A database whose settings would lose acknowledged commits is refused, by the name of the setting, when a store is opened
for writing. Those who connect again later may look up what was written before; every batch looks at the settings.
"""

import re
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import InvalidRequest, NotDurable, StoreError
from penstock.store.postgres import arrays
from penstock.store.postgres.translation import translate
from penstock.store.sql import load_queries

QUERIES: Final = load_queries("penstock.store.postgres", "queries.sql")

SCHEMA: Final = "penstock"
VERSION_MIN: Final = 14
CONNECT_S_MAX: Final = 5
SILENT_MS_MAX: Final = 10_000
"""How long the other side may leave what was sent unacknowledged before a connection counts as lost."""
LOCK_MS_MAX: Final = 10_000
"""How long a write waits for other servers' turns."""
IDLE_MS_MAX: Final = 10_000
"""How long a server may stand still in the middle of its turn before it is ended: the others wait."""
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
        """The place that a URL names; InvalidRequest if it is none."""
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

    @property
    def lock(self) -> dict[str, int]:
        """The key of the lock that whoever writes holds."""
        return {"lock_class": _LOCK_CLASS, "lock_key": crc32(self.schema.encode()) - (1 << 31)}

    @property
    def migration_lock(self) -> dict[str, int]:
        """The key of the lock that whoever changes the schema holds."""
        return {**self.lock, "lock_class": _LOCK_CLASS + 1}

    @property
    def import_lock(self) -> dict[str, int]:
        """The key of the lock that whoever fills the store holds."""
        return {**self.lock, "lock_class": _LOCK_CLASS + 2}


def _without_password(url: str) -> str:
    hidden = re.sub(r"(?<=://)([^:/@?]*):[^@/?]*@", r"\1@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1…", hidden)


def connect(target: Target, *, write: bool) -> psycopg.Connection[Any]:
    """A new connection, set up and checked. Raises StorageFailure if nobody is reached, StoreError if it is refused."""
    try:
        connection = psycopg.connect(
            _aimed(target.conninfo, write=write), autocommit=True, prepare_threshold=PREPARE_AFTER
        )
    except psycopg.Error as error:
        raise translate(error, write=write) from error
    try:
        _check(connection)
        _set_up(connection, target.schema)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, write=write) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _aimed(conninfo: str, *, write: bool) -> str:
    """Of several hosts only one takes writes, and the others may not have yet what was acknowledged."""
    given = conninfo_to_dict(conninfo)
    if "target_session_attrs" in given:
        return conninfo
    if write:
        return make_conninfo(conninfo, target_session_attrs="read-write")
    # A single one is read whatever it is, a standby too.
    return make_conninfo(conninfo, target_session_attrs="primary") if "," in str(given.get("host", "")) else conninfo


def _set_up(connection: psycopg.Connection[Any], schema: str) -> None:
    arrays.register(connection)
    connection.prepared_max = 2 * len(QUERIES)
    values = {"schema": schema, "lock_ms": str(LOCK_MS_MAX), "idle_ms": str(IDLE_MS_MAX)}
    connection.execute(QUERIES["set_up"], values)


def _check(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version // 10_000
    if version < VERSION_MIN:
        raise StoreError(f"the database is PostgreSQL {version}, and the store needs {VERSION_MIN} or later")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"the database has the encoding {encoding}, and the store needs UTF8")


def refusal_of(switched_off: str) -> NotDurable | None:
    """Why nothing may be written while settings are off that must be on: their names, separated by blanks."""
    for name in switched_off.split():
        return NotDurable(f"the database has {name} = off, and it must be on: {_REFUSED[name]}")
    return None
