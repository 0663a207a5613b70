"""What jobs have staged, on SQLite."""

from collections.abc import Iterable

from penstock.store import staging
from penstock.store.operations import ExpireStages, Publish, Stage, StageOperation, Unstage
from penstock.store.sqlite.appender import Appender
from penstock.store.sqlite.database import Database
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
    rows = [
        (number, at, unit.context, unit.stream, unit.expected, staging.low_of(unit), unit.keys, unit.data)
        for at, unit in enumerate(op.units, op.number)
    ]
    db.run_many("add_staged", rows)
    return True


def _publish(db: Database, op: Publish, appender: Appender) -> Placed:
    appender.flush()
    job = {"job": op.job}
    _drop(db, staging.losers(op.job, (Staged(*row) for row in db.rows("stages_of_job", job)), op.winners))
    staging.check_expected(db.rows("staged_expected", job), appender)
    placed = staging.publish(
        staging.units_in_order(db.rows("staged_order", job), lambda ids: {id: _unit(db, id) for id in ids}), appender
    )
    appender.flush()
    _drop(db, [row[0] for row in db.rows("stages_of_job", job)])
    return placed


def _unit(db: Database, number: int) -> Unit:
    return Unit(*db.row("staged_unit", {"id": number}))


def _drop(db: Database, ids: Iterable[int]) -> int:
    dropped = 0
    for number in ids:
        db.run("delete_staged", {"id": number})
        dropped += db.run("delete_stage", {"id": number})
    return dropped
