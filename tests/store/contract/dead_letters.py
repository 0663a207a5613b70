"""Dead letters: what its holders let expire too often is set aside until somebody puts it back."""

import pytest

from penstock.errors import QueueNotFound
from penstock.model import Allocation
from penstock.store import Store
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    MoveQueue,
    Proposal,
    QueueState,
    Requeue,
    SetDeadRule,
)
from tests.store.contract.case import StoreCase
from tests.store.contract.queues import TTL_MS, declare, given, marker_of, take
from tests.store.kit import Clock, append, attempt, do_one, some


def lose(store: Store, queue: QueueState, clock: Clock, times: int, count: int = 2) -> Allocation:
    """Take what the queue gives and let it expire, so many times; the last holding."""
    held = []
    for number in range(times):
        held.append(given(store, queue, f"lost {number}", count))
        clock.advance(TTL_MS)
    return held[-1]


class DeadLetterContract(StoreCase):
    @pytest.fixture
    def fragile(self, store: Store) -> QueueState:
        """A queue whose allocations die with their second holder."""
        append(store, "orders", some(10))
        queue = declare(store)
        do_one(store, SetDeadRule(queue.id, 2))
        return queue

    def test_without_a_rule_nothing_dies(self, store: Store, clock: Clock) -> None:
        append(store, "orders", some(4))
        queue = declare(store)
        assert lose(store, queue, clock, 50).deliveries == 50
        assert store.dead_letters(queue.id, 0, 10) == []

    def test_what_expired_too_often_is_handed_out_no_more(
        self, store: Store, fragile: QueueState, clock: Clock
    ) -> None:
        lost = lose(store, fragile, clock, 2)
        assert store.dead_letters(fragile.id, 0, 10) == [lost]
        assert store.claim(fragile.id, "x", None) is None
        assert store.claim(fragile.id, lost.subscriber, None) is None
        assert given(store, fragile, "x").first == 3
        (info,) = store.queues(0, 10)
        assert (info.dead, info.dead_after, info.allocations, info.deliveries_max) == (1, 2, 2, 2)
        late = Proposal(Proposal.EXPIRED, 5, 5, lost.first, lost.last, lost.count)
        assert do_one(store, Allocate(fragile.id, "y", TTL_MS, late)) == STALE

    def test_a_last_holder_keeps_it_while_it_lives(self, store: Store, fragile: QueueState, clock: Clock) -> None:
        lose(store, fragile, clock, 1)
        live = given(store, fragile, "me")
        assert live.deliveries == 2
        assert store.dead_letters(fragile.id, 0, 10) == []
        assert given(store, fragile, "me") == live
        clock.advance(TTL_MS)
        assert store.dead_letters(fragile.id, 0, 10) == [live]
        assert do_one(store, Acknowledge(fragile.id, "me", live.first, live.last)) is True
        assert store.dead_letters(fragile.id, 0, 10) == []

    def test_what_is_put_back_is_counted_anew(self, store: Store, fragile: QueueState, clock: Clock) -> None:
        lost = lose(store, fragile, clock, 2)
        assert do_one(store, Requeue(fragile.id, lost.first)) is True
        assert do_one(store, Requeue(fragile.id, lost.first)) is False
        assert store.dead_letters(fragile.id, 0, 10) == []
        again = given(store, fragile, "x")
        assert (again.first, again.last, again.count, again.deliveries) == (lost.first, lost.last, lost.count, 1)
        clock.advance(TTL_MS)
        lose(store, fragile, clock, 1)
        assert [one.deliveries for one in store.dead_letters(fragile.id, 0, 10)] == [2]

    def test_only_a_dead_letter_is_put_back(self, store: Store, fragile: QueueState, clock: Clock) -> None:
        live = given(store, fragile, "me")
        for number, first in ((fragile.id, live.first), (fragile.id, 99), (fragile.id + 1, 1)):
            assert do_one(store, Requeue(number, first)) is False
        clock.advance(TTL_MS)
        assert do_one(store, Requeue(fragile.id, live.first)) is False
        assert store.allocations(fragile.id, 0, 10) == [live]

    def test_another_rule_counts_for_what_is_there_already(
        self, store: Store, fragile: QueueState, clock: Clock
    ) -> None:
        lost = lose(store, fragile, clock, 2)
        for rule, dead in ((3, []), (1, [lost]), (None, []), (2, [lost])):
            do_one(store, SetDeadRule(fragile.id, rule))
            assert store.dead_letters(fragile.id, 0, 10) == dead
            assert store.claim(fragile.id, "x", None) == (None if dead else lost)

    def test_dead_letters_are_listed_by_marker_in_pages(self, store: Store, fragile: QueueState, clock: Clock) -> None:
        do_one(store, SetDeadRule(fragile.id, 1))
        for _ in range(5):
            lose(store, fragile, clock, 1)
        found: list[int] = []
        while page := store.dead_letters(fragile.id, found[-1] if found else 0, 2):
            found += [one.first for one in page]
        assert found == [1, 3, 5, 7, 9]
        assert take(store, fragile, "x") is None

    def test_a_reset_queue_has_no_dead_letters_and_keeps_its_rule(
        self, store: Store, fragile: QueueState, clock: Clock
    ) -> None:
        lose(store, fragile, clock, 2)
        do_one(store, MoveQueue(fragile.id, 1))
        assert store.dead_letters(fragile.id, 0, 10) == []
        assert marker_of(store, fragile) == 1
        assert lose(store, fragile, clock, 2) == store.dead_letters(fragile.id, 0, 10)[0]

    def test_a_rule_for_a_queue_that_is_not_there_is_refused(self, store: Store) -> None:
        assert isinstance(attempt(store, SetDeadRule(7, 1)), QueueNotFound)
        assert store.dead_letters(7, 0, 10) == []

    def test_the_rule_of_one_queue_is_not_that_of_another(
        self, store: Store, fragile: QueueState, clock: Clock
    ) -> None:
        other = declare(store, "other")
        lose(store, other, clock, 5)
        assert store.dead_letters(other.id, 0, 10) == []
        assert [(one.dead, one.dead_after) for one in store.queues(0, 10)] == [(0, 2), (0, None)]
