"""The contract of every store, and what is the same in all of them. One test suite runs on every backend.

A store object belongs to one thread. All changes go through `write`, which takes a batch of transactions. Each
transaction is all or nothing and succeeds or fails alone; the batch is one commit of the database with one fsync. A
transaction that fails (a conflict, a lost allocation) gets its error and does not affect the others. If the database
itself fails, `write` raises, and after `recover` the store holds either the whole batch or nothing of it.

Operations carry positions from an earlier read. The store compares them with the present state inside the transaction,
so several writers can share one store.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import NotDurable, StorageFailure, StoreError
from penstock.model import Allocation, EventFilter, QueueInfo, StoreStats, SubscriptionInfo
from penstock.store import contract
from penstock.store.contract import STATE_TABLES, ReadLimits
from penstock.store.erasure_filter import unpack_ranges
from penstock.store.seals import BLOCK_BITS, checked, group
from penstock.store.tables import access
from penstock.store.tables.database import Database
from penstock.store.tables.history import HistoryReader, retried
from penstock.store.tables.logs import iterator_of
from penstock.store.tables.verification import verify
from penstock.store.watermarks import Watermark

if TYPE_CHECKING:
    from penstock.store.postgres import PostgresListener

log = logging.getLogger(__name__)

FIRST_EVENT: Final = ReadLimits(events_max=1, scan_ms_max=20)
"""How far a listing searches for the next event of a queue."""
NAMED_MAX: Final = 1000
"""Queues of one name, of different contexts, among which a request that names no context looks for its own."""
RANGES: Final = STATE_TABLES["erasures"].index("ranges")
INDEXED: Final = STATE_TABLES["iterators"].index("indexed")

Row = tuple[Any, ...]


class Store(HistoryReader):
    """A history and its state. As it is here, it is open for reading, next to the processes that write it."""

    batch_times: contract.BatchTimes
    """Times of the last `write`; before the first one, the clock at opening, and the last recorded time."""
    commit_s: float = 0.0
    """How long the database took for the COMMIT of the last `write`, fsync included."""

    # -- watermarks

    @abstractmethod
    def note_watermark(self, mark: Watermark) -> None:
        """Leave a note for the server of this store. Raises OSError or StoreError if that is not allowed."""

    def leave_watermark(self, kind: str, identity: contract.StoreIdentity, position: int) -> None:
        """The same for what is complete now. What was backed up or archived is there, whether or not this succeeds."""
        try:
            self.note_watermark(Watermark(kind, *identity, position, time.time_ns() // 1_000_000))
        except (OSError, StoreError) as error:
            log.warning("the server of this store is not told of this %s: %s", kind, error)

    @abstractmethod
    def watermarks(self) -> list[Watermark]:
        """The last note of each kind."""

    # -- writing

    def write(self, transactions: Sequence[contract.Transaction]) -> list[contract.Outcome]:
        """Carry out a batch; see the module. Raises StorageFailure or StorageFull if nothing was done.

        While there is a `refusal`, each transaction fails with it, unless the store recognises the transaction.
        """
        raise StorageFailure(f"the store was opened for reading only; {len(transactions)} transactions refused")

    @property
    def is_quick(self) -> bool:
        """Whether the next small `write` is sure to need one fsync of a local file and no more."""
        return False

    def recover(self) -> None:
        """After a failed write: return to the state on disk. Raises until the database works again.

        If it raises NotDurable, `write` still recognises what was written before.
        """

    def refusal(self) -> NotDurable | None:
        """Why the store refuses writes, if it could lose acknowledged commits."""
        return None

    def listener(self) -> "PostgresListener | None":
        """A listener for other servers of this store; None if only one can write it. Any thread may call this."""
        return None

    def close(self) -> None:
        self.db.close()

    # -- the whole of it

    @abstractmethod
    def now(self) -> int:
        """The store's clock in ticks. Recorded times follow it, but never go backwards."""

    def identity(self) -> contract.StoreIdentity:
        return contract.StoreIdentity(*self.db.row("identity"))

    @abstractmethod
    def stats(self) -> StoreStats: ...

    @retried
    def access(self) -> contract.AccessState:
        """All principals and credentials, at one moment."""
        with self.db.snapshot():
            return access.read(self.db)

    def arrival(self) -> contract.Arrival | None:
        """How the store came to its place, until a server has told the audit."""
        return access.arrival(self.db)

    @retried
    def access_version(self) -> int:
        """The version of `access`, which costs less."""
        return access.changed_at(self.db)

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space where the store's files grow; None if unknown. Any thread may call this."""

    @retried
    def state(self) -> contract.StoreState:
        """Everything except the records, at one moment."""
        with self.db.snapshot():
            tables = {name: state_table(self.db, name) for name in STATE_TABLES}
            return contract.StoreState(self.identity(), self.head(), self.sealed(), tables)

    def verify(self, progressed: contract.Progressed) -> Iterator[contract.Finding]:
        """Check everything, record by record; yields the faults."""
        return verify(self.db, self._file_findings(), progressed)

    def _file_findings(self) -> Iterator[contract.Finding]:
        """The database's own check of its files, if it has one."""
        return iter(())

    # -- subscriptions and queues

    def subscription(self, number: int) -> SubscriptionInfo | None:
        row = self.db.row("subscription", {"id": number})
        return SubscriptionInfo(*row) if row else None

    def find_subscription(self, subscriber: str, context: str, filter: str) -> SubscriptionInfo | None:
        row = self.db.row("find_subscription", {"subscriber": subscriber, "context": context, "filter": filter})
        return SubscriptionInfo(*row) if row else None

    def subscriptions(self, after: int, limit: int) -> list[SubscriptionInfo]:
        return [SubscriptionInfo(*row) for row in self.db.rows("subscriptions", {"after": after, "limit": limit})]

    def find_queues(self, name: str, context: str | None = None) -> list[contract.QueueState]:
        """Queues of a name, of one context or of all."""
        if context is None:
            return [
                contract.QueueState(*row) for row in self.db.rows("queues_named", {"name": name, "limit": NAMED_MAX})
            ]
        return [contract.QueueState(*row) for row in self.db.rows("queue", {"name": name, "context": context})]

    def queues(self, after: int, limit: int) -> list[QueueInfo]:
        head = self.head()
        found: list[QueueInfo] = []
        for row in self.db.rows("queues", {"after": after, "limit": limit, "now": self.now()}):
            number, context, name, filter, position, again, *counts = row
            ahead = 0
            if position <= head:
                # The index of blocks skips other contexts' events quickly; at worst the search ends before an event.
                page = self.read_all(position, EventFilter(context, filter), FIRST_EVENT, head)
                ahead = max(0, head + 1 - (page.events[0].position if page.events else page.next))
            found.append(QueueInfo(number, context, name, filter, position, again + ahead, *counts))
        return found

    def allocations(self, queue: int, after: int, limit: int) -> list[Allocation]:
        return self._allocations("allocations", queue, after=after, limit=limit)

    def claim(self, queue: int, subscriber: str, except_first: int | None) -> Allocation | None:
        """The allocation that the queue would hand out again: the subscriber's live one, else the oldest expired one.

        Dead letters do not count, nor does the allocation at `except_first`, which is about to be acknowledged.
        """
        now = self.now()
        found = self._allocations("claim", queue, subscriber=subscriber, except_first=except_first, now=now)
        return found[0] if found else None

    def dead_letters(self, queue: int, after: int, limit: int) -> list[Allocation]:
        """Allocations of a queue that expired too often, by marker, after one."""
        return self._allocations("dead_letters", queue, after=after, limit=limit, now=self.now())

    def shared_allocations(self, queue: int, first: int, last: int, limit: int) -> list[Allocation]:
        """Allocations of a queue, by marker, that share a position with a range."""
        return self._allocations("shared_allocations", queue, first=first, last=last, limit=limit)

    def _allocations(self, query: str, queue: int, **values: Any) -> list[Allocation]:
        return [Allocation(*row) for row in self.db.rows(query, {"queue_id": queue, **values})]

    def next_expiry(self, queue: int, after: int) -> int | None:
        """When the next allocation of a queue expires after a time (ticks), if one does."""
        expires: int | None = self.db.value("next_expiry", {"queue_id": queue, "after": after})
        return expires

    def waiting(self, queue: int) -> tuple[int, int]:
        """How many expired allocations the next consumers of a queue get before anything new, and their events."""
        number, events = self.db.row("waiting", {"queue_id": queue, "now": self.now()})
        return number, events

    # -- logs and iterators

    def log(self, name: str) -> contract.LogInfo | None:
        row = self.db.row("log", {"name": name})
        return contract.LogInfo(*row) if row else None

    def logs(self, after: str, limit: int) -> list[contract.LogInfo]:
        return [contract.LogInfo(*row) for row in self.db.rows("logs", {"after": after, "limit": limit})]

    def iterator(self, name: str) -> contract.IteratorState | None:
        row = self.db.row("iterator", {"name": name})
        return iterator_of(row) if row else None

    def iterators(self, log: str | None, after: str, limit: int) -> list[contract.IteratorState]:
        """Iterators of a log, or of all, by name, after one; without their functions and accumulators."""
        name = "iterators" if log is None else "iterators_of_log"
        return [iterator_of(row) for row in self.db.rows(name, {"log": log, "after": after, "limit": limit})]

    def output_count(self, number: int) -> int | None:
        """How many items the output of an iterator has, by its id; None if it is gone."""
        place = self.db.row("iterator_place", {"id": number})
        return place[1] if place else None

    @retried
    def read_output(self, iterator: int, ordinal: int, limits: ReadLimits) -> list[bytes]:
        items: list[bytes] = []
        size = 0
        with self.db.snapshot():
            for first, count, data in self._outputs(iterator, ordinal, limits):
                ends = list(accumulate(unpack_from(f"<{count}I", data), initial=4 * count))
                for index in range(max(0, ordinal - first), count):
                    item = data[ends[index] : ends[index + 1]]
                    if len(items) >= limits.events_max or (items and size + len(item) > limits.bytes_max):
                        return items
                    items.append(item)
                    size += len(item)
        return items

    @abstractmethod
    def _outputs(self, iterator: int, ordinal: int, limits: ReadLimits) -> Iterator[tuple[int, int, bytes]]:
        """Rows of output (first ordinal, count, items) from an ordinal on, as many as a page may need."""

    # -- erasures and seals

    def open_erasures(self) -> int:
        """How many erasures are not finished; see `Erase`."""
        return int(self.db.value("open_erasures"))

    def erasures(self, after: int, limit: int) -> list[contract.Erasure]:
        rows = self.db.rows("erasures", {"after": after, "limit": limit})
        return [contract.Erasure(*(*row[:4], unpack_ranges(row[4]), *row[5:])) for row in rows]

    def sealed(self) -> int:
        """The mark: all records before this position are sealed."""
        return int(self.db.value("sealed"))

    @retried
    def unsealed(self) -> contract.Unsealed | None:
        """The next records to be sealed, from the mark on; None if none are closed yet."""
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
                return contract.Unsealed([], self._after(rows[-1][0]), state)
            found = self.db.rows("unsealed_records", {"low": positions[0], "high": positions[-1]})
            records = checked(found)
            if len(records) < len(found):
                return contract.Unsealed(records, self._after(found[len(records)][0]), state)
            return contract.Unsealed(records, min(following, self._after(rows[-1][0])), state)

    def _after(self, position: int) -> int:
        """Where the next record begins; a damaged record's own count would be wrong."""
        following: int | None = self.db.value("next_record_start", {"position": position})
        return following or self.head() + 1


def state_table(db: Database, name: str) -> list[Row]:
    """The rows of one table, with its columns as in STATE_TABLES."""
    rows = db.rows(f"state_{name}")
    if name == "erasures":
        return [(*row[:RANGES], unpack_ranges(row[RANGES]), *row[RANGES + 1 :]) for row in rows]
    if name == "iterators":
        return [(*row[:INDEXED], int(row[INDEXED]), *row[INDEXED + 1 :]) for row in rows]
    return rows
