"""Tracking: how far an application has processed others.

A separate context has a stream for each upstream application, with the notification ids that were processed. They grow:
a recorder appends a record right after the last one it has seen, with a higher id. If several processes do that at
once, one succeeds; the others read again, and fail if their id has been reached. Events that belong to the record are
in the same transaction. So no notification is processed twice, and none counts as processed that is not.
"""

from collections.abc import Sequence
from threading import Event as Signal
from time import monotonic
from typing import Any, Final, NamedTuple

from eventsourcing.persistence import (
    IntegrityError,
    ProcessRecorder,
    StoredEvent,
    Tracking,
    TrackingRecorder,
    WaitInterruptedError,
)

from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.recorders import PendingWrite, PenstockApplicationRecorder, write
from penstock.model import Append, Event, event

TYPE: Final = "Tracked"
WAIT_S_MAX: Final = 0.1
"""How long one long poll lasts before `wait` checks for an interrupt."""


class Reached(NamedTuple):
    """How far an application was processed: the sequence of the last record, and its notification id."""

    sequence: int = 0
    notification_id: int | None = None

    def has(self, notification_id: int) -> bool:
        """Whether an id was processed, or one after it."""
        return self.notification_id is not None and self.notification_id >= notification_id


class Trackings:
    """The tracking records of a context, and a cache of the last one of each application."""

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context
        self._seen: dict[str, Reached] = {}

    def read(self, application_name: str) -> Reached:
        last = self.datastore.last(self.context, application_name)
        reached = Reached() if last is None else Reached(last.sequence, id_in(last))
        self.learn(application_name, reached)
        return reached

    def learn(self, application_name: str, reached: Reached) -> None:
        self._seen[application_name] = reached

    def seen(self, application_name: str) -> Reached:
        """How far an application was processed, perhaps out of date."""
        return self._seen.get(application_name) or self.read(application_name)


class TrackingWrite(PendingWrite):
    """One tracking record."""

    def __init__(self, trackings: Trackings, tracking: Tracking) -> None:
        self._trackings = trackings
        self._tracking = tracking
        self._reached = self._checked(trackings.seen(tracking.application_name))

    def appends(self) -> list[Append]:
        record = event(TYPE, {"notification_id": self._tracking.notification_id})
        stream = self._tracking.application_name
        return [Append(self._trackings.context, stream, (record,), self._reached.sequence + 1)]

    def refresh(self) -> bool:
        before = self._reached
        self._reached = self._checked(self._trackings.read(self._tracking.application_name))
        return self._reached != before

    def confirm(self) -> None:
        name, number = self._tracking.application_name, self._tracking.notification_id
        self._trackings.learn(name, Reached(self._reached.sequence + 1, number))

    def _checked(self, reached: Reached) -> Reached:
        if reached.has(self._tracking.notification_id):
            name, number = self._tracking.application_name, self._tracking.notification_id
            raise IntegrityError(f"{name} was processed up to {reached.notification_id}: {number} is not new")
        return reached


class PenstockTrackingRecorder(TrackingRecorder):
    """Records how far other applications were processed."""

    def __init__(self, datastore: PenstockDatastore, tracking_context: str) -> None:
        self.datastore = datastore
        self.tracking_context = tracking_context
        self._trackings = Trackings(datastore, tracking_context)

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record that a notification was processed. Raises IntegrityError if it was, or one after it."""
        write(self.datastore, [TrackingWrite(self._trackings, tracking)])

    def max_tracking_id(self, application_name: str) -> int | None:
        return self._trackings.read(application_name).notification_id

    def wait(
        self,
        application_name: str,
        notification_id: int | None,
        timeout: float = 1.0,
        interrupt: Signal | None = None,
    ) -> None:
        """Wait until a notification was processed.

        Raises TimeoutError after `timeout` seconds, and WaitInterruptedError once `interrupt` is set.
        """
        if notification_id is None:
            return
        until = monotonic() + timeout
        last = self.datastore.last(self.tracking_context, application_name)
        records, position = ([last], last.position + 1) if last else ([], 1)
        while not any(id_in(record) >= notification_id for record in records if record.stream == application_name):
            if interrupt is not None and interrupt.is_set():
                raise WaitInterruptedError
            left = until - monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"notification {notification_id} of {application_name} was not processed within {timeout:g} s"
                )
            page = self.datastore.page(
                position, self.tracking_context, filter=application_name, wait=min(left, WAIT_S_MAX)
            )
            records, position = page.events, page.next


def id_in(record: Event) -> int:
    """The notification id of a tracking record."""
    found: int = record.json()["notification_id"]
    return found


class PenstockProcessRecorder(PenstockTrackingRecorder, PenstockApplicationRecorder, ProcessRecorder):
    """Records events together with how far they were processed, in one transaction."""

    def __init__(self, datastore: PenstockDatastore, context: str, tracking_context: str) -> None:
        PenstockApplicationRecorder.__init__(self, datastore, context)
        PenstockTrackingRecorder.__init__(self, datastore, tracking_context)

    def _writes(
        self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None, **kwargs: Any
    ) -> list[PendingWrite]:
        writes = super()._writes(stored_events, **kwargs)
        return writes if tracking is None else [*writes, TrackingWrite(self._trackings, tracking)]
