"""The store: one contract, several backends, found by URL.

The names are loaded when they are first used: a client reads records, and needs nothing else of the store.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.store.tables.store": ("Store",),
            "penstock.store.urls": (
                *("hold_store", "is_same_place", "open_import", "open_reader", "open_replacement", "open_store"),
                *("shown_place", "store_url"),
            ),
        },
    )
