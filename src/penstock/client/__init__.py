"""The Python client: `connect` for plain code, `aconnect` for event loops. docs/client.md is its guide."""

from penstock.client.access import AsyncAccess
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
from penstock.client.sync import (
    Access,
    Build,
    Client,
    Log,
    LogIterator,
    Queue,
    Staging,
    Subscription,
    Transaction,
    connect,
)

__all__ = [
    "Access",
    "AsyncAccess",
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
