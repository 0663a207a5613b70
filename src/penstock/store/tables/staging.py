"""What jobs have staged: adding to it, publishing it, dropping it. See `penstock.store.staging` for units.

What is staged is no event yet. So an erasure does not reach it: it is dropped, or becomes history after the erasure and
has to be erased there. Whatever goes from here goes for good, as erased contents do; each backend sees to that.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from penstock.store import staging
from penstock.store.operations import ExpireStages, Publish, Stage, StageOperation, Unstage
from penstock.store.staging import Placed, Placing, Staged, Unit
from penstock.store.tables.queries import Statements

_Db = TypeVar("_Db", bound=Statements)


class Stages(ABC, Generic[_Db]):
    """The stages of a store, inside a transaction."""

    def __init__(self, db: _Db, appender: Placing) -> None:
        self._db = db
        self._appender = appender

    def apply(self, op: StageOperation, now: int) -> Placed | bool | int:
        """Carry out an operation on stages."""
        match op:
            case Stage():
                return self._stage(op, now)
            case Publish():
                return self._publish(op)
            case Unstage():
                return self._drop("stages_of_job", {"job": op.job})
            case ExpireStages():
                return self._drop("idle_stages", {"before": op.before, "limit": op.limit})

    def _stage(self, op: Stage, now: int) -> bool:
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
        lost = staging.losers(op.job, (Staged(*row) for row in self._db.rows("stages_of_job", job)), op.winners)
        if lost:
            self._remove(lost)
        staging.check_expected(self._db.rows("staged_expected", job), self._appender)
        units = staging.units_in_order(self._db.rows("staged_order", job), self._units)
        placed = staging.publish(units, self._appender)
        self._appender.flush()
        self._drop("stages_of_job", job)
        return placed

    def _drop(self, query: str, values: dict[str, Any]) -> int:
        ids = [row[0] for row in self._db.rows(query, values)]
        if ids:
            self._remove(ids)
        return len(ids)

    @abstractmethod
    def _add(self, number: int, op: Stage, /) -> None:
        """Add units to the stage of a number."""

    @abstractmethod
    def _units(self, ids: list[int], /) -> Mapping[int, Unit]:
        """Units by their ids."""

    @abstractmethod
    def _remove(self, ids: Collection[int], /) -> None:
        """Remove stages with all that they have."""
