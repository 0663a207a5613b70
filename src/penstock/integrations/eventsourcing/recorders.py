"""Recorders of aggregates, applications and snapshots.

An aggregate is a stream in the application's context, named for its id. The topic is the event's type, the state its
body. Headers hold only what is not visible otherwise: a version that is not the sequence, and an id that is text
although it looks like a UUID. So recorders can also read streams that other clients wrote.

Sequences of a stream are 1, 2, 3…; versions of an aggregate follow one another too, but the first may be 0, or any
number. So a version's sequence follows from the version of the stream's first event, which never changes: recorders
read it once, or know it from a write, and remember it. The append then expects exactly that sequence, so that no
version is there twice or missing.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from threading import Condition, Lock, Thread
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    OperationalError,
    StoredEvent,
    Subscription,
)

from penstock.errors import NotJson
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.model import NEW, Append, Appended, Event, EventPage, NewEvent, event

VERSION: Final = "originator_version"
ID_TYPE: Final = "originator_id_type"
TEXT: Final = "text"
UUID_LENGTH: Final = 36
VERSION_DIGITS: Final = 20
"""Digits of a version in the name of a snapshot's stream, so that names sort as versions do."""
ATTEMPTS_MAX: Final = 100
"""Each attempt that fails means that another write has succeeded."""
REMEMBERED_MAX: Final = 100_000
"""Streams whose first version a recorder remembers."""
USUAL_FIRST_MAX: Final = 1
"""A recorder takes events up to this version for a stream's first, unless it knows better: the append finds out."""

LONG_POLL_S: Final = 1.0
PAGES_AHEAD_MAX: Final = 4

# --- events of the library and of Penstock --------------------------------------------------------------------


def new_event_of(stored: StoredEvent, visible_version: int) -> NewEvent:
    """A stored event as an event of Penstock, whose place in its stream shows some version."""
    headers: dict[str, Any] = {}
    if stored.originator_version != visible_version:
        headers[VERSION] = stored.originator_version
    if isinstance(stored.originator_id, str) and isinstance(id_of(stored.originator_id, {}), UUID):
        headers[ID_TYPE] = TEXT
    return event(stored.topic, stored.state, headers or None)


def stored_event_of(found: Event) -> StoredEvent:
    headers = headers_of(found)
    return StoredEvent(id_of(found.stream, headers), _version(found, headers), found.type, found.body)


def notification_of(found: Event) -> Notification:
    headers = headers_of(found)
    return Notification(id_of(found.stream, headers), _version(found, headers), found.type, found.body, found.position)


def id_of(name: str, headers: dict[str, Any]) -> UUID | str:
    """An originator's id: a UUID if it looks like one, unless the headers say otherwise."""
    if len(name) != UUID_LENGTH or headers.get(ID_TYPE) == TEXT:
        return name
    try:
        found = UUID(name)
    except ValueError:
        return name
    return found if str(found) == name else name


def headers_of(found: Event) -> dict[str, Any]:
    """The headers of an event. Those of other clients may be anything, and count as empty."""
    try:
        return found.header_map
    except NotJson:
        return {}


def _version(found: Event, headers: dict[str, Any]) -> int:
    version = headers.get(VERSION)
    return version if isinstance(version, int) else found.sequence


# --- writes ---------------------------------------------------------------------------------------------------


class PendingWrite(ABC):
    """Commits to append, with assumptions about their streams that may be out of date.

    If the store finds a stream at another version, nothing was written. Then all writes of the transaction refresh
    their assumptions, and `write` tries again if one has changed.
    """

    @abstractmethod
    def appends(self) -> list[Append]:
        """The commits, under the present assumptions."""

    @abstractmethod
    def refresh(self) -> bool:
        """Read the streams again; whether an assumption was wrong. Raises IntegrityError if a retry cannot help."""

    @abstractmethod
    def confirm(self) -> None:
        """The commits are written: the assumptions were right."""


def write(datastore: PenstockDatastore, writes: Sequence[PendingWrite]) -> list[Appended]:
    """Write all or nothing. Raises IntegrityError if an event is there already."""
    for _ in range(ATTEMPTS_MAX):
        appends = [append for each in writes for append in each.appends()]
        try:
            appended = datastore.write(appends) if appends else []
        except IntegrityError:
            if not any([each.refresh() for each in writes]):  # noqa: C419 - refresh all of them
                raise
        else:
            for each in writes:
                each.confirm()
            return appended
    raise OperationalError(f"other writers changed the streams in all {ATTEMPTS_MAX} attempts; nothing was written")


class FirstVersions:
    """The versions that the streams of a context begin with."""

    def __init__(self, datastore: PenstockDatastore, context: str, remembered_max: int = REMEMBERED_MAX) -> None:
        self._datastore = datastore
        self._context = context
        self._remembered_max = remembered_max
        self._lock = Lock()
        self.versions: dict[str, int] = {}

    def learn(self, stream: str, version: int) -> None:
        """Remember a stream's first version, and forget the oldest of too many."""
        with self._lock:
            self.versions[stream] = version
            if len(self.versions) > self._remembered_max:
                del self.versions[next(iter(self.versions))]

    def read(self, stream: str) -> int | None:
        """A stream's first version in the store, if there is such a stream."""
        first = self._datastore.first(self._context, stream)
        if first is None:
            return None
        version = _version(first, headers_of(first))
        self.learn(stream, version)
        return version

    def find(self, stream: str) -> int | None:
        known = self.versions.get(stream)
        return self.read(stream) if known is None else known


class EventsWrite(PendingWrite):
    """Events of aggregates, in their order: a commit for each run of events of one originator."""

    def __init__(self, context: str, stored_events: Sequence[StoredEvent], memory: FirstVersions) -> None:
        self._context = context
        self._stored_events = stored_events
        self._memory = memory
        self._firsts: dict[str, int] = {}
        self._assumed: set[str] = set()
        for stream, version in _lowest_versions(stored_events).items():
            first = memory.versions.get(stream) if version <= USUAL_FIRST_MAX else memory.find(stream)
            self._firsts[stream] = version if first is None else first
            if first is None:
                self._assumed.add(stream)

    def appends(self) -> list[Append]:
        appends = []
        for stream, group in groupby(self._stored_events, lambda stored: str(stored.originator_id)):
            run = list(group)
            first, version = self._firsts[stream], run[0].originator_version
            # Never send a sequence below 1: -1 would turn the check off.
            if version < first:
                raise IntegrityError(f"version {version} of {stream} cannot be recorded: its first version is {first}")
            sequence = version - first + 1
            events = tuple(new_event_of(stored, place) for place, stored in enumerate(run, sequence))
            appends.append(Append(self._context, stream, events, sequence))
        return appends

    def refresh(self) -> bool:
        before = dict(self._firsts)
        for stream in self._assumed:
            first = self._memory.read(stream)
            if first is not None:
                self._firsts[stream] = first
        self._assumed.clear()
        return self._firsts != before

    def confirm(self) -> None:
        for stream in self._assumed:
            self._memory.learn(stream, self._firsts[stream])


def _lowest_versions(stored_events: Sequence[StoredEvent]) -> dict[str, int]:
    """The version that each stream continues with. Raises IntegrityError if its versions do not follow one another."""
    lowest: dict[str, int] = {}
    following: dict[str, int] = {}
    for stored in stored_events:
        stream, version = str(stored.originator_id), stored.originator_version
        if following.get(stream, version) != version:
            raise IntegrityError(f"version {version} of {stream} cannot be recorded after {following[stream] - 1}")
        lowest.setdefault(stream, version)
        following[stream] = version + 1
    return lowest


# --- recorders ------------------------------------------------------------------------------------------------


class PenstockAggregateRecorder(AggregateRecorder):
    """Records events of aggregates, whose versions follow one another without gaps."""

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context
        self._firsts = FirstVersions(datastore, context)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, all or none. Raises IntegrityError if one is there, or the one before it is not."""
        self._insert_events(stored_events, **kwargs)
        return None

    def _insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        appended = write(self.datastore, self._writes(stored_events, **kwargs))
        positions = [position for each in appended for position in range(each.position, each.position + each.count)]
        return positions[: len(stored_events)]

    def _writes(self, stored_events: Sequence[StoredEvent], **_: Any) -> list[PendingWrite]:
        """The writes of one transaction. The events come first."""
        return [EventsWrite(self.context, stored_events, self._firsts)]

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
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
        with self.datastore.connected() as client:
            found = list(client.read_stream(self.context, stream, start, end, backward=desc, limit=limit))
        events = [stored_event_of(event) for event in found]
        if found:
            self._firsts.learn(stream, events[0].originator_version - found[0].sequence + 1)
        return events


Pull = Callable[[int, float], EventPage]
"""Reads a page from a position on. If there are no events, it waits so many seconds."""


class PenstockSubscription(Subscription[ApplicationRecorder]):
    """Notifications after an id, without end. One thread iterates; any thread may stop it.

    A thread long-polls the server for the next events, and queues them. A poll is short, so that the thread of a
    stopped subscription ends soon. The iteration ends at once.
    """

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
                    self._changed.wait_for(lambda: len(self._pages) < PAGES_AHEAD_MAX or self._has_been_stopped)
                    if self._has_been_stopped:
                        return
                page = self._pull(position, LONG_POLL_S)
                position = page.next
                if page.events:
                    with self._changed:
                        self._pages.append(list(map(notification_of, page.events)))
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the iteration raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()


class PenstockApplicationRecorder(PenstockAggregateRecorder, ApplicationRecorder):
    """Records events of aggregates, and returns them in the order they were recorded.

    The id of a notification is the event's position. Ids grow: a reader that has seen one never finds a lower one
    later. They have gaps: positions count the events of all contexts of a store.
    """

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        super().__init__(datastore, context)
        self._highest = 0

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        positions = self._insert_events(stored_events, **kwargs)
        if positions:
            self._highest = max(self._highest, positions[-1])
        return positions

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        position = 1 if start is None else start + (not inclusive_of_start)
        found: list[Notification] = []
        while len(found) < limit and (stop is None or position <= stop):
            page = self._page(topics, max(position, 1), limit=limit - len(found))
            found += [notification_of(event) for event in page.events if stop is None or event.position <= stop]
            if page.end:
                break
            position = page.next
        return found

    def _page(self, topics: Sequence[str], position: int, wait: float = 0.0, limit: int | None = None) -> EventPage:
        """A page of events from a position on. If there are none, the server waits up to `wait` seconds for some."""
        with self.datastore.connected() as client:
            return client.read_page(position, context=self.context, types=topics or None, limit=limit, wait=wait)

    def _first_from(self, position: int) -> int | None:
        """The position of the context's first event from a position on, if there is one."""
        while True:
            page = self._page((), position, limit=1)
            if page.events or page.end:
                return page.events[0].position if page.events else None
            position = page.next

    def max_notification_id(self) -> int | None:
        """The position of the context's last event, if there is one.

        The store has no index for it. So this asks whether there is an event at or after a position, in steps that
        double from the store's head on, and then by binary search.
        """
        with self.datastore.connected() as client:
            end = client.stats().head + 1
        lowest = self._highest if self._highest < end else 0
        step = 1
        # Invariant: no event is at `end` or after it; there is one at `lowest`, or `lowest` is 0.
        while end - lowest > 1:
            looked = max(lowest + 1, end - step) if step else (lowest + end) // 2
            found = self._first_from(looked)
            if found is None:
                end, step = looked, 2 * step
            else:
                lowest, step = found, 0
        self._highest = max(self._highest, lowest)
        return lowest or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        return PenstockSubscription(self, partial(self._page, topics), gt, topics)


class PenstockSnapshotRecorder(AggregateRecorder):
    """Records snapshots, and other events whose versions are unique but may have gaps and come in any order.

    Each version has a stream, named for the originator and the version. The recorder only writes it if it is new, so
    that no version is there twice. To find versions it lists names, and it reads only the events that it returns.
    """

    def __init__(self, datastore: PenstockDatastore, context: str) -> None:
        self.datastore = datastore
        self.context = context

    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> Sequence[int] | None:
        appends = []
        for stored in stored_events:
            version = stored.originator_version
            name = _snapshot_stream(stored.originator_id, version)
            appends.append(Append(self.context, name, (new_event_of(stored, version),), NEW))
        if appends:
            self.datastore.write(appends)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        prefix = f"{originator_id}/"
        with self.datastore.connected() as client:
            names = [found.name for found in client.streams(self.context, prefix)]
        # The id of another originator may begin with this one and a slash.
        versions = [int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdecimal()]
        found = [version for version in versions if (gt is None or version > gt) and (lte is None or version <= lte)]
        return [self._event(originator_id, version) for version in (found[::-1] if desc else found)[:limit]]

    def _event(self, originator_id: UUID | str, version: int) -> StoredEvent:
        found = self.datastore.first(self.context, _snapshot_stream(originator_id, version))
        assert found is not None, "a stream that is listed has an event"
        return StoredEvent(id_of(str(originator_id), headers_of(found)), version, found.type, found.body)


def _snapshot_stream(originator_id: UUID | str, version: int) -> str:
    return f"{originator_id}/{version:0{VERSION_DIGITS}}"
