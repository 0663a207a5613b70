"""The output of iterators on PostgreSQL. See `penstock.store.tables.logs` for the rest."""

from collections.abc import Iterator
from typing import Final

from penstock.store.contract import ReadLimits, WriteOutput
from penstock.store.postgres import arrays
from penstock.store.postgres.database import Database, rereading
from penstock.store.tables import logs

OUTPUTS_PER_QUERY: Final = 256


class Logs(logs.Logs[Database]):
    """The reading half of logs and iterators on PostgreSQL."""

    @rereading
    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        return super().read_output(iterator, ordinal, limits)

    def _outputs(self, iterator: int, ordinal: int, limits: ReadLimits, /) -> Iterator[tuple[int, int, bytes]]:
        start: int = self.db.value("output_start", {"id": iterator, "ordinal": ordinal}) or 0
        limit = max(1, min(limits.events_max + 1, OUTPUTS_PER_QUERY))
        values = {"id": iterator, "ordinal": start, "limit": limit, "bytes_max": max(limits.bytes_max, 1)}
        while rows := self.db.rows("outputs_from", values):
            yield from rows
            values["ordinal"] = rows[-1][0] + 1


def write_output(db: Database, op: WriteOutput) -> int:
    """Add to an iterator's output if it is where its builder thinks."""
    arrays.check((op.iterator, op.source, op.next_source))
    return logs.write_output(db, op, lambda iterator: db.later("forget_state", {"id": iterator}))
