"""Restoring a store from a backup: everything is checked before anything changes.

The store comes back as it was, on a new timeline, without the events that were erased since. The restore builds it next
to the store that it replaces, verifies it as `penstock verify` does, and swaps the two in one step.

Erasures outlive restores. The ledger of the newest backup in a place applies to all backups there, and so does that of
the store that is replaced. Timelines part where a restore began a new one: from there on the same positions and
sequences are other events. So an entry of a ledger applies only up to the point where its timeline and that of the
backup are the same.

Principals and credentials are not those of the backup either: they are those of the store that is replaced, or, if it
has never had any or cannot be read, those of the newest backup in the place.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from penstock.backup.places import Place, system_errors
from penstock.backup.reader import Chosen, check, choose, read_history, read_state
from penstock.errors import StoreError
from penstock.model import LOG_CONTEXT, ticks_of_unix_ns
from penstock.store import Store, open_replacement
from penstock.store.contract import ACCESS_TABLES, Arrival, Progressed, StoreIdentity, StoreState
from penstock.store.erasure_filter import Hidden, merged_ranges, visible
from penstock.store.record import Record
from penstock.store.replacement import Replaced
from penstock.store.rewrites import cut
from penstock.store.tables.imports import StoreImport

FINDINGS_SHOWN_MAX: Final = 3
EVERYWHERE: Final = (1 << 63) - 1
"""The last possible position: an entry applies to the whole history."""

Stage = Callable[[str], AbstractContextManager[Progressed]]
"""Called with the name of the next step. Returns the function to report progress to."""
Row = tuple[Any, ...]
Timeline = tuple[int, int, int]
"""Its number, the position after which it began, and when."""


class Restored(NamedTuple):
    """Result of a restore. `is_ledger_lost`: it replaced a damaged store whose ledger could not be read.

    `access_backup`: the backup that principals come from; None if there are none, or they are of the replaced store.
    """

    number: int
    events: int
    timeline: int
    erasures: int
    is_ledger_lost: bool
    access_backup: int | None


def restore_backup(
    place: Place, url: str, stage: Stage, *, number: int | None = None, replace: bool = False
) -> Restored:
    target = open_replacement(url, replace=replace)
    with system_errors(target.shown):
        target.look()
    chosen = choose(place, number)
    with stage("checking") as progressed:
        check(place, chosen, progressed)
    with system_errors(target.shown), target:
        erasures, state, access_backup = _plan(place, chosen, target.replaced)
        with closing(target.filling()) as store, stage("restoring") as progressed:
            state = _fill(store, place, chosen, erasures, state, progressed)
        with closing(target.built()) as built:
            check_new_store(built, stage, "what was restored is not sound, and was not put in place")
        target.swap()
    rows = len(state.tables["erasures"])
    timeline, is_damaged = state.identity.timeline, target.is_damaged
    return Restored(chosen.manifest.number, state.head, timeline, rows, is_damaged, access_backup)


def _plan(place: Place, chosen: Chosen, replaced: Replaced | None) -> tuple["Erasures", StoreState, int | None]:
    """The erasures to apply to the records, the state of the new store, and the backup of its principals, if any."""
    state = read_state(place, chosen.manifest)
    timelines = Ledger.of(state.tables).timelines
    newest = read_state(place, chosen.newest).tables
    ledgers = [Ledger.of(newest)]
    # What was revoked since the backup stays revoked.
    access = {name: newest[name] for name in ACCESS_TABLES}
    access_backup = chosen.newest.number if access["access"] else None
    top = state.identity.timeline
    if replaced is not None and replaced.identity.id == state.identity.id:
        ledgers.append(Ledger.of({"timelines": replaced.timelines, "erasures": replaced.erasures}))
        top = max(top, replaced.identity.timeline)
        # An open store, such as one from a lake, does not open what was closed.
        if replaced.access["access"]:
            access, access_backup = replaced.access, None
    began: Timeline = (top + 1, state.head, ticks_of_unix_ns(time.time_ns()))
    tables = {**state.tables, **access, "timelines": [*state.tables["timelines"], began]}
    identity = StoreIdentity(state.identity.id, top + 1)
    return Erasures(timelines, ledgers), StoreState(identity, state.head, chosen.sealed, tables), access_backup


def _fill(
    store: StoreImport, place: Place, chosen: Chosen, erasures: "Erasures", state: StoreState, progressed: Progressed
) -> StoreState:
    """Add the records and the state to the new store. Returns the state after all erasures."""
    for member in chosen.manifest.history:
        records = read_history(place, member, store.head() + 1)
        store.add([piece for record in records for piece in erasures.apply(record)])
        progressed(store.head(), state.head)
    tables = without_logs(state.tables, erasures.deleted_logs(state))
    state = state._replace(tables={**tables, "erasures": erasures.rows(), "dead_letters": erasures.letters(tables)})
    store.finish(state, Arrival("restored", {"backup": chosen.manifest.number}))
    return state


def check_new_store(
    store: Store, stage: Stage, complaint: str, differences: Callable[[Progressed], Iterator[str]] | None = None
) -> None:
    """Verify a new store as `penstock verify` does, and compare it with its source. Raises StoreError."""
    with stage("verifying") as progressed:
        found = [f"{each.where}: {each.what}" for each in islice(store.verify(progressed), FINDINGS_SHOWN_MAX)]
    if not found and differences is not None:
        with stage("comparing") as progressed:
            found = list(islice(differences(progressed), FINDINGS_SHOWN_MAX))
    if found:
        raise StoreError(f"{complaint}: {'; '.join(found)}")


# --- the ledger of erasures -------------------------------------------------------------------------------------


class LedgerEntry(NamedTuple):
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
    def key(self) -> Row:
        return (self.context, self.stream, self.ranges, self.timeline, self.requested)


class Ledger(NamedTuple):
    timelines: Sequence[Timeline]
    entries: Sequence[LedgerEntry]

    @classmethod
    def of(cls, tables: dict[str, list[Row]]) -> "Ledger":
        return cls(
            [(row[0], row[1], row[2]) for row in tables["timelines"]], [LedgerEntry(*row) for row in tables["erasures"]]
        )


def agreed(one: Sequence[Timeline], other: Sequence[Timeline]) -> int:
    """The last position up to which two lists of timelines have the same history."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return min((line[common][1] for line in (one, other) if len(line) > common), default=EVERYWHERE)


class Erasures:
    """The entries of several ledgers, to apply to all records of a backup, in order."""

    def __init__(self, timelines: Sequence[Timeline], ledgers: Iterable[Ledger]) -> None:
        self._entries: dict[Row, tuple[LedgerEntry, int]] = {}
        for ledger in ledgers:
            seen: Counter[Row] = Counter()
            for entry in ledger.entries:
                # Two equal entries of one ledger are two erasures; an entry in two ledgers is one.
                seen[entry.key] += 1
                key = (*entry.key, seen[entry.key])
                known = self._entries.get(key)
                if known is None or known[0].last < entry.last:
                    line = [row for row in ledger.timelines if row[0] <= entry.timeline]
                    self._entries[key] = (entry, agreed(line, timelines))
        limits = self._entries.values()
        self._ends = sorted({EVERYWHERE, *(limit for _, limit in limits)})
        self._gone = [_gone(entry for entry, limit in limits if limit >= end) for end in self._ends]
        self._reached: list[dict[tuple[str, str], int]] = [{} for _ in self._ends]

    def apply(self, record: Record) -> list[Record]:
        """The record without erased events; several records if timelines part in the middle of it."""
        if not self._entries:
            return [record]
        applied: list[Record] = []
        at = record.position
        for number in range(bisect_left(self._ends, at), len(self._ends)):
            if at > record.last:
                break
            whole = cut(record, at, self._ends[number])
            gone = self._gone[number]
            left = visible(whole, gone) if gone else whole
            if left is not whole:
                self._note_erased(whole, gone, self._reached[number])
            applied.append(left)
            at = whole.last + 1
        return applied

    def _note_erased(self, record: Record, gone: Hidden, reached: dict[tuple[str, str], int]) -> None:
        for run in record.runs():
            key = run.context, run.stream
            last = min(gone.streams.get(key, 0), run.sequence + run.length - 1)
            if last >= run.sequence:
                reached[key] = max(last, reached.get(key, 0))

    def rows(self) -> list[Row]:
        """The ledger of the restored store, once it has all records.

        An entry of a stream ends where the stream ended: later events are new and were never erased.
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

    def _last(self, entry: LedgerEntry, limit: int) -> int:
        if entry.context is None or entry.stream is None:
            return entry.last
        key = entry.context, entry.stream
        reached = (found.get(key, 0) for end, found in zip(self._ends, self._reached, strict=True) if end <= limit)
        return min(entry.last, max(reached, default=0))

    def letters(self, tables: dict[str, list[Row]]) -> list[Row]:
        """Dead letters of a state without those whose events were erased later: a reason may tell what they said."""
        contexts = {row[0]: row[2] for row in tables["queues"]}
        return [row for row in tables["dead_letters"] if not self._hides(contexts.get(row[0], ""), *row[1:4])]

    def _hides(self, context: str, position: int, stream: str, sequence: int) -> bool:
        gone = self._gone[bisect_left(self._ends, position)]
        if sequence <= gone.streams.get((context, stream), 0):
            return True
        at = bisect_left(gone.ranges, position, key=itemgetter(1))
        return at < len(gone.ranges) and gone.ranges[at][0] <= position

    def deleted_logs(self, state: StoreState) -> set[str]:
        """Logs of a state that were deleted later: `apply` erased the messages that they had."""
        bases = {name: base for name, _, base, _ in state.tables["logs"]}
        last = {name: max(found.get((LOG_CONTEXT, name), 0) for found in self._reached) for name in bases}
        return {name for name, base in bases.items() if last[name] > base}


def without_logs(tables: dict[str, list[Row]], deleted: set[str]) -> dict[str, list[Row]]:
    """The tables of a state without some logs, the iterators over them, and the iterators over those."""
    gone = {("log", name) for name in deleted}
    while more := {("iterator", row[1]) for row in tables["iterators"] if (row[3], row[2]) in gone} - gone:
        gone |= more
    logs = [row for row in tables["logs"] if row[0] not in deleted]
    iterators = [row for row in tables["iterators"] if (row[3], row[2]) not in gone]
    return {**tables, "logs": logs, "iterators": iterators}


def _gone(entries: Iterable[LedgerEntry]) -> Hidden:
    streams: dict[tuple[str, str], int] = {}
    ranges: list[tuple[int, int]] = []
    for entry in entries:
        if entry.context is not None and entry.stream is not None:
            key = entry.context, entry.stream
            streams[key] = max(entry.last, streams.get(key, 0))
        ranges += entry.ranges
    return Hidden(streams, merged_ranges(ranges))
