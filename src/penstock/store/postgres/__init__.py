"""The shared store: one PostgreSQL database, written by several servers at once."""

from penstock.store.postgres.importing import PostgresImport
from penstock.store.postgres.listening import PostgresListener
from penstock.store.postgres.store import PostgresReader, PostgresStore

__all__ = ["PostgresImport", "PostgresListener", "PostgresReader", "PostgresStore"]
