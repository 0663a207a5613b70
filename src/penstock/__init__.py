"""Penstock: one event store and durable log, several wire protocols in front, Spark behind.

The names below are what a program needs: a client, events, and what can go wrong. They are loaded when they are first
used: most parts of Penstock, its workers above all, need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import errors
    from penstock.client import AsyncClient, Client, aconnect, connect
    from penstock.errors import PenstockError
    from penstock.model import ANY, NEW, Appended, Event, NewEvent, event

__version__ = "0.1.0.dev0"
__all__ = [
    "ANY",
    "NEW",
    "Appended",
    "AsyncClient",
    "Client",
    "Event",
    "NewEvent",
    "PenstockError",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "event",
]

_HOMES = {
    "penstock.client": ("AsyncClient", "Client", "aconnect", "connect"),
    "penstock.errors": ("PenstockError",),
    "penstock.model": ("ANY", "NEW", "Appended", "Event", "NewEvent", "event"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            try:
                return globals().setdefault(name, getattr(import_module(home), name))
            except AttributeError as error:
                # `from penstock import …` would say only that there is no such name.
                raise ImportError(f"{home} cannot be imported: {error}") from error
    if name == "errors":
        return import_module("penstock.errors")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
