"""A batch of transactions inside one transaction of the database.

At its beginning a batch asks for everything that it needs to know of streams, contexts, logs and producers, in one
round trip. The store remembers streams, contexts and logs as long as no other store object writes; the row of `state`
tells that.

The batch sends most operations without waiting, and reads their results together before the commit. A transaction of
several operations must not fail after something of it was sent. If one does, the whole batch is rolled back (`Redo`)
and done again carefully: with a savepoint for each transaction, and waiting for every result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.errors import PenstockError, StoreError
from penstock.model import ProducerMark, check_context, check_stream
from penstock.model.times import TICKS_PER_MS
from penstock.store import contract
from penstock.store.contract import BatchTimes, Commit, Operation, Result
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import PostgresDatabase
from penstock.store.postgres.reader import PostgresReader
from penstock.store.postgres.upkeep import PostgresErasureStep, PostgresStages
from penstock.store.record import Record
from penstock.store.tables import consumers
from penstock.store.tables.appends import Appender, ContextState, StreamKey, StreamState
from penstock.store.tables.consumers import Deferred, allocated, reoffered
from penstock.store.tables.logs import KnownLogs
from penstock.store.tables.transactions import Batch, Pending, waited

_IN_MEMORY: Final = (Commit, contract.RequireLog)
"""Operations that send nothing, so the appender alone can roll them back."""

_CHANGES_LOGS: Final = (
    contract.AddLog,
    contract.DeleteLog,
    contract.AddIterator,
    contract.DeleteIterator,
    contract.HideStream,
    contract.HideEvents,
)
_CHANGES_QUEUES: Final = (
    contract.Release,
    contract.MoveQueue,
    contract.SetDeadRule,
    contract.Requeue,
    contract.Reoffer,
    contract.Settle,
    contract.Revive,
    contract.ChangeQueue,
    contract.DeleteQueue,
)
"""After these, a queue may have something to hand out again."""
_CHANGES_ACCESS: Final = (
    contract.StorePrincipal,
    contract.RemovePrincipal,
    contract.StoreCredential,
    contract.RemoveCredential,
    contract.ExpireCredentials,
)


class Start(NamedTuple):
    """The row of `state` when a batch begins, its transaction and process, the database's clock, and bad settings."""

    head: int
    recorded: int
    writer: UUID | None
    stream_id: int
    context_id: int
    transaction: str
    process: int
    now: int
    switched_off: str
    """The names of settings that must be on and are not, separated by blanks."""


class PostgresAppender(Appender):
    def __init__(self, db: PostgresDatabase, history: PostgresReader, writer: UUID, cache_max: int) -> None:
        super().__init__(db, cache_max)
        self._history = history
        self._writer = writer

    def forget(self) -> None:
        """Ask the database again, because another store object has written or something failed."""
        self._streams = {}
        self._contexts = {}

    def unknown(self, keys: Iterable[StreamKey]) -> tuple[list[StreamKey], list[str]]:
        """The streams and contexts among these that are not in memory, without bad names."""
        names = {context: check_context(context) is None for context, _ in keys}
        streams = [
            (context, stream)
            for context, stream in keys
            if (context, stream) not in self._streams and names[context] and check_stream(stream) is None
        ]
        return streams, [name for name, is_name in names.items() if is_name and name not in self._contexts]

    def start(self, start: Start, recorded: int) -> None:
        self.begin(recorded)
        self._start = start.head
        self.head, self._stream_id, self._context_id = start.head, start.stream_id, start.context_id
        self.is_touched = False
        """Whether something has changed that other store objects may remember."""
        self._absent: set[StreamKey] = set()

    def load(self, asked: Iterable[StreamKey], streams: list[Any], contexts: list[Any]) -> None:
        found = {(context, name): StreamState(number, head, name.encode()) for context, name, number, head in streams}
        self._streams |= found
        self._absent |= set(asked) - found.keys()
        self._contexts |= {name: ContextState(*row) for name, *row in contexts}

    def look_up(self, keys: Iterable[StreamKey]) -> None:
        unknown, _ = self.unknown(keys)
        asked = [key for key in unknown if key not in self._staged_streams and key not in self._absent]
        if asked:
            contexts, streams = zip(*asked, strict=True)
            values = {"contexts": Texts(contexts), "streams": Texts(streams)}
            self.load(asked, self._db.rows("batch_streams", values), [])

    @property
    def changed_streams(self) -> list[StreamKey]:
        return list(self._staged_streams)

    def flush(self) -> None:
        if not self._rows.records:
            return
        if self._rows.streams:
            ids, contexts, names = zip(*self._rows.streams, strict=True)
            values = {"ids": Numbers(ids), "contexts": Numbers(contexts), "names": Texts(names)}
            self._db.later("add_streams", values)
        positions, counts, record_contexts, record_streams, data = zip(*self._rows.records, strict=True)
        changed = sorted(self._changed)
        fields = ("ids", "events", "commits", "streams", "bytes", "tops", "blocks")
        columns = zip(*(self._staged_contexts[name] for name in changed), strict=True)
        numbers = {
            "positions": positions,
            "counts": counts,
            "record_contexts": record_contexts,
            "record_streams": record_streams,
            "lasts": [last for _, last, _ in self._rows.commits],
            **dict(zip(fields, columns, strict=True)),
        }
        arrays = {name: Numbers(column) for name, column in numbers.items()}
        self._db.later("add_commits", {**arrays, "data": Blobs(data), "names": Texts(changed)})
        if self._rows.blocks:
            contexts, blocks, tops = zip(*self._rows.blocks, strict=True)
            values = {"contexts": Numbers(contexts), "blocks": Numbers(blocks), "tops": Numbers(tops)}
            self._db.later("add_blocks", values)
        if self._log_bytes:
            sizes = {"names": Texts(self._log_bytes), "sizes": Numbers(self._log_bytes.values())}
            self._db.later("grow_logs", sizes)
        self._clear_rows()

    def finish(self, channel: str, notice: str) -> None:
        """Send the rest of the batch, and the notice for other servers."""
        self.flush()
        told = {"channel": channel, "payload": notice}
        if self.is_touched or self.head != self._start:
            numbers = {"head": self.head, "stream_id": self._stream_id, "context_id": self._context_id}
            self._db.later("batch_end", {**numbers, "recorded": self._recorded, "writer": self._writer, **told})
        elif notice:
            self._db.later("notify", told)

    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        self.look_up([(context, stream)])
        return self._streams.get((context, stream))

    def _stored_ids(self, commit: Commit, stream: StreamState, /) -> tuple[bytes, bytes, int]:
        staged = [(Record(row[4], row[0]), row[0]) for row in self._rows.records if row[3] == stream.id]
        last = commit.expected + commit.columns.length - 1
        return self._history.stored_ids(commit.context, commit.stream, commit.expected, last, staged)


class Redo(Exception):
    """A batch has to be rolled back and done again, carefully."""


def settle(transaction: contract.Transaction, pending: Pending) -> contract.Outcome:
    """Wait for the outcome of a transaction. Raises Redo if a failure concerns more than the failed operation."""
    if isinstance(pending, PenstockError):
        return pending
    try:
        return [waited(result) for result in pending]
    except StoreError:
        raise
    except PenstockError as error:
        if len(transaction.operations) > 1 or transaction.mark is not None or transaction.keys:
            raise Redo from error
        return error


class PostgresBatch(Batch):
    """One batch on PostgreSQL. It loads the marks of producers at its beginning, and saves them at its end."""

    db: PostgresDatabase
    appender: PostgresAppender

    def __init__(
        self, db: PostgresDatabase, appender: PostgresAppender, known_logs: KnownLogs, times: BatchTimes
    ) -> None:
        super().__init__(db, appender, known_logs, PostgresStages(db, appender))
        self.now, self.recorded = times
        self.careful = False
        self._marks: dict[str, tuple[int, bytes] | None] = {}
        """The number and results of each known producer; None if it has none."""
        self._used_marks: dict[str, tuple[int, bytes]] = {}
        self.has_changed_logs = self.has_changed_access = False
        self.changed_queues: set[int] = set()

    def is_atomic(self, op: Operation) -> bool:
        return isinstance(op, _IN_MEMORY)

    def apply(self, op: Operation) -> Result | Deferred:
        result = super().apply(op)
        if isinstance(op, _CHANGES_LOGS):
            self.has_changed_logs = True
            self.appender.is_touched |= isinstance(op, contract.AddLog | contract.DeleteLog) and bool(result)
        elif isinstance(op, _CHANGES_QUEUES):
            self.changed_queues.add(op.queue)
        elif isinstance(op, _CHANGES_ACCESS):
            self.has_changed_access = True
        return result

    def together(self, ops: Sequence[Operation]) -> list[Result | Deferred]:
        if self.careful and not all(isinstance(op, _IN_MEMORY) for op in ops):
            if any(isinstance(op, contract.ExpireProducers) for op in ops):
                self.send_marks()  # Before the savepoint, or a failure would take the marks of others back.
            return super().together(ops)
        # Without waiting. As long as nothing was sent, the appender can roll back alone.
        roll_back = self.appender.savepoint()
        self.db.has_sent = False
        try:
            return [self.apply_new(op, ops) for op in ops]
        except StoreError:
            raise
        except PenstockError as error:
            if self.db.has_sent:
                raise Redo from error
            roll_back()
            self.known_logs.forget()
            raise
        finally:
            self.appender.release()

    # -- marks

    def load_marks(self, rows: list[Any], names: set[str]) -> None:
        self._marks |= dict.fromkeys(names)
        self._marks |= {name: (number, result) for name, number, result in rows}

    def find_producer(self, name: str) -> tuple[int, bytes] | None:
        if name not in self._marks:
            self.load_marks(self.db.rows("batch_producers", {"names": Texts({name})}), {name})
        return self._marks[name]

    def save_mark(self, mark: ProducerMark, results: bytes) -> None:
        # After the whole transaction, so there is nothing to roll back.
        self._marks[mark.key] = self._used_marks[mark.key] = (mark.number, results)

    def send_marks(self) -> None:
        if self._used_marks:
            names = sorted(self._used_marks)
            numbers, results = zip(*(self._used_marks[name] for name in names), strict=True)
            values = {"names": Texts(names), "numbers": Numbers(numbers), "results": Blobs(results)}
            self.db.later("save_producers", {**values, "used": self.recorded})
            self._used_marks.clear()

    def expire_producers(self, op: contract.ExpireProducers) -> Deferred:
        self.send_marks()
        self._marks.clear()
        return super().expire_producers(op)

    # -- operations

    def allocate(self, op: contract.Allocate) -> Deferred:
        # One statement compares the same things as `allocated`, and changes something only where that says so.
        expires = self.now + op.ttl_ms * TICKS_PER_MS
        queue = {"queue_id": op.queue, "subscriber": op.subscriber, "now": self.now, "expires": expires}
        values = {**asdict(op.proposal), **queue, "allocations_max": consumers.QUEUE_ALLOCATIONS_MAX}
        state = self.db.send("allocate", values)
        return Deferred(lambda: allocated(op, state(), self.now, expires))

    def reoffer(self, op: contract.Reoffer) -> Deferred:
        columns = {name: Numbers(run[at] for run in op.runs) for at, name in enumerate(("firsts", "lasts", "counts"))}
        values = {"queue_id": op.queue, "now": self.now, "allocations_max": consumers.QUEUE_ALLOCATIONS_MAX}
        state = self.db.send("reoffer", {**values, **columns})
        return Deferred(lambda: reoffered(op, state()))

    def erasure_step(self, records_max: int) -> PostgresErasureStep:
        return PostgresErasureStep(self.db, records_max)

    def replace_records(self, op: contract.Seal, row: dict[str, Any]) -> None:
        self.db.later("delete_records", {"first": op.first, "last": op.last})
        self.db.later("add_record", row)
