"""The output of iterators on SQLite. See `penstock.store.tables.logs` for the rest."""

from collections.abc import Iterator
from functools import partial

from penstock.store.contract import ReadLimits, WriteOutput
from penstock.store.sqlite import guarded
from penstock.store.sqlite.database import Database
from penstock.store.tables import logs


class Logs(logs.Logs[Database]):
    """The reading half of logs and iterators on SQLite."""

    def _outputs(self, iterator: int, ordinal: int, _limits: ReadLimits) -> Iterator[tuple[int, int, bytes]]:
        return self.db.each("outputs_from", {"id": iterator, "ordinal": ordinal})


def write_output(db: Database, op: WriteOutput) -> int:
    """Add to an iterator's output if it is where its builder thinks."""
    return logs.write_output(db, op, partial(forget_state, db))


def forget_state(db: Database, iterator: int) -> None:
    """Take the accumulator out of the last row of an iterator's output."""
    last = db.row("last_output", {"id": iterator})
    if last is not None and last[2] is not None:
        guarded.put_state_away(db, *last)
