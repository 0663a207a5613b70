"""Appends and transactions: checked here, judged and written by the store.

Both may write to logs, whose events must be messages: the same as those that come as such.

A repeat gets the first result again, also when the disk is full or a limit is lower by now: a check that refuses passes
its refusal to the store, and the store looks for the mark or the events first.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from penstock.engine.checks import Checks, bodies_of
from penstock.engine.disk import DiskWatch
from penstock.engine.parts import Parts
from penstock.engine.queues import Queues
from penstock.engine.subscriptions import Subscriptions
from penstock.errors import InvalidRequest, LimitExceeded, PenstockError, Unexpected
from penstock.model import ANY, Append, Appended, Reply, Transact, Transacted
from penstock.store.contract import LOG_CONTEXT, Commit, Operation, Outcome, RequireLog, Result, Transaction
from penstock.store.record import NO_COLUMNS, columns_of

TRANSACTION_OPERATIONS_MAX: Final = 1000


class Appends:
    """What requests that add to the history mean."""

    def __init__(
        self, parts: Parts, disk: DiskWatch, checks: Checks, subscriptions: Subscriptions, queues: Queues
    ) -> None:
        self._parts = parts
        self._disk = disk
        self._checks = checks
        self._subscriptions = subscriptions
        self._queues = queues

    def append(self, request: Append, answer: Callable[[Reply | PenstockError], None]) -> None:
        """The way of most requests: no task, no future, only the writer's queue."""
        refusal = self._disk.refusal()
        if refusal is not None and not request.is_marked():
            raise refusal

        def written(outcome: Outcome) -> None:
            if isinstance(outcome, PenstockError):
                answer(outcome)
            else:
                appended = outcome[-1]
                answer(appended if isinstance(appended, Appended) else Unexpected(f"an append gave {appended!r}"))

        try:
            commit = self._commit(request)
        except LimitExceeded as error:
            if not request.is_marked():
                raise
            known = _outline(request) if request.mark else _whole(request)
            return self._parts.submit(Transaction(_placed(known), request.mark, error), known.columns.size, written)

        def write() -> None:
            self._parts.submit(Transaction(_placed(commit), request.mark, refusal), commit.columns.size, written)

        if request.context == LOG_CONTEXT:
            return self._checks.enter(request.stream, bodies_of(request), write, answer)
        return write()

    async def transact(self, request: Transact) -> Transacted:
        """Several commits with acknowledgements and progress: all or nothing."""
        asked = len(request.commits) + len(request.acknowledge) + len(request.progress)
        if not asked:
            raise InvalidRequest("transaction", "has nothing in it")
        if asked > TRANSACTION_OPERATIONS_MAX:
            raise LimitExceeded("transaction_operations_max", asked, TRANSACTION_OPERATIONS_MAX)
        if any(commit.mark for commit in request.commits):
            raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")
        refusal = self._disk.refusal() if request.commits else None
        async with AsyncExitStack() as progressing:
            try:
                commits = [self._commit(commit) for commit in request.commits]
                await self._checks.check(request.commits)
                receipts = [await self._queues.receipt(receipt) for receipt in request.acknowledge]
                steps = self._subscriptions.progressing(request.progress)
                progress = await progressing.enter_async_context(steps)
            except PenstockError as error:
                return _transacted(await self._parts.refuse(error, request.mark, *map(_outline, request.commits)))
            placed = [operation for commit in commits for operation in _placed(commit)]
            operations: tuple[Operation, ...] = (*placed, *receipts, *progress)
            size = sum(commit.columns.size for commit in commits)
            return _transacted(await self._parts.write(Transaction(operations, request.mark, refusal), size))

    def _commit(self, request: Append) -> Commit:
        settings = self._parts.settings
        if len(request.events) > settings.commit_events_max:
            raise LimitExceeded("commit_events_max", len(request.events), settings.commit_events_max)
        commit = _whole(request)
        size = commit.columns.size
        if size > settings.commit_bytes_max:
            raise LimitExceeded("commit_bytes_max", size, settings.commit_bytes_max)
        if size > settings.event_bytes_max:
            largest = max(len(e.body) + len((e.headers or "").encode()) + len(e.type.encode()) for e in request.events)
            if largest > settings.event_bytes_max:
                raise LimitExceeded("event_bytes_max", largest, settings.event_bytes_max)
        return commit


def _whole(request: Append) -> Commit:
    return Commit(request.context, request.stream, request.expected, columns_of(request.events))


def _transacted(results: Sequence[Result]) -> Transacted:
    return Transacted(tuple(result for result in results if isinstance(result, Appended)))


def _outline(request: Append) -> Commit:
    """A commit without its events: enough to ask whether it was made under its mark before."""
    return Commit(request.context, request.stream, ANY, NO_COLUMNS)


def _placed(commit: Commit) -> tuple[Operation, ...]:
    """A commit; what goes into a log needs the log to be there."""
    return (commit,) if commit.context != LOG_CONTEXT else (RequireLog(commit.stream), commit)
