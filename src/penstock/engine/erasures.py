"""Erasing events for good: those of a stream, or those whose headers name a subject.

A request hides the events: after its answer they cannot be read, and iterators that had read them restart. The eraser
then removes their bytes from the store's files, and the ledger records when that is done. The subject is stored
nowhere.

A worker searches for a subject in bounded steps. The headers of a matching event are a JSON object with a member
`subject`, or `ce-subject` as CloudEvents of foreign subjects have it, that is exactly this text. The search decodes few
events: unless headers contain a backslash, those that name the subject contain the word and the text as they are.
"""

import json
import re
import time
from typing import Any, Final, NamedTuple

from penstock.engine.audit import Audit, digest
from penstock.engine.background import Eraser
from penstock.engine.context import Caller, EngineContext, check_names
from penstock.engine.iterators import IteratorRequests
from penstock.errors import InvalidRequest
from penstock.model import AUDIT_CONTEXT, Erased, EraseStream, EraseSubject, Event, EventFilter, check_stream
from penstock.store import Store
from penstock.store.contract import Hid, HideEvents, HideStream, ReadLimits, Transaction

MEMBERS: Final = ("subject", "ce-subject")
RANGES_MAX: Final = 4096
"""Ranges of positions that one step finds at most; they are erased in one transaction."""
STEP_S_MAX: Final = 1.0
"""How long one step goes on searching."""
SEARCH_LIMITS: Final = ReadLimits(events_max=16_384)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Of JSON: a string, or where an object or array begins or ends."""


class Matches(NamedTuple):
    """The result of a step: ranges (first, last) of positions in order, and the streams (context, stream) they lie in.

    `next` is where to search on; `end`: the history goes no further.
    """

    ranges: tuple[tuple[int, int], ...]
    streams: tuple[tuple[str, str], ...]
    next: int
    end: bool


def find_subject(store: Store, subject: str, wanted: EventFilter, position: int, last: int | None = None) -> Matches:
    """Search a range of positions, for a second or until the matches fill one transaction."""
    found = _Found()
    deadline = time.monotonic() + STEP_S_MAX
    while True:
        span = store.read_records(position, wanted, SEARCH_LIMITS)
        for record in span.records:
            headers = record.data[record.at.headers : record.at.bodies]
            for event in record.events(wanted) if might_name(headers, subject) else ():
                if event.context == AUDIT_CONTEXT:
                    continue
                if last is not None and event.position > last:
                    return found.until(last + 1, end=True)
                if event.position >= position and names_subject(event.headers, subject) and not found.add(event):
                    return found.until(event.position, end=False)
        position = span.next
        is_end = span.end or (last is not None and position > last)
        if is_end or time.monotonic() > deadline:
            return found.until(position, end=is_end)


def names_subject(headers: str | None, subject: str) -> bool:
    """Whether an event's headers name the subject."""
    if headers is None or not might_name(headers.encode(), subject):
        return False
    # If a member occurs twice, both count, whichever of them a reader would take.
    members = _members(headers)
    return isinstance(members, tuple) and any(name in MEMBERS and value == subject for name, value in members)


def might_name(headers: bytes, subject: str) -> bool:
    """Whether headers might name the subject, however they are spelled."""
    return b"\\" in headers or (b"subject" in headers and subject.encode() in headers)


def _members(headers: str) -> object:
    """The members of a JSON object as a tuple; another value if the headers are not an object."""
    try:
        # A whole number is read as another so that none is too long.
        return json.loads(headers, object_pairs_hook=tuple, parse_int=float)
    except ValueError:
        return None
    except RecursionError:
        return _members(_without_insides(headers))


def _without_insides(headers: str) -> str:
    """An object or array with null in the place of each that is in it: one that is nested however deep can be read."""
    kept: list[str] = []
    depth = at = 0
    for token in _TOKEN.finditer(headers):
        if token[0] in "[{":
            depth += 1
            if depth == 2:
                kept += (headers[at : token.start()], "null")
        elif token[0] in "]}":
            depth -= 1
            if depth == 1:
                at = token.end()
    return "".join(kept) + (headers[at:] if depth <= 1 else "")


class _Found:
    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._streams: dict[tuple[str, str], None] = {}

    def add(self, event: Event) -> bool:
        """Add an event; False if there is no room for it."""
        last = self._ranges[-1] if self._ranges else (0, -1)
        if last[1] + 1 == event.position:
            self._ranges[-1] = (last[0], event.position)
        elif len(self._ranges) < RANGES_MAX:
            self._ranges.append((event.position, event.position))
        else:
            return False
        self._streams[event.context, event.stream] = None
        return True

    def until(self, position: int, *, end: bool) -> Matches:
        return Matches(tuple(self._ranges), tuple(self._streams), position, end)


SUBJECT_BYTES_MAX: Final = 1024
RANGE_BYTES: Final = 16
"""The size of a range of positions in the writer's queue."""


class ErasureRequests:
    def __init__(self, context: EngineContext, iterators: IteratorRequests, eraser: Eraser, audit: Audit) -> None:
        self._context = context
        self._audit = audit
        self._iterators = iterators
        self._eraser = eraser

    async def erase_stream(self, request: EraseStream, caller: Caller) -> Erased:
        """Hide all events of a stream, or those up to a sequence."""
        check_names(context=request.context)
        _check_context(request.context)
        if reason := check_stream(request.stream):
            raise InvalidRequest("stream", reason)
        _check_last(request.last)
        hide = HideStream(request.context, request.stream, request.last)
        facts = {"context": request.context, "stream": digest(request.stream), "last": request.last}
        return Erased(await self._hide(hide, caller, facts), 0, True)

    async def erase_subject(self, request: EraseSubject, caller: Caller) -> Erased:
        """Search one step from a position on, and hide the matches."""
        if request.context is not None:
            check_names(context=request.context)
            _check_context(request.context)
        if request.position < 1:
            raise InvalidRequest("position", f"is {request.position}; positions begin at 1")
        _check_last(request.last)
        try:
            length = len(request.subject.encode())
        except UnicodeEncodeError:
            raise InvalidRequest("subject", "is not valid Unicode") from None
        if not 1 <= length <= SUBJECT_BYTES_MAX:
            raise InvalidRequest("subject", f"has {length} bytes; it must have 1 to {SUBJECT_BYTES_MAX}")
        wanted = EventFilter(request.context).seen_by(caller.view)
        found: Matches = await self._context.pool.run(
            find_subject, request.subject, wanted, request.position, request.last
        )
        if not found.ranges:
            return Erased(0, found.next, found.end)
        facts = {"context": request.context, "subject": digest(request.subject)}
        events = await self._hide(HideEvents(found.ranges, found.streams), caller, facts)
        return Erased(events, found.next, found.end)

    async def _hide(self, operation: HideStream | HideEvents, caller: Caller, facts: dict[str, Any]) -> int:
        ranges = len(operation.ranges) if isinstance(operation, HideEvents) else 0
        entry = self._audit.entry(caller.principal, "erasures", "erased", facts)
        hid = (await self._context.write(Transaction((operation, *entry)), RANGE_BYTES * ranges))[0]
        assert isinstance(hid, Hid)
        self._iterators.rebuilt(hid.rebuilt)
        self._eraser.wake()
        return hid.events


def _check_context(context: str) -> None:
    if context == AUDIT_CONTEXT:
        raise InvalidRequest("context", f"{AUDIT_CONTEXT} is that of the audit, which nobody erases")


def _check_last(last: int | None) -> None:
    if last is not None and last < 0:
        raise InvalidRequest("last", f"is {last}; it must be 0 (nothing) or more")
