"""Opening a store by its URL: `sqlite:///` followed by a directory, or `postgresql://` as libpq knows it."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.store.contract import Store, StoreImport
from penstock.store.sqlite import SqliteImport, SqliteReader, SqliteStore

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")


def store_url(directory: Path) -> str:
    """The URL of the embedded store in a directory."""
    return f"{SQLITE}{directory}"


def open_store(url: str, *, stream_cache_max: int, wal_bytes_max: int) -> Store:
    """Open a store for writing; it is made if it is not there."""
    if url.startswith(POSTGRES):
        shared: Store = _postgres().PostgresStore(url, stream_cache_max=stream_cache_max)
        return shared
    return SqliteStore(_directory(url), stream_cache_max=stream_cache_max, wal_bytes_max=wal_bytes_max)


def open_reader(url: str) -> Store:
    """Open a store that exists for reading, beside whoever writes it."""
    if url.startswith(POSTGRES):
        shared: Store = _postgres().PostgresReader(url)
        return shared
    return SqliteReader(_directory(url))


def open_import(url: str) -> StoreImport:
    """Begin to fill a new store, or go on with one that is not finished."""
    if url.startswith(POSTGRES):
        shared: StoreImport = _postgres().PostgresImport(url)
        return shared
    return SqliteImport(_directory(url))


def _postgres() -> Any:
    """The shared store, which needs psycopg; whoever has an embedded one does without."""
    try:
        return import_module("penstock.store.postgres")
    except ImportError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise InvalidRequest("store URL", "needs psycopg; install penstock[postgres]") from error


def _directory(url: str) -> Path:
    directory = url.removeprefix(SQLITE)
    if directory == url or not directory:
        kind = url.partition("://")[0]
        raise InvalidRequest("store URL", f"of kind {kind!r} is not known here; use {SQLITE}DIR or {POSTGRES[0]}…")
    return Path(directory)
