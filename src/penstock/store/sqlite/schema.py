"""The versions of the schema: each migration is a `.sql` file and one transaction.

From version 2 on a file returns free space step by step (`auto_vacuum`). The first migration of an older file rewrites
it once, also in one transaction: if that fails, the store is unchanged.
"""

import logging
from pathlib import Path
from typing import Final
from uuid import uuid4

import apsw

from penstock.errors import NotAStore, StoreTooNew, StoreUnfinished
from penstock.store.sqlite.database import PAGE_BYTES, SqliteDatabase, translate
from penstock.store.sqlite.directory import RESTORING
from penstock.store.tables.database import load_migrations
from penstock.store.tables.logs import LAST_LOG

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x50454E53
"""PENS, in the file's header."""
IMPORTING_ID: Final = 0x50454E49
"""PENI: the store is being filled. The last transaction of an import changes it to PENS."""
INCREMENTAL: Final = 2
"""What SQLite calls an `auto_vacuum` in steps."""


def migrations() -> list[str]:
    return load_migrations("penstock.store.sqlite")


SCHEMA_VERSION: Final = len(migrations())


def check(database: SqliteDatabase, directory: Path) -> int:
    """The store's schema version, 0 for an empty file; refuses what is no store, too new or unfinished."""
    try:
        version = int(database.connection.pragma("user_version"))
        application = int(database.connection.pragma("application_id"))
        tables = database.connection.execute("SELECT count(*) FROM sqlite_master").get
    except apsw.NotADBError as error:
        raise NotAStore(str(directory), "its file is no SQLite database") from error
    except apsw.Error as error:
        raise translate(error) from error
    if application == IMPORTING_ID or (version == 0 and (directory / RESTORING).exists()):
        raise StoreUnfinished(str(directory))
    if tables and application != APPLICATION_ID:
        raise NotAStore(str(directory), "its file is a database of some other program")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(str(directory), version, SCHEMA_VERSION)
    return version


def migrate(database: SqliteDatabase, directory: Path, now: int) -> None:
    """Bring a store to the present schema."""
    version = check(database, directory)
    if version and database.pragma("auto_vacuum") != INCREMENTAL:
        mib = database.pragma("page_count") * PAGE_BYTES / (1 << 20)
        log.warning("the store in %s is from an older version: rewriting its %.1f MiB once", directory, mib)
        database.command("VACUUM")
        # All of it went through the WAL.
        database.restart_wal()
    for number, text in enumerate(migrations()[version:], start=version + 1):
        with database.transaction():
            database.command(text)
            database.command(f"PRAGMA user_version = {number}")
            if number == 1:
                database.command(f"PRAGMA application_id = {APPLICATION_ID}")
                database.later("set_meta", {"key": "store_id", "value": str(uuid4())})
                database.later("set_meta", {"key": LAST_LOG, "value": "0"})
                database.later("add_timeline", {"timeline": 1, "after_position": 0, "started": now})
