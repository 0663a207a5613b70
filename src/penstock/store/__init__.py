"""The store: one contract, several backends, found by URL."""

from penstock.store.contract import Store, StoreImport
from penstock.store.urls import open_import, open_reader, open_store, store_url

__all__ = ["Store", "StoreImport", "open_import", "open_reader", "open_store", "store_url"]
