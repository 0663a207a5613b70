"""What worker processes look up because other servers may have changed it; see `sharing`."""

from typing import NamedTuple

from penstock.engine.jobs import NAMES_PER_QUERY, TIES_BYTES_MAX, TIES_MAX, gather
from penstock.model import Event, EventFilter, Over
from penstock.store import Store
from penstock.store.contract import ITERATOR_CHAIN_MAX, IteratorState, ReadLimits


def all_iterators(store: Store) -> list[IteratorState]:
    """All iterators, without their functions and accumulators."""
    iterators: list[IteratorState] = []
    while found := store.iterators(None, iterators[-1].name if iterators else "", NAMES_PER_QUERY):
        iterators += found
    return iterators


def chain_of(store: Store, name: str) -> list[IteratorState]:
    """An iterator and those that it reads, one over the other; nothing if it is not there."""
    chain: list[IteratorState] = []
    while len(chain) <= ITERATOR_CHAIN_MAX and (found := store.iterator(name)) is not None:
        chain.append(found)
        if found.over != Over.ITERATOR:
            break
        name = found.log
    return chain


class FetchedBatch(NamedTuple):
    """A batch that another server has handed out: where it begins, where the next one does, and if that is certain."""

    wanted: EventFilter
    start: int
    first: int
    last: int
    is_certain: bool


def batch_until(store: Store, number: int, ticks: int, limits: ReadLimits) -> FetchedBatch | None:
    """The batch of a subscription that ends on a time, as far as the store can tell; None if there is none.

    It begins where the subscription is, and ends on that time: but how many events were asked for nobody knows here.
    So it is taken to end with the first event of that time, and others of the same commit, which were there as well.
    That is never behind its true end. It is certain if there is no other event of that time.
    """
    found = store.subscription(number)
    if found is None or found.last_ticks == ticks:
        # A progress that was made before, and is repeated.
        return None
    wanted = EventFilter(found.context, found.filter)
    # As much as a batch can have, and the event behind it.
    limits = limits._replace(bytes_max=limits.bytes_max + TIES_BYTES_MAX)
    events = gather(store, wanted, found.position, limits.events_max + TIES_MAX + 1, limits).events
    ending = _run(events, ticks)
    if not ending:
        return None
    is_certain = sum(event.ticks == ticks for event in events) == len(ending)
    return FetchedBatch(wanted, found.position, events[0].position, ending[-1].position, is_certain)


def _run(events: list[Event], ticks: int) -> list[Event]:
    """The first event of a time, and those of its commit that follow with the same."""
    start = next((index for index, event in enumerate(events) if event.ticks == ticks), len(events))
    end = start
    while end < len(events) and (events[end].ticks, events[end].commit) == (ticks, events[start].commit):
        end += 1
    return events[start:end]
