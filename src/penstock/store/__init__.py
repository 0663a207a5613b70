"""The store: one contract, several backends, found by URL."""

from penstock.store.contract import Store
from penstock.store.urls import open_reader, open_store, store_url

__all__ = ["Store", "open_reader", "open_store", "store_url"]
