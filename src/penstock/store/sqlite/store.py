"""The embedded store: a directory with one SQLite database, owned by one server, read by many processes."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import apsw

from penstock.errors import (
    DamagedRecord,
    PenstockError,
    ReadFailure,
    StorageFailure,
    StoreError,
    VersionConflict,
)
from penstock.model import Appended, ProducerMark, StoreStats, ticks_of_unix_ns
from penstock.store import operations
from penstock.store.contract import (
    BatchTimes,
    Commit,
    Install,
    Outcome,
    Publish,
    RequireLog,
    Result,
    StoreIdentity,
    Transaction,
)
from penstock.store.record import Record
from penstock.store.sqlite import consumers, erasing, schema, sealing, staging
from penstock.store.sqlite.access import settle_access
from penstock.store.sqlite.appender import Appender
from penstock.store.sqlite.checkpointer import Checkpointer
from penstock.store.sqlite.consumers import Consumers
from penstock.store.sqlite.database import FILE_NAME, Database
from penstock.store.sqlite.history import History
from penstock.store.sqlite.lock import make_directory, readers_of, take_lock, write_owner
from penstock.store.sqlite.logs import Logs, write_output
from penstock.store.sqlite.sealing import Sealing
from penstock.store.sqlite.space import GivingBack, free_bytes
from penstock.store.sqlite.verify import Verifying
from penstock.store.tables import iterators, judging, ledger, logs
from penstock.store.tables.ledger import Ledger
from penstock.store.tables.logs import KnownLogs
from penstock.store.tables.state import Stating

log = logging.getLogger(__name__)

STREAM_CACHE_MAX: Final = 100_000
WAL_BYTES_MAX: Final = 32 << 20

Clock = Callable[[], int]
"""Nanoseconds since 1970."""


class SqliteReader(History, Consumers, Logs, Ledger[Database], Sealing, Stating[Database], Verifying):
    """A store opened for reading, beside whoever writes it."""

    def __init__(self, directory: Path | str, *, clock: Clock = time.time_ns, vfs: str | None = None) -> None:
        self.directory = Path(directory)
        self._clock = clock
        self._vfs = vfs
        self.db = self._open()

    def _open(self) -> Database:
        database = Database(self.directory, create=False, write=False, vfs=self._vfs)
        if schema.check(database, self.directory) < schema.SCHEMA_VERSION:
            database.close()
            raise ReadFailure(f"{self.directory} has an older schema; start a server on it once")
        return database

    def now(self) -> int:
        return ticks_of_unix_ns(self._clock())

    def identity(self) -> StoreIdentity:
        return StoreIdentity(self.db.value("meta", {"key": "store_id"}), self.db.value("timeline"))

    def stats(self) -> StoreStats:
        with self.db.snapshot():
            commits, contexts, streams, subscriptions, queues, logs_, iterators, size = self.db.row("stats")
            identity = self.identity()
            return StoreStats(
                identity.id,
                identity.timeline,
                schema.SCHEMA_VERSION,
                self.head(),
                *(commits, contexts, streams, subscriptions, queues, logs_, iterators, size),
                self._bytes_on_disk(),
                self.sealed() - 1,
            )

    def free_bytes(self) -> int | None:
        return free_bytes(self.directory)

    def _bytes_on_disk(self) -> int:
        files = (self.directory / name for name in (FILE_NAME, f"{FILE_NAME}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        raise StorageFailure(f"the store was opened for reading only; {len(transactions)} transactions refused")

    def recover(self) -> None:
        """A reader has nothing to recover."""

    def close(self) -> None:
        self.db.close()


class SqliteStore(SqliteReader):
    """A store opened for writing. Only one process can have it so."""

    def __init__(
        self,
        directory: Path | str,
        *,
        clock: Clock = time.time_ns,
        vfs: str | None = None,
        stream_cache_max: int = STREAM_CACHE_MAX,
        wal_bytes_max: int = WAL_BYTES_MAX,
        group_access: bool | None = None,
    ) -> None:
        make_directory(Path(directory))
        self._stream_cache_max = stream_cache_max
        self._wal_pages = 0
        with ExitStack() as undo:
            self._lock = take_lock(Path(directory))
            undo.callback(os.close, self._lock)
            settle_access(Path(directory), group_access)
            super().__init__(directory, clock=clock, vfs=vfs)
            undo.callback(super().close)
            self._checkpointer = Checkpointer(self._connect(), wal_bytes_max)
            undo.callback(self._checkpointer.close)
            # What was in the WAL may have been written and not synced by one who died: first make it durable.
            self._checkpointer.copy(self.db)
            self._unreadable: set[int] = set()
            self._unsealable: set[int] = set()
            self._load()
            undo.pop_all()

    def _connect(self) -> Database:
        return Database(self.directory, create=True, write=True, vfs=self._vfs)

    def _open(self) -> Database:
        # Look first: connecting for writing already changes a file, and it may be another program's.
        with closing(Database(self.directory, create=True, write=False, vfs=self._vfs)) as untouched:
            schema.check(untouched, self.directory)
        database = self._connect()
        try:
            schema.migrate(database, self.directory, ticks_of_unix_ns(self._clock()))
        except BaseException:
            database.close()
            raise
        database.connection.set_wal_hook(self._wal_grew)
        return database

    def _wal_grew(self, _connection: object, _database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _load(self) -> None:
        self._appender = Appender(self.db, self, self._stream_cache_max)
        self._known_logs = KnownLogs(self.db, self._stream_cache_max)
        self._giving_back = GivingBack()
        self._erased = False
        self._emptied: list[int] = []
        self._recorded = self._last_recorded()
        now = self.now()
        self.batch_times = BatchTimes(now, max(now, self._recorded))

    def _last_recorded(self) -> int:
        """The last recorded time; of a record before it if the last one is damaged, which is no reason not to open."""
        position = self.head()
        while row := self.db.row("record_at", {"position": position}):
            try:
                return Record(row[1], row[0]).runs()[-1].recorded
            except DamagedRecord:
                position = row[0] - 1
        return 0

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        # Recorded times never go backwards, whatever the clock does.
        now = self.now()
        self._recorded = max(self._recorded, now)
        self.batch_times = BatchTimes(now, self._recorded)
        self._appender.begin(self._recorded)
        try:
            self.db.command("BEGIN IMMEDIATE")
            outcomes = [self._outcome(transaction) for transaction in transactions]
            self._appender.flush()
            self.db.command("COMMIT")
        except BaseException:
            self._known_logs.forget()
            self.db.abandon()
            raise
        self._after_commit()
        return outcomes

    def _after_commit(self) -> None:
        """What is on disk is on disk: nothing here may make it look as if it had failed."""
        try:
            self._appender.settle()
            if self._erased:
                self._empty_wal()
            self._checkpointer.committed(self._wal_pages, self.db)
        except Exception:
            log.exception("after a commit that is on disk")
            self._appender = Appender(self.db, self, self._stream_cache_max)

    def _empty_wal(self) -> None:
        """The last of what was erased leaves the store with the WAL's old pages, once nobody reads them."""
        self._erased = False
        cleared = erasing.cleared(self.db)
        self._emptied = cleared if cleared and self._checkpointer.empty(self._wal_pages, self.db) else []

    def _outcome(self, transaction: Transaction) -> Outcome:
        operations, mark, refusal = transaction
        try:
            if mark is not None and (before := self._marked(mark)) is not None:
                return [*judging.first_results(operations, before, mark)]
            if refusal is not None:
                # Not raised: StorageFull would look as if the database itself had failed.
                return self._again(operations) if self._is_behind(operations) else refusal
            # These fail in their middle as several operations do.
            is_small = len(operations) == 1 and not isinstance(operations[0], Publish | Install)
            results = [self._apply(operations[0])] if is_small else self._together(operations)
            if mark is not None:
                consumers.save_mark(self.db, mark, judging.kept(operations, results), self._recorded)
            return results
        except StoreError:
            raise
        except PenstockError as error:
            return error

    def _together(self, operations: Sequence[operations.Operation]) -> list[Result]:
        """Several operations in order, all or nothing. If its commits were made before, all was done before."""
        if self._is_behind(operations):
            return self._again(operations)
        if len(operations) == 2 and isinstance(operations[0], RequireLog):
            # The way of every message: the first writes nothing, so there is nothing to take back if the other fails.
            return [self._apply(op) for op in operations]
        point = self._appender.point()
        self.db.command("SAVEPOINT transaction_")
        try:
            results = [self._apply_once(op) for op in operations]
        except StoreError:
            raise  # The database has rolled back by itself, perhaps with the savepoint: leave all to who recovers.
        except PenstockError:
            self._appender.back_to(point)
            self._known_logs.forget()
            self.db.command("ROLLBACK TO transaction_")
            self.db.command("RELEASE transaction_")
            raise
        finally:
            self._appender.keep()
        self.db.command("RELEASE transaction_")
        return results

    def _is_behind(self, operations: Sequence[operations.Operation]) -> bool:
        """Whether all streams have gone on from where the commits want to be: they are repeats or conflicts."""
        commits = [op for op in operations if isinstance(op, Commit)]
        return bool(commits) and all(map(self._appender.is_behind, commits))

    def _again(self, operations: Sequence[operations.Operation]) -> list[Result]:
        """The first results of commits that were made before; a conflict if they were not."""
        # What went into a log that is gone is gone with it: who repeats it must not believe that it is there.
        for op in operations:
            if isinstance(op, RequireLog):
                self._apply(op)
        placed = [self._appender.place(op) for op in operations if isinstance(op, Commit)]
        for op in judging.receipts(operations):
            self._apply(op)
        return [*judging.first_results(operations, placed)]

    def _apply_once(self, op: operations.Operation) -> Result:
        result = self._apply(op)
        if isinstance(op, Commit) and isinstance(result, Appended) and result.repeated:
            # It is there already, and others of its transaction are not: this was another transaction.
            head = self._appender.stream_head(op.context, op.stream)
            raise VersionConflict(op.context, op.stream, op.expected, head)
        return result

    def _marked(self, mark: ProducerMark) -> list[Appended] | None:
        judging.check_mark(mark)
        return consumers.marked(self.db, mark)

    def _apply(self, op: operations.Operation) -> Result:
        match op:
            case operations.Commit():
                return self._appender.place(op)
            case operations.RequireLog():
                return self._known_logs.require(op.name)
            case operations.Progress():
                return consumers.progress(self.db, op)
            case operations.Acknowledge():
                return consumers.acknowledge(self.db, op)
            case operations.Release():
                return consumers.release(self.db, op, self.now())
            case operations.Allocate():
                return consumers.allocate(self.db, op, self.now())
            case operations.Register():
                return consumers.register(self.db, op)
            case operations.SetBookmark():
                return consumers.set_bookmark(self.db, op)
            case operations.DeclareQueue():
                return consumers.declare_queue(self.db, op)
            case operations.MoveQueue() | operations.SetDeadRule() | operations.Requeue() | operations.Reoffer():
                return self._mend_queue(op)
            case operations.ExpireProducers():
                return consumers.expire_producers(self.db, op)
            case operations.Erase() | operations.Seal() | operations.GiveBack():
                return self._look_after(op)
            case (
                operations.Stage()
                | operations.Publish()
                | operations.Install()
                | operations.Unstage()
                | operations.ExpireStages()
            ):
                return staging.apply(self.db, op, self._appender, self._recorded)
            case _:
                return self._apply_to_logs(op)

    def _mend_queue(
        self, op: operations.MoveQueue | operations.SetDeadRule | operations.Requeue | operations.Reoffer
    ) -> Result:
        match op:
            case operations.MoveQueue():
                return consumers.move_queue(self.db, op)
            case operations.SetDeadRule():
                return consumers.set_dead_rule(self.db, op)
            case operations.Requeue():
                return consumers.requeue(self.db, op, self.now())
            case operations.Reoffer():
                return consumers.reoffer(self.db, op, self.now())

    def _look_after(self, op: operations.Erase | operations.Seal | operations.GiveBack) -> Result:
        self._appender.flush()
        match op:
            case operations.Erase():
                self._erased = True
                return erasing.erase(self.db, op, self._recorded, self._emptied, self._unreadable)
            case operations.Seal():
                return sealing.seal(self.db, op, self._unsealable)
            case operations.GiveBack():
                return self._giving_back.step(self.db, op)

    def _apply_to_logs(self, op: operations.LogOperation | operations.HideStream | operations.HideEvents) -> Result:
        match op:
            case operations.WriteOutput():
                return write_output(self.db, op)
            case operations.AddLog():
                return logs.add_log(self.db, op, self._appender, self._recorded)
            case operations.AddIterator():
                return iterators.add_iterator(self.db, op, self._recorded)
            case _:
                result = self._delete(op)
                staging.drop_orphans(self.db, self._appender)
                return result

    def _delete(
        self, op: operations.DeleteLog | operations.DeleteIterator | operations.HideStream | operations.HideEvents
    ) -> Result:
        match op:
            case operations.DeleteLog():
                self._known_logs.forget()
                return logs.delete_log(self.db, op, self._appender, self._recorded)
            case operations.HideStream():
                return ledger.hide_stream(self.db, op, self._appender, self._recorded)
            case operations.HideEvents():
                return ledger.hide_events(self.db, op, self._appender, self._recorded)
            case operations.DeleteIterator():
                return iterators.delete_iterator(self.db, op, self._recorded)

    def recover(self) -> None:
        self.db.abandon()
        self.db.close()
        self.db = self._open()
        self._restart_wal()
        self._prove()
        self._load()

    def _restart_wal(self) -> None:
        """Empty the WAL: nobody may replay or read what a failed commit left in it. Our own readers make way."""
        write_owner(self._lock, recovering=True)
        try:
            if not self._checkpointer.copy(self.db, restart=True):
                readers = ", ".join(readers_of(self.directory / f"{FILE_NAME}-shm")) or "another process"
                raise StorageFailure(f"its write-ahead log is still being read by {readers}; end that to recover")
        finally:
            write_owner(self._lock)

    def _prove(self) -> None:
        """Write something new and have it synced: only then does the disk work again."""
        self.db.command("BEGIN IMMEDIATE")
        try:
            self.db.run("note_recovery")
            self.db.command("COMMIT")
        except BaseException:
            self.db.abandon()
            raise

    def close(self) -> None:
        try:
            self._checkpointer.close()
            super().close()
        finally:
            os.close(self._lock)
