"""The engine against the reference store and the rules of docs/engine.md: whatever is asked, both answer the same.

Time passes for real: an allocation is either long or is waited for until it has surely expired.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from msgspec import structs

from penstock.engine import Engine
from penstock.errors import InvalidRequest, PenstockError, SubscriptionMoved, VersionConflict
from penstock.model import (
    ANONYMOUS,
    AcknowledgeQueue,
    Allocation,
    Append,
    Appended,
    Delivery,
    Done,
    Event,
    EventFilter,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    NewEvent,
    ProducerMark,
    ProgressSubscription,
    QueueReceipt,
    ReadAll,
    ReadStream,
    Registered,
    RegisterSubscriptions,
    Reply,
    Request,
    ResetQueue,
    SetSubscription,
    SubscribeQueue,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
    Transacted,
)
from penstock.settings import Settings
from penstock.store import contract, open_reader, store_url
from penstock.store.contract import Commit, Transaction
from tests.store.kit import Clock
from tests.store.reference import Names, ReferenceStore
from tests.store.test_stateful import events, prefixes, ticks

SHORT_MS = 1
LONG_MS = 3_600_000
contexts = st.sampled_from(["shop", "other"])
streams = st.sampled_from(["a", "ab", "b"])
people = st.sampled_from(["me", "you"])
ttls = st.sampled_from([SHORT_MS, LONG_MS, LONG_MS])
R = TypeVar("R", bound=Reply)
T = TypeVar("T")


@dataclass
class Subscription:
    """What a subscriber may count on."""

    number: int
    subscriber: str
    wanted: EventFilter
    position: int
    last_ticks: int | None = None
    pending: list[Event] = field(default_factory=list)


class EngineMachine(RuleBasedStateMachine):
    """One engine, one reference."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.clock = Clock()
        self.reference = ReferenceStore(self.clock)
        self.names = Names()
        self.subscriptions: dict[int, Subscription] = {}
        self.queues: dict[tuple[str, str], int] = {}
        self.held: list[tuple[str, str, Allocation]] = []
        self.engine = self.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def start(self) -> Engine:
        engine = Engine(store_url(Path(self.folder.name)), Settings(workers=1))
        self.run(engine.start())
        return engine

    def ask(self, kind: type[R], request: Request) -> R:
        reply = self.run(self.engine.execute(ANONYMOUS, request))
        assert isinstance(reply, kind)
        return reply

    def same(self, request: Request, *operations: contract.Operation, mark: ProducerMark | None = None) -> Any:
        """Ask the engine and the reference; both fail alike, or the engine's reply and the results come back."""
        (right,) = self.reference.write([Transaction(operations, mark)])
        reply = self.attempt(request)
        if isinstance(reply, PenstockError):
            assert type(reply) is type(right), (reply, right)
            return None
        assert not isinstance(right, PenstockError), (reply, right)
        return reply, right

    def attempt(self, request: Request) -> Reply | PenstockError:
        try:
            return self.run(self.engine.execute(ANONYMOUS, request))
        except PenstockError as error:
            return error

    # -- appends

    def commit(self, data: st.DataObject) -> Append:
        context, stream = data.draw(contexts), data.draw(streams)
        head = len(self.reference.stream(context, stream))
        expected = data.draw(st.sampled_from([-1, -1, head + 1, head + 1, 1, head, 0]), label="expected")
        return Append(context, stream, tuple(data.draw(events)), expected)

    @rule(data=st.data(), number=st.none() | st.integers(1, 4))
    def append(self, data: st.DataObject, number: int | None) -> None:
        request = self.commit(data)
        mark = None if number is None else ProducerMark("p", number)
        request = Append(request.context, request.stream, request.events, request.expected, mark)
        answered = self.same(request, operation(request), mark=mark)
        if answered:
            reply, (right,) = answered
            assert isinstance(reply, Appended)
            assert self.names.same(reply, right) == right

    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        there = self.reference.stream(data.draw(contexts), data.draw(streams))
        if not there:
            return
        first = data.draw(st.integers(0, len(there) - 1))
        chosen = [structs.astuple(event)[4:9] for event in there[first : first + 3]]
        request = Append(there[0].context, there[0].stream, tuple(NewEvent(*one) for one in chosen), first + 1)
        answered = self.same(request, operation(request))
        assert answered
        reply, (right,) = answered
        assert self.names.same(reply, right) == right

    @rule(data=st.data(), count=st.integers(1, 3))
    def transact(self, data: st.DataObject, count: int) -> None:
        commits = tuple(self.commit(data) for _ in range(count))
        answered = self.same(Transact(commits), *map(operation, commits))
        if answered:
            reply, right = answered
            assert isinstance(reply, Transacted)
            for one, two in zip(reply.commits, right, strict=True):
                assert self.names.same(one, two) == two

    # -- subscriptions

    @rule(who=people, context=contexts, prefix=prefixes, start=ticks)
    def register(self, who: str, context: str, prefix: str, start: int) -> None:
        request = RegisterSubscriptions(who, (SubscriptionStart(context, prefix or "*", start),))
        (number,) = self.ask(Registered, request).ids
        wanted = EventFilter(context, prefix)
        known = [s for s in self.subscriptions.values() if (s.subscriber, s.wanted) == (who, wanted)]
        assert [s.number for s in known] in ([], [number])
        if not known:
            assert number > max(self.subscriptions, default=0)
            self.subscriptions[number] = Subscription(number, who, wanted, self.find(wanted, start))

    def find(self, wanted: EventFilter, start: int) -> int:
        return self.reference.find(wanted, start) or len(self.reference.state.history) + 1

    def some_subscription(self, data: st.DataObject) -> Subscription:
        return data.draw(st.sampled_from(list(self.subscriptions.values())))

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), count=st.integers(1, 4))
    def fetch(self, data: st.DataObject, count: int) -> None:
        subscription = self.some_subscription(data)
        batch = self.ask(FetchedBatch, FetchSubscription(subscription.number, count)).events
        if subscription.pending:
            assert batch == subscription.pending
            return
        matching = self.reference.read(subscription.wanted, subscription.position)
        assert without_times(self.names.events(batch)) == without_times(matching[: len(batch)])
        assert bool(batch) == bool(matching)
        if batch:
            self.check_cut(batch, matching, count, subscription.last_ticks)
            subscription.pending = batch

    @staticmethod
    def check_cut(batch: list[Event], matching: list[Event], count: int, previous: int | None) -> None:
        rest = matching[len(batch) :]
        last = batch[-1].ticks
        assert not rest or rest[0].ticks != last, "events of the last one's time are missing"
        if last == previous:
            assert all(event.ticks == previous for event in matching), "it could have ended on another time"
        if len(batch) < min(count, len(matching)):
            assert all(event.ticks == previous for event in rest), "it is shorter than it need be"

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), right=st.booleans(), at=ticks)
    def progress(self, data: st.DataObject, right: bool, at: int) -> None:
        subscription = self.some_subscription(data)
        if right and subscription.pending:
            at = subscription.pending[-1].ticks
        self.ask(Done, ProgressSubscription(subscription.number, at))
        if subscription.pending and subscription.pending[-1].ticks == at:
            self.progressed(subscription)

    def progressed(self, subscription: Subscription) -> None:
        last = subscription.pending[-1]
        subscription.position, subscription.last_ticks = last.position + 1, last.ticks
        subscription.pending = []

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), at=ticks)
    def progress_in_a_transaction(self, data: st.DataObject, at: int) -> None:
        subscription = self.some_subscription(data)
        commit = self.commit(data)
        receipt = SubscriptionReceipt(subscription.number, at)
        matches = bool(subscription.pending) and subscription.pending[-1].ticks == at
        if not matches:
            # The commit beside it may be at fault as well.
            reply = self.attempt(Transact((commit,), progress=(receipt,)))
            repeated = isinstance(reply, Transacted) and reply.commits[0].repeated
            assert repeated or isinstance(reply, SubscriptionMoved | VersionConflict | InvalidRequest), reply
            return
        answered = self.same(Transact((commit,), progress=(receipt,)), operation(commit))
        if answered and not answered[1][0].repeated:
            self.names.learn(answered[0].commits[0], answered[1][0])
            self.progressed(subscription)

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), at=ticks)
    def set_subscription(self, data: st.DataObject, at: int) -> None:
        subscription = self.some_subscription(data)
        wanted = subscription.wanted
        self.ask(Done, SetSubscription(subscription.subscriber, str(wanted.context), wanted.prefix, at))
        subscription.position, subscription.last_ticks = self.find(wanted, at), None
        subscription.pending = []

    # -- queues

    def declare(self, context: str, prefix: str, start: int) -> int:
        """The reference's number of the queue of this context and prefix; made there if it is new."""
        name = f"q-{prefix}"
        op = contract.DeclareQueue(context, name, prefix, self.find(EventFilter(context, prefix), start))
        (outcome,) = self.reference.write([Transaction((op,))])
        assert isinstance(outcome, list)
        (queue,) = outcome
        assert isinstance(queue, contract.QueueState)
        self.queues[context, name] = queue.id
        return queue.id

    @rule(context=contexts, prefix=prefixes, who=people, start=ticks, count=st.integers(1, 3), ttl_ms=ttls)
    def subscribe_queue(self, context: str, prefix: str, who: str, start: int, count: int, ttl_ms: int) -> None:
        queue = self.declare(context, prefix, start)
        request = SubscribeQueue(context, f"q-{prefix}", who, prefix, start, count, ttl_ms)
        self.delivered(self.ask(Delivery, request), queue, who, count, ttl_ms)

    def delivered(self, reply: Delivery, queue: int, who: str, count: int, ttl_ms: int) -> None:
        """The reference gives the same events with the same markers."""
        proposal = self.reference.propose(queue, who, count)
        (outcome,) = self.reference.write([Transaction((contract.Allocate(queue, who, ttl_ms, proposal),))])
        assert isinstance(outcome, list)
        (right,) = outcome
        given = reply.allocation
        assert (given is None) == (right is None)
        if given is not None and isinstance(right, Allocation):
            assert (given.first, given.last, given.count) == (right.first, right.last, right.count)
            assert (given.subscriber, given.deliveries) == (who, right.deliveries)
            wanted = EventFilter(reply.context, reply.queue.removeprefix("q-"))
            right_events = self.reference.read(wanted, given.first, given.last)
            assert without_times(self.names.events(reply.events)) == without_times(right_events)
            self.held.append((reply.context, reply.queue, given))
        time.sleep(0.005)
        self.clock.advance(5)

    def some_held(self, data: st.DataObject) -> tuple[str, str, Allocation]:
        return data.draw(st.sampled_from(self.held[-6:]))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 3), ttl_ms=ttls | st.just(-1))
    def acknowledge_queue(self, data: st.DataObject, count: int, ttl_ms: int) -> None:
        context, name, given = self.some_held(data)
        queue, who = self.queues[context, name], given.subscriber
        request = AcknowledgeQueue(context, name, who, given.first, given.last, count, ttl_ms)
        reply = self.ask(Delivery, request)
        self.reference.write([Transaction((contract.Acknowledge(queue, who, given.first, given.last),))])
        if ttl_ms == -1:
            assert reply.allocation is None
        else:
            self.delivered(reply, queue, who, count, ttl_ms)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def consume_and_produce(self, data: st.DataObject) -> None:
        context, name, given = self.some_held(data)
        commit = self.commit(data)
        receipt = QueueReceipt(context, name, given.subscriber, given.first, given.last)
        strict = contract.Acknowledge(
            self.queues[context, name], given.subscriber, given.first, given.last, strict=True
        )
        answered = self.same(Transact((commit,), (receipt,)), operation(commit), strict)
        if answered:
            self.names.learn(answered[0].commits[0], answered[1][0])

    @precondition(lambda self: self.queues)
    @rule(data=st.data(), at=ticks)
    def reset_queue(self, data: st.DataObject, at: int) -> None:
        context, name = data.draw(st.sampled_from(list(self.queues)))
        self.ask(Done, ResetQueue(context, name, at))
        position = self.find(EventFilter(context, name.removeprefix("q-")), at)
        self.reference.write([Transaction((contract.MoveQueue(self.queues[context, name], position),))])

    # -- reading and reopening

    @rule(context=st.none() | contexts, prefix=prefixes, start=st.integers(1, 30))
    def read_everything(self, context: str | None, prefix: str, start: int) -> None:
        page = self.ask(EventPage, ReadAll(start, context, prefix))
        wanted = EventFilter(context, prefix)
        assert without_times(self.names.events(page.events)) == without_times(self.reference.read(wanted, start))

    @rule(context=contexts, stream=streams, backward=st.booleans())
    def read_one_stream(self, context: str, stream: str, backward: bool) -> None:
        request = ReadStream(context, stream, 0 if backward else 1, backward=backward)
        page = self.ask(EventPage, request)
        right = self.reference.stream(context, stream)
        found = self.names.events(page.events)
        assert without_times(found) == without_times(right[::-1] if backward else right)

    @rule()
    def restart(self) -> None:
        """A pending batch may be forgotten; nothing else is."""
        self.run(self.engine.stop())
        self.engine = self.start()
        for subscription in self.subscriptions.values():
            subscription.pending = []

    def teardown(self) -> None:
        try:
            self.run(self.engine.stop())
            reader = open_reader(self.engine.url)
            assert list(reader.verify(lambda _done, _total: None)) == []
            reader.close()
        finally:
            self.loop.close()
            self.folder.cleanup()


def without_times(found: list[Event]) -> list[Event]:
    """The reference has a clock of its own."""
    return [structs.replace(event, recorded=0) for event in found]


def operation(request: Append) -> Commit:
    return Commit(request.context, request.stream, request.expected, request.columns())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("examples", "steps"), [(8, 30), pytest.param(15, 40, marks=pytest.mark.long)])
def test_the_engine_does_what_the_reference_does(examples: int, steps: int) -> None:
    # Every step is a real one, with real fsyncs: without shrinking, a failure is told in seconds.
    phases = [Phase.reuse, Phase.generate]
    tried = settings(max_examples=examples, stateful_step_count=steps, deadline=None, phases=phases)
    run_state_machine_as_test(EngineMachine, settings=tried)
