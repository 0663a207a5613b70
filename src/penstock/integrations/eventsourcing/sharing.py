"""Clients that several datastores of a process share.

An engine in process owns its store alone, and a system of applications has a factory for each of them: all that name
the same `sqlite:///` use one client, which is closed when the last of them is done. To a server, each has its own.
"""

from threading import Lock
from typing import Final

from penstock.client import Client, connect

LOCAL: Final = "sqlite:"

_lock = Lock()
_shared: dict[str, tuple[Client, int]] = {}


def take(url: str, timeout: float) -> Client:
    """A client for a URL, connected."""
    if not url.startswith(LOCAL):
        return connect(url, timeout=timeout)
    with _lock:
        client, users = _shared.get(url) or (connect(url, timeout=timeout), 0)
        _shared[url] = client, users + 1
        return client


def give_back(client: Client) -> None:
    """One user less; the last one closes it."""
    with _lock:
        known, users = _shared.get(client.url, (None, 0))
        if known is client and users > 1:
            _shared[client.url] = client, users - 1
            return
        if known is client:
            del _shared[client.url]
        client.close()


def shared() -> list[str]:
    """The stores that this process has open for applications."""
    with _lock:
        return list(_shared)
