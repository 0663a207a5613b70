"""The contract of every store, and what is the same in all of them. One test suite runs on every backend.

A store object belongs to one thread. All changes go through `write`, which takes a batch of transactions. Each
transaction is all or nothing and succeeds or fails alone; the batch is one commit of the database with one fsync. A
transaction that fails (a conflict, a lost allocation) gets its error and does not affect the others. If the database
itself fails, `write` raises, and after `recover` the store holds either the whole batch or nothing of it.

Operations carry positions from an earlier read. The store compares them with the present state inside the transaction,
so several writers can share one store.
"""

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import NotDurable, StorageFailure, StoreError
from penstock.model import Allocation, DeadLetter, EventFilter, QueueInfo, StoreStats, SubscriptionInfo, View
from penstock.model.times import TICKS_PER_MS
from penstock.store import contract
from penstock.store.contract import STATE_TABLES, ReadLimits
from penstock.store.erasure_filter import unpack_ranges
from penstock.store.lag import EventLag, LagLimits, lag_of
from penstock.store.seals import BLOCK_BITS, checked, group
from penstock.store.tables import access
from penstock.store.tables.consumers import ALL_CONTEXTS, subscription_of
from penstock.store.tables.database import Database
from penstock.store.tables.history import HistoryReader, retried
from penstock.store.tables.logs import iterator_of
from penstock.store.tables.verification import verify
from penstock.store.watermarks import Watermark

if TYPE_CHECKING:
    from penstock.store.postgres import PostgresListener

log = logging.getLogger(__name__)

NAMED_MAX: Final = 1000
"""Queues of one name, of different contexts, among which a request that names no context looks for its own."""
RANGES: Final = STATE_TABLES["erasures"].index("ranges")
INDEXED: Final = STATE_TABLES["iterators"].index("indexed")

Row = tuple[Any, ...]
Consumer = TypeVar("Consumer", QueueInfo, SubscriptionInfo)


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
        """The same for a backup or archive that is complete now. It stays complete, whether or not this succeeds."""
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
        return subscription_of(row) if row else None

    def find_subscription(self, subscriber: str, context: str | None, filter: str) -> SubscriptionInfo | None:
        values = {"subscriber": subscriber, "context": context or ALL_CONTEXTS, "filter": filter}
        row = self.db.row("find_subscription", values)
        return subscription_of(row) if row else None

    def subscriptions(self, after: int, limit: int) -> list[SubscriptionInfo]:
        """Subscriptions, not counted yet; see `with_lag`."""
        return [subscription_of(row) for row in self.db.rows("subscriptions", {"after": after, "limit": limit})]

    def find_queues(self, name: str, context: str | None = None) -> list[contract.QueueState]:
        """Queues of a name, of one context or of all."""
        if context is None:
            return [
                contract.QueueState(*row) for row in self.db.rows("queues_named", {"name": name, "limit": NAMED_MAX})
            ]
        return [contract.QueueState(*row) for row in self.db.rows("queue", {"name": name, "context": context})]

    def queues(self, after: int, limit: int) -> list[QueueInfo]:
        """Queues whose `behind` only has the events to be delivered again; see `with_lag`."""
        values = {"after": after, "limit": limit, "now": self.now()}
        found: list[QueueInfo] = []
        for *counts, ordered, selection, retry, paused, delayed in self.db.rows("queues", values):
            rules = {"ordered": ordered, "selection": selection, "retry": retry, "paused": bool(paused)}
            found.append(replace(QueueInfo(*counts), delayed=delayed, **rules))
        return found

    @retried
    def lag(self, wanted: EventFilter, position: int, limits: LagLimits = LagLimits()) -> EventLag:  # noqa: B008 -- frozen
        """How far a reader at a position is behind, counted up to the limits."""
        with self.db.snapshot():
            return lag_of(self, wanted, position, limits)

    def with_lag(
        self,
        one: Consumer,
        limits: LagLimits = LagLimits(),  # noqa: B008 -- frozen
        view: View | None = None,
    ) -> Consumer:
        """A queue or a subscription of a list, with how far it is behind in what a principal may see."""
        wanted = one.wanted.seen_by(view)
        lag, now = self.lag(wanted, one.position, limits), self.now()
        times = [] if lag.oldest is None else [lag.oldest]
        if one.behind:
            # A queue delivers something again, which lies before its position.
            for first, last in self.db.rows("oldest_waiting", {"queue_id": one.id, "now": now}):
                events = self.read_all(first, wanted, ReadLimits(events_max=1), last).events
                times += [event.recorded for event in events]
        behind_ms = max(0, now - min(times, default=now)) // TICKS_PER_MS
        return replace(one, behind=one.behind + lag.events, behind_is_exact=lag.is_exact, behind_ms=behind_ms)

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

    def held(self, queue: int, subscriber: str) -> list[contract.Held]:
        """The allocations that a subscriber holds, by marker."""
        return self._held("held", queue, subscriber=subscriber, now=self.now())

    def available(self, queue: int, limit: int) -> list[contract.Held]:
        """Allocations without a holder, the longest available first; some may have failed too often."""
        return self._held("available", queue, now=self.now(), limit=limit)

    def exhausted(self, queue: int, limit: int) -> list[contract.Held]:
        """Allocations that expired too often and are not set aside yet, event by event."""
        return self._held("exhausted", queue, now=self.now(), limit=limit)

    def runs(self, queue: int, runs: Sequence[contract.Run]) -> list[contract.Held]:
        """The allocations that are exactly these."""
        return self._held("runs", queue, runs=json.dumps(runs))

    def _held(self, query: str, queue: int, **values: Any) -> list[contract.Held]:
        return [contract.Held(*row) for row in self.db.rows(query, {"queue_id": queue, **values})]

    def keys_in_use(self, queue: int, keys: Sequence[str]) -> set[str]:
        """Those of some keys that a queue has allocations of."""
        return {key for (key,) in self.db.rows("keys_in_use", {"queue_id": queue, "keys": json.dumps(keys)})}

    def of_keys(self, queue: int, keys: Sequence[str]) -> list[contract.Held]:
        """All allocations of some keys."""
        return self._held("of_keys", queue, keys=json.dumps(keys))

    def outstanding(self, queue: int) -> int:
        """How many allocations a queue has."""
        state = self.db.row("queue_state", {"id": queue})
        return int(state[3]) if state else 0

    def letters(self, queue: int, after: int, limit: int) -> list[DeadLetter]:
        """Dead letters of a queue, by position, after one."""
        values = {"queue_id": queue, "after": after, "limit": limit}
        return [DeadLetter(*row) for row in self.db.rows("letters", values)]

    def count_letters(self, queue: int) -> int:
        return int(self.db.value("count_letters", {"queue_id": queue}))

    def letters_at(self, queue: int, positions: Sequence[int]) -> list[DeadLetter]:
        values = {"queue_id": queue, "positions": json.dumps(positions)}
        return [DeadLetter(*row) for row in self.db.rows("letters_at", values)]

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
