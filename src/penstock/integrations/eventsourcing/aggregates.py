"""Aggregates: a stream for each, named for its id, in the application's context."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from eventsourcing.persistence import AggregateRecorder, StoredEvent

from penstock.integrations.eventsourcing.coding import stored_event_of
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.placing import EventsPart, FirstVersions
from penstock.integrations.eventsourcing.writing import Part, write


class PenstockAggregateRecorder(AggregateRecorder):
    """Records events whose versions follow one another without gaps."""

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context
        self._firsts = FirstVersions(datastore, context)

    # -- writing

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, all or none. Raises IntegrityError if one is there, or the one before it is not."""
        self._insert_events(stored_events, **kwargs)
        return None

    def _insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        """The same, answered with the positions of the events."""
        appended = write(self.datastore, self._parts(stored_events, **kwargs))
        positions = [position for part in appended for position in range(part.position, part.position + part.count)]
        return positions[: len(stored_events)]

    def _parts(self, stored_events: Sequence[StoredEvent], **_: Any) -> list[Part]:
        """What is written together; the events come first."""
        return [EventsPart(self.context, stored_events, self._firsts)]

    # -- reading

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Events of an aggregate by version. Only those that are wanted are read."""
        stream = str(originator_id)
        low, high = 1, None
        if gt is not None or lte is not None:
            first = self._firsts.find(stream)
            if first is None:
                return []
            low = 1 if gt is None else max(1, gt - first + 2)
            high = None if lte is None else lte - first + 1
        if limit == 0 or (high is not None and high < low):
            return []
        start, end = (high, low) if desc else (low, high)
        found = self.datastore.stream(self.context, stream, start, end, backward=desc, limit=limit)
        events = [stored_event_of(event) for event in found]
        if found:
            self._firsts.learn(stream, events[0].originator_version - found[0].sequence + 1)
        return events
