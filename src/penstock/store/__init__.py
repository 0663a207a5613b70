"""The store: one contract, several backends, found by URL."""

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
