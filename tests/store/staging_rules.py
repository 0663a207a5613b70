"""What jobs do, as rules of the machine in `tests.store.test_stateful`."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.model import ANY, ProducerMark, StagedUnit, Winner
from penstock.store.contract import ExpireStages, Operation, Publish, Stage, Transaction, Unstage
from penstock.store.stages import make_unit
from tests.store.kit import Clock, everything
from tests.store.reference import Names, ReferenceStore
from tests.store.reference_staging import AttemptKey

KEYED = "keyed"
"""The job whose events have keys."""
jobs = st.sampled_from(["plain", KEYED, "~ann/1/job", "~ann/2/job"])
attempts = st.sampled_from(["a", "b"])


class StagingRules(RuleBasedStateMachine):
    """Jobs that stage, publish, and are dropped."""

    reference: ReferenceStore
    names: Names
    clock: Clock
    store: Any

    def write(self, *transactions: Transaction) -> None:
        """The same batch to both."""
        raise NotImplementedError

    def staging(self, data: st.DataObject) -> Operation:
        """Something that a job does before it is published."""
        choice = data.draw(st.integers(0, 9), label="staging")
        if choice == 0:
            return Unstage(data.draw(jobs))
        if choice == 1:
            return ExpireStages(self.clock.ticks - data.draw(st.integers(0, 100)) * 10_000, 100)
        job, part, attempt = data.draw(jobs), data.draw(st.integers(0, 2)), data.draw(attempts)
        known = self.reference.stages.get(AttemptKey(job, part, attempt))
        has = len(known.units) if known else 0
        number = data.draw(st.sampled_from([has, has, has, 0, has + 1]), label="number")
        units = tuple(self.unit(data, job) for _ in range(data.draw(st.integers(1, 3))))
        owner, *_ = job.removeprefix("~").split("/")
        return Stage(job, part, attempt, number, units, 1 << 20, 12, owner, data.draw(st.sampled_from([None, 600])))

    def unit(self, data: st.DataObject, job: str) -> StagedUnit:
        """Some events of a stream."""
        context, stream = data.draw(st.sampled_from(["shop", "other"])), data.draw(st.sampled_from(["a", "ab"]))
        head = len(self.reference.stream(context, stream))
        expected = data.draw(st.sampled_from([ANY] * 8 + [head + 1, head + 2]), label="expected")
        events = data.draw(self.new_events())
        keys = [data.draw(st.binary(max_size=1)) for _ in events] if job == KEYED else []
        return make_unit(context, stream, events, expected, sorted(keys))

    def new_events(self) -> st.SearchStrategy[Any]:
        """Events as others append them."""
        raise NotImplementedError

    @rule(data=st.data())
    def stage(self, data: st.DataObject) -> None:
        self.write(Transaction((self.staging(data),)))

    @rule(data=st.data(), job=jobs)
    @precondition(lambda self: self.reference.stages)
    def publish(self, data: st.DataObject, job: str) -> None:
        """Most often what there is; seldom something else."""
        staged = {key: len(one.units) for key, one in self.reference.stages.items() if key.job == job}
        chosen = data.draw(st.permutations(sorted(staged)), label="attempts")
        won = {key.part: Winner(key.part, key.attempt, staged[key]) for key in chosen}
        winners = list(won.values())[: data.draw(st.sampled_from([9, 9, 9, 1]))]
        if data.draw(st.integers(0, 7)) == 0:
            winners.append(Winner(data.draw(st.integers(0, 2)), data.draw(attempts), data.draw(st.integers(0, 2))))
        start = len(self.reference.state.history) + 1
        mark = self.mark(data)
        self.write(Transaction((Publish(job, tuple(winners)),), mark))
        # Nobody is told the ids of these commits, and nothing of them is hidden yet.
        made = self.reference.state.history[start - 1 :]
        for real, own in zip(everything(self.store, start=start), made, strict=True):
            self.names.same_commit(real.commit, own.commit)

    def mark(self, data: st.DataObject) -> ProducerMark:
        """Most often the next number of a producer."""
        producer = data.draw(st.sampled_from(["p", "r"]), label="producer")
        last = self.reference.state.producers.get(producer, (0, [], 0))[0]
        return ProducerMark(producer, last + data.draw(st.sampled_from([1, 1, 1, 0, -1]), label="number"))
