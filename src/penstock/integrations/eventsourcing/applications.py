"""Applications: the positions of a context's events are the ids of its notifications."""

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ApplicationRecorder, Notification, StoredEvent, Subscription

from penstock.integrations.eventsourcing.aggregates import PenstockAggregateRecorder
from penstock.integrations.eventsourcing.coding import notification_of
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.subscription import NotificationPage, PenstockSubscription


class PenstockApplicationRecorder(PenstockAggregateRecorder, ApplicationRecorder):
    """Records events of aggregates and hands them out in the order they were recorded.

    Ids grow, and nobody who has seen one finds a lower one later. They are not dense: positions count all events of a
    store, those of other contexts too.
    """

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        super().__init__(datastore, context)
        self._highest = 0

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, all or none; their notification ids."""
        positions = self._insert_events(stored_events, **kwargs)
        if positions:
            self._highest = max(self._highest, positions[-1])
        return positions

    # -- reading

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events from an id on, up to another, of some topics; at most `limit`."""
        position = 1 if start is None else start + (not inclusive_of_start)
        found: list[Notification] = []
        while len(found) < limit and (stop is None or position <= stop):
            page = self.notifications(position, topics, limit=limit - len(found))
            found += [each for each in page.notifications if stop is None or each.id <= stop]
            if page.end:
                break
            position = page.next
        return found

    def notifications(
        self, position: int, topics: Sequence[str] = (), *, limit: int | None = None, wait: float = 0.0
    ) -> NotificationPage:
        """A page of events from a position on. If there are none, it waits up to `wait` seconds for some."""
        page = self.datastore.page(max(position, 1), self.context, topics=topics, limit=limit, wait=wait)
        return NotificationPage([notification_of(event) for event in page.events], page.next, page.end)

    def max_notification_id(self) -> int | None:
        """The position of the context's last event, if there is one.

        Nothing in the store says where that is. So this asks whether there is an event at or after a position, at first
        close to the store's head, then further and further away from it, and then closes in between the two.
        """
        end = self.datastore.head() + 1
        lowest = self._highest if self._highest < end else 0
        step = 1
        # Always true: no event is at `end` or after it; there is one at `lowest`, or it is 0.
        while end - lowest > 1:
            looked = max(lowest + 1, end - step) if step else (lowest + end) // 2
            found = self.datastore.exists_from(looked, self.context)
            if found is None:
                end, step = looked, 2 * step
            else:
                lowest, step = found, 0
        self._highest = max(self._highest, lowest)
        return lowest or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Events after an id, and those to come as they come."""

        def pull(position: int, wait: float) -> NotificationPage:
            return self.notifications(position, topics, wait=wait)

        return PenstockSubscription(self, pull, gt, topics)
