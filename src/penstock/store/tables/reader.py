"""A store that is open for reading: what both backends share, and the whole state as backups and copies take it."""

from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import StorageFailure
from penstock.store.contract import STATE_TABLES, Erasure, Outcome, StoreState, Transaction, Unsealed
from penstock.store.erasure_filter import unpack_ranges
from penstock.store.seals import BLOCK_BITS, checked, group
from penstock.store.tables.consumers import Consumers
from penstock.store.tables.history import History
from penstock.store.tables.logs import Logs
from penstock.store.tables.queries import Db, Queries, retried
from penstock.store.tables.verification import Verification

RANGES: Final = STATE_TABLES["erasures"].index("ranges")
INDEXED: Final = STATE_TABLES["iterators"].index("indexed")

Row = tuple[Any, ...]


class Reader(History[Db], Consumers[Db], Logs[Db], Verification[Db]):
    """A store that is open for reading, next to the processes that write it."""

    @retried
    def state(self) -> StoreState:
        with self.db.snapshot():
            tables = {name: state_table(self.db, name) for name in STATE_TABLES}
            return StoreState(self.identity(), self.head(), self.sealed(), tables)

    def open_erasures(self) -> int:
        return int(self.db.value("open_erasures"))

    def erasures(self, after: int, limit: int) -> list[Erasure]:
        rows = self.db.rows("erasures", {"after": after, "limit": limit})
        return [Erasure(*(*row[:4], unpack_ranges(row[4]), *row[5:])) for row in rows]

    def sealed(self) -> int:
        return int(self.db.value("sealed"))

    @retried
    def unsealed(self) -> Unsealed | None:
        with self.db.snapshot():
            # In a damaged store a record may be missing, or begin before the mark; then sealing starts after it.
            first, head, *ledger = self.db.row("unsealed_start")
            if first is None or first >> BLOCK_BITS >= (head + 1) >> BLOCK_BITS:
                return None
            end = ((first >> BLOCK_BITS) + 1 << BLOCK_BITS) - 1
            rows = self.db.rows("unsealed_rows", {"low": first, "high": end})
            positions, following = group(rows)
            state = ledger[0], int(ledger[1])
            if not positions:
                return Unsealed([], self._after(rows[-1][0]), state)
            found = self.db.rows("unsealed_records", {"low": positions[0], "high": positions[-1]})
            records, damaged = checked(found)
            if damaged is not None:
                return Unsealed(records, self._after(found[len(records)][0]), state)
            return Unsealed(records, min(following, self._after(rows[-1][0])), state)

    def _after(self, position: int) -> int:
        """Where the next record begins; a damaged record's own count would be wrong."""
        following: int | None = self.db.value("next_record_start", {"position": position})
        return following or self.head() + 1

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        raise StorageFailure(f"the store was opened for reading only; {len(transactions)} transactions refused")

    def recover(self) -> None:
        """A reader has nothing to recover."""


def state_table(db: Queries, name: str) -> list[Row]:
    """The rows of one table, with its columns as in STATE_TABLES."""
    rows = db.rows(f"state_{name}")
    if name == "erasures":
        return [(*row[:RANGES], unpack_ranges(row[RANGES]), *row[RANGES + 1 :]) for row in rows]
    if name == "iterators":
        return [(*row[:INDEXED], int(row[INDEXED]), *row[INDEXED + 1 :]) for row in rows]
    return rows
