"""Appends, transactions and logs: checked here, judged and written by the store.

A repeat gets the first result again, even when the disk is full or a limit is lower by now: a check that refuses passes
its refusal to the store, and the store looks for the mark or the events first.

A log is a stream of the context `remits`. Its messages are events of type `cbor` whose body is one CBOR item, whichever
gate they came through. Most are small or plainly valid, and are written at once. A worker checks those that would take
longer; until it has, later messages to the same log wait in line. An accepted message is written, or answered with an
error, even if its sender is gone. The transaction that adds messages checks that the log exists. After a deletion is
answered the log cannot be read; the eraser removes its contents from the store's files.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.engine import jobs
from penstock.engine.audit import Audit, digest
from penstock.engine.background import Eraser
from penstock.engine.context import Caller, EngineContext, check_names
from penstock.engine.iterators import IteratorRequests
from penstock.engine.queues import QueueRequests
from penstock.engine.subscriptions import SubscriptionRequests
from penstock.errors import (
    InvalidRequest,
    KeyReused,
    LimitExceeded,
    LogNotFound,
    NotCbor,
    PenstockError,
    Unexpected,
    WriterBusy,
)
from penstock.model import (
    ANY,
    AUDIT_CONTEXT,
    LOG_CONTEXT,
    AddMessages,
    Append,
    Appended,
    CreateLog,
    Done,
    DropLog,
    Over,
    Reply,
    Transact,
    Transacted,
    now_ticks,
    stamp_of,
)
from penstock.model.columns import NO_COLUMNS, Columns, columns_of_bodies
from penstock.settings import Settings
from penstock.store.contract import MESSAGE_TYPE, AddLog, Commit, DeleteLog, Operation, Outcome, RequireLog, Transaction
from penstock.wire.remits.cbor import first_invalid, plainly_valid

log = logging.getLogger(__name__)

TRANSACTION_OPERATIONS_MAX: Final = 1000
SCANNED_BYTES_MAX: Final = 4 * 1024
"""Messages of one request that are checked here in any case: it takes a millisecond at most."""
CHECKED_BYTES_MAX: Final = 256 * 1024
"""Messages of one request that are checked here if a quick scan shows that they are valid."""

DONE: Final = Done()

OnReply = Callable[[Reply | PenstockError], None]


class _Turn(NamedTuple):
    """A place in the line of a log: the check of its messages, and how they are written then."""

    checked: "asyncio.Future[None]"
    size: int
    write: Callable[[], None]
    answer: OnReply


class Checks:
    """Messages that workers check, in one line for each log."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._lines: dict[str, deque[_Turn]] = {}
        self._waiting = 0
        self._waiting_bytes = 0

    @property
    def under_way(self) -> "list[asyncio.Future[None]]":
        """The checks that a stopping server waits for."""
        return [turn.checked for line in self._lines.values() for turn in line]

    def enter(self, name: str, messages: Sequence[bytes], write: Callable[[], None], answer: OnReply) -> None:
        """Write messages that are CBOR after earlier ones, now or once checked; `answer` gets what is raised later."""
        plain = is_plain(messages)
        if plain and name not in self._lines:
            return write()
        size, settings = sum(map(len, messages)), self._context.settings
        if self._waiting >= settings.writer_queue_max or (
            self._waiting > 0 and self._waiting_bytes + size > settings.writer_queue_bytes_max
        ):
            raise WriterBusy(self._waiting)
        if plain:
            checked = asyncio.get_running_loop().create_future()
            checked.set_result(None)
        else:
            checked = self._context.pool.run(jobs.check_messages, name, messages)
        self._waiting += 1
        self._waiting_bytes += size
        self._lines.setdefault(name, deque()).append(_Turn(checked, size, write, answer))
        checked.add_done_callback(lambda _: self._write_checked(name))
        return None

    async def check(self, commits: Sequence[Commit]) -> None:
        """Raise NotCbor or LogNotFound if a transaction's commits cannot go into their logs. It waits in no line."""
        parcels = [(commit.stream, bodies_of(commit.columns)) for commit in commits if commit.context == LOG_CONTEXT]
        if not is_plain([message for _, messages in parcels for message in messages]):
            for name, messages in parcels:
                await self._context.pool.run(jobs.check_messages, name, messages)

    def _write_checked(self, name: str) -> None:
        """Write a line of messages up to the first that is not checked yet."""
        line = self._lines.get(name, deque())
        while line and line[0].checked.done():
            turn = line.popleft()
            self._waiting -= 1
            self._waiting_bytes -= turn.size
            try:
                turn.checked.result()
                turn.write()
            except PenstockError as error:
                turn.answer(error)
            except Exception as error:
                log.exception("messages that were checked could not be written")
                turn.answer(Unexpected(repr(error)))
        if not line:
            self._lines.pop(name, None)


def is_plain(messages: Sequence[bytes]) -> bool:
    """Whether messages are valid, if that can be seen so quickly that other requests can wait for it."""
    size = sum(map(len, messages))
    if size <= SCANNED_BYTES_MAX:
        return first_invalid(messages) is None
    return size <= CHECKED_BYTES_MAX and plainly_valid(messages)


def bodies_of(columns: Columns) -> list[bytes]:
    """The messages of an append to a log; NotCbor if an event has another type."""
    for index, code in enumerate(columns.numbers()[1]):
        if (kind := columns.types[code].decode()) != MESSAGE_TYPE:
            raise NotCbor(index, f"its type is '{kind}', and a log has events of type '{MESSAGE_TYPE}' only")
    return columns.split_bodies()


class AppendRequests:
    def __init__(
        self, context: EngineContext, checks: Checks, subscriptions: SubscriptionRequests, queues: QueueRequests
    ) -> None:
        self._context = context
        self._disk = context.disk
        self._checks = checks
        self._subscriptions = subscriptions
        self._queues = queues

    def append(self, request: Append, answer: OnReply) -> None:
        """Most requests are appends, so they need no task and no future: they go straight to the writer's queue."""
        refusal: PenstockError | None = self._disk.refusal() if self._disk.is_refusing else None
        if refusal is not None and not request.is_marked():
            raise refusal
        try:
            commit = self._commit(request)
        except LimitExceeded as error:
            if not request.is_marked():
                raise
            # The store only looks for the mark or the same events: `error` keeps it from writing.
            refusal, is_checked = error, True
            commit = _outline(request)
            if not request.mark and not request.keys:
                commit = Commit(request.context, request.stream, request.expected, request.columns())
        else:
            is_checked = request.context != LOG_CONTEXT

        keys = tuple([key.mark(request.context) for key in request.keys]) if request.keys else ()

        def written(outcome: Outcome) -> None:
            if not isinstance(outcome, PenstockError):
                # The commit is the last operation.
                done: Any = outcome[-1]
                return answer(done)
            if isinstance(outcome, KeyReused):
                # The store has a digest of the key.
                (name,) = {key.name for key, mark in zip(request.keys, keys, strict=True) if mark.key == outcome.key}
                outcome = KeyReused(outcome.context, name)
            return answer(outcome)

        transaction, size = Transaction(_operations(commit), request.mark, refusal, keys), commit.columns.size
        if is_checked:
            return self._context.writer.submit(transaction, size, written)
        write = partial(self._context.writer.submit, transaction, size, written)
        return self._checks.enter(request.stream, bodies_of(commit.columns), write, answer)

    async def transact(self, request: Transact, caller: Caller) -> Transacted:
        """Several commits with acknowledgements and progress: all or nothing."""
        asked = len(request.commits) + len(request.acknowledge) + len(request.progress)
        if not asked:
            raise InvalidRequest("transaction", "has nothing in it")
        if asked > TRANSACTION_OPERATIONS_MAX:
            raise LimitExceeded("transaction_operations_max", asked, TRANSACTION_OPERATIONS_MAX)
        if any(commit.mark or commit.keys for commit in request.commits):
            raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")
        refusal = self._disk.refusal() if request.commits else None
        async with AsyncExitStack() as progressing:
            try:
                commits = [self._commit(commit) for commit in request.commits]
                await self._checks.check(commits)
                receipts = [await self._queues.receipt(receipt, caller) for receipt in request.acknowledge]
                steps = self._subscriptions.progressing(request.progress, caller)
                progress = await progressing.enter_async_context(steps)
            except PenstockError as error:
                results = await self._context.refuse(error, request.mark, *map(_outline, request.commits))
            else:
                placed = [operation for commit in commits for operation in _operations(commit)]
                transaction = Transaction((*placed, *receipts, *progress), request.mark, refusal)
                results = await self._context.write(transaction, sum(commit.columns.size for commit in commits))
        return Transacted(tuple(result for result in results if isinstance(result, Appended)))

    def _commit(self, request: Append) -> Commit:
        settings = self._context.settings
        if request.context == AUDIT_CONTEXT:
            raise InvalidRequest("context", f"{AUDIT_CONTEXT} is that of the audit, which only the server writes")
        columns = request.columns()
        if columns.length > settings.commit_events_max:
            raise LimitExceeded("commit_events_max", columns.length, settings.commit_events_max)
        if columns.size > settings.event_bytes_max or columns.size > settings.commit_bytes_max:
            check_sizes(settings, columns.size, columns.sizes())
        return Commit(request.context, request.stream, request.expected, columns)


def check_sizes(settings: Settings, total: int, sizes: Iterable[int]) -> None:
    """Raise LimitExceeded if a commit of a size, or one of its events, is too large."""
    if total > settings.commit_bytes_max:
        raise LimitExceeded("commit_bytes_max", total, settings.commit_bytes_max)
    if total > settings.event_bytes_max and (largest := max(sizes)) > settings.event_bytes_max:
        raise LimitExceeded("event_bytes_max", largest, settings.event_bytes_max)


def _outline(request: Append) -> Commit:
    """A commit without its events: enough to ask whether the store has its mark."""
    return Commit(request.context, request.stream, ANY, NO_COLUMNS)


def _operations(commit: Commit) -> tuple[Operation, ...]:
    """A commit; one to a log requires the log to exist."""
    return (commit,) if commit.context != LOG_CONTEXT else (RequireLog(commit.stream), commit)


class LogRequests:
    def __init__(
        self, context: EngineContext, checks: Checks, iterators: IteratorRequests, eraser: Eraser, audit: Audit
    ) -> None:
        self._context = context
        self._audit = audit
        self._checks = checks
        self._iterators = iterators
        self._eraser = eraser

    def add(self, request: AddMessages, answer: OnReply) -> None:
        """Append messages, without a task or a future, as for appends."""
        self._context.disk.check()
        messages, settings = request.messages, self._context.settings
        operations: tuple[Operation, ...] = (RequireLog(request.log),)
        size = 0
        if messages:
            if len(messages) > settings.commit_events_max:
                raise LimitExceeded("commit_events_max", len(messages), settings.commit_events_max)
            columns = columns_of_bodies(MESSAGE_TYPE, stamp_of(now_ticks()), messages)
            size = columns.size
            check_sizes(settings, size, map(len, messages))
            operations = (operations[0], Commit(LOG_CONTEXT, request.log, ANY, columns))

        def written(outcome: Outcome) -> None:
            answer(outcome if isinstance(outcome, PenstockError) else DONE)

        def write() -> None:
            self._context.writer.submit(Transaction(operations), size, written)

        self._checks.enter(request.log, messages, write, answer)

    async def create(self, request: CreateLog) -> Done:
        check_names(log=request.log)
        await self._context.apply(AddLog(request.log))
        return DONE

    async def drop(self, request: DropLog, caller: Caller) -> Done:
        """Delete a log and its iterators, if it exists."""
        entry = self._audit.entry(caller.principal, "logs", "log-deleted", {"log": digest(request.log)})
        delete = DeleteLog(request.log, request.created, strict=True)
        # Without the log there is no entry either.
        with suppress(LogNotFound):
            await self._context.write(Transaction((delete, *entry)))
            self._iterators.remove_over(Over.LOG, request.log)
            self._eraser.wake()
        return DONE
