"""Erasing events for good: a stream's, or those whose headers name a subject.

A request hides them: nobody can read them from the moment it is answered, and iterators that had seen them begin anew.
Their bytes leave the store's files afterwards (see `eraser`), and the ledger says when that is done. The subject that
was searched for is stored nowhere.
"""

from typing import Final

from penstock.engine import searching
from penstock.engine.eraser import Eraser
from penstock.engine.iterators import Iterators
from penstock.engine.parts import Parts, check_names
from penstock.engine.searching import Matches
from penstock.errors import InvalidRequest
from penstock.model import Erased, EraseStream, EraseSubject, check_stream
from penstock.store.contract import Hid, HideEvents, HideStream, Result, Transaction

SUBJECT_BYTES_MAX: Final = 1024
RANGE_BYTES: Final = 16
"""What a range of positions counts for in the writer's queue."""


class Erasures:
    """What requests to erase mean."""

    def __init__(self, parts: Parts, iterators: Iterators, eraser: Eraser) -> None:
        self._parts = parts
        self._iterators = iterators
        self._eraser = eraser

    async def erase_stream(self, request: EraseStream) -> Erased:
        """Hide all that a stream has now, or up to a sequence."""
        check_names(context=request.context)
        if reason := check_stream(request.stream):
            raise InvalidRequest("stream", reason)
        _check_last(request.last)
        return Erased(await self._hide(HideStream(request.context, request.stream, request.last)), 0, True)

    async def erase_subject(self, request: EraseSubject) -> Erased:
        """Search for some time from a position on, and hide what was found."""
        if request.context is not None:
            check_names(context=request.context)
        if request.position < 1:
            raise InvalidRequest("position", f"is {request.position}; positions begin at 1")
        _check_last(request.last)
        _check_subject(request.subject)
        asked = (request.subject, request.context, request.position, request.last)
        found: Matches = await self._parts.run(searching.find_subject, *asked)
        events = await self._hide(HideEvents(found.ranges, found.streams)) if found.ranges else 0
        return Erased(events, found.next, found.end)

    async def _hide(self, operation: HideStream | HideEvents) -> int:
        ranges = len(operation.ranges) if isinstance(operation, HideEvents) else 0
        (hid,) = await self._parts.write(Transaction((operation,)), RANGE_BYTES * ranges, self._hidden)
        assert isinstance(hid, Hid)
        return hid.events

    def _hidden(self, results: list[Result]) -> None:
        """It is so, also if whoever asked has given up meanwhile."""
        (hid,) = results
        assert isinstance(hid, Hid)
        self._iterators.rebuilt(hid.rebuilt)
        self._eraser.ring()


def _check_last(last: int | None) -> None:
    if last is not None and last < 0:
        raise InvalidRequest("last", f"is {last}; it must be 0 (nothing) or more")


def _check_subject(subject: str) -> None:
    try:
        length = len(subject.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("subject", "is not valid Unicode") from None
    if not 1 <= length <= SUBJECT_BYTES_MAX:
        raise InvalidRequest("subject", f"has {length} bytes; it must have 1 to {SUBJECT_BYTES_MAX}")
