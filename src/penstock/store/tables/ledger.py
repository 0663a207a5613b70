"""The ledger of erasures: what was entered, and entering more.

Whatever is entered is hidden from that commit on; `erasing` does the rest. Iterators that have seen it begin anew under
a new number, and the output of the old one is entered too: what they gave may hold what shall be gone.
"""

from collections.abc import Sequence
from typing import Generic, Protocol

from penstock.errors import InvalidRequest
from penstock.store.contract import (
    LOG_CONTEXT,
    Erasure,
    Hid,
    HideEvents,
    HideStream,
    IteratorState,
    Over,
    Store,
)
from penstock.store.tables import iterators
from penstock.store.tables.hiding import enter, packed, ranges_of
from penstock.store.tables.queries import AnyQueries, Statements


class Heads(Protocol):
    """Where the history ends, the batch that is being written included."""

    @property
    def head(self) -> int:
        """The last position."""
        ...

    def stream_head(self, context: str, stream: str, /) -> int:
        """A stream's last sequence."""
        ...

    def flush(self) -> None:
        """Write what is kept back: somebody must read it."""
        ...


class Ledger(Store, Generic[AnyQueries]):
    """The reading half of the ledger."""

    db: AnyQueries

    def open_erasures(self) -> int:
        return int(self.db.value("open_erasures"))

    def erasures(self, after: int, limit: int) -> list[Erasure]:
        rows = self.db.rows("erasures", {"after": after, "limit": limit})
        return [Erasure(*(*row[:4], ranges_of(row[4]), *row[5:])) for row in rows]


def hide_stream(db: Statements, op: HideStream, heads: Heads, now: int) -> Hid:
    """Enter what a stream has now, up to a sequence if there is one, and what is not erased already."""
    if op.context == LOG_CONTEXT:
        raise InvalidRequest("context", f"{LOG_CONTEXT} is that of logs; delete the log instead")
    place = {"context": op.context, "stream": op.stream}
    head = heads.stream_head(op.context, op.stream)
    heads.flush()
    if op.last is not None:
        head = min(head, op.last)
    done = db.value("erased_up_to", place) or 0
    if done >= head:
        return Hid(0, [])
    enter(db, now, **place, last=head, done=done, events=head - done)
    return Hid(head - done, _begin_anew(db, [(op.context, op.stream)], now))


def hide_events(db: Statements, op: HideEvents, heads: Heads, now: int) -> Hid:
    """Enter events by position."""
    heads.flush()
    _check_ranges(op.ranges, heads.head)
    if not op.ranges:
        return Hid(0, [])
    events = sum(last - first + 1 for first, last in op.ranges)
    enter(db, now, ranges=packed(op.ranges), last=op.ranges[-1][1], events=events)
    return Hid(events, _begin_anew(db, op.streams, now))


def _check_ranges(ranges: Sequence[tuple[int, int]], head: int) -> None:
    before = 0
    for first, last in ranges:
        if not before < first <= last <= head:
            raise InvalidRequest("ranges", f"have {first} to {last} after {before}, and the last position is {head}")
        before = last


def _begin_anew(db: Statements, streams: Sequence[tuple[str, str]], now: int) -> list[IteratorState]:
    """Let all iterators that read these streams, one way or another, begin anew."""
    rebuilt: list[IteratorState] = []
    for context, stream in dict.fromkeys(streams):
        source = (stream, Over.LOG) if context == LOG_CONTEXT else (f"{context}/{stream}", Over.STREAM)
        rebuilt += iterators.begin_anew(db, *source, now)
    return rebuilt
