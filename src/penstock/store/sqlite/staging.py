"""What jobs have staged, on SQLite. See `penstock.store.tables.staging` for the rest.

Tasks of several jobs stage at the same time, so the rows of a stage lie between others, and removing them moves these:
see `guarded`. Rows are always added at the end of their table.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from penstock.model import Installed
from penstock.store import staging
from penstock.store.operations import Stage, StageOperation
from penstock.store.sqlite import guarded
from penstock.store.sqlite.appender import Appender
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.logs import forget_state
from penstock.store.staging import FLUSH_BYTES, Placed, Unit
from penstock.store.tables.staging import Stages

ROWS_TOGETHER_MAX: Final = 4096
"""Units that are removed together."""


def apply(db: Database, op: StageOperation, appender: Appender, now: int) -> Placed | Installed | bool | int:
    """Carry out an operation on stages."""
    return _Stages(db, appender).apply(op, now)


def drop_orphans(db: Database, appender: Appender) -> None:
    """Drop the output of iterators that are gone."""
    _Stages(db, appender).drop_orphans()


class _Stages(Stages[Database]):
    def _add(self, number: int, op: Stage) -> None:
        rows = [
            (number, at, unit.context, unit.stream, unit.expected, staging.low_of(unit), unit.keys, unit.data)
            for at, unit in enumerate(op.units, op.number)
        ]
        self._db.run_many("add_staged", rows)

    def _units(self, ids: list[int]) -> dict[int, Unit]:
        return {number: Unit(*self._db.row("staged_unit", {"id": number})) for number in ids}

    def _remove(self, ids: Collection[int]) -> None:
        stages = frozenset(ids)
        rows = sorted(row for number in stages for (row,) in self._db.rows("units_of_stage", {"id": number}))
        removed = 0
        while removed < len(rows):
            removed += self._remove_some(rows[removed], stages)
        self._db.run_many("delete_stage", [(number,) for number in stages])

    def _remove_some(self, row: int, stages: frozenset[int]) -> int:
        """Remove units that lie together, from one on; how many."""
        found = guarded.together(guarded.STAGED, self._from(row, stages), ROWS_TOGETHER_MAX, FLUSH_BYTES)
        with guarded.blank(self._db, guarded.STAGED, guarded.moved(self._db, guarded.STAGED, found)):
            self._db.run_many("blank_staged", [(number,) for number in found.gone])
            self._db.run_many("delete_staged", [(number,) for number in found.gone])
        return len(found.gone)

    def _forget_state(self, iterator: int) -> None:
        forget_state(self._db, iterator)

    def _from(self, row: int, stages: frozenset[int]) -> Iterator[tuple[int | None, Sequence[int]]]:
        for stage, *numbers in self._db.each("staged_from_row", {"row": row}):
            yield numbers[0] if stage in stages else None, numbers
