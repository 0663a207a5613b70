"""A store in lists and dictionaries: slow, small, and plain enough to be obviously right.

It knows no backend. A test writes the same transactions to a real store and to this one and compares what both
answer and what can be read from both afterwards. Numbers that a store gives out (of subscriptions, queues,
iterators) and commit ids may differ: `Names` translates between the two.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from msgspec import structs

from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    IteratorCycle,
    IteratorExists,
    IteratorNotFound,
    LogNotFound,
    MarkSuperseded,
    OutputMoved,
    PenstockError,
    QueueContended,
    QueueFilterMismatch,
    QueueNotFound,
    SubscriptionMoved,
    SubscriptionNotFound,
    VersionConflict,
)
from penstock.model import (
    AUDIT_CONTEXT,
    LOG_CONTEXT,
    Allocation,
    Appended,
    Event,
    EventFilter,
    NewEvent,
    Over,
    ProducerMark,
    SubscriptionInfo,
    ticks_of_unix_ns,
)
from penstock.model.access import Scope
from penstock.model.requests import KEYS
from penstock.store import contract
from penstock.store.contract import (
    STALE,
    Hid,
    IteratorState,
    LogInfo,
    Operation,
    Outcome,
    Placed,
    Proposal,
    QueueState,
    Result,
    Transaction,
)
from penstock.store.outputs import iterator_of_job, output_job
from penstock.store.record import Record, encode_commit
from tests.store.reference_access import AccessReference, AccessTables
from tests.store.reference_builds import BuildReference
from tests.store.reference_staging import Attempt, AttemptKey

TICKS_PER_MS = 10_000
_T = TypeVar("_T")


def sent(commit: contract.Commit) -> list[NewEvent]:
    """The events of a commit, decoded again."""
    data = encode_commit(commit.columns, 1, b"c", b"s", 1, bytes(16), 0)
    return [NewEvent(e.id, e.stamp, e.type, e.headers, e.body) for e in Record(data, 1).events()]


def is_seen(scopes: Sequence[Scope], context: str, stream: str) -> bool:
    """What scopes mean, said plainly."""
    for place, name, is_exact in scopes:
        is_there = context != AUDIT_CONTEXT if place is None else context == place
        if is_there and (stream == name if is_exact else stream[: len(name)] == name):
            return True
    return False


def _again(result: Appended | Placed) -> Appended | Placed:
    if isinstance(result, Appended):
        return replace(result, repeated=True)
    return Placed(replace(result.published, repeated=True), frozenset())


@dataclass
class State:
    """All that a store keeps. A transaction that fails gives back the copy that was made before it."""

    history: list[Event] = field(default_factory=list)
    erased: set[int] = field(default_factory=set)
    subscriptions: dict[int, SubscriptionInfo] = field(default_factory=dict)
    queues: dict[int, QueueState] = field(default_factory=dict)
    allocations: dict[int, dict[int, Allocation]] = field(default_factory=dict)
    dead_after: dict[int, int | None] = field(default_factory=dict)
    producers: dict[str, tuple[int, list[Appended | Placed], int]] = field(default_factory=dict)
    logs: dict[str, LogInfo] = field(default_factory=dict)
    last_log: int = 0
    to_erase: set[int] = field(default_factory=set)
    erased_up_to: dict[tuple[str, str], int] = field(default_factory=dict)
    iterators: dict[str, IteratorState] = field(default_factory=dict)
    outputs: dict[int, list[bytes]] = field(default_factory=dict)
    stages: dict[AttemptKey, Attempt] = field(default_factory=dict)
    access: AccessTables = field(default_factory=AccessTables)
    number: int = 0

    def copy(self) -> "State":
        """What is inside is never changed, only replaced; so its containers are all there is to copy."""
        mine = {one.name: copy(getattr(self, one.name)) for one in fields(self)}
        mine["allocations"] = {number: dict(out) for number, out in self.allocations.items()}
        mine["outputs"] = {number: list(items) for number, items in self.outputs.items()}
        return State(**mine)


class ReferenceStore(BuildReference, AccessReference):
    """The contract, as plainly as it can be said."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.recorded = 0
        self.state = State()

    def reopen(self) -> None:
        """Only the history remembers the time."""
        self.recorded = self.state.history[-1].recorded if self.state.history else 0

    def now(self) -> int:
        return ticks_of_unix_ns(self.clock())

    @property
    def stages(self) -> dict[AttemptKey, Attempt]:
        return self.state.stages

    @property
    def iterators(self) -> dict[str, IteratorState]:
        return self.state.iterators

    @property
    def outputs(self) -> dict[int, list[bytes]]:
        return self.state.outputs

    @property
    def tables(self) -> AccessTables:
        return self.state.access

    # -- reading

    def read(self, wanted: EventFilter, start: int = 1, end: int | None = None) -> list[Event]:
        """Events that pass a filter."""
        return [
            one
            for one in self.state.history[: None if end is None else max(end, 0)]
            if one.position >= start
            and not self.is_erased(one)
            and (wanted.context is None or one.context == wanted.context)
            and one.stream.startswith(wanted.prefix)
            and (wanted.types is None or one.type in wanted.types)
            and (wanted.within is None or is_seen(wanted.within.scopes, one.context, one.stream))
        ]

    def stream(self, context: str, stream: str) -> list[Event]:
        """All events a stream ever had."""
        return [one for one in self.state.history if (one.context, one.stream) == (context, stream)]

    def is_erased(self, one: Event) -> bool:
        """Whether nobody may see it any more, wherever its bytes still are."""
        return one.position in self.state.erased or one.position in self.state.to_erase

    def find(self, wanted: EventFilter, ticks: int) -> int | None:
        """The first position at or after a time."""
        return next((one.position for one in self.read(wanted) if one.ticks >= ticks), None)

    def claim(self, queue: int, subscriber: str) -> Allocation | None:
        """One's own live allocation, else the oldest expired one."""
        live = sorted(self.state.allocations.get(queue, {}).values(), key=lambda one: one.first)
        own = [one for one in live if one.subscriber == subscriber and one.expires > self.now()]
        expired = [one for one in live if one.expires <= self.now() and not self.is_dead(queue, one)]
        return next(iter(own + expired), None)

    def is_dead(self, queue: int, one: Allocation) -> bool:
        """Whether so many holders let it expire that nobody gets it any more."""
        limit = self.state.dead_after.get(queue)
        return limit is not None and one.expires <= self.now() and one.deliveries >= limit

    def propose(self, queue: int, subscriber: str, count: int) -> Proposal:
        """What a server would propose now."""
        state = self.state.queues[queue]
        claim = self.claim(queue, subscriber)
        if claim is not None:
            kind = Proposal.OWN if claim.expires > self.now() else Proposal.EXPIRED
            return Proposal(kind, state.position, state.position, claim.first, claim.last, claim.count)
        events = self.read(EventFilter(state.context, state.filter), state.position)[:count]
        if not events:
            return Proposal(Proposal.NOTHING, state.position, len(self.state.history) + 1)
        first, last = events[0].position, events[-1].position
        return Proposal(Proposal.FRESH, state.position, last + 1, first, last, len(events))

    # -- writing

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        """Each transaction on its own, one after the other."""
        self.recorded = max(self.recorded, self.now())
        return [self._outcome(transaction) for transaction in transactions]

    def _outcome(self, transaction: Transaction) -> Outcome:
        before = self.state.copy()
        try:
            # Keys of idempotency have tests of their own.
            assert not transaction.keys
            return self._transact(transaction.operations, transaction.mark, transaction.refusal)
        except PenstockError as error:
            self.state = before
            return error

    def _transact(
        self, operations: Sequence[Operation], mark: ProducerMark | None, refusal: PenstockError | None
    ) -> list[Result]:
        if mark is not None and mark.producer in self.state.producers:
            number, results, _ = self.state.producers[mark.producer]
            if mark.number < number:
                raise MarkSuperseded(mark.producer, mark.number, number)
            writing = [type(op) for op in operations if isinstance(op, contract.Commit | contract.Publish)]
            kinds = {Appended: contract.Commit, Placed: contract.Publish}
            if mark.number == number and writing != [kinds[type(result)] for result in results]:
                raise InvalidRequest("producer's number", "was used for another transaction")
            if mark.number == number:
                return self._first_results(operations, results)
        commits = [op for op in operations if isinstance(op, contract.Commit)]
        if commits and all(1 <= op.expected <= len(self.stream(op.context, op.stream)) for op in commits):
            for op in operations:
                if isinstance(op, contract.RequireLog):
                    self._apply(op)
            answers = self._first_results(operations, [self._repeat(op) for op in commits])
            for op in operations:
                if isinstance(op, contract.Acknowledge | contract.Progress):
                    self._apply(replace(op, strict=False))
        elif refusal is not None:
            raise refusal
        else:
            answers = [self._apply(op) for op in operations]
        if mark is not None and refusal is None:
            first = [answer for answer in answers if isinstance(answer, Appended | Placed)]
            self.state.producers[mark.producer] = (mark.number, first, self.recorded)
        return answers

    @staticmethod
    def _first_results(operations: Sequence[Operation], results: Sequence[Appended | Placed]) -> list[Result]:
        rest = [_again(result) for result in results]
        writing = (contract.Commit, contract.Publish)
        return [rest.pop(0) if isinstance(operation, writing) and rest else None for operation in operations]

    def _repeat(self, op: contract.Commit) -> Appended:
        stream = self.stream(op.context, op.stream)
        events = sent(op)
        there = stream[op.expected - 1 : op.expected - 1 + len(events)]
        if [one.id for one in there] != [one.id for one in events]:
            raise VersionConflict(op.context, op.stream, op.expected, len(stream))
        return Appended(there[0].commit, there[0].position, op.expected, len(events), repeated=True)

    def _apply(self, op: Operation) -> Result:
        name = type(op).__name__
        answer: Result = getattr(self, f"_do_{name.lower()}")(op)
        return answer

    def _do_commit(self, op: contract.Commit) -> Appended:
        head = len(self.stream(op.context, op.stream))
        if op.expected < -1 or op.expected == 0:
            raise InvalidRequest("expected version", "must be -1 or at least 1")
        if op.expected not in (-1, head + 1):
            raise VersionConflict(op.context, op.stream, op.expected, head)
        position = len(self.state.history) + 1
        commit = position.to_bytes(16, "big")
        events = sent(op)
        log = self.state.logs.get(op.stream)
        if op.context == LOG_CONTEXT and log is not None:
            self.state.logs[op.stream] = replace(log, bytes=log.bytes + sum(len(one.body) for one in events))
        for n, one in enumerate(events):
            row: tuple[Any, ...] = (position + n, op.context, op.stream, head + 1 + n, *one, self.recorded, commit)
            self.state.history.append(Event(*row))
        return Appended(commit, position, head + 1, len(events))

    def _number(self) -> int:
        self.state.number += 1
        return self.state.number

    def _subscription(self, subscriber: str, context: str | None, filter: str) -> SubscriptionInfo | None:
        key = (subscriber, context, filter)
        everyone = self.state.subscriptions.values()
        return next((one for one in everyone if (one.subscriber, one.context, one.filter) == key), None)

    def _do_register(self, op: contract.Register) -> SubscriptionInfo:
        found = self._subscription(op.subscriber, op.context, op.filter)
        if found is None:
            found = SubscriptionInfo(self._number(), op.subscriber, op.context, op.filter, op.position, None)
            self.state.subscriptions[found.id] = found
        return found

    def _do_progress(self, op: contract.Progress) -> bool:
        found = self.state.subscriptions.get(op.subscription)
        if found is None or found.position != op.start:
            if op.strict:
                raise SubscriptionMoved(op.subscription)
            return False
        ticks = found.last_ticks if op.last_ticks is None else op.last_ticks
        self.state.subscriptions[found.id] = replace(found, position=op.next, last_ticks=ticks)
        return True

    def _do_setbookmark(self, op: contract.SetBookmark) -> bool:
        found = self._subscription(op.subscriber, op.context, op.filter)
        if found is None:
            raise SubscriptionNotFound(op.subscriber)
        self.state.subscriptions[found.id] = replace(found, position=op.position, last_ticks=None)
        return True

    def _do_deletesubscription(self, op: contract.DeleteSubscription) -> bool:
        return self.state.subscriptions.pop(op.subscription, None) is not None

    def _do_declarequeue(self, op: contract.DeclareQueue) -> QueueState:
        everyone = self.state.queues.values()
        found = next((one for one in everyone if (one.context, one.name) == (op.context, op.name)), None)
        if found is None:
            found = QueueState(self._number(), op.context, op.name, op.filter, op.position)
            self.state.queues[found.id] = found
            self.state.allocations[found.id] = {}
        if found.filter != op.filter:
            raise QueueFilterMismatch(op.name, found.filter, op.filter)
        return found

    def _do_acknowledge(self, op: contract.Acknowledge) -> bool:
        mine = self.state.allocations.get(op.queue, {})
        found = mine.get(op.first)
        if found is None or found.subscriber != op.subscriber or op.last not in (None, found.last):
            if op.strict:
                raise AllocationLost(str(op.queue), op.first, op.last or op.first)
            return False
        del mine[op.first]
        return True

    def _do_release(self, op: contract.Release) -> bool:
        mine = self.state.allocations.get(op.queue, {})
        found = mine.get(op.first)
        if found is None or (found.subscriber, found.last) != (op.subscriber, op.last):
            return False
        fewer = not op.counts and found.expires > self.now()
        expires = min(found.expires, self.now())
        mine[op.first] = replace(found, expires=expires, deliveries=found.deliveries - fewer)
        return True

    def _do_allocate(self, op: contract.Allocate) -> Allocation | str | None:
        queue, proposal = self._queue(op.queue), op.proposal
        claim = self.claim(op.queue, op.subscriber)
        expires = self.now() + op.ttl_ms * TICKS_PER_MS
        if claim is not None:
            kind = Proposal.OWN if claim.expires > self.now() else Proposal.EXPIRED
            seen = (proposal.kind, proposal.first, proposal.last, proposal.count)
            if seen != (kind, claim.first, claim.last, claim.count):
                return STALE
            if kind == Proposal.EXPIRED:
                claim = replace(claim, subscriber=op.subscriber, expires=expires, deliveries=claim.deliveries + 1)
        elif proposal.kind in (Proposal.OWN, Proposal.EXPIRED) or proposal.marker != queue.position:
            return STALE
        else:
            self.state.queues[op.queue] = replace(queue, position=proposal.next)
            if proposal.kind == Proposal.NOTHING:
                return None
            claim = Allocation(proposal.first, proposal.last, proposal.count, op.subscriber, expires, 1)
        self.state.allocations[op.queue][claim.first] = claim
        return claim

    def _queue(self, number: int) -> QueueState:
        if number not in self.state.queues:
            raise QueueNotFound(str(number))
        return self.state.queues[number]

    def _do_movequeue(self, op: contract.MoveQueue) -> bool:
        self.state.queues[op.queue] = replace(self._queue(op.queue), position=op.position)
        self.state.allocations[op.queue].clear()
        return True

    def _do_setdeadrule(self, op: contract.SetDeadRule) -> bool:
        self._queue(op.queue)
        self.state.dead_after[op.queue] = op.dead_after
        return True

    def _do_requeue(self, op: contract.Requeue) -> bool:
        found = self.state.allocations.get(op.queue, {}).get(op.first)
        if found is None or not self.is_dead(op.queue, found):
            return False
        self.state.allocations[op.queue][op.first] = replace(found, deliveries=0)
        return True

    def _do_reoffer(self, op: contract.Reoffer) -> bool:
        queue, out = self._queue(op.queue), self.state.allocations[op.queue]
        for first, last, _ in op.runs:
            if last >= queue.position or any(one.first <= last and one.last >= first for one in out.values()):
                raise QueueContended(queue.name)
        for first, last, count in op.runs:
            out[first] = Allocation(first, last, count, "", self.now(), 0)
        return True

    def _do_addlog(self, op: contract.AddLog) -> bool:
        if op.name in self.state.logs:
            return False
        created = self.state.last_log = max(self.recorded, self.state.last_log + 1)
        self.state.logs[op.name] = LogInfo(op.name, created, len(self.stream(LOG_CONTEXT, op.name)), 0)
        return True

    def _do_requirelog(self, op: contract.RequireLog) -> bool:
        if op.name not in self.state.logs:
            raise LogNotFound(op.name)
        return True

    def _do_deletelog(self, op: contract.DeleteLog) -> bool:
        log = self.state.logs.get(op.name)
        if log is None or op.created not in (None, log.created):
            if op.strict:
                raise LogNotFound(op.name)
            return False
        del self.state.logs[op.name]
        self.state.to_erase |= {one.position for one in self.stream(LOG_CONTEXT, op.name)[log.base :]}
        self._drop_below(op.name, Over.LOG)
        return True

    def erase_all(self) -> None:
        """What `Erase` has done when it answers 0."""
        self.state.erased |= self.state.to_erase
        self.state.to_erase.clear()

    def _do_hidestream(self, op: contract.HideStream) -> Hid:
        if op.context == LOG_CONTEXT:
            raise InvalidRequest("context", "is that of logs")
        place, events = (op.context, op.stream), self.stream(op.context, op.stream)[: op.last]
        before = self.state.erased_up_to.get(place, 0)
        if before >= len(events):
            return Hid(0, [])
        self.state.erased_up_to[place] = len(events)
        self.state.to_erase |= {one.position for one in events}
        return Hid(len(events) - before, self._begin_anew(f"{op.context}/{op.stream}", Over.STREAM))

    def _do_hideevents(self, op: contract.HideEvents) -> Hid:
        positions = [position for first, last in op.ranges for position in range(first, last + 1)]
        bounds = [bound for each in op.ranges for bound in each]
        if bounds != sorted(bounds) or len(positions) != len(set(positions)) or any(a > b for a, b in op.ranges):
            raise InvalidRequest("ranges", "are not in order")
        if not set(positions) <= set(range(1, len(self.state.history) + 1)):
            raise InvalidRequest("ranges", "lie outside")
        self.state.to_erase |= set(positions)
        rebuilt: list[IteratorState] = []
        for context, stream in op.streams if positions else ():
            over = (stream, Over.LOG) if context == LOG_CONTEXT else (f"{context}/{stream}", Over.STREAM)
            rebuilt += self._begin_anew(*over)
        return Hid(len(positions), sorted(rebuilt, key=lambda one: one.name))

    def _begin_anew(self, log: str, over: Over) -> list[IteratorState]:
        again: list[IteratorState] = []
        for one in [one for one in self.state.iterators.values() if (one.log, one.over) == (log, over)]:
            self._gone(one.id)
            fresh = replace(one, id=self._number(), source=one.base, outputs=0, state=None)
            self.state.iterators[one.name] = fresh
            self.state.outputs[fresh.id] = []
            again += [fresh, *self._begin_anew(one.name, Over.ITERATOR)]
        return sorted(again, key=lambda one: one.name)

    def _do_additerator(self, op: contract.AddIterator) -> IteratorState:
        found = self.state.iterators.get(op.name)
        if found is None:
            over, base = self._resolve(op.log, op.name)
            definition = (op.name, op.log, over, op.kind, op.function, op.indexed)
            found = IteratorState(self._number(), *definition, self.recorded, base, base, 0, None)
            self.state.iterators[op.name] = found
            self.state.outputs[found.id] = []
        if (found.log, found.kind, found.function, found.indexed) != (op.log, op.kind, op.function, op.indexed):
            if op.log not in self.state.logs and op.name in (op.log, *self._upward(op.log)):
                raise IteratorCycle(op.name)
            raise IteratorExists(op.name)
        return found

    def _resolve(self, log: str, name: str) -> tuple[Over, int]:
        if log in self.state.logs:
            return Over.LOG, self.state.logs[log].base
        if log == name:
            raise IteratorCycle(name)
        if self._upward(log):
            return Over.ITERATOR, 0
        context, slash, stream = log.partition("/")
        if not slash or not context or not stream or context == LOG_CONTEXT:
            raise LogNotFound(log)
        return Over.STREAM, 0

    def _upward(self, name: str) -> list[str]:
        """An indexed iterator and those it reads."""
        found = self.state.iterators.get(name)
        if found is None or not found.indexed:
            return []
        return [name, *(self._upward(found.log) if found.over == Over.ITERATOR else [])]

    def _drop_below(self, log: str, over: Over) -> None:
        for one in [one for one in self.state.iterators.values() if (one.log, one.over) == (log, over)]:
            self._drop_below(one.name, Over.ITERATOR)
            del self.state.iterators[one.name]
            self._gone(one.id)

    def _do_deleteiterator(self, op: contract.DeleteIterator) -> bool:
        found = self.state.iterators.get(op.name)
        if found is None or found.log != op.log:
            raise IteratorNotFound(op.name)
        self._drop_below(op.name, Over.ITERATOR)
        del self.state.iterators[op.name]
        self._gone(found.id)
        return True

    def _do_writeoutput(self, op: contract.WriteOutput) -> int:
        found = next((one for one in self.state.iterators.values() if one.id == op.iterator), None)
        if found is None or found.source != op.source:
            raise OutputMoved(op.iterator)
        self.state.outputs[found.id] += op.items
        count = len(self.state.outputs[found.id])
        state = op.state if op.items else found.state
        self.state.iterators[found.name] = replace(found, source=op.next_source, outputs=count, state=state)
        return count

    def _do_expireproducers(self, op: contract.ExpireProducers) -> int:
        idle = [
            name
            for name, (_, _, used) in self.state.producers.items()
            if used < op.before and name.startswith(KEYS) == op.keys
        ]
        for name in idle:
            del self.state.producers[name]
        return len(idle)


class Names:
    """Numbers and commit ids that a real store gave out, and what the reference calls the same things."""

    NUMBERED = (SubscriptionInfo, QueueState, IteratorState)
    NUMBER_FIELDS = ("subscription", "queue", "iterator")

    def __init__(self) -> None:
        self._real: dict[tuple[str, int], int] = {}
        self._commits: dict[bytes, bytes] = {}

    def learn(self, real: Any, reference: Any) -> None:
        """Take note of what the two call the same thing."""
        if isinstance(real, Appended) and isinstance(reference, Appended):
            self._commits.setdefault(real.commit, reference.commit)
        elif isinstance(real, self.NUMBERED) and type(real) is type(reference):
            self._real.setdefault((type(real).__name__, reference.id), real.id)
        elif isinstance(real, Hid) and isinstance(reference, Hid):
            for one, two in zip(self._sorted(real), reference.rebuilt, strict=False):
                self.learn(one, two)

    def same_commit(self, real: bytes, reference: bytes) -> None:
        """Take note of two ids of one commit."""
        self._commits.setdefault(real, reference)

    def number(self, kind: type, reference: int) -> int:
        """The real number of something; one that nothing has if there is no such thing."""
        return self._real.get((kind.__name__, reference), 1_000_000 + reference)

    def real(self, op: Operation) -> Operation:
        """An operation as the real store understands it."""
        for kind, name in zip(self.NUMBERED, self.NUMBER_FIELDS, strict=True):
            if hasattr(op, name):
                numbered: Any = op
                return replace(numbered, **{name: self.number(kind, getattr(op, name))})  # type: ignore[no-any-return]
        if isinstance(op, contract.Stage | contract.Unstage) and (owner := iterator_of_job(op.job)) is not None:
            return replace(op, job=output_job(self.number(IteratorState, owner)))
        return op

    def same(self, real: _T, reference: Any) -> _T:
        """A real answer in the reference's words, as far as they are known."""
        self.learn(real, reference)
        if isinstance(real, self.NUMBERED):
            known = {number: theirs for (kind, theirs), number in self._real.items() if kind == type(real).__name__}
            return replace(real, id=known[real.id])
        if isinstance(real, Appended):
            return replace(real, commit=self._commits[real.commit])
        if isinstance(real, Hid):
            return real._replace(rebuilt=[self.same(one, None) for one in self._sorted(real)])
        return real

    @staticmethod
    def _sorted(hid: Hid) -> list[IteratorState]:
        return sorted(hid.rebuilt, key=lambda one: one.name)

    def events(self, found: Sequence[Event]) -> list[Event]:
        """Real events in the reference's words."""
        return [structs.replace(one, commit=self._commits[one.commit]) for one in found]
