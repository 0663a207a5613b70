"""A batch of transactions, each judged on its own, inside one transaction of the database.

Most operations are sent without waiting, and their results are read together before the commit. What must not happen
then is that a transaction of several operations fails in its middle after something of it was sent. If one does, the
whole batch is taken back (`TakeBack`) and done once more carefully: with a savepoint for each transaction, and waiting
for every result.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from penstock.errors import InvalidRequest, NotDurable, PenstockError, StoreError, VersionConflict
from penstock.model import Appended, ProducerMark
from penstock.store import operations
from penstock.store.contract import (
    Commit,
    Operation,
    Outcome,
    RequireLog,
    Result,
    Transaction,
)
from penstock.store.postgres import consumers, erasing, sealing, staging
from penstock.store.postgres.appender import Appender, Point
from penstock.store.postgres.consumers import Producers, Promise
from penstock.store.postgres.database import Database
from penstock.store.postgres.logs import write_output
from penstock.store.postgres.vacuum import Vacuum
from penstock.store.tables import iterators, judging, ledger, logs
from penstock.store.tables.logs import KnownLogs

SAVEPOINT: Final = "SAVEPOINT transaction_"
ROLL_BACK: Final = "ROLLBACK TO transaction_"
RELEASE: Final = "RELEASE transaction_"

R = TypeVar("R")

_IN_MEMORY: Final = (Commit, RequireLog)
"""What sends nothing, so that it can be taken back here."""


class TakeBack(Exception):
    """A batch has to be done once more, carefully."""


class Later:
    """A result that was not waited for."""

    __slots__ = ("result",)

    def __init__(self, result: Promise) -> None:
        self.result = result


class Judged:
    """What became of a transaction, as far as that is known."""

    __slots__ = ("is_whole", "outcome")

    def __init__(self, outcome: list[Result | Later] | PenstockError, *, is_whole: bool) -> None:
        self.outcome = outcome
        self.is_whole = is_whole
        """Whether a failure that comes to light later concerns more than the operation that failed."""

    def settled(self) -> Outcome:
        """The outcome; waits for it."""
        if isinstance(self.outcome, PenstockError):
            return self.outcome
        try:
            return [_settled(result) for result in self.outcome]
        except StoreError:
            raise
        except PenstockError as error:
            if self.is_whole:
                raise TakeBack from error
            return error


def _settled(result: Result | Later) -> Result:
    return result.result() if isinstance(result, Later) else result


class Batch:
    """The operations of a batch."""

    def __init__(
        self,
        db: Database,
        appender: Appender,
        known_logs: KnownLogs,
        vacuum: Vacuum,
        *,
        now: int,
        recorded: int,
        careful: bool,
        refusal: NotDurable | None = None,
    ) -> None:
        self._db = db
        self._appender = appender
        self._known_logs = known_logs
        self._vacuum = vacuum
        self._now = now
        self._recorded = recorded
        self._careful = careful
        self.refusal = refusal
        """Why nothing of this batch may be committed; what was written before is looked up all the same."""
        self.producers = Producers(db)
        self.has_erased = False
        """Whether there was a step of an erasure."""
        self.has_changed_logs = False
        """Whether logs or iterators came or went."""
        self.queues: set[int] = set()
        """Queues that may have something to hand out again."""

    def judge(self, transaction: Transaction) -> Judged:
        """Carry out a transaction as far as that goes without waiting, or say why it cannot be."""
        ops, mark, refusal = transaction
        refusal = refusal or self.refusal
        try:
            if mark is not None and (before := self._marked(mark)) is not None:
                return Judged([*judging.first_results(ops, before, mark)], is_whole=False)
            if refusal is not None:
                # Not raised: StorageFull would look as if the database itself had failed.
                return Judged(self._known(ops) or refusal, is_whole=False)
            results = self._carry_out(ops)
            if mark is not None:
                self.producers.save(mark, judging.kept(ops, results))
            return Judged(results, is_whole=len(ops) > 1 or mark is not None)
        except StoreError:
            raise
        except PenstockError as error:
            return Judged(error, is_whole=False)

    def finish(self) -> None:
        """Send what was kept back."""
        self.producers.flush(self._recorded)

    def _marked(self, mark: ProducerMark) -> list[Appended] | None:
        judging.check_mark(mark)
        return self.producers.marked(mark)

    def _carry_out(self, ops: Sequence[Operation]) -> list[Result | Later]:
        """Operations in order, all or nothing. If its commits were made before, all was done before."""
        if len(ops) == 1 and isinstance(ops[0], _IN_MEMORY):
            return [self._apply(ops[0])]
        if len(ops) > 1 and self._is_behind(ops):
            return self._again(ops)
        if self._careful and not all(isinstance(op, _IN_MEMORY) for op in ops):
            return self._carefully(ops)
        return self._hopefully(ops)

    def _is_behind(self, ops: Sequence[Operation]) -> bool:
        """Whether all streams have gone on from where the commits want to be: they are repeats or conflicts."""
        commits = [op for op in ops if isinstance(op, Commit)]
        return bool(commits) and all(map(self._appender.is_behind, commits))

    def _known(self, ops: Sequence[Operation]) -> list[Result | Later] | None:
        """The first results of a transaction that is refused now, if it was carried out before."""
        if not self._is_behind(ops) or (self.refusal is not None and self._is_left_to_do(ops)):
            return None
        return self._again(ops)

    def _is_left_to_do(self, ops: Sequence[Operation]) -> bool:
        """Whether acknowledgements or progress of a transaction would change something; tried, and taken back."""
        if not (receipts := list(judging.receipts(ops))):
            return False
        self._db.command(SAVEPOINT)
        has_changed = any(_settled(self._apply(op)) for op in receipts)
        self._db.command(ROLL_BACK)
        self._db.command(RELEASE)
        return has_changed

    def _again(self, ops: Sequence[Operation]) -> list[Result | Later]:
        """The first results of commits that were made before; a conflict if they were not."""
        # What went into a log that is gone is gone with it: who repeats it must not believe that it is there.
        for op in ops:
            if isinstance(op, RequireLog):
                self._apply(op)
        placed = [self._appender.place(op) for op in ops if isinstance(op, Commit)]
        for op in judging.receipts(ops):
            self._apply(op)
        return [*judging.first_results(ops, placed)]

    def _hopefully(self, ops: Sequence[Operation]) -> list[Result | Later]:
        """Without waiting. What is only here is taken back here."""
        point = self._appender.point()
        self._db.has_sent = False
        try:
            return [self._apply_once(op, ops) for op in ops]
        except StoreError:
            raise
        except PenstockError as error:
            if self._db.has_sent:
                raise TakeBack from error
            self._take_back(point)
            raise
        finally:
            self._appender.keep()

    def _carefully(self, ops: Sequence[Operation]) -> list[Result | Later]:
        self._appender.flush()
        point = self._appender.point()
        self._db.command(SAVEPOINT)
        try:
            results: list[Result | Later] = [_settled(self._apply_once(op, ops)) for op in ops]
        except StoreError:
            raise
        except PenstockError:
            self._take_back(point)
            self._db.command(ROLL_BACK)
            self._db.command(RELEASE)
            raise
        finally:
            self._appender.keep()
        self._db.command(RELEASE)
        return results

    def _take_back(self, point: Point) -> None:
        self._appender.back_to(point)
        self._known_logs.forget()

    def _apply_once(self, op: Operation, ops: Sequence[Operation]) -> Result | Later:
        result = self._apply(op)
        if len(ops) > 1 and isinstance(op, Commit) and isinstance(result, Appended) and result.repeated:
            # It is there already, and others of its transaction are not: this was another transaction.
            head = self._appender.stream_head(op.context, op.stream)
            raise VersionConflict(op.context, op.stream, op.expected, head)
        return result

    # -- operations

    def _apply(self, op: Operation) -> Result | Later:
        match op:
            case operations.Commit():
                return self._appender.place(op)
            case operations.RequireLog():
                return self._known_logs.require(op.name)
            case (
                operations.WriteOutput()
                | operations.AddLog()
                | operations.DeleteLog()
                | operations.AddIterator()
                | operations.DeleteIterator()
            ):
                return self._apply_to_logs(op)
            case (
                operations.HideStream()
                | operations.HideEvents()
                | operations.Erase()
                | operations.Seal()
                | operations.GiveBack()
            ):
                return self._look_after(op)
            case (
                operations.Stage()
                | operations.Publish()
                | operations.Install()
                | operations.Unstage()
                | operations.ExpireStages()
            ):
                return staging.apply(self._db, op, self._appender, self._recorded)
            case _:
                return Later(self._consume(op))

    def _consume(self, op: Operation) -> Promise:
        match op:
            case operations.Progress():
                return consumers.progress(self._db, op)
            case operations.Acknowledge():
                return consumers.acknowledge(self._db, op)
            case operations.Allocate():
                return consumers.allocate(self._db, op, self._now)
            case operations.Register():
                return consumers.register(self._db, op)
            case operations.SetBookmark():
                return consumers.set_bookmark(self._db, op)
            case operations.DeclareQueue():
                return consumers.declare_queue(self._db, op)
            case operations.ExpireProducers():
                return self.producers.expire(op, self._recorded)
            case (
                operations.Release()
                | operations.MoveQueue()
                | operations.SetDeadRule()
                | operations.Requeue()
                | operations.Reoffer()
            ):
                self.queues.add(op.queue)
                return self._put_back(op)
            case _:
                raise InvalidRequest("operation", f"{type(op).__name__} is not known here")

    def _put_back(
        self,
        op: operations.Release
        | operations.MoveQueue
        | operations.SetDeadRule
        | operations.Requeue
        | operations.Reoffer,
    ) -> Promise:
        match op:
            case operations.Release():
                return consumers.release(self._db, op, self._now)
            case operations.MoveQueue():
                return consumers.move_queue(self._db, op)
            case operations.SetDeadRule():
                return consumers.set_dead_rule(self._db, op)
            case operations.Requeue():
                return consumers.requeue(self._db, op, self._now)
            case operations.Reoffer():
                return consumers.reoffer(self._db, op, self._now)

    def _apply_to_logs(self, op: operations.LogOperation) -> Result:
        if isinstance(op, operations.WriteOutput):
            return write_output(self._db, op)
        self.has_changed_logs = True
        match op:
            case operations.AddLog():
                return self._touched(logs.add_log(self._db, op, self._appender, self._recorded))
            case operations.DeleteLog():
                self._known_logs.forget()
                return self._deleted(self._touched(logs.delete_log(self._db, op, self._appender, self._recorded)))
            case operations.AddIterator():
                return iterators.add_iterator(self._db, op, self._recorded)
            case operations.DeleteIterator():
                return self._deleted(iterators.delete_iterator(self._db, op, self._recorded))

    def _deleted(self, result: R) -> R:
        """Iterators may be gone, and what was staged for them goes too."""
        staging.drop_orphans(self._db, self._appender)
        return result

    def _touched(self, has_changed: bool) -> bool:
        if has_changed:
            self._appender.touch()
        return has_changed

    def _look_after(self, op: operations.UpkeepOperation) -> Result:
        match op:
            case operations.HideStream():
                self.has_changed_logs = True
                return self._deleted(ledger.hide_stream(self._db, op, self._appender, self._recorded))
            case operations.HideEvents():
                self.has_changed_logs = True
                return self._deleted(ledger.hide_events(self._db, op, self._appender, self._recorded))
            case operations.Erase():
                self.has_erased = True
                self._appender.flush()
                return erasing.erase(self._db, op, self._recorded, self._vacuum.take())
            case operations.Seal():
                self._appender.flush()
                return sealing.seal(self._db, op)
            case operations.GiveBack():
                return 0  # PostgreSQL uses freed space again and keeps it.
