"""What jobs have staged, on PostgreSQL."""

from collections.abc import Iterable

from penstock.store import staging
from penstock.store.operations import ExpireStages, Publish, Stage, StageOperation, Unstage
from penstock.store.postgres.appender import Appender
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import Database
from penstock.store.staging import Placed, Staged, Unit


def apply(db: Database, op: StageOperation, appender: Appender, now: int) -> Placed | bool | int:
    """Carry out an operation on stages."""
    match op:
        case Stage():
            return _stage(db, op, now)
        case Publish():
            return _publish(db, op, appender)
        case Unstage():
            return _drop(db, [row[0] for row in db.rows("stages_of_job", {"job": op.job})])
        case ExpireStages():
            return _drop(db, [row[0] for row in db.rows("idle_stages", {"before": op.before, "limit": op.limit})])


def _stage(db: Database, op: Stage, now: int) -> bool:
    who = {"job": op.job, "part": op.part, "attempt": op.attempt}
    _, has = db.row("stage", who) or (0, 0)
    if staging.is_repeat(has, op.number, len(op.units)):
        return False
    size, units = db.row("staged_size", {"job": op.job})
    added = sum(map(staging.size_of, op.units))
    staging.check_limits(size + added, op.bytes_max, units + len(op.units), op.units_max)
    number = db.value("grow_stage", {**who, "used": now, "units": len(op.units), "bytes": added})
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
    db.later("add_staged", columns)
    return True


def _publish(db: Database, op: Publish, appender: Appender) -> Placed:
    job = {"job": op.job}
    _drop(db, staging.losers(op.job, (Staged(*row) for row in db.rows("stages_of_job", job)), op.winners))
    staging.check_expected(db.rows("staged_expected", job), appender)
    placed = staging.publish(
        staging.units_in_order(db.rows("staged_order", job), lambda ids: _units(db, ids)), appender
    )
    appender.flush()
    _drop(db, [row[0] for row in db.rows("stages_of_job", job)])
    return placed


def _units(db: Database, ids: list[int]) -> dict[int, Unit]:
    return {row[0]: Unit(*row[1:]) for row in db.rows("staged_units", {"ids": Numbers(ids)})}


def _drop(db: Database, ids: Iterable[int]) -> int:
    numbers = Numbers(ids)
    if not numbers:
        return 0
    db.later("delete_staged", {"ids": numbers})
    return db.run("delete_stages", {"ids": numbers})
