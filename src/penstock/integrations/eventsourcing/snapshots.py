"""Snapshots, and whatever else has versions with gaps and in any order: a stream for each version.

The stream is named for the originator and the version, and is only ever written when it is new: so no version is there
twice. Listing the names of an originator's streams finds a version; only what is wanted is read.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import AggregateRecorder, StoredEvent

from penstock.integrations.eventsourcing.coding import headers_of, id_of, new_event_of
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.model import NEW, Append

DIGITS: Final = 20
"""Names sort as versions do."""


class PenstockSnapshotRecorder(AggregateRecorder):
    """Records events whose versions are unique, and nothing else."""

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context

    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        """Record events, all or none. Raises IntegrityError if one is there."""
        if stored_events:
            self.datastore.write([self._append(stored) for stored in stored_events])
        return None

    def _append(self, stored: StoredEvent) -> Append:
        version = stored.originator_version
        return Append(self.context, _name(stored.originator_id, version), (new_event_of(stored, version),), NEW)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Events of an originator by version."""
        versions = [
            version
            for version in self._versions(originator_id)
            if (gt is None or version > gt) and (lte is None or version <= lte)
        ]
        wanted = versions[::-1] if desc else versions
        return [self._event(originator_id, version) for version in wanted[:limit]]

    def _versions(self, originator_id: UUID | str) -> list[int]:
        prefix = f"{originator_id}/"
        names = self.datastore.streams(self.context, prefix)
        # The id of another originator may begin with this one and a slash.
        return [int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdecimal()]

    def _event(self, originator_id: UUID | str, version: int) -> StoredEvent:
        found = self.datastore.first(self.context, _name(originator_id, version))
        assert found is not None, "a stream that is listed has an event"
        return StoredEvent(id_of(str(originator_id), headers_of(found)), version, found.type, found.body)


def _name(originator_id: UUID | str, version: int) -> str:
    return f"{originator_id}/{version:0{DIGITS}}"
