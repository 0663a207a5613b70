"""The embedded store: a directory with one SQLite database, owned by one server, read by many processes."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import apsw

from penstock.errors import DamagedRecord, ReadFailure, StorageFailure
from penstock.model import Allocation, ProducerMark, StoreStats, ticks_of_unix_ns
from penstock.model.times import TICKS_PER_MS
from penstock.store import contract, watermarks
from penstock.store.contract import Operation, Outcome, Result
from penstock.store.record import Record
from penstock.store.sqlite import schema, secure_delete
from penstock.store.sqlite.database import PAGE_BYTES, Checkpointer, SqliteDatabase, translate
from penstock.store.sqlite.directory import (
    FILE_NAME,
    is_served,
    make_directory,
    readers_of,
    settle_access,
    take_lock,
    write_owner,
)
from penstock.store.tables.appends import Appender, StreamState, remember
from penstock.store.tables.consumers import Deferred, allocated, reoffered
from penstock.store.tables.logs import KnownLogs
from penstock.store.tables.store import Store
from penstock.store.tables.transactions import HANDLERS, Batch, waited

log = logging.getLogger(__name__)

STREAM_CACHE_MAX: Final = 100_000
KEPT_RESULT_BYTES_MAX: Final = 144
"""Results of a producer that are kept in memory: those of four commits. Longer ones are read from the file."""
WAL_BYTES_MAX: Final = 32 << 20
WORTH_BYTES: Final = 16 << 20
WORTH_SHARE: Final = 0.1
REST_SHARE: Final = 0.5
"""The store returns free space when more than WORTH_BYTES and WORTH_SHARE of the file is free, until REST_SHARE of that
is left. SQLite reuses free pages, and sealing frees and uses pages all the time, so it keeps a small reserve."""
CHECKED_BESIDE_A_SERVER: Final = (
    *("meta", "timelines", "contexts", "streams", "blocks", "subscriptions", "queues", "allocations"),
    *("producers", "logs", "iterators", "erasures", "dead_letters"),
)

Clock = Callable[[], int]
"""Nanoseconds since 1970."""


class SqliteReader(Store):
    """A store that is open for reading, next to the process that writes it."""

    db: SqliteDatabase
    positions_per_query: ClassVar[int] = 1 << 16
    last_name: ClassVar[str | bytes] = b""
    """SQLite sorts a blob after any text, even after a damaged one."""

    def __init__(self, directory: Path | str, *, clock: Clock = time.time_ns, vfs: str | None = None) -> None:
        self.directory = Path(directory)
        self._clock = clock
        self._vfs = vfs
        self.db = self._open()

    def _open(self) -> SqliteDatabase:
        database = SqliteDatabase(self.directory, create=False, write=False, vfs=self._vfs)
        if schema.check(database, self.directory) < schema.SCHEMA_VERSION:
            database.close()
            raise ReadFailure(f"{self.directory} has an older schema; start a server on it once")
        return database

    def now(self) -> int:
        return ticks_of_unix_ns(self._clock())

    def stats(self) -> StoreStats:
        files = (self.directory / name for name in (FILE_NAME, f"{FILE_NAME}-wal"))
        with self.db.snapshot():
            size = sum(file.stat().st_size for file in files if file.exists())
            counts: list[Any] = [schema.SCHEMA_VERSION, self.head(), *self.db.row("stats"), size, self.sealed() - 1]
            return StoreStats(*self.identity(), *counts)

    def free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self.directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def note_watermark(self, mark: watermarks.Watermark) -> None:
        watermarks.write_file(self.directory, mark)

    def watermarks(self) -> list[watermarks.Watermark]:
        return watermarks.read_files(self.directory)

    def _records_holding(self, commits: Sequence[tuple[int, int]], index: int, _step: int) -> list[Record]:
        row = self.db.row("record_at", {"position": commits[index][1]})
        return [Record(row[1], row[0])] if row else []

    def _outputs(self, iterator: int, ordinal: int, _limits: contract.ReadLimits) -> Iterator[tuple[int, int, bytes]]:
        return self.db.each("outputs_from", {"id": iterator, "ordinal": ordinal})

    def _file_findings(self) -> Iterator[contract.Finding]:
        """SQLite's own check of its file; next to a server, of its smaller tables only.

        The check is one long read, and a server's WAL would grow all the while. Other checks read the large tables in
        steps.
        """
        served = is_served(self.directory)
        for scope in [f"({table})" for table in CHECKED_BESIDE_A_SERVER] if served else [""]:
            try:
                for (line,) in self.db.connection.execute(f"PRAGMA quick_check{scope}"):
                    if line != "ok":
                        yield contract.Finding("file", line)
            except apsw.Error as error:
                yield contract.Finding("file", str(translate(error)))


class SqliteAppender(Appender):
    """Appends on SQLite. This process alone writes, so it keeps stream heads and context counters in memory."""

    def __init__(self, db: SqliteDatabase, history: SqliteReader, cache_max: int) -> None:
        super().__init__(db, cache_max)
        self._history = history
        self.head = db.value("head") or 0
        self._stream_id = db.value("last_stream_id") or 0
        self._context_id = db.value("last_context_id") or 0
        self.begin(0)

    def flush(self) -> None:
        if not self._rows.records:
            return
        if self._rows.streams:
            self._db.run_many("add_stream", self._rows.streams)
        self._db.run_many("add_record", self._rows.records)
        self._db.run_many("add_commit", self._rows.commits)
        if self._rows.blocks:
            self._db.run_many("add_block", self._rows.blocks)
        if self._log_bytes:
            self._db.run_many("grow_log", [(size, name) for name, size in self._log_bytes.items()])
        states = ((name, self._staged_contexts[name]) for name in self._changed)
        self._db.run_many("save_context", [(state.id, name, *state[1:]) for name, state in states])
        self._clear_rows()

    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        stream_id = self._db.value("stream_id", {"context_id": self._context(context).id, "name": stream})
        if stream_id is None:
            return None
        head = self._db.value("last_of_stream", {"stream_id": stream_id})
        found = self._streams[context, stream] = StreamState(stream_id, head, stream.encode())
        return found

    def _stored_ids(self, commit: contract.Commit, _stream: StreamState) -> tuple[bytes, bytes, int]:
        self.flush()
        last = commit.expected + commit.columns.length - 1
        return self._history.stored_ids(commit.context, commit.stream, commit.expected, last)


class SqliteBatch(Batch):
    """Batches on SQLite, one after the other."""

    db: SqliteDatabase

    def __init__(self, store: "SqliteStore", cache_max: int) -> None:
        db = store.db
        appender = SqliteAppender(db, store, cache_max)
        super().__init__(db, appender, KnownLogs(db, cache_max), secure_delete.SqliteStages(db, appender))
        self._store = store
        self._gives_back = False
        self._cache_max = cache_max
        self._marks: dict[str, tuple[int, bytes]] = {}
        """The last number of producers, and the results under it."""
        self._staged_marks: dict[str, tuple[int, bytes]] = {}
        """Those that the database does not have yet."""

    def begin(self, now: int, recorded: int) -> None:
        """Start a batch at a time, whose commits get a recorded time."""
        self.now, self.recorded = now, recorded
        self.appender.begin(recorded)

    def flush(self) -> None:
        super().flush()
        if self._staged_marks:
            rows = [(name, *mark, self.recorded) for name, mark in self._staged_marks.items()]
            self.db.run_many("save_producer", rows)
            for name in self._staged_marks:
                self._marks.pop(name, None)
            self._keep_marks(self._staged_marks)
            self._staged_marks = {}

    def _keep_marks(self, marks: dict[str, tuple[int, bytes]]) -> None:
        short = {name: mark for name, mark in marks.items() if len(mark[1]) <= KEPT_RESULT_BYTES_MAX}
        remember(self._marks, short, self._cache_max)

    def forget(self) -> None:
        """The database has not committed the batch."""
        self.known_logs.forget()
        self._marks, self._staged_marks = {}, {}

    def is_atomic(self, op: Operation) -> bool:
        return not isinstance(op, contract.Publish | contract.Install)

    def apply(self, op: Operation) -> Result:
        return waited(HANDLERS[type(op)](self, op))

    def together(self, ops: Sequence[Operation]) -> list[Result | Deferred]:
        if len(ops) == 2 and isinstance(ops[0], contract.RequireLog):
            # Every message comes this way. contract.RequireLog writes nothing, so there is nothing to roll back.
            return [self.apply(op) for op in ops]
        return super().together(ops)

    def find_producer(self, name: str) -> tuple[int, bytes] | None:
        found = self._staged_marks.get(name) or self._marks.get(name)
        if found is None:
            rows = self.db.rows("producer", {"name": name})
            if not rows:
                return None
            found = rows[0]
            self._keep_marks({name: found})
        return found

    def save_mark(self, mark: ProducerMark, results: bytes) -> None:
        self._staged_marks[mark.key] = mark.number, results

    def expire_producers(self, op: contract.ExpireProducers) -> Deferred:
        self.flush()
        self._marks = {}
        return super().expire_producers(op)

    def allocate(self, op: contract.Allocate) -> Result:
        db, proposal, kind = self.db, op.proposal, op.proposal.kind
        queue = {"queue_id": op.queue, "subscriber": op.subscriber}
        state = db.rows("allocate", {**queue, "now": self.now, "kind": kind})
        expires = self.now + op.ttl_ms * TICKS_PER_MS
        result = allocated(op, state, self.now, expires)
        taken = {**queue, "first": proposal.first, "expires": expires}
        if isinstance(result, Allocation) and kind == contract.Proposal.EXPIRED:
            db.later("take_over", taken)
        if isinstance(result, Allocation) and kind == contract.Proposal.FRESH:
            db.later("add_allocation", {**taken, "last": proposal.last, "count": proposal.count})
        is_new = kind in (contract.Proposal.FRESH, contract.Proposal.NOTHING) and not isinstance(result, str)
        if is_new and proposal.next != proposal.marker:
            db.later("move_queue", {"id": op.queue, "position": proposal.next})
        return result

    def reoffer(self, op: contract.Reoffer) -> bool:
        result = reoffered(op, self.db.rows("reoffer_state", {"queue_id": op.queue, "runs": json.dumps(op.runs)}))
        self.db.run_many("reoffer", [(op.queue, *run, self.now) for run in op.runs])
        return result

    def erasure_step(self, records_max: int) -> secure_delete.SqliteErasureStep:
        return secure_delete.SqliteErasureStep(self.db, records_max, self._store.unreadable)

    def replace_records(self, op: contract.Seal, row: dict[str, Any]) -> None:
        secure_delete.replace_records(self.db, op, row, self._store.unsealable)

    def give_back(self, op: contract.GiveBack) -> int:
        self.appender.flush()
        if not (before := self._spare_bytes()):
            return 0
        self.db.command(f"PRAGMA incremental_vacuum({max(1, min(op.bytes_max, before) // PAGE_BYTES)})")
        return self._spare_bytes()

    def _spare_bytes(self) -> int:
        free = self.db.pragma("freelist_count") * PAGE_BYTES
        limit = max(WORTH_BYTES, int(WORTH_SHARE * PAGE_BYTES * self.db.pragma("page_count")))
        rest = int(limit * REST_SHARE)
        self._gives_back = free > (rest + PAGE_BYTES if self._gives_back else limit)
        return free - rest if self._gives_back else 0


class SqliteStore(SqliteReader):
    """A store that is open for writing. Only one process can have it open so."""

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
        self.unreadable: set[int] = set()
        """First positions of records that no erasure can rewrite, because pages are damaged."""
        self.unsealable: set[int] = set()
        """First positions of records that cannot be sealed, for the same reason."""
        with ExitStack() as undo:
            self._lock = take_lock(Path(directory))
            undo.callback(os.close, self._lock)
            settle_access(Path(directory), group_access)
            super().__init__(directory, clock=clock, vfs=vfs)
            undo.callback(super().close)
            self._checkpointer = Checkpointer(self._connect(), wal_bytes_max)
            undo.callback(self._checkpointer.close)
            # A process that died may have written the WAL without syncing it: first make it durable.
            self._checkpointer.copy(self.db)
            self._load()
            undo.pop_all()

    def _connect(self) -> SqliteDatabase:
        return SqliteDatabase(self.directory, create=True, write=True, vfs=self._vfs)

    def _open(self) -> SqliteDatabase:
        # Check first: to connect for writing already changes a file, which may belong to another program.
        with closing(SqliteDatabase(self.directory, create=True, write=False, vfs=self._vfs)) as untouched:
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
        self._batch = SqliteBatch(self, self._stream_cache_max)
        self._recorded = self._last_recorded()
        now = self.now()
        self.batch_times = contract.BatchTimes(now, max(now, self._recorded))

    def _last_recorded(self) -> int:
        """The last recorded time. If the last record is damaged, use the one before: the store still opens."""
        position = self.head()
        while row := self.db.row("record_at", {"position": position}):
            try:
                return Record(row[1], row[0]).runs()[-1].recorded
            except DamagedRecord:
                position = row[0] - 1
        return 0

    @property
    def is_quick(self) -> bool:
        return self._checkpointer.is_idle

    def write(self, transactions: Sequence[contract.Transaction]) -> list[Outcome]:
        # Recorded times never go backwards, even if the clock does.
        now = self.now()
        self._recorded = max(self._recorded, now)
        self.batch_times = contract.BatchTimes(now, self._recorded)
        batch = self._batch
        batch.begin(now, self._recorded)
        try:
            self.db.command("BEGIN IMMEDIATE")
            outcomes = [batch.outcome(transaction) for transaction in transactions]
            batch.flush()
            started = time.perf_counter()
            self.db.command("COMMIT")
            self.commit_s = time.perf_counter() - started
        except BaseException:
            batch.forget()
            self.db.abandon()
            raise
        # The batch is on disk: an error from here on must not look as if the commit had failed.
        try:
            batch.appender.settle()
            if batch.has_erased:
                # The last copies of erased contents are old pages in the WAL.
                batch.has_erased = False
                cleared = [number for (number,) in self.db.rows("cleared_erasures")]
                is_empty = bool(cleared) and self._checkpointer.empty(self._wal_pages, self.db)
                batch.emptied = cleared if is_empty else []
            self._checkpointer.committed(self._wal_pages, self.db)
        except Exception:
            log.exception("after a commit that is on disk")
            self._batch = SqliteBatch(self, self._stream_cache_max)
        return cast("list[Outcome]", outcomes)

    def recover(self) -> None:
        self.db.abandon()
        self.db.close()
        self.db = self._open()
        # Empty the WAL, so that no process replays or reads what a failed commit left in it. Our own readers stop.
        write_owner(self._lock, recovering=True)
        try:
            if not self._checkpointer.copy(self.db, restart=True):
                readers = ", ".join(readers_of(self.directory / f"{FILE_NAME}-shm")) or "another process"
                raise StorageFailure(f"its write-ahead log is still being read by {readers}; end that to recover")
        finally:
            write_owner(self._lock)
        # Only a new commit that is synced proves that the disk works again.
        with self.db.transaction():
            self.db.later("note_recovery")
        self._load()

    def close(self) -> None:
        try:
            self._checkpointer.close()
            super().close()
        finally:
            os.close(self._lock)
