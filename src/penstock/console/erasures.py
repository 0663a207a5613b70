"""The ledger of erasures, and erasing: a preview counts what would go, and what is typed confirms it."""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.console import bodies
from penstock.console.visit import Refused, Visit, number, url
from penstock.engine.erasures import Matches, find_subject
from penstock.errors import PenstockError
from penstock.model import (
    Erased,
    EraseStream,
    EraseSubject,
    EventFilter,
    EventPage,
    ListErasures,
    ListPage,
    ReadStream,
    Right,
)

ENTRIES: Final = 100
PREVIEW_S_MAX: Final = 5.0
"""How long a preview counts the events of a subject; then it says that there may be more."""
ERASE_S_MAX: Final = 20.0
"""How long one form erases the events of a subject; then it has to be sent again."""


async def erasures(visit: Visit) -> Mapping[str, Any]:
    after = visit.number("after", 0)
    page = await visit.ask(ListErasures(after, ENTRIES), ListPage)
    return {
        "entries": page.items,
        "after": after,
        "next": None if page.end else page.items[-1].id,
        "may_erase": visit.may(Right.ADMIN),
    }


class Preview(NamedTuple):
    """The events that an erasure would hide: so many, or another number unless it `is_exact`."""

    events: int
    is_exact: bool
    last: int
    """Nothing behind it is erased: a version of the stream, or a position of the history."""
    first: int = 1


async def preview(visit: Visit) -> Mapping[str, Any]:
    """Count the events that an erasure of a stream or of a subject would hide. This changes nothing."""
    kind = visit.field("kind", visit.one("kind", "stream"))
    asked = visit.field if visit.http.method == "POST" else visit.one
    context, stream, subject, last = asked("context"), asked("stream"), asked("subject"), asked("last")
    found: Preview | None = None
    error = ""
    if visit.http.method == "POST" and not visit.error:
        try:
            is_stream = kind == "stream"
            found = await (
                _of_stream(visit, context, stream, last) if is_stream else _of_subject(visit, subject, context)
            )
        except (PenstockError, Refused) as failed:
            error = visit.refused(failed)
    return {
        "kind": kind,
        "context": context,
        "stream": stream,
        "subject": subject,
        "last": last,
        "found": found,
        "error": error,
        "seconds": PREVIEW_S_MAX,
    }


async def _of_stream(visit: Visit, context: str, stream: str, last: str) -> Preview:
    visit.engine.permitted(visit.login.principal, EraseStream(context, stream))
    newest = await visit.ask(ReadStream(context, stream, 0, None, 1, True), EventPage, bodies.rows)
    assert newest.encoded is not None
    versions = [row.sequence for row in newest.encoded.content]
    if not versions:
        raise Refused(404, "there are no events in this stream, or they are erased already")
    end = min(versions[0], number("the version", last)) if last.strip() else versions[0]
    return Preview(end, False, end)


async def _of_subject(visit: Visit, subject: str, context: str) -> Preview:
    """Count step by step, as the erasure goes."""
    if not subject.strip():
        raise Refused(400, "name the subject")
    view = visit.engine.permitted(visit.login.principal, EraseSubject(subject, context or None))
    wanted = EventFilter(context or None).seen_by(view)
    head, position, events = visit.engine.head, 1, 0
    deadline = time.monotonic() + PREVIEW_S_MAX
    while True:
        found: Matches = await visit.engine.pool.run(find_subject, subject, wanted, position, head)
        events += sum(last - first + 1 for first, last in found.ranges)
        position = found.next
        if found.end or time.monotonic() > deadline:
            return Preview(events, found.end, head)


async def erase_stream(visit: Visit) -> str:
    context, stream, last = visit.field("context"), visit.field("stream"), visit.field("last")
    erased = await visit.ask(EraseStream(context, stream, number("the version", last)), Erased)
    visit.left = url("/erasures")
    return f"{_events(erased.events)} of the stream are hidden. The server now removes their bytes from its files."


async def erase_subject(visit: Visit) -> str:
    subject, context = visit.field("subject"), visit.field("context") or None
    last, position, events = number("the position", visit.field("last")), 1, 0
    deadline = time.monotonic() + ERASE_S_MAX
    while True:
        step = await visit.ask(EraseSubject(subject, context, position, last), Erased)
        events, position = events + step.events, step.next
        if step.end or position > last:
            break
        if time.monotonic() > deadline:
            raise Refused(
                503,
                f"{_events(events)} are erased up to position {position - 1:,}, and there may be more",
                "Send the form again for the rest.",
            )
    visit.left = url("/erasures")
    return f"{_events(events)} of the subject are hidden. The server now removes their bytes from its files."


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
