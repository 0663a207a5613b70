"""Verification: every checksum, dense positions and sequences, and the state that points into the history.

It reads in short steps, so it can run next to a server. Its memory does not grow with the store.

To compare the index of streams with the history, it does not look up one in the other. It reads each in its own order,
and hashes the stream, last sequence, position and length of each commit. It sums the hashes for a few thousand parts of
the history. Only where the sums differ, it looks up commits one by one.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from penstock.errors import DamagedRecord, StoreError
from penstock.store.contract import Finding, Progressed
from penstock.store.record import Record, Run
from penstock.store.seals import BLOCK_BITS
from penstock.store.tables.database import Database

RECORDS_PER_STEP: Final = 256
STEP_BYTES_MAX: Final = 8 << 20
"""About how much one step reads; a single record may be larger."""
COMMITS_PER_STEP: Final = 4096
BLOCKS_SEEN_MAX: Final = 65_536
STREAMS_SEEN_MAX: Final = 65_536
PARTS: Final = 4096
"""Blocks that are a multiple of this number apart share a sum."""
RUNS_KEPT_MAX: Final = 16
"""Records whose commits are in memory during look-ups."""


class _Row(NamedTuple):
    position: int
    events: int
    context_id: int | None
    stream_id: int | None
    data: bytes


class _Place(NamedTuple):
    """A context, and the numbers of it and of a stream; None for a missing one."""

    context: str
    context_id: int | None
    stream_id: int | None


class _Sums:
    """For each part of the history, the sum over its commits in the history minus the sum over those in the index."""

    def __init__(self, head: int) -> None:
        self.head = head
        self._sums = [0] * PARTS
        self.wrong: set[int] = set()

    def add(self, sign: int, stream_id: int | None, last: int, position: int, length: int) -> None:
        """Count a commit of the history, or with sign -1 one of the index."""
        self._sums[(position >> BLOCK_BITS) % PARTS] += sign * hash((stream_id, last, position, length))

    def compare(self) -> None:
        self.wrong = {part for part, total in enumerate(self._sums) if total}


def verify(db: Database, file_findings: Iterator[Finding], progressed: Progressed) -> Iterator[Finding]:
    """All faults of a store; the first ones are those that the database itself finds in its files."""
    head = _head(db)
    sums = _Sums(head)
    stages = (
        file_findings,
        _check_records(db, sums, progressed),
        _check_index(db, sums),
        _missing_in_index(db, sums),
        _missing_in_history(db, sums),
        _check_state(db),
    )
    for stage in stages:
        try:
            yield from stage
        except StoreError as error:
            yield Finding("file", f"cannot be read on: {error.reason}")
    progressed(head, head)


def _head(db: Database) -> int:
    return db.value("head") or 0


def _check_records(db: Database, sums: _Sums, progressed: Progressed) -> Iterator[Finding]:
    expected, head = 1, sums.head
    check = _RecordCheck(db, sums)
    while expected <= head:
        rows: list[_Row] = []
        size = 0
        for row in db.each("records_after", {"position": expected - 1, "limit": RECORDS_PER_STEP}):
            rows.append(_Row(*row))
            size += len(row[4]) if isinstance(row[4], bytes) else 0
            if size >= STEP_BYTES_MAX:
                break
        if not rows:
            yield Finding(f"position {expected}", f"missing, and all up to {head}")
            return
        for found in rows:
            if found.position != expected:
                yield Finding(f"position {expected}", f"missing: the next record begins at {found.position}")
            yield from check.record(found)
            # A damaged count must not lead backwards.
            expected = max(found.position + found.events, found.position + 1)
        progressed(min(expected - 1, head), head)


def _indexed_commits(db: Database) -> Iterator[tuple[int, int, int, int]]:
    """The index: for each commit its stream, the last sequence before it, its own last one, and its position."""
    stream_id = last = 0
    while rows := db.rows("commits_after", {"stream_id": stream_id, "last": last, "limit": COMMITS_PER_STEP}):
        for number, end, position in rows:
            yield number, (last if number == stream_id else 0), end, position
            stream_id, last = number, end


def _check_index(db: Database, sums: _Sums) -> Iterator[Finding]:
    """Sequences are dense: the commits of a stream lie end to end, and each is in the history."""
    for stream_id, previous, end, position in _indexed_commits(db):
        if position <= sums.head:
            sums.add(-1, stream_id, end, position, end - previous)
            continue
        # The commit is newer than this check, or the end of the history is gone.
        row = db.row("record_place", {"position": position})
        if row is None or row[0] + row[1] <= position:
            yield _no_commit(stream_id, previous, end, position)
    sums.compare()


def _missing_in_index(db: Database, sums: _Sums) -> Iterator[Finding]:
    """Commits of the history that the index lacks, where the two differ."""
    for part in sorted(sums.wrong):
        for block in range(part, (sums.head >> BLOCK_BITS) + 1, PARTS):
            first = block << BLOCK_BITS
            for position, data in db.rows("records_between", {"low": first, "high": first + PARTS - 1}):
                for start, run in _runs(position, data).items():
                    context_id = db.value("context_id", {"name": run.context})
                    stream_id = db.value("stream_id", {"context_id": context_id, "name": run.stream})
                    last = run.sequence + run.length - 1
                    if db.value("commit_at", {"stream_id": stream_id, "last": last}) != start:
                        yield Finding(f"position {start}", f"is not in the index of stream {run.stream} at {last}")


def _missing_in_history(db: Database, sums: _Sums) -> Iterator[Finding]:
    """Commits of the index that are not in the history, where the two differ."""

    @lru_cache(RUNS_KEPT_MAX)
    def runs_at(start: int) -> dict[int, Run] | None:
        row = db.row("record_at", {"position": start})
        return (_runs(start, row[1]) or None) if row and row[0] == start else {}

    for stream_id, previous, end, position in _indexed_commits(db) if sums.wrong else ():
        if position > sums.head or (position >> BLOCK_BITS) % PARTS not in sums.wrong:
            continue
        runs = runs_at(db.value("record_start", {"position": position}) or 0)
        if runs is None:
            continue  # A damaged record, which is reported already.
        run = runs.get(position)
        if run is None or (run.sequence, run.length) != (previous + 1, end - previous):
            yield _no_commit(stream_id, previous, end, position)


_STRAYS: Final = {
    "stray_allocations": ("queue number {0}", "allocation {1} to {2} does not fit"),
    "stray_letters": ("queue number {0}", "dead letter {1} does not fit"),
    "stray_queues": ("queue {2} of {1} (number {0})", "marker {3} lies outside"),
    "miscounted_queues": ("queue {2} of {1} (number {0})", "has another number of allocations than {3}"),
    "stray_subscriptions": ("subscription {0} of {1}", "bookmark {2} lies outside"),
    "stray_credentials": ("credential {0}", "is one of {1}, and there is no such principal"),
    "stray_iterators": ("iterator {0}", "its output does not have the {1} items it should"),
}
"""Queries for rows that do not fit, and what to say of each row."""


def _check_state(db: Database) -> Iterator[Finding]:
    found: list[Finding] = []
    # Read all of it at once, because a snapshot must be short and the caller may be slow.
    with db.snapshot():
        head = _head(db)
        counted = db.value("counted_events")
        if counted != head:
            found.append(Finding("contexts", f"count {counted} events, and the last position is {head}"))
        for query, (where, what) in _STRAYS.items():
            found += [Finding(where.format(*row), what.format(*row)) for row in db.rows(query, {"head": head})]
    yield from found


def _no_commit(stream_id: int, previous: int, end: int, position: int) -> Finding:
    return Finding(f"stream number {stream_id}", f"no commit of sequences {previous + 1} to {end} at {position}")


def _runs(position: int, data: Any) -> dict[int, Run]:
    """The commits of a record by their first positions; none if it is damaged."""
    try:
        runs = Record(data, position).runs()
    except DamagedRecord:
        return {}
    found: dict[int, Run] = {}
    for run in runs:
        found[position] = run
        position += run.length
    return found


class _RecordCheck:
    """Checks records one after the other, and counts their commits."""

    def __init__(self, db: Database, sums: _Sums) -> None:
        self._db = db
        self._sums = sums
        self._place = lru_cache(STREAMS_SEEN_MAX)(self._find)
        self._blocks: set[tuple[int | None, int]] = set()

    def record(self, row: _Row) -> Iterator[Finding]:
        try:
            record = Record(row.data, row.position)
            record.events()
            runs = record.runs()
        except DamagedRecord as error:
            yield Finding(f"position {row.position}", f"damaged: {error.reason}")
            return
        if record.count != row.events or sum(run.length for run in runs) != row.events:
            yield Finding(f"position {row.position}", f"holds {record.count} events, its row says {row.events}")
        # The hot loop: once for each commit of a store. See bench/growth.py.
        start, add, find = row.position, self._sums.add, self._place
        places: set[_Place] = set()
        for _, sequence, _, length, context, stream in runs:
            place = find(context, stream)
            add(1, place.stream_id, sequence + length - 1, start, length)
            places.add(place)
            start += length
        for place in places:
            if row.context_id not in (None, place.context_id) or row.stream_id not in (None, place.stream_id):
                yield Finding(f"position {row.position}", "its row names another context or stream")
            yield from self._check_block(place, row.position)

    def _find(self, context: str, stream: str) -> _Place:
        context_id = self._db.value("context_id", {"name": context})
        return _Place(context, context_id, self._db.value("stream_id", {"context_id": context_id, "name": stream}))

    def _check_block(self, place: _Place, position: int) -> Iterator[Finding]:
        """A read of one context finds the record only if the index of blocks leads to it."""
        block, context_id = position >> BLOCK_BITS, place.context_id
        if (context_id, block) in self._blocks:
            return
        if len(self._blocks) >= BLOCKS_SEEN_MAX:
            self._blocks.clear()
        self._blocks.add((context_id, block))
        if self._db.value("next_block", {"context_id": context_id, "block": block}) != block:
            yield Finding(f"context {place.context}", f"its index lacks block {block}, where position {position} is")
