"""The Python client: `connect` for plain code, `aconnect` for event loops. docs/client.md is its guide."""

from penstock.client.aio import AsyncClient, aconnect
from penstock.client.consuming import (
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    QueueBatch,
    SubscriptionBatch,
)
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.many import ManyAppended
from penstock.client.staging import AsyncStaging
from penstock.client.sync import Client, Log, LogIterator, Queue, Staging, Subscription, Transaction, connect

__all__ = [
    "AsyncClient",
    "AsyncLog",
    "AsyncLogIterator",
    "AsyncQueue",
    "AsyncStaging",
    "AsyncSubscription",
    "AsyncTransaction",
    "Client",
    "Log",
    "LogIterator",
    "ManyAppended",
    "Queue",
    "QueueBatch",
    "Staging",
    "Subscription",
    "SubscriptionBatch",
    "Transaction",
    "aconnect",
    "connect",
]
