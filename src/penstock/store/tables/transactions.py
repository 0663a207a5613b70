"""Transactions: idempotency, all or nothing, and the function for each operation.

A producer's mark stores the commits of its transaction, so a retry gets the first results. An idempotency key is a
producer that is used once, and its number says what must be the same in a repeat. A publication is stored as
one commit: its first position, its number of commits and its number of events. Its commit id is eight zeros, which no
other commit id begins with, and a digest of its origin.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from penstock.errors import (
    DamagedRecord,
    InvalidRequest,
    KeyReused,
    MarkSuperseded,
    PartlyRepeated,
    PenstockError,
    StoreError,
    VersionConflict,
)
from penstock.model import Appended, ProducerMark, Published, check_name
from penstock.model.times import TICKS_PER_MS
from penstock.store import contract
from penstock.store.contract import Commit, Operation, Publish, Result
from penstock.store.record import Record
from penstock.store.seals import is_merge
from penstock.store.tables import access, consumers, erasures, logs
from penstock.store.tables.appends import Appender
from penstock.store.tables.consumers import Deferred
from penstock.store.tables.database import Database
from penstock.store.tables.logs import KnownLogs
from penstock.store.tables.stages import Stages

NUMBER_MAX: Final = (1 << 63) - 1
_PUBLISHED: Final = bytes(8)
_NO_ORIGIN: Final = bytes(8)
_RESULT: Final = Struct("<16sQQI")

Pending = list[Result | Deferred] | PenstockError
"""The outcome of a transaction; the batch may not have waited for some results yet."""


# --- idempotency ----------------------------------------------------------------------------------------------


def check_mark(mark: ProducerMark) -> None:
    if reason := check_name(mark.key):
        raise InvalidRequest("producer", reason)
    if not -NUMBER_MAX <= mark.number <= NUMBER_MAX:
        raise InvalidRequest("producer's number", f"{mark.number} does not fit into 64 bits")


def stored_results(mark: ProducerMark, number: int, results: bytes) -> list[Appended] | None:
    """The commits that a producer's row has for a mark; None if the mark is new."""
    if number < mark.number:
        return None
    if number > mark.number:
        raise MarkSuperseded(mark.producer, mark.number, number)
    return _unpacked(results)


def _unpacked(results: bytes) -> list[Appended]:
    found = _RESULT.iter_unpack(results)
    return [Appended(commit, position, sequence, count, True) for commit, position, sequence, count in found]


def results_of_keys(results: Sequence[Result | Deferred], keys: int) -> Iterator[bytes]:
    """The result that the store keeps for each of so many keys of a commit: all of the commit, or the key's event."""
    (done,) = (result for result in results if isinstance(result, Appended))
    if keys == 1:
        yield _RESULT.pack(done.commit, done.position, done.sequence, done.count)
        return
    for index in range(keys):
        yield _RESULT.pack(done.commit, done.position + index, done.sequence + index, 1)


def pack_results(ops: Sequence[Operation], results: Sequence[object]) -> bytes:
    packed = b""
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, Appended):
            packed += _RESULT.pack(result.commit, result.position, result.sequence, result.count)
        elif isinstance(result, contract.Placed):
            done = result.published
            packed += _RESULT.pack(_PUBLISHED + _origin(op), done.position, done.commits, done.events)
    return packed


def _origin(op: Operation) -> bytes:
    if not isinstance(op, Publish) or not op.origin:
        return _NO_ORIGIN
    return blake2b(op.origin.encode(), digest_size=len(_NO_ORIGIN)).digest()


def first_results(
    ops: Sequence[Operation], before: Sequence[Appended], mark: ProducerMark | None = None
) -> list[Result | Deferred]:
    """The first results of a repeated transaction; InvalidRequest if the mark belongs to another transaction."""
    written = [op for op in ops if isinstance(op, Commit | Publish)]
    if mark is not None:
        if [isinstance(op, Publish) for op in written] != [one.commit.startswith(_PUBLISHED) for one in before]:
            raise InvalidRequest("producer's number", f"{mark.number} was used for another transaction")
        for publish, one in zip(written, before, strict=True):
            known = one.commit[len(_PUBLISHED) :]
            is_told = isinstance(publish, Publish) and publish.origin
            if is_told and known not in (_NO_ORIGIN, _origin(publish)):
                reason = (
                    f"{mark.producer} has published number {mark.number} from another origin, such as a query with "
                    "another checkpoint; nothing is written: use another producer name"
                )
                raise InvalidRequest("producer", reason)
    rest = iter(before)
    results: list[Result | Deferred] = []
    for op in ops:
        if isinstance(op, Commit):
            results.append(next(rest))
        elif isinstance(op, Publish):
            found = next(rest)
            published = Published(found.position, found.sequence, found.count, repeated=True)
            results.append(contract.Placed(published, frozenset()))
        else:
            results.append(None)
    return results


def receipts(ops: Sequence[Operation]) -> Iterator[Operation]:
    """The acknowledgements and progress of a transaction whose commits exist: a client may have committed without them.

    Where the store has them already, they do nothing.
    """
    for op in ops:
        if isinstance(op, contract.Acknowledge | contract.Settle | contract.Progress):
            yield replace(op, strict=False)


# --- carrying out ---------------------------------------------------------------------------------------------


class Batch(ABC):
    """A batch of transactions inside one transaction of the database."""

    refusal: PenstockError | None = None
    """Why nothing of this batch may be committed; the batch still recognises what was written before."""
    now: int
    recorded: int
    has_erased = False
    """Whether the batch had a step of an erasure."""
    emptied: Collection[int] = ()
    """Erasures whose contents have left all files, until the ledger says that they are finished."""

    def __init__(self, db: Database, appender: Appender, known_logs: KnownLogs, stages: Stages) -> None:
        self.db = db
        self.appender = appender
        self.known_logs = known_logs
        self.stages = stages

    def outcome(self, transaction: contract.Transaction) -> Pending:
        """Carry out a transaction; a PenstockError says why it failed. Raises StoreError if the database failed."""
        ops, mark, refusal, keys = transaction.operations, transaction.mark, transaction.refusal, transaction.keys
        try:
            if mark is not None:
                check_mark(mark)
                if (before := self.find_mark(mark)) is not None:
                    return first_results(ops, before, mark)
            if keys and (known := self._find_keys(ops, keys)) is not None:
                return first_results(ops, [known])
            if (refusal := refusal or self.refusal) is not None:
                is_known = self._is_behind(ops) and not (self.refusal is not None and self.has_open_receipts(ops))
                # Returned, not raised: the caller would take StorageFull for a failure of the database.
                return self._repeat(ops) if is_known else refusal
            if len(ops) == 1 and self.is_atomic(ops[0]):
                results = [self.apply(ops[0])]
            else:
                results = self._repeat(ops) if len(ops) > 1 and self._is_behind(ops) else self.together(ops)
            if mark is not None:
                self.save_mark(mark, pack_results(ops, results))
            if keys:
                for key, packed in zip(keys, results_of_keys(results, len(keys)), strict=True):
                    self.save_mark(key, packed)
            return results
        except StoreError:
            raise
        except PenstockError as error:
            return error

    def apply(self, op: Operation) -> Result | Deferred:
        return HANDLERS[type(op)](self, op)

    def flush(self) -> None:
        """Write what is buffered."""
        self.appender.flush()

    def together(self, ops: Sequence[Operation]) -> list[Result | Deferred]:
        self.flush()
        roll_back = self.appender.savepoint()
        self.db.command("SAVEPOINT transaction_")
        try:
            results: list[Result | Deferred] = [waited(self.apply_new(op, ops)) for op in ops]
        except StoreError:
            raise  # The database may have rolled back everything; `recover` decides.
        except PenstockError:
            roll_back()
            self.known_logs.forget()
            self.db.command("ROLLBACK TO transaction_")
            self.db.command("RELEASE transaction_")
            raise
        finally:
            self.appender.release()
        self.db.command("RELEASE transaction_")
        return results

    def apply_new(self, op: Operation, ops: Sequence[Operation]) -> Result | Deferred:
        """Carry out an operation of a transaction that is not a repeat."""
        result = self.apply(op)
        if len(ops) > 1 and isinstance(op, Commit) and isinstance(result, Appended) and result.repeated:
            # The store has this commit and lacks others of the transaction, so it is from another transaction.
            head = self.appender.stream_head(op.context, op.stream)
            raise VersionConflict(op.context, op.stream, op.expected, head)
        return result

    def find_mark(self, mark: ProducerMark) -> list[Appended] | None:
        """The commits under a mark; None if the mark is new."""
        found = self.find_producer(mark.key)
        return None if found is None else stored_results(mark, *found)

    def _find_keys(self, ops: Sequence[Operation], keys: Sequence[ProducerMark]) -> Appended | None:
        """Where the events of these keys are; None if no key is known."""
        (commit,) = (op for op in ops if isinstance(op, Commit))
        found = [self.find_producer(key.key) for key in keys]
        known = [one for one in found if one is not None]
        if not known:
            return None
        for key, one in zip(keys, found, strict=True):
            if one is not None and one[0] != key.number:
                raise KeyReused(commit.context, key.producer)
        if len(known) < len(keys):
            raise PartlyRepeated(commit.context, len(known), len(keys))
        places = [place for _, results in known for place in _unpacked(results)]
        return replace(places[0], count=sum(place.count for place in places))

    def _is_behind(self, ops: Sequence[Operation]) -> bool:
        """Whether all streams are past the expected versions of the commits: a repeat or a conflict."""
        commits = [op for op in ops if isinstance(op, Commit)]
        return bool(commits) and all(map(self.appender.is_behind, commits))

    def _repeat(self, ops: Sequence[Operation]) -> list[Result | Deferred]:
        """The first results of commits that the store already has; VersionConflict if it has others."""
        # The messages of a deleted log are gone, so a retry must not succeed.
        for op in ops:
            if isinstance(op, contract.RequireLog):
                self.apply(op)
        placed = [self.appender.place(op) for op in ops if isinstance(op, Commit)]
        for op in receipts(ops):
            self.apply(op)
        return first_results(ops, placed)

    def has_open_receipts(self, ops: Sequence[Operation]) -> bool:
        """Whether the acknowledgements or progress of a transaction would still change something."""
        if not (found := list(receipts(ops))):
            return False
        self.db.command("SAVEPOINT transaction_")
        has_changed = any(waited(self.apply(op)) for op in found)
        self.db.command("ROLLBACK TO transaction_")
        self.db.command("RELEASE transaction_")
        return has_changed

    def expire_producers(self, op: contract.ExpireProducers) -> Deferred:
        gone = self.db.send("expire_producers", {"before": op.before, "limit": op.limit, "keys": op.keys})
        return Deferred(lambda: len(gone()))

    def erase(self, op: contract.Erase) -> int:
        self.appender.flush()
        self.has_erased = True
        for number in self.emptied:
            self.db.later("finish_erasure", {"id": number, "now": self.recorded})
        return self.erasure_step(op.records_max).run()

    def seal(self, op: contract.Seal) -> bool:
        """Replace records by the merged one, if the mark, the ledger of erasures and the records are as at the merge.

        Raises DamagedRecord if the seal has other events than the records that it replaces.
        """
        db = self.db
        self.appender.flush()
        mark, entries, rewrites = db.row("ledger")
        if op.ledger != (entries, int(rewrites)) or op.first < int(mark) or op.next <= int(mark):
            return False
        if op.data is not None:
            first, count, context_id, stream_id = db.row("seal_place", {"first": op.first, "last": op.last})
            sealed = Record(op.data, op.first)
            if first != op.first or not count == op.last - op.first + 1 == sealed.count:
                return False
            if not is_merge(sealed, db.rows("unsealed_records", {"low": op.first, "high": op.last})):
                raise DamagedRecord(op.first, "it was to take the place of records that have other events")
            place = {"position": op.first, "count": count, "context_id": context_id, "stream_id": stream_id}
            self.replace_records(op, {**place, "data": op.data})
        db.later("move_mark", {"position": op.next})
        return True

    def give_back(self, _op: contract.GiveBack) -> int:
        return 0  # Most databases reuse free space and keep it.

    # -- what differs between backends

    @abstractmethod
    def is_atomic(self, op: Operation) -> bool:
        """Whether an operation alone needs no savepoint, because it changes nothing if it fails."""

    @abstractmethod
    def find_producer(self, name: str) -> tuple[int, bytes] | None:
        """The number and the results of a producer; None if it has none."""

    @abstractmethod
    def save_mark(self, mark: ProducerMark, results: bytes) -> None: ...

    @abstractmethod
    def allocate(self, op: contract.Allocate) -> Result | Deferred: ...

    @abstractmethod
    def reoffer(self, op: contract.Reoffer) -> Result | Deferred: ...

    @abstractmethod
    def erasure_step(self, records_max: int) -> erasures.ErasureStep: ...

    @abstractmethod
    def replace_records(self, op: contract.Seal, row: dict[str, Any]) -> None: ...


def _delete(batch: Batch, result: Result) -> Result:
    """After a deletion: forget the logs, and drop the staged output of iterators that are gone."""
    batch.known_logs.forget()
    batch.stages.drop_orphans()
    return result


HANDLERS: Final[dict[type[Operation], Callable[[Batch, Any], Result | Deferred]]] = {
    Commit: lambda batch, op: batch.appender.place(op),
    contract.RequireLog: lambda batch, op: batch.known_logs.require(op.name),
    contract.Register: lambda batch, op: consumers.register(batch.db, op),
    contract.Progress: lambda batch, op: consumers.progress(batch.db, op),
    contract.SetBookmark: lambda batch, op: consumers.set_bookmark(batch.db, op),
    contract.DeleteSubscription: lambda batch, op: consumers.delete_subscription(batch.db, op),
    contract.DeclareQueue: lambda batch, op: consumers.declare_queue(batch.db, op),
    contract.Acknowledge: lambda batch, op: consumers.acknowledge(batch.db, op),
    contract.Allocate: lambda batch, op: batch.allocate(op),
    contract.Release: lambda batch, op: consumers.release(batch.db, op, batch.now),
    contract.MoveQueue: lambda batch, op: consumers.move_queue(batch.db, op),
    contract.SetDeadRule: lambda batch, op: consumers.set_dead_rule(batch.db, op),
    contract.Requeue: lambda batch, op: consumers.requeue(batch.db, op, batch.now),
    contract.Reoffer: lambda batch, op: (
        consumers.reoffer_parts(batch.db, op, batch.now) if op.parts else batch.reoffer(op)
    ),
    contract.AllocateParts: lambda batch, op: consumers.allocate_parts(
        batch.db, op, batch.now, batch.now + op.ttl_ms * TICKS_PER_MS
    ),
    contract.Settle: lambda batch, op: consumers.settle(batch.db, op, batch.now),
    contract.Extend: lambda batch, op: consumers.extend(batch.db, op, batch.now + op.ttl_ms * TICKS_PER_MS),
    contract.Revive: lambda batch, op: consumers.revive(batch.db, op, batch.now),
    contract.ChangeQueue: lambda batch, op: consumers.change_queue(batch.db, op),
    contract.DeleteQueue: lambda batch, op: consumers.delete_queue(batch.db, op),
    contract.ExpireProducers: lambda batch, op: batch.expire_producers(op),
    contract.AddLog: lambda batch, op: logs.add_log(batch.db, op, batch.appender, batch.recorded),
    contract.DeleteLog: lambda batch, op: _delete(batch, logs.delete_log(batch.db, op, batch.appender, batch.recorded)),
    contract.AddIterator: lambda batch, op: logs.add_iterator(batch.db, op, batch.recorded),
    contract.DeleteIterator: lambda batch, op: _delete(batch, logs.delete_iterator(batch.db, op, batch.recorded)),
    contract.WriteOutput: lambda batch, op: batch.stages.write_output(op),
    contract.HideStream: lambda batch, op: _delete(
        batch, erasures.hide_stream(batch.db, op, batch.appender, batch.recorded)
    ),
    contract.HideEvents: lambda batch, op: _delete(
        batch, erasures.hide_events(batch.db, op, batch.appender, batch.recorded)
    ),
    contract.Erase: lambda batch, op: batch.erase(op),
    contract.Seal: lambda batch, op: batch.seal(op),
    contract.GiveBack: lambda batch, op: batch.give_back(op),
    contract.Stage: lambda batch, op: batch.stages.stage(op, batch.recorded),
    Publish: lambda batch, op: batch.stages.publish(op),
    contract.Install: lambda batch, op: batch.stages.install(op),
    contract.Unstage: lambda batch, op: batch.stages.drop("stages_of_job", {"job": op.job}),
    contract.ExpireStages: lambda batch, op: batch.stages.drop("idle_stages", {"before": op.before, "limit": op.limit}),
    contract.StorePrincipal: lambda batch, op: access.store_principal(batch.db, op, batch.recorded),
    contract.RemovePrincipal: lambda batch, op: access.remove_principal(batch.db, op, batch.recorded),
    contract.StoreCredential: lambda batch, op: access.store_credential(batch.db, op, batch.recorded),
    contract.RemoveCredential: lambda batch, op: access.remove_credential(batch.db, op, batch.recorded),
    contract.RequireAdministrator: lambda batch, op: access.require_administrator(batch.db, op, batch.recorded),
    contract.ReadAccess: lambda batch, _op: access.read(batch.db),
    contract.ForgetArrival: lambda batch, _op: access.forget_arrival(batch.db),
    contract.ExpireCredentials: lambda batch, op: access.expire_credentials(batch.db, op, batch.recorded),
}
"""The function for each operation."""


def waited(result: Result | Deferred) -> Result:
    return result.result() if isinstance(result, Deferred) else result
