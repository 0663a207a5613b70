"""What tests of a store are made from: a clock that obeys, events that are easy to tell apart, short ways to write."""

from collections.abc import Iterator, Sequence
from itertools import count

from penstock.errors import PenstockError
from penstock.model import ANY, Appended, Event, EventFilter, NewEvent, ProducerMark, stamp_of, ticks_of_unix_ns
from penstock.model.columns import columns_of
from penstock.store import Store
from penstock.store.contract import Commit, Operation, Outcome, ReadLimits, Result, Transaction

_numbers = count(1)
NS_PER_MS = 1_000_000
TICKS_PER_MS = 10_000


class Clock:
    """Nanoseconds since 1970, moved by hand."""

    def __init__(self, ns: int = 1_700_000_000_000_000_000) -> None:
        self.ns = ns

    def __call__(self) -> int:
        return self.ns

    def advance(self, ms: int) -> None:
        self.ns += ms * NS_PER_MS

    @property
    def ticks(self) -> int:
        return ticks_of_unix_ns(self.ns)


def event(ticks: int = 0, type: str = "happened", headers: str | None = None, body: bytes = b"body") -> NewEvent:
    """An event with an id of its own."""
    return NewEvent(next(_numbers).to_bytes(16, "big"), stamp_of(ticks), type, headers, body)


def some(number: int, **fields: object) -> list[NewEvent]:
    """Several events with ids of their own."""
    return [event(**fields) for _ in range(number)]  # type: ignore[arg-type]


def commit(stream: str, events: Sequence[NewEvent], expected: int = ANY, context: str = "shop") -> Commit:
    """An append of these events."""
    return Commit(context, stream, expected, columns_of(events))


def attempt(store: Store, *operations: Operation, mark: ProducerMark | None = None) -> Outcome:
    """What becomes of one transaction in a batch of its own."""
    (outcome,) = store.write([Transaction(operations, mark)])
    return outcome


def do(store: Store, *operations: Operation, mark: ProducerMark | None = None) -> list[Result]:
    """The results of one transaction; its error is raised."""
    outcome = attempt(store, *operations, mark=mark)
    if isinstance(outcome, PenstockError):
        raise outcome
    return outcome


def do_one(store: Store, operation: Operation) -> Result:
    """The result of one operation; its error is raised."""
    (result,) = do(store, operation)
    return result


def append(
    store: Store,
    stream: str,
    events: Sequence[NewEvent],
    expected: int = ANY,
    context: str = "shop",
    mark: ProducerMark | None = None,
) -> Appended:
    """Append one commit."""
    (result,) = do(store, commit(stream, events, expected, context), mark=mark)
    assert isinstance(result, Appended)
    return result


def pages(
    store: Store,
    wanted: EventFilter = EventFilter(),  # noqa: B008 -- frozen
    limits: ReadLimits = ReadLimits(),  # noqa: B008 -- frozen
    start: int = 1,
    end: int | None = None,
) -> Iterator[list[Event]]:
    """Read page by page to the end; every page must lead on."""
    while True:
        page = store.read_all(start, wanted, limits, end)
        yield page.events
        if page.end:
            return
        assert page.next > start, "a page that is not the last must lead on"
        start = page.next


def everything(
    store: Store,
    wanted: EventFilter = EventFilter(),  # noqa: B008 -- frozen
    limits: ReadLimits = ReadLimits(),  # noqa: B008 -- frozen
    start: int = 1,
    end: int | None = None,
) -> list[Event]:
    """All events of a filter, however many pages it takes."""
    return [found for page in pages(store, wanted, limits, start, end) for found in page]


def stream_of(store: Store, stream: str, context: str = "shop", limits: ReadLimits | None = None) -> list[Event]:
    """All events of a stream, however many pages it takes."""
    found: list[Event] = []
    page = store.read_stream(context, stream, 1, None, limits or ReadLimits())
    found += page.events
    while not page.end:
        page = store.read_stream(context, stream, page.next, None, limits or ReadLimits())
        found += page.events
    return found


def passes(wanted: EventFilter, found: Event) -> bool:
    """What a filter means, said plainly."""
    return (
        (wanted.context is None or found.context == wanted.context)
        and found.stream.startswith(wanted.prefix)
        and (wanted.types is None or found.type in wanted.types)
    )


def new_part(found: Event) -> NewEvent:
    """What of an event its client sent."""
    return NewEvent(found.id, found.stamp, found.type, found.headers, found.body)


def find(store: Store, wanted: EventFilter, ticks: int, limits: ReadLimits | None = None) -> int | None:
    """Where a time begins, however many steps the search takes."""
    start = 1
    while True:
        search = store.find_position(wanted, ticks, limits or ReadLimits(), start)
        if search.position is not None or search.end:
            return search.position
        assert search.next > start, "a search that is not over must lead on"
        start = search.next


def findings(store: Store) -> list[str]:
    """What `verify` has to say."""
    return [f"{finding.where}: {finding.what}" for finding in store.verify(lambda done, total: None)]
