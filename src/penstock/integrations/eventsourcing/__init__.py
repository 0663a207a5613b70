"""Applications of the `eventsourcing` library on Penstock: `PERSISTENCE_MODULE=penstock.integrations.eventsourcing`.

docs/eventsourcing.md describes how Penstock keeps events, versions, notifications and tracking, and its guarantees.
"""

from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.factory import PenstockFactory
from penstock.integrations.eventsourcing.recorders import (
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockSnapshotRecorder,
    PenstockSubscription,
)
from penstock.integrations.eventsourcing.tracking_recorders import PenstockProcessRecorder, PenstockTrackingRecorder

Factory = PenstockFactory

__all__ = [
    "Factory",
    "PenstockAggregateRecorder",
    "PenstockApplicationRecorder",
    "PenstockDatastore",
    "PenstockFactory",
    "PenstockProcessRecorder",
    "PenstockSnapshotRecorder",
    "PenstockSubscription",
    "PenstockTrackingRecorder",
]
