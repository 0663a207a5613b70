"""Appends and transactions: checked here, judged and written by the store.

Both may write to logs, whose events must be messages: the same as those that come as such.
"""

from collections.abc import Callable
from typing import Final

from penstock.engine.checks import Checks, bodies_of
from penstock.engine.disk import DiskWatch
from penstock.engine.parts import Parts
from penstock.engine.queues import Queues
from penstock.engine.subscriptions import Subscriptions
from penstock.errors import InvalidRequest, LimitExceeded, PenstockError, Unexpected
from penstock.model import Append, Appended, Reply, Transact, Transacted
from penstock.store.contract import LOG_CONTEXT, Commit, Operation, Outcome, RequireLog, Transaction
from penstock.store.record import columns_of

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
        self._disk.check()
        commit = self._commit(request)

        def written(outcome: Outcome) -> None:
            if isinstance(outcome, PenstockError):
                answer(outcome)
            else:
                appended = outcome[-1]
                answer(appended if isinstance(appended, Appended) else Unexpected(f"an append gave {appended!r}"))

        def write() -> None:
            self._parts.submit(Transaction(_placed(commit), request.mark), commit.columns.size, written)

        if request.context == LOG_CONTEXT:
            self._checks.enter(request.stream, bodies_of(request), write, answer)
        else:
            write()

    async def transact(self, request: Transact) -> Transacted:
        """Several commits with acknowledgements and progress: all or nothing."""
        asked = len(request.commits) + len(request.acknowledge) + len(request.progress)
        if not asked:
            raise InvalidRequest("transaction", "has nothing in it")
        if asked > TRANSACTION_OPERATIONS_MAX:
            raise LimitExceeded("transaction_operations_max", asked, TRANSACTION_OPERATIONS_MAX)
        if any(commit.mark for commit in request.commits):
            raise InvalidRequest("mark", "belongs to the whole transaction, not to one of its commits")
        if request.commits:
            self._disk.check()
        commits = [self._commit(commit) for commit in request.commits]
        await self._checks.check(request.commits)
        size = sum(commit.columns.size for commit in commits)
        receipts = [await self._queues.receipt(receipt) for receipt in request.acknowledge]
        async with self._subscriptions.progressing(request.progress) as progress:
            placed = [operation for commit in commits for operation in _placed(commit)]
            operations: tuple[Operation, ...] = (*placed, *receipts, *progress)
            results = await self._parts.write(Transaction(operations, request.mark), size)
        return Transacted(tuple(result for result in results if isinstance(result, Appended)))

    def _commit(self, request: Append) -> Commit:
        settings = self._parts.settings
        if len(request.events) > settings.commit_events_max:
            raise LimitExceeded("commit_events_max", len(request.events), settings.commit_events_max)
        columns = columns_of(request.events)
        if columns.size > settings.commit_bytes_max:
            raise LimitExceeded("commit_bytes_max", columns.size, settings.commit_bytes_max)
        if columns.size > settings.event_bytes_max:
            largest = max(len(e.body) + len((e.headers or "").encode()) + len(e.type.encode()) for e in request.events)
            if largest > settings.event_bytes_max:
                raise LimitExceeded("event_bytes_max", largest, settings.event_bytes_max)
        return Commit(request.context, request.stream, request.expected, columns)


def _placed(commit: Commit) -> tuple[Operation, ...]:
    """A commit; what goes into a log needs the log to be there."""
    return (commit,) if commit.context != LOG_CONTEXT else (RequireLog(commit.stream), commit)
