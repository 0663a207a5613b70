"""Erasing events for good: what can be asked, and what is answered."""

from dataclasses import dataclass

from penstock.model.replies import Reply
from penstock.model.requests import Repeat, Request, Right


@dataclass(frozen=True, slots=True)
class EraseStream(Request):
    """Erase all events that a stream has now: they keep id, sequence, position and time. Answered with Erased.

    With `last`, a sequence, what comes after it stays.
    """

    right = Right.ADMIN
    repeat = Repeat.MARKED
    context: str
    stream: str
    last: int | None = None

    def is_marked(self) -> bool:
        """By its last sequence."""
        return self.last is not None


@dataclass(frozen=True, slots=True)
class EraseSubject(Request):
    """Erase events whose headers name a subject, in one context or all, from a position on, as far as one step goes.

    Answered with Erased, which says where to go on. With `last`, a position, what comes after it stays.
    """

    right = Right.ADMIN
    repeat = Repeat.MARKED
    subject: str
    context: str | None = None
    position: int = 1
    last: int | None = None

    def is_marked(self) -> bool:
        """By its last position."""
        return self.last is not None


@dataclass(frozen=True, slots=True)
class ListErasures(Request):
    """A page of the ledger of erasures, by id, after one: ErasurePage."""

    right = Right.ADMIN
    repeat = Repeat.READS
    after: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Erased(Reply):
    """How many events nobody can read any more; where to search on for more, and whether the end was reached."""

    events: int
    next: int
    end: bool


@dataclass(frozen=True, slots=True)
class ErasureInfo:
    """An entry of the ledger. Context and stream are None if events were erased one by one, or an iterator's output.

    It is finished (ticks) when no file of the store holds any of it. `damaged` counts records that nobody can read and
    that could not be rewritten.
    """

    id: int
    context: str | None
    stream: str | None
    events: int
    requested: int
    finished: int | None
    damaged: int


@dataclass(frozen=True, slots=True)
class ErasurePage(Reply):
    """Entries of the ledger by id; `end`: no more."""

    erasures: list[ErasureInfo]
    end: bool
