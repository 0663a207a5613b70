"""Erasures outlive restores: what was erased after a backup is not brought back by it.

The ledger of the newest backup in a place applies to all backups there, and that of the store that is replaced as well.
Timelines part where a restore began a new one. From there on the same positions and sequences are other events, so an
entry counts only up to where the timeline that it was made on agrees with that of the backup.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.store.contract import LOG_CONTEXT, StoreState
from penstock.store.erasure_filter import Hidden, visible
from penstock.store.record import Record
from penstock.store.slices import cut

EVERYWHERE: Final = (1 << 63) - 1
"""The last position that can be: an entry counts in the whole history."""

Row = tuple[Any, ...]
Timeline = tuple[int, int, int]
"""Its number, the position after which it began, and when."""


class Entry(NamedTuple):
    """A row of the ledger, as in STATE_TABLES."""

    id: int
    context: str | None
    stream: str | None
    last: int
    ranges: tuple[tuple[int, int], ...]
    timeline: int
    events: int
    requested: int
    finished: int | None
    damaged: int

    @property
    def what(self) -> Row:
        """What tells it from others, in whatever ledger it is."""
        return (self.context, self.stream, self.ranges, self.timeline, self.requested)


class Ledger(NamedTuple):
    """Entries, and the timelines of the store that they are from."""

    timelines: Sequence[Timeline]
    entries: Sequence[Entry]

    @classmethod
    def of(cls, tables: dict[str, list[Row]]) -> "Ledger":
        """The ledger in a store's state."""
        return cls(
            [(row[0], row[1], row[2]) for row in tables["timelines"]], [Entry(*row) for row in tables["erasures"]]
        )


def agreed(one: Sequence[Timeline], other: Sequence[Timeline]) -> int:
    """The last position up to which two lines of timelines have the same history."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return min((line[common][1] for line in (one, other) if len(line) > common), default=EVERYWHERE)


class Replay:
    """Ledgers, to be applied to all records, in order, of a backup that has these timelines."""

    def __init__(self, timelines: Sequence[Timeline], ledgers: Iterable[Ledger]) -> None:
        self._entries: dict[Row, tuple[Entry, int]] = {}
        for ledger in ledgers:
            seen: Counter[Row] = Counter()
            for entry in ledger.entries:
                # Two of one ledger are two, however alike; one that is in two ledgers is one.
                seen[entry.what] += 1
                line = [row for row in ledger.timelines if row[0] <= entry.timeline]
                self._enter((*entry.what, seen[entry.what]), entry, agreed(line, timelines))
        limits = self._entries.values()
        self._ends = sorted({EVERYWHERE, *(limit for _, limit in limits)})
        self._gone = [_gone(entry for entry, limit in limits if limit >= end) for end in self._ends]
        self._reached: list[dict[tuple[str, str], int]] = [{} for _ in self._ends]

    def _enter(self, key: Row, entry: Entry, limit: int) -> None:
        known = self._entries.get(key)
        if known is None or known[0].last < entry.last:
            self._entries[key] = (entry, limit)

    def shown(self, record: Record) -> list[Record]:
        """A record without what was erased; in pieces where timelines part in the middle of it."""
        if not self._entries:
            return [record]
        pieces: list[Record] = []
        at = record.position
        for number in range(bisect_left(self._ends, at), len(self._ends)):
            if at > record.last:
                break
            piece = cut(record, at, self._ends[number])
            pieces.append(self._piece(piece, number))
            at = piece.last + 1
        return pieces

    def _piece(self, record: Record, number: int) -> Record:
        gone = self._gone[number]
        found = visible(record, gone) if gone else record
        if found is not record:
            self._note(record, gone.streams, self._reached[number])
        return found

    def _note(
        self, record: Record, streams: Mapping[tuple[str, str], int], reached: dict[tuple[str, str], int]
    ) -> None:
        for run in record.runs():
            key = run.context, run.stream
            last = min(streams.get(key, 0), run.sequence + run.length - 1)
            if last >= run.sequence:
                reached[key] = max(last, reached.get(key, 0))

    def rows(self) -> list[Row]:
        """The ledger of the restored store, once it has all records.

        Of streams the entries end where the stream ended: what comes after is new, and was never erased.
        """
        ids: set[int] = set()
        following = max((entry.id for entry, _ in self._entries.values()), default=0) + 1
        rows: list[Row] = []
        for entry, limit in self._entries.values():
            number = following if entry.id in ids else entry.id
            following += number == following
            ids.add(number)
            rows.append(tuple(entry._replace(id=number, last=self._last(entry, limit))))
        return sorted(rows)

    def _last(self, entry: Entry, limit: int) -> int:
        if entry.context is None or entry.stream is None:
            return entry.last
        key = entry.context, entry.stream
        reached = (found.get(key, 0) for end, found in zip(self._ends, self._reached, strict=True) if end <= limit)
        return min(entry.last, max(reached, default=0))

    def deleted_logs(self, state: StoreState) -> set[str]:
        """Logs of a state that were deleted later: the messages they had were erased from the records shown here."""
        last = {name: max(found.get((LOG_CONTEXT, name), 0) for found in self._reached) for name in _logs(state)}
        return {name for name, base in _logs(state).items() if last[name] > base}


def _logs(state: StoreState) -> dict[str, int]:
    return {name: base for name, _, base, _ in state.tables["logs"]}


def without_logs(tables: dict[str, list[Row]], deleted: set[str]) -> dict[str, list[Row]]:
    """The tables of a state without some logs, and without iterators over them, and over those."""
    gone = {("log", name) for name in deleted}
    while more := {("iterator", row[1]) for row in tables["iterators"] if (row[3], row[2]) in gone} - gone:
        gone |= more
    logs = [row for row in tables["logs"] if row[0] not in deleted]
    iterators = [row for row in tables["iterators"] if (row[3], row[2]) not in gone]
    return {**tables, "logs": logs, "iterators": iterators}


def _gone(entries: Iterable[Entry]) -> Hidden:
    streams: dict[tuple[str, str], int] = {}
    ranges: list[tuple[int, int]] = []
    for entry in entries:
        if entry.context is not None and entry.stream is not None:
            key = entry.context, entry.stream
            streams[key] = max(entry.last, streams.get(key, 0))
        ranges += entry.ranges
    return Hidden(streams, _disjoint(ranges))


def _disjoint(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
