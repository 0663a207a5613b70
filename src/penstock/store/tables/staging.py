"""What jobs have staged: adding to it, publishing it, dropping it. See `penstock.store.staging` for units.

Staged events are no events yet. So an erasure does not reach them: they are dropped, or become history after the
erasure and have to be erased there. The output of an iterator is made from messages. So it is staged only for one that
is there, and dropped with it, which is also how an iterator begins anew. Whatever goes from here goes for good, as
erased contents do; each backend sees to that.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from penstock.errors import IteratorNotFound
from penstock.model import Installed, Winner
from penstock.store import outputs, staging
from penstock.store.operations import ExpireStages, Install, Publish, Stage, StageOperation, Unstage
from penstock.store.staging import Placed, Placing, Staged, StreamKey, Unit
from penstock.store.tables.installing import Installing
from penstock.store.tables.queries import Statements

_Db = TypeVar("_Db", bound=Statements)


class Stages(ABC, Generic[_Db]):
    """The stages of a store, inside a transaction."""

    def __init__(self, db: _Db, appender: Placing) -> None:
        self._db = db
        self._appender = appender

    def apply(self, op: StageOperation, now: int) -> Placed | Installed | bool | int:
        """Carry out an operation on stages."""
        match op:
            case Stage():
                return self._stage(op, now)
            case Publish():
                return self._publish(op)
            case Install():
                return self._install(op)
            case Unstage():
                return self._drop("stages_of_job", {"job": op.job})
            case ExpireStages():
                return self._drop("idle_stages", {"before": op.before, "limit": op.limit})

    def _stage(self, op: Stage, now: int) -> bool:
        owner = outputs.iterator_of_job(op.job)
        if owner is not None and self._db.row("iterator_place", {"id": owner}) is None:
            raise IteratorNotFound(f"of number {owner}")
        who = {"job": op.job, "part": op.part, "attempt": op.attempt}
        _, has = self._db.row("stage", who) or (0, 0)
        if staging.is_repeat(has, op.number, len(op.units)):
            return False
        size, units = self._db.row("staged_size", {"job": op.job})
        added = sum(map(staging.size_of, op.units))
        staging.check_limits(size + added, op.bytes_max, units + len(op.units), op.units_max)
        self._add(self._db.value("grow_stage", {**who, "used": now, "units": len(op.units), "bytes": added}), op)
        return True

    def _publish(self, op: Publish) -> Placed:
        job = {"job": op.job}
        self._keep_winners(op.job, op.winners)
        expected = self._db.rows("staged_expected", job)
        self._look_up([(context, stream) for context, stream, *_ in expected])
        staging.check_expected(expected, self._appender)
        placed = staging.publish(self._in_order(op.job), self._appender)
        self._appender.flush()
        self._drop("stages_of_job", job)
        return placed

    def _install(self, op: Install) -> Installed:
        job = outputs.output_job(op.iterator)
        installing = Installing(self._db, op, self._forget_state)
        if not installing.is_there:
            self._keep_winners(job, op.winners)
            installing.add(outputs.chunk_in(unit.data) for unit in self._in_order(job))
        self._drop("stages_of_job", {"job": job})
        return installing.installed

    def drop_orphans(self) -> None:
        """Drop the output of iterators that are gone."""
        self._drop("orphan_stages", {})

    def _keep_winners(self, job: str, winners: Sequence[Winner]) -> None:
        lost = staging.losers(job, (Staged(*row) for row in self._db.rows("stages_of_job", {"job": job})), winners)
        if lost:
            self._remove(lost)

    def _in_order(self, job: str) -> Iterator[Unit]:
        return staging.units_in_order(self._db.rows("staged_order", {"job": job}), self._units)

    def _drop(self, query: str, values: dict[str, Any]) -> int:
        ids = [row[0] for row in self._db.rows(query, values)]
        if ids:
            self._remove(ids)
        return len(ids)

    def _look_up(self, keys: Collection[StreamKey], /) -> None:
        """Streams are needed in a moment; where asking for each takes long, all are asked for here."""

    @abstractmethod
    def _add(self, number: int, op: Stage, /) -> None:
        """Add units to the stage of a number."""

    @abstractmethod
    def _units(self, ids: list[int], /) -> Mapping[int, Unit]:
        """Units by their ids."""

    @abstractmethod
    def _remove(self, ids: Collection[int], /) -> None:
        """Remove stages with all that they have."""

    @abstractmethod
    def _forget_state(self, iterator: int, /) -> None:
        """Take the accumulator out of the last row of an iterator's output."""
