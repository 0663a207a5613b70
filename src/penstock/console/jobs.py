"""What workers do for the console, each function in one bounded step.

This module imports little: workers load it. The last argument is what the principal may see; None: everything.
"""

import time
from typing import Final, NamedTuple

from penstock.engine.jobs import find_subscription, named_for
from penstock.engine.queue_jobs import lookup_queue
from penstock.model import Allocation, EventFilter, QueueInfo, QueuePreview, SubscriptionInfo, View
from penstock.model.times import TICKS_PER_MS
from penstock.store import Store
from penstock.store.contract import WAITING, ReadLimits, Search

ROWS: Final = 50
"""Queues, subscriptions, allocations or dead letters in a page."""
COUNTED_MAX: Final = 10_000
"""Events that are counted; then they are "10,000+"."""
COUNT_S_MAX: Final = 0.5


class Holding(NamedTuple):
    """An allocation. `state` is held, delayed, waiting or again."""

    state: str
    one: Allocation


class QueueFacts(NamedTuple):
    info: QueueInfo
    holdings: list[Holding]
    next: int | None
    """After which first position there are more allocations."""


class Count(NamedTuple):
    """How many events there are; unless that is exact, more."""

    events: int
    is_exact: bool


# --- queues and subscriptions ---------------------------------------------------------------------------------


def queue_facts(store: Store, context: str, name: str, after: int, view: View | None) -> QueueFacts:
    queue = lookup_queue(store, name, context, view)
    (info,) = store.queues(queue.id - 1, 1)
    found, now = store.allocations(queue.id, after, ROWS + 1), store.now()
    holdings = [Holding(_state(one, now), one) for one in found[:ROWS]]
    return QueueFacts(store.with_lag(info, view=view), holdings, found[ROWS - 1].first if len(found) > ROWS else None)


def _state(one: Allocation, now: int) -> str:
    if one.expires >= WAITING:
        return "waiting"
    if one.expires <= now:
        return "again"
    return "held" if one.subscriber else "delayed"


def subscription_facts(store: Store, number: int, view: View | None) -> SubscriptionInfo:
    return named_for(view, store.with_lag(find_subscription(store, number, view), view=view))


def count_between(store: Store, wanted: EventFilter, first: int, last: int, view: View | None) -> Count:
    """How many events pass between two positions, up to a limit."""
    deadline, found, wanted = time.monotonic() + COUNT_S_MAX, 0, wanted.seen_by(view)
    while first <= last:
        page = store.read_all(first, wanted, ReadLimits(), last)
        found += len(page.events)
        if page.end:
            break
        if found > COUNTED_MAX or time.monotonic() > deadline:
            return Count(min(found, COUNTED_MAX), False)
        first = page.next
    return Count(found, True)


def find_time(store: Store, wanted: EventFilter, ticks: int, start: int, view: View | None) -> Search:
    return store.find_position(wanted.seen_by(view), ticks, ReadLimits(), start)


def preview_of(store: Store, wanted: EventFilter, position: int, view: View | None) -> QueuePreview:
    """What a subscription would deliver from a position on."""
    lag = store.lag(wanted.seen_by(view), position)
    behind_ms = 0 if lag.oldest is None else max(0, store.now() - lag.oldest) // TICKS_PER_MS
    return QueuePreview(position, lag.events, lag.is_exact, behind_ms, 0, 0)


def ticks_at(store: Store, wanted: EventFilter, position: int, view: View | None) -> int | None:
    """The time of the first event at or after a position; None if there is none."""
    while True:
        page = store.read_all(position, wanted.seen_by(view), ReadLimits(events_max=1))
        if page.events or page.end:
            return page.events[0].ticks if page.events else None
        position = page.next
