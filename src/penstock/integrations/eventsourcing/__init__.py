"""Applications of the `eventsourcing` library on Penstock: `PERSISTENCE_MODULE=penstock.integrations.eventsourcing`.

docs/eventsourcing.md says how events, versions, notifications and tracking are kept, and what is promised.
"""

from penstock.integrations.eventsourcing.aggregates import PenstockAggregateRecorder
from penstock.integrations.eventsourcing.applications import PenstockApplicationRecorder
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.factory import PenstockFactory
from penstock.integrations.eventsourcing.processes import PenstockProcessRecorder
from penstock.integrations.eventsourcing.snapshots import PenstockSnapshotRecorder
from penstock.integrations.eventsourcing.subscription import PenstockSubscription
from penstock.integrations.eventsourcing.tracking import PenstockTrackingRecorder

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
