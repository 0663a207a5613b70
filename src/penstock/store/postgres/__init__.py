"""The shared store: one PostgreSQL database, written by several servers at once."""

from penstock.store.postgres.notifications import PostgresListener
from penstock.store.postgres.reader import PostgresReader
from penstock.store.postgres.store import PostgresStore

__all__ = ["PostgresListener", "PostgresReader", "PostgresStore"]
