"""Logs of messages: streams of the context `remits` that are made, filled, shown and deleted by name.

A message is an event of type `cbor`, and its body is one CBOR item (see `checks`). Whether a log is there is decided
inside the transaction that adds to it, so that nothing is ever added to one that was just deleted. A deleted log can be
read by nobody from the moment that is answered; its contents leave the store's files afterwards, in small steps that
share group commits with everyone else.
"""

from collections.abc import Callable
from typing import Final

from penstock.engine import jobs
from penstock.engine.appends import Checks
from penstock.engine.background import DiskWatch, Eraser
from penstock.engine.context import EngineContext, check_names
from penstock.engine.iterators import Iterators
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


class Logs:
    """What requests about logs mean."""

    def __init__(
        self, context: EngineContext, disk: DiskWatch, checks: Checks, iterators: Iterators, eraser: Eraser
    ) -> None:
        self._context = context
        self._disk = disk
        self._checks = checks
        self._iterators = iterators
        self._eraser = eraser

    def add(self, request: AddMessages, answer: Callable[[Reply | PenstockError], None]) -> None:
        """Append messages. The way of most requests: no task, no future, only a look and the writer's queue."""
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
        """Make a log unless it is there."""
        check_names(log=request.log)
        await self._context.write(Transaction((AddLog(request.log),)))
        return DONE

    async def drop(self, request: DropLog) -> Done:
        """Delete a log with all that is made from it, if it is there."""

        def gone(results: list[Result]) -> None:
            if results == [True]:
                self._iterators.log_dropped(request.log)
                self._eraser.wake()

        await self._context.write(Transaction((DeleteLog(request.log, request.created),)), written=gone)
        return DONE

    async def names(self, _request: ListLogs) -> Names:
        """The names of all logs."""
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
