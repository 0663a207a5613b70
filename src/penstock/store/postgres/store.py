"""The shared store: a PostgreSQL database that several servers write at once.

One `write` is one transaction of the database. Its first statement takes an advisory lock, and it reads nothing before
it has the lock. So positions become visible in the order in which they are given, and a batch compares with everything
that others have committed. Times are those of the database's clock.

When the connection is lost during a commit, the store looks up whether the commit happened before it answers. While a
setting is off that could lose commits, the store refuses every transaction that is not a repeat.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

from penstock.errors import StorageFailure
from penstock.model import check_name, ticks_of_unix_ns
from penstock.store.contract import BatchTimes, Commit, Outcome, RequireLog, Transaction
from penstock.store.postgres import connection, schema
from penstock.store.postgres.arrays import Texts
from penstock.store.postgres.batch import PostgresAppender, PostgresBatch, Redo, Start, settle
from penstock.store.postgres.database import WRITE, PostgresDatabase
from penstock.store.postgres.notifications import PostgresListener, payload
from penstock.store.postgres.reader import Clock, PostgresReader
from penstock.store.postgres.upkeep import Vacuum
from penstock.store.tables.appends import StreamKey
from penstock.store.tables.logs import KnownLogs

log = logging.getLogger(__name__)

STREAM_CACHE_MAX: Final = 100_000


class PostgresStore(PostgresReader):
    """A store that is open for writing, next to others that write it."""

    def __init__(self, url: str, *, clock: Clock | None = None, stream_cache_max: int = STREAM_CACHE_MAX) -> None:
        self.id = uuid4()
        """Identifies this store object to others that write the same store."""
        self._stream_cache_max = stream_cache_max
        with ExitStack() as undo:
            super().__init__(url, clock=clock)
            undo.callback(super().close)
            self._vacuum = Vacuum(self.target)
            self._load()
            undo.pop_all()

    def _open(self) -> PostgresDatabase:
        database = PostgresDatabase(self.target, write=True)
        try:
            now = int(database.value("now")) if self._clock is None else ticks_of_unix_ns(self._clock())
            schema.migrate(database, now)
            schema.refuse_unfinished(database)
        except BaseException:
            database.close()
            raise
        return database

    def _load(self) -> None:
        self._appender = PostgresAppender(self.db, self, self.id, self._stream_cache_max)
        self._known_logs = KnownLogs(self.db, self._stream_cache_max)
        self._is_alone = False
        self._recorded = 0
        now = self.now()
        self.batch_times = BatchTimes(now, max(now, self.db.value("recorded")))

    def listener(self) -> PostgresListener:
        return PostgresListener(self.target, self.id)

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        if not transactions:
            return []
        try:
            return self._write(transactions, careful=False)
        except Redo:
            return self._write(transactions, careful=True)

    def _write(self, transactions: Sequence[Transaction], *, careful: bool) -> list[Outcome]:
        try:
            start, batch = self._begin(transactions)
            batch.careful = careful
            pending = [batch.outcome(transaction) for transaction in transactions]
            if batch.refusal is not None:
                outcomes = list(map(settle, transactions, pending))
                self._forget()
                self.db.abandon()
                return outcomes
            batch.send_marks()
            self._appender.finish(self.target.schema, self._notice(batch))
            outcomes = list(map(settle, transactions, pending))
            self._end(start)
        except BaseException:
            self._forget()
            self.db.abandon()
            raise
        # The batch is on disk: an error from here on must not look as if the commit had failed.
        try:
            self._appender.settle()
            if batch.has_erased and self.db.rows("cleared_erasures"):
                self._vacuum.start()
        except Exception:
            log.exception("after a commit that is on disk")
            self._forget()
        return outcomes

    def _forget(self) -> None:
        self._appender.forget()
        self._known_logs.forget()

    def _begin(self, transactions: Sequence[Transaction]) -> tuple[Start, PostgresBatch]:
        """Take the lock and load what the batch needs, in one round trip if no other store object writes."""
        ops = [op for transaction in transactions for op in transaction.operations]
        streams = list(dict.fromkeys((op.context, op.stream) for op in ops if isinstance(op, Commit)))
        logs = {op.name for op in ops if isinstance(op, RequireLog) and check_name(op.name) is None}
        marks = [transaction.mark for transaction in transactions if transaction.mark is not None]
        marks += [key for transaction in transactions for key in transaction.keys]
        names = {mark.key for mark in marks if check_name(mark.key) is None}
        if not self._is_alone:
            self._forget()
        self.db.begin(WRITE)
        self.db.ask("lock", self.target.lock)
        started = self.db.ask("batch_start")
        answers = self._ask(streams, logs)
        producers = self.db.ask("batch_producers", {"names": Texts(names)})
        self.db.sync()
        start = Start(*started()[0])
        now = start.now if self._clock is None else ticks_of_unix_ns(self._clock())
        # Recorded times never go backwards, even if the clock does.
        self._recorded = max(self._recorded, start.recorded, now)
        self.batch_times = BatchTimes(now, self._recorded)
        self._appender.start(start, self._recorded)
        trusted, self._is_alone = self._is_alone, start.writer == self.id
        if trusted and not self._is_alone:
            # Another store object has written, so ask again for what this one did not ask because it knew it.
            self._forget()
            answers()
            answers = self._ask(streams, logs)
        answers()
        batch = PostgresBatch(self.db, self._appender, self._known_logs, self.batch_times)
        batch.emptied = self._vacuum.take()
        batch.refusal = connection.refusal_of(start.switched_off)
        batch.load_marks(producers(), names)
        return start, batch

    def _ask(self, needed: Sequence[StreamKey], needed_logs: set[str]) -> Callable[[], None]:
        """Ask for the streams, contexts and logs that are not in memory; the answer is a function that loads them."""
        streams, contexts = self._appender.unknown(needed)
        logs = self._known_logs.unknown(needed_logs)
        names = {"contexts": Texts(c for c, _ in streams), "streams": Texts(s for _, s in streams)}
        found: list[Callable[[], list[Any]]] = [
            self.db.ask("batch_streams", names) if streams else list,
            self.db.ask("batch_contexts", {"names": Texts(contexts)}) if contexts else list,
            self.db.ask("batch_logs", {"names": Texts(logs)}) if logs else list,
        ]

        def load() -> None:
            self._appender.load(streams, found[0](), found[1]())
            self._known_logs.add(name for (name,) in found[2]())

        return load

    def _notice(self, batch: PostgresBatch) -> str:
        streams = self._appender.changed_streams
        changes = {"logs": batch.has_changed_logs, "access": batch.has_changed_access}
        if not (streams or any(changes.values()) or batch.changed_queues):
            return ""
        return payload(self.id, self._appender.head, streams, changes, batch.changed_queues)

    def _end(self, start: Start) -> None:
        started = time.perf_counter()
        try:
            self.db.commit()
        except StorageFailure as error:
            # With a live connection, the database itself has said that it did not commit.
            if not self.db.is_lost:
                raise
            if not self.db.was_committed(start.transaction, start.process):
                raise StorageFailure(f"{error.reason}; nothing was written") from error
        self.commit_s = time.perf_counter() - started

    def recover(self) -> None:
        self.db.abandon()
        self.db.reconnect()
        # A server that hangs while it holds the lock keeps all others from writing: end its session.
        self.db.rows("end_stalled", {**self.target.lock, "stalled_ms": connection.IDLE_MS_MAX})
        self._load()
        if (refusal := self.db.refusal()) is not None:
            raise refusal
        # Only a new commit proves that the database works again.
        with self.db.turn():
            self.db.ask("lock", self.target.lock)
            self.db.later("note_recovery")

    def close(self) -> None:
        self._vacuum.close()
        super().close()
