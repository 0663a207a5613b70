"""A history for a replay: events in order, cut into what goes out together.

Where it is cut depends on the events alone, not on how they were read: what is cut again is cut in the same places.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.history.histories import History
from penstock.model import Event, EventFilter

if TYPE_CHECKING:
    from penstock.store.record import Record


class Stretch(NamedTuple):
    """Events of some positions, how many other positions of theirs hold nothing any more, and where to go on."""

    events: list[Event]
    erased: int
    next: int


class Piece(NamedTuple):
    """Events that go out together, which may be none. With it, all is done up to `last`."""

    events: list[Event]
    last: int
    erased: int


def stretches(history: History, passing: EventFilter, begin: int, last: int) -> Iterator[Stretch]:
    """What a history has between two positions, in order. Raises DamagedRecord, which names its position."""
    if begin > last:
        return
    for records in history.records(passing, begin, last + 1):
        events = [event for record in records for event in record.events(passing, begin, last)]
        erased = sum(_erased(record, passing, begin, last) for record in records)
        begin = min(records[-1].last, last) + 1
        yield Stretch(events, erased, begin)


def _erased(record: "Record", passing: EventFilter, begin: int, last: int) -> int:
    """How many events that were of these streams are erased; of what type they were nobody knows."""
    with record.sound():
        if b"" not in record.texts()[record.name_count :]:
            return 0
    places, position = 0, record.position
    for run in record.runs():
        if passing.wants_stream(run.context, run.stream):
            places += max(0, min(position + run.length - 1, last) - max(position, begin) + 1)
        position += run.length
    return places - len(record.events(EventFilter(passing.context, passing.prefix), begin, last))


def size_of(event: Event) -> int:
    """About how many bytes an event takes."""
    return len(event.body) + len(event.headers or "") + len(event.type) + len(event.stream)


class Cutter:
    """Cuts events into pieces of at most so many events and bytes; one that is larger goes alone.

    A piece that was under way when a replay was ended goes out as it was, up to `first_end`. If pieces are `unbroken`,
    one ends where an event is left out.
    """

    def __init__(self, events_max: int, bytes_max: int, first_end: int = 0, *, unbroken: bool = False) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._first_end = first_end
        self._unbroken = unbroken
        self._events: list[Event] = []
        self._bytes = 0
        self._erased = 0

    def cut(self, found: Iterator[Stretch], is_wanted: Callable[[Event], bool], last: int) -> Iterator[Piece]:
        """Pieces of what is wanted, and the last of them up to `last`. Others may be empty: nothing was wanted."""
        for stretch in found:
            for event in stretch.events:
                wanted = is_wanted(event)
                if self._events and self._ends_before(event, wanted):
                    yield self._piece()
                if wanted:
                    self._add(event)
            self._erased += stretch.erased
            if not self._events:
                yield Piece([], stretch.next - 1, self._take_erased())
        if self._events:
            yield self._piece()
        yield Piece([], last, self._take_erased())

    def _ends_before(self, event: Event, wanted: bool) -> bool:
        if event.position <= self._first_end:
            return False
        if self._first_end or not wanted:
            return bool(self._first_end) or self._unbroken
        return len(self._events) >= self._events_max or self._bytes + size_of(event) > self._bytes_max

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._bytes += size_of(event)

    def _piece(self) -> Piece:
        last = max(self._first_end, self._events[-1].position)
        piece = Piece(self._events, last, self._take_erased())
        self._events, self._bytes, self._first_end = [], 0, 0
        return piece

    def _take_erased(self) -> int:
        erased, self._erased = self._erased, 0
        return erased
