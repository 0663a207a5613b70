"""Opening a store by its URL: `sqlite:///` followed by a directory."""

from pathlib import Path
from typing import Final

from penstock.errors import InvalidRequest
from penstock.store.contract import Store
from penstock.store.sqlite import SqliteReader, SqliteStore

SQLITE: Final = "sqlite:///"


def store_url(directory: Path) -> str:
    """The URL of the embedded store in a directory."""
    return f"{SQLITE}{directory}"


def open_store(url: str, *, stream_cache_max: int, wal_bytes_max: int) -> Store:
    """Open a store for writing; an embedded one is made if it is not there."""
    return SqliteStore(_directory(url), stream_cache_max=stream_cache_max, wal_bytes_max=wal_bytes_max)


def open_reader(url: str) -> Store:
    """Open a store that exists for reading, beside whoever writes it."""
    return SqliteReader(_directory(url))


def _directory(url: str) -> Path:
    directory = url.removeprefix(SQLITE)
    if directory == url or not directory:
        kind = url.partition("://")[0]
        raise InvalidRequest("store URL", f"of kind {kind!r} is not known here; use {SQLITE}DIR")
    return Path(directory)
