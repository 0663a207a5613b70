"""Stages: jobs add units, publish them or drop them; iterators get output. See `penstock.store.stages` for units.

Staged events are not events yet, so an erasure does not reach them. Publish them and erase them afterwards, or drop
them. The output of an iterator comes from messages that may be erased: the store takes it only for an existing
iterator, and drops it with the iterator. A restarted iterator is a new one. Each backend removes rows for good, as it
does with erased contents.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.errors import (
    InvalidRequest,
    IteratorNotFound,
    LimitExceeded,
    OutputMoved,
    OverLimit,
    StageLost,
    VersionConflict,
)
from penstock.model import Installed, IteratorKind, Winner
from penstock.store import outputs, stages
from penstock.store.contract import Install, IteratorState, Placed, Publish, Stage, WriteOutput
from penstock.store.stages import FLUSH_BYTES, Unit
from penstock.store.tables.appends import Appender
from penstock.store.tables.database import Database
from penstock.store.tables.logs import iterator_of

OWNER_RETRY_MS: Final = 1000
"""How long a client should wait for its other jobs to end."""


class Stages(ABC):
    """The stages of a store, inside a transaction."""

    def __init__(self, db: Database, appender: Appender) -> None:
        self._db = db
        self._appender = appender

    def stage(self, op: Stage, now: int) -> bool:
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
        if op.owner_bytes_max is not None:
            owned = self._db.value("staged_by_owner", {"jobs": stages.jobs_of(op.owner)})
            if owned + added > op.owner_bytes_max:
                raise OverLimit(0, op.owner, "staged_bytes_max", op.owner_bytes_max, OWNER_RETRY_MS)
        self._add(self._db.value("grow_stage", {**attempt, "used": now, "units": len(op.units), "bytes": added}), op)
        return True

    def publish(self, op: Publish) -> Placed:
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
        """Make the chunks of the winners the output of an iterator, and drop the job.

        The server may have built on since the build began. The same function over the same messages gives the same
        items, so the installation skips as many items as the iterator has by now.
        """
        row = self._db.row("iterator_numbered", {"id": op.iterator})
        if row is None:
            raise IteratorNotFound(f"of number {op.iterator}")
        iterator = iterator_of(row)
        read, items = iterator.source - iterator.base, iterator.outputs
        if not iterator.indexed:
            raise InvalidRequest("iterator", f"{iterator.name} is not indexed, so it has no index to install")
        is_even = op.items == op.source or iterator.kind == IteratorKind.FILTER
        if not 0 <= op.source <= read or not 0 <= op.items <= items or not is_even:
            reason = f"began at message {op.source} and item {op.items}, where the iterator has never been"
            raise InvalidRequest("build", reason)
        job = outputs.output_job(op.iterator)
        if op.messages > read:
            self._keep_winners(job, op.winners)
            items = self._install_chunks(op, iterator, job)
            read = op.messages
            self._db.later("move_iterator", {"id": op.iterator, "source": iterator.base + read, "outputs": items})
        self.drop("stages_of_job", {"job": job})
        return Installed(items, items - iterator.outputs, read)

    def _install_chunks(self, op: Install, iterator: IteratorState, job: str) -> int:
        """Add the staged chunks to an iterator's output; answers how many items it has then."""
        staged = 0

        def chunks() -> Iterator[bytes]:
            nonlocal staged
            for unit in self._in_order(job):
                chunk = outputs.chunk_in(unit.data)
                staged += outputs.count_items(chunk)
                yield chunk

        items, held = iterator.outputs, b""
        for chunk in outputs.rows_of(chunks(), items - op.items):
            if held:
                items = self._add_output(op.iterator, items, held, None)
            else:
                self.forget_state(op.iterator)
            held = chunk
        # A map and a reduce give an item for each message, a filter at most one.
        messages = op.messages - op.source
        if staged > messages or (staged < messages and iterator.kind != IteratorKind.FILTER):
            raise InvalidRequest("winners", f"have {staged} items for {messages} messages of a {iterator.kind}")
        if op.items + staged < iterator.outputs:
            has = iterator.outputs - op.items
            raise InvalidRequest("winners", f"have {staged} items, where the iterator has {has} for fewer messages")
        # Only the last row has the accumulator.
        return self._add_output(op.iterator, items, held, op.state) if held else items

    def write_output(self, op: WriteOutput) -> int:
        """Add to an iterator's output if it is where its builder thinks; only the last row has the accumulator."""
        place = self._db.row("iterator_place", {"id": op.iterator})
        if place is None or place[0] != op.source:
            raise OutputMoved(op.iterator)
        items: int = place[1]
        if op.items:
            self.forget_state(op.iterator)
            items = self._add_output(op.iterator, items, outputs.pack_items(op.items), op.state)
        self._db.later("move_iterator", {"id": op.iterator, "source": op.next_source, "outputs": items})
        return items

    def _add_output(self, iterator: int, ordinal: int, chunk: bytes, state: bytes | None) -> int:
        """Add a chunk as a row from an item on; answers where the next one begins."""
        count = int.from_bytes(chunk[: outputs.COUNT_BYTES], "little")
        row = {"ordinal": ordinal, "count": count, "data": chunk[outputs.COUNT_BYTES :], "state": state}
        self._db.later("add_output", {"id": iterator, **row})
        return ordinal + count

    def drop_orphans(self) -> None:
        self.drop("orphan_stages", {})

    def drop(self, query: str, values: dict[str, Any]) -> int:
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
