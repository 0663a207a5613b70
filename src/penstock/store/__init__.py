"""The store: one contract, several backends, found by URL.

The names are loaded when they are first used: a client reads records, and needs nothing else of the store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.store.tables.store import Store
    from penstock.store.urls import (
        hold_store,
        is_same_place,
        open_import,
        open_reader,
        open_replacement,
        open_store,
        shown_place,
        store_url,
    )


_URLS = (
    *("hold_store", "is_same_place", "open_import", "open_reader", "open_replacement", "open_store", "shown_place"),
    "store_url",
)


def __getattr__(name: str) -> Any:
    if name not in ("Store", *_URLS):
        raise AttributeError(f"module 'penstock.store' has no attribute {name!r}")
    home = import_module("penstock.store.tables.store" if name == "Store" else "penstock.store.urls")
    return globals().setdefault(name, getattr(home, name))
