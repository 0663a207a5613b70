"""Processes: events are recorded together with what they were made from."""

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ProcessRecorder, StoredEvent, Tracking

from penstock.integrations.eventsourcing.applications import PenstockApplicationRecorder
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.tracking import PenstockTrackingRecorder, TrackingPart
from penstock.integrations.eventsourcing.writing import Part


class PenstockProcessRecorder(PenstockTrackingRecorder, PenstockApplicationRecorder, ProcessRecorder):
    """Records events and tracking in one transaction."""

    def __init__(self, datastore: PenstockDatastore, context: str, tracking_context: str) -> None:
        PenstockApplicationRecorder.__init__(self, datastore, context)
        PenstockTrackingRecorder.__init__(self, datastore, tracking_context)

    def _parts(
        self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None, **kwargs: Any
    ) -> list[Part]:
        parts = super()._parts(stored_events, **kwargs)
        return parts if tracking is None else [*parts, TrackingPart(self._trackings, tracking)]
