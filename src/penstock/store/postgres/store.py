"""The shared store: a PostgreSQL database that several servers write at once.

One `write` is one transaction of the database. It takes an advisory lock in its first statement, and reads nothing
before it has it: so positions become visible in the order in which they are given, and everything that is compared is
compared with what all others have committed. Times are those of the database's clock.

When the connection is lost during a commit, what became of it is looked up before anything is answered. While a setting
is off without which commits may be lost, every transaction is refused, unless it is a repeat of one that was written.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple
from uuid import uuid4

from penstock.errors import NotDurable, StorageFailure
from penstock.model import StoreStats, check_name, ticks_of_unix_ns
from penstock.store.contract import BatchTimes, Commit, Outcome, RequireLog, StoreIdentity, StoreState, Transaction
from penstock.store.postgres import connecting, schema
from penstock.store.postgres.appender import Appender, Start
from penstock.store.postgres.arrays import Texts
from penstock.store.postgres.batch import Batch, TakeBack
from penstock.store.postgres.connecting import Target
from penstock.store.postgres.consumers import Consumers
from penstock.store.postgres.database import WRITE, Database, fetched, rereading
from penstock.store.postgres.history import History
from penstock.store.postgres.listening import PostgresListener, payload
from penstock.store.postgres.logs import Logs
from penstock.store.postgres.sealing import Sealing
from penstock.store.postgres.vacuum import Vacuum
from penstock.store.tables.appender import StreamKey
from penstock.store.tables.ledger import Ledger
from penstock.store.tables.logs import KnownLogs
from penstock.store.tables.state import Stating
from penstock.store.tables.verifying import Verifying

log = logging.getLogger(__name__)

STREAM_CACHE_MAX: Final = 100_000

Clock = Callable[[], int]
"""Nanoseconds since 1970."""


class PostgresReader(History, Consumers, Logs, Ledger[Database], Sealing, Stating[Database], Verifying[Database]):
    """A store opened for reading, beside whoever writes it. It connects again by itself."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.target = Target.of(url)
        self._clock = clock
        self.db = self._open()

    def _open(self) -> Database:
        database = Database(self.target, write=False)
        try:
            schema.require(database)
        except BaseException:
            database.close()
            raise
        return database

    def now(self) -> int:
        return int(self.db.value("now")) if self._clock is None else ticks_of_unix_ns(self._clock())

    def identity(self) -> StoreIdentity:
        return StoreIdentity(*self.db.row("identity"))

    @rereading
    def stats(self) -> StoreStats:
        with self.db.snapshot():
            counts = self.db.row("stats")
            return StoreStats(*self.identity(), schema.SCHEMA_VERSION, *counts)

    @rereading
    def state(self) -> StoreState:
        return super().state()

    def free_bytes(self) -> int | None:
        return None

    def refusal(self) -> NotDurable | None:
        return self.db.refusal()

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        raise StorageFailure(f"the store was opened for reading only; {len(transactions)} transactions refused")

    def recover(self) -> None:
        """A reader has nothing to recover."""

    def close(self) -> None:
        self.db.close()


class _Needs(NamedTuple):
    """What a batch has to know of the database."""

    streams: list[StreamKey]
    logs: set[str]
    producers: set[str]

    @classmethod
    def of(cls, transactions: Sequence[Transaction]) -> "_Needs":
        ops = [op for transaction in transactions for op in transaction.operations]
        streams = dict.fromkeys((op.context, op.stream) for op in ops if isinstance(op, Commit))
        logs = {op.name for op in ops if isinstance(op, RequireLog) and check_name(op.name) is None}
        marks = (transaction.mark for transaction in transactions if transaction.mark is not None)
        return cls(list(streams), logs, {mark.producer for mark in marks if check_name(mark.producer) is None})


class PostgresStore(PostgresReader):
    """A store opened for writing, beside others who write it."""

    def __init__(self, url: str, *, clock: Clock | None = None, stream_cache_max: int = STREAM_CACHE_MAX) -> None:
        self.id = uuid4()
        """Who this is, to others that write the same store."""
        self._stream_cache_max = stream_cache_max
        with ExitStack() as undo:
            super().__init__(url, clock=clock)
            undo.callback(super().close)
            self._vacuum = Vacuum(self.target)
            self._load()
            undo.pop_all()

    def _open(self) -> Database:
        database = Database(self.target, write=True)
        try:
            now = int(database.value("now")) if self._clock is None else ticks_of_unix_ns(self._clock())
            schema.migrate(database, now)
            schema.refuse_unfinished(database)
        except BaseException:
            database.close()
            raise
        return database

    def _load(self) -> None:
        self._appender = Appender(self.db, self, self.id, self._stream_cache_max)
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
        except TakeBack:
            return self._write(transactions, careful=True)

    def _write(self, transactions: Sequence[Transaction], *, careful: bool) -> list[Outcome]:
        try:
            start, batch = self._begin(transactions, careful=careful)
            judged = [batch.judge(transaction) for transaction in transactions]
            if batch.refusal is not None:
                outcomes = [each.settled() for each in judged]
                self._forget()
                self.db.abandon()
                return outcomes
            batch.finish()
            self._appender.finish(self._told(batch))
            outcomes = [each.settled() for each in judged]
            self._end(start)
        except BaseException:
            self._forget()
            self.db.abandon()
            raise
        self._after_commit(batch)
        return outcomes

    def _forget(self) -> None:
        self._appender.forget()
        self._known_logs.forget()

    # -- the beginning

    def _begin(self, transactions: Sequence[Transaction], *, careful: bool) -> tuple[Start, Batch]:
        """Take the lock, and learn what the batch has to know: all in one round trip if nobody else writes."""
        needs = _Needs.of(transactions)
        if not self._is_alone:
            self._forget()
        self.db.begin(WRITE)
        self.db.ask("lock", self.target.lock)
        started = self.db.ask("batch_start")
        ask = self._ask(needs)
        producers = self.db.ask("batch_producers", {"names": Texts(needs.producers)}) if needs.producers else None
        self.db.sync()
        start = Start(*fetched(started)[0])
        now = start.now if self._clock is None else ticks_of_unix_ns(self._clock())
        # Recorded times never go backwards, whatever the clock does.
        self._recorded = max(self._recorded, start.recorded, now)
        self.batch_times = BatchTimes(now, self._recorded)
        self._appender.begin(start, self._recorded)
        self._learn(needs, ask, is_alone=start.writer == self.id)
        batch = Batch(
            *(self.db, self._appender, self._known_logs, self._vacuum),
            now=now,
            recorded=self._recorded,
            careful=careful,
            refusal=connecting.refusal_of(start.switched_off),
        )
        if producers is not None:
            batch.producers.add(fetched(producers), needs.producers)
        return start, batch

    def _ask(self, needs: _Needs) -> "_Asked":
        streams, contexts = self._appender.unknown(needs.streams)
        return _Asked(self.db, streams, contexts, self._known_logs.unknown(needs.logs))

    def _learn(self, needs: _Needs, asked: "_Asked", *, is_alone: bool) -> None:
        trusted, self._is_alone = self._is_alone, is_alone
        if trusted and not is_alone:
            # Somebody else has written since: what was not asked for because it was known is asked for now.
            self._forget()
            asked.tell(self._appender, self._known_logs)
            asked = self._ask(needs)
        asked.tell(self._appender, self._known_logs)

    # -- the end

    def _told(self, batch: Batch) -> dict[str, str]:
        """What others are told when this is committed, because they may be waiting for it."""
        streams = list(self._appender.touched)
        text = ""
        if streams or batch.has_changed_logs or batch.queues:
            text = payload(self.id, self._appender.head, streams, batch.has_changed_logs, batch.queues)
        return {"channel": self.target.schema, "payload": text}

    def _end(self, start: Start) -> None:
        try:
            self.db.commit()
        except StorageFailure as error:
            # If the connection lives, the database has said itself that it did not commit.
            if not self.db.is_lost:
                raise
            if not self.db.was_committed(start.transaction, start.process):
                raise StorageFailure(f"{error.reason}; nothing was written") from error

    def _after_commit(self, batch: Batch) -> None:
        """What is on disk is on disk: nothing here may make it look as if it had failed."""
        try:
            self._appender.settle()
            if batch.has_erased and self.db.rows("cleared_erasures"):
                self._vacuum.start()
        except Exception:
            log.exception("after a commit that is on disk")
            self._forget()

    def recover(self) -> None:
        self.db.abandon()
        self.db.reconnect()
        # One who stands still in its turn, perhaps for ever, keeps all others from writing.
        self.db.rows("end_stalled", {**self.target.lock, "stalled_ms": connecting.IDLE_MS_MAX})
        self._load()
        if (refusal := self.db.refusal()) is not None:
            raise refusal
        self._prove()

    def _prove(self) -> None:
        """Write something new and have it synced: only then does the database work again."""
        with self.db.turn():
            self.db.ask("lock", self.target.lock)
            self.db.later("note_recovery")

    def close(self) -> None:
        self._vacuum.close()
        super().close()


class _Asked:
    """What was asked for at the beginning of a batch."""

    def __init__(self, db: Database, streams: list[StreamKey], contexts: Iterable[str], logs: set[str]) -> None:
        names = {"contexts": Texts(c for c, _ in streams), "streams": Texts(s for _, s in streams)}
        self._keys = streams
        self._streams = db.ask("batch_streams", names) if streams else None
        self._contexts = db.ask("batch_contexts", {"names": Texts(contexts)}) if contexts else None
        self._logs = db.ask("batch_logs", {"names": Texts(logs)}) if logs else None

    def tell(self, appender: Appender, known_logs: KnownLogs) -> None:
        """Hand on the answers."""
        streams = fetched(self._streams) if self._streams is not None else []
        contexts = fetched(self._contexts) if self._contexts is not None else []
        appender.load(self._keys, streams, contexts)
        if self._logs is not None:
            known_logs.add(name for (name,) in fetched(self._logs))
