"""The embedded store on SQLite."""

from penstock.store.sqlite.importing import SqliteImport
from penstock.store.sqlite.store import SqliteReader, SqliteStore

__all__ = ["SqliteImport", "SqliteReader", "SqliteStore"]
