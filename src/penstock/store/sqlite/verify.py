"""Checking a whole store: every checksum, dense positions and sequences, and the state that points into them.

It works in short steps, so it can run beside a server. Memory does not grow with the store.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw

from penstock.errors import DamagedRecord, StoreError
from penstock.store.contract import Finding, Progressed, Store
from penstock.store.record import Record
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.history import BLOCK_BITS
from penstock.store.sqlite.lock import is_served

CHECKED_BESIDE_A_SERVER: Final = (
    *("meta", "timelines", "contexts", "streams", "blocks", "subscriptions", "queues", "allocations"),
    *("producers", "logs", "iterators", "erasures"),
)
RECORDS_PER_STEP: Final = 256
COMMITS_PER_STEP: Final = 4096
BLOCKS_SEEN_MAX: Final = 65_536


class Verifying(Store):
    """The part of a store on SQLite that checks it."""

    db: Database
    directory: Path

    def verify(self, progressed: Progressed) -> Iterator[Finding]:
        head = self.head()
        stages = (self._pages(), self._records(head, progressed), self._indices(), self._consumers())
        for stage in stages:
            try:
                yield from stage
            except StoreError as error:
                yield Finding("file", f"cannot be read on: {error.reason}")
        progressed(head, head)

    def _pages(self) -> Iterator[Finding]:
        """SQLite's own look at its file; beside a server, at its smaller tables only.

        It is one long read, and a server's WAL would grow all the while. The large tables are read in steps below.
        """
        served = is_served(self.directory)
        for scope in [f"({table})" for table in CHECKED_BESIDE_A_SERVER] if served else [""]:
            try:
                for (line,) in self.db.connection.execute(f"PRAGMA quick_check{scope}"):
                    if line != "ok":
                        yield Finding("file", line)
            except apsw.Error as error:
                yield Finding("file", str(error))

    def _records(self, head: int, progressed: Progressed) -> Iterator[Finding]:
        expected = 1
        blocks: set[tuple[int, int]] = set()
        while expected <= head:
            rows = self.db.rows("records_after", {"position": expected - 1, "limit": RECORDS_PER_STEP})
            if not rows:
                yield Finding(f"position {expected}", f"missing, and all up to {head}")
                return
            for position, count, context_id, stream_id, data in rows:
                if position != expected:
                    yield Finding(f"position {expected}", f"missing: the next record begins at {position}")
                yield from self._record(position, count, context_id, stream_id, data, blocks)
                # A damaged count must not lead back to where it came from.
                expected = max(position + count, position + 1)
            progressed(min(expected - 1, head), head)

    def _record(
        self, position: int, count: int, context_id: Any, stream_id: Any, data: bytes, blocks: set[tuple[int, int]]
    ) -> Iterator[Finding]:
        try:
            record = Record(data, position)
            record.events()
            runs = record.runs()
        except DamagedRecord as error:
            yield Finding(f"position {position}", f"damaged: {error.reason}")
            return
        if record.count != count or sum(run.length for run in runs) != count:
            yield Finding(f"position {position}", f"holds {record.count} events, its row says {count}")
        start = position
        for run in runs:
            found_context = self.db.value("context_id", {"name": run.context})
            found_stream = self.db.value("stream_id", {"context_id": found_context, "name": run.stream})
            last = run.sequence + run.length - 1
            indexed = self.db.value("commit_at", {"stream_id": found_stream, "last": last})
            if indexed != start:
                yield Finding(f"position {start}", f"is not in the index of stream {run.stream} at {last}")
            if context_id not in (None, found_context) or stream_id not in (None, found_stream):
                yield Finding(f"position {start}", "its row names another context or stream")
            yield from self._block(run.context, found_context, position, blocks)
            start += run.length

    def _block(self, context: str, context_id: int, position: int, seen: set[tuple[int, int]]) -> Iterator[Finding]:
        """Whoever reads one context finds this record only if the index of blocks leads to it."""
        block = position >> BLOCK_BITS
        if (context_id, block) in seen:
            return
        if len(seen) >= BLOCKS_SEEN_MAX:
            seen.clear()
        seen.add((context_id, block))
        if self.db.value("next_block", {"context_id": context_id, "block": block}) != block:
            yield Finding(f"context {context}", f"its index lacks block {block}, where position {position} is")

    def _indices(self) -> Iterator[Finding]:
        """Sequences are dense: the commits of a stream lie end to end, and each is in the history."""
        stream_id = last = 0
        while rows := self.db.rows("commits_after", {"stream_id": stream_id, "last": last, "limit": COMMITS_PER_STEP}):
            for number, end, position in rows:
                previous = last if number == stream_id else 0
                yield from self._commit(number, previous, end, position)
                stream_id, last = number, end

    def _commit(self, stream_id: int, previous: int, end: int, position: int) -> Iterator[Finding]:
        try:
            row = self.db.row("record_at", {"position": position})
            runs = Record(row[1], row[0]).runs() if row else []
        except DamagedRecord:
            return  # Told already, with its position.
        start = row[0] if row else 0
        for run in runs:
            if start == position and run.sequence == previous + 1 and run.sequence + run.length - 1 == end:
                return
            start += run.length
        yield Finding(f"stream number {stream_id}", f"no commit of sequences {previous + 1} to {end} at {position}")

    def _consumers(self) -> Iterator[Finding]:
        with self.db.snapshot():
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
