"""Following an application: a thread long-polls the server for the next events, and queues them.

A poll is short, so that the thread of a stopped subscription ends soon. The iteration ends at once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Final, NamedTuple

from eventsourcing.persistence import ApplicationRecorder, Notification, Subscription

POLL_S: Final = 1.0
"""How long one long poll waits on the server."""
PAGES_MAX: Final = 4
"""Pages that the thread reads ahead."""


class NotificationPage(NamedTuple):
    """Notifications, the position to read on from, and whether there are no more now."""

    notifications: list[Notification]
    next: int
    end: bool


Pull = Callable[[int, float], NotificationPage]
"""Reads a page from a position on. If there are no events, it waits so many seconds."""


class PenstockSubscription(Subscription[ApplicationRecorder]):
    """Notifications after an id, without end. One thread iterates; any thread may stop it."""

    def __init__(self, recorder: ApplicationRecorder, pull: Pull, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder, gt, topics)
        self._pull = pull
        self._changed = Condition()
        self._pages: deque[list[Notification]] = deque()
        self._ready: deque[Notification] = deque()
        self._error: BaseException | None = None
        Thread(target=self._run, args=((gt or 0) + 1,), name="penstock-subscription", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            super().stop()
            self._changed.notify_all()

    def __next__(self) -> Notification:
        if not self._ready and not self._has_been_stopped:
            self._ready.extend(self._next_page())
        if self._has_been_stopped or not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def _next_page(self) -> list[Notification]:
        """The next page; empty if the subscription was stopped. Raises the thread's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._pages or self._error or self._has_been_stopped)
            if self._pages:
                self._changed.notify_all()
                return self._pages.popleft()
            if self._error is not None and not self._has_been_stopped:
                raise self._error
            return []

    def _run(self, position: int) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._pages) < PAGES_MAX or self._has_been_stopped)
                    if self._has_been_stopped:
                        return
                page = self._pull(position, POLL_S)
                position = page.next
                if page.notifications:
                    with self._changed:
                        self._pages.append(page.notifications)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the iteration raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
