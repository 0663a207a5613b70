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
from penstock.client.worker import (
    AsyncWorker,
    Bury,
    RetryLater,
    Worker,
    WorkerCounts,
    current_attempt,
    run_worker,
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
    "AsyncWorker",
    "Build",
    "Bury",
    "Client",
    "Log",
    "LogIterator",
    "ManyAppended",
    "Queue",
    "QueueBatch",
    "RetryLater",
    "Staging",
    "Subscription",
    "SubscriptionBatch",
    "Transaction",
    "Worker",
    "WorkerCounts",
    "aconnect",
    "connect",
    "current_attempt",
    "run_worker",
]
