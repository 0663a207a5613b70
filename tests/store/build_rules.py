"""What builds elsewhere do, as rules of the machine in `tests.store.test_stateful`."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.model import Winner
from penstock.store.contract import AddIterator, Install, IteratorState, Operation, Stage, Transaction, Unstage
from penstock.store.outputs import make_output_unit, output_job, pack_items
from tests.store.reference import ReferenceStore
from tests.store.reference_staging import AttemptKey

NOBODY = 999
"""The number of no iterator."""
chunks = st.lists(st.binary(max_size=3), max_size=4).map(pack_items)


class BuildRules(RuleBasedStateMachine):
    """Builds that begin, stage, and install behind what the store's own builder has written."""

    reference: ReferenceStore

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int, int]] = []

    def write(self, *transactions: Transaction) -> None:
        """The same batch to both."""
        raise NotImplementedError

    def one(self, data: st.DataObject) -> IteratorState | None:
        """An iterator that is there, if one is; an indexed one if there is one."""
        everyone = sorted(self.reference.state.iterators.values(), key=lambda one: one.name)
        known = [one for one in everyone if one.indexed] or everyone
        return data.draw(st.sampled_from(known), label="iterator") if known else None

    def building(self, data: st.DataObject) -> Operation:
        """Something that a build does; first it needs an iterator."""
        one = self.one(data)
        if one is None:
            return AddIterator(data.draw(st.sampled_from(["i", "j"])), "shop/a", "filter", "f", True)
        choice = data.draw(st.integers(0, 14), label="building")
        if choice < 5:
            return self.installation(data, one)
        job = output_job(one.id if choice > 5 else NOBODY)
        if choice == 6:
            return Unstage(job)
        part, attempt = data.draw(st.integers(0, 1)), data.draw(st.sampled_from(["a", "b"]))
        known = self.reference.stages.get(AttemptKey(job, part, attempt))
        has = len(known.units) if known else 0
        number = data.draw(st.sampled_from([has, has, has, 0, has + 1]), label="number")
        units = tuple(map(make_output_unit, data.draw(st.lists(chunks, min_size=1, max_size=3))))
        return Stage(job, part, attempt, number, units, 1 << 20, 12)

    def installation(self, data: st.DataObject, one: IteratorState) -> Install:
        """Most often of all that is staged, from where the build of an iterator began."""
        begun = [place for place in self.begun if place[0] == one.id] or self.begun[-1:]
        here = (one.id, one.source - one.base, one.outputs)
        number, source, items = data.draw(st.sampled_from([here, here, *begun, *begun]), label="begun")
        staged = {key: len(it.units) for key, it in self.reference.stages.items() if key.job == output_job(number)}
        won = {key.part: Winner(key.part, key.attempt, staged[key]) for key in sorted(staged)}
        winners = list(won.values())
        if data.draw(st.integers(0, 9)) == 9:
            winners.append(Winner(data.draw(st.integers(0, 2)), "a", data.draw(st.integers(0, 2))))
        messages = source + data.draw(st.sampled_from([40, 20, 3, 0]), label="messages")
        return Install(number, source, items, messages, tuple(winners), b"built")

    @rule(data=st.data())
    @precondition(lambda self: self.reference.state.iterators)
    def begin_build(self, data: st.DataObject) -> None:
        """Remember where an iterator is; what is installed later may be of this place."""
        one: Any = self.one(data)
        self.begun.append((one.id, one.source - one.base, one.outputs))

    @rule(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.write(Transaction((self.building(data),)))
