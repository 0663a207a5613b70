"""Penstock: one event store and durable log, several wire protocols in front, Spark behind.

The names below are what a program needs: a client, events, and what can go wrong. They are loaded when they are first
used: most parts of Penstock, its workers above all, need none of them.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock import errors
    from penstock.client import (
        AsyncClient,
        AsyncQueue,
        AsyncSubscription,
        AsyncTransaction,
        AsyncWorker,
        Bury,
        Client,
        Queue,
        QueueBatch,
        RetryLater,
        Subscription,
        SubscriptionBatch,
        Transaction,
        Worker,
        aconnect,
        connect,
        current_attempt,
        run_worker,
    )
    from penstock.errors import PenstockError
    from penstock.model import ANY, NEW, Appended, Event, NewEvent, RetryPolicy, event
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.client": (
                *("AsyncClient", "AsyncQueue", "AsyncSubscription", "AsyncTransaction", "AsyncWorker", "Bury"),
                *("Client", "Queue", "QueueBatch", "RetryLater", "Subscription", "SubscriptionBatch", "Transaction"),
                *("Worker", "aconnect", "connect", "current_attempt", "run_worker"),
            ),
            "penstock.errors": ("PenstockError", "errors"),
            "penstock.model": ("ANY", "NEW", "Appended", "Event", "NewEvent", "RetryPolicy", "event"),
        },
    )

__version__ = "0.1.0.dev0"
__all__ = [
    "ANY",
    "NEW",
    "Appended",
    "AsyncClient",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTransaction",
    "AsyncWorker",
    "Bury",
    "Client",
    "Event",
    "NewEvent",
    "PenstockError",
    "Queue",
    "QueueBatch",
    "RetryLater",
    "RetryPolicy",
    "Subscription",
    "SubscriptionBatch",
    "Transaction",
    "Worker",
    "__version__",
    "aconnect",
    "connect",
    "current_attempt",
    "errors",
    "event",
    "run_worker",
]
