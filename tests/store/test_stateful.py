"""The store against a reference that is obviously right: whatever is written, both say and show the same."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from penstock.errors import MarkSuperseded, PenstockError, StorageFull, VersionConflict
from penstock.model import (
    AUDIT_CONTEXT,
    LOG_CONTEXT,
    Credential,
    CredentialKind,
    EventFilter,
    Grant,
    Limits,
    NewEvent,
    ProducerMark,
    StreamInfo,
    View,
    stamp_of,
)
from penstock.model.access import AUDIT
from penstock.model.columns import columns_of
from penstock.store import Store
from penstock.store.contract import (
    Acknowledge,
    AddIterator,
    AddLog,
    Allocate,
    Commit,
    DeclareQueue,
    DeleteIterator,
    DeleteLog,
    DeleteSubscription,
    Erase,
    ExpireCredentials,
    ExpireProducers,
    GiveBack,
    HideEvents,
    HideStream,
    IteratorState,
    MoveQueue,
    Operation,
    Progress,
    Proposal,
    QueueState,
    ReadAccess,
    ReadLimits,
    Register,
    Release,
    RemoveCredential,
    RemovePrincipal,
    Reoffer,
    Requeue,
    RequireAdministrator,
    RequireLog,
    Result,
    Seal,
    SetBookmark,
    SetDeadRule,
    StoreCredential,
    StorePrincipal,
    Transaction,
    WriteOutput,
)
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteStore
from tests.store.build_rules import BuildRules
from tests.store.kit import Clock, commit, do_one, everything, find, findings, some
from tests.store.reference import Names, ReferenceStore
from tests.store.staging_rules import StagingRules

contexts = st.sampled_from(["shop", "other", LOG_CONTEXT, AUDIT_CONTEXT])
streams = st.sampled_from(["a", "ab", "b"])
prefixes = st.sampled_from(["", "a", "ab", "c"])
people = st.sampled_from(["me", "you", "they"])
ticks = st.integers(0, 20)
events = st.lists(
    st.builds(
        NewEvent,
        st.integers(0, 1 << 100).map(lambda number: number.to_bytes(16, "big")),
        st.builds(stamp_of, ticks, st.integers(0, 3)),
        st.sampled_from(["made", "paid"]),
        st.sampled_from([None, "h"]),
        st.binary(max_size=3),
    ),
    min_size=1,
    max_size=5,
)
places = st.sampled_from(
    ["*", "shop", "shop/a*", "shop/ab", "shop/c", "other/a", "other/b*", "log:a", "log:a*", "nowhere"]
).map(lambda where: Grant.of(f"read:{where}").scope)
views = st.lists(places | st.just(AUDIT), max_size=3).map(lambda scopes: View(tuple(scopes)))
some_types = st.sampled_from([None, ("made",), ("made", "paid"), ()])
filters = st.builds(
    EventFilter,
    st.none() | contexts,
    prefixes,
    some_types,
    st.none() | views,
)
limits = st.builds(
    ReadLimits, st.sampled_from([1, 2, 5, 4096]), st.sampled_from([1, 300, 1 << 20]), st.sampled_from([0, 250])
)
marks = st.none() | st.none() | st.builds(ProducerMark, st.sampled_from(["p", "q"]), st.integers(0, 6))
refusals = st.sampled_from([None, None, None, StorageFull("no room")])

FEW_OR_MANY = [
    pytest.param(settings(max_examples=30, stateful_step_count=25), id="few"),
    pytest.param(settings(stateful_step_count=30), id="many", marks=pytest.mark.long),
]


class StoreMachine(StagingRules, BuildRules):
    """One store, one reference, one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.clock = Clock()
        self.reference = ReferenceStore(self.clock)
        self.names = Names()
        self.proposals: list[tuple[int, Proposal]] = []
        self.prepared: Seal | None = None
        self.store = self.open(100)

    def open(self, cache: int) -> Store:
        return SqliteStore(Path(self.folder.name), clock=self.clock, stream_cache_max=cache, wal_bytes_max=1)

    @property
    def head(self) -> int:
        return len(self.reference.state.history)

    # -- writing

    def write(self, *transactions: Transaction) -> None:
        """The same batch to both; both must say the same."""
        right = self.reference.write(transactions)
        real = self.store.write(
            [
                msgspec.structs.replace(one, operations=tuple(map(self.names.real, one.operations)))
                for one in transactions
            ]
        )
        assert len(real) == len(right)
        for one, two in zip(real, right, strict=True):
            if isinstance(two, PenstockError):
                assert type(one) is type(two), (one, two)
                if isinstance(two, VersionConflict | MarkSuperseded):
                    assert str(one) == str(two)
            else:
                assert isinstance(one, list), (one, two)
                assert [self.names.same(a, b) for a, b in zip(one, two, strict=True)] == two

    def operation(self, data: st.DataObject) -> Operation:
        """Something that may or may not be possible now."""
        makers = [self.commit] * 4 + [self.again, self.consumer, self.consumer, self.queue, self.queue, self.log]
        others = [self.hide, self.staging, self.building, self.access]
        return data.draw(st.sampled_from([*makers, *others]), label="kind")(data)

    def access(self, data: st.DataObject) -> Operation:
        """A change of principals and credentials."""
        name, number = data.draw(st.sampled_from(["ann", "bob"])), data.draw(st.sampled_from(["t", "u", "curve:k"]))
        kind = CredentialKind.CURVE if number == "curve:k" else CredentialKind.TOKEN
        ends = st.integers(0, 3).map(lambda late: self.clock.ticks + late)
        credential = Credential(number, name, kind, "", data.draw(st.sampled_from(["", "l"])), 1, data.draw(ends))
        choices: list[Operation] = [
            StorePrincipal(
                name,
                data.draw(st.sampled_from([(), ("read:a", "all:*")])),
                Limits(polls_max=data.draw(st.none() | ticks)),
            ),
            StoreCredential(credential),
            StoreCredential(replace(credential, expires=None)),
            RemoveCredential(number),
            RemovePrincipal(name),
            ExpireCredentials(name, kind, data.draw(ends), data.draw(st.sampled_from(["t", ""]))),
            RequireAdministrator(data.draw(st.sampled_from([None, name]))),
            RequireAdministrator(name, credential),
            ReadAccess(),
        ]
        return data.draw(st.sampled_from(choices), label="operation")

    def commit(self, data: st.DataObject) -> Operation:
        context, stream = data.draw(contexts), data.draw(streams)
        head = len(self.reference.stream(context, stream))
        expected = data.draw(st.sampled_from([-1, -1, head + 1, head + 1, 1, head, head + 2, 0, -2]), label="expected")
        return Commit(context, stream, expected, columns_of(data.draw(events)))

    def again(self, data: st.DataObject) -> Operation:
        """A stretch of a stream once more, seldom with another id at its end."""
        there = self.reference.stream(data.draw(contexts), data.draw(streams))
        if not there:
            return self.commit(data)
        first = data.draw(st.integers(0, len(there) - 1))
        last = data.draw(st.integers(first, min(first + 6, len(there) - 1)))
        chosen = [NewEvent(e.id, e.stamp, e.type, e.headers, e.body) for e in there[first : last + 1]]
        if data.draw(st.integers(0, 3)) == 0:
            chosen[-1] = chosen[-1]._replace(id=b"x" * 16)
        return Commit(there[0].context, there[0].stream, first + 1, columns_of(chosen))

    def new_events(self) -> st.SearchStrategy[list[NewEvent]]:
        return events

    def position(self, data: st.DataObject) -> int:
        """Somewhere, but not so far back that reading on from there in small pages takes long."""
        return data.draw(st.integers(max(1, self.head - 60), self.head + 1), label="position")

    def consumer(self, data: st.DataObject) -> Operation:
        who, where, which = data.draw(people), data.draw(contexts), data.draw(prefixes)
        known = list(self.reference.state.subscriptions.values())
        moving: bool = data.draw(st.booleans())
        if known and moving:
            one = data.draw(st.sampled_from(known))
            if data.draw(st.integers(0, 9)) == 0:
                return DeleteSubscription(one.id)
            start = data.draw(st.sampled_from([one.position, one.position, 1]))
            last, strict = data.draw(st.none() | ticks), data.draw(st.booleans())
            return Progress(one.id, start, self.position(data), last, strict)
        if data.draw(st.integers(0, 3)) == 0:
            return SetBookmark(who, where, which, self.position(data))
        return Register(who, where, which, self.position(data))

    def queue(self, data: st.DataObject) -> Operation:
        known = list(self.reference.state.queues)
        if not known or data.draw(st.integers(0, 9)) == 0:
            name = data.draw(st.sampled_from(["q", "r"]))
            return DeclareQueue(data.draw(contexts), name, data.draw(prefixes), self.position(data))
        number = data.draw(st.sampled_from(known))
        out = list(self.reference.state.allocations[number].values())
        choice = data.draw(st.integers(0, 10))
        if choice == 10:
            return Reoffer(number, self.runs(data))
        if choice == 0:
            return MoveQueue(number, self.position(data))
        if choice == 9:
            return SetDeadRule(number, data.draw(st.none() | st.integers(1, 3)))
        if out and choice == 8:
            return Requeue(number, data.draw(st.sampled_from(out)).first)
        if out and choice < 4:
            one = data.draw(st.sampled_from(out))
            who = data.draw(st.sampled_from([one.subscriber, one.subscriber, "they"]))
            if choice == 3:
                return Release(number, who, one.first, one.last, data.draw(st.booleans()))
            return Acknowledge(number, who, one.first, one.last, strict=data.draw(st.booleans()))
        return self.allocation(data, number)

    def runs(self, data: st.DataObject) -> tuple[tuple[int, int, int], ...]:
        """One or two runs of positions, in order; whether anything is in them the store does not ask."""
        cuts = sorted(data.draw(st.sets(st.integers(1, self.head + 2), min_size=2, max_size=4)))
        return tuple((first, last, 1) for first, last in zip(cuts[::2], cuts[1::2], strict=False))

    def allocation(self, data: st.DataObject, number: int) -> Operation:
        """Carry out what was just proposed, or something that was proposed long ago."""
        who = data.draw(people)
        if data.draw(st.integers(0, 4)):
            self.proposals.append((number, self.reference.propose(number, who, data.draw(st.integers(1, 5)))))
            proposal = self.proposals[-1][1]
        else:
            old = [proposal for queue, proposal in self.proposals if queue == number]
            proposal = data.draw(st.sampled_from(old)) if old else self.reference.propose(number, who, 1)
        return Allocate(number, who, data.draw(st.sampled_from([1, 10, 100])), proposal)

    def log(self, data: st.DataObject) -> Operation:
        name, it = data.draw(streams), data.draw(st.sampled_from(["i", "j", "k"]))
        source = data.draw(st.sampled_from([name, name, "i", "j", "shop/a", "x"]))
        known = list(self.reference.state.iterators.values())
        choices: list[Operation] = [
            AddLog(name),
            DeleteLog(name),
            DeleteLog(
                name,
                data.draw(st.sampled_from([0, *(log.created for log in self.reference.state.logs.values())])),
                strict=data.draw(st.booleans()),
            ),
            RequireLog(name),
            AddIterator(it, source, "filter", data.draw(st.sampled_from(["f", "g"])), data.draw(st.booleans())),
            DeleteIterator(source, it),
            ExpireProducers(self.clock.ticks - data.draw(st.integers(0, 100)) * 10_000, 100),
        ]
        if known:
            one = data.draw(st.sampled_from(known))
            items = tuple(data.draw(st.lists(st.binary(max_size=3), max_size=4)))
            start = data.draw(st.sampled_from([one.source, one.source, 0]))
            choices += [WriteOutput(one.id, start, start + len(items) + 1, items, b"state")] * 3
        return data.draw(st.sampled_from(choices), label="operation")

    def hide(self, data: st.DataObject) -> Operation:
        """Erase a stream, or events here and there."""
        if data.draw(st.booleans()):
            return HideStream(data.draw(contexts), data.draw(streams), data.draw(st.none() | st.integers(0, 9)))
        bounds = sorted(self.position(data) for _ in range(2 * data.draw(st.integers(0, 2))))
        ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        hit = [one for one in self.reference.state.history if any(a <= one.position <= b for a, b in ranges)]
        return HideEvents(ranges, tuple({(one.context, one.stream): None for one in hit}))

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from([self.commit, self.again]))(data)
        self.write(Transaction((operation,), data.draw(marks), data.draw(refusals)))

    @initialize(size=st.sampled_from([0, 4040, 4085]))
    def begin(self, size: int) -> None:
        """With nothing, or near the end of a block, so that small commits close it."""
        for number in range(0, size, 500):
            self.write(Transaction((commit("ab", some(min(500, size - number), ticks=5)),)))

    @rule(size=st.integers(4080, 4100))
    @precondition(lambda self: self.head % 4096 < 200 and self.head < 5000)
    def append_a_lot(self, size: int) -> None:
        """Up to where a backend's blocks of positions may end."""
        self.write(Transaction((commit("a", some(size, ticks=5)),)))

    @rule(data=st.data())
    def do_one_thing(self, data: st.DataObject) -> None:
        self.write(Transaction((self.operation(data),)))

    @rule(data=st.data(), size=st.integers(2, 4), mark=marks)
    def do_several_things_together(self, data: st.DataObject, size: int, mark: ProducerMark | None) -> None:
        self.write(Transaction(tuple(self.operation(data) for _ in range(size)), mark, data.draw(refusals)))

    @rule(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=2, max_size=5))
    def do_a_batch_of_things(self, data: st.DataObject, sizes: list[int]) -> None:
        self.write(*(Transaction(tuple(self.operation(data) for _ in range(n)), data.draw(marks)) for n in sizes))

    # -- what nobody can see

    def upkeep(self, operation: Operation) -> Result:
        """Something that the reference need not know of; but it is a batch like others."""
        self.reference.recorded = max(self.reference.recorded, self.reference.now())
        return do_one(self.store, operation)

    @rule(records_max=st.integers(1, 5))
    @precondition(lambda self: self.store.open_erasures())
    def erase(self, records_max: int) -> None:
        while self.upkeep(Erase(records_max)):
            pass
        self.reference.erase_all()

    @rule(records_max=st.integers(1, 5))
    @precondition(lambda self: self.store.open_erasures())
    def erase_some(self, records_max: int) -> None:
        self.upkeep(Erase(records_max))

    @rule(steps=st.sampled_from([1, 2, 100]))
    @precondition(lambda self: self.head >= 4095)
    def seal(self, steps: int) -> None:
        for _ in range(steps):
            step = next_seal(self.store)
            if step is None:
                break
            assert self.upkeep(step) is True
        self.upkeep(GiveBack(1 << 20))

    @rule()
    @precondition(lambda self: self.head >= 4095)
    def prepare_a_seal(self) -> None:
        self.prepared = next_seal(self.store)

    @rule()
    @precondition(lambda self: self.prepared is not None)
    def seal_what_was_prepared(self) -> None:
        """It may have been sealed, or have been erased, since then."""
        assert self.prepared is not None
        self.upkeep(self.prepared)

    # -- time and crashes

    @rule(ms=st.sampled_from([1, 9, 10, 11, 100, -50]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(cache=st.sampled_from([1, 2, 100]))
    def open_again(self, cache: int) -> None:
        self.store.close()
        self.store = self.open(cache)
        self.reference.reopen()

    @rule()
    def recover(self) -> None:
        self.store.recover()
        self.reference.reopen()

    # -- reading

    @rule(data=st.data(), wanted=filters, bounds=limits)
    def read_everything(self, data: st.DataObject, wanted: EventFilter, bounds: ReadLimits) -> None:
        start, end = self.position(data), data.draw(st.none() | st.integers(0, self.head + 2))
        found = everything(self.store, wanted, bounds, start, end)
        assert self.names.events(found) == self.reference.read(wanted, start, end)

    @rule(context=contexts, stream=streams, bounds=limits, backward=st.booleans(), types=some_types)
    def read_a_stream(
        self, context: str, stream: str, bounds: ReadLimits, backward: bool, types: tuple[str, ...] | None
    ) -> None:
        recent = self.reference.stream(context, stream)[-20:]
        right = [one for one in recent if not self.reference.is_erased(one) and (types is None or one.type in types)]
        low = max(1, len(self.reference.stream(context, stream)) - 19)
        first, last = (0, low) if backward else (low, None)
        found = []
        while True:
            page = self.store.read_stream(context, stream, first, last, bounds, backward, types)
            found += page.events
            first = page.next
            if page.end:
                break
        assert self.names.events(found) == (right[::-1] if backward else right)

    @rule(wanted=filters, time=ticks, bounds=limits)
    def find_a_time(self, wanted: EventFilter, time: int, bounds: ReadLimits) -> None:
        assert find(self.store, wanted, time, bounds) == self.reference.find(wanted, time)

    @invariant()
    def both_are_alike(self) -> None:
        state, store = self.reference.state, self.store
        assert store.head() == self.head
        assert store.now() == self.reference.now()
        assert self.same(store.subscriptions(0, 100)) == sorted(state.subscriptions.values(), key=lambda one: one.id)
        for number, queue in state.queues.items():
            (found,) = self.same(store.find_queues(queue.name, queue.context))
            assert found == queue
            real = self.names.number(QueueState, number)
            out = sorted(state.allocations[number].values(), key=lambda one: one.first)
            assert store.allocations(real, 0, 100) == out
            coming = [one.expires for one in out if one.expires > store.now()]
            assert store.next_expiry(real, store.now()) == min(coming, default=None)
            assert store.dead_letters(real, 0, 100) == [one for one in out if self.reference.is_dead(number, one)]
            for who in ("me", "you"):
                assert store.claim(real, who, None) == self.reference.claim(number, who)
        assert store.access() == self.reference.access()
        assert store.logs("", 100) == sorted(state.logs.values(), key=lambda one: one.name)
        everyone = sorted(state.iterators.values(), key=lambda one: one.name)
        assert self.same(store.iterators(None, "", 100)) == [replace(one, function="", state=None) for one in everyone]
        assert [self.names.same(store.iterator(one.name), None) for one in everyone] == everyone

    def same(self, found: list[Any]) -> list[Any]:
        return [self.names.same(one, None) for one in found]

    def everything_is_alike(self) -> None:
        state, store = self.reference.state, self.store
        assert self.names.events(everything(store)) == self.reference.read(EventFilter())
        assert [one.name for one in store.contexts("", 10)] == sorted({one.context for one in state.history})
        for info in store.contexts("", 10):
            mine = [one for one in state.history if one.context == info.name]
            heads = {one.stream: one.sequence for one in mine}
            assert (info.events, info.streams, info.commits) == (len(mine), len(heads), len({e.commit for e in mine}))
            right = [StreamInfo(name, head) for name, head in sorted(heads.items())]
            assert store.streams(info.name, "", "", 10) == right
        for iterator in state.iterators.values():
            real = self.names.number(IteratorState, iterator.id)
            assert store.read_output(real, 0, ReadLimits()) == state.outputs[iterator.id]
        counts = store.stats()
        assert (counts.head, counts.subscriptions, counts.queues) == (
            *(self.head, len(state.subscriptions), len(state.queues)),
        )
        assert findings(store) == []

    def teardown(self) -> None:
        try:
            self.everything_is_alike()
            self.store.close()
            self.store = self.open(100)
            self.everything_is_alike()
        finally:
            self.store.close()
            self.folder.cleanup()


# A thorough run, or a busy machine, may take longer than other tests are allowed to.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tried", FEW_OR_MANY)
def test_the_store_does_what_the_reference_does(tried: settings) -> None:
    run_state_machine_as_test(StoreMachine, settings=tried)
