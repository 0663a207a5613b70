"""What jobs have staged, on PostgreSQL. See `penstock.store.tables.staging` for the rest.

Rows that are removed leave old versions behind, which go with those of erasures: see `vacuum`.
"""

from collections.abc import Collection

from penstock.model import Installed
from penstock.store import staging
from penstock.store.operations import Stage, StageOperation
from penstock.store.postgres.appender import Appender
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import Database
from penstock.store.staging import Placed, StreamKey, Unit
from penstock.store.tables.staging import Stages


def apply(db: Database, op: StageOperation, appender: Appender, now: int) -> Placed | Installed | bool | int:
    """Carry out an operation on stages."""
    return _Stages(db, appender).apply(op, now)


def drop_orphans(db: Database, appender: Appender) -> None:
    """Drop the output of iterators that are gone."""
    _Stages(db, appender).drop_orphans()


class _Stages(Stages[Database]):
    _appender: Appender

    def _add(self, number: int, op: Stage) -> None:
        columns = {
            "id": number,
            "numbers": Numbers(range(op.number, op.number + len(op.units))),
            "contexts": Texts(unit.context for unit in op.units),
            "streams": Texts(unit.stream for unit in op.units),
            "expected": Numbers(unit.expected for unit in op.units),
            "lows": Blobs(map(staging.low_of, op.units)),
            "keys": Blobs(unit.keys for unit in op.units),
            "data": Blobs(unit.data for unit in op.units),
        }
        self._db.later("add_staged", columns)

    def _units(self, ids: list[int]) -> dict[int, Unit]:
        units = {row[0]: Unit(*row[1:]) for row in self._db.rows("staged_units", {"ids": Numbers(ids)})}
        self._look_up({(unit.context, unit.stream) for unit in units.values()})
        return units

    def _look_up(self, keys: Collection[StreamKey]) -> None:
        self._appender.look_up(keys)

    def _remove(self, ids: Collection[int]) -> None:
        numbers = {"ids": Numbers(ids)}
        self._db.later("delete_staged", numbers)
        self._db.later("delete_stages", numbers)

    def _forget_state(self, iterator: int) -> None:
        self._db.later("forget_state", {"id": iterator})
