"""A small living shop on a server of its own: for whoever wants to see the product at work."""

from penstock.demo.hosting import Host, addresses
from penstock.demo.shop import CONTEXT, ITERATOR, LOG, QUEUE, Shop, Snapshot

__all__ = ["CONTEXT", "ITERATOR", "LOG", "QUEUE", "Host", "Shop", "Snapshot", "addresses"]
