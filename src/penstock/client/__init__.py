"""The Python client: `connect` for plain code, `aconnect` for event loops. docs/client.md is its guide."""

from penstock.client.aio import AsyncClient, aconnect
from penstock.client.bulk import ManyAppended
from penstock.client.consumers import (
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    QueueBatch,
    SubscriptionBatch,
)
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.staging import AsyncBuild, AsyncStaging
from penstock.client.sync import Build, Client, Log, LogIterator, Queue, Staging, Subscription, Transaction, connect

__all__ = [
    "AsyncBuild",
    "AsyncClient",
    "AsyncLog",
    "AsyncLogIterator",
    "AsyncQueue",
    "AsyncStaging",
    "AsyncSubscription",
    "AsyncTransaction",
    "Build",
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
