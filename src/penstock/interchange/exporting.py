"""From a history into a file, whole or not at all, and going on where it was interrupted.

An export is of one moment: what the history has when it begins. It is written to `PATH.partial` and renamed when it is
whole. Beside it, `PATH.partial.json` notes now and then how far it is, and how many bytes of the file belong to that;
the same command cuts off what is beyond and goes on. A Parquet file cannot be gone on with: until it is whole, its
events are gathered in a stream of Arrow's, of which the file is made in the end.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.files import is_replaceable
from penstock.history.histories import History, open_history
from penstock.interchange.files import STANDARD, Format
from penstock.interchange.targets import Bounds, FileTarget, Identity, StreamTarget, Target, refusing
from penstock.model import Event, EventFilter
from penstock.model.times import ticks_of

if TYPE_CHECKING:
    from penstock.store.record import Record

Progressed = Callable[[int, int, int], object]
"""Told how many positions are through, of how many, and how many events were written."""
POSITION_MAX: Final = (1 << 63) - 1
STEP_EVENTS: Final = 1024
"""Events that are written in one go."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events; positions are inclusive, `since` is too, and `until` (both in ticks) is not."""

    context: str | None = None
    filter: str = ""
    types: tuple[str, ...] | None = None
    first: int = 1
    last: int = POSITION_MAX
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of it: events in the file, those of them that an earlier run had written, and the last position."""

    events: int
    resumed_events: int
    last: int


def export_events(
    url: str,
    path: str,
    kind: Format,
    wanted: Selection,
    progressed: Progressed,
    *,
    said: tuple[str | None, str | None] | None = None,
    anew: bool = False,
) -> Exported:
    """Write the events of a history that are wanted into a file. What went wrong leaves a file to go on with.

    `said` are since and until as somebody wrote them: what is `1d` now is another time when the export goes on.
    """
    with closing(open_history(url)) as history:
        now = history.now()
        times = {} if said is None else dict(zip(("since", "until"), said, strict=True))
        identity = Identity(now.identity.id, now.identity.timeline, kind.value, {**asdict(wanted), **times})
        bounds = Bounds(min(wanted.last, now.head), wanted.since, wanted.until)
        with _target(path, kind, identity, bounds, anew) as target:
            kept = replace(wanted, since=target.bounds.since, until=target.bounds.until)
            return _copy(history, kept, target, progressed)


def _target(path: str, kind: Format, identity: Identity, bounds: Bounds, anew: bool) -> Target:
    if path == STANDARD:
        return StreamTarget(sys.stdout.buffer, None, kind, bounds)
    if not is_replaceable(Path(path)):
        with refusing(path):
            return StreamTarget(open(path, "wb"), path, kind, bounds)  # noqa: PTH123 - a pipe, until we end
    # A link is followed: to put a file in its place would be a surprise.
    return FileTarget(os.path.realpath(path), kind, identity, bounds, anew=anew)


def _copy(history: History, wanted: Selection, target: Target, progressed: Progressed) -> Exported:
    resumed, last = target.events, target.bounds.last
    begin = max(target.next, begin_of(history, wanted))
    for events, following in pages(history, wanted, begin, last):
        target.write(events, following)
        progressed(min(following - 1, last) - wanted.first + 1, max(0, last - wanted.first + 1), target.events)
    target.finish()
    return Exported(target.events, resumed, last)


def begin_of(history: History, wanted: Selection) -> int:
    """Where to begin; in one context, the store knows before which position no event is late enough."""
    if wanted.since is None or wanted.context is None:
        return wanted.first
    found = history.position_of(wanted.context, wanted.since)
    return POSITION_MAX if found is None else max(wanted.first, found)


def pages(history: History, wanted: Selection, begin: int, last: int) -> Iterator[tuple[list[Event], int]]:
    """Wanted events from a position up to another, a few at a time, each with the position to go on from."""
    if begin > last:
        return
    passing = EventFilter(wanted.context, wanted.filter, wanted.types)
    for records in history.records(passing, begin, last + 1):
        events = [event for event in _events(records, passing, begin, last) if in_time(event, wanted)]
        # A page of small events has very many. What is written together is lost together when there is no room.
        for at in range(0, len(events) - STEP_EVENTS, STEP_EVENTS):
            yield events[at : at + STEP_EVENTS], events[at + STEP_EVENTS].position
        done = (len(events) - 1) // STEP_EVENTS * STEP_EVENTS if events else 0
        begin = records[-1].last + 1
        yield events[done:], begin


def _events(records: "list[Record]", passing: EventFilter, begin: int, last: int) -> Iterator[Event]:
    for record in records:
        yield from record.events(passing, begin, last)


def in_time(event: Event, wanted: Selection) -> bool:
    """Whether the time of an event is wanted."""
    if wanted.since is None and wanted.until is None:
        return True
    ticks = ticks_of(event.stamp)
    return (wanted.since is None or ticks >= wanted.since) and (wanted.until is None or ticks < wanted.until)
