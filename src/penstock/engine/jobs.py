"""What worker processes do: each function reads the store for one request and answers in one bounded step.

A scan that does not come to an end in time answers what it has and where to go on; the engine asks again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile, islice, takewhile
from operator import attrgetter
from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.errors import (
    EventNotFound,
    IteratorNotFound,
    LogNotFound,
    NotCbor,
    SubscriptionNotFound,
)
from penstock.model import LOG_CONTEXT, Encoded, Event, EventFilter, EventPage, Over, View
from penstock.store import Store
from penstock.store.contract import (
    ITERATOR_CHAIN_MAX,
    AccessState,
    Erasure,
    IteratorState,
    Page,
    Progress,
    QueueState,
    ReadLimits,
)
from penstock.wire.remits.cbor import first_invalid

TIES_MAX: Final = 10_000
"""Events that a batch may have beyond its count, so that it does not end between events of the same time."""
TIES_BYTES_MAX: Final = 32 << 20
"""Bytes that a batch may have beyond a page for the same reason."""
TIES_POSITIONS_MAX: Final = 100_000
"""How far a job looks for the place where a batch may end. It is not a time: the cut must not depend on load."""
SCANNED_POSITIONS_MAX: Final = 4096
"""How far a scan that found nothing may go before the place where it ended is worth a write."""
STEP_S_MAX: Final = 1.0
"""How long one job goes on scanning."""
NAMES_PER_QUERY: Final = 1000

VIEW_BYTES_MIN: Final = 4096
"""Records from this length on travel to the server outside of the pickle; for shorter ones a copy costs less."""

EventEncoder = Callable[[list[Event]], Any]
"""A codec's function of a module that turns events into what its wire has."""


# --- plain reads ----------------------------------------------------------------------------------------------


def read_stream(store: Store, request: model.ReadStream, limits: ReadLimits, present: EventEncoder | None) -> EventPage:
    where = (request.context, request.stream, request.from_sequence, request.to_sequence)
    return _page(store.read_stream(*where, limits, request.backward, request.types), present)


def _page(page: Page, present: EventEncoder | None) -> EventPage:
    events, encoded = presented(page.events, present)
    return EventPage(events, page.next, page.end, encoded)


def presented(events: list[Event], present: EventEncoder | None) -> tuple[list[Event], Encoded | None]:
    """The events, or what an encoder makes of them for a wire."""
    return (events, None) if present is None else ([], Encoded(len(events), present(events)))


def read_event(store: Store, request: model.ReadEvent, limits: ReadLimits, present: EventEncoder | None) -> EventPage:
    """One event, or EventNotFound."""
    context, stream, sequence = request.context, request.stream, request.sequence
    page = store.read_stream(context, stream, sequence, sequence, limits)
    if not page.events or page.events[0].sequence != sequence:
        raise EventNotFound(context, stream, sequence)
    return _page(Page(page.events, sequence + 1, True), present)


def read_all(
    store: Store, position: int, wanted: EventFilter, limits: ReadLimits, present: EventEncoder | None
) -> EventPage:
    if wanted.within is None and wanted.types is None:
        return _page(store.read_all(position, wanted, limits), present)
    # A page must not end early because of what the reader may not see, or does not want.
    return _page(gather(store, wanted, position, limits.events_max, limits), present)


def read_records(
    store: Store, position: int, wanted: EventFilter, limits: ReadLimits, view: View | None
) -> model.RecordPage:
    """Records as they are stored. The reader checks them; long ones reach the server as views, without a copy.

    Of records that hold what the reader may not see, it gets the rest.
    """
    page = store.read_records(position, wanted, limits, checked=False)
    identity, seen = store.identity(), page.records
    if view is not None:
        # It needs NumPy, which takes long to import.
        from penstock.store.rewrites import seen_parts  # noqa: PLC0415

        seen = [part for record in page.records for part in seen_parts(record, view)]
    records: list[Any] = [PickleBuffer(one.data) if len(one.data) >= VIEW_BYTES_MIN else one.data for one in seen]
    return model.RecordPage(identity.id, identity.timeline, records, page.next, page.end)


def ask_store(store: Store, method: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of one method of the store, such as `Store.stats`."""
    return getattr(store, method.__name__)(*arguments)


def changed_access(store: Store, known: int) -> AccessState | None:
    """All principals, if they have changed since a version."""
    return store.access() if store.access_version() > known else None


def list_contexts(
    store: Store, request: model.ListContexts, limit: int, view: View | None
) -> model.ListPage[model.ContextInfo]:
    return _listed(store.contexts, request.after, limit, partial(_seen_context, store, view), _name)


def _seen_context(store: Store, view: View | None, one: model.ContextInfo) -> model.ContextInfo | None:
    """A context as a principal sees it; None if it sees nothing of it.

    Of a part of a context the store counts events and streams, but no commits and bytes.
    """
    if view is None or view.has_filter(one.name, ""):
        return one
    counts = [info.events for info in _seen_streams(store, one.name, "", "", NAMES_PER_QUERY, view)]
    return model.ContextInfo(one.name, sum(counts), 0, len(counts), 0) if counts else None


def list_streams(
    store: Store, request: model.ListStreams, limit: int, view: View | None
) -> model.ListPage[model.StreamInfo]:
    prefix = EventFilter(request.context, request.filter).prefix
    seen = _seen_streams(store, request.context, prefix, request.after, limit + 1, view)
    found = list(islice(seen, limit + 1))
    return model.ListPage(found[:limit], len(found) <= limit)


def _seen_streams(
    store: Store, context: str, prefix: str, after: str, at_once: int, view: View | None
) -> Iterator[model.StreamInfo]:
    """Streams of a context after a name, as a principal sees them, in order. It asks the store for no others."""
    ranges = {prefix: False}
    if view is not None and not view.has_filter(context, prefix):
        scopes = [scope for scope in view.scopes if scope.meets_filter(context, prefix)]
        # Of the same name, a prefix has more than a stream.
        scopes.sort(key=attrgetter("is_exact"), reverse=True)
        ranges = {max(prefix, scope.stream, key=len): scope.is_exact for scope in scopes}
    last: str | None = None
    for start, is_exact in sorted(ranges.items()):
        if last is not None and start.startswith(last):
            # One that begins with another one adds nothing.
            continue
        if is_exact:
            if start > after:
                yield from (info for info in store.streams(context, start, "", 1) if info.name == start)
            continue
        last = start
        yield from _every(partial(store.streams, context, start), after, _name, at_once)


def list_subscriptions(
    store: Store, request: model.ListSubscriptions, limit: int, view: View | None
) -> model.ListPage[model.SubscriptionInfo]:
    page = _listed(store.subscriptions, request.after, limit, one_if(partial(is_whole, view)), _id)
    counted = _with_lags(store, page, view)
    return replace(counted, items=[named_for(view, one) for one in counted.items])


def list_queues(
    store: Store, request: model.ListQueues, limit: int, view: View | None
) -> model.ListPage[model.QueueInfo]:
    return _with_lags(store, _listed(store.queues, request.after, limit, one_if(partial(is_whole, view)), _id), view)


def _with_lags(store: Store, page: model.ListPage[Any], view: View | None) -> model.ListPage[Any]:
    """A page of queues or subscriptions with their lags. It is shorter where the time of a job is up."""
    deadline = time.monotonic() + STEP_S_MAX
    counted: list[Any] = []
    for one in page.items:
        counted.append(store.with_lag(one, view=view))
        if time.monotonic() > deadline:
            break
    return model.ListPage(counted, page.end and len(counted) == len(page.items))


def list_erasures(
    store: Store, request: model.ListErasures, limit: int, view: View | None
) -> model.ListPage[model.ErasureInfo]:
    """The ledger. An erasure by positions may be of any streams, so only who sees everything sees it."""

    def is_seen(one: Erasure) -> bool:
        if view is None:
            return True
        return one.context is not None and one.stream is not None and view.has_stream(one.context, one.stream)

    found = _listed(store.erasures, request.after, limit, one_if(is_seen), _id)
    return model.ListPage([erasure_info(erasure) for erasure in found.items], found.end)


def _listed(
    page: Callable[[Any, int], Sequence[Any]],
    after: Any,
    limit: int,
    see: Callable[[Any], Any],
    key: Callable[[Any], Any],
) -> model.ListPage[Any]:
    """A page of a list as a principal sees it: `see` gives an entry, or None for one that it does not see."""
    found: list[Any] = []
    while more := page(after, limit + 1):
        found += [seen for one in more if (seen := see(one)) is not None]
        if len(found) > limit or len(more) <= limit:
            break
        after = key(more[-1])
    return model.ListPage(found[:limit], len(found) <= limit)


def one_if(is_seen: Callable[[Any], bool]) -> Callable[[Any], Any]:
    return lambda one: one if is_seen(one) else None


def _every(
    page: Callable[[Any, int], Sequence[Any]], after: Any, key: Callable[[Any], Any], at_once: int = NAMES_PER_QUERY
) -> Iterator[Any]:
    """The whole list behind a function that gives pages of it."""
    while more := page(after, at_once):
        yield from more
        after = key(more[-1])


def is_whole(view: View | None, one: model.SubscriptionInfo | model.QueueInfo | QueueState) -> bool:
    """Whether a principal may see all that a queue or a subscription delivers, or the subscription is its own."""
    if view is None:
        return True
    if isinstance(one, model.SubscriptionInfo) and one.context is None and one.subscriber.startswith(owned(view, "")):
        return True
    beginnings = model.Selection.parsed(one.selection).beginnings(one.filter)
    return all(view.has_filter(one.context, prefix) for prefix in beginnings)


def owned(view: View, subscriber: str) -> str:
    """The store's name of a subscriber of a principal that may see a part only: no other principal shares it.

    Otherwise another principal of the same name for it could move it on over what only this one may see, or would be
    told of this one's selection.
    """
    return f"~{view.owner}/{subscriber}"


def named_for(view: View | None, one: model.SubscriptionInfo) -> model.SubscriptionInfo:
    """A subscription with the name that the principal has for it."""
    if view is None:
        return one
    return replace(one, subscriber=one.subscriber.removeprefix(owned(view, "")))


_id: Final = attrgetter("id")
_name: Final = attrgetter("name")


def stats(store: Store, view: View | None) -> model.StoreStats:
    """Counts of the store; for a principal that sees a part of it, of that part, and nothing of the files."""
    if view is None:
        return store.stats()
    contexts = [seen for one in _every(store.contexts, "", _name) if (seen := _seen_context(store, view, one))]
    return replace(
        store.stats(),
        commits=sum(info.commits for info in contexts),
        contexts=len(contexts),
        streams=sum(info.streams for info in contexts),
        subscriptions=sum(is_whole(view, one) for one in _every(store.subscriptions, 0, _id)),
        queues=sum(is_whole(view, one) for one in _every(store.queues, 0, _id)),
        logs=len(list_logs(store, view).names),
        iterators=len(list_iterators(store, None, view).names),
        body_bytes=sum(info.bytes for info in contexts),
        file_bytes=0,
        sealed=0,
    )


def erasure_info(one: Erasure) -> model.ErasureInfo:
    return model.ErasureInfo(one.id, one.context, one.stream, one.events, one.requested, one.finished, one.damaged)


# --- logs -----------------------------------------------------------------------------------------------------


def check_messages(store: Store, log: str, messages: Sequence[bytes]) -> None:
    """Raise LogNotFound or NotCbor if messages cannot be added to a log. The writer checks the log again."""
    if store.log(log) is None:
        raise LogNotFound(log)
    if found := first_invalid(messages):
        raise NotCbor(*found)


def has_log(store: Store, name: str) -> bool:
    return store.log(name) is not None


def list_logs(store: Store, view: View | None = None) -> model.Names:
    every = (log.name for log in _every(store.logs, "", _name))
    return model.Names([name for name in every if view is None or view.has_stream(LOG_CONTEXT, name)])


def list_iterators(store: Store, log: str | None, view: View | None = None) -> model.Names:
    names = [iterator.name for iterator in _every(partial(store.iterators, log), "", _name)]
    if view is None:
        return model.Names(names)
    known = {iterator.name: iterator for iterator in all_iterators(store)}
    return model.Names([name for name in names if is_readable(known, name, view)])


def all_iterators(store: Store) -> list[IteratorState]:
    """All iterators, without their functions and accumulators."""
    return list(_every(partial(store.iterators, None), "", _name))


def source_of(iterator: IteratorState) -> tuple[str, str]:
    """The context and stream that an iterator reads; ("", name) if it reads another iterator."""
    if iterator.over == Over.LOG:
        return LOG_CONTEXT, iterator.log
    if iterator.over == Over.ITERATOR:
        return "", iterator.log
    context, _, stream = iterator.log.partition("/")
    return context, stream


def is_readable(known: Mapping[str, IteratorState], name: str, view: View) -> bool:
    """Whether a principal may use an iterator: the stream that it reads, directly or through others, is in the view."""
    for _ in range(ITERATOR_CHAIN_MAX + 1):
        iterator = known.get(name)
        if iterator is None:
            return False
        context, stream = source_of(iterator)
        if context:
            return view.has_stream(context, stream)
        name = stream
    return False


def visible_iterator(store: Store, name: str, view: View | None) -> IteratorState:
    """The iterator of a name, if a principal may use it, or IteratorNotFound."""
    found = store.iterator(name)
    if found is None or (
        view is not None and not is_readable({one.name: one for one in chain_of(store, name)}, name, view)
    ):
        raise IteratorNotFound(name)
    return found


# --- gathering events -----------------------------------------------------------------------------------------


def gather(
    store: Store, wanted: EventFilter, position: int, count: int, limits: ReadLimits, last: int | None = None
) -> Page:
    """Up to `count` events from a position on (up to `last`), fewer where bytes or time run out."""
    deadline = time.monotonic() + STEP_S_MAX
    events: list[Event] = []
    size = 0
    while True:
        page_limits = limits._replace(events_max=count - len(events), bytes_max=limits.bytes_max - size)
        page = store.read_all(position, wanted, page_limits, last)
        events += page.events
        size += size_of(page.events)
        position = page.next
        if page.end or len(events) >= count or size >= limits.bytes_max or time.monotonic() > deadline:
            return Page(events, position, page.end)


def size_of(events: list[Event]) -> int:
    return sum(len(event.body) + len(event.headers or "") for event in events)


def read_range(store: Store, wanted: EventFilter, first: int, last: int) -> list[Event]:
    events: list[Event] = []
    while first <= last:
        page = store.read_all(first, wanted, ReadLimits(), last)
        events += page.events
        if page.end:
            break
        first = page.next
    return events


# --- subscriptions --------------------------------------------------------------------------------------------


class PendingBatch(NamedTuple):
    """A batch that was handed out and not progressed yet: what it was read with, from where, and where it lies.

    `shown` is the time it ended on when it was last handed out, which is another one once its end was erased. If
    another server has handed it out, its end may be uncertain.
    """

    wanted: EventFilter
    start: int
    first: int
    last: int
    last_ticks: int
    shown: int
    is_certain: bool = True

    def progress(self, number: int, last_ticks: int, *, strict: bool) -> Progress:
        return Progress(number, self.start, self.last + 1, last_ticks, strict)


class PendingEvents(NamedTuple):
    """The events of a pending batch, without those that were erased since, and the time of the last one."""

    events: list[Event]
    encoded: Encoded | None
    last_ticks: int | None


def read_pending(store: Store, batch: PendingBatch, present: EventEncoder | None) -> PendingEvents:
    events = read_range(store, batch.wanted, batch.first, batch.last)
    return PendingEvents(*presented(events, present), events[-1].ticks if events else None)


class Fetched(NamedTuple):
    """A subscription and its next batch, if there is one; `next` is its position after that batch."""

    subscription: model.SubscriptionInfo
    batch: PendingBatch | None
    next: int
    end: bool
    events: list[Event]
    encoded: Encoded | None = None


def fetch(
    store: Store, number: int, count: int, limits: ReadLimits, present: EventEncoder | None, view: View | None
) -> Fetched:
    """A subscription's next batch, cut where the rules of progress allow."""
    subscription = find_subscription(store, number, view)
    wanted = subscription.wanted.seen_by(view)
    # One more than asked for shows whether the batch would be cut between events of the same time.
    found = gather(store, wanted, subscription.position, count + 1, limits)
    if not found.events:
        return Fetched(subscription, None, found.next, found.end, *presented([], present))
    events = _batch(store, wanted, found, count, subscription.last_ticks, limits)
    first, last = events[0], events[-1]
    batch = PendingBatch(wanted, subscription.position, first.position, last.position, last.ticks, last.ticks)
    return Fetched(subscription, batch, batch.last + 1, False, *presented(events, present))


def _batch(
    store: Store, wanted: EventFilter, found: Page, count: int, previous: int | None, limits: ReadLimits
) -> list[Event]:
    """The batch that these events begin: read on until its end is known, up to the limits of ties."""
    events, following, end = found
    # Fewer where bytes or time ran out.
    count = min(count, len(events))
    furthest, room, ahead = following + TIES_POSITIONS_MAX, TIES_BYTES_MAX, 1
    while (length := batch_length(ticks := [event.ticks for event in events], count, previous, end)) is None:
        ahead = min(ahead, count + TIES_MAX + 1 - len(events))
        if ahead <= 0 or room <= 0 or following > furthest:
            return events[: split_length(ticks, count, previous)]
        page = limits._replace(bytes_max=min(limits.bytes_max, room))
        more, following, end = gather(store, wanted, following, ahead, page)
        events += more
        room -= size_of(more)
        # Mostly the first event that follows has another time. If it has not, there may be many.
        ahead = limits.events_max
    return events[:length]


def batch_length(ticks: list[int], count: int, previous: int | None, end: bool) -> int | None:
    """How many of these events make the batch; None if the events that follow them decide it. `end`: none follow.

    The batch ends with the last event of a time, at `count` events or behind. It does not end on `previous`, the time
    that the batch before it ended on: a repeated progress could not tell the two batches apart.
    """
    for cut in range(min(count, len(ticks)), min(count + TIES_MAX, len(ticks)) + 1):
        is_last = ticks[cut] != ticks[cut - 1] if cut < len(ticks) else end
        if is_last and ticks[cut - 1] != previous:
            return cut
    return split_length(ticks, count, previous) if end else None


def split_length(ticks: list[int], count: int, previous: int | None) -> int:
    """How many of these events make the batch if it cannot end at `count` events or behind.

    It ends before, so that the events of the following time have the next batch for themselves. If all are of one time,
    that time is split.
    """
    cuts = range(len(ticks) - 1, 0, -1)
    shorter = (cut for cut in cuts if ticks[cut] != ticks[cut - 1] and ticks[cut - 1] != previous)
    return next(shorter, min(count + TIES_MAX, len(ticks)))


def find_subscription(store: Store, number: int, view: View | None = None) -> model.SubscriptionInfo:
    """A subscription by its id, or SubscriptionNotFound."""
    found = store.subscription(number)
    if found is None or not is_whole(view, found):
        raise SubscriptionNotFound(str(number))
    return found


def chain_of(store: Store, name: str) -> list[IteratorState]:
    """An iterator and those that it reads, one over the other; empty if it does not exist."""
    chain: list[IteratorState] = []
    while len(chain) <= ITERATOR_CHAIN_MAX and (found := store.iterator(name)) is not None:
        chain.append(found)
        if found.over != model.Over.ITERATOR:
            break
        name = found.log
    return chain


def batch_until(
    store: Store, number: int, ticks: int, limits: ReadLimits, view: View | None = None
) -> PendingBatch | None:
    """The batch of a subscription that ends on a time, as far as the store knows, or None.

    It begins where the subscription is, and ends on that time; the store does not know how many events were requested.
    So it is taken to end with the first event of that time, and others of the same commit, which were there as well.
    That is never behind its true end. It is certain if there is no other event of that time.
    """
    found = store.subscription(number)
    if found is None or found.last_ticks == ticks:
        # A progress that was made before, and is repeated.
        return None
    wanted = found.wanted.seen_by(view)
    # As much as a batch can have, and the event behind it.
    limits = limits._replace(bytes_max=limits.bytes_max + TIES_BYTES_MAX)
    events = gather(store, wanted, found.position, limits.events_max + TIES_MAX + 1, limits).events
    rest = list(dropwhile(lambda event: event.ticks != ticks, events))
    # The first event of that time, and the following ones of its commit.
    ending = list(takewhile(lambda event: (event.ticks, event.commit) == (ticks, rest[0].commit), rest))
    if not ending:
        return None
    is_certain = sum(event.ticks == ticks for event in events) == len(ending)
    last = ending[-1].position
    return PendingBatch(wanted, found.position, events[0].position, last, ticks, ticks, is_certain)
