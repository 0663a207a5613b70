"""Stages: jobs add units, publish them or drop them; iterators get output. See `penstock.store.stages` for units.

Staged events are not events yet, so an erasure does not reach them. Publish them and erase them afterwards, or drop
them. The output of an iterator comes from messages that may be erased: the store takes it only for an existing
iterator, and drops it with the iterator. A restarted iterator is a new one. Each backend removes rows for good, as it
does with erased contents.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from struct import pack
from typing import Any

from penstock.errors import InvalidRequest, IteratorNotFound, LimitExceeded, OutputMoved, StageLost, VersionConflict
from penstock.model import Installed, IteratorKind, Winner
from penstock.store import outputs, stages
from penstock.store.contract import Install, Placed, Publish, Stage, WriteOutput
from penstock.store.outputs import Row, Rows
from penstock.store.stages import FLUSH_BYTES, Unit
from penstock.store.tables.appends import Appender
from penstock.store.tables.database import Database
from penstock.store.tables.logs import iterator_of


class Stages(ABC):
    """The stages of a store, inside a transaction."""

    def __init__(self, db: Database, appender: Appender) -> None:
        self._db = db
        self._appender = appender

    def stage(self, op: Stage, now: int) -> bool:
        """Add units to an attempt; False if it has them already."""
        owner = outputs.iterator_of_job(op.job)
        if owner is not None and self._db.row("iterator_place", {"id": owner}) is None:
            raise IteratorNotFound(f"of number {owner}")
        attempt = {"job": op.job, "part": op.part, "attempt": op.attempt}
        _, has = self._db.row("stage", attempt) or (0, 0)
        if op.number + len(op.units) <= has:
            return False
        if op.number != has:
            raise InvalidRequest("number", f"is {op.number}; the next unit of this attempt is number {has}")
        size, units = self._db.row("staged_size", {"job": op.job})
        added = sum(map(stages.size_of, op.units))
        if size + added > op.bytes_max:
            raise LimitExceeded("stage_bytes_max", size + added, op.bytes_max)
        if units + len(op.units) > op.units_max:
            raise LimitExceeded("stage_units_max", units + len(op.units), op.units_max)
        self._add(self._db.value("grow_stage", {**attempt, "used": now, "units": len(op.units), "bytes": added}), op)
        return True

    def publish(self, op: Publish) -> Placed:
        """Append the units of the winners, and drop the job."""
        job = {"job": op.job}
        self._keep_winners(op.job, op.winners)
        expected = self._db.rows("staged_expected", job)
        self._appender.look_up([(context, stream) for context, stream, *_ in expected])
        for context, stream, low, high in expected:
            if low != high:
                reason = f"of stream {stream} in context {context} is {low} in one row and {high} in another"
                raise InvalidRequest("expected version", reason)
            head = self._appender.stream_head(context, stream)
            if low != head + 1:
                raise VersionConflict(context, stream, low, head)
        placed = stages.publish(self._in_order(op.job), self._appender)
        self._appender.flush()
        self.drop("stages_of_job", job)
        return placed

    def install(self, op: Install) -> Installed:
        """Make the chunks of the winners the output of an iterator, and drop the job."""
        job = outputs.output_job(op.iterator)
        installation = _Installation(self, self._db, op)
        if op.messages > installation.read:
            self._keep_winners(job, op.winners)
            installation.add(outputs.chunk_in(unit.data) for unit in self._in_order(job))
        self.drop("stages_of_job", {"job": job})
        has = installation.items
        return Installed(has, has - installation.iterator.outputs, installation.read)

    def write_output(self, op: WriteOutput) -> int:
        """Add to an iterator's output if it is where its builder thinks; only the last row has the accumulator."""
        place = self._db.row("iterator_place", {"id": op.iterator})
        if place is None or place[0] != op.source:
            raise OutputMoved(op.iterator)
        items: int = place[1]
        if op.items:
            data = pack(f"<{len(op.items)}I", *map(len, op.items)) + b"".join(op.items)
            self.forget_state(op.iterator)
            row = {"id": op.iterator, "ordinal": items, "count": len(op.items), "data": data, "state": op.state}
            self._db.later("add_output", row)
        items += len(op.items)
        self._db.later("move_iterator", {"id": op.iterator, "source": op.next_source, "outputs": items})
        return items

    def drop_orphans(self) -> None:
        self.drop("orphan_stages", {})

    def drop(self, query: str, values: dict[str, Any]) -> int:
        """Drop the attempts that a query finds; answers how many."""
        ids = [row[0] for row in self._db.rows(query, values)]
        if ids:
            self._remove(ids)
        return len(ids)

    def _keep_winners(self, job: str, winners: Sequence[Winner]) -> None:
        """Remove the attempts that did not win; StageLost if a winner is incomplete."""
        found = {
            (part, attempt): (number, units)
            for number, part, attempt, units in self._db.rows("stages_of_job", {"job": job})
        }
        if len({winner.part for winner in winners}) != len(winners):
            raise InvalidRequest("winners", "name a part twice")
        for winner in winners:
            _, units = found.pop((winner.part, winner.attempt), (0, 0))
            if units != winner.units:
                raise StageLost(job, winner.part, winner.units, units)
        if found:
            self._remove([number for number, _ in found.values()])

    def _in_order(self, job: str) -> Iterator[Unit]:
        """The units of a job, read in groups that fit into memory."""
        ids: list[int] = []
        total = 0
        # The last pair ends the last group.
        for number, size in (*self._db.rows("staged_order", {"job": job}), (None, FLUSH_BYTES)):
            if ids and total + size > FLUSH_BYTES:
                found = self._units(ids)
                self._appender.look_up({(unit.context, unit.stream) for unit in found.values()})
                yield from (found[each] for each in ids)
                ids, total = [], 0
            ids.append(number)
            total += size

    @abstractmethod
    def _add(self, number: int, op: Stage, /) -> None: ...

    @abstractmethod
    def _units(self, ids: list[int], /) -> Mapping[int, Unit]: ...

    @abstractmethod
    def _remove(self, ids: Collection[int], /) -> None: ...

    @abstractmethod
    def forget_state(self, iterator: int, /) -> None:
        """Remove the accumulator from the last row of an iterator's output."""


class _Installation:
    """One installation of output that was computed elsewhere; the caller rolls back what fails.

    The server may have built on since the build began. The same function over the same messages gives the same items,
    so the installation skips as many items as the iterator has by now.
    """

    def __init__(self, stages: Stages, db: Any, op: Install) -> None:
        row = db.row("iterator_numbered", {"id": op.iterator})
        if row is None:
            raise IteratorNotFound(f"of number {op.iterator}")
        self._stages = stages
        self._db = db
        self._op = op
        found = self.iterator = iterator_of(row)
        self.read = found.source - found.base
        self.items = found.outputs
        self._is_filter = found.kind == IteratorKind.FILTER
        if not found.indexed:
            raise InvalidRequest("iterator", f"{found.name} is not indexed, so it has no index to install")
        is_even = op.items == op.source or self._is_filter
        if not 0 <= op.source <= self.read or not 0 <= op.items <= self.items or not is_even:
            reason = f"began at message {op.source} and item {op.items}, where the iterator has never been"
            raise InvalidRequest("build", reason)

    def add(self, chunks: Iterable[bytes]) -> None:
        op, found = self._op, self.iterator
        rows = Rows(self.items - op.items)
        held: Row | None = None
        for row in rows.of(chunks):
            if held is None:
                self._stages.forget_state(found.id)
            else:
                self._write(held, None)
            held = row
        self._check_items(rows.items)
        if held is not None:
            # Only the last row has the accumulator.
            self._write(held, op.state)
        self.read = op.messages
        place = {"source": found.base + self.read, "outputs": self.items}
        self._db.later("move_iterator", {"id": found.id, **place})

    def _write(self, row: Row, state: bytes | None) -> None:
        values = {"id": self.iterator.id, "ordinal": self.items, "count": row.items, "data": row.data, "state": state}
        self._db.later("add_output", values)
        self.items += row.items

    def _check_items(self, items: int) -> None:
        """A map and a reduce give an item for each message, a filter at most one."""
        messages = self._op.messages - self._op.source
        if items > messages or (items < messages and not self._is_filter):
            raise InvalidRequest("winners", f"have {items} items for {messages} messages of a {self.iterator.kind}")
        if self._op.items + items < self.iterator.outputs:
            has = self.iterator.outputs - self._op.items
            raise InvalidRequest("winners", f"have {items} items, where the iterator has {has} for fewer messages")
