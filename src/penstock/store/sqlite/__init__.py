"""The embedded store on SQLite."""

from penstock.store.sqlite.store import SqliteReader, SqliteStore

__all__ = ["SqliteReader", "SqliteStore"]
