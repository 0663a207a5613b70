"""Entries of the ledger of erasures, and what they hide as long as records may still hold it."""

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from penstock.store.tables.queries import Queries, Statements
from penstock.store.tombstones import Gone

Ranges = tuple[tuple[int, int], ...]

_RANGE: Final = Struct("<QQ")


def ranges_of(data: bytes | None) -> Ranges:
    """Ranges of positions as they are stored."""
    return tuple(_RANGE.iter_unpack(data or b""))


def packed(ranges: Iterable[tuple[int, int]]) -> bytes:
    """Ranges of positions as they are to be stored."""
    return b"".join(_RANGE.pack(*each) for each in ranges)


def enter(db: Statements, now: int, **entry: Any) -> None:
    """Add to the ledger of erasures: of a context and stream, of an iterator, or of ranges of positions."""
    whole = {"context": None, "stream": None, "iterator_id": None, "ranges": None, "done": 0, "events": 0, **entry}
    db.later("add_erasure", {**whole, "requested": now})


def hidden(db: Queries, context: str | None) -> Gone:
    """What records of a context, or of all, may still hold although nobody shall see it."""
    streams = {(context, stream): last for context, stream, last in db.rows("hidden", {"context": context})}
    return Gone(streams, _hidden_ranges(db))


def hidden_of_stream(db: Queries, context: str, stream: str) -> Gone:
    """The same for one stream."""
    last = db.value("hidden_of_stream", {"context": context, "stream": stream})
    return Gone({} if last is None else {(context, stream): last}, _hidden_ranges(db))


def _hidden_ranges(db: Queries) -> Ranges:
    found = [(ranges_of(data), done) for done, data in db.rows("hidden_ranges")]
    if len(found) == 1:
        return after(*found[0])
    return _joined(sorted(each for ranges, done in found for each in after(ranges, done)))


def after(ranges: Ranges, done: int) -> Ranges:
    """The ranges that do not end before or at a position."""
    return ranges[bisect_left(ranges, done + 1, key=itemgetter(1)) :]


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges that may overlap, in order, as ranges that do not."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)
