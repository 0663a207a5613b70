"""Tracking: how far an application has processed others.

In a context of its own, each application that is followed has a stream of the notification ids that were processed.
They grow: a record is appended right after the one that was seen last, with a higher id than that one has. Of several
processes that do the same at once, one succeeds; the others look again, and fail if their id has been reached. Events
that are recorded with it are in the same transaction. So nothing is processed twice, and nothing is taken for processed
that is not.
"""

from threading import Event as Signal
from time import monotonic
from typing import Final, NamedTuple

from eventsourcing.persistence import IntegrityError, Tracking, TrackingRecorder, WaitInterruptedError

from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.writing import Part, write
from penstock.model import Append, Event, event

TYPE: Final = "Tracked"
WAIT_S_MAX: Final = 0.1
"""How long one long poll lasts before somebody looks whether the wait was interrupted."""


class Reached(NamedTuple):
    """How far an application was processed: the sequence of the last record, and the notification id that it has."""

    sequence: int = 0
    notification_id: int | None = None

    def has(self, notification_id: int) -> bool:
        """Whether an id was processed, or one after it."""
        return self.notification_id is not None and self.notification_id >= notification_id


class Trackings:
    """The tracking records of a context, and the last ones that were seen of each application."""

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context
        self._seen: dict[str, Reached] = {}

    def read(self, application_name: str) -> Reached:
        """How far an application was processed, as the store has it now."""
        last = self.datastore.last(self.context, application_name)
        reached = Reached() if last is None else Reached(last.sequence, id_in(last))
        self.learn(application_name, reached)
        return reached

    def learn(self, application_name: str, reached: Reached) -> None:
        """So far it was processed; perhaps further by now."""
        self._seen[application_name] = reached

    def seen(self, application_name: str) -> Reached:
        """How far it was processed when somebody looked last."""
        return self._seen.get(application_name) or self.read(application_name)


class TrackingPart(Part):
    """One tracking record."""

    def __init__(self, trackings: Trackings, tracking: Tracking) -> None:
        self._trackings = trackings
        self._tracking = tracking
        self._reached = self._checked(trackings.seen(tracking.application_name))

    def appends(self) -> list[Append]:
        """The record, right after the last one that was seen."""
        record = event(TYPE, {"notification_id": self._tracking.notification_id})
        stream = self._tracking.application_name
        return [Append(self._trackings.context, stream, (record,), self._reached.sequence + 1)]

    def look_again(self) -> bool:
        """Whether others have gone on; raises IntegrityError if they have come as far as this."""
        before = self._reached
        self._reached = self._checked(self._trackings.read(self._tracking.application_name))
        return self._reached != before

    def written(self) -> None:
        """This is the last record now."""
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
        write(self.datastore, [TrackingPart(self._trackings, tracking)])

    def max_tracking_id(self, application_name: str) -> int | None:
        """The highest notification id of an application that was processed."""
        return self._trackings.read(application_name).notification_id

    def wait(
        self,
        application_name: str,
        notification_id: int | None,
        timeout: float = 1.0,
        interrupt: Signal | None = None,
    ) -> None:
        """Wait on the server until a notification was processed.

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
    """The notification id that a tracking record has."""
    found: int = record.json()["notification_id"]
    return found
