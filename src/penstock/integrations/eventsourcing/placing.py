"""Where an aggregate's events belong: versions as sequences.

Sequences of a stream are 1, 2, 3…; versions of an aggregate follow one another too, but the first may be 0, or any
number. So a version's sequence follows from the version of the stream's first event, which never changes: it is read
once, or known from a write, and remembered. The append then expects exactly that sequence, which makes sure that no
version is there twice or left out.
"""

from collections.abc import Sequence
from itertools import groupby
from threading import Lock
from typing import Final

from eventsourcing.persistence import IntegrityError, StoredEvent

from penstock.integrations.eventsourcing.coding import new_event_of, version_of
from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.integrations.eventsourcing.writing import Part
from penstock.model import Append

REMEMBERED_MAX: Final = 100_000
"""Streams whose first version is remembered."""
USUAL_FIRST_MAX: Final = 1
"""Events up to this version are taken to be a stream's first, unless it is known: the append finds out."""


class FirstVersions:
    """The versions that the streams of a context begin with."""

    def __init__(self, datastore: PenstockDatastore, context: str, remembered_max: int = REMEMBERED_MAX) -> None:
        self._datastore = datastore
        self._context = context
        self._remembered_max = remembered_max
        self._lock = Lock()
        self._versions: dict[str, int] = {}

    def known(self, stream: str) -> int | None:
        """A stream's first version if it is remembered."""
        return self._versions.get(stream)

    def learn(self, stream: str, version: int) -> None:
        """Remember a stream's first version; when there are too many, the oldest is forgotten."""
        with self._lock:
            self._versions[stream] = version
            if len(self._versions) > self._remembered_max:
                del self._versions[next(iter(self._versions))]

    def read(self, stream: str) -> int | None:
        """A stream's first version as the store has it, if there is such a stream."""
        first = self._datastore.first(self._context, stream)
        if first is None:
            return None
        self.learn(stream, version_of(first))
        return version_of(first)

    def find(self, stream: str) -> int | None:
        """A stream's first version, remembered or read."""
        known = self.known(stream)
        return self.read(stream) if known is None else known


class EventsPart(Part):
    """Events of aggregates, in the order they are in: a commit for each stretch of the same originator."""

    def __init__(self, context: str, stored_events: Sequence[StoredEvent], memory: FirstVersions) -> None:
        self._context = context
        self._stored_events = stored_events
        self._memory = memory
        self._firsts: dict[str, int] = {}
        self._assumed: set[str] = set()
        for stream, version in lowest_versions(stored_events).items():
            first = memory.known(stream) if version <= USUAL_FIRST_MAX else memory.find(stream)
            self._firsts[stream] = version if first is None else first
            if first is None:
                self._assumed.add(stream)

    def appends(self) -> list[Append]:
        """The commits, with the sequences that the versions have."""
        stretches = groupby(self._stored_events, lambda stored: str(stored.originator_id))
        return [self._append(stream, list(stretch)) for stream, stretch in stretches]

    def _append(self, stream: str, stretch: list[StoredEvent]) -> Append:
        first, version = self._firsts[stream], stretch[0].originator_version
        # A sequence below 1 is never sent: one of them means that nothing is to be checked.
        if version < first:
            raise IntegrityError(f"version {version} of {stream} cannot be recorded: its first version is {first}")
        sequence = version - first + 1
        events = tuple(new_event_of(stored, place) for place, stored in enumerate(stretch, sequence))
        return Append(self._context, stream, events, sequence)

    def look_again(self) -> bool:
        """Whether a stream that was taken to be new begins with another version."""
        before = dict(self._firsts)
        for stream in self._assumed:
            first = self._memory.read(stream)
            if first is not None:
                self._firsts[stream] = first
        self._assumed.clear()
        return self._firsts != before

    def written(self) -> None:
        """The streams that were taken to be new were new."""
        for stream in self._assumed:
            self._memory.learn(stream, self._firsts[stream])


def lowest_versions(stored_events: Sequence[StoredEvent]) -> dict[str, int]:
    """The version that each stream goes on with. Raises IntegrityError if its versions do not follow one another."""
    lowest: dict[str, int] = {}
    following: dict[str, int] = {}
    for stored in stored_events:
        stream, version = str(stored.originator_id), stored.originator_version
        if following.get(stream, version) != version:
            raise IntegrityError(f"version {version} of {stream} cannot be recorded after {following[stream] - 1}")
        lowest.setdefault(stream, version)
        following[stream] = version + 1
    return lowest
