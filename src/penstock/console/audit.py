"""The audit, the newest entry first, from several streams together. A link to older entries says where each goes on."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.console import bodies
from penstock.console.visit import Refused, Visit, url
from penstock.model import (
    AUDIT_CONTEXT,
    Event,
    EventPage,
    FindPosition,
    Found,
    ListPage,
    ListStreams,
    ReadAll,
    ReadStream,
)
from penstock.model.times import EXAMPLE, ticks_of_text

ENTRIES: Final = 50
READ: Final = 200
STEPS_MAX: Final = 20
"""Entries of a read, and reads of a stream, in which a page looks for entries that match."""
AREAS_MAX: Final = 50
FACTS_MAX: Final = 20
FACT_CHARACTERS_MAX: Final = 300
WORDS: Final = {
    "principal-changed": "changed a principal",
    "principal-revoked": "revoked a principal",
    "token-issued": "issued a token",
    "credential-added": "added a credential",
    "credential-revoked": "revoked a credential",
    "erased": "erased events",
    "session-kicked": "closed a session",
    "queue-delete": "deleted a queue",
    "queue-rename": "renamed a queue",
    "queue-reset": "moved a queue",
    "queue-pause": "paused a queue",
    "queue-resume": "resumed a queue",
    "queue-filter": "changed the filter of a queue",
    "queue-retry": "changed the retry policy of a queue",
    "queue-dead-letters": "changed the dead-letter rule of a queue",
    "queue-letters-put-back": "put back dead letters of a queue",
    "queue-letters-dropped": "dropped dead letters of a queue",
    "queue-replay": "replayed events of a queue",
    "subscription-reset": "moved a subscription",
    "subscription-deleted": "deleted a subscription",
    "log-deleted": "deleted a log",
    "iterator-deleted": "deleted an iterator",
    "store-restored": "restored the store",
    "store-moved": "moved the store",
}
"""Entries by type, in words. Others are shown by their type."""


class Entry(NamedTuple):
    area: str
    version: int
    position: int
    recorded: int
    what: str
    by: str
    facts: tuple[tuple[str, str], ...]


class Read(NamedTuple):
    """Entries of one read that match, down to a position; `is_past`: what comes before is too old."""

    entries: list[Entry]
    position: int
    is_past: bool


def matching(by: str, since: int, events: list[Event]) -> list[Read]:
    """Called in a worker."""
    found = [entry for event in events if event.recorded >= since if (entry := _entry(event)).by == by or not by]
    lowest = min((event.position for event in events), default=0)
    return [Read(found, lowest, any(event.recorded < since for event in events))]


def _entry(event: Event) -> Entry:
    try:
        members = json.loads(event.body)
    except (ValueError, RecursionError):
        members = None
    facts = members if isinstance(members, dict) else {"body": event.body.decode(errors="replace")}
    by = str(facts.pop("by", ""))
    shown = tuple(
        (str(name).replace("_", " "), _text(value)) for name, value in facts.items() if value not in (None, "")
    )
    return Entry(event.stream, event.sequence, event.position, event.recorded, event.type, by, shown[:FACTS_MAX])


def _text(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(str(one) for one in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{name} {one}" for name, one in value.items()) or "none"
    else:
        text = str(value)
    return text if len(text) <= FACT_CHARACTERS_MAX else f"{text[:FACT_CHARACTERS_MAX]}…"


class Wanted(NamedTuple):
    by: str
    what: str
    since: int


class Walk(NamedTuple):
    """The matches in one stream, the version to go on from (0: none), and the lowest position that was read."""

    entries: list[Entry]
    next: int
    position: int


async def audit(visit: Visit) -> Mapping[str, Any]:
    area, by, what = visit.one("area"), visit.one("by").strip(), visit.one("what")
    since, until = _time(visit, "since"), _time(visit, "until")
    areas = [one.name for one in (await visit.ask(ListStreams(AUDIT_CONTEXT, "", "", AREAS_MAX), ListPage)).items]
    starts = await _starts(visit, [one for one in areas if area in ("", one)], until)
    wanted = Wanted(by, what, since or 0)
    names = list(starts)
    walks = await asyncio.gather(*(_walk(visit, name, starts[name], wanted) for name in names))
    # Below that, a stream has entries that were not read yet.
    horizon = max((walk.position for walk in walks if walk.next), default=0)
    every = sorted((entry for walk in walks for entry in walk.entries), key=lambda one: -one.position)
    shown = [one for one in every if one.position >= horizon][:ENTRIES]
    taken = {(one.area, one.version) for one in shown}
    cursors = []
    for name, walk in zip(names, walks, strict=True):
        left = [one.version for one in walk.entries if (name, one.version) not in taken]
        if following := left[0] if left else walk.next:
            cursors.append(f"{name}:{following}")
    filters = {"area": area, "by": by, "what": what, "since": visit.one("since"), "until": visit.one("until")}
    return {
        "entries": [(one, WORDS.get(one.what, one.what.replace("-", " "))) for one in shown],
        "older": url("/audit", filters.items(), at=",".join(cursors)) if cursors else None,
        "newest": url("/audit", filters.items()) if visit.one("at") else None,
        "filters": filters,
        "is_filtered": any(filters.values()),
        "areas": areas,
        "kinds": WORDS,
        "context": AUDIT_CONTEXT,
        "is_closed": visit.engine.access.is_closed,
    }


def _time(visit: Visit, name: str) -> int | None:
    text = visit.one(name).strip()
    if not text:
        return None
    try:
        return ticks_of_text(text if "T" in text or len(text) > 10 else f"{text}T00:00:00Z")
    except ValueError:
        raise Refused(
            400, f"the time is {text[:60]!r}", f"Write it as in {EXAMPLE}, or as a day such as 2026-11-15."
        ) from None


async def _starts(visit: Visit, areas: list[str], until: int | None) -> dict[str, int]:
    """From which version of each stream a page goes down; 0 is the last. Streams that are done are not there."""
    if at := visit.one("at"):
        pairs = [one.rpartition(":") for one in at.split(",")][:AREAS_MAX]
        given = {name: int(text) for name, _, text in pairs if text.isascii() and text.isdecimal() and len(text) < 19}
        return {name: given[name] for name in areas if given.get(name)}
    if until is None:
        return dict.fromkeys(areas, 0)
    versions = await asyncio.gather(*(_last_before(visit, name, until) for name in areas))
    return {name: version for name, version in zip(areas, versions, strict=True) if version is not None}


async def _last_before(visit: Visit, area: str, until: int) -> int | None:
    """The version of the last entry before a time; 0 stands for the newest one, None for no entry."""
    found = (await visit.ask(FindPosition(AUDIT_CONTEXT, area, until), Found)).position
    if found is None:
        return 0
    page = await visit.ask(ReadAll(found, AUDIT_CONTEXT, area, limit=1), EventPage, bodies.rows)
    assert page.encoded is not None
    return next((row.sequence - 1 or None for row in page.encoded.content), None)


async def _walk(visit: Visit, area: str, start: int, wanted: Wanted) -> Walk:
    entries: list[Entry] = []
    position, types = 0, (wanted.what,) if wanted.what else None
    for _ in range(STEPS_MAX):
        request = ReadStream(AUDIT_CONTEXT, area, start, None, READ, True, types)
        page = await visit.ask(request, EventPage, partial(matching, wanted.by, wanted.since))
        assert page.encoded is not None
        (read,) = page.encoded.content
        entries += read.entries
        position = read.position or position
        if page.end or read.is_past or page.next < 1:
            return Walk(entries, 0, position)
        start = page.next
        if len(entries) >= ENTRIES:
            break
    return Walk(entries, start, position)
