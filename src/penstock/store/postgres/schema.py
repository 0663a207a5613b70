"""The versions of the schema: each migration is a `.sql` file, and all missing ones are one transaction.

Several servers may start at once: a server that changes the schema takes a lock, and checks again under it.
"""

from typing import Final
from uuid import uuid4

from psycopg import sql

from penstock.errors import NotAStore, ReadFailure, StoreTooNew, StoreUnfinished
from penstock.store.postgres.connection import QUERIES
from penstock.store.postgres.database import PostgresDatabase
from penstock.store.replacement import NO_NOTE, SOURCE
from penstock.store.tables.database import load_migrations
from penstock.store.tables.logs import LAST_LOG


def migrations() -> list[str]:
    return load_migrations("penstock.store.postgres")


SCHEMA_VERSION: Final = len(migrations())


def check(database: PostgresDatabase) -> int:
    """The store's schema version; refuses what is not a store, too new, or not whole. 0 is an empty schema."""
    target = database.target
    exists, tables = database.row("schema_tables", {"schema": target.schema})
    if not exists or not tables:
        return 0
    version = int(database.value("schema_version")) if database.value("has_version", {"schema": target.schema}) else 0
    if not version:
        raise NotAStore(target.shown, f"its schema {target.schema} holds tables of some other program")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(target.shown, version, SCHEMA_VERSION)
    return version


def refuse_unfinished(database: PostgresDatabase) -> None:
    if database.value("importing"):
        raise StoreUnfinished(database.target.shown)


def require(database: PostgresDatabase) -> None:
    """Refuse to read where there is no store of the present schema."""
    version = check(database)
    if version == 0:
        raise NotAStore(database.target.shown, f"it has no schema {database.target.schema} with tables")
    if version < SCHEMA_VERSION:
        raise ReadFailure(f"{database.target.shown} has an older schema; start a server on it once")
    refuse_unfinished(database)


def migrate(database: PostgresDatabase, now: int, *, importing: bool = False) -> None:
    """Bring a store to the present schema; one that is made now may be marked as being filled."""
    if check(database) == SCHEMA_VERSION:
        return
    with database.turn() as connection:
        connection.execute(QUERIES["lock"], database.target.migration_lock)
        schema = database.target.schema
        version = check(database)
        if version == 0 and not database.row("schema_tables", {"schema": schema})[0]:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for text in migrations()[version:]:
            connection.execute(text)
        if version == 0:
            database.later("make_version", {"version": SCHEMA_VERSION})
            database.later("set_meta", {"key": "store_id", "value": str(uuid4())})
            database.later("set_meta", {"key": LAST_LOG, "value": "0"})
            database.later("add_timeline", {"timeline": 1, "after_position": 0, "started": now})
            if importing:
                database.later("set_meta", {"key": SOURCE, "value": NO_NOTE})
        else:
            database.later("set_version", {"version": SCHEMA_VERSION})
