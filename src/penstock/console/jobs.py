"""Jobs of the console in workers, each one bounded step.

This module imports little: workers load it. The last argument is what the principal may see; None: everything.
"""

import json
import time
from collections import deque
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from penstock.console.bodies import DECODER, JSON_BYTES_MAX, Members, Number, Row, row
from penstock.engine.jobs import find_subscription, named_for
from penstock.engine.queue_jobs import lookup_queue
from penstock.gates.api.media import Presented
from penstock.model import Allocation, Event, EventFilter, QueueInfo, QueuePreview, SubscriptionInfo, View
from penstock.model.times import TICKS_PER_MS, text_of_ticks
from penstock.store import Store
from penstock.store.contract import WAITING, ReadLimits, Search
from penstock.terminal import escape

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
    """The lag that a subscription would have at a position."""
    lag = store.lag(wanted.seen_by(view), position)
    behind_ms = 0 if lag.oldest is None else max(0, store.now() - lag.oldest) // TICKS_PER_MS
    return QueuePreview(position, lag.events, lag.is_exact, behind_ms, 0, 0)


def ticks_at(store: Store, wanted: EventFilter, position: int, view: View | None) -> int | None:
    """The time of the first event at or after a position; None after the last event."""
    while True:
        page = store.read_all(position, wanted.seen_by(view), ReadLimits(events_max=1))
        if page.events or page.end:
            return page.events[0].ticks if page.events else None
        position = page.next


# --- search ---------------------------------------------------------------------------------------------------


SEARCH_STEP_S: Final = 0.5
"""How long one step of a search goes on."""
SEARCH_PAGE: Final = ReadLimits(events_max=4096, bytes_max=4 << 20)


class Value(NamedTuple):
    """The wanted value of a header, or of a field of a JSON body.

    A name in the body may have dots: both readings of a path count.
    """

    path: tuple[str, ...]
    text: str


class Condition(NamedTuple):
    """Conditions beyond those of an EventFilter. Times are those when it was recorded (ticks)."""

    since: int = 0
    until: int | None = None
    header: Value | None = None
    field: Value | None = None


class Found(NamedTuple):
    """A step of a search: the first matches, all matches, and where to go on.

    `passed_over` counts bodies that are too long to look into.
    """

    rows: list[Row]
    matches: int
    passed_over: int
    next: int
    end: bool


def search(
    store: Store, wanted: EventFilter, condition: Condition, first: int, last: int, rows_max: int, view: View | None
) -> Found:
    """Events that match between two positions, as far as one step comes."""
    deadline = time.monotonic() + SEARCH_STEP_S
    wanted, matches, passed_over = wanted.seen_by(view), 0, 0
    rows: list[Row] = []
    while first <= last:
        page = store.read_all(first, wanted, SEARCH_PAGE, last)
        for event in page.events:
            if condition.until is not None and event.recorded > condition.until:
                return Found(rows, matches, passed_over, event.position, True)
            if condition.field is not None and len(event.body) > JSON_BYTES_MAX:
                passed_over += 1
            elif event.recorded >= condition.since and _matches(event, condition):
                matches += 1
                if len(rows) < rows_max:
                    rows.append(row(event))
        first = page.next
        if page.end:
            break
        if matches >= COUNTED_MAX or time.monotonic() > deadline:
            return Found(rows, matches, passed_over, first, first > last)
    return Found(rows, matches, passed_over, last + 1, True)


def first_recorded(store: Store, ticks: int, head: int, _view: View | None) -> int:
    """The first position that was recorded at or after a time: recorded times never go back."""
    low, high = 1, head + 1
    while low < high:
        middle = (low + high) // 2
        page = store.read_all(middle, EventFilter(), ReadLimits(events_max=1))
        if page.events and page.events[0].recorded < ticks:
            low = page.events[0].position + 1
        else:
            high = middle
    return low


def _matches(event: Event, condition: Condition) -> bool:
    if condition.header is not None and not _has_value((event.headers or "").encode(), condition.header):
        return False
    return condition.field is None or _has_value(event.body, condition.field)


def _has_value(data: bytes, wanted: Value) -> bool:
    # Most events have no such name, which is seen without decoding them; a backslash may stand for any letter.
    if wanted.path[-1].encode(errors="replace") not in data and b"\\" not in data:
        return False
    try:
        return _is_at(DECODER.decode(data.decode()), wanted.path, wanted.text)
    except (ValueError, RecursionError):
        return False


def _is_at(value: Any, path: tuple[str, ...], text: str) -> bool:
    if not path:
        return _is_value(value, text)
    if isinstance(value, Members):
        names = {".".join(path[:count]): count for count in range(1, len(path) + 1)}
        return any(key in names and _is_at(one, path[names[key] :], text) for key, one in value)
    if isinstance(value, list) and path[0].isascii() and path[0].isdecimal() and len(path[0]) < 10:
        return int(path[0]) < len(value) and _is_at(value[int(path[0])], path[1:], text)
    return False


def _is_value(value: Any, text: str) -> bool:
    """Whether a value equals a typed text: a text, with or without quotes, an exact number, true, false or null."""
    if isinstance(value, Number):
        try:
            return Decimal(value) == Decimal(text)
        except InvalidOperation:
            return value == text
    if isinstance(value, str):
        return value == text or (text[:1] == text[-1:] == '"' and len(text) > 1 and value == text[1:-1])
    return not isinstance(value, list) and text == {True: "true", False: "false"}.get(value, "null")


# --- live tail ------------------------------------------------------------------------------------------------


LAST_S_MAX: Final = 0.5
"""How long a worker looks back for the last events."""
LAST_WIDENING: Final = 8


def last_rows(store: Store, wanted: EventFilter, head: int, rows_max: int, view: View | None) -> list[Row]:
    """The last events, in order. The history is read forward only, so this looks at parts further and further back."""
    deadline, wanted = time.monotonic() + LAST_S_MAX, wanted.seen_by(view)
    found: list[Row] = []
    last, span = head, rows_max
    while last >= 1 and len(found) < rows_max:
        first = low = max(1, last - span + 1)
        part: deque[Row] = deque(maxlen=rows_max)
        while first <= last:
            page = store.read_all(first, wanted, SEARCH_PAGE, last)
            part.extend(map(row, page.events))
            if page.end:
                break
            if time.monotonic() > deadline:
                # What is behind it was not looked at.
                return found
            first = page.next
        found = [*part, *found][-rows_max:]
        last, span = low - 1, span * LAST_WIDENING
    return found


class TailFilter(NamedTuple):
    """The events that one tab follows; empty: all."""

    context: str = ""
    prefix: str = ""
    types: tuple[str, ...] = ()

    def has(self, event: Event) -> bool:
        return (
            (not self.context or event.context == self.context)
            and event.stream.startswith(self.prefix)
            and (not self.types or event.type in self.types)
        )


@dataclass(frozen=True)
class TailRows:
    """Makes a message of server-sent events from those events that some filter wants, with an excerpt of each body.

    Each row says which filters want it, by their numbers. `begin` is as in `SharedReads`.
    """

    begin: str
    filters: tuple[TailFilter, ...]

    def __call__(self, events: list[Event]) -> Presented:
        rows = [
            tail_row(row(event), wanted)
            for event in events
            if (wanted := [number for number, one in enumerate(self.filters) if one.has(event)])
        ]
        if not rows:
            return Presented(b"", (0, events[-1].position if events else 0), (0, 0))
        text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
        last = events[-1].position
        return Presented(
            f"id: {self.begin}{last}\nevent: rows\ndata: {text}\n\n".encode(), (rows[0]["at"], last), (0, 0)
        )


def tail_row(one: Row, wanted: list[int]) -> dict[str, Any]:
    """A row of the table as scripts make it; every text as pages show it."""
    return {
        "for": wanted,
        "at": one.position,
        "stream": escape(f"{one.context}/{one.stream}"),
        "query": urlencode({"context": one.context, "stream": one.stream}),
        "type": escape(one.type),
        "time": text_of_ticks(one.recorded)[:23],
        "size": one.size,
        "excerpt": None if one.excerpt is None else escape(one.excerpt),
    }
