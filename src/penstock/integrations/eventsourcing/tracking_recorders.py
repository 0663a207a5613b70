"""Recorders of tracking: how far an application has processed others.

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


class TrackingWrite(PendingWrite):
    """One tracking record. `recorder` remembers how far the application was processed."""

    def __init__(self, recorder: "PenstockTrackingRecorder", tracking: Tracking) -> None:
        self._recorder = recorder
        self._tracking = tracking
        known = recorder.seen.get(tracking.application_name)
        self._reached = self._checked(recorder.reached(tracking.application_name) if known is None else known)

    def appends(self) -> list[Append]:
        record = event(TYPE, {"notification_id": self._tracking.notification_id})
        stream = self._tracking.application_name
        return [Append(self._recorder.tracking_context, stream, (record,), self._reached.sequence + 1)]

    def refresh(self) -> bool:
        before = self._reached
        self._reached = self._checked(self._recorder.reached(self._tracking.application_name))
        return self._reached != before

    def confirm(self) -> None:
        reached = Reached(self._reached.sequence + 1, self._tracking.notification_id)
        self._recorder.seen[self._tracking.application_name] = reached

    def _checked(self, reached: Reached) -> Reached:
        name, number = self._tracking.application_name, self._tracking.notification_id
        if reached.notification_id is not None and reached.notification_id >= number:
            raise IntegrityError(f"{name} was processed up to {reached.notification_id}: {number} is not new")
        return reached


class PenstockTrackingRecorder(TrackingRecorder):
    def __init__(self, datastore: PenstockDatastore, tracking_context: str) -> None:
        self.datastore = datastore
        self.tracking_context = tracking_context
        self.seen: dict[str, Reached] = {}
        """The last place of each application that this recorder has read or written; perhaps out of date."""

    def reached(self, application_name: str) -> Reached:
        """How far an application was processed, as the store has it now."""
        last = self.datastore.last(self.tracking_context, application_name)
        reached = self.seen[application_name] = Reached() if last is None else Reached(last.sequence, id_in(last))
        return reached

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record that a notification was processed. Raises IntegrityError if it was, or one after it."""
        write(self.datastore, [TrackingWrite(self, tracking)])

    def max_tracking_id(self, application_name: str) -> int | None:
        return self.reached(application_name).notification_id

    def wait(
        self,
        application_name: str,
        notification_id: int | None,
        timeout: float = 1.0,
        interrupt: Signal | None = None,
    ) -> None:
        """Wait until a notification was processed. Raises TimeoutError, or WaitInterruptedError after `interrupt`."""
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
            with self.datastore.connected() as client:
                page = client.read_page(
                    position, context=self.tracking_context, filter=application_name, wait=min(left, WAIT_S_MAX)
                )
            records, position = page.events, page.next


def id_in(record: Event) -> int:
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
        return writes if tracking is None else [*writes, TrackingWrite(self, tracking)]
