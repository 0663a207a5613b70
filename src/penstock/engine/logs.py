"""Logs of messages: streams of the context `remits`, with requests to create, fill, show and delete them by name.

A message is an event of type `cbor` whose body is one CBOR item (see `appends`). The transaction that adds messages
checks that the log exists, so nothing is added to a deleted log. After a deletion is answered the log cannot be read;
the eraser removes its contents from the store's files.
"""

from collections.abc import Callable
from typing import Final

from penstock.engine import jobs
from penstock.engine.appends import Checks
from penstock.engine.background import DiskWatch, Eraser
from penstock.engine.context import EngineContext, check_names
from penstock.engine.iterators import IteratorRequests
from penstock.errors import LimitExceeded, PenstockError
from penstock.model import (
    ANY,
    AddMessages,
    CreateLog,
    Done,
    DropLog,
    ListLogs,
    Names,
    Reply,
    now_ticks,
    stamp_of,
)
from penstock.settings import Settings
from penstock.store.contract import (
    LOG_CONTEXT,
    MESSAGE_TYPE,
    AddLog,
    Commit,
    DeleteLog,
    Operation,
    Outcome,
    RequireLog,
    Result,
    Transaction,
)
from penstock.store.record import Columns, columns_of_bodies

DONE: Final = Done()


class LogRequests:
    """Requests about logs."""

    def __init__(
        self, context: EngineContext, disk: DiskWatch, checks: Checks, iterators: IteratorRequests, eraser: Eraser
    ) -> None:
        self._context = context
        self._disk = disk
        self._checks = checks
        self._iterators = iterators
        self._eraser = eraser

    def add(self, request: AddMessages, answer: Callable[[Reply | PenstockError], None]) -> None:
        """Append messages, without a task or a future, as for appends."""
        self._disk.check()
        operations: tuple[Operation, ...] = (RequireLog(request.log),)
        size = 0
        if request.messages:
            columns = message_columns(request.messages, self._context.settings)
            operations = (operations[0], Commit(LOG_CONTEXT, request.log, ANY, columns))
            size = columns.size

        def written(outcome: Outcome) -> None:
            answer(outcome if isinstance(outcome, PenstockError) else DONE)

        def write() -> None:
            self._context.writer.submit(Transaction(operations), size, written)

        self._checks.enter(request.log, request.messages, write, answer)

    async def create(self, request: CreateLog) -> Done:
        check_names(log=request.log)
        await self._context.write(Transaction((AddLog(request.log),)))
        return DONE

    async def drop(self, request: DropLog) -> Done:
        """Delete a log and its iterators, if it exists."""

        def gone(results: list[Result]) -> None:
            if results == [True]:
                self._iterators.log_dropped(request.log)
                self._eraser.wake()

        await self._context.write(Transaction((DeleteLog(request.log, request.created),)), written=gone)
        return DONE

    async def names(self, _request: ListLogs) -> Names:
        return Names(await self._context.pool.run(jobs.list_logs))


def message_columns(messages: tuple[bytes, ...], settings: Settings) -> Columns:
    """The columns of a commit of messages, or LimitExceeded."""
    if len(messages) > settings.commit_events_max:
        raise LimitExceeded("commit_events_max", len(messages), settings.commit_events_max)
    columns = columns_of_bodies(MESSAGE_TYPE, stamp_of(now_ticks()), messages)
    if columns.size > settings.commit_bytes_max:
        raise LimitExceeded("commit_bytes_max", columns.size, settings.commit_bytes_max)
    if columns.size > settings.event_bytes_max and (largest := max(map(len, messages))) > settings.event_bytes_max:
        raise LimitExceeded("event_bytes_max", largest, settings.event_bytes_max)
    return columns
