"""The schema's versions: each migration is a `.sql` file, carried out in one transaction, in order.

From version 2 on a file gives free space back step by step (`auto_vacuum`). An older one has to be written anew for
that once, which is one transaction too and comes first: if it fails, the store is as it was.
"""

import logging
from pathlib import Path
from typing import Final
from uuid import uuid4

import apsw

from penstock.errors import NotAStore, StoreTooNew
from penstock.store.sql import load_migrations
from penstock.store.sqlite.database import APPLICATION_ID, PAGE_BYTES, Database, translate
from penstock.store.sqlite.unfinished import refuse_unfinished
from penstock.store.tables.logs import LAST_LOG

log = logging.getLogger(__name__)

INCREMENTAL: Final = 2
"""What SQLite calls an `auto_vacuum` in steps."""


def migrations() -> list[str]:
    """The text of every migration; the first brings an empty file to version 1."""
    return load_migrations("penstock.store.sqlite")


SCHEMA_VERSION: Final = len(migrations())


def check(database: Database, directory: Path) -> int:
    """The store's schema version; refuses what is not a store or too new. 0 is an empty file."""
    try:
        version = int(database.connection.pragma("user_version"))
        application = int(database.connection.pragma("application_id"))
        tables = database.connection.execute("SELECT count(*) FROM sqlite_master").get
    except apsw.NotADBError as error:
        raise NotAStore(str(directory), "its file is no SQLite database") from error
    except apsw.Error as error:
        raise translate(error) from error
    refuse_unfinished(directory, application, version)
    if tables and application != APPLICATION_ID:
        raise NotAStore(str(directory), "its file is a database of some other program")
    if version > SCHEMA_VERSION:
        raise StoreTooNew(str(directory), version, SCHEMA_VERSION)
    return version


def migrate(database: Database, directory: Path, now: int) -> None:
    """Bring a store to the present schema."""
    version = check(database, directory)
    if version and database.pragma("auto_vacuum") != INCREMENTAL:
        _write_anew(database, directory)
    for number, text in enumerate(migrations()[version:], start=version + 1):
        _step(database, number, text, now)


def _write_anew(database: Database, directory: Path) -> None:
    mib = database.pragma("page_count") * PAGE_BYTES / (1 << 20)
    log.warning("the store in %s is from an older version: writing its %.1f MiB anew, this once", directory, mib)
    database.command("VACUUM")
    # All of it went through the WAL.
    database.restart_wal()


def _step(database: Database, number: int, text: str, now: int) -> None:
    connection = database.connection
    try:
        connection.execute("BEGIN IMMEDIATE")
        for _ in connection.execute(text):
            pass
        connection.pragma("user_version", number)
        if number == 1:
            connection.pragma("application_id", APPLICATION_ID)
            database.run("set_meta", {"key": "store_id", "value": str(uuid4())})
            database.run("set_meta", {"key": LAST_LOG, "value": "0"})
            database.run("add_timeline", {"timeline": 1, "after_position": 0, "started": now})
        connection.execute("COMMIT")
    except apsw.Error as error:
        database.abandon()
        raise translate(error) from error
