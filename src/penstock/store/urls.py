"""Opening a store by its URL: `sqlite:///` followed by a directory, or `postgresql://` as libpq knows it."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.store.contract import Store, StoreImport
from penstock.store.replacing import StoreHold, StoreReplacement
from penstock.store.sqlite import SqliteImport, SqliteReader, SqliteStore
from penstock.store.sqlite.replacing import Hold, Replacement

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")


def store_url(directory: Path) -> str:
    """The URL of the embedded store in a directory."""
    return f"{SQLITE}{directory}"


def absolute_url(url: str) -> str:
    """The same store for whoever runs in another folder. Links are not followed: they may lead elsewhere one day."""
    path = url.removeprefix(SQLITE)
    return store_url(Path(path).absolute()) if path and url.startswith(SQLITE) else url


def open_store(url: str, *, stream_cache_max: int, wal_bytes_max: int, group_access: bool | None = None) -> Store:
    """Open a store for writing; it is made if it is not there.

    `group_access` says whether the group of an embedded store's directory may use it; None: as the directory says.
    """
    if url.startswith(POSTGRES):
        shared: Store = _postgres().PostgresStore(url, stream_cache_max=stream_cache_max)
        return shared
    return SqliteStore(
        _directory(url), stream_cache_max=stream_cache_max, wal_bytes_max=wal_bytes_max, group_access=group_access
    )


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


def open_replacement(url: str, *, replace: bool) -> StoreReplacement:
    """A place to put a new store in, instead of the one that is there only if that is asked for."""
    if url.startswith(POSTGRES):
        shared: StoreReplacement = _postgres("replacing").Replacement(url, replace=replace)
        return shared
    return Replacement(_directory(url), replace=replace)


def hold_store(url: str, *, is_strict: bool = True) -> StoreHold:
    """Keep everybody from changing a store. Strict: refuse one that a server seems to be connected to."""
    if url.startswith(POSTGRES):
        target = _postgres("connecting").Target.of(url)
        shared: StoreHold = _postgres("holding").Hold(target, is_strict=is_strict)
        return shared
    return Hold(_directory(url))


def shown_place(url: str) -> str:
    """A store's place as it may be shown: without a password."""
    return str(_postgres("connecting").Target.of(url).shown) if url.startswith(POSTGRES) else str(_directory(url))


def is_same_place(one: str, other: str) -> bool:
    """Whether two URLs name one place, as far as that can be seen from them."""
    if one.startswith(POSTGRES) and other.startswith(POSTGRES):
        target = _postgres("connecting").Target.of
        return bool((target(one).conninfo, target(one).schema) == (target(other).conninfo, target(other).schema))
    if one.startswith(POSTGRES) or other.startswith(POSTGRES):
        return False
    return _directory(one).resolve() == _directory(other).resolve()


def _postgres(module: str = "") -> Any:
    """The shared store, which needs psycopg; whoever has an embedded one does without."""
    try:
        return import_module(f"penstock.store.postgres{'.' * bool(module)}{module}")
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
