"""Opening a store by its URL: `sqlite:///` followed by a directory, or `postgresql://` as libpq knows it."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidRequest
from penstock.store.replacement import StoreHold, StoreReplacement
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.tables.store import Store

if TYPE_CHECKING:
    from penstock.store.tables.imports import StoreImport

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")


def store_url(directory: Path) -> str:
    return f"{SQLITE}{directory}"


def absolute_url(url: str) -> str:
    """The same store for a process in another folder. It keeps links, which may change later."""
    path = url.removeprefix(SQLITE)
    return store_url(Path(path).absolute()) if path and url.startswith(SQLITE) else url


def open_store(url: str, *, stream_cache_max: int, wal_bytes_max: int, group_access: bool | None = None) -> Store:
    """Open a store for writing, and create it if it does not exist.

    `group_access` says whether the group of an embedded store's directory may use it; None leaves it as it is.
    """
    if url.startswith(POSTGRES):
        shared: Store = _module("postgres").PostgresStore(url, stream_cache_max=stream_cache_max)
        return shared
    return SqliteStore(
        _directory(url), stream_cache_max=stream_cache_max, wal_bytes_max=wal_bytes_max, group_access=group_access
    )


def open_reader(url: str) -> Store:
    """Open an existing store for reading, next to the processes that write it."""
    if not url.startswith(POSTGRES):
        return SqliteReader(_directory(url))
    shared: Store = _module("postgres").PostgresReader(url)
    return shared


def open_import(url: str) -> "StoreImport":
    if url.startswith(POSTGRES):
        store: StoreImport = _module("postgres.replacement").PostgresImport(url)
    else:
        store = _module("sqlite.replacement").SqliteImport(_directory(url))
    return store


def open_replacement(url: str, *, replace: bool) -> StoreReplacement:
    """A place for a new store; with `replace` it may have a store already."""
    if url.startswith(POSTGRES):
        place: StoreReplacement = _module("postgres.replacement").PostgresReplacement(url, replace=replace)
    else:
        place = _module("sqlite.replacement").SqliteReplacement(_directory(url), replace=replace)
    return place


def hold_store(url: str, *, is_strict: bool = True) -> StoreHold:
    """Keep all other processes from changing a store. Strict: refuse a store that a server seems to have open."""
    if url.startswith(POSTGRES):
        hold: StoreHold = _module("postgres.replacement").PostgresHold(_target(url), is_strict=is_strict)
    else:
        hold = _module("sqlite.replacement").SqliteHold(_directory(url))
    return hold


def shown_place(url: str) -> str:
    """A store's place as it may be shown: without a password."""
    return str(_target(url).shown) if url.startswith(POSTGRES) else str(_directory(url))


def is_same_place(one: str, other: str) -> bool:
    """Whether two URLs name one place, as far as the URLs tell."""
    if one.startswith(POSTGRES) and other.startswith(POSTGRES):
        ours, theirs = _target(one), _target(other)
        return bool((ours.conninfo, ours.schema) == (theirs.conninfo, theirs.schema))
    if one.startswith(POSTGRES) or other.startswith(POSTGRES):
        return False
    return _directory(one).resolve() == _directory(other).resolve()


def _target(url: str) -> Any:
    return _module("postgres.connection").Target.of(url)


def _module(name: str) -> Any:
    """A module of a backend. The shared store needs psycopg; imports need NumPy, which takes long to load."""
    try:
        return import_module(f"penstock.store.{name}")
    except ImportError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise InvalidRequest(
            "store URL", "needs psycopg, which is not installed: pip install 'psycopg[binary]'"
        ) from error


def _directory(url: str) -> Path:
    directory = url.removeprefix(SQLITE)
    if directory == url or not directory:
        kind = url.partition("://")[0]
        raise InvalidRequest("store URL", f"of kind {kind!r} is not known here; use {SQLITE}DIR or {POSTGRES[0]}…")
    return Path(directory)
