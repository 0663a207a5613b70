"""Checking a whole store: every checksum, dense positions and sequences, and the state that points into them.

It works in short steps, so it can run beside a server. Memory does not grow with the store.

That the index of streams and the history agree is found without looking up one in the other: both are gone through in
their own order, and of each commit a number is made from its stream, last sequence, position and length. Sums of these
are kept for a few thousand parts of the history. Where they differ, and only there, commits are looked up one by one.
"""

from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple

from penstock.errors import DamagedRecord, StoreError
from penstock.store.contract import Finding, Progressed, Store
from penstock.store.record import Record, Run
from penstock.store.sealing import BLOCK_BITS
from penstock.store.tables.queries import AnyQueries, Queries

RECORDS_PER_STEP: Final = 256
STEP_BYTES_MAX: Final = 8 << 20
"""Records are read in steps of about so much; one of them may be larger."""
COMMITS_PER_STEP: Final = 4096
BLOCKS_SEEN_MAX: Final = 65_536
STREAMS_SEEN_MAX: Final = 65_536
PARTS: Final = 4096
"""Blocks are counted together with others that lie so many blocks away."""
RUNS_KEPT_MAX: Final = 16
"""Records whose commits are kept while some are looked up."""


class _Row(NamedTuple):
    position: int
    events: int
    context_id: int | None
    stream_id: int | None
    data: bytes


class _Place(NamedTuple):
    """A context, and the numbers of it and of a stream; None if they have none."""

    context: str
    context_id: int | None
    stream_id: int | None


class _Sums:
    """Of each part of the history, what the commits in it add up to."""

    def __init__(self, head: int) -> None:
        self.head = head
        self._sums = [0] * PARTS
        self.wrong: set[int] = set()

    def add(self, sign: int, stream_id: int | None, last: int, position: int, length: int) -> None:
        """Count a commit of the history, or with another sign one of the index."""
        self._sums[(position >> BLOCK_BITS) % PARTS] += sign * hash((stream_id, last, position, length))

    def compare(self) -> None:
        """All are counted."""
        self.wrong = {part for part, total in enumerate(self._sums) if total}

    def is_wrong(self, position: int) -> bool:
        """Whether history and index differ around a position."""
        return (position >> BLOCK_BITS) % PARTS in self.wrong


class Verifying(Store, Generic[AnyQueries]):
    """The part of a store that checks it."""

    db: AnyQueries

    def verify(self, progressed: Progressed) -> Iterator[Finding]:
        head = self.head()
        sums = _Sums(head)
        stages = (
            self._pages(),
            self._records(sums, progressed),
            self._indices(sums),
            self._missing_in_index(sums),
            self._missing_in_history(sums),
            self._consumers(),
        )
        for stage in stages:
            try:
                yield from stage
            except StoreError as error:
                yield Finding("file", f"cannot be read on: {error.reason}")
        progressed(head, head)

    def _pages(self) -> Iterator[Finding]:
        """What the database itself finds wrong with how it keeps all this, where it can be asked."""
        return iter(())

    # -- the history

    def _records(self, sums: _Sums, progressed: Progressed) -> Iterator[Finding]:
        expected, head = 1, sums.head
        check = _RecordCheck(self.db, sums)
        while expected <= head:
            rows = self._next_records(expected - 1)
            if not rows:
                yield Finding(f"position {expected}", f"missing, and all up to {head}")
                return
            for row in rows:
                if row.position != expected:
                    yield Finding(f"position {expected}", f"missing: the next record begins at {row.position}")
                yield from check.record(row)
                # A damaged count must not lead back to where it came from.
                expected = max(row.position + row.events, row.position + 1)
            progressed(min(expected - 1, head), head)

    def _next_records(self, position: int) -> list[_Row]:
        rows: list[_Row] = []
        size = 0
        for row in self.db.each("records_after", {"position": position, "limit": RECORDS_PER_STEP}):
            rows.append(_Row(*row))
            size += len(row[4]) if isinstance(row[4], bytes) else 0
            if size >= STEP_BYTES_MAX:
                break
        return rows

    # -- the index of streams

    def _commits(self) -> Iterator[tuple[int, int, int, int]]:
        """The index: of each commit its stream, the last sequence before it, its own last one, and its position."""
        stream_id = last = 0
        while rows := self.db.rows("commits_after", {"stream_id": stream_id, "last": last, "limit": COMMITS_PER_STEP}):
            for number, end, position in rows:
                yield number, (last if number == stream_id else 0), end, position
                stream_id, last = number, end

    def _indices(self, sums: _Sums) -> Iterator[Finding]:
        """Sequences are dense: the commits of a stream lie end to end, and each is in the history."""
        for stream_id, previous, end, position in self._commits():
            if position <= sums.head:
                sums.add(-1, stream_id, end, position, end - previous)
            elif not self._holds(position):
                # Added since this began, or the end of the history is gone.
                yield _no_commit(stream_id, previous, end, position)
        sums.compare()

    def _holds(self, position: int) -> bool:
        row = self.db.row("record_span", {"position": position})
        return row is not None and row[0] + row[1] > position

    def _missing_in_index(self, sums: _Sums) -> Iterator[Finding]:
        """Commits of the history that the index lacks, where the two differ."""
        for part in sorted(sums.wrong):
            for block in range(part, (sums.head >> BLOCK_BITS) + 1, PARTS):
                first = block << BLOCK_BITS
                for position, data in self.db.rows("records_between", {"low": first, "high": first + PARTS - 1}):
                    yield from self._unindexed(position, data)

    def _unindexed(self, position: int, data: bytes) -> Iterator[Finding]:
        for start, run in _runs(position, data).items():
            context_id = self.db.value("context_id", {"name": run.context})
            stream_id = self.db.value("stream_id", {"context_id": context_id, "name": run.stream})
            last = run.sequence + run.length - 1
            if self.db.value("commit_at", {"stream_id": stream_id, "last": last}) != start:
                yield Finding(f"position {start}", f"is not in the index of stream {run.stream} at {last}")

    def _missing_in_history(self, sums: _Sums) -> Iterator[Finding]:
        """Commits of the index that are not in the history, where the two differ."""
        if not sums.wrong:
            return
        known: dict[int, dict[int, Run] | None] = {}
        for stream_id, previous, end, position in self._commits():
            if position <= sums.head and sums.is_wrong(position):
                yield from self._commit(known, stream_id, previous, end, position)

    def _commit(
        self, known: dict[int, dict[int, Run] | None], stream_id: int, previous: int, end: int, position: int
    ) -> Iterator[Finding]:
        start = self.db.value("record_start", {"position": position}) or 0
        if start not in known:
            while len(known) >= RUNS_KEPT_MAX:
                del known[next(iter(known))]
            known[start] = self._runs_at(start)
        runs = known[start]
        if runs is None:
            return  # Told already, with its position.
        run = runs.get(position)
        if run is None or (run.sequence, run.length) != (previous + 1, end - previous):
            yield _no_commit(stream_id, previous, end, position)

    def _runs_at(self, start: int) -> dict[int, Run] | None:
        """The commits of the record that begins there; None if it is damaged."""
        row = self.db.row("record_at", {"position": start})
        return (_runs(start, row[1]) or None) if row and row[0] == start else {}

    # -- the rest

    def _consumers(self) -> Iterator[Finding]:
        # All of it at once: the caller may take its time with each, and a snapshot has none.
        with self.db.snapshot():
            found = list(self._stray())
        yield from found

    def _stray(self) -> Iterator[Finding]:
        head = {"head": self.head()}
        counted = self.db.value("counted_events")
        if counted != head["head"]:
            yield Finding("contexts", f"count {counted} events, and the last position is {head['head']}")
        for queue, first, last in self.db.rows("stray_allocations"):
            yield Finding(f"queue number {queue}", f"allocation {first} to {last} does not fit")
        for number, context, name, position in self.db.rows("stray_queues", head):
            yield Finding(f"queue {name} of {context} (number {number})", f"marker {position} lies outside")
        for number, subscriber, position in self.db.rows("stray_subscriptions", head):
            yield Finding(f"subscription {number} of {subscriber}", f"bookmark {position} lies outside")
        for name, outputs in self.db.rows("stray_iterators"):
            yield Finding(f"iterator {name}", f"its output does not have the {outputs} items it should")


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

    def __init__(self, db: Queries, sums: _Sums) -> None:
        self._db = db
        self._sums = sums
        self._places: dict[tuple[str, str], _Place] = {}
        self._blocks: set[tuple[int | None, int]] = set()

    def record(self, row: _Row) -> Iterator[Finding]:
        """What is wrong with a record and its row."""
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
        start, add = row.position, self._sums.add
        places: set[_Place] = set()
        for _, sequence, _, length, context, stream in runs:
            place = self._places.get((context, stream)) or self._find(context, stream)
            add(1, place.stream_id, sequence + length - 1, start, length)
            places.add(place)
            start += length
        for place in places:
            yield from self._place(row, place)
            yield from self._block(place, row.position)

    def _find(self, context: str, stream: str) -> _Place:
        if len(self._places) >= STREAMS_SEEN_MAX:
            self._places.clear()
        context_id = self._db.value("context_id", {"name": context})
        stream_id = self._db.value("stream_id", {"context_id": context_id, "name": stream})
        place = self._places[context, stream] = _Place(context, context_id, stream_id)
        return place

    @staticmethod
    def _place(row: _Row, place: _Place) -> Iterator[Finding]:
        if row.context_id not in (None, place.context_id) or row.stream_id not in (None, place.stream_id):
            yield Finding(f"position {row.position}", "its row names another context or stream")

    def _block(self, place: _Place, position: int) -> Iterator[Finding]:
        """Whoever reads one context finds this record only if the index of blocks leads to it."""
        block, context_id = position >> BLOCK_BITS, place.context_id
        if (context_id, block) in self._blocks:
            return
        if len(self._blocks) >= BLOCKS_SEEN_MAX:
            self._blocks.clear()
        self._blocks.add((context_id, block))
        if self._db.value("next_block", {"context_id": context_id, "block": block}) != block:
            yield Finding(f"context {place.context}", f"its index lacks block {block}, where position {position} is")
